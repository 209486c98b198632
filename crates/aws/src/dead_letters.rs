//! Dead-letter queues, for an operator: what is in them, and how it is handled again.

use aws_config::SdkConfig;
use aws_sdk_lambda::types::InvocationType;
use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::types::QueueAttributeName;
use aws_smithy_types::Blob;
use ostler_core::{Error, Result};
use serde_json::Value;

use crate::sdk_error;

/// Messages that are received at once, SQS's most.
const BATCH: i32 = 10;

/// Batches of one call: a message that can't be handed over comes back, and must not be met for ever.
const MAX_BATCHES: usize = 1_000;

/// What SQS says of a queue that is not there: by its JSON protocol, and by the older one.
const NO_QUEUE: [&str; 2] = ["QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"];

/// How long a message that is being handed over is hidden from others, in seconds.
const HIDDEN_SECONDS: i32 = 60;

/// What came of handing the messages of a queue over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// How many were.
    pub messages: usize,
    /// Ids of those that hold no event. They stay.
    pub unreadable: Vec<String>,
}

/// Dead-letter queues of this account and region, by their names.
pub struct DeadLetters {
    sqs: aws_sdk_sqs::Client,
    lambda: aws_sdk_lambda::Client,
}

impl DeadLetters {
    /// Makes no call.
    pub fn new(config: &SdkConfig) -> Self {
        let (sqs, lambda) = (aws_sdk_sqs::Client::new(config), aws_sdk_lambda::Client::new(config));
        Self { sqs, lambda }
    }

    /// About how many messages a queue has; `None` if there is no such queue.
    pub async fn count(&self, queue: &str) -> Result<Option<u64>> {
        let Some(url) = self.url(queue).await? else { return Ok(None) };
        let wanted = QueueAttributeName::ApproximateNumberOfMessages;
        let count = self.attribute(&url, wanted).await?;
        count.parse().map(Some).map_err(|_| unreadable(queue))
    }

    /// Has SQS move all messages of a queue back to the one that they came from.
    pub async fn move_back(&self, queue: &str) -> Result<()> {
        let url = self.url(queue).await?.ok_or_else(|| missing(queue))?;
        let arn = self.attribute(&url, QueueAttributeName::QueueArn).await?;
        let moved = self.sqs.start_message_move_task().source_arn(arn).send().await;
        moved.map(drop).map_err(|error| sdk_error(&format!("move the messages of {queue}"), error))
    }

    /// Invokes a function with the event of each message, and takes those away that were handed over. One that holds no
    /// event costs only itself. A repetition hands over those that are left.
    pub async fn invoke_again(&self, queue: &str, function: &str) -> Result<HandedOver> {
        let url = self.url(queue).await?.ok_or_else(|| missing(queue))?;
        let mut done = HandedOver::default();
        for _ in 0..MAX_BATCHES {
            let received = self
                .sqs
                .receive_message()
                .queue_url(&url)
                .max_number_of_messages(BATCH)
                .visibility_timeout(HIDDEN_SECONDS)
                .send()
                .await
                .map_err(|error| sdk_error(&format!("receive from {queue}"), error))?;
            let mut met_before = true;
            for message in received.messages.unwrap_or_default() {
                let event = event_in(message.body.as_deref().unwrap_or_default());
                let Some(event) = event else {
                    let id = message.message_id.unwrap_or_default();
                    if !done.unreadable.contains(&id) {
                        done.unreadable.push(id);
                        met_before = false;
                    }
                    continue;
                };
                met_before = false;
                self.lambda
                    .invoke()
                    .function_name(function)
                    .invocation_type(InvocationType::Event)
                    .payload(Blob::new(event.to_string()))
                    .send()
                    .await
                    .map_err(|error| sdk_error(&format!("invoke {function}"), error))?;
                done.messages += 1;
                self.sqs
                    .delete_message()
                    .queue_url(&url)
                    .receipt_handle(message.receipt_handle.unwrap_or_default())
                    .send()
                    .await
                    .map_err(|error| sdk_error(&format!("delete from {queue}"), error))?;
            }
            // None is left, or only those that can't be read and are not hidden any more.
            if met_before {
                break;
            }
        }
        Ok(done)
    }

    async fn url(&self, queue: &str) -> Result<Option<String>> {
        match self.sqs.get_queue_url().queue_name(queue).send().await {
            Ok(answer) => Ok(answer.queue_url),
            Err(error) => match error.code() {
                Some(code) if NO_QUEUE.contains(&code) => Ok(None),
                _ => Err(sdk_error(&format!("look for the queue {queue}"), error)),
            },
        }
    }

    async fn attribute(&self, url: &str, name: QueueAttributeName) -> Result<String> {
        let request = self.sqs.get_queue_attributes().queue_url(url).attribute_names(name.clone());
        let answer = request.send().await;
        let answer = answer.map_err(|error| sdk_error(&format!("look at {url}"), error))?;
        let value = answer.attributes.and_then(|mut all| all.remove(&name));
        value.ok_or_else(|| unreadable(url))
    }
}

