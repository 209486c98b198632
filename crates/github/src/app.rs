//! Acting as the App and as its installations: JWTs, installation tokens, and which installation is whose.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use octocrab::jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
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
use crate::transport::{Lost, Reply, Transport};
use crate::wire::{Account, Installation, TokenAnswer};

/// A token is not used in its last five minutes: GitHub's clock may be ahead of ours, and the call that
/// begins with it must also end with it.
const TOKEN_MARGIN: Duration = Duration::from_secs(300);

/// Life of a token whose answer does not say (docs.github.com: "Installation tokens expire one hour from the
/// time you create them").
const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// The JWT is issued a minute ago and ends in nine minutes: GitHub refuses one that was issued in its future
/// or ends more than ten minutes ahead, and clocks differ.
const JWT_BACK: Duration = Duration::from_secs(60);
const JWT_AHEAD: Duration = Duration::from_secs(9 * 60);

#[derive(Serialize)]
struct Claims {
    iss: u64,
    iat: i64,
    exp: i64,
}

#[derive(Clone)]
struct Token {
    secret: Secret,
    expires: Timestamp,
}

/// One installation's token. The lock is held while one is minted, so that callers at the same time mint
/// one.
type Slot = Arc<AsyncMutex<Option<Token>>>;

/// The App, with the tokens of its installations.
pub struct App<C> {
    pub transport: Transport,
    pub clock: C,
    id: u64,
    key: EncodingKey,
    /// Whether GitHub refused the App's own signature when it last saw one.
    pub refused: AtomicBool,
    tokens: Mutex<HashMap<i64, Slot>>,
    /// Installations that we looked up, by owner in lower case. They go before what an event said, because
    /// they are looked up when that is unknown or out of date.
    installations: Mutex<HashMap<String, i64>>,
    /// Whether an owner is a user account, by owner in lower case.
    users: Mutex<HashMap<String, bool>>,
}

impl<C: Clock> App<C> {
    /// Reads the key; nothing is sent.
    pub fn new(transport: Transport, id: u64, key: &Secret, clock: C) -> Result<Self> {
        // Consoles and shells turn line ends into the two characters `\n`.
        let pem = key.expose().replace("\\n", "\n");
        let key = EncodingKey::from_rsa_pem(pem.as_bytes()).map_err(|_| {
            Error::Permanent(
                "control/app-private-key is not an RSA private key in PEM form; store the file that \
                 GitHub gave when the key was generated"
                    .into(),
            )
        })?;
        let (tokens, installations, users) = Default::default();
        let refused = AtomicBool::new(false);
        Ok(Self { transport, clock, id, key, refused, tokens, installations, users })
    }

