//! What the janitor sends, and what it makes of the answers.

use ostler_core::apps::Credentials;
use ostler_core::janitor::{Part, Registrations};

use super::*;
use crate::JanitorGitHub;

fn credentials(github_url: Option<&str>) -> Credentials {
    Credentials {
        app: AppCredential { id: 4242, key: Secret::new(KEY) },
        github_url: github_url.map(str::to_owned),
        additional: vec![],
        name_key: None,
    }
}

fn janitor(server: &Server) -> JanitorGitHub<TestClock> {
    let api = format!("{}/api/v3", server.url);
    JanitorGitHub::new(&api, &credentials(None), server.clock.clone()).unwrap()
}

fn group() -> Part {
    Part::Group { organization: "Acme".into(), id: 7 }
}

fn widgets() -> Part {
    Part::Repository(Repository { installation: None, ..at() })
}

const INSTALLATION: &str = "GET /orgs/Acme/installation";
const GROUP: &str = "GET /orgs/Acme/actions/runner-groups/7/runners";
const DELETE: &str = "DELETE /orgs/Acme/actions/runners/9";

async fn installed() -> Server {
    Server::start()
        .await
        .on(INSTALLATION, [ok(json!({"id": 5}))])
        .on("GET /repos/Acme/widgets/installation", [ok(json!({"id": 5}))])
}

#[tokio::test]
async fn j24_jp_10_a_groups_own_list_is_read_a_hundred_at_a_time() {
    let list = json!({"total_count": 1, "runners": [{"id": 9, "name": "x-i-01234567",
        "status": "offline", "busy": false, "runner_group_id": 7, "labels": null}]});
    let server = installed().await.on(GROUP, [ok(list)]);
    let github = janitor(&server);
    let session = github.session(&group()).await.unwrap();
    let listed = github.page(&session, &group(), 12).await.unwrap();
    assert_eq!((listed.entries, listed.registrations[0].group), (1, Some(7)));
    let call = server.calls().pop().unwrap();
    assert_eq!((call.what.as_str(), call.query.as_str()), (GROUP, "per_page=100&page=12"));
}

#[tokio::test]
async fn a_repositorys_runners_are_read_removed_and_looked_up_at_the_repository() {
    let list = json!({"runners": [{"id": 9, "name": "x", "status": "offline", "busy": false}]});
    let one = json!({"id": 9, "name": "x", "status": "online", "busy": true});
    let server = installed()
        .await
        .on("GET /repos/Acme/widgets/actions/runners", [ok(list)])
        .on("GET /repos/Acme/widgets/actions/runners/9", [ok(one)])
        .on("DELETE /repos/Acme/widgets/actions/runners/9", [status(204, Value::Null)]);
    let github = janitor(&server);
    let session = github.session(&widgets()).await.unwrap();
    assert_eq!(github.page(&session, &widgets(), 1).await.unwrap().entries, 1);
    let seen = github.registration(&session, &widgets(), 9).await.unwrap().unwrap();
    assert!(!seen.offline && seen.busy && seen.group.is_none());
    assert_eq!(github.remove(&session, &widgets(), 9).await.unwrap(), Removal::Removed);
    assert_eq!(server.minted(), 1);
}

#[tokio::test]
async fn j55_rr_16_only_404_says_that_a_registration_is_gone() {
    let found = json!({"id": 9, "name": "x", "status": "offline", "busy": false});
    for (answer, expected) in [
        (ok(found), Some(true)),
        (says(404, "Not Found"), Some(false)),
        (says(401, "Bad credentials"), None),
        (says(403, "Resource not accessible by integration"), None),
        (says(500, ""), None),
        (ok(json!({"id": null})), None),
        (ok(json!([])), None),
        (says(301, "Moved"), None),
    ] {
        let server = installed().await.on(ORG_RUNNER, [answer]);
        let github = janitor(&server);
        let session = github.session(&group()).await.unwrap();
        let seen = github.registration(&session, &group(), 9).await;
        assert_eq!(seen.ok().map(|seen| seen.is_some()), expected);
    }
}

#[tokio::test]
async fn j56_rr_12_every_answer_to_a_deletion_is_told_apart() {
    let busy = "Bad request - Runner \"x\" is currently running a job and cannot be deleted.";
    for (answer, removal) in [
        (status(204, Value::Null), Some(Removal::Removed)),
        (says(404, "Not Found"), Some(Removal::Gone)),
        (says(422, busy), Some(Removal::Busy)),
        (says(401, "Bad credentials"), None),
        (says(403, "no"), None),
        (says(409, ""), None),
        (says(500, ""), None),
    ] {
        let server = installed().await.on(DELETE, [answer]);
        let github = janitor(&server);
        let session = github.session(&group()).await.unwrap();
        assert_eq!(github.remove(&session, &group(), 9).await.ok(), removal);
    }
}

