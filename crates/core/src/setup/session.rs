//! One set-up in one browser, served on loopback by the command line.
//!
//! Other users and other pages of the same machine can reach the port. So the page opens only with a key that
//! stands on the operator's terminal, once; from then on a cookie names the browser. `Host` must be the page's
//! own address, or a foreign name that was made to mean 127.0.0.1 (DNS rebinding) could read it. GitHub's code
//! is taken only with this session's state and cookie, once: another's code would make this install obey
//! another's App.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha2::Sha256;

use super::page::{Look, Page, Stage, of_stage, refused};
use crate::secret::Secret;

/// Cookies are shared by all ports of a host: the name tells ours apart.
const COOKIE: &str = "ostler-setup";

/// Most characters of GitHub's code, which have been 40.
const MAX_CODE: usize = 100;

/// A request of a browser, as far as it matters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// `Host`.
    pub host: &'a str,
    /// The path.
    pub path: &'a str,
    /// What stands after the question mark.
    pub query: &'a str,
    /// `Cookie`.
    pub cookie: &'a str,
    /// `Origin`.
    pub origin: &'a str,
}

impl<'a> Request<'a> {
    /// A parameter of the query. Those that are used have no character that would be escaped.
    pub fn parameter(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// A cookie.
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.cookie.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// What a request asks of whoever serves it, besides the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Trade this code for the App.
    Convert(Secret),
    /// Store the keys once more.
    Again,
    /// End.
    Cancel,
}

/// A session. It has no clock: whoever serves it ends it in time.
pub struct Session {
    /// What is shown.
    pub look: Look,
    /// How far it is.
    pub stage: Stage,
    host: String,
    opening: Secret,
    opened: bool,
    cookie: Secret,
    state: Secret,
    code_taken: bool,
}

impl Session {
    /// Served at `host`, as `127.0.0.1:4711`. `chance` makes secrets: each call another, of 128 bits or more, of
    /// letters and digits.
    pub fn new(look: Look, host: String, mut chance: impl FnMut() -> Secret) -> Self {
        let (opening, cookie, state) = (chance(), chance(), chance());
        let (opened, code_taken) = (false, false);
        Self { look, stage: Stage::Waiting, host, opening, opened, cookie, state, code_taken }
    }

    /// Where the operator begins: for the terminal alone.
    pub fn opening_url(&self) -> String {
        format!("http://{}/?key={}", self.host, self.opening.expose())
    }

    /// Where GitHub leads back to.
    pub fn back(&self) -> String {
        format!("http://{}/back", self.host)
    }

    /// The page for a request, and what is to be done.
    pub fn answer(&mut self, request: &Request<'_>) -> (Page, Option<Wish>) {
        if request.host != self.host {
            let why = format!("This page is only at http://{}/.", self.host);
            return (refused(421, "Wrong address", &why), None);
        }
        let known = request.cookie(COOKIE).is_some_and(|it| same(it, self.cookie.expose()));
        if !known {
            return (self.open(request), None);
        }
        match (request.method, request.path) {
            // Of the same browser once more: from its history, or a reload.
            ("GET", "/") if !request.query.is_empty() => (Page::redirect("/"), None),
            ("GET", "/") => {
                (of_stage(&self.look, &self.stage, self.state.expose(), &self.back()), None)
            }
            ("GET", "/stage") => (Page::json(&json!({"stage": self.stage.name()})), None),
            ("GET", "/back") => self.take_code(request),
            ("POST", "/cancel" | "/again") if request.origin != format!("http://{}", self.host) => {
                (refused(403, "Refused", "This did not come from the set-up’s own page."), None)
            }
            ("POST", "/cancel") => match self.stage {
                Stage::Waiting => {
                    self.stage = Stage::Cancelled;
                    (Page::redirect("/"), Some(Wish::Cancel))
                }
                _ => (Page::redirect("/"), None),
            },
            ("POST", "/again") => match self.stage {
                Stage::Failed { again: true, .. } => {
                    self.stage = Stage::Working;
                    (Page::redirect("/"), Some(Wish::Again))
                }
                _ => (Page::redirect("/"), None),
            },
            ("GET" | "POST", _) => (refused(404, "Not found", "There is no such page here."), None),
            _ => (refused(405, "Refused", "Only GET and POST are served."), None),
        }
    }

