//! What CloudFormation made in moto and a launch refers to: template versions, profiles, subnets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ostler_sim::ec2::{Fault, Metadata, Profile, Tags, Template};

use crate::aws::{ApiError, Client};
use crate::xml::Node;

/// Version of EC2's API.
const EC2_API: &str = "2016-11-15";
/// Version of IAM's API.
const IAM_API: &str = "2010-05-08";

/// A subnet's place.
#[derive(Clone, Debug)]
pub(super) struct Subnet {
    pub(super) id: String,
    pub(super) zone: String,
    pub(super) vpc: String,
}

/// Reads moto. A numbered version never changes, so it is read once.
pub(super) struct Templates {
    moto: Client,
    known: Mutex<BTreeMap<(String, String), Arc<Template>>>,
}

impl Templates {
    pub(super) fn new(moto: Client) -> Self {
        Self { moto, known: Mutex::default() }
    }

    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A version: a number, `$Latest` or `$Default`, of a template known by its id or its name.
    pub(super) async fn template(
        &self,
        by: &'static str,
        template: &str,
        version: &str,
    ) -> Result<Arc<Template>, Fault> {
        let key = (template.to_owned(), version.to_owned());
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let parameters = [(by, template), ("LaunchTemplateVersion.1", version)];
        let action = "DescribeLaunchTemplateVersions";
        let answer =
            self.moto.query("ec2", EC2_API, action, &parameters).await.map_err(passed_on)?;
        let found = answer.list("launchTemplateVersionSet").first().ok_or_else(|| {
            Fault::new(
                "InvalidLaunchTemplateId.VersionNotFound",
                format!("Could not find the specified version {version} of {template}."),
            )
        })?;
        let read = Arc::new(self.read(found).await?);
        if read.fault.is_none() && version.parse::<u64>().is_ok() {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(key, Arc::clone(&read));
        }
        Ok(read)
    }

    async fn read(&self, found: &Node) -> Result<Template, Fault> {
        let empty = Node::default();
        let data = found.find("launchTemplateData").unwrap_or(&empty);
        let some = |path: &str| Some(data.text_at(path)).filter(|it| !it.is_empty());
        let mut fault = None;
        let user_data = STANDARD.decode(data.text_at("userData")).unwrap_or_else(|_| {
            fault = Some(Fault::new("InvalidUserData.Malformed", "Invalid BASE64 encoding"));
            Vec::new()
        });
        let profile = match self.profile(data).await? {
            Ok(profile) => profile,
            Err(wrong) => {
                fault = Some(wrong);
                None
            }
        };
        let hop_limit = data.text_at("metadataOptions/httpPutResponseHopLimit").parse();
        let own_subnet =
            data.list("networkInterfaceSet").first().map(|it| it.text_at("subnetId").to_owned());
        Ok(Template {
            id: found.text_at("launchTemplateId").to_owned(),
            version: found.text_at("versionNumber").to_owned(),
            image: some("imageId").map(str::to_owned),
            instance_type: some("instanceType").map(str::to_owned),
            subnet: own_subnet.filter(|it| !it.is_empty()),
            user_data: user_data.into(),
            instance_tags: tags(data, "instance"),
            spot_request_tags: tags(data, "spot-instances-request"),
            terminates_on_power_off: some("instanceInitiatedShutdownBehavior") == Some("terminate"),
            profile,
            metadata: Metadata {
                token_required: some("metadataOptions/httpTokens") == Some("required"),
                hop_limit: hop_limit.unwrap_or(Metadata::default().hop_limit),
                shows_tags: some("metadataOptions/instanceMetadataTags") == Some("enabled"),
            },
            fault,
        })
    }

    /// The instance profile; the inner error is EC2's about one that does not exist (field reports on
    /// profiles just created say the same code: hashicorp/terraform#15341).
    async fn profile(&self, data: &Node) -> Result<Result<Option<Profile>, Fault>, Fault> {
        let (arn, name) =
            (data.text_at("iamInstanceProfile/arn"), data.text_at("iamInstanceProfile/name"));
        let (kind, given) = if arn.is_empty() { ("name", name) } else { ("arn", arn) };
        if given.is_empty() {
            return Ok(Ok(None));
        }
        let name = given.rsplit('/').next().unwrap_or(given);
        let parameters = [("InstanceProfileName", name)];
        match self.moto.query("iam", IAM_API, "GetInstanceProfile", &parameters).await {
            Ok(answer) => {
                let text = |path: &str| {
                    answer
                        .text_at(&format!("GetInstanceProfileResult/InstanceProfile/{path}"))
                        .to_owned()
                };
                Ok(Ok(Some(Profile {
                    arn: text("Arn"),
                    id: text("InstanceProfileId"),
                    role_id: text("Roles/member/RoleId"),
                })))
            }
            Err(error) if error.code == "NoSuchEntity" => {
                let what = if kind == "arn" { "ARN" } else { "name" };
                Ok(Err(Fault::new(
                    "InvalidParameterValue",
                    format!(
                        "Value ({given}) for parameter iamInstanceProfile.{kind} is invalid. Invalid \
                         IAM Instance Profile {what}"
                    ),
                )))
            }
            Err(error) => Err(passed_on(error)),
        }
    }

    pub(super) async fn subnets(&self) -> Result<Vec<Subnet>, Fault> {
        let answer =
            self.moto.query("ec2", EC2_API, "DescribeSubnets", &[]).await.map_err(passed_on)?;
        let subnet = |it: &Node| Subnet {
            id: it.text_at("subnetId").to_owned(),
            zone: it.text_at("availabilityZone").to_owned(),
            vpc: it.text_at("vpcId").to_owned(),
        };
        Ok(answer.list("subnetSet").iter().map(subnet).collect())
    }

    /// A call on what is not ours: moto's affair.
    pub(super) async fn hand_on(&self, parameters: &BTreeMap<String, String>) -> Result<(), Fault> {
        let action = parameters.get("Action").map_or("", String::as_str);
        let rest: Vec<_> = parameters
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "Action" | "Version"))
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        self.moto.query("ec2", EC2_API, action, &rest).await.map(drop).map_err(passed_on)
    }
}

fn tags(data: &Node, resource: &str) -> Tags {
    data.list("tagSpecificationSet")
        .iter()
        .filter(|it| it.text_at("resourceType") == resource)
        .flat_map(|it| it.list("tagSet"))
        .map(|it| (it.text_at("key").to_owned(), it.text_at("value").to_owned()))
        .collect()
}

/// moto's error as EC2's; one without a code is that of a moto that doesn't answer.
fn passed_on(error: ApiError) -> Fault {
    if error.code.is_empty() {
        Fault::new("InternalError", format!("The local world's moto failed: {error}"))
    } else {
        Fault::new(error.code, error.message)
    }
}
