//! Another account in which a tier's machines live: how to get into it, and what is there for them. Nothing of it is secret.

use serde::{Deserialize, Serialize};

/// A tier's `account`, as the output `Account` of `infra/byoc-role.yaml` has it. It is also kept in the execution's state,
/// so that a runner is looked after where it was launched, whatever its tier says later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// The role to assume: `arn:aws:iam::<account>:role/<name>`.
    pub role_arn: String,
    /// What the role asks for, so that nobody else's install can use it through us.
    pub external_id: String,
    /// Region of the machines, `eu-central-1`.
    pub region: String,
    /// Subnets of one VPC there, `subnet-…`.
    pub subnets: Vec<String>,
    /// `<launch template id>:<version>` for on-demand.
    pub template_on_demand: String,
    /// `<launch template id>:<version>` for spot.
    pub template_spot: String,
    /// The table there through which registrations reach their machines.
    pub handoff_table: String,
    /// Unique id of the machines' role, `AROA…`.
    pub runner_role_id: String,
    /// The role to assume to look at a machine of which an event was told. Without it such events are left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_role_arn: Option<String>,
}

/// Subnets of an account: more than a VPC has zones.
const MAX_SUBNETS: usize = 30;

impl Account {
    /// What is wrong with it, if anything: which key, and what it must be.
    pub fn problem(&self) -> Option<String> {
        let wrong = |key: &str, value: &str, must: &str| {
            Some(format!(
                "account.{key} '{value}' must be {must}; copy the output Account of the stack of byoc-role.yaml"
            ))
        };
        if !is_role(&self.role_arn) {
            return wrong("role_arn", &self.role_arn, "arn:aws:iam::<account>:role/<name>");
        }
        let id = &self.external_id;
        if !(2..=128).contains(&id.len()) || !all(id, "_+=,.@:/-") {
            return wrong("external_id", id, "2 to 128 of A-Z a-z 0-9 _ + = , . @ : / -");
        }
        if self.region.split('-').count() < 3 || !all(&self.region, "-") || self.region.len() > 30 {
            return wrong("region", &self.region, "a region's name, as eu-central-1");
        }
        if self.subnets.is_empty() || self.subnets.len() > MAX_SUBNETS {
            let count = self.subnets.len().to_string();
            return wrong("subnets", &count, &format!("1 to {MAX_SUBNETS} ids"));
        }
        if let Some(bad) = self.subnets.iter().find(|it| !is_id(it, "subnet-")) {
            return wrong("subnets", bad, "ids, subnet-…");
        }
        let templates = [
            ("template_on_demand", &self.template_on_demand),
            ("template_spot", &self.template_spot),
        ];
        let valid = |text: &String| {
            let version = |it: &str| it.parse::<u64>().is_ok();
            text.split_once(':').is_some_and(|(id, rest)| is_id(id, "lt-") && version(rest))
        };
        if let Some((key, bad)) = templates.into_iter().find(|(_, text)| !valid(text)) {
            return wrong(key, bad, "<launch template id>:<version>");
        }
        let table = &self.handoff_table;
        if !(3..=255).contains(&table.len()) || !all(table, "_.-") {
            return wrong("handoff_table", table, "a table's name");
        }
        if !is_id(&self.runner_role_id, "AROA") {
            return wrong("runner_role_id", &self.runner_role_id, "a role's unique id, AROA…");
        }
        if let Some(arn) = &self.event_role_arn
            && (!is_role(arn) || number(arn) != self.id())
        {
            return wrong("event_role_arn", arn, "arn:aws:iam::<the same account>:role/<name>");
        }
        None
    }

    /// The account's number.
    pub fn id(&self) -> &str {
        number(&self.role_arn)
    }

    /// Whether these are machines of one account and region.
    pub fn is_beside(&self, other: &Self) -> bool {
        (self.id(), &self.region) == (other.id(), &other.region)
    }

    /// The same account, entered by the role for events, if it has one.
    pub fn for_events(&self) -> Option<Self> {
        let role_arn = self.event_role_arn.clone()?;
        Some(Self { role_arn, ..self.clone() })
    }
}

/// The account's number in an ARN.
fn number(arn: &str) -> &str {
    arn.split(':').nth(4).unwrap_or_default()
}

