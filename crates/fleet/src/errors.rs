//! EC2's errors, told apart by what can be done about them. This is the only place that knows codes.
//!
//! Source of the codes: EC2 API Reference, "Error codes"; which of them come inside a CreateFleet answer:
//! the lists of aws/karpenter-provider-aws and github-aws-runners/terraform-aws-github-runner.

use std::error::Error as StdError;

use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::display::DisplayErrorContext;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use ostler_core::Error;
use ostler_core::ports::Shortage;

/// Longest text of an error: enough for code and cause. `UnauthorizedOperation` brings kilobytes of an
/// encoded message with it.
const MAX_TEXT: usize = 400;

/// What a code of EC2's means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// No machine was sold, for this reason; the text says what an operator has to do, if anything.
    Refused(Shortage, &'static str),
    /// The client token belongs to another purchase.
    TokenUsed,
    /// There is no such instance or spot request, or EC2 does not know it yet, or no longer.
    NoInstance,
}

use Meaning::{NoInstance, Refused, TokenUsed};
use Shortage::{Capacity, Configuration, Quota, Throttled, Unknown};

/// Codes that are known by their name alone.
const CODES: [(&str, Meaning); 52] = [
    ("RequestLimitExceeded", Refused(Throttled, "")),
    ("Throttling", Refused(Throttled, "")),
    ("ThrottlingException", Refused(Throttled, "")),
    ("ThrottledException", Refused(Throttled, "")),
    ("RequestThrottled", Refused(Throttled, "")),
    ("RequestThrottledException", Refused(Throttled, "")),
    ("EC2ThrottledException", Refused(Throttled, "")),
    ("TooManyRequestsException", Refused(Throttled, "")),
    ("SlowDown", Refused(Throttled, "")),
    ("Unavailable", Refused(Throttled, "")),
    ("ServiceUnavailable", Refused(Throttled, "")),
    ("InsufficientInstanceCapacity", Refused(Capacity, "")),
    ("InsufficientCapacity", Refused(Capacity, "")),
    ("InsufficientHostCapacity", Refused(Capacity, "")),
    ("InsufficientCapacityOnHost", Refused(Capacity, "")),
    ("InsufficientReservedInstanceCapacity", Refused(Capacity, "")),
    ("InsufficientVolumeCapacity", Refused(Capacity, "")),
    ("InsufficientAddressCapacity", Refused(Capacity, "")),
    ("InsufficientFreeAddressesInSubnet", Refused(Capacity, "add subnets, or larger ones")),
    ("ReservationCapacityExceeded", Refused(Capacity, "")),
    ("UnfulfillableCapacity", Refused(Capacity, "")),
    ("SpotMaxPriceTooLow", Refused(Capacity, "")),
    // A type that a zone does not have; seen to pass by itself (aws/karpenter-provider-aws#2147).
    ("Unsupported", Refused(Capacity, NOT_IN_ZONE)),
    ("VcpuLimitExceeded", Refused(Quota, QUOTA)),
    ("InstanceLimitExceeded", Refused(Quota, QUOTA)),
    ("MaxSpotInstanceCountExceeded", Refused(Quota, QUOTA)),
    ("MaxFleetCountExceeded", Refused(Quota, QUOTA)),
    ("MaxSpotFleetRequestCountExceeded", Refused(Quota, QUOTA)),
    ("TargetCapacityLimitExceededException", Refused(Quota, QUOTA)),
    ("VolumeLimitExceeded", Refused(Quota, QUOTA)),
    ("MaxIOPSLimitExceeded", Refused(Quota, QUOTA)),
    ("NetworkInterfaceLimitExceeded", Refused(Quota, QUOTA)),
    ("AddressLimitExceeded", Refused(Quota, QUOTA)),
    ("ResourceLimitExceeded", Refused(Quota, QUOTA)),
    ("PendingVerification", Refused(Quota, "AWS is still verifying the account in this region")),
    ("UnauthorizedOperation", Refused(Configuration, PERMISSION)),
    ("AccessDenied", Refused(Configuration, PERMISSION)),
    ("AccessDeniedException", Refused(Configuration, PERMISSION)),
    ("AuthFailure", Refused(Configuration, PERMISSION)),
    (
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        Refused(
            Configuration,
            "make the spot role once: aws iam create-service-linked-role --aws-service-name \
             spot.amazonaws.com",
        ),
    ),
    (
        "OptInRequired",
        Refused(Configuration, "subscribe to the image in AWS Marketplace, or enable the region"),
    ),
    ("OperationNotPermitted", Refused(Configuration, "take termination protection off")),
    ("UnsupportedOperation", Refused(Configuration, TIER)),
    ("UnknownParameter", Refused(Configuration, TIER)),
    ("ValidationError", Refused(Configuration, TIER)),
    ("TagLimitExceeded", Refused(Configuration, "the launch template adds too many tags")),
    ("TagPolicyViolation", Refused(Configuration, "the organisation's tag policy forbids a tag")),
    ("InvalidBlockDeviceMapping", Refused(Configuration, "raise the tier's root_volume_gib")),
    ("IdempotentParameterMismatch", TokenUsed),
    ("InvalidInstanceID.NotFound", NoInstance),
    ("InvalidSpotInstanceRequestID.NotFound", NoInstance),
    // Credentials' affairs, which pass: not "Invalid" configuration as the prefix would say.
    ("InvalidClientTokenId", Refused(Unknown, "")),
];

