//! EC2's answers. The names are those of the EC2 API's XML, which SDKs read case-sensitively.

use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use ostler_core::time::Timestamp;
use ostler_sim::ec2::{
    Change, Fault, FleetAnswer, FleetRequest, Image, Instance, Market, Override, State, Tags,
};

use super::Answer;
use crate::xml::escape;

/// Account of everything in the local world (moto's).
const ACCOUNT: &str = crate::aws::ACCOUNT;

/// An answer being written.
pub(super) struct Xml(String);

impl Xml {
    /// `<ActionResponse>` with its request id and what `content` writes.
    pub(super) fn response(action: &str, content: impl FnOnce(&mut Self)) -> Answer {
        let mut xml = Self("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned());
        let _ =
            write!(xml.0, "<{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">");
        xml.leaf("requestId", request_id());
        content(&mut xml);
        let _ = write!(xml.0, "</{action}Response>");
        Answer { status: 200, body: xml.0 }
    }

    /// `<return>true</return>`: all that some calls answer.
    pub(super) fn done(action: &str) -> Answer {
        Self::response(action, |xml| xml.leaf("return", true))
    }

    /// An error.
    pub(super) fn error(fault: &Fault) -> Answer {
        let status = if fault.code == "DryRunOperation" { 412 } else { fault.status() };
        let mut xml = Self("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response>".to_owned());
        xml.node("Errors", |xml| {
            xml.node("Error", |xml| {
                xml.leaf("Code", &fault.code);
                xml.leaf("Message", &fault.message);
            });
        });
        xml.leaf("RequestID", request_id());
        xml.0.push_str("</Response>");
        Answer { status, body: xml.0 }
    }

    pub(super) fn leaf(&mut self, name: &str, text: impl Display) {
        let _ = write!(self.0, "<{name}>{}</{name}>", escape(&text.to_string()));
    }

    fn some(&mut self, name: &str, text: Option<impl Display>) {
        if let Some(text) = text {
            self.leaf(name, text);
        }
    }

    pub(super) fn node(&mut self, name: &str, content: impl FnOnce(&mut Self)) {
        let _ = write!(self.0, "<{name}>");
        content(self);
        let _ = write!(self.0, "</{name}>");
    }

    /// `<name>` with an `<item>` for each.
    pub(super) fn items<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        self.node(name, |xml| {
            for item in items {
                xml.node("item", |xml| each(xml, item));
            }
        });
    }

    fn tags(&mut self, tags: &Tags) {
        self.items("tagSet", tags, |xml, (key, value)| {
            xml.leaf("key", key);
            xml.leaf("value", value);
        });
    }

    fn state(&mut self, name: &str, state: State) {
        self.node(name, |xml| {
            xml.leaf("code", state.code());
            xml.leaf("name", state.name());
        });
    }

    pub(super) fn next_token(&mut self, token: Option<&String>) {
        self.some("nextToken", token);
    }

    pub(super) fn changes(&mut self, changes: &[Change]) {
        self.items("instancesSet", changes, |xml, change| {
            xml.leaf("instanceId", &change.instance);
            xml.state("currentState", change.current);
            xml.state("previousState", change.previous);
        });
    }

    pub(super) fn fleet(&mut self, request: &FleetRequest, answer: &FleetAnswer) {
        let own = Override::default();
        let bought = |xml: &mut Self, place: usize| {
            let chosen = request.overrides.get(place).unwrap_or(&own);
            xml.node("launchTemplateAndOverrides", |xml| {
                xml.node("launchTemplateSpecification", |xml| {
                    xml.leaf("launchTemplateId", &request.template.id);
                    xml.leaf("version", &request.template.version);
                });
                xml.node("overrides", |xml| {
                    xml.some("instanceType", chosen.instance_type.as_ref());
                    xml.some("subnetId", chosen.subnet.as_ref());
                    xml.some("imageId", chosen.image.as_ref());
                    xml.some("priority", chosen.priority);
                });
            });
            xml.leaf("lifecycle", request.market.name());
        };
        self.leaf("fleetId", &answer.fleet);
        self.items("errorSet", &answer.errors, |xml, error| {
            bought(xml, error.place);
            xml.leaf("errorCode", &error.fault.code);
            xml.leaf("errorMessage", &error.fault.message);
        });
        self.items("fleetInstanceSet", &answer.instances, |xml, instances| {
            bought(xml, instances.place);
            xml.items("instanceIds", &instances.ids, |xml, id| {
                let _ = write!(xml.0, "{}", escape(id));
            });
            xml.leaf("instanceType", &instances.instance_type);
        });
    }

    /// A reservation of one instance. `vpc` is that of its subnet.
    pub(super) fn reservation(&mut self, now: Timestamp, instance: &Instance, vpc: &str) {
        self.leaf("reservationId", &instance.reservation);
        self.leaf("ownerId", ACCOUNT);
        self.node("groupSet", |_| {});
        self.items("instancesSet", [instance], |xml, it| xml.instance(now, it, vpc));
    }

    fn instance(&mut self, now: Timestamp, instance: &Instance, vpc: &str) {
        let step = instance.step(now);
        let reason = step.reason.as_ref();
        self.leaf("instanceId", &instance.id);
        self.leaf("imageId", &instance.image.id);
        self.state("instanceState", step.state);
        self.leaf("reason", reason.map_or("", |it| it.transition.as_str()));
        self.leaf("amiLaunchIndex", 0);
        self.leaf("instanceType", &instance.pool.instance_type);
        self.leaf("launchTime", time(instance.launched));
        self.node("placement", |xml| {
            xml.leaf("availabilityZone", &instance.pool.zone);
            xml.leaf("groupName", "");
            xml.leaf("tenancy", "default");
        });
        self.node("monitoring", |xml| xml.leaf("state", "disabled"));
        // Network and volumes are gone from an instance that has ended (User Guide, "Terminate").
        if step.state != State::Terminated {
            self.leaf("subnetId", &instance.subnet);
            self.leaf("vpcId", vpc);
            self.leaf("privateIpAddress", &instance.address);
        }
        if let Some(reason) = reason {
            self.node("stateReason", |xml| {
                xml.leaf("code", reason.code);
                xml.leaf("message", &reason.message);
            });
        }
        self.leaf("architecture", &instance.image.architecture);
        self.leaf("rootDeviceType", "ebs");
        self.leaf("rootDeviceName", &instance.image.root_device);
        let volumes = if step.state == State::Terminated { &[] } else { &instance.volumes[..] };
        self.items("blockDeviceMapping", volumes.iter().enumerate(), |xml, (n, (device, _))| {
            xml.leaf("deviceName", device);
            xml.node("ebs", |xml| {
                xml.leaf("volumeId", format!("vol-{n}{}", instance.id.trim_start_matches("i-0")));
                xml.leaf("status", "attached");
                xml.leaf("attachTime", time(instance.launched));
                xml.leaf("deleteOnTermination", true);
            });
        });
        self.leaf("virtualizationType", "hvm");
        if let Some(spot) = &instance.spot {
            self.leaf("instanceLifecycle", "spot");
            self.leaf("spotInstanceRequestId", &spot.id);
        }
        self.leaf("clientToken", &instance.client_token);
        self.tags(instance.shown_tags(now));
        self.leaf("hypervisor", "xen");
        if let Some(profile) = &instance.template.profile {
            self.node("iamInstanceProfile", |xml| {
                xml.leaf("arn", &profile.arn);
                xml.leaf("id", &profile.id);
            });
        }
        let metadata = &instance.template.metadata;
        self.node("metadataOptions", |xml| {
            xml.leaf("state", "applied");
            xml.leaf("httpTokens", if metadata.token_required { "required" } else { "optional" });
            xml.leaf("httpPutResponseHopLimit", metadata.hop_limit);
            xml.leaf("httpEndpoint", "enabled");
            xml.leaf("httpProtocolIpv6", "disabled");
            xml.leaf(
                "instanceMetadataTags",
                if metadata.shows_tags { "enabled" } else { "disabled" },
            );
        });
    }

    /// The status checks: those of a machine in which nothing starts fail.
    pub(super) fn status(&mut self, now: Timestamp, instance: &Instance) {
        let status = match instance.boots {
            None => "impaired",
            Some(boots) if now < boots => "initializing",
            Some(_) => "ok",
        };
        self.leaf("instanceId", &instance.id);
        self.leaf("availabilityZone", &instance.pool.zone);
        self.state("instanceState", instance.state(now));
        self.node("systemStatus", |xml| xml.leaf("status", "ok"));
        self.node("instanceStatus", |xml| xml.leaf("status", status));
    }

    pub(super) fn spot_request(&mut self, now: Timestamp, instance: &Instance) {
        let (Some(spot), Some(status)) = (&instance.spot, instance.spot_status(now)) else {
            return;
        };
        self.leaf("spotInstanceRequestId", &spot.id);
        self.leaf("type", spot.kind());
        self.leaf("state", status.state);
        self.node("status", |xml| {
            xml.leaf("code", status.code);
            xml.leaf("updateTime", time(instance.step(now).at));
        });
        self.leaf("instanceId", &instance.id);
        self.leaf("createTime", time(spot.created));
        self.leaf("launchedAvailabilityZone", &instance.pool.zone);
        self.leaf("productDescription", "Linux/UNIX");
        self.leaf("instanceInterruptionBehavior", "terminate");
        self.tags(&spot.tags);
    }

    pub(super) fn image(&mut self, image: &Image) {
        self.leaf("imageId", &image.id);
        self.leaf("imageLocation", format!("{}/{}", image.owner, image.name));
        self.leaf("imageState", &image.state);
        self.leaf("imageOwnerId", &image.owner);
        self.leaf("isPublic", false);
        self.leaf("architecture", &image.architecture);
        self.leaf("imageType", "machine");
        self.leaf("name", &image.name);
        self.leaf("rootDeviceType", "ebs");
        self.leaf("rootDeviceName", &image.root_device);
        self.items("blockDeviceMapping", [image], |xml, image| {
            xml.leaf("deviceName", &image.root_device);
            xml.node("ebs", |xml| {
                xml.leaf("deleteOnTermination", true);
                xml.leaf("volumeSize", image.root_gib);
                xml.leaf("volumeType", "gp3");
            });
        });
        self.leaf("virtualizationType", "hvm");
        self.leaf("hypervisor", "xen");
        self.node("tagSet", |_| {});
    }
}

/// Market by EC2's name of it.
pub(super) fn market(name: &str) -> Option<Market> {
    [Market::OnDemand, Market::Spot].into_iter().find(|market| market.name() == name)
}

/// `2026-11-30T12:00:00.000Z`.
fn time(at: Timestamp) -> String {
    at.to_string().replace('Z', ".000Z")
}

/// Ids of requests are UUIDs; ours count, so that logs can be followed.
fn request_id() -> String {
    static REQUESTS: AtomicU64 = AtomicU64::new(1);
    format!("00000000-0000-4000-8000-{:012x}", REQUESTS.fetch_add(1, Ordering::Relaxed))
}
