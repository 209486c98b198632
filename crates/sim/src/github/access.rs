//! Who may see what: installations, and the tokens that act for them.

use std::time::Duration;

use ostler_core::time::Timestamp;
use rand::Rng;
use rand::distr::Alphanumeric;

use super::{ApiError, GitHub, Owner};

/// Life of an installation token (docs: one hour).
pub const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// The App, by JWT.
    App,
    /// An installation, by its token.
    Installation(u64),
    /// A person's token: sees everything.
    Personal,
}

/// An installation token as the API hands it out.
#[derive(Clone)]
pub struct Token {
    /// The secret.
    pub token: String,
    /// Refused from then on.
    pub expires_at: Timestamp,
}

pub(super) struct Grant {
    installation: u64,
    expires_at: Timestamp,
    /// Full names in lower case; `None`: all that the installation covers.
    repositories: Option<Vec<String>>,
}

impl GitHub {
    /// The account of an installation.
    pub fn installed_owner(&self, installation: u64) -> Result<&Owner, ApiError> {
        self.owners
            .values()
            .find(|owner| owner.installation == Some(installation))
            .ok_or_else(ApiError::not_found)
    }

    /// All accounts with an installation.
    pub fn installed_owners(&self) -> impl Iterator<Item = &Owner> {
        self.owners.values().filter(|owner| owner.installation.is_some())
    }

    /// The installation that covers a repository (`owner/name`), or 404.
    pub fn installation(&self, full_name: &str) -> Result<u64, ApiError> {
        let repository = self.repository(full_name)?;
        if !repository.installed {
            return Err(ApiError::not_found());
        }
        self.account(&repository.owner)?.installation.ok_or_else(ApiError::not_found)
    }

    /// The installation of an account, or 404.
    pub fn owner_installation(&self, login: &str) -> Result<u64, ApiError> {
        self.account(login)?.installation.ok_or_else(ApiError::not_found)
    }

    /// Removes the App from an account. Tokens of the installation are refused from now on.
    pub fn uninstall(&mut self, login: &str) {
        let gone = self.owner_mut(login).and_then(|owner| owner.installation.take());
        self.tokens.retain(|_, grant| Some(grant.installation) != gone);
    }

    /// Installs the App with an account again: under a new id (`terrakube-io/terrakube#3430`).
    pub fn reinstall(&mut self, login: &str) -> Result<u64, ApiError> {
        self.uninstall(login);
        let id = self.account_id();
        self.owner_mut(login).ok_or_else(ApiError::not_found)?.installation = Some(id);
        Ok(id)
    }

    /// `POST /app/installations/{id}/access_tokens`, for all repositories or for some (names without the
    /// owner; one that the installation does not cover is 422).
    pub fn mint_token(
        &mut self,
        now: Timestamp,
        installation: u64,
        repositories: Option<&[String]>,
    ) -> Result<Token, ApiError> {
        self.advance(now);
        let login = self.installed_owner(installation)?.login.clone();
        let repositories = repositories.map(|names| {
            names.iter().map(|name| format!("{login}/{name}").to_lowercase()).collect::<Vec<_>>()
        });
        if repositories.iter().flatten().any(|name| self.installation(name).is_err()) {
            return Err(ApiError::new(
                422,
                "There is at least one repository that does not exist or is not accessible to the \
                 parent installation.",
            ));
        }
        let secret: String =
            (&mut self.rng).sample_iter(Alphanumeric).take(36).map(char::from).collect();
        let token = Token { token: format!("ghs_{secret}"), expires_at: self.now + TOKEN_LIFE };
        self.tokens.retain(|_, grant| grant.expires_at > self.now);
        self.tokens.insert(
            token.token.clone(),
            Grant { installation, expires_at: token.expires_at, repositories },
        );
        Ok(token)
    }

    /// Whose token that is; 401 for unknown and expired ones.
    pub fn authenticate(&mut self, now: Timestamp, token: &str) -> Result<Caller, ApiError> {
        self.advance(now);
        match self.tokens.get(token) {
            Some(grant) if grant.expires_at > self.now => {
                Ok(Caller::Installation(grant.installation))
            }
            _ => Err(ApiError::new(401, "Bad credentials")),
        }
    }

    /// Whether the bearer of `token` may see a repository: what the installation, or the token's own list,
    /// does not cover is 404 (docs: GitHub does not confirm that private things exist).
    pub fn token_sees(&self, token: &str, full_name: &str) -> Result<(), ApiError> {
        let grant = self.tokens.get(token).ok_or_else(|| ApiError::new(401, "Bad credentials"))?;
        let listed = grant
            .repositories
            .as_ref()
            .is_none_or(|names| names.contains(&full_name.to_lowercase()));
        if listed && self.installation(full_name) == Ok(grant.installation) {
            Ok(())
        } else {
            Err(ApiError::not_found())
        }
    }

    /// Whether `caller` may see a repository (`owner/name`).
    pub fn sees_repository(&self, caller: &Caller, full_name: &str) -> Result<(), ApiError> {
        self.repository(full_name)?;
        match caller {
            Caller::Personal => Ok(()),
            Caller::Installation(id) if self.installation(full_name) == Ok(*id) => Ok(()),
            Caller::Installation(_) | Caller::App => Err(ApiError::not_found()),
        }
    }

    /// Whether `caller` may see an account's own things (its runners and groups).
    pub fn sees_owner(&self, caller: &Caller, login: &str) -> Result<(), ApiError> {
        let owner = self.account(login)?;
        match caller {
            Caller::Personal => Ok(()),
            Caller::Installation(id) if owner.installation == Some(*id) => Ok(()),
            Caller::Installation(_) | Caller::App => Err(ApiError::not_found()),
        }
    }
}
