//! Every key of `control/tiers` and `control/app`, and every SSM parameter, in tables from which `docs/settings.md` is made.
//! Nothing in the functions reads them: they cost them nothing. Tests hold them against what [`crate::config`] accepts.

/// What holds where a key is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// It can't be.
    Invalid,
    /// The same as with this JSON value.
    Same(&'static str),
    /// Something that no value says.
    Else(&'static str),
}

/// A key of an object.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its JSON type, in words.
    pub kind: &'static str,
    /// What holds without it.
    pub without: Without,
    /// What is allowed, beyond the type; empty if everything is.
    pub limits: &'static str,
    /// What it does. Markdown, with links from within `docs/`.
    pub meaning: &'static str,
}

/// Of a tier, an object in the list `tiers` of `control/tiers`.
pub const TIER: &[Key] = &[
    Key {
        name: "name",
        kind: "text",
        without: Without::Invalid,
        limits: "1 to 40 of `A-Z a-z 0-9 _ -`, unique",
        meaning: "names the tier in metrics, tags, and as the execution's `provider`",
    },
    Key {
        name: "architecture",
        kind: "text",
        without: Without::Invalid,
        limits: "`x64`, `arm64`",
        meaning: "of the machines",
    },
    Key {
        name: "images",
        kind: "list of texts",
        without: Without::Invalid,
        limits: "1 to 5; each `ami-…`, or `/…`: an SSM parameter that holds the id",
        meaning: "what the machines boot from ([what an image needs](github-app.md#the-image))",
    },
    Key {
        name: "instance_types",
        kind: "list of texts",
        without: Without::Invalid,
        limits: "1 to 20",
        meaning: "EC2 chooses among them by price and capacity. More of them, more capacity",
    },
    Key {
        name: "labels",
        kind: "list of texts",
        without: Without::Same("[]"),
        limits: "each 1 to 256 bytes, no comma; not the names of GitHub's own runners (`ubuntu-…`, `windows-…`, \
                 `macos-…`, `github-hosted…`). With the implied ones 1 to 100",
        meaning: "what jobs ask for, besides the implied labels. Case does not matter",
    },
    Key {
        name: "os",
        kind: "text",
        without: Without::Same("\"linux\""),
        limits: "`linux`",
        meaning: "of the machines; also an implied label",
    },
    Key {
        name: "implied_labels",
        kind: "boolean",
        without: Without::Same("true"),
        limits: "",
        meaning: "whether `self-hosted`, the OS and the architecture are labels too",
    },
    Key {
        name: "accepts_bare_self_hosted",
        kind: "boolean",
        without: Without::Same("false"),
        limits: "",
        meaning: "whether it takes jobs that ask for nothing but `self-hosted`",
    },
    Key {
        name: "market",
        kind: "text",
        without: Without::Same("\"on-demand\""),
        limits: "`on-demand`, `spot`, `spot-then-on-demand`",
        meaning: "where machines are bought. The last tries on-demand at once where spot has nothing",
    },
    Key {
        name: "spot_breaker",
        kind: "[object](#spot_breaker)",
        without: Without::Same("{}"),
        limits: "",
        meaning: "with `spot-then-on-demand`: when the tier leaves spot alone for a while, because machines are taken \
                  back or not to be had",
    },
    Key {
        name: "rerun_interrupted",
        kind: "boolean",
        without: Without::Same("true"),
        limits: "",
        meaning: "whether a job whose machine EC2 took back, or lost, is run again: [what happens \
                  then](operations.md#jobs-that-lose-their-machine)",
    },
    Key {
        name: "root_volume_gib",
        kind: "number",
        without: Without::Else("the image's own"),
        limits: "1 to 16384",
        meaning: "size of the root volume, in GiB",
    },
    Key {
        name: "runner_group",
        kind: "text or number",
        without: Without::Same("\"default\""),
        limits: "a name or an id; only with `\"registration\": \"organization\"`",
        meaning: "the runner group at GitHub. It must admit the repositories whose jobs ask for the tier",
    },
    Key {
        name: "max_runners",
        kind: "number",
        without: Without::Else("no limit"),
        limits: "at most 4000",
        meaning: "most machines of the tier at a time. Jobs above it wait, and start as places come free: a launch \
                  that waits asks every few minutes, so the more of them wait, the sooner a place is taken",
    },
    Key {
        name: "max_idle",
        kind: "duration",
        without: Without::Same("\"5m\""),
        limits: "`60s` to `5d`",
        meaning: "after which a runner that got no job is ended",
    },
    Key {
        name: "max_lifetime",
        kind: "duration",
        without: Without::Same("\"6h\""),
        limits: "`600s` to `5d`",
        meaning: "after which a runner is ended, **busy or not**",
    },
    Key {
        name: "boot_timeout",
        kind: "duration",
        without: Without::Same("\"5m\""),
        limits: "`60s` to `5d`",
        meaning: "in which a machine must have claimed its registration",
    },
    Key {
        name: "account",
        kind: "[object](#account)",
        without: Without::Else("the control plane's"),
        limits: "",
        meaning: "[another account](other-accounts.md) in which its machines live",
    },
];

