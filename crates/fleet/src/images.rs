//! The machine images of a tier: ids, or SSM parameters that hold one, and what EC2 says of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::error::SdkError;
use aws_sdk_ec2::operation::describe_images::DescribeImagesError;
use aws_sdk_ec2::types::{Image as Ec2Image, ImageState};
use ostler_core::Result;
use ostler_core::config::Tier;
use ostler_core::ports::{Shortage, ec2_architecture};
use ostler_core::time::Timestamp;

use crate::errors::{Meaning, answered, failed, meaning, told};

/// A new image is used this long after its parameter was changed, at the latest.
const KEPT: Duration = Duration::from_secs(300);

/// More lists of images than any install has; beyond it the cache starts anew.
const MOST_KEPT: usize = 500;

/// An image that a tier's machines can start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// `ami-…`.
    pub(crate) id: String,
    /// Name of its root volume: a mapping under another name would be a second volume.
    pub(crate) root_device: String,
}

/// A tier's images, or what an operator has to mend.
pub(crate) type Found = std::result::Result<Arc<Vec<Image>>, String>;

/// What was found, and when, by architecture and images of the tier.
type Kept = BTreeMap<Vec<String>, (Timestamp, Arc<Vec<Image>>)>;

/// Looks images up and keeps them for some minutes.
pub(crate) struct Images {
    ec2: aws_sdk_ec2::Client,
    ssm: aws_sdk_ssm::Client,
    kept: Mutex<Kept>,
}

impl Images {
    pub(crate) fn new(ec2: aws_sdk_ec2::Client, ssm: aws_sdk_ssm::Client) -> Self {
        Self { ec2, ssm, kept: Mutex::default() }
    }

    /// The usable images of the tier, in its own order. One that is wrong costs the others nothing.
    pub(crate) async fn of(&self, tier: &Tier, now: Timestamp) -> Result<Found> {
        let mut key = vec![ec2_architecture(tier.architecture).to_owned()];
        key.extend(tier.images.iter().cloned());
        if let Some((read, images)) =
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key)
            && now.since(*read) < KEPT
        {
            return Ok(Ok(Arc::clone(images)));
        }
        let mut problems = Vec::new();
        let ids = self.ids(tier, &mut problems).await?;
        let images = self.usable(tier, &ids, &mut problems).await?;
        if images.is_empty() {
            return Ok(Err(format!(
                "tier '{}' has no usable image: {}",
                tier.name,
                problems.join("; ")
            )));
        }
        for problem in &problems {
            tracing::warn!(tier = tier.name, problem, "image left out");
        }
        let images = Arc::new(images);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(key, (now, Arc::clone(&images)));
        Ok(Ok(images))
    }

    /// Image ids, those in parameters read.
    async fn ids(&self, tier: &Tier, problems: &mut Vec<String>) -> Result<Vec<String>> {
        let is_id = |image: &&String| image.starts_with("ami-");
        let names: Vec<_> = tier.images.iter().filter(|it| !is_id(it)).cloned().collect();
        let mut values = BTreeMap::new();
        if !names.is_empty() {
            match self.ssm.get_parameters().set_names(Some(names)).send().await {
                Ok(answer) => {
                    let pairs = answer.parameters.unwrap_or_default().into_iter();
                    values.extend(pairs.filter_map(|it| Some((it.name?, it.value?))));
                }
                Err(error) => {
                    match answered(&error).map(|(code, it)| (meaning(code, it), code, it)) {
                        Some((Meaning::Refused(Shortage::Configuration, _), code, message)) => {
                            let advice = "the stack lets the function read <prefix>/images/ only";
                            problems.push(told(code, message, advice));
                        }
                        _ => return Err(failed("read the images' parameters", &error)),
                    }
                }
            }
        }
        let mut ids = Vec::new();
        for image in &tier.images {
            if is_id(&image) {
                ids.push(image.clone());
                continue;
            }
            match values.get(image).map(|value| value.trim()) {
                Some(id) if id.starts_with("ami-") => ids.push(id.to_owned()),
                Some(_) => {
                    problems.push(format!("parameter {image} does not hold an image id (ami-…)"))
                }
                None => {
                    problems.push(format!("there is no parameter {image}; put an image id there"))
                }
            }
        }
        Ok(ids)
    }

    async fn usable(
        &self,
        tier: &Tier,
        ids: &[String],
        problems: &mut Vec<String>,
    ) -> Result<Vec<Image>> {
        let mut found = Vec::new();
        match self.describe(ids).await? {
            Ok(images) => found = images,
            Err(problem) if ids.len() == 1 => problems.push(problem),
            // One bad id fails the call for all.
            Err(_) => {
                for id in ids {
                    match self.describe(std::slice::from_ref(id)).await? {
                        Ok(images) => found.extend(images),
                        Err(problem) => problems.push(problem),
                    }
                }
            }
        }
        let wanted = ec2_architecture(tier.architecture);
        let mut images = Vec::new();
        for id in ids {
            let Some(image) = found.iter().find(|it| it.image_id.as_ref() == Some(id)) else {
                continue;
            };
            let architecture = image.architecture.as_ref().map_or("", |it| it.as_str());
            match (&image.state, &image.root_device_name) {
                (Some(ImageState::Available), Some(root_device)) if architecture == wanted => {
                    images.push(Image { id: id.clone(), root_device: root_device.clone() });
                }
                (Some(ImageState::Available), Some(_)) => problems.push(format!(
                    "image {id} is for {architecture}, the tier's machines are {wanted}"
                )),
                (state, _) => problems.push(format!(
                    "image {id} is {}",
                    state.as_ref().map_or("without a root device", |it| it.as_str())
                )),
            }
        }
        Ok(images)
    }

    /// The images of those ids, or what EC2 says against one of them.
    async fn describe(&self, ids: &[String]) -> Result<std::result::Result<Vec<Ec2Image>, String>> {
        if ids.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let answer = self.ec2.describe_images().set_image_ids(Some(ids.to_vec())).send().await;
        match answer {
            Ok(answer) => Ok(Ok(answer.images.unwrap_or_default())),
            Err(error) => refused(&error).map(Err),
        }
    }
}

fn refused<R: std::fmt::Debug + 'static>(
    error: &SdkError<DescribeImagesError, R>,
) -> Result<String> {
    if let Some((code, message)) = answered(error)
        && let Meaning::Refused(Shortage::Configuration, advice) = meaning(code, message)
    {
        return Ok(told(code, message, advice));
    }
    Err(failed("look up the tier's images", error))
}
