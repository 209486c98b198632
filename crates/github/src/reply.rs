//! What GitHub's answers mean for the caller, by status, headers and text.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ostler_core::Error;
use ostler_core::ports::{Jit, Refusal};
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
use serde::de::DeserializeOwned;

use crate::transport::Reply;
use crate::wire::{JitAnswer, Trouble};

/// Wait after a limit that does not say how long (docs.github.com, "Exceeding the rate limit": "wait for at
/// least one minute").
const LIMIT_WITHOUT_HINT: Duration = Duration::from_secs(60);

/// Longest wait that is believed: primary limits are by the hour.
pub(crate) const LONGEST_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Longest part of GitHub's words in an error.
const MAX_WORDS: usize = 300;

/// Longest JIT configuration that is taken (they have been 2 to 8 KiB).
const MAX_JIT: usize = 64 * 1024;

/// What the App must be allowed for a call, in the words of its settings page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Look up jobs.
    Actions,
    /// Run jobs again.
    ActionsWrite,
    /// Look up deployments.
    Deployments,
    /// Runners of an organisation.
    OrganizationRunners,
    /// Runners of a repository.
    RepositoryRunners,
    /// Every App has it.
    Metadata,
}

impl Permission {
    const fn name(self) -> &'static str {
        match self {
            Self::Actions => "repository permission 'Actions: read-only'",
            Self::ActionsWrite => "repository permission 'Actions: read and write'",
            Self::Deployments => "repository permission 'Deployments: read-only'",
            Self::OrganizationRunners => {
                "organization permission 'Self-hosted runners: read and write'"
            }
            Self::RepositoryRunners => "repository permission 'Administration: read and write'",
            Self::Metadata => "repository permission 'Metadata: read-only'",
        }
    }

    /// What an operator has to do.
    pub fn advice(self) -> String {
        format!(
            "grant the App the {} and have the owner of the installation accept the new permissions",
            self.name()
        )
    }
}

