//! The handoff port over DynamoDB: `pk = <role id>:<instance id>`, `jit`, `ttl`.
//!
//! The key is the instance's own `${aws:userid}`, which is what its role may read and delete. Nothing is read here, so
//! nothing here needs the permission to.

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use ostler_core::Result;
use ostler_core::ports::{Handoff, Jit};
use ostler_core::time::Timestamp;

use crate::error::{sdk_error, sdk_error_of_secret};
use crate::item::{KEY, TTL, text, ttl};

/// Registrations on their way to instances. Whether an item is past its `ttl` does not matter here: an
/// instance may claim what lies there.
pub struct DynamoHandoff {
    client: Client,
    table: String,
    role_id: String,
}

impl DynamoHandoff {
    /// Over the table of that name; `role_id` is the runner role's unique id (`AROA…`).
    pub fn new(config: &SdkConfig, table: &str, role_id: &str) -> Self {
        Self { client: Client::new(config), table: table.to_owned(), role_id: role_id.to_owned() }
    }

    fn key(&self, instance: &str) -> AttributeValue {
        text(format!("{}:{instance}", self.role_id))
    }
}

impl Handoff for DynamoHandoff {
    async fn put(&self, instance: &str, jit: &Jit, expires: Timestamp) -> Result<()> {
        self.client
            .put_item()
            .table_name(&self.table)
            .item(KEY, self.key(instance))
            .item("jit", text(jit.config.expose()))
            .item(TTL, ttl(expires))
            .send()
            .await
            .map(drop)
            .map_err(|error| {
                sdk_error_of_secret(&format!("hand a registration to {instance}"), error)
            })
    }

    /// Asked by a delete on the condition that nothing is there: it deletes nothing, and is refused if something is.
    async fn lies(&self, instance: &str) -> Result<bool> {
        let answer = self
            .client
            .delete_item()
            .table_name(&self.table)
            .key(KEY, self.key(instance))
            .condition_expression("attribute_not_exists(#key)")
            .expression_attribute_names("#key", KEY)
            .send()
            .await;
        match answer {
            Ok(_) => Ok(false),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(DeleteItemError::is_conditional_check_failed_exception) =>
            {
                Ok(true)
            }
            Err(error) => {
                Err(sdk_error(&format!("look for the registration of {instance}"), error))
            }
        }
    }

    async fn withdraw(&self, instance: &str) -> Result<bool> {
        self.client
            .delete_item()
            .table_name(&self.table)
            .key(KEY, self.key(instance))
            .return_values(ReturnValue::AllOld)
            .send()
            .await
            .map(|answer| answer.attributes.is_some_and(|item| !item.is_empty()))
            .map_err(|error| {
                sdk_error_of_secret(&format!("withdraw the registration of {instance}"), error)
            })
    }
}

#[cfg(test)]
mod tests {
    use ostler_core::secret::Secret;
    use serde_json::json;

    use super::*;
    use crate::testing::Wire;

    async fn handoff(wire: &Wire) -> DynamoHandoff {
        DynamoHandoff::new(&wire.config().await, "handoff", "AROA1")
    }

    #[tokio::test]
    async fn se_06_ol_14_the_key_is_the_instances_own_and_the_blob_of_any_size() {
        for size in [2_000, 4_500, 8_000, 64 * 1024] {
            let wire = Wire::new([(200, json!({}))]);
            let jit = Jit { runner_id: 1, config: Secret::new("x".repeat(size)) };
            handoff(&wire).await.put("i-0a", &jit, Timestamp::from_seconds(100)).await.unwrap();
            assert_eq!(
                wire.requests(),
                [
                    json!({"#target": "PutItem", "TableName": "handoff", "Item": {"pk": {"S": "AROA1:i-0a"},
                    "jit": {"S": jit.config.expose()}, "ttl": {"N": "100"}}})
                ]
            );
        }
    }

    #[tokio::test]
    async fn looking_neither_fetches_the_secret_nor_takes_it_away() {
        let there = json!({"__type": "ConditionalCheckFailedException", "message": "it is there"});
        let wire = Wire::new([(400, there), (200, json!({}))]);
        let handoff = handoff(&wire).await;
        assert!(handoff.lies("i-0a").await.unwrap());
        assert!(!handoff.lies("i-0a").await.unwrap());
        let expected = json!({"#target": "DeleteItem", "TableName": "handoff",
            "Key": {"pk": {"S": "AROA1:i-0a"}}, "ConditionExpression": "attribute_not_exists(#key)",
            "ExpressionAttributeNames": {"#key": "pk"}});
        assert_eq!(wire.requests(), [expected.clone(), expected]);
    }

    #[tokio::test]
    async fn i6_a_look_that_fails_says_nothing() {
        let wire = Wire::new([(
            400,
            json!({"__type": "ResourceNotFoundException", "message": "no table"}),
        )]);
        assert!(handoff(&wire).await.lies("i-0a").await.is_err());
    }

    #[tokio::test]
    async fn a_withdrawal_tells_whether_it_was_claimed_before() {
        let old = json!({"Attributes": {"pk": {"S": "AROA1:i-0a"}, "jit": {"S": "SECRET"}}});
        let wire = Wire::new([(200, old), (200, json!({}))]);
        let handoff = handoff(&wire).await;
        assert!(handoff.withdraw("i-0a").await.unwrap());
        assert!(!handoff.withdraw("i-0a").await.unwrap());
        assert_eq!(wire.requests()[0]["ReturnValues"], "ALL_OLD");
    }

    #[tokio::test]
    async fn i9_an_error_of_a_handover_does_not_hold_the_registration() {
        let wire =
            Wire::new([(400, json!({"__type": "ValidationException", "message": "value SECRET"}))]);
        let jit = Jit { runner_id: 1, config: Secret::new("SECRET") };
        let error = handoff(&wire).await.put("i-0a", &jit, Timestamp::default()).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("SECRET"), "{error}");
    }
}
