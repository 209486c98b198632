//! The log of deliveries, and the runs that wait.

use ostler_core::reconciler::{
    Again, Asked, Deliveries, Reruns, RunStatus, WaitingRuns, WorkflowRun,
};

use super::*;

const LOG: &str = "GET /app/hook/deliveries";

fn entry(id: u64, code: i64) -> Value {
    json!({"id": id, "guid": "0b989ba4-242f-11e5-81e1-c7b6966d2516", "delivered_at": NOW,
        "redelivery": true, "duration": 0.3, "status": "x", "status_code": code,
        "event": "workflow_job", "action": "queued", "installation_id": 1, "repository_id": 2,
        "throttled_at": null})
}

#[tokio::test]
async fn the_log_is_read_page_by_page_as_the_app_itself_and_ids_keep_their_last_digit() {
    let big = (1 << 62) + 1;
    let mut first = ok(json!([entry(big, 0), {"id": "odd"}, null, entry(3, 202)]));
    let next = "<https://elsewhere.example/x?per_page=100&cursor=v1_12%3D>; rel=\"next\"";
    first.headers = vec![("link", format!("<https://a.example/?cursor=no>; rel=\"prev\", {next}"))];
    let server = Server::start().await.on(LOG, [first, ok(json!([]))]);
    let github = server.github();
    let page = github.page(None).await.unwrap();
    let read: Vec<_> = page.entries.iter().map(|it| (it.id, it.ok, it.again, it.of_job)).collect();
    assert_eq!(read, [(big, false, true, true), (3, true, true, true)]);
    assert_eq!(page.next.as_deref(), Some("v1_12%3D"));
    let last = github.page(page.next.as_deref()).await.unwrap();
    assert_eq!((last.entries.len(), last.next), (0, None));
    let calls = server.calls();
    assert_eq!(calls[1].query, "per_page=100&cursor=v1_12%3D");
    assert!(calls.iter().all(|call| app_of(&call.bearer).is_some()), "no installation's token");
}

#[tokio::test]
async fn i6_a_log_that_goes_on_is_not_at_its_end_because_its_cursor_cannot_be_read() {
    for cursor in ["?cursor=a%20b+c", "?per_page=100", ""] {
        let mut first = ok(json!([entry(3, 202)]));
        first.headers = vec![("link", format!("<https://a.example/{cursor}>; rel=\"next\""))];
        let server = Server::start().await.on(LOG, [first]);
        let page = server.github().page(None).await;
        assert!(matches!(page, Err(Error::Transient(_))), "{cursor}");
    }
}

#[tokio::test]
async fn ra_14_each_page_is_asked_for_with_a_signature_of_its_own() {
    let server = Server::start().await.on(LOG, [ok(json!([]))]);
    let github = server.github();
    github.page(None).await.unwrap();
    server.clock.pass(3600);
    github.page(None).await.unwrap();
    let calls = server.calls();
    assert_ne!(calls[0].bearer, calls[1].bearer);
}

#[tokio::test]
async fn a_delivery_is_sent_again_once_for_each_call() {
    let path = |id: u64| format!("POST /app/hook/deliveries/{id}/attempts");
    let mut limit = says(429, "rate limit");
    limit.headers = vec![("retry-after", "77".into())];
    let server = Server::start()
        .await
        .on(&path(1), [status(202, json!({}))])
        .on(&path(2), [says(404, "Not Found")])
        .on(&path(3), [limit])
        .on(&path(4), [says(502, "Bad Gateway")]);
    let github = server.github();
    assert!(github.redeliver(1).await.unwrap());
    assert!(!github.redeliver(2).await.unwrap());
    let limited = github.redeliver(3).await;
    let wait = Duration::from_secs(77);
    assert!(matches!(limited, Err(Error::Later { after, .. }) if after == wait), "{limited:?}");
    assert!(matches!(github.redeliver(4).await, Err(Error::Transient(_))));
    assert_eq!(server.calls().len(), 4, "none is repeated");
}

#[tokio::test]
async fn a_list_of_runs_that_has_not_changed_is_known_by_its_tag() {
    let runs = "GET /repos/Acme/widgets/actions/runs";
    let mut list = ok(json!({"total_count": 201, "workflow_runs": [
        {"id": 5_000_000_000_i64, "repository": {"private": false}}, {"id": null}]}));
    list.headers = vec![("etag", "W/\"abc\"".into())];
    let server = Server::start()
        .await
        .on(runs, [list, status(304, Value::Null), ok(json!({"workflow_runs": []}))]);
    let github = server.github();
    let first = github.runs(&at(), RunStatus::Queued, 1, None).await.unwrap().unwrap();
    assert_eq!((first.runs, first.public, first.pages), (vec![5_000_000_000], true, 3));
    let tag = first.tag.as_deref();
    assert_eq!(tag, Some("W/\"abc\""));
    assert_eq!(github.runs(&at(), RunStatus::Queued, 1, tag).await.unwrap(), None);
    assert_eq!(github.runs(&at(), RunStatus::Queued, 3, None).await.unwrap().unwrap().pages, 1);
    let asked: Vec<_> = server.calls().into_iter().filter(|call| call.what == runs).collect();
    assert_eq!(asked[0].query, "status=queued&per_page=100");
    assert_eq!(asked[2].query, "status=queued&per_page=100&page=3");
    assert_eq!((asked[0].tag.as_deref(), asked[1].tag.as_deref()), (None, tag));
}

