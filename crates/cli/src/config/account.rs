//! What only AWS knows of the configuration: images, instance types, subnets, roles and limits. What could
//! not be asked is told of and proves nothing.

use std::collections::{BTreeMap, BTreeSet};

use ostler_core::config::{Market, Tier, Tiers};
use serde_json::{Value, json};

use super::Level;
use crate::shell::Shell;
use crate::tool::{Tool, code_of};

/// Combinations of image, type and subnet that a fleet takes (EC2 API reference, CreateFleet).
const MOST_COMBINATIONS: usize = 300;

/// Quotas of running standard instances (families A, C, D, H, I, M, R, T, Z), in vCPUs: on-demand and spot.
/// (docs.aws.amazon.com, "Amazon EC2 endpoints and quotas".)
const QUOTAS: [(&str, &str); 2] = [("L-1216C47A", "on-demand"), ("L-34B43A08", "spot")];

/// Families that those quotas count.
const STANDARD: &[u8] = b"acdhimrtz";

/// Roles that EC2 makes at the first use in an account, if the caller may: ours may not.
const SPOT_ROLE: &str = "AWSServiceRoleForEC2Spot";
const FLEET_ROLE: &str = "AWSServiceRoleForEC2Fleet";

/// An image as AWS knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// `x86_64` or `arm64`.
    pub architecture: String,
    /// `available`, if it can be used.
    pub state: String,
    /// The size of its root volume's snapshot, in GiB.
    pub root_gib: Option<u64>,
}

/// An instance type as AWS knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceType {
    /// `x86_64`, `arm64`, …
    pub architectures: Vec<String>,
    /// Whether it is sold as spot.
    pub spot: bool,
    /// Its vCPUs.
    pub cpus: u64,
}

/// What AWS said. What could not be asked is none.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// AMI ids by the SSM parameters that hold them.
    pub parameters: Option<BTreeMap<String, String>>,
    /// Images by id: those that are there.
    pub images: Option<BTreeMap<String, Image>>,
    /// Instance types by name: those that are sold in the region.
    pub types: Option<BTreeMap<String, InstanceType>>,
    /// The stack's subnets, and those of them that are there.
    pub subnets: Option<(Vec<String>, BTreeSet<String>)>,
    /// Service-linked roles that are missing.
    pub missing_roles: Vec<&'static str>,
    /// Quotas in vCPUs, on-demand and spot.
    pub quotas: [Option<f64>; 2],
    /// What could not be asked, and why.
    pub unknown: Vec<String>,
}

/// What was found of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The tier's name; empty for all of them.
    pub tier: String,
    /// The key.
    pub key: String,
    /// How bad it is.
    pub level: Level,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub hint: String,
}

/// Asks AWS about all that the tiers of this account name. Tiers of other accounts are left out: nobody but
/// the control plane may look there.
pub async fn look(shell: &Shell, stack: &str, tiers: &Tiers) -> Seen {
    let tool = shell.tool();
    let own: Vec<&Tier> = own(tiers).collect();
    let mut seen = Seen::default();
    let mut known = |what: &str, asked: anyhow::Result<()>| {
        if let Err(error) = asked {
            seen.unknown.push(format!("{what}: {error:#}"));
        }
    };
    let (parameters, images) = split_images(&own);
    let held = parameters_of(shell, &parameters).await;
    let mut ids = images;
    let held = held.inspect(|held| ids.extend(held.values().cloned()));
    let described = images_of(&tool, &ids).await;
    let names: BTreeSet<&str> =
        own.iter().flat_map(|tier| &tier.instance_types).map(String::as_str).collect();
    let types = types_of(&tool, &names).await;
    let subnets = subnets_of(&tool, stack).await;
    let mut missing_roles = Vec::new();
    let spot = own.iter().any(|tier| tier.market != Market::OnDemand);
    for role in [FLEET_ROLE].into_iter().chain(spot.then_some(SPOT_ROLE)) {
        match tool.call("iam", "get-role", &json!({"RoleName": role})).await {
            Err(error) if code_of(&error) == "NoSuchEntity" => missing_roles.push(role),
            asked => known(role, asked.map(|_| ())),
        }
    }
    let mut quotas = [None, None];
    for ((code, market), quota) in QUOTAS.into_iter().zip(&mut quotas) {
        let input = json!({"ServiceCode": "ec2", "QuotaCode": code});
        match tool.call("service-quotas", "get-service-quota", &input).await {
            Ok(answer) => *quota = answer["Quota"]["Value"].as_f64(),
            Err(error) => known(&format!("the {market} quota"), Err(error)),
        }
    }
    let mut keep = |what: &str, error: anyhow::Error| known(what, Err(error));
    let parameters = held.map_err(|error| keep("image parameters", error)).ok();
    let images = described.map_err(|error| keep("images", error)).ok();
    let types = types.map_err(|error| keep("instance types", error)).ok();
    let subnets = subnets.map_err(|error| keep("subnets", error)).ok().flatten();
    Seen { parameters, images, types, subnets, missing_roles, quotas, unknown: seen.unknown }
}