impl Reply {
    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body; an error names what could not be read, and may be repeated: it was cut, or is a proxy's.
    pub fn read<T: DeserializeOwned>(&self, what: &str) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Error::Transient(format!("{what}: an answer that cannot be read ({error})"))
        })
    }

    /// GitHub's own words.
    pub fn words(&self) -> String {
        let trouble: Trouble = serde_json::from_slice(&self.body).unwrap_or_default();
        let mut words = trouble.message.unwrap_or_default();
        if let Some(errors) = trouble.errors.filter(|errors| !errors.is_null()) {
            words = format!("{words} {errors}");
        }
        words.retain(|c| !c.is_control());
        words.truncate(words.floor_char_boundary(MAX_WORDS));
        words
    }

    /// How long GitHub wants to be left alone; `None` if this is no rate limit. Servers without limits send
    /// no headers of limits, and that means nothing.
    pub fn limit(&self, now: Timestamp) -> Option<Duration> {
        if self.status != 403 && self.status != 429 {
            return None;
        }
        let words = self.words().to_lowercase();
        if words.contains("not accessible by") {
            return None;
        }
        let bounded = |wait: Duration| wait.clamp(Duration::from_secs(1), LONGEST_LIMIT);
        if let Some(seconds) = self.number("retry-after") {
            return Some(bounded(Duration::from_secs(seconds)));
        }
        if self.number("x-ratelimit-remaining") == Some(0) {
            let reset = self.number("x-ratelimit-reset").and_then(|at| i64::try_from(at).ok());
            let until = reset.map(Timestamp::from_seconds).filter(|until| *until > now);
            // One second more: the reset is given in whole seconds.
            return Some(until.map_or(LIMIT_WITHOUT_HINT, |until| {
                bounded(until.since(now) + Duration::from_secs(1))
            }));
        }
        let limited = self.status == 429 || words.contains("rate limit") || words.contains("abuse");
        limited.then_some(LIMIT_WITHOUT_HINT)
    }

    /// A header that is a number.
    pub fn number(&self, header: &str) -> Option<u64> {
        self.headers.get(header)?.to_str().ok()?.trim().parse().ok()
    }

    /// The error for an answer that is not what was asked for. Never "not found" for anything but 404.
    pub fn error(&self, what: &str, needs: Permission, now: Timestamp) -> Error {
        let (status, words) = (self.status, self.words());
        if let Some(after) = self.limit(now) {
            return Error::Later { after, reason: format!("{what}: rate limit, {status} {words}") };
        }
        let text = |advice: &str| format!("{what}: {status} {words}{advice}");
        match status {
            401 => Error::Permanent(text(
                "; GitHub does not accept the App: check its id and key (control/app and control/app-private-key; \
                 AppIdParameter and AppKeyParameter of a registration janitor)",
            )),
            403 if words.to_lowercase().contains("suspended") => Error::Permanent(text(
                "; the owner of the installation has suspended the App and has to admit it again",
            )),
            403 if words.to_lowercase().contains("ip allow list") => Error::Permanent(text(
                "; Ostler's functions have no address of their own that could be allowed",
            )),
            // No permission helps there.
            403 if words.to_lowercase().contains("archived") => Error::Permanent(text("")),
            403 => Error::Permanent(text(&format!("; {}", needs.advice()))),
            404 => Error::NotFound(text("")),
            409 => Error::Conflict(text("")),
            408 | 500..=599 => Error::Transient(text("")),
            300..=399 => {
                Error::Permanent(text("; it has moved: was the owner or repository renamed?"))
            }
            _ => Error::Permanent(text("")),
        }
    }

    /// The registration that was made, or why none was. `grouped` is the group's name in the tier, where it
    /// has one.
    pub fn registration(
        &self,
        what: &str,
        grouped: Option<&str>,
        needs: Permission,
        now: Timestamp,
    ) -> Result<Jit, Refusal> {
        if self.is_success() {
            return self.jit(what);
        }
        let (status, words) = (self.status, self.words());
        if let Some(after) = self.limit(now) {
            return Err(Refusal::Limited { after, reason: format!("{what}: {status} {words}") });
        }
        let text = format!("{what}: {status} {words}");
        let lower = words.to_lowercase();
        Err(match (status, grouped) {
            (409, _) => Refusal::NameTaken,
            (422, _) if lower.contains("max limit") => Refusal::GroupFull(text),
            (422, _) if lower.contains("already exists") => Refusal::NameTaken,
            (403, Some(group)) => Refusal::GroupForbidden(format!(
                "{text}; runner group '{group}' is GitHub's own or closed to this App: choose another for \
                 the tier, or {}",
                needs.advice()
            )),
            (404, Some(group)) => Refusal::GroupUnknown(format!(
                "{text}; there is no runner group '{group}' there: create it, or change the tier"
            )),
            (401 | 403 | 404, _) => Refusal::NotAllowed(format!("{text}; {}", needs.advice())),
            (408 | 500..=599, _) => Refusal::Ambiguous(text),
            _ => Refusal::Invalid(text),
        })
    }

    /// A registration was made: if what it needs is missing in the answer, the caller has to look for it.
    fn jit(&self, what: &str) -> Result<Jit, Refusal> {
        let ambiguous =
            |why: &str| Err(Refusal::Ambiguous(format!("{what}: registered, but {why}")));
        let Ok(answer) = self.read::<JitAnswer>(what) else {
            return ambiguous("the answer cannot be read");
        };
        let config = answer.encoded_jit_config.unwrap_or_default();
        let Some(runner_id) = answer.runner.and_then(|runner| runner.id).filter(|id| *id > 0)
        else {
            return ambiguous("the answer has no runner id");
        };
        if config.is_empty() || config.len() > MAX_JIT || STANDARD.decode(&config).is_err() {
            return ambiguous("its JIT configuration is not 1 to 65536 bytes of base64");
        }
        Ok(Jit { runner_id, config: Secret::new(config) })
    }
}