    /// A browser that is not known yet.
    fn open(&mut self, request: &Request<'_>) -> Page {
        let key =
            request.parameter("key").filter(|_| request.method == "GET" && request.path == "/");
        match key {
            Some(key) if same(key, self.opening.expose()) && !self.opened => {
                self.opened = true;
                // Lax: the browser must send it when GitHub leads back.
                let cookie =
                    format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Lax", self.cookie.expose());
                Page::redirect("/").with("set-cookie", cookie)
            }
            Some(key) if same(key, self.opening.expose()) => refused(
                403,
                "This link was used already",
                "It opens one browser, once. If that was not you, end the command and run it again.",
            ),
            _ => refused(
                403,
                "Not from here",
                "Open the link that the set-up printed on the terminal, in this browser.",
            ),
        }
    }

    fn take_code(&mut self, request: &Request<'_>) -> (Page, Option<Wish>) {
        let state = request.parameter("state").unwrap_or_default();
        if !same(state, self.state.expose()) {
            let why = "The answer does not belong to this set-up. Nothing was taken from it; begin at the \
                       set-up’s own page.";
            return (refused(403, "Refused", why), None);
        }
        if self.code_taken || self.stage != Stage::Waiting {
            let why = "GitHub’s answer has been taken already, and is good once.";
            return (refused(409, "Used already", why), None);
        }
        let Some(code) = request.parameter("code").filter(|code| is_code(code)) else {
            let why = "GitHub’s answer has no code. Begin at the set-up’s own page.";
            return (refused(400, "No code", why), None);
        };
        self.code_taken = true;
        self.stage = Stage::Working;
        (Page::redirect("/"), Some(Wish::Convert(Secret::new(code))))
    }
}

/// Whether that can be a code of GitHub's: it becomes part of an address.
pub fn is_code(code: &str) -> bool {
    (1..=MAX_CODE).contains(&code.len())
        && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Whether two texts are the same, in a time that tells nothing about where they differ.
pub fn same(a: &str, b: &str) -> bool {
    sum(a).verify_slice(&sum(b).finalize().into_bytes()).is_ok()
}

fn sum(text: &str) -> Hmac<Sha256> {
    #[allow(clippy::expect_used, reason = "HMAC takes keys of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(b"compare").expect("any length");
    mac.update(text.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::page::tests::look;

    const HOST: &str = "127.0.0.1:4711";

    fn session() -> Session {
        let mut next = 0;
        Session::new(look(), HOST.into(), || {
            next += 1;
            Secret::new(format!("chance{next}"))
        })
    }

    /// A request of the browser that has the cookie.
    fn ours<'a>(method: &'a str, path: &'a str, query: &'a str) -> Request<'a> {
        let origin = "http://127.0.0.1:4711";
        Request { method, host: HOST, path, query, cookie: "x=1; ostler-setup=chance2", origin }
    }

    fn status(session: &mut Session, request: &Request<'_>) -> u16 {
        let (page, wish) = session.answer(request);
        assert_eq!(wish, None, "{request:?}");
        page.status
    }

    #[test]
    fn the_link_opens_one_browser_once() {
        let mut session = session();
        assert_eq!(session.opening_url(), "http://127.0.0.1:4711/?key=chance1");
        let open = Request { cookie: "", ..ours("GET", "/", "key=chance1") };
        let wrong = Request { query: "key=chance2", ..open };
        assert_eq!(status(&mut session, &wrong), 403);
        let (page, _) = session.answer(&open);
        assert_eq!(page.status, 303);
        let cookie = page.headers.iter().find(|(name, _)| *name == "set-cookie").unwrap();
        assert_eq!(cookie.1, "ostler-setup=chance2; Path=/; HttpOnly; SameSite=Lax");
        assert_eq!(status(&mut session, &open), 403, "a second browser");
        assert_eq!(status(&mut session, &ours("GET", "/", "key=chance1")), 303, "the same one");
        assert_eq!(status(&mut session, &ours("GET", "/", "")), 200);
    }

    #[test]
    fn se_a_foreign_host_a_foreign_browser_and_a_foreign_page_get_nothing() {
        let mut session = session();
        for host in ["evil.example", "evil.example:4711", "localhost:4711", "127.0.0.1", ""] {
            let request = Request { host, ..ours("GET", "/", "") };
            let (page, wish) = session.answer(&request);
            assert_eq!((page.status, wish), (421, None), "{host}");
            assert!(!page.body.contains("chance"), "{}", page.body);
        }
        for cookie in ["", "ostler-setup=", "ostler-setup=chance1", "other=chance2"] {
            for path in ["/", "/stage", "/back"] {
                let request = Request { cookie, ..ours("GET", path, "code=c0de&state=chance3") };
                assert_eq!(status(&mut session, &request), 403, "{cookie} {path}");
            }
        }
        for origin in ["", "null", "https://evil.example", "http://localhost:4711"] {
            let request = Request { origin, ..ours("POST", "/cancel", "") };
            assert_eq!(status(&mut session, &request), 403, "{origin}");
        }
        assert_eq!(session.stage, Stage::Waiting);
    }

    #[test]
    fn a_code_is_taken_with_the_right_state_once() {
        let mut session = session();
        for query in ["code=c0de", "code=c0de&state=", "code=c0de&state=chance4"] {
            assert_eq!(status(&mut session, &ours("GET", "/back", query)), 403, "{query}");
        }
        for query in ["state=chance3", "state=chance3&code=", "state=chance3&code=a/../b"] {
            assert_eq!(status(&mut session, &ours("GET", "/back", query)), 400, "{query}");
        }
        let good = ours("GET", "/back", "code=c0de&state=chance3");
        let (page, wish) = session.answer(&good);
        assert_eq!((page.status, wish), (303, Some(Wish::Convert(Secret::new("c0de")))));
        assert_eq!(session.stage, Stage::Working);
        assert_eq!(status(&mut session, &good), 409);
    }

    #[test]
    fn it_is_cancelled_only_before_anything_was_made_and_tried_again_only_after_a_failure() {
        let mut session = session();
        assert_eq!(status(&mut session, &ours("POST", "/again", "")), 303);
        session.stage = Stage::Failed { why: "x".into(), again: true };
        assert_eq!(status(&mut session, &ours("POST", "/cancel", "")), 303);
        let (_, wish) = session.answer(&ours("POST", "/again", ""));
        assert_eq!((wish, session.stage.clone()), (Some(Wish::Again), Stage::Working));
        session.stage = Stage::Waiting;
        let (_, wish) = session.answer(&ours("POST", "/cancel", ""));
        assert_eq!((wish, session.stage.clone()), (Some(Wish::Cancel), Stage::Cancelled));
        let late = ours("GET", "/back", "code=c0de&state=chance3");
        assert_eq!(status(&mut session, &late), 409, "whoever cancels means it");
    }

    #[test]
    fn what_is_not_served_is_said_to_be_so() {
        let mut session = session();
        assert_eq!(status(&mut session, &ours("GET", "/etc/passwd", "")), 404);
        assert_eq!(status(&mut session, &ours("DELETE", "/", "")), 405);
        let (page, _) = session.answer(&ours("GET", "/stage", ""));
        assert_eq!(page.body, r#"{"stage":"waiting"}"#);
    }
}