/// What an operator has to look at, by the beginning of the code and a part of the message; the first
/// that fits. All are [`Shortage::Configuration`].
const ADVICE: [(&str, &str, &str); 13] = [
    ("InvalidAMI", "", "correct the tier's images"),
    ("InvalidSubnet", "", "deploy the stack with subnets that exist"),
    ("InvalidSecurityGroup", "", "deploy the stack with a security group that exists"),
    ("InvalidGroup", "", "deploy the stack with a security group that exists"),
    ("InvalidLaunchTemplate", "", "deploy the stack again: its launch template is gone"),
    ("InvalidUserData", "", USER_DATA),
    ("Invalid", "User data is limited", USER_DATA),
    (
        "Invalid",
        "IAM Instance Profile",
        "the launch template must name an instance profile, not a role, and one that was just made \
         takes a minute to be known",
    ),
    (
        "Invalid",
        "architecture",
        "the tier's images, instance types and architecture must be of one kind",
    ),
    (
        "Invalid",
        "tags for Spot instances requests",
        "only the spot launch template may tag spot requests; deploy the stack again",
    ),
    ("Invalid", "belong to different networks", "subnets and security group must be of one VPC"),
    ("Invalid", "", TIER),
    ("Missing", "", TIER),
];

const NOT_IN_ZONE: &str = "if it stays: a subnet's zone may not have that type";
const QUOTA: &str = "ask AWS for a higher quota (Service Quotas, EC2)";
const PERMISSION: &str = "EC2 does not allow it: deploy the stack's current template, and look for \
                          policies of the organisation and for images that are not shared";
const TIER: &str = "correct the tier's types, images or subnets, or deploy the stack again";
const USER_DATA: &str = "the bootstrap script is longer than EC2's 16,384 bytes";

/// The meaning of an error that EC2 gave, by itself or inside an answer. What is not known is taken for
/// passing.
pub(crate) fn meaning(code: &str, message: &str) -> Meaning {
    if let Some((_, meaning)) = CODES.iter().find(|(known, _)| *known == code) {
        return *meaning;
    }
    if lacks_type(code, message) {
        return Refused(Capacity, NOT_IN_ZONE);
    }
    ADVICE
        .iter()
        .find(|(start, part, _)| code.starts_with(start) && message.contains(part))
        .map_or(Refused(Unknown, ""), |(_, _, advice)| Refused(Configuration, advice))
}

/// Whether an error inside an answer says that the subnet's zone does not have the type: of one combination among
/// several this is no mistake, since the others may be had (hashicorp/packer#9946, compiler-explorer/infra#601).
pub(crate) fn lacks_type(code: &str, message: &str) -> bool {
    code == "InvalidFleetConfiguration" && message.contains("requested Availability Zone")
}

/// How grave a reason is: the gravest of an answer's is told. What an operator has to mend comes first;
/// what waiting alone may mend comes last.
pub(crate) const fn gravity(shortage: Shortage) -> u8 {
    match shortage {
        Configuration => 4,
        Quota => 3,
        Throttled => 2,
        Unknown => 1,
        Capacity => 0,
    }
}

/// EC2's code and words, and what to do.
pub(crate) fn told(code: &str, message: &str, advice: &str) -> String {
    let (message, advice) = (message.trim(), advice.trim());
    let dash = if advice.is_empty() { "" } else { "; to do: " };
    let room = MAX_TEXT.saturating_sub(code.len() + advice.len());
    let message = &message[..message.floor_char_boundary(room)];
    format!("{code}: {message}{dash}{advice}")
}

/// Code and message of an error that the service itself gave.
pub(crate) fn answered<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> Option<(&str, &str)> {
    let service = error.as_service_error()?;
    Some((service.code()?, service.message().unwrap_or_default()))
}

