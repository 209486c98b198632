//! A registration that seemed to be left behind: what is queued about it, and whether it still counts when
//! it comes back.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::{Config, MAX_SAFE_INTEGER, Part};
use super::ports::Registration;
use super::provider::Provider;
use super::{EXPIRY, Kept, OBSERVATION};
use crate::job::{Repository, split_full_name};
use crate::time::Timestamp;

/// A registration that was seen offline and idle, with nothing behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its id at GitHub.
    pub runner_id: i64,
    /// Its name.
    pub runner_name: String,
    /// What it would run on.
    pub resource: String,
    /// The list in which it was found.
    pub part: Part,
    /// When the look at it and at what is behind it was over.
    pub observed_at: Timestamp,
    /// The fingerprint of the configuration under which it was found.
    pub scope: String,
}

/// The message of the confirmation queue: a public contract.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    runner_id: i64,
    runner_name: String,
    resource_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group_id: Option<i64>,
    /// In place of the group, `owner/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repository: Option<String>,
    observed_at: i64,
    scope: String,
}

/// What a message's body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A candidate, yet to be judged.
    Candidate(Candidate),
    /// JSON, but no candidate: whoever sent it, nothing is deleted for it.
    NoCandidate(String),
}

/// What is to be done with a candidate that has come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing, ever.
    Discard(Kept),
    /// To come again: it is too early by this much.
    TooEarly(Duration),
    /// To be told of and let go.
    DryRun,
    /// To be looked at for the second time.
    Look,
}

impl Candidate {
    /// The message's body.
    pub fn message(&self) -> String {
        let (group_id, repository) = match &self.part {
            Part::Group { id, .. } => (Some(*id), None),
            Part::Repository(repository) => (None, Some(repository.to_string())),
        };
        let message = Message {
            runner_id: self.runner_id,
            runner_name: self.runner_name.clone(),
            resource_id: self.resource.clone(),
            group_id,
            repository,
            observed_at: self.observed_at.millis(),
            scope: self.scope.clone(),
        };
        serde_json::to_string(&message).unwrap_or_default()
    }

    /// Reads a body. An error is no JSON at all: then something is wrong with the queue itself.
    /// `organization` is what groups belong to; a message does not say.
    pub fn read(body: &str, organization: Option<&str>) -> Result<Body, serde_json::Error> {
        let value: Value = serde_json::from_str(body)?;
        let message = match serde_json::from_value::<Message>(value) {
            Ok(message) => message,
            Err(error) => return Ok(Body::NoCandidate(error.to_string())),
        };
        let repository = message.repository.as_deref().and_then(split_full_name);
        let part = match (message.group_id, repository, organization) {
            (Some(id), None, Some(organization)) => {
                Part::Group { organization: organization.to_owned(), id }
            }
            (None, Some((owner, name)), _) => Part::Repository(Repository {
                owner: owner.to_owned(),
                name: name.to_owned(),
                installation: None,
            }),
            _ => return Ok(Body::NoCandidate("it names no group or repository of ours".into())),
        };
        Ok(Body::Candidate(Self {
            runner_id: message.runner_id,
            runner_name: message.runner_name,
            resource: message.resource_id,
            part,
            observed_at: Timestamp::from_millis(message.observed_at),
            scope: message.scope,
        }))
    }

    /// What becomes of it now, under this configuration with this fingerprint.
    pub fn judge(
        &self,
        config: &Config,
        fingerprint: &str,
        provider: &impl Provider,
        now: Timestamp,
    ) -> Verdict {
        let discard = |why| Verdict::Discard(why);
        if self.scope != fingerprint || !config.scope.parts().contains(&self.part) {
            return discard(Kept::ScopeChanged);
        }
        if !(1..=MAX_SAFE_INTEGER).contains(&self.runner_id)
            || provider.resource(&self.runner_name).as_ref() != Some(&self.resource)
        {
            return discard(Kept::Unusable);
        }
        if self.observed_at > now {
            // Not "too early": it would come again and again until the dead-letter queue has it.
            return discard(Kept::FromTheFuture);
        }
        let age = now.since(self.observed_at);
        if age > EXPIRY {
            return discard(Kept::Expired);
        }
        if age < OBSERVATION {
            return Verdict::TooEarly(OBSERVATION.saturating_sub(age));
        }
        if config.dry_run { Verdict::DryRun } else { Verdict::Look }
    }

    /// Whether the registration that GitHub has under its id now is to be kept; `None` if it is the one
    /// that was seen, as dead as it was. Its group is another question.
    pub fn kept(&self, now: &Registration) -> Option<Kept> {
        if now.id != self.runner_id || now.name != self.runner_name {
            return Some(Kept::Renamed);
        }
        kept(now)
    }
}

/// Whether a registration is to be kept by what GitHub says of it. Only an explicit "offline" and an
/// explicit "not busy" do not keep it.
pub fn kept(registration: &Registration) -> Option<Kept> {
    match registration {
        Registration { offline: false, .. } => Some(Kept::Online),
        Registration { busy: true, .. } => Some(Kept::Busy),
        _ => None,
    }
}