fn own(tiers: &Tiers) -> impl Iterator<Item = &Tier> {
    tiers.iter().filter(|tier| tier.account.is_none())
}

/// SSM parameters and AMI ids.
fn split_images(tiers: &[&Tier]) -> (BTreeSet<String>, BTreeSet<String>) {
    let all = tiers.iter().flat_map(|tier| tier.images.iter().cloned());
    all.partition(|image| image.starts_with('/'))
}

async fn parameters_of(
    shell: &Shell,
    names: &BTreeSet<String>,
) -> anyhow::Result<BTreeMap<String, String>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let names: Vec<_> = names.iter().cloned().collect();
    let texts = ostler_aws::read_parameters(&shell.aws().await, &names).await?;
    Ok(texts.into_iter().map(|(name, text)| (name, text.expose().trim().to_owned())).collect())
}

/// By filters, since a look-up by id fails as a whole if one is not there.
async fn images_of(tool: &Tool, ids: &BTreeSet<String>) -> anyhow::Result<BTreeMap<String, Image>> {
    let ids: Vec<_> = ids.iter().filter(|id| id.starts_with("ami-")).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let input = json!({"Filters": [{"Name": "image-id", "Values": ids}]});
    let answer = tool.call("ec2", "describe-images", &input).await?;
    Ok(list(&answer["Images"]).filter_map(image_of).collect())
}

fn image_of(image: &Value) -> Option<(String, Image)> {
    let root = image["RootDeviceName"].as_str();
    let mut devices = list(&image["BlockDeviceMappings"]);
    let device = devices.find(|device| device["DeviceName"].as_str() == root);
    let image_of = Image {
        architecture: image["Architecture"].as_str().unwrap_or_default().to_owned(),
        state: image["State"].as_str().unwrap_or("available").to_owned(),
        root_gib: device.and_then(|device| device["Ebs"]["VolumeSize"].as_u64()),
    };
    Some((image["ImageId"].as_str()?.to_owned(), image_of))
}

async fn types_of(
    tool: &Tool,
    names: &BTreeSet<&str>,
) -> anyhow::Result<BTreeMap<String, InstanceType>> {
    let mut types = BTreeMap::new();
    // A filter takes 200 values (EC2 API reference, "Filtering").
    let names: Vec<_> = names.iter().collect();
    for names in names.chunks(200) {
        let input = json!({"Filters": [{"Name": "instance-type", "Values": names}]});
        let answer = tool.call("ec2", "describe-instance-types", &input).await?;
        types.extend(list(&answer["InstanceTypes"]).filter_map(type_of));
    }
    Ok(types)
}

