//! Names and what is behind them.

use super::*;
use crate::job::{JobId, RunnerInput};
use crate::names::NameKey;
use crate::ports::{Execution, Executions, Start};

/// Instances, by id and by tag.
#[derive(Default)]
struct Region {
    living: Vec<&'static str>,
    unknown: Vec<&'static str>,
    asked: RefCell<Vec<(By, Vec<String>)>>,
}

impl Inventory for &Region {
    async fn any_lives(&self, by: By, values: &[String]) -> Vec<Result<bool>> {
        self.asked.borrow_mut().push((by, values.to_vec()));
        let answer = |value: &String| match self.unknown.contains(&value.as_str()) {
            true => Err(Error::Transient("no answer".into())),
            false => Ok(self.living.contains(&value.as_str())),
        };
        values.iter().map(answer).collect()
    }
}

/// Executions by name: whether they run, or no answer.
struct Machine(BTreeMap<&'static str, Option<bool>>);

impl Executions for Machine {
    async fn start(&self, name: &str, _: &RunnerInput) -> Result<Start> {
        panic!("the janitor started {name}")
    }

    async fn describe(&self, name: &str) -> Result<Option<Execution>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(None) => Err(Error::Transient("no answer".into())),
            Some(Some(running)) => {
                Ok(Some(Execution { running: *running, started: NOW, input: None }))
            }
        }
    }
}

#[test]
fn j07_j32_a_name_is_exactly_the_prefix_and_an_instance_id() {
    let region = Region::default();
    let provider = Ec2InstanceIds::new(PREFIX, &[], &region);
    for id in ["i-01234567", "i-0123456789abcdef0"] {
        assert_eq!(provider.resource(&format!("{PREFIX}{id}")).as_deref(), Some(id));
    }
    for name in [
        "acme-prod-",
        "acme-prod-i-",
        "acme-prod-i-0123456",
        "acme-prod-i-012345678",
        "acme-prod-i-0123456789abcdef",
        "acme-prod-i-0123456789abcdef01",
        "acme-prod-i-0123456789ABCDEF0",
        "acme-prod-i-0123456789abcdeg0",
        "acme-prod-acme-prod-i-01234567",
        "acme-prod-i-01234567-2",
        "xacme-prod-i-01234567",
        "acme-prod-I-01234567",
        "acme-test-i-01234567",
        "i-01234567",
        "",
        "acme-prod-i-0123456\u{e9}",
    ] {
        assert_eq!(provider.resource(name), None, "{name}");
    }
}

#[test]
fn j36_instances_are_asked_for_by_id_and_by_nothing_else() {
    let region = Region { living: vec!["i-00000002"], ..Region::default() };
    let regions = ["eu-west-1".to_owned(), "us-east-1".to_owned()];
    let provider = Ec2InstanceIds::new(PREFIX, &regions, &region);
    let ids = ["i-00000001".to_owned(), "i-00000002".to_owned()];
    let exist: Vec<_> = run(provider.exist(&ids)).into_iter().map(Result::unwrap).collect();
    assert_eq!(exist, [false, true]);
    assert_eq!(*region.asked.borrow(), [(By::InstanceId, ids.to_vec())], "all at once");
    assert_eq!(provider.scope(), r#"["eu-west-1","us-east-1"]"#);
}

#[test]
fn jp_09_ostler_knows_its_own_names_and_no_others() {
    let region = Region::default();
    let ours = NameKey::new("ours").unwrap();
    let theirs = NameKey::new("the other install's").unwrap();
    let provider = OstlerRunners::new(ours.clone(), &[], "arn", &region, Machine(BTreeMap::new()));
    let base = ours.base_name("widgets", JobId(7));
    for name in [base.clone(), format!("{base}-r1"), format!("{base}-q2-r3")] {
        assert_eq!(provider.resource(&name), Some(name));
    }
    for name in [
        theirs.base_name("widgets", JobId(7)),
        format!("{base}-r4"),
        format!("{base}x"),
        base.replace("-7-", "-8-"),
        format!("{base}\n"),
        name(1),
        "laptop-of-mona".into(),
        "warm-small-0123456789abcdef".into(),
        String::new(),
    ] {
        assert_eq!(provider.resource(&name), None, "{name}");
    }
}

#[test]
fn j33_ostlers_runner_is_protected_by_its_execution_and_by_any_instance() {
    let region =
        Region { living: vec!["tagged"], unknown: vec!["region-out"], ..Region::default() };
    let executions = Machine(BTreeMap::from([
        ("running", Some(true)),
        ("ended", Some(false)),
        ("tagged", Some(false)),
        ("execution-out", None),
        ("region-out", Some(false)),
    ]));
    let key = NameKey::new("ours").unwrap();
    let provider = OstlerRunners::new(key, &["eu-west-1".into()], "arn:1", &region, executions);
    let names: Vec<String> =
        ["running", "ended", "tagged", "execution-out", "region-out", "never-started"]
            .map(str::to_owned)
            .to_vec();
    let exist: Vec<_> = run(provider.exist(&names)).into_iter().map(Result::ok).collect();
    let expected = [Some(true), Some(false), Some(true), None, None, Some(false)];
    assert_eq!(exist, expected, "a look that fails is no answer, of that runner alone");
    assert_eq!(*region.asked.borrow(), [(By::RunnerTag, names)]);
    assert_eq!(provider.scope(), r#"["arn:1",["eu-west-1"]]"#);
}

#[test]
fn j75_an_answer_that_a_provider_owes_is_no_absence() {
    let answers = provider_complete(3, vec![Ok(false)]);
    assert_eq!(answers.iter().map(|a| a.is_ok()).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(provider_complete(1, vec![Ok(true), Ok(false)]).len(), 1);
}

fn provider_complete(asked: usize, answers: Vec<Result<bool>>) -> Vec<Result<bool>> {
    super::super::provider::complete(asked, answers)
}
