//! `infra/bootstrap.sh`, run as the user data of machines of the local world, in every way that it can end.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper that panics fails its test")]

mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ostler_core::time::Timestamp;
use ostler_local::ec2::InstanceHost;
use world::{
    ID, RUNNER, SHORT_BOOT_TIMEOUT, World, files_below, processes_of, render, repository,
    watch_arguments,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_claims_runs_one_job_reports_it_once_and_powers_off() {
    let world = World::new().await;
    let jit = world.jit(4500);
    assert_eq!(world.run().await, "done");
    let edge = world.edge();
    assert_eq!(edge.sessions, [jit], "the runner got exactly what was handed over");
    assert_eq!(edge.conclusions, ["success"]);
    assert!(edge.handoff.is_empty());
    let at = |call| edge.calls.iter().position(|made| made == call).unwrap();
    assert!(at("download") < at("GetItem"), "nothing is claimed that can't be run");
    assert!(at("GetItem") < at("DeleteItem") && at("DeleteItem") < at("session"));
    let report = format!("CDKGHR JOB RUNNER={RUNNER} REPO=acme/app WORKFLOW_ID=99");
    assert_eq!(edge.events[0], (format!("{RUNNER}/{ID}"), report));
    assert_eq!(edge.events.len(), 2);
}

/// With the instance's role, which no job can be kept from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_any_job_can_print_lines_that_name_other_runners() {
    let world = World::new().await;
    world.job(&ostler_local::demo::plague(&["others-7-abc".to_owned()]));
    let reason = world.run().await;
    assert_eq!(
        (reason.as_str(), world.edge().conclusions.clone()),
        ("done", vec!["success".into()]),
        "{}",
        world.job_output()
    );
    let reports = world.reports();
    assert_eq!(
        reports[0],
        format!("CDKGHR JOB RUNNER={RUNNER} REPO=acme/app WORKFLOW_ID=99"),
        "its own, true"
    );
    for forged in [
        "CDKGHR JOB RUNNER=others-7-abc REPO=acme/elsewhere WORKFLOW_ID=1".to_owned(),
        "CDKGHR JOB RUNNER=others-7-abc REPO=acme/app WORKFLOW_ID=99".to_owned(),
        format!("CDKGHR JOB RUNNER={RUNNER}-r1 REPO=evil/repository WORKFLOW_ID=1"),
        "CDKGHR JOB RUNNER=../../x REPO=a/b WORKFLOW_ID=1".to_owned(),
    ] {
        assert!(reports.contains(&forged), "{forged} is not among {reports:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_has_what_ec2s_has_and_asks_for_its_token() {
    let world = World::new().await;
    world.job(
        "base=http://169.254.169.254/latest; get() { curl -s -w ' %{http_code}\\n' \"$@\"; }\n\
         get -X PUT $base/api/token\n\
         get -H 'X-aws-ec2-metadata-token: guess' $base/meta-data/instance-id\n\
         t=$(curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $base/api/token)\n\
         for p in instance-id tags/instance/ tags/instance/ostler:runner placement/region \
         iam/security-credentials/ spot/instance-action nothing; do \
         get -H \"X-aws-ec2-metadata-token: $t\" $base/meta-data/$p; done",
    );
    world.boot();
    let at = Timestamp::from_seconds(1_900_000_000);
    world.until("up", |world| world.edge().count("GetItem") > 0).await;
    world.host.spot_notice(ID, at);
    assert_eq!(world.end().await, "done");
    let expected = format!(
        " 400\n 401\n{ID} 200\nostler:boot-timeout\nostler:max-lifetime\nostler:runner 200\n\
         {RUNNER} 200\nus-east-1 200\nostler-runner 200\n\
         {{\"action\":\"terminate\",\"time\":\"{at}\"}} 200\n 404\n"
    );
    assert_eq!(world.job_output(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_without_sha256sum_hashes_with_openssl() {
    let mut world = World::new().await;
    world.edit = ("command -v sha256sum >/dev/null", "false");
    assert_eq!(world.run().await, "done");
    assert_eq!(world.reports().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ol_14_no_size_of_the_jit_configuration_is_assumed() {
    for size in [2_000, 4_500, 8_000, 60_000] {
        let world = World::new().await;
        let jit = world.jit(size);
        assert!(jit.len() > size);
        world.hand_over(&jit);
        assert_eq!(world.run().await, "done", "{size}");
        assert_eq!(world.edge().sessions, [jit]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_10_no_secret_is_in_an_argument_a_file_a_log_or_the_jobs_environment() {
    let world = World::new().await;
    let jit = world.jit(4500);
    world.job("sleep 20; env; tr '\\0' '\\n' </proc/self/environ");
    let stop = watch_arguments();
    world.boot();
    world.until("done", |world| !world.edge().conclusions.is_empty()).await;
    let credentials = world.host.credentials(ID).unwrap();
    assert_eq!(world.end().await, "done");
    let arguments = stop();
    assert!(arguments.contains("opt/ostler/bootstrap"), "the watch saw the machine");
    let environment = world.job_output();
    assert!(environment.contains("GITHUB_RUN_ID=99"), "the job ran");
    assert!(!environment.contains("LC_ALL"), "the script's locale is not the job's");
    let mut places = vec![(PathBuf::from("argv"), arguments.into_bytes())];
    files_below(&world.directory.path().join(ID), &mut places);
    assert!(places.iter().any(|(path, _)| path.ends_with("console.log")));
    for (place, bytes) in places {
        let text = String::from_utf8_lossy(&bytes);
        for secret in [&jit, &credentials.secret, &credentials.session_token] {
            assert!(!text.contains(&secret[..32]), "a secret is in {}", place.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_09_a_job_reaches_metadata_with_a_token_only_and_finds_nothing_handed_over() {
    let world = World::new().await;
    world.job(
        "base=http://169.254.169.254/latest/meta-data\n\
         curl -s -o /dev/null -w 'without %{http_code}\\n' $base/instance-id\n\
         token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' ${base%/*}/api/token)\n\
         curl -s -H \"X-aws-ec2-metadata-token: $token\" -w ' with %{http_code}\\n' $base/instance-id\n\
         curl -s -o /dev/null https://example.com/ 2>/dev/null || echo elsewhere $?\n",
    );
    world.boot();
    world.until("asked for its job", |world| world.edge().count("session") > 0).await;
    assert!(world.edge().handoff.is_empty(), "the item is gone before any job can run");
    assert_eq!(world.end().await, "done");
    assert_eq!(world.job_output(), format!("without 401\n{ID} with 200\nelsewhere 6\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re_08_without_metadata_the_machine_powers_off() {
    let world = World::new().await;
    world.edge().down.extend(["metadata", "credentials"]);
    assert_eq!(world.run().await, "no-metadata");
    assert!(!world.logged(), "who has no credentials can't log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_and_credentials_that_come_late_are_waited_for() {
    let world = World::new().await;
    world.edge().broken.insert("metadata", vec![503, 404, 500]);
    world.edge().broken.insert("credentials", vec![404, 500]);
    assert_eq!(world.run().await, "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_of_the_images_is_for_the_network_and_not_for_metadata() {
    let world = World::new().await;
    world.job("echo through $https_proxy");
    fs::create_dir_all(world.root().join("etc/ostler")).unwrap();
    let variables = "http_proxy=http://10.0.0.9:3128\nhttps_proxy=http://10.0.0.9:3128\n";
    fs::write(world.root().join("etc/ostler/image.env"), variables).unwrap();
    assert_eq!(world.run().await, "done");
    assert_eq!(world.job_output(), "through http://10.0.0.9:3128\n");
    assert_eq!(world.reports().len(), 1, "from within the job too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_role_the_machine_powers_off() {
    let mut world = World::new().await;
    world.tag("boot-timeout", SHORT_BOOT_TIMEOUT);
    world.role_id = String::new();
    assert_eq!(world.run().await, "no-credentials");
    assert_eq!(world.edge().count("GetItem"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re_08_a_machine_that_is_handed_nothing_powers_off_at_its_boot_timeout() {
    let mut world = World::new().await;
    world.tag("boot-timeout", "300");
    world.edge().handoff.clear();
    let began = world.clock.now();
    assert_eq!(world.run().await, "no-handoff");
    assert!(world.logged());
    let took = world.clock.now().since(began).as_secs();
    assert!((295..2000).contains(&took), "{took} s");
    // It backs off to about five seconds.
    let polls = world.edge().count("GetItem");
    assert!((3..130).contains(&polls), "{polls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_that_comes_late_or_fails_to_be_read_is_waited_for() {
    let world = World::new().await;
    let jit = world.jit(4500);
    world.edge().handoff.clear();
    world.edge().broken.insert("GetItem", vec![400, 500, 503]);
    world.boot();
    world.until("polling", |world| world.edge().count("GetItem") >= 5).await;
    world.hand_over(&jit);
    assert_eq!(world.end().await, "done");
    assert_eq!(world.edge().sessions, [jit]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_never_answers_ends_the_machine() {
    let mut world = World::new().await;
    world.tag("boot-timeout", SHORT_BOOT_TIMEOUT);
    world.edge().down.insert("GetItem");
    assert_eq!(world.run().await, "no-handoff");
    let edge = world.edge();
    assert!(edge.events[0].1.contains(r#""detail":"500""#), "{:?}", edge.events);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runner_starts_only_once_the_delete_is_confirmed() {
    let world = World::new().await;
    world.edge().broken.insert("DeleteItem", vec![500, 503, 400]);
    assert_eq!(world.run().await, "done");
    let edge = world.edge();
    assert_eq!(edge.count("DeleteItem"), 4);
    let last_delete = edge.calls.iter().rposition(|call| call == "DeleteItem").unwrap();
    assert!(last_delete < edge.calls.iter().position(|call| call == "session").unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_whose_answer_is_lost_is_repeated() {
    let world = World::new().await;
    world.edge().lost_deletes = 2;
    assert_eq!(world.run().await, "done");
    assert_eq!(world.edge().count("DeleteItem"), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_is_never_confirmed_means_that_no_job_runs() {
    let mut world = World::new().await;
    world.tag("boot-timeout", SHORT_BOOT_TIMEOUT);
    world.edge().down.insert("DeleteItem");
    assert_eq!(world.run().await, "delete-unconfirmed");
    assert!(world.edge().sessions.is_empty());
    assert!(world.logged());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ol_32_what_is_no_jit_configuration_starts_nothing() {
    for bad in ["", "not base64!", "a b", "$(poweroff)"] {
        let world = World::new().await;
        world.hand_over(bad);
        assert_eq!(world.run().await, "bad-handoff", "{bad:?}");
        assert!(world.edge().sessions.is_empty());
    }
    let world = World::new().await;
    world.hand_over("Z2FyYmFnZQ==");
    assert_eq!(world.run().await, "runner-failed", "base64 of garbage is the runner's to refuse");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_a_runner_with_another_checksum_is_not_run() {
    let world = World::new().await;
    world.edge().download = Some(b"something else".to_vec());
    assert_eq!(world.run().await, "runner-checksum");
    assert_eq!(world.edge().count("GetItem"), 0, "the registration stays unused");
    assert!(world.logged());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_is_tried_again_and_then_given_up() {
    let world = World::new().await;
    world.edge().broken.insert("download", vec![404, 503]);
    assert_eq!(world.run().await, "done");

    let world = World::new().await;
    world.edge().down.insert("download");
    assert_eq!(world.run().await, "runner-download");
    assert_eq!(world.edge().count("download"), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_without_a_runner_ends_the_machine() {
    for content in [&b"not an archive"[..], &[]] {
        let mut world = World::new().await;
        world.edge().download = Some(content.to_vec());
        let file = world.directory.path().join("sum");
        fs::write(&file, content).unwrap();
        let sum = Command::new("sha256sum").arg(file).output().unwrap().stdout;
        world.sha256 = String::from_utf8(sum[..64].to_vec()).unwrap();
        assert_eq!(world.run().await, "runner-unpack");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_in_the_image_is_used() {
    let world = World::new().await;
    world.install_release();
    assert_eq!(world.run().await, "done");
    assert_eq!(world.edge().count("download"), 0);

    // Elsewhere, as the image's own environment says.
    let world = World::new().await;
    world.install_runner("home/ci/runner", "echo Running job: 1");
    let folder = world.root().join("home/ci/runner");
    fs::create_dir_all(world.root().join("etc/ostler")).unwrap();
    let variables = format!("OSTLER_RUNNER_DIR={}\nOSTLER_RUNNER_USER=ci\n", folder.display());
    fs::write(world.root().join("etc/ostler/image.env"), variables).unwrap();
    assert_eq!(world.run().await, "done");
    assert_eq!(world.edge().count("download"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_the_runner_ends_the_machine_powers_off_and_says_how() {
    let cases = [
        ("exit 3", "runner-exit-3"),
        ("kill -KILL $$", "runner-exit-137"),
        ("echo Runner listener exit with terminated error, stop the service", "runner-failed"),
        ("echo Runner listener exit with Session Conflict error", "runner-failed"),
        ("true", "no-job"),
        ("echo 'x: Running job: build'", "done"),
        ("head -c 200000 /dev/zero", "no-job"),
    ];
    for (script, reason) in cases {
        let world = World::new().await;
        world.install_runner("opt/actions-runner", script);
        assert_eq!(world.run().await, reason, "{script}");
        assert!(world.logged(), "{script}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rr_06_a_registration_that_github_removes_is_no_finished_job() {
    let world = World::new().await;
    world.edge().registration_gone = true;
    assert_eq!(world.run().await, "no-job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rr_07_a_runner_refused_for_its_version_says_so() {
    let world = World::new().await;
    world.edge().version_deprecated = true;
    assert_eq!(world.run().await, "runner-deprecated");
    assert!(world.logged());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rr_07_the_age_of_the_runner_is_told_before_github_refuses_it() {
    for (built, days) in [("40 days ago", 40), ("1970-01-01", -1)] {
        let world = World::new().await;
        world.install_runner("opt/actions-runner", "echo Running job: 1");
        let run = world.root().join("opt/actions-runner/run.sh");
        let touched = Command::new("touch").args(["-d", built]).arg(run).env("TZ", "UTC").status();
        assert!(touched.unwrap().success());
        assert_eq!(world.run().await, "done");
        let edge = world.edge();
        let (_, word) = edge.events.iter().find(|(_, text)| text.contains("ended")).unwrap();
        let word: serde_json::Value = serde_json::from_str(word).unwrap();
        assert_eq!(word["days"], days, "{built}");
    }
}

/// As the kernel does when memory runs out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_that_is_killed_leaves_no_machine_on() {
    let world = World::new().await;
    world.job(
        "for p in /proc/[0-9]*; do\n\
         [[ \"$(tr '\\0' ' ' <$p/cmdline)\" == \"/bin/bash $OSTLER_ROOT/opt/ostler/bootstrap job \" ]] \
         && kill -KILL ${p#/proc/}\ndone 2>/dev/null; sleep 6000",
    );
    assert_eq!(world.run().await, "killed-signal");
    assert!(world.logged());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re_13_a_frozen_runner_ends_with_the_machines_lifetime() {
    let mut world = World::new().await;
    world.tag("max-lifetime", "150");
    // The step's parent is a part of the listener, whose parent is the listener.
    world.job("kill -STOP $(cut -d' ' -f4 /proc/$PPID/stat) $PPID; sleep 86400");
    assert_eq!(world.run().await, "max-lifetime");
    assert!(world.logged());
    assert!(world.edge().conclusions.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_never_gets_a_job_ends_with_the_machines_lifetime() {
    let mut world = World::new().await;
    world.tag("max-lifetime", "150");
    world.edge().job = None;
    assert_eq!(world.run().await, "max-lifetime");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_systemd_the_machine_does_the_same() {
    let world = World::new().await;
    fs::create_dir_all(world.root().join("etc")).unwrap();
    fs::write(world.root().join("etc/systemd"), "").unwrap();
    assert_eq!(world.run().await, "done");
    assert_eq!(world.reports().len(), 1);

    let mut world = World::new().await;
    world.tag("max-lifetime", "150");
    world.edge().job = None;
    fs::create_dir_all(world.root().join("etc")).unwrap();
    fs::write(world.root().join("etc/systemd"), "").unwrap();
    assert_eq!(world.run().await, "max-lifetime");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_cannot_write_powers_off() {
    let world = World::new().await;
    fs::create_dir_all(world.root()).unwrap();
    for name in ["opt", "etc", "home"] {
        fs::write(world.root().join(name), "").unwrap();
    }
    assert_eq!(world.run().await, "no-user");
    assert!(world.logged());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_group_out_of_reach_neither_fails_the_job_nor_keeps_the_machine_on() {
    let world = World::new().await;
    world.edge().down.extend(["PutLogEvents", "CreateLogStream"]);
    assert_eq!(world.run().await, "done");
    assert_eq!(world.edge().conclusions, ["success"]);
    assert!(!world.logged());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rr_14_a_reboot_of_a_job_machine_is_terminal() {
    let world = World::new().await;
    world.job("reboot; sleep 6000");
    assert_eq!(world.run().await, "rebooted");
    assert!(world.logged());
    assert_eq!(world.edge().sessions.len(), 1, "no second session with the same registration");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_07_a_reboot_before_the_claim_goes_on_to_the_claim() {
    let world = World::new().await;
    let jit = world.jit(4500);
    world.edge().handoff.clear();
    world.boot();
    world.until("polling", |world| world.edge().count("GetItem") >= 1).await;
    let host = Arc::clone(&world.host);
    tokio::task::spawn_blocking(move || host.reboot(ID)).await.unwrap();
    world.until("polling again", |world| world.edge().count("GetItem") >= 3).await;
    world.hand_over(&jit);
    assert_eq!(world.end().await, "done");
    assert_eq!(world.edge().sessions, [jit]);
    assert_eq!(world.reports().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ls_10_the_report_is_a_line_of_its_own_and_is_sent_once() {
    let world = World::new().await;
    // Output without a newline, and the hook called again by the job.
    world.job("printf abc; bash \"$ACTIONS_RUNNER_HOOK_JOB_STARTED\"; printf def");
    assert_eq!(world.run().await, "done");
    let report = format!("CDKGHR JOB RUNNER={RUNNER} REPO=acme/app WORKFLOW_ID=99");
    assert_eq!(world.reports(), [report]);
    assert_eq!(world.job_output(), "abcdef");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ls_11_the_runners_name_is_the_launchs_and_without_one_there_is_no_report() {
    let mut world = World::new().await;
    world.tags.remove("ostler:runner");
    assert_eq!(world.run().await, "done");
    assert_eq!(world.reports(), Vec::<String>::new());

    // Nor where the hook is not told what it would report.
    for repo in ["", "acme", "acme/app REPO=evil/x", "acme/app\nCDKGHR"] {
        let world = World::new().await;
        world.edge().job.as_mut().unwrap()["repo"] = repo.into();
        assert_eq!(world.run().await, "done");
        assert_eq!(world.reports(), Vec::<String>::new(), "{repo:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ls_13_the_hook_is_set_before_the_runner_starts_and_an_images_own_runs_too() {
    let world = World::new().await;
    world.install_release();
    let own = world.directory.path().join("own hook.sh");
    fs::write(&own, "echo own hook of $RUNNER_NAME").unwrap();
    let env = world.root().join("opt/actions-runner/.env");
    // Without a newline at the end, as such files often are.
    let text = format!("LANG=C.UTF-8\nACTIONS_RUNNER_HOOK_JOB_STARTED={}", own.display());
    fs::write(&env, text).unwrap();
    assert_eq!(world.run().await, "done");
    assert_eq!(world.reports().len(), 1);
    assert_eq!(world.job_output(), format!("own hook of {RUNNER}\n"));
    let env = fs::read_to_string(env).unwrap();
    assert!(env.contains("LANG=C.UTF-8\n"), "{env}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_job_is_a_job_done() {
    let world = World::new().await;
    world.job("exit 1");
    assert_eq!(world.run().await, "done");
    assert_eq!(world.edge().conclusions, ["failure"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_renewed_while_it_runs_and_ends_when_it_is_cancelled() {
    let world = World::new().await;
    world.job("sleep 86400");
    world.boot();
    world.until("renewed", |world| world.edge().count("renew") >= 1).await;
    assert!(world.edge().conclusions.is_empty());
    world.edge().cancelled = true;
    assert_eq!(world.end().await, "done");
    assert_eq!(world.edge().conclusions, ["cancelled"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_machine_leaves_its_console_and_nothing_else() {
    let world = World::new().await;
    world.edge().job = None;
    world.boot();
    world.until("listening", |world| world.edge().count("session") > 0).await;
    let processes = processes_of(&world.root());
    assert!(processes >= 3, "{processes}");
    world.host.terminate(ID);
    world.until("gone", |world| processes_of(&world.root()) == 0 && !world.root().exists()).await;
    assert!(world.host.credentials(ID).is_none());
    assert!(world.edge().powered_off.is_empty(), "EC2 took the power, the machine did not");
    assert!(world.directory.path().join(ID).join("console.log").exists());
}

/// Here the world is this same test in a process of its own, which is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_do_not_outlive_the_world_however_it_ends() {
    const NAME: &str = "machines_do_not_outlive_the_world_however_it_ends";
    if let Some(file) = std::env::var_os("OSTLER_TEST_INNER_WORLD") {
        let world = World::new().await;
        world.edge().job = None;
        world.boot();
        world.until("listening", |world| world.edge().count("session") > 0).await;
        fs::write(file, world.root().to_str().unwrap()).unwrap();
        std::future::pending::<()>().await;
    }
    let outer = World::new().await;
    let file = outer.directory.path().join("inner");
    let mut inner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("OSTLER_TEST_INNER_WORLD", &file)
        .spawn()
        .unwrap();
    outer.until("booted inside", |_| file.exists()).await;
    let root = PathBuf::from(fs::read_to_string(&file).unwrap());
    assert!(processes_of(&root) >= 3);
    inner.kill().unwrap();
    inner.wait().unwrap();
    outer.until("killed inside", |_| processes_of(&root) == 0).await;
    fs::remove_dir_all(root.parent().unwrap().parent().unwrap()).unwrap();
}

#[test]
fn ol_13_user_data_is_far_from_ec2s_limit_with_the_longest_values() {
    let long = "x".repeat(128);
    let script = render(&[
        ("REGION", "ap-southeast-7"),
        ("ROLE_ID", world::ROLE_ID),
        ("HANDOFF_TABLE", &long),
        ("LOG_GROUP", &long),
        ("RUNNER_VERSION", "2.999.999"),
        ("RUNNER_SHA256_X64", &long[..64]),
        ("RUNNER_SHA256_ARM64", &long[..64]),
        ("RUNNER_URL", &"u".repeat(512)),
    ]);
    // EC2 takes 16,384 bytes. Nothing of a job is in it, so that it can't grow with one.
    assert!(script.len() < 14 * 1024, "{} bytes", script.len());
}

/// Written by the script itself, on a machine that has got as far as its runner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_accepts_the_units() {
    let world = World::new().await;
    assert_eq!(world.run().await, "done");
    let units = world.root().join("etc/systemd/system");
    let names = ["ostler.service", "ostler-limit.service", "ostler-limit.timer"];
    let names: Vec<PathBuf> = names.iter().map(|name| units.join(name)).collect();
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&names).output();
    let output = verify.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("ostler"), "{said}");
    let timer = fs::read_to_string(&names[2]).unwrap();
    assert!(timer.contains("OnActiveSec=3600s"), "the tag's lifetime: {timer}");
}

#[test]
fn every_script_passes_shellcheck() {
    let venv = std::env::var_os("OSTLER_VENV").map_or_else(|| repository(".venv"), PathBuf::from);
    let mut scripts = vec![repository("infra/bootstrap.sh")];
    for folder in ["shims", "runner"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/instances").join(folder);
        scripts.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    }
    assert!(scripts.len() >= 12);
    let shellcheck = venv.join("bin/shellcheck");
    let output = Command::new(shellcheck).args(["-s", "bash"]).args(scripts).output();
    let output = output.expect("shellcheck, in .venv or where OSTLER_VENV says");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
