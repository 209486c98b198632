//! Several Apps: which is chosen, and when another one.

use std::collections::BTreeSet;

use super::*;
use crate::app::Whose;
use crate::pool::{Pool, Resource};

/// Apps 1, 2 and 3, each with an installation at Acme (51, 52, 53) and a token of its own (`one`, `two`,
/// `three`).
async fn apps() -> Server {
    let mut server = Server::start().await;
    for (app, token) in [(1, "one"), (2, "two"), (3, "three")] {
        let installation = 50 + app;
        server = server
            .on(
                &format!("app {app}: GET /orgs/Acme/installation"),
                [ok(json!({"id": installation}))],
            )
            .on(
                &format!("app {app}: POST /app/installations/{installation}/access_tokens"),
                [status(201, json!({"token": token, "expires_at": null}))],
            );
    }
    server
}

fn pool(server: &Server, apps: &[u64]) -> Pool<TestClock> {
    let credential = |id: &u64| AppCredential { id: *id, key: Secret::new(KEY) };
    let apps: Vec<_> = apps.iter().map(credential).collect();
    let api = format!("{}/api/v3", server.url);
    Pool::new(&api, &apps, server.clock.clone()).unwrap().starting_with(0)
}

const LIST: &str = "GET /orgs/Acme/things";

/// An answer that says how much is left, until half an hour from now.
fn left(remaining: u64) -> Answer {
    limited(200, remaining, 1800)
}

fn limited(code: u16, remaining: u64, reset_in: i64) -> Answer {
    let reset = Timestamp::parse(NOW).unwrap().seconds() + reset_in;
    let headers = vec![
        ("x-ratelimit-limit", "5000".to_owned()),
        ("x-ratelimit-remaining", remaining.to_string()),
        ("x-ratelimit-reset", reset.to_string()),
    ];
    Answer { headers, ..says(code, "API rate limit exceeded for installation ID 5.") }
}

/// One piece of work: choose, and send. Answers whose token it went by.
async fn work(server: &Server, pool: &Pool<TestClock>) -> Result<String> {
    let acme = Whose::owner("Acme");
    let chosen = pool.choose(acme, Resource::Core).await?;
    let sent = pool.send(chosen, acme, &Method::GET, "/orgs/Acme/things", Carried::Nothing).await?;
    assert!(sent.is_ok());
    Ok(server.calls().last().unwrap().bearer.clone())
}

#[tokio::test]
async fn j62_without_additional_apps_the_first_is_the_only_choice() {
    let server = apps().await.on(LIST, [limited(403, 0, -10)]);
    let pool = pool(&server, &[1]);
    for _ in 0..3 {
        assert_eq!(work(&server, &pool).await.unwrap(), "one");
        server.clock.pass(61);
    }
}

#[tokio::test]
async fn j64_the_app_with_the_most_quota_left_goes_first_and_an_unknown_quota_is_the_most() {
    let server = apps()
        .await
        .on(&format!("one: {LIST}"), [left(100), left(99)])
        .on(&format!("two: {LIST}"), [left(3000), left(90)])
        .on(&format!("three: {LIST}"), [left(2000), left(80)]);
    let pool = pool(&server, &[1, 2, 3]);
    let mut by = Vec::new();
    for _ in 0..6 {
        by.push(work(&server, &pool).await.unwrap());
    }
    assert_eq!(by, ["one", "two", "three", "two", "three", "one"]);
    let seen: Vec<_> = pool.quotas().iter().map(|(app, quota)| (*app, quota.remaining)).collect();
    assert_eq!(seen, [(1, 99), (2, 90), (3, 80)]);
}

#[tokio::test]
async fn j64_not_every_process_begins_with_the_same_app() {
    let server = apps().await.on(LIST, [left(1)]);
    let mut first = BTreeSet::new();
    for start in 0..3 {
        let pool = pool(&server, &[1, 2, 3]).starting_with(start);
        first.insert(work(&server, &pool).await.unwrap());
    }
    assert_eq!(first.len(), 3);
    let credential = |id| AppCredential { id, key: Secret::new(KEY) };
    let all = [credential(1), credential(2), credential(3)];
    let mut drawn = BTreeSet::new();
    for _ in 0..100 {
        let pool = Pool::new("http://127.0.0.1/api/v3", &all, server.clock.clone()).unwrap();
        drawn.insert(pool.start());
    }
    assert_eq!(drawn, BTreeSet::from([0, 1, 2]), "by chance, in every process anew");
}