/// The same refusal for an error before the registration was asked for: nothing was registered.
pub fn refusal(error: Error) -> Refusal {
    match error {
        Error::Later { after, reason } => Refusal::Limited { after, reason },
        Error::Transient(text) => Refusal::Ambiguous(text),
        Error::Permanent(text) | Error::NotFound(text) | Error::Conflict(text) => {
            Refusal::NotAllowed(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);
    const NEEDS: Permission = Permission::OrganizationRunners;

    fn reply(status: u16, headers: &[(&'static str, &str)], body: Value) -> Reply {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Reply { status, headers: map, body: Bytes::from(body.to_string()) }
    }

    fn says(message: &str) -> Value {
        json!({ "message": message })
    }

    #[test]
    fn ra_01_ra_02_ra_08_limits_by_status_headers_and_text() {
        let primary = says("API rate limit exceeded for installation ID 5.");
        let secondary =
            says("You have exceeded a secondary rate limit. Please wait a few minutes.");
        for (status, headers, body, seconds) in [
            (403, vec![("retry-after", "30")], secondary.clone(), Some(30)),
            (429, vec![("retry-after", "30")], says(""), Some(30)),
            (403, vec![("retry-after", "0")], secondary.clone(), Some(1)),
            (403, vec![("retry-after", "99999999")], secondary.clone(), Some(7200)),
            (403, vec![], secondary.clone(), Some(60)),
            (403, vec![("retry-after", "soon")], secondary.clone(), Some(60)),
            (403, vec![], says("You have triggered an abuse detection mechanism."), Some(60)),
            (429, vec![], says("Too many requests"), Some(60)),
            (
                403,
                vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1000900")],
                primary.clone(),
                Some(901),
            ),
            (
                429,
                vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1000900")],
                says(""),
                Some(901),
            ),
            (
                403,
                vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "999999")],
                primary.clone(),
                Some(60),
            ),
            (403, vec![("x-ratelimit-remaining", "0")], primary, Some(60)),
            (403, vec![("x-ratelimit-remaining", "4999")], says("Forbidden"), None),
            (200, vec![("x-ratelimit-remaining", "0")], json!({}), None),
            (500, vec![("retry-after", "5")], says("rate limit"), None),
        ] {
            let answer = reply(status, &headers, body);
            let wait = seconds.map(Duration::from_secs);
            assert_eq!(answer.limit(NOW), wait, "{answer:?}");
            if let Some(wait) = wait {
                let error = answer.error("GET /x", NEEDS, NOW);
                assert!(matches!(error, Error::Later { after, .. } if after == wait), "{error:?}");
                let refusal = answer.registration("POST /x", None, NEEDS, NOW).unwrap_err();
                assert!(matches!(refusal, Refusal::Limited { after, .. } if after == wait));
            }
        }
    }

    #[test]
    fn gh_07_a_server_without_limits_sends_no_headers_and_that_means_nothing() {
        let answer = reply(403, &[], says("Must have admin rights to Repository."));
        assert_eq!(answer.limit(NOW), None);
        assert!(matches!(answer.error("GET /x", NEEDS, NOW), Error::Permanent(_)));
    }

    #[test]
    fn ra_10_a_missing_permission_is_named_and_not_repeated() {
        let headers = [("x-ratelimit-remaining", "0"), ("retry-after", "5")];
        let answer = reply(403, &headers, says("Resource not accessible by integration"));
        for needs in [
            Permission::Actions,
            Permission::ActionsWrite,
            Permission::Deployments,
            Permission::OrganizationRunners,
            Permission::RepositoryRunners,
            Permission::Metadata,
        ] {
            let Error::Permanent(text) = answer.error("GET /x", needs, NOW) else {
                panic!("{needs:?}")
            };
            assert!(
                text.contains(needs.name()) && text.contains("accept the new permissions"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_suspended_installation_is_told_apart_from_a_missing_permission() {
        let error =
            reply(403, &[], says("This installation has been suspended")).error("x", NEEDS, NOW);
        assert!(
            matches!(&error, Error::Permanent(text) if text.contains("admit it again")),
            "{error}"
        );
    }

    #[test]
    fn ra_10_what_no_permission_mends_is_not_called_a_permission() {
        for (message, says_also) in [
            (
                "Although you appear to have the correct authorization credentials, the `acme` organization \
                 has an IP allow list enabled, and your IP address is not permitted.",
                "no address of their own",
            ),
            ("Repository was archived so is read-only.", "archived"),
        ] {
            let error = reply(403, &[], says(message)).error("x", NEEDS, NOW);
            let Error::Permanent(text) = error else { panic!("{error}") };
            assert!(text.contains(says_also) && !text.contains("grant the App"), "{text}");
        }
    }

    #[test]
    fn rr_16_bf_10_only_404_is_not_found_and_5xx_is_nothing_but_unknown() {
        for (status, kind) in [
            (401, "Permanent"),
            (403, "Permanent"),
            (404, "NotFound"),
            (408, "Transient"),
            (409, "Conflict"),
            (422, "Permanent"),
            (301, "Permanent"),
            (307, "Permanent"),
            (500, "Transient"),
            (502, "Transient"),
            (503, "Transient"),
            (504, "Transient"),
        ] {
            let error = reply(status, &[], says("words")).error("GET /x", NEEDS, NOW);
            assert_eq!(error.error_type(), kind, "{status}");
            assert!(error.to_string().contains("words"));
        }
    }

    #[test]
    fn ol_17_ol_18_ol_22_ra_19_every_refusal_has_its_own_reason() {
        let refused = |status, message: &str, group| {
            reply(status, &[], says(message))
                .registration("POST /x", group, NEEDS, NOW)
                .unwrap_err()
        };
        let full = "Invalid Argument - Runner group 1 has reached max limit of 10000 runners.";
        assert!(
            matches!(refused(422, full, None), Refusal::GroupFull(text) if text.contains("10000"))
        );
        assert_eq!(refused(409, "Already exists - x", None), Refusal::NameTaken);
        assert_eq!(
            refused(422, "A runner with the name x already exists.", None),
            Refusal::NameTaken
        );
        assert!(
            matches!(refused(403, "no", Some("gpu")), Refusal::GroupForbidden(t) if t.contains("gpu"))
        );
        assert!(
            matches!(refused(404, "no", Some("gpu")), Refusal::GroupUnknown(t) if t.contains("gpu"))
        );
        for status in [401, 403, 404] {
            assert!(matches!(refused(status, "no", None), Refusal::NotAllowed(t)
                if t.contains("Self-hosted runners")));
        }
        for status in [408, 500, 502, 503, 504] {
            assert!(matches!(refused(status, "", None), Refusal::Ambiguous(_)), "{status}");
        }
        for status in [302, 307, 400, 410, 418, 422] {
            assert!(matches!(refused(status, "no", None), Refusal::Invalid(_)), "{status}");
        }
    }

    #[test]
    fn ol_14_ol_32_a_jit_configuration_is_base64_of_any_plausible_size() {
        let answer = |config: &str| {
            reply(201, &[], json!({"runner": {"id": 7}, "encoded_jit_config": config}))
                .registration("POST /x", None, NEEDS, NOW)
        };
        for size in [2_000, 4_500, 8_000] {
            let config = STANDARD.encode(vec![b'x'; size]);
            let jit = answer(&config).unwrap();
            assert_eq!((jit.runner_id, jit.config.expose()), (7, config.as_str()));
        }
        for bad in ["", "not base64!", &"QUJD".repeat(MAX_JIT)] {
            let Refusal::Ambiguous(text) = answer(bad).unwrap_err() else { panic!("{bad}") };
            assert!(text.len() < 200, "the configuration is not in the text");
        }
        for body in [
            json!({"encoded_jit_config": "QUJD"}),
            json!([]),
            json!({"runner": {"id": null},
            "encoded_jit_config": "QUJD"}),
        ] {
            let refusal =
                reply(201, &[], body).registration("POST /x", None, NEEDS, NOW).unwrap_err();
            assert!(matches!(refusal, Refusal::Ambiguous(_)), "{refusal:?}");
        }
    }

    #[test]
    fn words_are_bounded_and_printable() {
        let answer =
            reply(422, &[], json!({"message": "a\u{1b}[31m\nb", "errors": [{"code": "invalid"}]}));
        assert_eq!(answer.words(), r#"a[31mb [{"code":"invalid"}]"#);
        assert!(reply(422, &[], says(&"é".repeat(4000))).words().len() <= MAX_WORDS);
        let page = Reply {
            body: Bytes::from_static(b"<html>proxy</html>"),
            ..reply(502, &[], json!(null))
        };
        assert_eq!(page.words(), "");
    }
}
