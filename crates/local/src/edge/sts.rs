//! AssumeRole as STS decides it: the role trusts the caller, and the caller's own policies let it. moto assumes
//! whatever it is asked for.
//! Source: IAM user guide, "Policy evaluation logic", "Cross-account policy evaluation".

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::aws::{self, ApiError, Call, Client, Reply, percent_decode};

/// Version of IAM's API.
const IAM: &str = "2010-05-08";

/// Answers the call. The credentials' key id is `role-<name>-<account>`, by which the edge knows whose calls they are.
pub(super) async fn assume(
    moto: &Client,
    call: &Call,
    parameters: &BTreeMap<String, String>,
) -> Reply {
    let text = |name: &str| parameters.get(name).map_or("", String::as_str);
    let (role, session) = (text("RoleArn"), text("RoleSessionName"));
    let decided = decide(moto, &call.caller, role, text("ExternalId")).await;
    let (account, name) = match decided {
        Ok(Some(decided)) => decided,
        Ok(None) => {
            let message = format!(
                "User: {} is not authorized to perform: sts:AssumeRole on resource: {role}",
                call.caller
            );
            return call.error(403, "AccessDenied", &message);
        }
        Err(error) => return call.error(503, "ServiceUnavailable", &error.to_string()),
    };
    let mut body = "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult>".to_owned();
    // The SDK's clock is real time, and so are its credentials.
    let _ = write!(
        body,
        "<Credentials><AccessKeyId>role-{name}-{account}</AccessKeyId><SecretAccessKey>local</SecretAccessKey>\
         <SessionToken>local</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>\
         <AssumedRoleUser><AssumedRoleId>AROA:{session}</AssumedRoleId>\
         <Arn>arn:aws:sts::{account}:assumed-role/{name}/{session}</Arn></AssumedRoleUser>\
         </AssumeRoleResult></AssumeRoleResponse>"
    );
    aws::reply(200, "text/xml", body)
}

/// Account and name of the role, if the caller may assume it.
async fn decide(
    moto: &Client,
    caller: &str,
    role: &str,
    external_id: &str,
) -> Result<Option<(String, String)>, ApiError> {
    let Some((account, name)) = role_of(role) else { return Ok(None) };
    let own = account == aws::ACCOUNT;
    let there = moto.in_account((!own).then_some(account));
    // Only functions assume roles here.
    let Some(function) = caller.strip_prefix("fn-") else { return Ok(None) };
    let path = format!("/2015-03-31/functions/{function}/configuration");
    let configuration = moto.send("lambda", http::Method::GET, &path, &[], "").await?;
    let configuration: Value = serde_json::from_slice(configuration.body()).unwrap_or(Value::Null);
    let principal = configuration["Role"].as_str().unwrap_or("");
    let Some((_, caller_role)) = role_of(principal) else { return Ok(None) };
    let trust = match there.query("iam", IAM, "GetRole", &[("RoleName", name)]).await {
        Ok(answer) => answer.text_at("GetRoleResult/Role/AssumeRolePolicyDocument").to_owned(),
        // STS does not tell a role that is not there from one that refuses.
        Err(error) if error.code == "NoSuchEntity" => return Ok(None),
        Err(error) => return Err(error),
    };
    let request = Request { principal, external_id, resource: role };
    let trusted = statements(&trust).iter().any(|it| trusts(it, &request));
    let listed = moto.query("iam", IAM, "ListRolePolicies", &[("RoleName", caller_role)]).await?;
    let mut granted = false;
    for policy in listed.list("ListRolePoliciesResult/PolicyNames") {
        let named = [("RoleName", caller_role), ("PolicyName", policy.text.trim())];
        let answer = moto.query("iam", IAM, "GetRolePolicy", &named).await?;
        let document = answer.text_at("GetRolePolicyResult/PolicyDocument").to_owned();
        granted |= statements(&document).iter().any(|it| grants(it, &request));
    }
    let arn = (account.to_owned(), name.to_owned());
    Ok((trusted && granted).then_some(arn))
}

struct Request<'a> {
    principal: &'a str,
    external_id: &'a str,
    resource: &'a str,
}

/// Account and name in a role's ARN.
fn role_of(arn: &str) -> Option<(&str, &str)> {
    let (account, name) = arn.strip_prefix("arn:aws:iam::")?.split_once(":role/")?;
    Some((account, name.rsplit('/').next().unwrap_or(name)))
}

fn statements(document: &str) -> Vec<Value> {
    let document = match document.starts_with('%') {
        true => percent_decode(document.as_bytes()),
        false => document.to_owned(),
    };
    let document: Value = serde_json::from_str(&document).unwrap_or(Value::Null);
    list(&document["Statement"]).into_iter().cloned().collect()
}

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |items| items.iter().collect())
}

fn allows(statement: &Value) -> bool {
    statement["Effect"] == "Allow"
        && list(&statement["Action"]).iter().any(|it| *it == "sts:AssumeRole")
}

fn grants(statement: &Value, request: &Request<'_>) -> bool {
    allows(statement)
        && statement["Condition"].is_null()
        && list(&statement["Resource"]).iter().any(|it| *it == request.resource)
}

/// A condition that is not known here is not fulfilled.
fn trusts(statement: &Value, request: &Request<'_>) -> bool {
    let account = role_of(request.principal).map_or("", |(account, _)| account);
    let principals = list(&statement["Principal"]["AWS"]);
    let conditions = statement["Condition"].as_object().into_iter().flatten();
    let mut asked = conditions.flat_map(|(operator, keys)| {
        keys.as_object()
            .into_iter()
            .flatten()
            .map(move |(key, value)| (operator.as_str(), key.as_str(), value))
    });
    allows(statement)
        && principals
            .iter()
            .any(|it| **it == format!("arn:aws:iam::{account}:root") || *it == request.principal)
        && asked.all(|(operator, key, value)| {
            let given = match key {
                "sts:ExternalId" => request.external_id,
                "aws:PrincipalArn" => request.principal,
                _ => return false,
            };
            ["StringEquals", "ArnEquals"].contains(&operator)
                && list(value).iter().any(|it| *it == given)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trust_asks_for_account_external_id_and_role() {
        let statement = json!({"Effect": "Allow", "Action": "sts:AssumeRole",
            "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
            "Condition": {"StringEquals": {"sts:ExternalId": "e"},
                "ArnEquals": {"aws:PrincipalArn": "arn:aws:iam::123456789012:role/r"}}});
        let asked = |principal: &str, external_id: &str| {
            trusts(&statement, &Request { principal, external_id, resource: "" })
        };
        assert!(asked("arn:aws:iam::123456789012:role/r", "e"));
        assert!(!asked("arn:aws:iam::123456789012:role/r", ""));
        assert!(!asked("arn:aws:iam::123456789012:role/s", "e"));
        assert!(!asked("arn:aws:iam::123456789013:role/r", "e"));
        let mut unknown = statement.clone();
        unknown["Condition"]["IpAddress"] = json!({"aws:SourceIp": "10.0.0.0/8"});
        let request = Request {
            principal: "arn:aws:iam::123456789012:role/r",
            external_id: "e",
            resource: "",
        };
        assert!(!trusts(&unknown, &request));
    }
}
