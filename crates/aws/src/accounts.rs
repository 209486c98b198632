//! Other accounts: a role there is assumed, and what is made with its credentials is kept until they end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use aws_config::sts::AssumeRoleProvider;
use aws_config::{Region, SdkConfig};
use aws_sdk_ssm::config::{Credentials, ProvideCredentials, SharedCredentialsProvider};
use aws_smithy_types::error::display::DisplayErrorContext;
use ostler_core::account::Account;
use ostler_core::{Error, Result};

/// Credentials are made anew when they end within this: longer than any invocation, and than two clocks differ.
const RENEWED_BEFORE: Duration = Duration::from_secs(600);

/// Accounts that are kept at a time: more than any install has. Beyond it the cache starts anew.
const MOST_KEPT: usize = 100;

/// Longest text of an error.
const MAX_TEXT: usize = 500;

/// What is made for other accounts, such as their fleet and handoff table.
pub struct Accounts<T> {
    home: SdkConfig,
    session: &'static str,
    kept: RefCell<BTreeMap<Account, (SystemTime, Rc<T>)>>,
}

impl<T> Accounts<T> {
    /// Roles are assumed with the credentials of `home`, in sessions of that name, which CloudTrail shows there.
    pub fn new(home: &SdkConfig, session: &'static str) -> Self {
        Self { home: home.clone(), session, kept: RefCell::default() }
    }

    /// What belongs to the account: as kept, or made with the SDK's configuration for its role and region. An error
    /// is `Permanent` where the role refuses, and says what to look at.
    pub async fn get(
        &self,
        account: &Account,
        make: impl FnOnce(&SdkConfig) -> Result<T>,
    ) -> Result<Rc<T>> {
        if let Some((until, kept)) = self.kept.borrow().get(account)
            && *until > now() + RENEWED_BEFORE
        {
            return Ok(Rc::clone(kept));
        }
        let credentials = self.assume(account).await?;
        let until = credentials.expiry().unwrap_or_else(now);
        let config = self
            .home
            .to_builder()
            .region(Region::new(account.region.clone()))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .build();
        let made = Rc::new(make(&config)?);
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(account.clone(), (until, Rc::clone(&made)));
        Ok(made)
    }

    async fn assume(&self, account: &Account) -> Result<Credentials> {
        let role = &account.role_arn;
        let provider = AssumeRoleProvider::builder(role)
            .external_id(&account.external_id)
            .session_name(self.session)
            .configure(&self.home)
            .build()
            .await;
        provider.provide_credentials().await.map_err(|error| {
            let mut text = format!("assume {role}: {}", DisplayErrorContext(&error));
            text.truncate(text.floor_char_boundary(MAX_TEXT));
            // STS's word for a missing permission here, or a trust policy that does not fit, there.
            if text.contains("AccessDenied") {
                Error::Permanent(format!(
                    "{text}; to do: the tier's account must have that stack's external id, the stack must trust this \
                     account and role, and RunnerRoleArns of the stack accounts.yaml must name the role"
                ))
            } else {
                Error::Transient(text)
            }
        })
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "credentials end in real time, whatever the world's clock says"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Wire;

    fn account(external_id: &str) -> Account {
        serde_json::from_value(json!({
            "role_arn": "arn:aws:iam::444455556666:role/runners", "external_id": external_id,
            "region": "eu-central-1", "subnets": ["subnet-1"], "template_on_demand": "lt-1:1",
            "template_spot": "lt-2:1", "handoff_table": "handoff", "runner_role_id": "AROA1",
        }))
        .unwrap()
    }

    fn assumed(key: &str, expires: &str) -> (u16, String) {
        let body = format!(
            "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>\
             <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
             <Expiration>{expires}</Expiration></Credentials><AssumedRoleUser>\
             <AssumedRoleId>AROA:x</AssumedRoleId><Arn>arn:aws:sts::444455556666:assumed-role/r/x</Arn></AssumedRoleUser></AssumeRoleResult>\
             </AssumeRoleResponse>"
        );
        (200, body)
    }

    fn refused(code: &str) -> (u16, String) {
        let body = format!(
            "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
        );
        (403, body)
    }

    const LATER: &str = "2099-01-01T00:00:00Z";

    async fn key(config: &SdkConfig) -> String {
        let credentials = config.credentials_provider().unwrap().provide_credentials().await;
        credentials.unwrap().access_key_id().to_owned()
    }

    #[tokio::test]
    async fn a_role_is_assumed_once_with_the_external_id_and_used_in_the_accounts_region() {
        let wire = Wire::texts([assumed("ASIA1", LATER)]);
        let accounts = Accounts::new(&wire.config().await, "ostler-test");
        let made = accounts.get(&account("e-1"), |config| Ok(config.clone())).await.unwrap();
        let again = accounts.get(&account("e-1"), |_| panic!("made twice")).await.unwrap();
        assert!(Rc::ptr_eq(&made, &again));
        assert_eq!(made.region().unwrap().as_ref(), "eu-central-1");
        assert_eq!(key(&made).await, "ASIA1");
        let sent = wire.bodies();
        assert_eq!(sent.len(), 1);
        for part in [
            "Action=AssumeRole&",
            "RoleArn=arn%3Aaws%3Aiam%3A%3A444455556666%3Arole%2Frunners",
            "ExternalId=e-1",
            "RoleSessionName=ostler-test",
        ] {
            assert!(sent[0].contains(part), "{part}: {}", sent[0]);
        }
        assert!(!sent[0].contains("Tags."), "no tags of the session");
    }

    #[tokio::test]
    async fn what_is_made_ends_with_its_credentials_and_belongs_to_one_account() {
        let wire = Wire::texts([
            assumed("ASIA1", "2020-01-01T00:00:00Z"),
            assumed("ASIA2", LATER),
            assumed("ASIA3", LATER),
        ]);
        let accounts = Accounts::new(&wire.config().await, "ostler-test");
        for (id, expected) in
            [("e-1", "ASIA1"), ("e-1", "ASIA2"), ("e-1", "ASIA2"), ("e-2", "ASIA3")]
        {
            let made = accounts.get(&account(id), |config| Ok(config.clone())).await.unwrap();
            assert_eq!(key(&made).await, expected);
        }
        assert_eq!(wire.bodies().len(), 3);
    }

    #[tokio::test]
    async fn a_role_that_refuses_says_what_to_look_at_and_other_failures_pass() {
        let wire = Wire::texts([refused("AccessDenied")]);
        let accounts = Accounts::<()>::new(&wire.config().await, "ostler-test");
        match accounts.get(&account("e-1"), |_| Ok(())).await {
            Err(Error::Permanent(text))
                if text.contains("external id") && text.contains("role/runners") => {}
            other => panic!("{other:?}"),
        }
        let wire = Wire::texts(std::iter::repeat_n((500, String::new()), 5));
        let accounts = Accounts::<()>::new(&wire.config().await, "ostler-test");
        let failure = accounts.get(&account("e-1"), |_| Ok(())).await;
        assert!(matches!(failure, Err(Error::Transient(_))), "{failure:?}");
    }
}
