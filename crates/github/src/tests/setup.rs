//! The half of GitHub that makes Apps: what is sent, what is made of the answers, and what is never said.

use ostler_core::setup::Registry;
use ostler_core::setup::app::Created;

use super::*;
use crate::AppRegistry;

const CODE: &str = "c0dec0dec0de";
const CONVERT: &str = "POST /app-manifests/c0dec0dec0de/conversions";

fn conversion() -> Value {
    json!({"id": 7, "slug": "ostler-acme", "name": "Ostler of acme", "owner": {"login": "acme"},
        "html_url": "https://elsewhere.example/apps/ostler-acme", "pem": KEY,
        "webhook_secret": "hush-hush-hush-hush", "client_secret": "unused",
        "permissions": {"actions": "write"}, "events": ["workflow_job"]})
}

/// The same with another value of one key.
fn but(key: &str, value: Value) -> Answer {
    let mut changed = conversion();
    changed[key] = value;
    status(201, changed)
}

async fn convert(server: &Server) -> Result<Created> {
    let registry = AppRegistry::new(&server.url, server.clock.clone()).unwrap();
    registry.convert(CODE).await
}

#[tokio::test]
async fn se_a_code_is_traded_once_and_without_credentials() {
    let server = Server::start().await.on(CONVERT, [status(201, conversion())]);
    let made = convert(&server).await.unwrap();
    assert_eq!((made.id, made.name.as_str(), made.owner.as_str()), (7, "Ostler of acme", "acme"));
    assert_eq!(made.page, format!("{}/apps/ostler-acme", server.url), "not elsewhere");
    assert_eq!(made.webhook_secret.expose(), "hush-hush-hush-hush");
    let calls = server.calls();
    assert_eq!((calls.len(), calls[0].bearer.as_str()), (1, ""));
}

#[tokio::test]
async fn i9_no_error_of_a_conversion_has_code_or_key() {
    for (answer, permanent) in [
        (says(404, "Not Found"), true),
        (says(422, "Unprocessable"), true),
        (but("id", json!("x")), true),
        (but("pem", json!("no key")), true),
        (but("webhook_secret", json!("short")), true),
        (but("slug", json!("../x")), true),
        (says(502, "Server Error"), false),
    ] {
        let server = Server::start().await.on(CONVERT, [answer]);
        let error = convert(&server).await.unwrap_err();
        assert_eq!(matches!(error, Error::Permanent(_)), permanent, "{error}");
        let text = error.to_string();
        assert!(![CODE, "hush", "PRIVATE"].iter().any(|hidden| text.contains(hidden)), "{text}");
        assert_eq!(server.calls().len(), 1, "never twice by itself");
    }
    // Nor where nobody answers at all.
    let nobody = Server { url: "http://127.0.0.1:1".into(), ..Server::start().await };
    let error = convert(&nobody).await.unwrap_err();
    assert!(matches!(&error, Error::Transient(text) if !text.contains(CODE)), "{error}");
}

#[tokio::test]
async fn where_an_app_is_installed_is_asked_as_the_app() {
    let list = ok(json!([{"id": 1, "account": {"login": "acme", "type": "Organization"}}]));
    let server = Server::start()
        .await
        .on(CONVERT, [status(201, conversion())])
        .on("app 7: GET /app/installations", [ok(json!([])), list]);
    let made = convert(&server).await.unwrap();
    let registry = AppRegistry::new(&server.url, server.clock.clone()).unwrap();
    assert_eq!(registry.installed(&made).await.unwrap(), Vec::<String>::new());
    assert_eq!(registry.installed(&made).await.unwrap(), ["acme"]);
}