fn type_of(one: &Value) -> Option<(String, InstanceType)> {
    let texts = |value: &Value| -> Vec<String> {
        list(value).filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let instance_type = InstanceType {
        architectures: texts(&one["ProcessorInfo"]["SupportedArchitectures"]),
        spot: texts(&one["SupportedUsageClasses"]).iter().any(|class| class == "spot"),
        cpus: one["VCpuInfo"]["DefaultVCpus"].as_u64().unwrap_or(0),
    };
    Some((one["InstanceType"].as_str()?.to_owned(), instance_type))
}

/// The stack's subnets; none where there is no such stack yet.
async fn subnets_of(
    tool: &Tool,
    stack: &str,
) -> anyhow::Result<Option<(Vec<String>, BTreeSet<String>)>> {
    let described =
        tool.call("cloudformation", "describe-stacks", &json!({"StackName": stack})).await;
    let answer = match described {
        Err(error) if code_of(&error) == "ValidationError" => return Ok(None),
        answer => answer?,
    };
    let named = list(&answer["Stacks"][0]["Parameters"])
        .find(|parameter| parameter["ParameterKey"] == "SubnetIds")
        .and_then(|parameter| parameter["ParameterValue"].as_str());
    let Some(named) = named else { return Ok(None) };
    let named: Vec<String> = named.split(',').map(|id| id.trim().to_owned()).collect();
    let input = json!({"Filters": [{"Name": "subnet-id", "Values": named}]});
    let answer = tool.call("ec2", "describe-subnets", &input).await?;
    let there = list(&answer["Subnets"]).filter_map(|subnet| subnet["SubnetId"].as_str());
    let there = there.map(str::to_owned).collect();
    Ok(Some((named, there)))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Judges the tiers by what AWS said.
pub fn judge(tiers: &Tiers, seen: &Seen) -> Vec<Found> {
    let mut all = Vec::new();
    for tier in own(tiers) {
        all.extend(images(tier, seen));
        all.extend(types(tier, seen));
        all.extend(limits(tier, seen));
    }
    let whole = |key: &str, level, problem: String, hint: &str| Found {
        tier: String::new(),
        key: key.to_owned(),
        level,
        problem,
        hint: hint.to_owned(),
    };
    if let Some((named, there)) = &seen.subnets {
        all.extend(named.iter().filter(|id| !there.contains(*id)).map(|id| {
            let problem = format!("the stack's subnet {id} does not exist");
            whole("SubnetIds", Level::Fail, problem, "deploy the stack with SubnetIds that do")
        }));
    }
    all.extend(seen.missing_roles.iter().map(|role| {
        let service = if *role == SPOT_ROLE { "spot" } else { "ec2fleet" };
        whole(
            "market",
            Level::Fail,
            format!("the account has no service-linked role {role}"),
            &format!(
                "aws iam create-service-linked-role --aws-service-name {service}.amazonaws.com"
            ),
        )
    }));
    all.extend(seen.unknown.iter().map(|what| {
        whole("", Level::Warn, format!("could not be checked: {what}"), "--offline leaves AWS out")
    }));
    all
}

fn found(tier: &Tier, key: &str, level: Level, problem: String, hint: &str) -> Found {
    let (tier, key, hint) = (tier.name.clone(), key.to_owned(), hint.to_owned());
    Found { tier, key, level, problem, hint }
}

fn aws_name(tier: &Tier) -> &'static str {
    match tier.architecture.label() {
        "x64" => "x86_64",
        other => other,
    }
}

fn images(tier: &Tier, seen: &Seen) -> Vec<Found> {
    let mut all = Vec::new();
    for (at, named) in tier.images.iter().enumerate() {
        let key = format!("images[{at}]");
        let mut fail = |problem: String, hint: &str| {
            all.push(found(tier, &key, Level::Fail, problem, hint));
        };
        let id = match (&seen.parameters, named.starts_with('/')) {
            (_, false) => named,
            (None, true) => continue,
            (Some(held), true) => match held.get(named) {
                Some(id) => id,
                None => {
                    fail(
                        format!("there is no SSM parameter {named}"),
                        "make it, with an AMI id in it",
                    );
                    continue;
                }
            },
        };
        let Some(known) = &seen.images else { continue };
        let held = if id == named { String::new() } else { format!(", which {named} holds,") };
        let Some(image) = known.get(id) else {
            fail(
                format!(
                    "the image {id}{held} does not exist in this region, or is not shared with this account"
                ),
                "name another one",
            );
            continue;
        };
        if image.state != "available" {
            fail(format!("the image {id}{held} is {}", image.state), "name one that is available");
        }
        if image.architecture != aws_name(tier) {
            let (is, wanted) = (&image.architecture, aws_name(tier));
            fail(
                format!("the image {id}{held} is for {is}, and the tier for {wanted}"),
                "name another one",
            );
        }
        if let (Some(root), Some(gib)) = (image.root_gib, tier.root_volume_gib)
            && u64::from(gib) < root
        {
            let problem = format!(
                "root_volume_gib {gib} is less than the {root} GiB of the image {id}{held}"
            );
            fail(problem, "raise root_volume_gib, or leave it out");
        }
    }
    all
}

fn types(tier: &Tier, seen: &Seen) -> Vec<Found> {
    let Some(known) = &seen.types else { return vec![] };
    let mut all = Vec::new();
    for (at, name) in tier.instance_types.iter().enumerate() {
        let key = format!("instance_types[{at}]");
        let Some(instance_type) = known.get(name) else {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let near = super::words::nearest(name, &names);
            let hint =
                near.map_or("name another one".into(), |near| format!("did you mean {near}?"));
            let problem = format!("'{name}' is not sold in this region");
            all.push(found(tier, &key, Level::Fail, problem, &hint));
            continue;
        };
        let wanted = aws_name(tier);
        if !instance_type.architectures.iter().any(|one| one == wanted) {
            let problem = format!(
                "'{name}' is {}, and the tier {wanted}",
                instance_type.architectures.join(", ")
            );
            all.push(found(tier, &key, Level::Fail, problem, "choose another type"));
        }
        if tier.market != Market::OnDemand && !instance_type.spot {
            let problem = format!("'{name}' is not sold as spot");
            all.push(found(tier, &key, Level::Warn, problem, "leave it out, or buy on-demand"));
        }
    }
    all
}

fn limits(tier: &Tier, seen: &Seen) -> Vec<Found> {
    let mut all = Vec::new();
    if let Some((subnets, _)) = &seen.subnets {
        let count = tier.images.len() * tier.instance_types.len() * subnets.len();
        if count > MOST_COMBINATIONS {
            let problem = format!(
                "{count} combinations of image, instance type and subnet are more than the {MOST_COMBINATIONS} \
                 that EC2 takes; the last are left out"
            );
            all.push(found(tier, "instance_types", Level::Warn, problem, "name fewer"));
        }
    }
    // What its machines take together, if all are of its smallest type. More than that can't be run, whatever
    // else the account does.
    let Some(known) = &seen.types else { return all };
    let standard =
        |name: &&String| name.bytes().next().is_some_and(|byte| STANDARD.contains(&byte));
    let smallest = tier.instance_types.iter().filter(standard);
    let smallest = smallest.filter_map(|name| known.get(name)).map(|one| one.cpus).min();
    let (Some(cpus), Some(most)) = (smallest, tier.max_runners) else { return all };
    let needed = cpus * u64::from(most);
    let markets = [tier.market == Market::OnDemand, tier.market != Market::OnDemand];
    for ((quota, (_, market)), bought) in seen.quotas.iter().zip(QUOTAS).zip(markets) {
        if let Some(quota) = quota.filter(|_| bought)
            && f64::from(u32::try_from(needed).unwrap_or(u32::MAX)) > quota
        {
            let problem = format!(
                "max_runners {most} need {needed} vCPUs or more, and the account's {market} quota is {quota}"
            );
            all.push(found(
                tier,
                "max_runners",
                Level::Warn,
                problem,
                "ask for a higher quota, or lower it",
            ));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers() -> Tiers {
        let tiers = json!({"tiers": [
            {"name": "a", "architecture": "x64", "images": ["ami-1", "/ostler/images/x"],
                "instance_types": ["m7i.large", "m7i.lrage"], "market": "spot", "max_runners": 100,
                "root_volume_gib": 20},
            {"name": "elsewhere", "architecture": "x64", "images": ["ami-9"], "labels": ["b"],
                "instance_types": ["zz9.large"], "account": {"role_arn": "arn:aws:iam::444455556666:role/r",
                "external_id": "0123456789", "region": "eu-west-1", "subnets": ["subnet-0123456789abcdef0"],
                "template_on_demand": "lt-0123456789abcdef0:1", "template_spot": "lt-0123456789abcdef0:1",
                "handoff_table": "handoff", "runner_role_id": "AROA0123456789ABCDEFG"}}]});
        let tiers = Tiers::parse(&tiers.to_string());
        assert_eq!(tiers.problems, Vec::<String>::new());
        tiers
    }

    fn image(architecture: &str, root_gib: u64) -> Image {
        let (architecture, state) = (architecture.to_owned(), "available".to_owned());
        Image { architecture, state, root_gib: Some(root_gib) }
    }

    fn seen() -> Seen {
        let instance_type =
            InstanceType { architectures: vec!["x86_64".into()], spot: true, cpus: 2 };
        Seen {
            parameters: Some(BTreeMap::from([("/ostler/images/x".into(), "ami-2".into())])),
            images: Some(BTreeMap::from([
                ("ami-1".into(), image("x86_64", 8)),
                ("ami-2".into(), image("x86_64", 8)),
            ])),
            types: Some(BTreeMap::from([
                ("m7i.large".into(), instance_type.clone()),
                ("m7i.lrage".into(), instance_type),
            ])),
            subnets: Some((vec!["subnet-1".into()], BTreeSet::from(["subnet-1".into()]))),
            missing_roles: vec![],
            quotas: [Some(1000.0), Some(1000.0)],
            unknown: vec![],
        }
    }

    fn problems(change: impl FnOnce(&mut Seen)) -> Vec<(String, Level, String)> {
        let mut seen = seen();
        change(&mut seen);
        let found = judge(&tiers(), &seen).into_iter();
        found
            .map(|found| (found.key, found.level, format!("{}; {}", found.problem, found.hint)))
            .collect()
    }

    fn only(change: impl FnOnce(&mut Seen), key: &str, level: Level, says: &str) {
        let problems = problems(change);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!((problems[0].0.as_str(), problems[0].1), (key, level), "{problems:?}");
        assert!(problems[0].2.contains(says), "{problems:?}");
    }

    #[test]
    fn what_aws_has_not_got_is_told_of_by_tier_and_key() {
        assert_eq!(problems(|_| {}), [], "all is there; the other account is not looked at");
        let images = |seen: &mut Seen, id: &str, new: Option<Image>| {
            let all = seen.images.as_mut().unwrap();
            all.remove(id);
            all.extend(new.map(|image| (id.to_owned(), image)));
        };
        only(|seen| images(seen, "ami-1", None), "images[0]", Level::Fail, "does not exist");
        only(
            |seen| images(seen, "ami-2", None),
            "images[1]",
            Level::Fail,
            "which /ostler/images/x holds",
        );
        only(
            |seen| seen.parameters = Some(BTreeMap::new()),
            "images[1]",
            Level::Fail,
            "no SSM parameter",
        );
        let arm64 = Some(image("arm64", 8));
        only(|seen| images(seen, "ami-1", arm64), "images[0]", Level::Fail, "is for arm64");
        let large = Some(image("x86_64", 30));
        only(|seen| images(seen, "ami-1", large), "images[0]", Level::Fail, "less than the 30 GiB");
        let pending = Some(Image { state: "pending".into(), ..image("x86_64", 8) });
        only(|seen| images(seen, "ami-1", pending), "images[0]", Level::Fail, "is pending");
    }

    #[test]
    fn types_subnets_roles_and_limits_are_checked() {
        let types = |seen: &mut Seen| {
            seen.types.as_mut().unwrap().remove("m7i.lrage");
        };
        only(types, "instance_types[1]", Level::Fail, "did you mean m7i.large?");
        let change = |seen: &mut Seen, change: fn(&mut InstanceType)| {
            change(seen.types.as_mut().unwrap().get_mut("m7i.large").unwrap());
        };
        let arm64: fn(&mut InstanceType) = |one| one.architectures = vec!["arm64".into()];
        only(|seen| change(seen, arm64), "instance_types[0]", Level::Fail, "'m7i.large' is arm64");
        only(|seen| change(seen, |one| one.spot = false), "instance_types[0]", Level::Warn, "spot");
        let gone = |seen: &mut Seen| seen.subnets.as_mut().unwrap().1.clear();
        only(gone, "SubnetIds", Level::Fail, "subnet-1 does not exist");
        only(
            |seen| seen.missing_roles.push(SPOT_ROLE),
            "market",
            Level::Fail,
            "spot.amazonaws.com",
        );
        only(|seen| seen.quotas[1] = Some(64.0), "max_runners", Level::Warn, "need 200 vCPUs");
        assert_eq!(problems(|seen| seen.quotas[0] = Some(1.0)), [], "spot has a quota of its own");
        let many = |seen: &mut Seen| {
            let ids: Vec<_> = (0..80).map(|n| format!("subnet-{n}")).collect();
            seen.subnets = Some((ids.clone(), ids.into_iter().collect()));
        };
        only(many, "instance_types", Level::Warn, "320 combinations");
    }

    #[test]
    fn what_could_not_be_asked_proves_nothing() {
        let nothing = Seen { unknown: vec!["images: AccessDenied".into()], ..Seen::default() };
        let found = judge(&tiers(), &nothing);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].level, Level::Warn);
        assert!(found[0].problem.contains("could not be checked: images"));
    }

    #[test]
    fn answers_of_ec2_are_read() {
        let image = json!({"ImageId": "ami-1", "Architecture": "arm64", "State": "available",
            "RootDeviceName": "/dev/xvda", "BlockDeviceMappings": [
                {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
                {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 8}}]});
        let expected =
            Image { architecture: "arm64".into(), state: "available".into(), root_gib: Some(8) };
        assert_eq!(image_of(&image), Some(("ami-1".into(), expected)));
        let one = json!({"InstanceType": "m7i.large", "SupportedUsageClasses": ["on-demand", "spot"],
            "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]}, "VCpuInfo": {"DefaultVCpus": 2}});
        let expected = InstanceType { architectures: vec!["x86_64".into()], spot: true, cpus: 2 };
        assert_eq!(type_of(&one), Some(("m7i.large".into(), expected)));
    }
}