#[tokio::test]
async fn j65_a_limited_app_is_passed_over_for_a_minute_while_there_is_another() {
    let secondary = || Answer {
        headers: vec![("retry-after", "5".to_owned())],
        ..says(403, "You have exceeded a secondary rate limit.")
    };
    let server = apps()
        .await
        .on(&format!("one: {LIST}"), [secondary(), left(4000)])
        .on(&format!("two: {LIST}"), [left(10)]);
    let pool = pool(&server, &[1, 2]);
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
    for _ in 0..2 {
        server.clock.pass(25);
        assert_eq!(work(&server, &pool).await.unwrap(), "two", "also after the five seconds");
    }
    server.clock.pass(11);
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
}

#[tokio::test]
async fn j65_ra_01_the_time_that_github_gave_is_honoured_when_no_other_app_is_left() {
    let server = apps()
        .await
        .on(&format!("one: {LIST}"), [limited(403, 0, 1800), left(4000)])
        .on(&format!("two: {LIST}"), [limited(200, 0, 900), left(4000)]);
    let pool = pool(&server, &[1, 2]);
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
    assert_eq!(work(&server, &pool).await.unwrap(), "two", "its last call");
    let sent = server.calls().len();
    let error = work(&server, &pool).await.unwrap_err();
    let Error::Later { after, .. } = error else { panic!("{error}") };
    assert_eq!((after.as_secs(), server.calls().len()), (901, sent), "and nothing is sent");
    server.clock.pass(902);
    assert_eq!(work(&server, &pool).await.unwrap(), "two");
    server.clock.pass(900);
    assert_eq!(work(&server, &pool).await.unwrap(), "one", "unknown again, so the fullest");
}

#[tokio::test]
async fn ra_02_ra_08_a_secondary_limit_without_a_time_is_waited_out_for_a_minute() {
    let limit = says(403, "You have exceeded a secondary rate limit. Please wait a few minutes.");
    let server = apps().await.on(LIST, [limit, left(4000)]);
    let pool = pool(&server, &[1]);
    work(&server, &pool).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(work(&server, &pool).await, Err(Error::Later { .. })));
        server.clock.pass(31);
    }
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
}

#[tokio::test]
async fn j66_after_a_failed_sign_in_another_app_is_tried_each_once() {
    let server = apps()
        .await
        .on("app 4: GET /orgs/Acme/installation", [says(404, "Not Found")])
        .on("app 5: GET /orgs/Acme/installation", [says(500, "")])
        .on(LIST, [left(50)]);
    let pool = pool(&server, &[4, 5, 1]);
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
    let before = server.calls().len();
    assert_eq!(work(&server, &pool).await.unwrap(), "one", "the others cool down");
    assert_eq!(server.calls().len(), before + 1, "and are not asked meanwhile");
    server.clock.pass(61);
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
    assert!(server.calls().len() > before + 2, "their turn again, as their quotas are unknown");

    let none = self::pool(&server, &[4, 5]);
    let before = server.calls().len();
    let error = work(&server, &none).await.unwrap_err();
    assert!(matches!(error, Error::Transient(_)), "the last failure: {error}");
    let asked: Vec<_> = server.calls()[before..].iter().map(|call| app_of(&call.bearer)).collect();
    assert_eq!(asked, [Some(4), Some(4), Some(5)], "organization, user; then the other App");
}

#[tokio::test]
async fn j67_jwt_token_and_calls_are_of_one_app_and_the_installation_is_looked_up_for_the_owner() {
    let server = apps().await.on(LIST, [left(50)]);
    let pool = pool(&server, &[2, 1]);
    work(&server, &pool).await.unwrap();
    let calls: Vec<_> =
        server.calls().into_iter().map(|call| (app_of(&call.bearer), call.what)).collect();
    assert_eq!(
        calls,
        [
            (Some(2), "GET /orgs/Acme/installation".to_owned()),
            (Some(2), "POST /app/installations/52/access_tokens".to_owned()),
            (None, LIST.to_owned()),
        ]
    );
    assert_eq!(server.calls()[2].bearer, "two");
}