#[tokio::test]
async fn i6_a_refused_list_is_an_error_and_never_an_empty_one() {
    let runs = "GET /repos/Acme/widgets/actions/runs";
    let answers = [says(403, "no"), says(500, "x"), ok(json!({})), says(404, "Not Found")];
    let server = Server::start().await.on(runs, answers);
    let github = server.github();
    for _ in 0..4 {
        assert!(github.runs(&at(), RunStatus::InProgress, 1, None).await.is_err());
    }
}

#[tokio::test]
async fn the_jobs_of_a_run_come_as_github_writes_them() {
    let jobs = "GET /repos/Acme/widgets/actions/runs/9/jobs";
    let job = json!({"id": 1, "status": "queued", "new": {"field": 1}});
    let page = |jobs: &[&Value]| ok(json!({"total_count": 2, "jobs": jobs}));
    let server = Server::start().await.on(jobs, [page(&[&job]), page(&[&job])]);
    let github = server.github();
    assert_eq!(github.jobs(&at(), 9).await.unwrap(), [job.clone(), job]);
    assert_eq!(github.jobs(&at(), 10).await.unwrap(), Vec::<Value>::new(), "404: deleted since");
}

#[tokio::test]
async fn a_run_is_over_when_github_says_completed() {
    let run = "GET /repos/Acme/widgets/actions/runs/9";
    let server = Server::start().await.on(
        run,
        [
            ok(json!({"id": 9, "run_attempt": 2, "status": "in_progress", "conclusion": null})),
            ok(json!({"run_attempt": 3, "status": "completed", "conclusion": "cancelled"})),
            ok(json!({"status": "completed"})),
            says(403, "no"),
        ],
    );
    let github = server.github();
    let going_on = WorkflowRun { attempt: 2, completed: false, cancelled: false };
    assert_eq!(github.run(&at(), 9).await.unwrap(), Some(going_on));
    let over = WorkflowRun { attempt: 3, completed: true, cancelled: true };
    assert_eq!(github.run(&at(), 9).await.unwrap(), Some(over));
    assert!(matches!(github.run(&at(), 9).await, Err(Error::Transient(_))), "no attempt");
    assert!(github.run(&at(), 9).await.is_err());
    assert_eq!(github.run(&at(), 10).await.unwrap(), None, "404");
}

#[tokio::test]
async fn a_job_is_run_again_once_for_each_call_and_every_refusal_is_understood() {
    let job = "POST /repos/Acme/widgets/actions/jobs/7/rerun";
    let all = "POST /repos/Acme/widgets/actions/runs/9/rerun-failed-jobs";
    let mut limit = says(403, "You have exceeded a secondary rate limit.");
    limit.headers = vec![("retry-after", "77".into())];
    let server = Server::start()
        .await
        .on(
            job,
            [
                status(201, json!({})),
                says(403, "The workflow run containing this job is already running"),
                says(403, "Only jobs from the current attempt can be re-run"),
                says(403, "Resource not accessible by integration"),
                says(404, "Not Found"),
                says(502, "Bad Gateway"),
                says(422, "odd"),
                limit,
            ],
        )
        .on(
            all,
            [
                status(201, json!({})),
                says(403, "This workflow is already running"),
                says(403, "This workflow run cannot be retried"),
                says(
                    403,
                    "Unable to retry this workflow run because it was created over a month ago",
                ),
            ],
        );
    let github = server.github();
    let place = at();
    let one = || github.rerun(&place, 9, Again::Job(JobId(7)));
    assert_eq!(one().await.unwrap(), Asked::Begun);
    assert_eq!(one().await.unwrap(), Asked::Running);
    assert_eq!(one().await.unwrap(), Asked::Superseded);
    let Asked::NotAllowed(text) = one().await.unwrap() else { panic!("a missing permission") };
    assert!(text.contains("'Actions: read and write'"), "{text}");
    assert_eq!(one().await.unwrap(), Asked::Gone);
    assert!(matches!(one().await, Err(Error::Transient(_))), "it may have been made");
    assert!(matches!(one().await, Err(Error::Permanent(_))));
    let failed = || github.rerun(&place, 9, Again::Failed);
    assert_eq!(failed().await.unwrap(), Asked::Begun);
    assert_eq!(failed().await.unwrap(), Asked::Running);
    for _ in 0..2 {
        assert!(matches!(failed().await.unwrap(), Asked::Refused(_)));
    }
    let limited = one().await;
    let wait = Duration::from_secs(77);
    assert!(matches!(limited, Err(Error::Later { after, .. }) if after == wait), "{limited:?}");
    let posted = server.calls().iter().filter(|call| call.what == job || call.what == all).count();
    assert_eq!(posted, 12, "none is repeated");
}
