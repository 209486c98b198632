//! One HTTP client for all of GitHub, over octocrab.
//!
//! Of octocrab the connection, the base address and the headers are used. What it does by default and must
//! not: it repeats every request three times at once, POSTs too; its token cache mints twice for two callers
//! and is copied with the client; it follows `next` links to other hosts without credentials. So its retries
//! are off, tokens come from us, and pages are asked for by number.

use std::error::Error as StdError;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, header, request};
use http_body_util::{BodyExt, Limited};
use octocrab::Octocrab;
use octocrab::service::middleware::retry::RetryConfig;
use ostler_core::secret::Secret;
use secrecy::SecretString;
use serde_json::Value;

/// A GitHub in another network never answers: then the function has to say so in time.
const CONNECT: Duration = Duration::from_secs(3);

/// GitHub itself gives up after ten seconds.
const READ: Duration = Duration::from_secs(10);

/// A whole request, so that an answer in small pieces cannot go on for ever.
const TOTAL: Duration = Duration::from_secs(14);

/// Longest answer that is read, in bytes: a page of a hundred runners has about 100 KiB.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// What GitHub answered.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body, as it came.
    pub body: Bytes,
}

/// There is no answer, or only a part of one. Whether the request took effect is not known.
#[derive(Debug)]
pub struct Lost(pub String);

/// What a request carries besides its address.
#[derive(Clone, Copy, Debug)]
pub enum Carried<'a> {
    /// Nothing.
    Nothing,
    /// A body.
    Json(&'a Value),
    /// The tag of an answer that is known: GitHub answers 304 while it is still the same, and does not count
    /// that against the quota (docs.github.com, "Best practices for using the REST API").
    Unless(&'a str),
}

/// Sends requests to one API address.
pub struct Transport {
    base: String,
    times: Times,
    client: OnceLock<Octocrab>,
}

/// Time-outs of a request.
pub struct Times {
    /// Until there is a connection, TLS included.
    pub connect: Duration,
    /// Between two pieces of the answer.
    pub read: Duration,
    /// All in all.
    pub total: Duration,
}

impl Transport {
    /// Nothing is opened or read before the first request.
    pub fn new(base: String) -> Self {
        Self::with(base, Times { connect: CONNECT, read: READ, total: TOTAL })
    }

    /// The same with other time-outs.
    pub fn with(base: String, times: Times) -> Self {
        Self { base, times, client: OnceLock::new() }
    }

    /// Sends one request, once. `path` begins with a slash and is below the API's address.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        bearer: &Secret,
        carried: Carried<'_>,
    ) -> Result<Reply, Lost> {
        self.send_as(Some(bearer), method, path, carried).await
    }

    /// The same, for what may be asked without a token too.
    pub async fn send_as(
        &self,
        bearer: Option<&Secret>,
        method: Method,
        path: &str,
        carried: Carried<'_>,
    ) -> Result<Reply, Lost> {
        let what = format!("{method} {}{path}", self.base);
        let lost = |why: &dyn StdError| Lost(format!("{what}: {}", causes(why)));
        // A client with a token shares the connections, and has no token cache that could be copied.
        let client = self
            .client()
            .and_then(|client| match bearer {
                Some(token) => client.user_access_token(SecretString::from(token.expose())),
                None => Ok(client.clone()),
            })
            .map_err(|error| lost(&error))?;
        let mut request = request::Builder::new()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/vnd.github+json");
        let body = match carried {
            Carried::Json(body) => Some(body),
            Carried::Nothing | Carried::Unless(_) => None,
        };
        if let Carried::Unless(tag) = carried {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        let request = client.build_request(request, body).map_err(|error| lost(&error))?;
        let exchange = async {
            let response = client.execute(request).await.map_err(|error| lost(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|e| lost(&*e))?;
            let (status, headers) = (head.status.as_u16(), head.headers);
            Ok(Reply { status, headers, body: body.to_bytes() })
        };
        match tokio::time::timeout(self.times.total, exchange).await {
            Ok(done) => done,
            Err(_) => Err(Lost(format!("{what}: no answer within {:?}", self.times.total))),
        }
    }

    /// The client is made with the first request: it reads the system's certificates and needs a running
    /// executor.
    fn client(&self) -> octocrab::Result<&Octocrab> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = Octocrab::builder()
            .base_uri(self.base.as_str())?
            .add_retry_config(RetryConfig::None)
            .set_connect_timeout(Some(self.times.connect))
            .set_read_timeout(Some(self.times.read))
            .set_write_timeout(Some(self.times.read))
            .build()?;
        Ok(self.client.get_or_init(|| client))
    }
}

/// The whole chain: the outermost text is "client error" and the like. Display forms only: debug forms hold
/// requests with their headers.
fn causes(error: &dyn StdError) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let mark = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{mark}{cause_text}");
        }
        next = cause.source();
    }
    text.truncate(text.floor_char_boundary(300));
    text
}