/// Of a tier's `spot_breaker`.
pub const SPOT_BREAKER: &[Key] = &[
    Key {
        name: "failures",
        kind: "number",
        without: Without::Same("3"),
        limits: "1 to 20",
        meaning: "so many failures of spot …",
    },
    Key {
        name: "within",
        kind: "duration",
        without: Without::Same("\"15m\""),
        limits: "`60s` to `1d`",
        meaning: "… within this time …",
    },
    Key {
        name: "on_demand_for",
        kind: "duration",
        without: Without::Same("\"30m\""),
        limits: "`60s` to `1d`",
        meaning: "… and the tier buys on-demand for so long",
    },
];

/// Of a tier's `account`.
pub const ACCOUNT: &[Key] = &[
    Key {
        name: "role_arn",
        kind: "text",
        without: Without::Invalid,
        limits: "`arn:aws:iam::<account>:role/<name>`",
        meaning: "the role that the orchestrator assumes",
    },
    Key {
        name: "external_id",
        kind: "text",
        without: Without::Invalid,
        limits: "2 to 128 of `A-Z a-z 0-9 _ + = , . @ : / -`",
        meaning: "what the role asks for",
    },
    Key {
        name: "region",
        kind: "text",
        without: Without::Invalid,
        limits: "a region's name",
        meaning: "of the machines",
    },
    Key {
        name: "subnets",
        kind: "list of texts",
        without: Without::Invalid,
        limits: "1 to 30; `subnet-…`",
        meaning: "of one VPC",
    },
    Key {
        name: "template_on_demand",
        kind: "text",
        without: Without::Invalid,
        limits: "`lt-…:<version>`",
        meaning: "launch template for on-demand machines",
    },
    Key {
        name: "template_spot",
        kind: "text",
        without: Without::Invalid,
        limits: "`lt-…:<version>`",
        meaning: "launch template for spot machines",
    },
    Key {
        name: "handoff_table",
        kind: "text",
        without: Without::Invalid,
        limits: "3 to 255 of `A-Z a-z 0-9 _ . -`",
        meaning: "the table from which machines claim their registrations",
    },
    Key {
        name: "runner_role_id",
        kind: "text",
        without: Without::Invalid,
        limits: "`AROA…`",
        meaning: "unique id of the machines' role",
    },
    Key {
        name: "event_role_arn",
        kind: "text",
        without: Without::Else("the account's events are left alone"),
        limits: "`arn:aws:iam::<the same account>:role/<name>`",
        meaning: "the role that looks at a machine of which EC2 has told",
    },
];

/// Of `control/app`.
pub const APP: &[Key] = &[
    Key {
        name: "app_id",
        kind: "number",
        without: Without::Invalid,
        limits: "",
        meaning: "the App's id: the number, not the client id",
    },
    Key {
        name: "github_url",
        kind: "text",
        without: Without::Same("\"https://github.com\""),
        limits: "HTTPS",
        meaning: "the address that people use; the API's [follows from \
                  it](github-app.md#github-enterprise-server-and-ghecom)",
    },
    Key {
        name: "registration",
        kind: "text",
        without: Without::Same("\"organization\""),
        limits: "`organization`, `repository`",
        meaning: "[where runners are registered](github-app.md#organisation-or-repository)",
    },
    Key {
        name: "require_self_hosted",
        kind: "boolean",
        without: Without::Same("true"),
        limits: "",
        meaning: "whether a job must ask for `self-hosted` to be served",
    },
    Key {
        name: "repositories",
        kind: "[object](#repositories)",
        without: Without::Same("{}"),
        limits: "",
        meaning: "which repositories are served",
    },
    Key {
        name: "selector",
        kind: "text",
        without: Without::Else("none"),
        limits: "",
        meaning: "name or ARN of a Lambda function that [chooses the tier](tiers.md#a-selector-of-your-own). The \
                  stack's parameter `SelectorFunctionArn` permits it",
    },
];

/// Of the App's `repositories`.
pub const REPOSITORIES: &[Key] = &[
    Key {
        name: "allow",
        kind: "list of texts",
        without: Without::Same("[]"),
        limits: "",
        meaning: "patterns `owner/name` in which `*` stands for any text; case does not matter. Empty: all",
    },
    Key {
        name: "public",
        kind: "text",
        without: Without::Same("\"refuse\""),
        limits: "`refuse`, `allow`",
        meaning: "Anyone can change a public repository's workflow by a pull request, and it then runs in your \
                  account: [what that means](security.md#public-repositories)",
    },
];

