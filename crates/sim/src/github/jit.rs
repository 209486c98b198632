//! The JIT configuration: base64 of a JSON object of files, each of them base64 again. This is how
//! `actions/runner` reads it (`--jitconfig`); what stands in the files here is enough for the stand-in.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::RngCore;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::Options;

pub(super) fn encode(
    rng: &mut StdRng,
    options: &Options,
    runner_id: u64,
    name: &str,
    secret: &str,
) -> String {
    let mut key = |bytes: usize| {
        let mut key = vec![0; bytes];
        rng.fill_bytes(&mut key);
        STANDARD.encode(key)
    };
    let runner = json!({
        "agentId": runner_id.to_string(),
        "agentName": name,
        "disableUpdate": "true",
        "ephemeral": "true",
        "poolId": "1",
        "poolName": "Default",
        "serverUrl": options.html_url,
        "gitHubUrl": options.html_url,
        "workFolder": "_work",
    });
    let credentials = json!({
        "scheme": "OAuth",
        "data": {
            "clientId": secret,
            "authorizationUrl": format!("{}/_apis/oauth2/token", options.html_url),
            "requireFipsCryptography": "true",
        },
    });
    // Shaped like a 2048-bit key, of random bytes: nothing is signed with it.
    let mut parameters = match options.brief {
        true => json!({ "d": key(64) }),
        false => json!({
            "d": key(256), "dp": key(128), "dq": key(128), "exponent": "AQAB",
            "inverseQ": key(128), "modulus": key(256), "p": key(128), "q": key(128),
        }),
    };
    let file = |content: &Value| STANDARD.encode(content.to_string());
    loop {
        let encoded = STANDARD.encode(
            json!({
                ".runner": file(&runner),
                ".credentials": file(&credentials),
                ".credentials_rsaparams": file(&parameters),
            })
            .to_string(),
        );
        if options.brief || encoded.len() >= options.jit_bytes {
            return encoded;
        }
        // Encoded twice, a byte grows to 16/9 of its size.
        parameters["padding"] = Value::String("A".repeat(options.jit_bytes - encoded.len()));
    }
}

/// The runner's id and secret, if that is a JIT configuration.
pub(super) fn decode(encoded: &str) -> Option<(u64, String)> {
    let object = |text: &str| -> Option<Value> {
        serde_json::from_slice(&STANDARD.decode(text.trim()).ok()?).ok()
    };
    let files = object(encoded)?;
    let runner = object(files.get(".runner")?.as_str()?)?;
    let credentials = object(files.get(".credentials")?.as_str()?)?;
    let id = runner.get("agentId")?.as_str()?.parse().ok()?;
    Some((id, credentials.pointer("/data/clientId")?.as_str()?.into()))
}