#[tokio::test]
async fn j67_an_events_installation_is_the_first_apps_and_no_others() {
    let server = apps()
        .await
        .on("app 1: POST /app/installations/5/access_tokens", [ok(json!({"token": "event"}))])
        .on(&format!("event: {JOB}"), [Answer { headers: left(3).headers, ..job() }])
        .on(&format!("two: {JOB}"), [Answer { headers: left(4).headers, ..job() }]);
    let settings: AppSettings =
        serde_json::from_value(json!({"app_id": 1, "github_url": server.url})).unwrap();
    let more = [AppCredential { id: 2, key: Secret::new(KEY) }];
    let github = GitHub::new(&settings, &Secret::new(KEY), &more, server.clock.clone()).unwrap();
    let github = GitHub { pool: github.pool.starting_with(0), ..github };
    for _ in 0..2 {
        github.job(&at(), JobId(7)).await.unwrap();
    }
    let by: Vec<_> =
        server.calls().into_iter().filter(|c| c.what == JOB).map(|c| c.bearer).collect();
    assert_eq!(by, ["event", "two"], "installation 5 of the event, and 52 by a look-up");
}

#[tokio::test]
async fn j68_a_limited_call_of_a_session_is_not_repeated_by_itself() {
    let server = apps().await.on(LIST, [limited(403, 0, 1800)]);
    let pool = pool(&server, &[1, 2]);
    work(&server, &pool).await.unwrap();
    assert_eq!(server.asked().iter().filter(|what| *what == LIST).count(), 1);
}

#[tokio::test]
async fn a_limited_call_of_any_other_function_goes_by_another_app_at_once() {
    let server = apps()
        .await
        .on(&format!("one: {LIST}"), [limited(403, 0, 1800)])
        .on(&format!("two: {LIST}"), [left(100), limited(429, 0, 1800)]);
    let pool = pool(&server, &[1, 2]);
    let acme = Whose::owner("Acme");
    let reply = pool.get(acme, "/orgs/Acme/things").await.unwrap();
    assert_eq!((reply.status, server.calls().last().unwrap().bearer.as_str()), (200, "two"));
    let reply = pool.get(acme, "/orgs/Acme/things").await.unwrap();
    assert_eq!(reply.status, 429, "each once, and then GitHub's word");
    assert!(matches!(pool.get(acme, "/orgs/Acme/things").await, Err(Error::Later { .. })));
}

#[tokio::test]
async fn j69_the_choice_comes_before_what_is_kept_and_a_failed_sign_in_is_not_kept() {
    let server = apps()
        .await
        .on(&format!("one: {LIST}"), [left(500), left(20)])
        .on(&format!("two: {LIST}"), [left(300)])
        .on("app 4: GET /orgs/Acme/installation", [says(500, ""), ok(json!({"id": 54}))])
        .on("app 4: POST /app/installations/54/access_tokens", [ok(json!({"token": "four"}))])
        .on(&format!("four: {LIST}"), [left(1)]);
    let pool = pool(&server, &[1, 2]);
    let mut by = Vec::new();
    for _ in 0..4 {
        by.push(work(&server, &pool).await.unwrap());
    }
    assert_eq!(by, ["one", "two", "one", "two"], "a token in hand pins nothing");
    assert_eq!(server.minted(), 2, "and each is kept for the process");
    let fourth = self::pool(&server, &[4]);
    assert!(work(&server, &fourth).await.is_err());
    assert_eq!(work(&server, &fourth).await.unwrap(), "four");
}

#[tokio::test]
async fn ra_17_tokens_of_apps_and_owners_are_not_mixed_up() {
    let server = apps()
        .await
        .on("app 1: GET /orgs/Beta/installation", [ok(json!({"id": 61}))])
        .on("app 1: POST /app/installations/61/access_tokens", [ok(json!({"token": "beta"}))])
        .on(LIST, [left(50)])
        .on("GET /orgs/Beta/things", [left(50)]);
    let pool = pool(&server, &[1]);
    for _ in 0..2 {
        for (owner, token) in [("Acme", "one"), ("Beta", "beta")] {
            let whose = Whose::owner(owner);
            let chosen = pool.choose(whose, Resource::Core).await.unwrap();
            let path = format!("/orgs/{owner}/things");
            let _ = pool.send(chosen, whose, &Method::GET, &path, Carried::Nothing).await.unwrap();
            assert_eq!(server.calls().last().unwrap().bearer, token);
        }
    }
}

/// Owners Acme and Beta, for both of which App 1 is installed.
async fn two_owners() -> Server {
    apps()
        .await
        .on("app 1: GET /orgs/Beta/installation", [ok(json!({"id": 61}))])
        .on("app 1: POST /app/installations/61/access_tokens", [ok(json!({"token": "beta"}))])
        .on("GET /orgs/Beta/things", [left(4000)])
}