fn all(text: &str, more: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

fn is_id(text: &str, prefix: &str) -> bool {
    text.len() <= 64 && text.strip_prefix(prefix).is_some_and(|id| !id.is_empty() && all(id, ""))
}

fn is_role(arn: &str) -> bool {
    let parts: Vec<_> = arn.splitn(6, ':').collect();
    let [scheme, partition, service, region, account, role] = parts[..] else { return false };
    scheme == "arn"
        && partition.starts_with("aws")
        && all(partition, "-")
        && (service, region) == ("iam", "")
        && account.len() == 12
        && account.bytes().all(|byte| byte.is_ascii_digit())
        && role.strip_prefix("role/").is_some_and(|name| !name.is_empty() && all(name, "_+=,.@/-"))
        && arn.len() <= 2048
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn account() -> Value {
        json!({
            "role_arn": "arn:aws:iam::444455556666:role/ostler-runners-RunnerComputeRole-X",
            "external_id": "acme/ostler-1",
            "region": "eu-central-1",
            "subnets": ["subnet-0a", "subnet-0b"],
            "template_on_demand": "lt-0a:3",
            "template_spot": "lt-0b:4",
            "handoff_table": "ostler-runners-HandoffTable-X",
            "runner_role_id": "AROAEXAMPLE",
        })
    }

    fn problem(key: &str, value: Value) -> Option<String> {
        let mut changed = account();
        changed[key] = value;
        serde_json::from_value::<Account>(changed).unwrap().problem()
    }

    #[test]
    fn an_account_as_the_stack_puts_it_out_is_right() {
        let account: Account = serde_json::from_value(account()).unwrap();
        assert_eq!(account.problem(), None);
        assert_eq!(account.id(), "444455556666");
        for arn in
            ["arn:aws-cn:iam::444455556666:role/a/b", "arn:aws-us-gov:iam::444455556666:role/x"]
        {
            assert_eq!(problem("role_arn", arn.into()), None, "{arn}");
        }
    }

    #[test]
    fn it_may_have_a_role_for_events() {
        let role = "arn:aws:iam::444455556666:role/ostler-runners-EventRole-X";
        let mut given = account();
        let without: Account = serde_json::from_value(given.clone()).unwrap();
        assert_eq!(without.for_events(), None);
        assert_eq!(serde_json::to_value(&without).unwrap(), given, "nothing is made up");
        given["event_role_arn"] = role.into();
        let with: Account = serde_json::from_value(given).unwrap();
        assert_eq!(with.problem(), None);
        let entered = with.for_events().unwrap();
        assert_eq!(entered.role_arn, role);
        assert!(entered.is_beside(&with) && without.is_beside(&with));
        assert!(!without.is_beside(&Account { region: "eu-west-1".into(), ..without.clone() }));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_it_must_be() {
        for (key, values) in [
            (
                "role_arn",
                &[
                    "",
                    "arn:aws:iam::44445555666:role/x",
                    "arn:aws:iam::444455556666:user/x",
                    "arn:aws:iam::444455556666:role/",
                    "arn:aws:sts::444455556666:role/x",
                    "https://example.com",
                ][..],
            ),
            ("external_id", &["", "x", "with space", "quote'd"]),
            ("region", &["", "europe", "eu-central-1.example.com", "eu_central_1"]),
            ("template_on_demand", &["", "lt-0a", "lt-0a:", "lt-0a:$Latest", "lt-:1", "ami-1:1"]),
            ("template_spot", &["lt-0b:x"]),
            ("handoff_table", &["", "ab", "a table", "arn:aws:dynamodb:x"]),
            ("runner_role_id", &["", "AROA", "AIDAEXAMPLE", "AROA:1"]),
            ("event_role_arn", &["", "arn:aws:iam::777788889999:role/of-another-account"]),
        ] {
            for value in values {
                let told = problem(key, (*value).into()).unwrap_or_default();
                assert!(told.contains(&format!("account.{key}")), "{key} {value}: {told}");
            }
        }
        for subnets in
            [json!([]), json!(["subnet-"]), json!(["vpc-1"]), json!(vec!["subnet-1"; 31])]
        {
            assert!(problem("subnets", subnets.clone()).is_some(), "{subnets}");
        }
    }
}