/// A parameter in SSM.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name after the prefix.
    pub name: &'static str,
    /// Its type in SSM.
    pub kind: &'static str,
    /// What it holds. Markdown, with links from within `docs/`.
    pub meaning: &'static str,
}

/// All that the functions read, after the prefix.
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "control/app",
        kind: "String",
        meaning: "the App's settings, [JSON](#the-app)",
    },
    Parameter {
        name: "control/tiers",
        kind: "String",
        meaning: "the tiers, [JSON](#a-tier). `make secrets` writes it with SSM's *Intelligent-Tiering*: over 4 KB it is an advanced parameter, which costs, and 8 KB is the limit",
    },
    Parameter {
        name: "control/app-private-key",
        kind: "SecureString",
        meaning: "the App's private key, PEM",
    },
    Parameter {
        name: "control/apps",
        kind: "String",
        meaning: "the [manifest](registration-janitor.md#additional-apps) of additional Apps, if there are any. Its \
                  parameters stand below `control/apps/`",
    },
    Parameter {
        name: "control/webhook-secret",
        kind: "SecureString",
        meaning: "what signs deliveries",
    },
    Parameter {
        name: "control/webhook-secret-previous",
        kind: "SecureString",
        meaning: "the one before, valid beside it",
    },
    Parameter {
        name: "control/name-key",
        kind: "SecureString",
        meaning: "key of runner names. Made once; **never change it**",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::{Value, json};

    use super::*;
    use crate::config::{Settings, Tiers};
    use crate::secret::Secret;

    fn account() -> Value {
        json!({"role_arn": "arn:aws:iam::111122223333:role/r", "external_id": "0123456789",
            "region": "eu-central-1", "subnets": ["subnet-1"], "template_on_demand": "lt-1:1",
            "template_spot": "lt-2:1", "handoff_table": "handoff", "runner_role_id": "AROA1"})
    }

    /// A tier with all that must be there and, inside of it, an object with all that must be there.
    fn tier(inside: Option<(&str, Value)>) -> Value {
        let mut tier = json!({"name": "a", "architecture": "x64", "images": ["ami-1"],
            "instance_types": ["m7i.large"]});
        if let Some((key, value)) = inside {
            tier[key] = value;
        }
        tier
    }

    /// What is read, or what is wrong with it.
    fn read_tier(tier: &Value) -> Result<String, String> {
        let tiers = Tiers::parse(&json!({"tiers": [tier]}).to_string());
        match tiers.problems.first() {
            Some(problem) => Err(problem.clone()),
            None => Ok(format!("{:?}", tiers.get("a"))),
        }
    }

    fn read_app(app: &Value) -> Result<String, String> {
        let texts = BTreeMap::from([("control/app".to_owned(), Secret::new(app.to_string()))]);
        let settings = Settings::from_parameters(&texts);
        settings.app.map(|app| format!("{app:?}")).ok_or_else(|| settings.tiers.problems[0].clone())
    }

    type Read = fn(&Value) -> Result<String, String>;
    type Table = (&'static [Key], Value, fn(Value) -> Value, Read);

    /// Each table, how to read an object with it, and how to put an object of it into the whole.
    fn tables() -> Vec<Table> {
        vec![
            (TIER, tier(None), |it| it, read_tier),
            (SPOT_BREAKER, json!({}), |it| tier(Some(("spot_breaker", it))), read_tier),
            (ACCOUNT, account(), |it| tier(Some(("account", it))), read_tier),
            (APP, json!({"app_id": 1}), |it| it, read_app),
            (REPOSITORIES, json!({}), |it| json!({"app_id": 1, "repositories": it}), read_app),
        ]
    }

    #[test]
    fn the_tables_have_the_keys_that_are_read() {
        for (table, mut object, whole, read) in tables() {
            object["no such key"] = json!(1);
            let problem = read(&whole(object)).unwrap_err();
            let (_, known) = problem.split_once("expected ").unwrap();
            let known: BTreeSet<_> = known.split('`').skip(1).step_by(2).collect();
            assert_eq!(known, table.iter().map(|key| key.name).collect());
        }
    }

    #[test]
    fn what_the_tables_say_holds_without_a_key_holds() {
        for (table, object, whole, read) in tables() {
            let usual = read(&whole(object.clone())).unwrap();
            for key in table {
                let mut changed = object.clone();
                match key.without {
                    Without::Same(value) => {
                        changed[key.name] = serde_json::from_str(value).unwrap();
                        assert_eq!(read(&whole(changed)).unwrap(), usual, "{}", key.name);
                    }
                    Without::Invalid => {
                        assert!(changed.as_object_mut().unwrap().remove(key.name).is_some());
                        let problem = read(&whole(changed)).unwrap_err();
                        assert!(problem.contains(key.name), "{}: {problem}", key.name);
                    }
                    Without::Else(_) => assert_eq!(object.get(key.name), None, "{}", key.name),
                }
            }
        }
    }

    /// Values of each key at its limits, and just beyond.
    fn bounds(key: &str) -> (Vec<Value>, Vec<Value>) {
        let many = |n: usize, text: &str| json!(vec![text; n]);
        let labels = |n: usize| json!((0..n).map(|n| format!("l{n}")).collect::<Vec<_>>());
        let (good, bad) = match key {
            "name" => (vec![json!("a")], vec![json!(""), json!("a".repeat(41)), json!("a b")]),
            "architecture" => (vec![json!("x64"), json!("arm64")], vec![json!("x86_64")]),
            "images" => (
                vec![many(1, "ami-1"), many(5, "/images/a")],
                vec![json!([]), many(6, "ami-1"), json!(["ubuntu"])],
            ),
            "instance_types" => (vec![many(1, "t"), many(20, "t")], vec![json!([]), many(21, "t")]),
            "labels" => (
                vec![labels(97), many(1, &"l".repeat(256))],
                vec![
                    labels(98),
                    many(1, &"l".repeat(257)),
                    json!([""]),
                    json!(["a,b"]),
                    json!(["ubuntu-a"]),
                    json!(["windows-a"]),
                    json!(["macos-a"]),
                    json!(["github-hosted"]),
                ],
            ),
            "os" => (vec![json!("linux")], vec![json!("windows"), json!("macos")]),
            "market" => (
                vec![json!("on-demand"), json!("spot"), json!("spot-then-on-demand")],
                vec![json!("any")],
            ),
            "root_volume_gib" => (vec![json!(1), json!(16384)], vec![json!(0), json!(16385)]),
            "runner_group" => (vec![json!("large"), json!(7)], vec![json!(["large"])]),
            "max_runners" => (vec![json!(0), json!(4000)], vec![json!(4001)]),
            "max_idle" | "boot_timeout" => {
                (vec![json!("60s"), json!("5d")], vec![json!("59s"), json!("121h"), json!("5")])
            }
            "max_lifetime" => {
                (vec![json!("600s"), json!("5d")], vec![json!("599s"), json!("121h")])
            }
            "failures" => (vec![json!(1), json!(20)], vec![json!(0), json!(21)]),
            "within" | "on_demand_for" => {
                (vec![json!("60s"), json!("1d")], vec![json!("59s"), json!("25h")])
            }
            "external_id" => (
                vec![json!("ab"), json!("a".repeat(128))],
                vec![json!("a"), json!("a".repeat(129))],
            ),
            "subnets" => (
                vec![many(1, "subnet-1"), many(30, "subnet-1")],
                vec![json!([]), many(31, "subnet-1")],
            ),
            "handoff_table" => (
                vec![json!("abc"), json!("a".repeat(255))],
                vec![json!("ab"), json!("a".repeat(256))],
            ),
            "role_arn" | "event_role_arn" => (vec![], vec![json!("r")]),
            "region" => (vec![json!("us-gov-west-1")], vec![json!("here")]),
            "template_on_demand" | "template_spot" => (vec![json!("lt-1:12")], vec![json!("lt-1")]),
            "runner_role_id" => (vec![json!("AROA123")], vec![json!("AIDA123")]),
            "registration" => {
                (vec![json!("organization"), json!("repository")], vec![json!("enterprise")])
            }
            "public" => (vec![json!("refuse"), json!("allow")], vec![json!("ask")]),
            _ => (vec![], vec![json!({"no such key": 1})]),
        };
        (good, bad)
    }

    #[test]
    fn the_limits_are_those_that_are_enforced() {
        for (table, object, whole, read) in tables() {
            for key in table {
                let (good, bad) = bounds(key.name);
                for (values, accepted) in [(good, true), (bad, false)] {
                    for value in values {
                        let mut changed = object.clone();
                        changed[key.name] = value.clone();
                        let read = read(&whole(changed));
                        assert_eq!(read.is_ok(), accepted, "{} {value}: {read:?}", key.name);
                        // A limit that is a number or a word stands in the table.
                        let (Value::Number(_) | Value::String(_)) = &value else { continue };
                        let text = value.to_string().trim_matches('"').to_owned();
                        let says = key.limits.contains(&text) || text.len() > 20;
                        let free = ["name", "runner_group", "external_id", "handoff_table"];
                        let shape = key.limits.contains('…') || free.contains(&key.name);
                        let shape = shape || key.name == "region" || value == json!(0);
                        assert!(!accepted || says || shape, "{} {value}: {}", key.name, key.limits);
                    }
                }
            }
        }
    }
}