/// The domain's error for a failed call; `what` says what was to be done, and to what.
pub(crate) fn failed<E, R>(what: &str, error: &SdkError<E, R>) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
    R: std::fmt::Debug + 'static,
{
    let Some((code, message)) = answered(error) else {
        let mut text = format!("{what}: {}", DisplayErrorContext(error));
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        return match error {
            SdkError::ConstructionFailure(_) => Error::Permanent(text),
            _ => Error::Transient(text),
        };
    };
    match meaning(code, message) {
        Refused(Configuration, advice) => {
            Error::Permanent(format!("{what}: {}", told(code, message, advice)))
        }
        NoInstance => Error::NotFound(format!("{what}: {}", told(code, message, ""))),
        TokenUsed => Error::Conflict(format!("{what}: {}", told(code, message, ""))),
        Refused(_, advice) => Error::Transient(format!("{what}: {}", told(code, message, advice))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage(code: &str, message: &str) -> Shortage {
        match meaning(code, message) {
            Refused(shortage, _) => shortage,
            other => panic!("{code}: {other:?}"),
        }
    }

    #[test]
    fn cp_09_throttling_is_known_under_all_its_names() {
        for code in [
            "RequestLimitExceeded",
            "Throttling",
            "ThrottlingException",
            "ThrottledException",
            "RequestThrottled",
            "EC2ThrottledException",
            "TooManyRequestsException",
            "SlowDown",
            "Unavailable",
            "ServiceUnavailable",
        ] {
            assert_eq!(shortage(code, ""), Throttled, "{code}");
        }
    }

    #[test]
    fn ol_02_ol_04_capacity_is_no_mistake_and_new_codes_are_taken_for_passing() {
        for code in [
            "InsufficientInstanceCapacity",
            "UnfulfillableCapacity",
            "InsufficientHostCapacity",
            "InsufficientFreeAddressesInSubnet",
            "ReservationCapacityExceeded",
            "InsufficientCapacityOnHost",
            "Unsupported",
        ] {
            assert_eq!(shortage(code, ""), Capacity, "{code}");
        }
        let zone = "Your requested instance type (m7i.large) is not supported in your requested \
                    Availability Zone (us-east-1e).";
        assert_eq!(shortage("InvalidFleetConfiguration", zone), Capacity);
        assert_eq!(shortage("InvalidFleetConfiguration", "other"), Configuration);
        for code in ["InternalError", "InternalFailure", "SomethingNew", "RequestExpired", ""] {
            assert_eq!(shortage(code, ""), Unknown, "{code}");
        }
        assert_eq!(shortage("InvalidClientTokenId", "The token is invalid"), Unknown);
    }

    #[test]
    fn ol_05_quotas_are_told_apart_from_capacity() {
        for code in [
            "VcpuLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "InstanceLimitExceeded",
            "MaxFleetCountExceeded",
            "MaxSpotFleetRequestCountExceeded",
            "TargetCapacityLimitExceededException",
            "VolumeLimitExceeded",
        ] {
            assert_eq!(shortage(code, ""), Quota, "{code}");
        }
    }

    #[test]
    fn ol_12_ol_13_mistakes_of_configuration_say_what_to_mend() {
        for (code, message, expected) in [
            (
                "InvalidParameterValue",
                "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance \
                 Profile name",
                "not a role",
            ),
            ("InvalidParameterValue", "User data is limited to 16384 bytes", "bootstrap script"),
            ("InvalidUserData.Malformed", "", "bootstrap script"),
            ("InvalidParameterValue", "The architecture 'arm64' of the type", "of one kind"),
            (
                "InvalidParameterValue",
                "You cannot specify tags for Spot instances requests if there are no",
                "only the spot launch template",
            ),
            ("InvalidParameter", "subnet and group belong to different networks.", "one VPC"),
            ("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist", "images"),
            ("InvalidSubnetID.NotFound", "", "subnets"),
            ("InvalidLaunchTemplateId.NotFound", "", "launch template"),
            ("InvalidBlockDeviceMapping", "", "root_volume_gib"),
            ("InvalidKeyPair.NotFound", "", "deploy the stack"),
            ("MissingParameter", "", "deploy the stack"),
            ("UnauthorizedOperation", "", "policies"),
            ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "", "create-service-linked-role"),
        ] {
            match meaning(code, message) {
                Refused(Configuration, advice) if advice.contains(expected) => {}
                other => panic!("{code} {message}: {other:?}"),
            }
        }
    }

    #[test]
    fn tokens_and_instances_are_known() {
        assert_eq!(meaning("IdempotentParameterMismatch", ""), TokenUsed);
        assert_eq!(meaning("InvalidInstanceID.NotFound", ""), NoInstance);
        assert_eq!(meaning("InvalidSpotInstanceRequestID.NotFound", ""), NoInstance);
        assert_eq!(shortage("InvalidInstanceID.Malformed", ""), Configuration);
    }

    #[test]
    fn what_an_operator_has_to_mend_is_the_gravest() {
        let mut all = [Capacity, Quota, Throttled, Configuration, Unknown];
        all.sort_by_key(|shortage| gravity(*shortage));
        assert_eq!(all, [Capacity, Unknown, Throttled, Quota, Configuration]);
    }

    #[test]
    fn texts_are_short_and_keep_the_advice() {
        let text = told("UnauthorizedOperation", &"é".repeat(3000), PERMISSION);
        assert!(text.len() <= MAX_TEXT + 20 && text.ends_with(PERMISSION), "{}", text.len());
    }
}
