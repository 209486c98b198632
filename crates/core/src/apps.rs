//! Credentials of GitHub Apps: of the one that everything is set up with, and of additional ones that a
//! manifest lists, so that their rate limits add up. What is wrong with an additional App costs that App
//! alone.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::names::NameKey;
use crate::secret::Secret;

/// Additional Apps at most. Each is two parameters, and ten parameters are a call.
const MAX_APPS: usize = 50;

/// An App that can sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppCredential {
    /// The App's numeric id.
    pub id: u64,
    /// Its private key, PEM.
    pub key: Secret,
}

/// An additional App: the SSM parameters that hold its id and its key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ManifestEntry {
    /// Holds the id.
    #[serde(rename = "idParamName")]
    pub id_parameter: String,
    /// Holds the key, PEM or base64 of PEM.
    #[serde(rename = "keyParamName")]
    pub key_parameter: String,
    // `installationIdParamName` is part of the format too. Nothing reads it: the installation is looked up for
    // the owner at hand, since an id that was written down goes stale when the App is installed anew.
}

/// Reads a manifest: a JSON list with one object per additional App. The error says what is wrong.
pub fn read_manifest(text: &str) -> Result<Vec<ManifestEntry>, String> {
    let entries: Vec<ManifestEntry> = serde_json::from_str(text)
        .map_err(|error| format!("it is no list of idParamName and keyParamName: {error}"))?;
    if entries.len() > MAX_APPS {
        return Err(format!("it has {} Apps, and may have {MAX_APPS}", entries.len()));
    }
    Ok(entries)
}

/// The names of the parameters that a manifest refers to.
pub fn parameters_of(manifest: &[ManifestEntry]) -> Vec<String> {
    manifest
        .iter()
        .flat_map(|entry| [entry.id_parameter.clone(), entry.key_parameter.clone()])
        .collect()
}

/// The Apps of a manifest, by the texts of its parameters, and what is wrong with those that are left out.
pub fn additional(
    manifest: &[ManifestEntry],
    texts: &BTreeMap<String, Secret>,
) -> (Vec<AppCredential>, Vec<String>) {
    let (mut apps, mut problems) = (Vec::new(), Vec::new());
    for entry in manifest {
        let text = |name: &String| texts.get(name).ok_or_else(|| format!("{name} is not there"));
        let read = || -> Result<AppCredential, String> {
            let id = text(&entry.id_parameter)?.expose().trim().parse();
            let id = id.map_err(|_| format!("{} is no App's id", entry.id_parameter))?;
            let key = private_key(text(&entry.key_parameter)?)
                .ok_or_else(|| format!("{} is no private key", entry.key_parameter))?;
            Ok(AppCredential { id, key })
        };
        match read() {
            Ok(app) => apps.push(app),
            Err(problem) => problems.push(problem),
        }
    }
    (apps, problems)
}

/// A private key in PEM form: as it is, or in base64 around it, as other systems store it. Consoles and
/// shells turn its line ends into the two characters `\n`. `None` if there is no PEM in it.
pub fn private_key(text: &Secret) -> Option<Secret> {
    let text = text.expose();
    let decoded = if text.contains("-----BEGIN") {
        text.to_owned()
    } else {
        let packed: String = text.split_whitespace().collect();
        String::from_utf8(STANDARD.decode(packed).ok()?).ok()?
    };
    decoded.contains("-----BEGIN").then(|| Secret::new(decoded.replace("\\n", "\n")))
}

/// What a function that has no other configuration knows of Apps.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The App.
    pub app: AppCredential,
    /// GitHub's address, where the parameter of the id holds an install's whole `control/app`.
    pub github_url: Option<String>,
    /// Additional Apps.
    pub additional: Vec<AppCredential>,
    /// The key of runner names, if it was asked for and is there.
    pub name_key: Option<NameKey>,
}