fn missing(queue: &str) -> Error {
    Error::NotFound(format!("there is no queue {queue}"))
}

fn unreadable(queue: &str) -> Error {
    Error::Transient(format!("SQS does not say what was asked about {queue}"))
}

/// The event in a message: EventBridge puts it there as it is, Lambda with what became of the invocation (Lambda guide,
/// "Capturing records of asynchronous invocations").
fn event_in(body: &str) -> Option<Value> {
    let mut value: Value = serde_json::from_str(body).ok()?;
    let event = match value.get_mut("requestPayload") {
        Some(payload) => payload.take(),
        None => value,
    };
    event.is_object().then_some(event)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Wire;

    fn url() -> (u16, Value) {
        (200, json!({"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q-dead"}))
    }

    fn gone() -> (u16, Value) {
        (400, json!({"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "no"}))
    }

    async fn letters(wire: &Wire) -> DeadLetters {
        DeadLetters::new(&wire.config().await)
    }

    #[tokio::test]
    async fn a_queues_messages_are_counted_and_no_queue_is_none() {
        let count = json!({"Attributes": {"ApproximateNumberOfMessages": "7"}});
        let wire = Wire::new([url(), (200, count), gone()]);
        let letters = letters(&wire).await;
        assert_eq!(letters.count("q-dead").await.unwrap(), Some(7));
        assert_eq!(letters.count("q-dead").await.unwrap(), None);
    }

    #[tokio::test]
    async fn messages_of_a_queue_are_moved_back_by_sqs() {
        let arn = "arn:aws:sqs:eu-west-1:1:q-dead";
        let wire =
            Wire::new([url(), (200, json!({"Attributes": {"QueueArn": arn}})), (200, json!({}))]);
        letters(&wire).await.move_back("q-dead").await.unwrap();
        let sent = &wire.requests()[2];
        assert_eq!(
            (&sent["#target"], &sent["SourceArn"]),
            (&json!("StartMessageMoveTask"), &json!(arn))
        );
    }

    #[tokio::test]
    async fn each_event_is_handed_over_and_then_taken_away() {
        let event = json!({"detail-type": "x", "detail": {"name": "w-1"}});
        let message = |body: &Value| json!({"MessageId": "m", "ReceiptHandle": "r", "Body": body.to_string()});
        let from_lambda = json!({"version": "1.0", "requestPayload": event, "responseContext": {}});
        let wire = Wire::new([
            url(),
            (200, json!({"Messages": [message(&event), message(&from_lambda)]})),
            (202, json!({})),
            (200, json!({})),
            (202, json!({})),
            (200, json!({})),
            (200, json!({})),
        ]);
        let done = letters(&wire).await.invoke_again("q-dead", "f").await.unwrap();
        assert_eq!(done, HandedOver { messages: 2, unreadable: vec![] });
        let sent = wire.requests();
        assert_eq!((&sent[2]["detail"], &sent[4]["detail"]), (&event["detail"], &event["detail"]));
        assert_eq!(sent[3]["ReceiptHandle"], "r");
        assert_eq!(sent.len(), 7);
    }

    #[tokio::test]
    async fn what_could_not_be_handed_over_stays() {
        let message = json!({"MessageId": "m", "ReceiptHandle": "r", "Body": "{\"a\": 1}"});
        let throttled = (400, json!({"__type": "AccessDeniedException", "message": "no"}));
        let wire = Wire::new([url(), (200, json!({"Messages": [message]})), throttled]);
        assert!(letters(&wire).await.invoke_again("q-dead", "f").await.is_err());
        let deleted = wire.requests().iter().any(|sent| sent["#target"] == "DeleteMessage");
        assert!(!deleted);
    }

    #[tokio::test]
    async fn i8_a_message_that_holds_no_event_keeps_no_other_from_being_handed_over() {
        let message =
            |id: &str, body: &str| json!({"MessageId": id, "ReceiptHandle": id, "Body": body});
        let odd = message("m-7", "text");
        let (first, last) = (message("m-8", "{\"a\": 1}"), message("m-9", "{\"a\": 2}"));
        let wire = Wire::new([
            url(),
            (200, json!({"Messages": [odd, first]})),
            (202, json!({})),
            (200, json!({})),
            (200, json!({"Messages": [last]})),
            (202, json!({})),
            (200, json!({})),
            // It is not hidden any more.
            (200, json!({"Messages": [odd]})),
        ]);
        let done = letters(&wire).await.invoke_again("q-dead", "f").await.unwrap();
        assert_eq!(done, HandedOver { messages: 2, unreadable: vec!["m-7".into()] });
        let sent = wire.requests();
        let deleted = sent.iter().filter(|sent| sent["#target"] == "DeleteMessage");
        assert_eq!(deleted.map(|it| &it["ReceiptHandle"]).collect::<Vec<_>>(), ["m-8", "m-9"]);
        assert_eq!(sent.len(), 8);
    }
}
