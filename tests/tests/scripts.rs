//! The scripts, run with stand-ins for what they call.

#![allow(clippy::unwrap_used)] // helpers of tests, which the lint does not take for tests

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A copy of `secrets.sh` beside stand-ins for the AWS tools that note how they are called, and of which parameters there
/// are already.
struct Account(TempDir);

impl Account {
    fn with(parameters: &[(&str, &str)]) -> Self {
        let home = TempDir::new().unwrap();
        let at = |name: &str| home.path().join(name);
        for folder in ["scripts", ".venv/bin", "parameters"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for script in ["common.sh", "secrets.sh"] {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts").join(script);
            fs::copy(source, at("scripts").join(script)).unwrap();
        }
        for (name, value) in parameters {
            fs::write(at("parameters").join(name), value).unwrap();
        }
        // `python3 -c … name type tier overwrite` puts its input; all else is the real one's.
        let put = r#"
case $1 in -c) ;; *) PATH=$REAL_PATH; exec python3 "$@" ;; esac
name=${3##*/}
echo "put $name $4 $5 $6" >>"$HOME_OF_TEST/log"
[ "$6" = true ] || [ ! -e "$HOME_OF_TEST/parameters/$name" ] || exit 1
cat >"$HOME_OF_TEST/parameters/$name"
"#;
        let aws = r#"
case $2 in
  get-parameters) name=${4##*/}; if [ -e "$HOME_OF_TEST/parameters/$name" ]; then echo 1; else echo 0; fi ;;
  get-parameter) cat "$HOME_OF_TEST/parameters/${4##*/}" ;;
  *) exit 9 ;;
esac
"#;
        for (name, body) in [("python3", put), ("aws", aws)] {
            let notes = "printf '%s\\n' \"$0\" \"$@\" >>\"$HOME_OF_TEST/seen\"; env >>\"$HOME_OF_TEST/seen\"";
            let file = at(".venv/bin").join(name);
            fs::write(&file, format!("#!/bin/bash\n{notes}\n{body}")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self(home)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new("bash")
            .arg(self.0.path().join("scripts/secrets.sh"))
            .args(arguments)
            .env("HOME_OF_TEST", self.0.path())
            .env("REAL_PATH", std::env::var("PATH").unwrap())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).unwrap_or_default()
    }

    fn parameter(&self, name: &str) -> String {
        self.read(&format!("parameters/{name}"))
    }
}

fn key() -> String {
    let output =
        Command::new("openssl").args(["genrsa", "2048"]).stderr(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn no_secret_is_printed_or_stands_in_an_argument_or_in_the_environment() {
    let account = Account::with(&[("webhook-secret", "the-secret-until-now-0123")]);
    let pem = key();
    let private_key = account.file("app.pem", &pem);
    let secret = account.file("secret", "the-new-secret-0123456789\n");
    let output = account.run(&["--private-key", &private_key, "--webhook-secret", &secret]);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    assert_eq!(account.parameter("webhook-secret").trim_end(), "the-new-secret-0123456789");
    assert_eq!(
        account.parameter("webhook-secret-previous").trim_end(),
        "the-secret-until-now-0123"
    );
    assert_eq!(account.parameter("app-private-key"), pem);
    let name_key = account.parameter("name-key");
    assert_eq!(name_key.trim_end().len(), 64, "32 bytes in hex");
    let seen = account.read("seen") + &said;
    let line = pem.lines().nth(5).unwrap();
    for secret in ["the-new-secret", "the-secret-until-now", name_key.trim_end(), line] {
        assert!(!seen.contains(secret), "{secret} can be seen");
    }
    assert!(account.read("log").contains("put name-key SecureString Standard false"));
}

#[test]
fn ic_08_a_secret_that_did_not_change_does_not_push_the_previous_one_out() {
    let account = Account::with(&[
        ("webhook-secret", "the-secret-until-now-0123"),
        ("webhook-secret-previous", "the-one-before"),
    ]);
    let secret = account.file("secret", "the-secret-until-now-0123");
    assert!(account.run(&["--webhook-secret", &secret]).status.success());
    assert_eq!(account.parameter("webhook-secret-previous"), "the-one-before");
}

#[test]
fn the_name_key_is_made_once() {
    let account = Account::with(&[]);
    assert!(account.run(&[]).status.success());
    let made = account.parameter("name-key");
    let again = account.run(&[]);
    assert!(again.status.success());
    assert_eq!(account.parameter("name-key"), made);
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(said.contains("kept"), "{said}");
    assert!(
        said.contains("503 until they are there: app app-private-key webhook-secret tiers"),
        "{said}"
    );
}

#[test]
fn nothing_is_written_where_something_given_is_wrong() {
    let account = Account::with(&[]);
    let json = account.file("app.json", r#"{"app_id": 1}"#);
    let short = account.file("short", "too-short");
    let empty = account.file("empty", "");
    for (arguments, told) in [
        (vec!["--private-key", &json], "is not a private key"),
        (vec!["--app", &json, "--tiers", &short], "is not valid JSON"),
        (vec!["--app", &json, "--webhook-secret", &short], "at least 16"),
        (vec!["--app", &json, "--webhook-secret", &empty], "at least 16"),
        (vec!["--prefix", "ostler"], "is not a parameter path"),
        (vec!["--app"], "needs a value"),
        (vec!["--apps", &json], "is not known"),
    ] {
        let output = account.run(&arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(told), "{arguments:?}: {said}");
        assert_eq!(account.read("log"), "", "{arguments:?}");
    }
}

#[test]
fn configuration_may_outgrow_a_standard_parameter() {
    let account = Account::with(&[]);
    let app = account.file("app.json", r#"{"app_id": 1}"#);
    let tiers = account.file("tiers.json", r#"{"tiers": []}"#);
    assert!(account.run(&["--app", &app, "--tiers", &tiers]).status.success());
    let log = account.read("log");
    for name in ["app", "tiers"] {
        assert!(log.contains(&format!("put {name} String Intelligent-Tiering true")), "{log}");
    }
}
