//! Acting as the App and as its installations: JWTs, installation tokens, and which installation is whose.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use octocrab::jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ostler_core::apps::AppCredential;
use ostler_core::job::Repository;
use ostler_core::ports::Clock;
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Mutex as AsyncMutex;

use crate::address::segment;
use crate::reply::Permission;
use crate::transport::{Carried, Lost, Reply, Transport};
use crate::wire::{Installation, TokenAnswer};

/// A token is not used in its last five minutes: GitHub's clock may be ahead of ours, and the call that
/// begins with it must also end with it.
const TOKEN_MARGIN: Duration = Duration::from_secs(300);

/// Life of a token whose answer does not say (docs.github.com: "Installation tokens expire one hour from the
/// time you create them").
const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// The JWT is issued a minute ago and lives for nine: GitHub refuses one that was issued in its future or
/// ends more than ten minutes ahead, and clocks differ.
const JWT_BACK: Duration = Duration::from_secs(60);
const JWT_LIFE: Duration = Duration::from_secs(9 * 60);

#[derive(Serialize)]
struct Claims {
    iss: u64,
    iat: i64,
    exp: i64,
    /// Two processes that sign in the same second must not send the same JWT: GitHub has answered 404 to the
    /// second (`github-aws-runners/terraform-aws-github-runner#5025`).
    jti: String,
}

/// With whose installation a call is made.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// Login of the user or organisation.
    pub owner: &'a str,
    /// The repository, where the call is about one.
    pub repository: Option<&'a str>,
    /// The first App's installation, where an event named it.
    pub installation: Option<i64>,
}

impl<'a> Whose<'a> {
    /// The owner's, for calls about no repository in particular.
    pub fn owner(owner: &'a str) -> Self {
        Self { owner, repository: None, installation: None }
    }
}

impl<'a> From<&'a Repository> for Whose<'a> {
    fn from(at: &'a Repository) -> Self {
        Self { owner: &at.owner, repository: Some(&at.name), installation: at.installation }
    }
}

impl fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.repository {
            Some(name) => write!(f, "{}/{name}", self.owner),
            None => f.write_str(self.owner),
        }
    }
}

/// Whether owners are user accounts, as far as answers have told; by owner in lower case.
#[derive(Default)]
pub struct Users(Mutex<HashMap<String, bool>>);

impl Users {
    /// What is known of the owner.
    pub fn known(&self, owner: &str) -> Option<bool> {
        lock(&self.0).get(&owner.to_lowercase()).copied()
    }

    /// Notes what an answer proved.
    pub fn remember(&self, owner: &str, user: bool) {
        lock(&self.0).insert(owner.to_lowercase(), user);
    }
}

#[derive(Clone)]
struct Token {
    secret: Secret,
    expires: Timestamp,
}

/// One installation's token. The lock is held while one is minted, so that callers at the same time mint
/// one.
type Slot = Arc<AsyncMutex<Option<Token>>>;

/// An App, with the tokens of its installations.
pub struct App<C> {
    pub transport: Arc<Transport>,
    clock: Arc<C>,
    users: Arc<Users>,
    id: u64,
    key: EncodingKey,
    /// Whether GitHub refused the App's own signature when it last saw one.
    refused: AtomicBool,
    tokens: Mutex<HashMap<i64, Slot>>,
    /// Installations that we looked up, by owner in lower case. They go before what an event said, because
    /// they are looked up when that is unknown or out of date.
    installations: Mutex<HashMap<String, i64>>,
}

impl<C: Clock> App<C> {
    /// Reads the key; nothing is sent. The connections, what is known of owners, and the clock are shared.
    pub fn new(
        credential: &AppCredential,
        (transport, users, clock): (Arc<Transport>, Arc<Users>, Arc<C>),
    ) -> Result<Self> {
        // Consoles and shells turn line ends into the two characters `\n`.
        let pem = credential.key.expose().replace("\\n", "\n");
        let key = EncodingKey::from_rsa_pem(pem.as_bytes()).map_err(|_| {
            Error::Permanent(format!(
                "the private key of App {} (control/app-private-key; AppKeyParameter of a registration janitor) \
                 is not an RSA private key in PEM form; store the file that GitHub gave when the key was \
                 generated",
                credential.id
            ))
        })?;
        let (tokens, installations, refused) = Default::default();
        Ok(Self { transport, clock, users, id: credential.id, key, refused, tokens, installations })
    }

    /// Whether GitHub refused the App's own signature when it last saw one.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sees that there is a token for calls with that installation.
    pub async fn sign_in(&self, whose: Whose<'_>) -> Result<()> {
        self.token(whose).await.map(drop)
    }

    /// Sends a request with that installation's token. A 401 proves that nothing happened: the
    /// token is dropped, one more is minted, and the request is sent once more.
    pub async fn call(
        &self,
        whose: Whose<'_>,
        method: &Method,
        path: &str,
        carried: Carried<'_>,
    ) -> Result<std::result::Result<Reply, Lost>> {
        let mut repeated = false;
        loop {
            let (slot, token) = self.token(whose).await?;
            let sent = self.transport.send(method.clone(), path, &token, carried).await;
            match sent {
                Ok(reply) if reply.status == 401 => {
                    let mut kept = slot.lock().await;
                    if kept.as_ref().is_some_and(|kept| kept.secret == token) {
                        *kept = None;
                    }
                    if repeated {
                        return Ok(Ok(reply));
                    }
                    repeated = true;
                }
                sent => return Ok(sent),
            }
        }
    }