#[tokio::test]
async fn j57_a_page_that_cannot_be_read_is_no_short_page() {
    for answer in [
        says(404, "Not Found"),
        says(502, "<html>"),
        ok(json!({"total_count": 0})),
        ok(json!({"runners": null})),
        ok(json!([])),
    ] {
        let server = installed().await.on(GROUP, [answer]);
        let github = janitor(&server);
        let session = github.session(&group()).await.unwrap();
        assert!(github.page(&session, &group(), 1).await.is_err());
    }
}

#[tokio::test]
async fn a_list_that_is_not_there_is_told_with_what_to_look_at() {
    let server = installed().await.on(GROUP, [says(404, "Not Found")]);
    let github = janitor(&server);
    let session = github.session(&group()).await.unwrap();
    let error = github.page(&session, &group(), 1).await.unwrap_err();
    assert!(matches!(&error, Error::NotFound(text) if text.contains("RunnerGroupIds")), "{error}");
}

#[tokio::test]
async fn no_token_goes_to_another_host() {
    let elsewhere = Server::start().await;
    for code in [301, 302, 307, 308] {
        let location = format!("{}/api/v3/stolen", elsewhere.url);
        let moved = Answer { headers: vec![("location", location)], ..says(code, "Moved") };
        let server = installed().await.on(GROUP, [moved.clone()]).on(DELETE, [moved]);
        let github = janitor(&server);
        let session = github.session(&group()).await.unwrap();
        assert!(github.page(&session, &group(), 1).await.is_err());
        let removal = github.remove(&session, &group(), 9).await;
        assert!(!matches!(removal, Ok(Removal::Removed)));
    }
    assert!(!elsewhere.calls().is_empty(), "it was asked");
    let stolen: Vec<_> = elsewhere.calls().into_iter().map(|call| call.bearer).collect();
    assert!(stolen.iter().all(String::is_empty), "{stolen:?}");
}

#[tokio::test]
async fn j72_ra_10_what_the_app_lacks_is_named() {
    let denied = says(403, "Resource not accessible by integration");
    let server = installed().await.on(GROUP, [denied.clone()]).on(DELETE, [denied]);
    let github = janitor(&server);
    let session = github.session(&group()).await.unwrap();
    for error in [
        github.page(&session, &group(), 1).await.unwrap_err(),
        github.remove(&session, &group(), 9).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::Permanent(text) if text.contains("Self-hosted runners: read and write")
                && text.contains("accept the new permissions")),
            "{error}"
        );
    }
    let server = Server::start().await;
    let error = janitor(&server).session(&group()).await.unwrap_err();
    assert!(matches!(&error, Error::Permanent(text) if text.contains("install it")), "{error}");
}

#[tokio::test]
async fn j73_gh_01_gh_06_every_call_goes_to_the_configured_address() {
    let server = installed().await.on(GROUP, [ok(json!({"runners": []}))]);
    for api in [format!("{}/api/v3", server.url), format!("{}/api/v3/", server.url)] {
        let github = JanitorGitHub::new(&api, &credentials(None), server.clock.clone()).unwrap();
        let session = github.session(&group()).await.unwrap();
        github.page(&session, &group(), 1).await.unwrap();
    }
    assert_eq!(server.calls().len(), 6, "look-up, token and list, all below /api/v3");
}

#[test]
fn j73_gh_10_github_com_ghe_com_and_ghes_are_told_by_one_address() {
    let clock = TestClock(Arc::new(Mutex::new(Timestamp::default())));
    let make = |api: &str, url: Option<&str>| {
        JanitorGitHub::new(api, &credentials(url), clock.clone())
            .map(|made| made.is_for(api, &credentials(url)))
    };
    for (api, url) in [
        ("", None),
        ("https://git.acme.example/api/v3", None),
        ("https://api.acme.ghe.com", None),
        ("", Some("")),
        ("", Some("https://github.com")),
        ("https://git.acme.example/api/v3", Some("https://git.acme.example")),
        ("https://api.acme.ghe.com", Some("https://acme.ghe.com")),
    ] {
        assert!(make(api, url).unwrap(), "{api} {url:?}");
    }
    for (api, url) in [
        ("", Some("https://git.acme.example")),
        ("https://git.acme.example/api/v3", Some("")),
        ("http://git.acme.example/api/v3", None),
        ("not an address", None),
    ] {
        assert!(matches!(make(api, url), Err(Error::Permanent(_))), "{api} {url:?}");
    }
}

#[tokio::test]
async fn ra_18_the_janitor_leaves_a_tenth_of_the_quota_to_registrations() {
    let headers = vec![
        ("x-ratelimit-limit", "5000".to_owned()),
        ("x-ratelimit-remaining", "499".to_owned()),
        ("x-ratelimit-reset", (Timestamp::parse(NOW).unwrap().seconds() + 60).to_string()),
    ];
    let server = installed().await.on(GROUP, [Answer { headers, ..ok(json!({"runners": []})) }]);
    let github = janitor(&server);
    let session = github.session(&group()).await.unwrap();
    github.page(&session, &group(), 1).await.unwrap();
    assert_eq!(github.quotas(), [(4242, 499)]);
    assert!(matches!(github.session(&group()).await, Err(Error::Later { .. })));
}