#[tokio::test]
async fn jp_03_ra_01_an_owner_whose_quota_is_used_up_costs_other_owners_nothing() {
    for answer in [limited(200, 0, 1800), limited(403, 0, 1800), left(499)] {
        let server = two_owners().await.on(LIST, [answer]);
        let pool = pool(&server, &[1]).leaving(10);
        work(&server, &pool).await.unwrap();
        assert!(matches!(work(&server, &pool).await, Err(Error::Later { .. })));
        let beta = Whose::owner("Beta");
        let chosen = pool.choose(beta, Resource::Core).await.unwrap();
        let path = "/orgs/Beta/things";
        let _ = pool.send(chosen, beta, &Method::GET, path, Carried::Nothing).await.unwrap();
        let still = work(&server, &pool).await.unwrap_err();
        assert!(still.to_string().contains("Acme"), "and Beta's plenty is not Acme's: {still}");
        assert!(pool.quotas()[0].1.remaining < 500, "the least is told of");
    }
}

#[tokio::test]
async fn a_reset_that_never_comes_stops_an_app_for_two_hours_and_not_for_ever() {
    for remaining in [0, 100] {
        let far = limited(200, remaining, 1_000_000_000_000);
        let server = apps().await.on(LIST, [far, left(4000)]);
        let pool = pool(&server, &[1]).leaving(10);
        work(&server, &pool).await.unwrap();
        assert!(matches!(work(&server, &pool).await, Err(Error::Later { .. })));
        server.clock.pass(7202);
        assert!(work(&server, &pool).await.is_ok(), "{remaining}");
    }
}

#[tokio::test]
async fn j66_ra_10_an_app_that_is_not_admitted_to_a_call_lets_others_go_first() {
    let full = |code| Answer { headers: left(4999).headers, ..says(code, "no") };
    for code in [401, 403] {
        let server = apps()
            .await
            .on(&format!("one: {LIST}"), [full(code)])
            .on(&format!("two: {LIST}"), [left(1000)]);
        let pool = pool(&server, &[1, 2]);
        let mut by = Vec::new();
        for _ in 0..4 {
            by.push(work(&server, &pool).await.unwrap());
        }
        assert_eq!(by, ["one", "two", "two", "two"], "{code}");
    }
}

#[tokio::test]
async fn an_app_that_is_listed_twice_is_one_app() {
    let server = apps().await.on(LIST, [limited(403, 0, 1800)]);
    let pool = pool(&server, &[1, 1, 1]);
    work(&server, &pool).await.unwrap();
    let sent = server.calls().len();
    assert!(matches!(work(&server, &pool).await, Err(Error::Later { .. })));
    assert_eq!((server.calls().len(), pool.quotas().len()), (sent, 1), "GitHub said to wait");
}

#[tokio::test]
async fn ra_18_an_app_with_little_left_is_not_the_janitors() {
    let server = apps().await.on(LIST, [left(500), left(499), left(4000)]);
    let pool = pool(&server, &[1]).leaving(10);
    work(&server, &pool).await.unwrap();
    work(&server, &pool).await.unwrap();
    let error = work(&server, &pool).await.unwrap_err();
    let Error::Later { after, reason } = error else { panic!("{error}") };
    assert_eq!(after.as_secs(), 1800);
    assert!(reason.contains("10 %"), "{reason}");
    server.clock.pass(1801);
    assert!(work(&server, &pool).await.is_ok(), "a new hour");
}

#[tokio::test]
async fn gh_07_an_app_of_a_server_without_limits_is_never_used_up() {
    let server = apps().await.on(LIST, [ok(json!({}))]);
    let pool = pool(&server, &[1, 2]).leaving(10);
    for _ in 0..5 {
        assert_eq!(work(&server, &pool).await.unwrap(), "one");
    }
    assert!(pool.quotas().is_empty());
}

#[tokio::test]
async fn registrations_have_a_quota_of_their_own() {
    let used_up = limited(201, 0, 1800);
    let jit = Answer { body: registered().body, ..used_up };
    let server = apps()
        .await
        .on(&format!("one: {ORG_JIT}"), [jit])
        .on(&format!("two: {ORG_JIT}"), [registered()])
        .on(LIST, [left(50)]);
    let pool = pool(&server, &[1, 2]);
    let (acme, path) = (Whose::owner("Acme"), "/orgs/Acme/actions/runners/generate-jitconfig");
    let post = || pool.call(acme, &Method::POST, path, Carried::Nothing);
    assert!(post().await.unwrap().unwrap().is_success());
    assert!(post().await.unwrap().unwrap().is_success());
    let by: Vec<_> =
        server.calls().into_iter().filter(|c| c.what == ORG_JIT).map(|c| c.bearer).collect();
    assert_eq!(by, ["one", "two"], "the first has used its registrations up");
    server.clock.pass(61);
    assert_eq!(work(&server, &pool).await.unwrap(), "one", "and has all its other calls");
}