    async fn token(&self, whose: Whose<'_>) -> Result<(Slot, Secret)> {
        let owner = whose.owner.to_lowercase();
        let looked_up = lock(&self.installations).get(&owner).copied();
        let known = looked_up.or(whose.installation).filter(|id| *id > 0);
        if let Some(known) = known
            && let Some(token) = self.installation_token(known).await?
        {
            return Ok(token);
        }
        // Unknown, or gone: the App was installed anew under another id, or is not installed.
        let found = self.installation_of(whose).await?;
        lock(&self.installations).insert(owner, found);
        self.installation_token(found).await?.ok_or_else(|| {
            Error::Permanent(format!(
                "installation {found} of {} is gone; install the App",
                whose.owner
            ))
        })
    }

    /// A token; `None` if there is no such installation.
    async fn installation_token(&self, id: i64) -> Result<Option<(Slot, Secret)>> {
        let slot = lock(&self.tokens).entry(id).or_default().clone();
        let mut kept = slot.lock().await;
        let now = self.clock.now();
        if let Some(token) = kept.as_ref().filter(|token| token.expires > now + TOKEN_MARGIN) {
            let secret = token.secret.clone();
            drop(kept);
            return Ok(Some((slot, secret)));
        }
        let what = format!("get a token for installation {id}");
        let path = format!("/app/installations/{id}/access_tokens");
        let reply = self.as_app(Method::POST, &path).await?;
        if reply.status == 404 {
            *kept = None;
            return Ok(None);
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Metadata, now));
        }
        let answer: TokenAnswer = reply.read(&what)?;
        let secret = answer.token.filter(|token| !token.is_empty()).map(Secret::new);
        let secret = secret.ok_or_else(|| Error::Transient(format!("{what}: no token came")))?;
        let expires = answer.expires_at.as_deref().and_then(Timestamp::parse);
        let expires = expires.unwrap_or(now + TOKEN_LIFE);
        *kept = Some(Token { secret: secret.clone(), expires });
        drop(kept);
        Ok(Some((slot, secret)))
    }

    /// The installation for a repository, by the repository, else by its owner.
    async fn installation_of(&self, whose: Whose<'_>) -> Result<i64> {
        let owner = segment(whose.owner)?;
        let by_repository = match whose.repository {
            Some(name) => Some(format!("/repos/{owner}/{}/installation", segment(name)?)),
            None => None,
        };
        let by_owner =
            [format!("/orgs/{owner}/installation"), format!("/users/{owner}/installation")];
        for path in by_repository.into_iter().chain(by_owner) {
            let what = format!("look up the App's installation for {whose}");
            let reply = self.as_app(Method::GET, &path).await?;
            if reply.status == 404 {
                continue;
            }
            if !reply.is_success() {
                return Err(reply.error(&what, Permission::Metadata, self.clock.now()));
            }
            let found: Installation = reply.read(&what)?;
            if let Some(kind) = found.account.and_then(|account| account.kind) {
                self.users.remember(owner, kind == "User");
            }
            return found.id.ok_or_else(|| Error::Transient(format!("{what}: no id came")));
        }
        Err(Error::Permanent(format!(
            "the App {} is not installed with {owner}, or not for {whose}; install it there",
            self.id
        )))
    }

    /// Whether the App is installed for that very repository, which only GitHub's answer to the App itself
    /// says.
    pub async fn installed(&self, whose: Whose<'_>) -> Result<bool> {
        let what = format!("look up the App's installation for {whose}");
        let name = segment(whose.repository.unwrap_or_default())?;
        let path = format!("/repos/{}/{name}/installation", segment(whose.owner)?);
        let reply = self.as_app(Method::GET, &path).await?;
        if reply.status == 404 {
            return Ok(false);
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Metadata, self.clock.now()));
        }
        if let Some(id) = reply.read::<Installation>(&what)?.id {
            lock(&self.installations).insert(whose.owner.to_lowercase(), id);
        }
        Ok(true)
    }

    /// Sends a request as the App itself, about things of its own. A POST carries an empty body.
    pub async fn as_app(&self, method: Method, path: &str) -> Result<Reply> {
        let empty = json!({});
        let carried = match method {
            Method::POST => Carried::Json(&empty),
            _ => Carried::Nothing,
        };
        let sent = self.transport.send(method, path, &self.jwt()?, carried).await;
        let reply = sent.map_err(|Lost(why)| Error::Transient(why))?;
        self.refused.store(reply.status == 401, Ordering::Relaxed);
        Ok(reply)
    }

    /// A JWT by our own clock: octocrab would sign by the machine's, which the local world does not share.
    fn jwt(&self) -> Result<Secret> {
        let issued = self.clock.now() - JWT_BACK;
        let (iat, exp) = (issued.seconds(), (issued + JWT_LIFE).seconds());
        let jti = format!("{:016x}", RandomState::new().hash_one(iat));
        let claims = Claims { iss: self.id, iat, exp, jti };
        encode(&Header::new(Algorithm::RS256), &claims, &self.key).map(Secret::new).map_err(|_| {
            Error::Permanent(format!("the private key of App {} cannot sign", self.id))
        })
    }
}

/// No panic leaves these maps half-written.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