/// The App's id as a parameter holds it: alone, or with an install's other App settings around it.
/// The second is GitHub's address, of the latter.
pub fn app_id(text: &str) -> Option<(u64, Option<String>)> {
    #[derive(Deserialize)]
    struct Settings {
        app_id: u64,
        github_url: Option<String>,
    }
    if let Ok(id) = text.trim().parse() {
        return Some((id, None));
    }
    let settings: Settings = serde_json::from_str(text).ok()?;
    // An install that does not say is at github.com.
    Some((settings.app_id, Some(settings.github_url.unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n";

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, Secret> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect()
    }

    #[test]
    fn j62_the_manifest_is_read_in_its_format() {
        let manifest = read_manifest(
            r#"[{"idParamName": "/a/1/id", "keyParamName": "/a/1/key", "installationIdParamName": null},
                {"idParamName": "/a/2/id", "keyParamName": "/a/2/key", "installationIdParamName": "/a/2/i"},
                {"idParamName": "/a/3/id", "keyParamName": "/a/3/key"}]"#,
        )
        .unwrap();
        let names = parameters_of(&manifest);
        assert_eq!(names[..2], ["/a/1/id", "/a/1/key"]);
        assert_eq!(names.len(), 6, "the installation's id is not read");
        assert_eq!(read_manifest("[]"), Ok(vec![]), "no additional App");
        for bad in ["", "{}", r#"[{"idParamName": "/a"}]"#, r#"["/a"]"#, "null"] {
            assert!(read_manifest(bad).is_err(), "{bad}");
        }
        let many = vec![r#"{"idParamName": "a", "keyParamName": "b"}"#; 51].join(",");
        assert!(read_manifest(&format!("[{many}]")).unwrap_err().contains("51"));
    }

    #[test]
    fn an_app_that_cannot_be_read_costs_the_others_nothing() {
        let entry = |n: &str| ManifestEntry {
            id_parameter: format!("/{n}/id"),
            key_parameter: format!("/{n}/key"),
        };
        let manifest = ["good", "no-id", "no-key", "bad-id", "bad-key"].map(entry);
        let texts = texts(&[
            ("/good/id", " 12\n"),
            ("/good/key", PEM),
            ("/no-id/key", PEM),
            ("/no-key/id", "13"),
            ("/bad-id/id", "twelve"),
            ("/bad-id/key", PEM),
            ("/bad-key/id", "14"),
            ("/bad-key/key", "SECRET"),
        ]);
        let (apps, problems) = additional(&manifest, &texts);
        assert_eq!(apps, [AppCredential { id: 12, key: Secret::new(PEM) }]);
        assert_eq!(problems.len(), 4);
        for (problem, says) in
            problems.iter().zip(["/no-id/id", "/no-key/key", "/bad-id/id", "/bad-key/key"])
        {
            assert!(problem.contains(says) && !problem.contains("SECRET"), "{problem}");
        }
    }

    #[test]
    fn a_key_is_pem_or_base64_of_it_with_line_ends_of_any_kind() {
        let flat = PEM.replace('\n', "\\n");
        for text in [PEM.to_owned(), STANDARD.encode(PEM), STANDARD.encode(&flat), flat] {
            assert_eq!(private_key(&Secret::new(text)), Some(Secret::new(PEM)));
        }
        let wrapped = STANDARD
            .encode(PEM)
            .as_bytes()
            .chunks(20)
            .map(String::from_utf8_lossy)
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(private_key(&Secret::new(wrapped)), Some(Secret::new(PEM)));
        for bad in ["", "SECRET", "U0VDUkVU", "-----"] {
            assert_eq!(private_key(&Secret::new(bad)), None, "{bad}");
        }
    }

    #[test]
    fn an_apps_id_stands_alone_or_in_an_installs_settings() {
        assert_eq!(app_id(" 4242\n"), Some((4242, None)));
        let settings = r#"{"app_id": 4242, "registration": "organization", "anything": []}"#;
        assert_eq!(app_id(settings), Some((4242, Some(String::new()))));
        let ghes = r#"{"app_id": 7, "github_url": "https://git.acme.example"}"#;
        assert_eq!(app_id(ghes), Some((7, Some("https://git.acme.example".into()))));
        for bad in ["", "0x1", "-1", "{}", "[7]", r#"{"app_id": "7"}"#] {
            assert_eq!(app_id(bad), None, "{bad}");
        }
    }
}