#[tokio::test]
async fn a_secondary_limit_is_of_all_calls_of_its_app() {
    let secondary =
        says(403, "You have exceeded a secondary rate limit. Please wait a few minutes.");
    let server = apps()
        .await
        .on(LIST, [secondary])
        .on(&format!("one: {ORG_JIT}"), [registered()])
        .on(&format!("two: {ORG_JIT}"), [registered()]);
    let pool = pool(&server, &[1, 2]);
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
    let (acme, path) = (Whose::owner("Acme"), "/orgs/Acme/actions/runners/generate-jitconfig");
    assert!(
        pool.call(acme, &Method::POST, path, Carried::Nothing).await.unwrap().unwrap().is_success()
    );
    assert_eq!(server.calls().last().unwrap().bearer, "two", "registrations as well");
}

#[tokio::test]
async fn a_repository_is_seen_if_any_app_sees_it_and_unseen_only_if_all_say_so() {
    let path = "GET /repos/Acme/rocket/installation";
    let whose = Whose { repository: Some("rocket"), ..Whose::owner("Acme") };
    for (answers, seen) in [
        ([says(404, "Not Found"), ok(json!({"id": 52}))], Some(true)),
        ([says(500, ""), ok(json!({"id": 52}))], Some(true)),
        ([says(404, "Not Found"), says(404, "Not Found")], Some(false)),
        ([says(404, "Not Found"), says(500, "")], None),
        ([says(500, ""), says(404, "Not Found")], None),
    ] {
        let [first, second] = answers;
        let server = apps()
            .await
            .on(&format!("app 1: {path}"), [first])
            .on(&format!("app 2: {path}"), [second]);
        assert_eq!(pool(&server, &[1, 2]).installed(whose).await.ok(), seen);
    }
}

#[tokio::test]
async fn an_additional_app_whose_key_is_none_costs_only_itself() {
    let server = apps().await.on(LIST, [left(50)]);
    let credential = |id, key| AppCredential { id, key: Secret::new(key) };
    let api = format!("{}/api/v3", server.url);
    let apps = [credential(1, KEY), credential(2, "no key")];
    let pool = Pool::new(&api, &apps, server.clock.clone()).unwrap();
    assert_eq!(work(&server, &pool).await.unwrap(), "one");
    let reversed = [credential(2, "no key"), credential(1, KEY)];
    assert!(Pool::new(&api, &reversed, server.clock.clone()).is_err(), "the first has to be one");
}

/// A clock that notes how long it was asked to wait, and does not.
#[derive(Clone)]
struct Patient(TestClock, Arc<Mutex<Duration>>);

impl Clock for Patient {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn real(&self, span: Duration) -> Duration {
        *self.1.lock().unwrap() += span;
        Duration::ZERO
    }
}

#[tokio::test]
async fn calls_are_paced_for_each_app() {
    let server =
        apps().await.on(LIST, [ok(json!({}))]).on("DELETE /orgs/Acme/things", [ok(json!({}))]);
    let clock = Patient(server.clock.clone(), Arc::default());
    let credential = |id| AppCredential { id, key: Secret::new(KEY) };
    let apps = [credential(1), credential(2)];
    let api = format!("{}/api/v3", server.url);
    let pool = Pool::new(&api, &apps, clock.clone()).unwrap().starting_with(0);
    let acme = Whose::owner("Acme");
    let chosen = pool.choose(acme, Resource::Core).await.unwrap();
    for _ in 0..100 {
        let _ = pool
            .send(chosen, acme, &Method::GET, "/orgs/Acme/things", Carried::Nothing)
            .await
            .unwrap();
    }
    assert_eq!(*clock.1.lock().unwrap(), Duration::ZERO, "a burst");
    let _ = pool
        .send(chosen, acme, &Method::DELETE, "/orgs/Acme/things", Carried::Nothing)
        .await
        .unwrap();
    assert_eq!(*clock.1.lock().unwrap(), Duration::from_millis(750), "five points more");
}