    /// Sends a request as the installation for that repository. A 401 proves that nothing happened: the
    /// token is dropped, one more is minted, and the request is sent once more.
    pub async fn call(
        &self,
        at: &Repository,
        method: &Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<std::result::Result<Reply, Lost>> {
        let mut repeated = false;
        loop {
            let (slot, token) = self.token(at).await?;
            let sent = self.transport.send(method.clone(), path, &token, body).await;
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

    /// As [`Self::call`] for a GET: without an answer nothing is known, and it may be asked again.
    pub async fn get(&self, at: &Repository, path: &str) -> Result<Reply> {
        self.call(at, &Method::GET, path, None).await?.map_err(|Lost(why)| Error::Transient(why))
    }

    /// Whether the owner is a user account. Asked once.
    pub async fn is_user(&self, at: &Repository) -> Result<bool> {
        if let Some(known) = self.known_user(&at.owner) {
            return Ok(known);
        }
        let what = format!("look up the owner {}", at.owner);
        let reply = self.get(at, &format!("/users/{}", segment(&at.owner)?)).await?;
        if reply.status == 404 {
            return Err(Error::Permanent(format!(
                "{what}: 404; was the account renamed? Runners are registered under its old name"
            )));
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Metadata, self.clock.now()));
        }
        let account: Account = reply.read(&what)?;
        let kind = account.kind.ok_or_else(|| Error::Transient(format!("{what}: no type")))?;
        self.remember_user(&at.owner, kind == "User");
        Ok(kind == "User")
    }

    /// What is known of the owner.
    pub fn known_user(&self, owner: &str) -> Option<bool> {
        lock(&self.users).get(&owner.to_lowercase()).copied()
    }

    /// Notes what an answer proved.
    pub fn remember_user(&self, owner: &str, user: bool) {
        lock(&self.users).insert(owner.to_lowercase(), user);
    }

    async fn token(&self, at: &Repository) -> Result<(Slot, Secret)> {
        let owner = at.owner.to_lowercase();
        let known =
            lock(&self.installations).get(&owner).copied().or(at.installation).filter(|id| *id > 0);
        if let Some(known) = known
            && let Some(token) = self.installation_token(known).await?
        {
            return Ok(token);
        }
        // Unknown, or gone: the App was installed anew under another id, or is not installed.
        let found = self.installation_of(at).await?;
        lock(&self.installations).insert(owner, found);
        self.installation_token(found).await?.ok_or_else(|| {
            Error::Permanent(format!(
                "installation {found} of {} is gone; install the App",
                at.owner
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
    async fn installation_of(&self, at: &Repository) -> Result<i64> {
        let (owner, name) = (segment(&at.owner)?, segment(&at.name)?);
        for path in [
            format!("/repos/{owner}/{name}/installation"),
            format!("/orgs/{owner}/installation"),
            format!("/users/{owner}/installation"),
        ] {
            let what = format!("look up the App's installation for {at}");
            let reply = self.as_app(Method::GET, &path).await?;
            if reply.status == 404 {
                continue;
            }
            if !reply.is_success() {
                return Err(reply.error(&what, Permission::Metadata, self.clock.now()));
            }
            let found: Installation = reply.read(&what)?;
            if let Some(kind) = found.account.and_then(|account| account.kind) {
                self.remember_user(owner, kind == "User");
            }
            return found.id.ok_or_else(|| Error::Transient(format!("{what}: no id came")));
        }
        Err(Error::Permanent(format!(
            "the App {} is not installed with {owner}, or not for {at}; install it there",
            self.id
        )))
    }

    /// Whether the App is installed for that very repository, which only GitHub's answer to the App itself
    /// says.
    pub async fn installed(&self, at: &Repository) -> Result<bool> {
        let what = format!("look up the App's installation for {at}");
        let path = format!("/repos/{}/{}/installation", segment(&at.owner)?, segment(&at.name)?);
        let reply = self.as_app(Method::GET, &path).await?;
        if reply.status == 404 {
            return Ok(false);
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Metadata, self.clock.now()));
        }
        if let Some(id) = reply.read::<Installation>(&what)?.id {
            lock(&self.installations).insert(at.owner.to_lowercase(), id);
        }
        Ok(true)
    }

    async fn as_app(&self, method: Method, path: &str) -> Result<Reply> {
        let body = (method == Method::POST).then(|| json!({}));
        let sent = self.transport.send(method, path, &self.jwt()?, body.as_ref()).await;
        let reply = sent.map_err(|Lost(why)| Error::Transient(why))?;
        self.refused.store(reply.status == 401, Ordering::Relaxed);
        Ok(reply)
    }

    /// A JWT by our own clock: octocrab would sign by the machine's, which the local world does not share.
    fn jwt(&self) -> Result<Secret> {
        let now = self.clock.now();
        let (iat, exp) = ((now - JWT_BACK).seconds(), (now + JWT_AHEAD).seconds());
        let claims = Claims { iss: self.id, iat, exp };
        encode(&Header::new(Algorithm::RS256), &claims, &self.key)
            .map(Secret::new)
            .map_err(|_| Error::Permanent("control/app-private-key cannot sign".into()))
    }
}

/// No panic leaves these maps half-written.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
