//! GitHub's addresses: the API's address follows from the one that people use, so that there is one setting.

use http::Uri;
use ostler_core::{Error, Result};

/// The API's address, without a slash at the end: `https://api.github.com` for github.com,
/// `https://api.<host>` for ghe.com (data residency), `<address>/api/v3` for a GHES.
pub fn api(github_url: &str) -> Result<String> {
    let wrong = |why: &str| {
        Error::Permanent(format!(
            "GitHub's address '{}' (github_url in control/app; GhesApiUrl of a registration janitor) {why}; it is https://github.com, \
             https://<name>.ghe.com or the address of a GitHub Enterprise Server",
            github_url.chars().take(100).collect::<String>()
        ))
    };
    let url = github_url.trim().trim_end_matches('/');
    let uri: Uri = url.parse().map_err(|_| wrong("is no address"))?;
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else {
        return Err(wrong("is no address"));
    };
    if uri.query().is_some() || uri.authority().is_some_and(|whole| whole.as_str().contains('@')) {
        return Err(wrong("has more than an address"));
    }
    // Tokens would travel in clear text; the local world alone has no certificate.
    if scheme != "https" && !(scheme == "http" && is_loopback(host)) {
        return Err(wrong("must begin with https://"));
    }
    let host = host.to_lowercase();
    if ["github.com", "www.github.com", "api.github.com"].contains(&host.as_str()) {
        return Ok("https://api.github.com".to_owned());
    }
    if host.ends_with(".ghe.com") {
        let host = host.strip_prefix("api.").unwrap_or(&host);
        return Ok(format!("https://api.{host}"));
    }
    Ok(format!("{}/api/v3", url.strip_suffix("/api/v3").unwrap_or(url)))
}

/// The address that people use, without a slash at the end, of one that [`api`] takes.
pub fn web(github_url: &str) -> Result<String> {
    let api = api(github_url)?;
    if api == "https://api.github.com" {
        return Ok("https://github.com".to_owned());
    }
    Ok(match (api.strip_prefix("https://api."), api.strip_suffix("/api/v3")) {
        (Some(host), None) => format!("https://{host}"),
        (_, Some(server)) => server.to_owned(),
        (None, None) => api,
    })
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A part of a path that comes from outside: an owner or a repository. Anything that GitHub does not allow
/// in those could name another resource.
pub fn segment(text: &str) -> Result<&str> {
    let fits = !text.is_empty()
        && text.len() <= 100
        && text != "."
        && text != ".."
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if fits {
        return Ok(text);
    }
    let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
    Err(Error::Permanent(format!("'{shown}' cannot be an owner or a repository at GitHub")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gh_01_gh_02_gh_10_the_apis_address_follows_from_the_one_setting() {
        for (url, expected) in [
            ("https://github.com", "https://api.github.com"),
            ("https://github.com/", "https://api.github.com"),
            ("https://GitHub.com", "https://api.github.com"),
            ("https://acme.ghe.com", "https://api.acme.ghe.com"),
            ("https://api.acme.ghe.com/", "https://api.acme.ghe.com"),
            ("https://git.acme.example", "https://git.acme.example/api/v3"),
            ("https://git.acme.example/", "https://git.acme.example/api/v3"),
            ("https://git.acme.example:8443//", "https://git.acme.example:8443/api/v3"),
            ("https://git.acme.example/api/v3/", "https://git.acme.example/api/v3"),
            ("https://notghe.com", "https://notghe.com/api/v3"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/api/v3"),
            ("http://[::1]:8080", "http://[::1]:8080/api/v3"),
        ] {
            assert_eq!(api(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn gh_the_address_that_people_use_follows_too() {
        for (url, expected) in [
            ("https://github.com/", "https://github.com"),
            ("https://api.github.com", "https://github.com"),
            ("https://acme.ghe.com/", "https://acme.ghe.com"),
            ("https://api.acme.ghe.com", "https://acme.ghe.com"),
            ("https://git.acme.example/api/v3/", "https://git.acme.example"),
            ("https://api.acme.example:8443", "https://api.acme.example:8443"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ] {
            assert_eq!(web(url).unwrap(), expected, "{url}");
        }
        assert!(web("http://git.acme.example").is_err());
    }

    #[test]
    fn an_address_that_would_give_tokens_away_is_refused() {
        for url in [
            "",
            "github.com",
            "http://github.com",
            "http://git.acme.example",
            "ftp://127.0.0.1",
            "https://user@git.acme.example",
            "https://git.acme.example?x=1",
            "https://",
            "a b",
        ] {
            let error = api(url).unwrap_err();
            assert!(
                matches!(&error, Error::Permanent(text) if text.contains("github_url")),
                "{url}"
            );
        }
    }

    #[test]
    fn a_name_from_outside_never_names_another_resource() {
        for bad in ["", ".", "..", "a/b", "a?b", "a%2e", "é", "a\nb", &"x".repeat(101)] {
            assert!(segment(bad).is_err(), "{bad}");
        }
        assert_eq!(segment("acme-1_x.y").unwrap(), "acme-1_x.y");
    }
}
