//! Credentials of GitHub Apps: of the one that everything is set up with, and of additional ones that a
//! manifest lists, so that their rate limits add up. What is wrong with an additional App costs that App
//! alone.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

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

impl ManifestEntry {
    /// The names of its two parameters.
    pub fn parameters(&self) -> [String; 2] {
        [self.id_parameter.clone(), self.key_parameter.clone()]
    }
}

/// Reads a manifest: a JSON list with one object per additional App, and what is wrong with those that are
/// left out. An error is a manifest that is none. No text of it is repeated: it may be a key that was stored in
/// the wrong place.
pub fn read_manifest(text: &str) -> Result<(Vec<ManifestEntry>, Vec<String>), String> {
    let entries: Vec<Value> = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("it is no JSON list (line {line}, column {column})")
    })?;
    if entries.len() > MAX_APPS {
        return Err(format!("it has {} Apps, and may have {MAX_APPS}", entries.len()));
    }
    let (mut apps, mut problems) = (Vec::new(), Vec::new());
    for (place, entry) in entries.into_iter().enumerate() {
        match serde_json::from_value::<ManifestEntry>(entry) {
            Ok(entry) if !entry.id_parameter.is_empty() && !entry.key_parameter.is_empty() => {
                apps.push(entry);
            }
            _ => problems.push(format!(
                "entry {} of the manifest does not say idParamName and keyParamName",
                place + 1
            )),
        }
    }
    Ok((apps, problems))
}

/// The names of the parameters that a manifest refers to.
pub fn parameters_of(manifest: &[ManifestEntry]) -> Vec<String> {
    manifest.iter().flat_map(ManifestEntry::parameters).collect()
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
        let (manifest, problems) = read_manifest(
            r#"[{"idParamName": "/a/1/id", "keyParamName": "/a/1/key", "installationIdParamName": null},
                {"idParamName": "/a/2/id", "keyParamName": "/a/2/key", "installationIdParamName": "/a/2/i"},
                {"idParamName": "/a/3/id", "keyParamName": "/a/3/key"}]"#,
        )
        .unwrap();
        assert_eq!(problems, Vec::<String>::new());
        let names = parameters_of(&manifest);
        assert_eq!(names[..2], ["/a/1/id", "/a/1/key"]);
        assert_eq!(names.len(), 6, "the installation's id is not read");
        assert_eq!(read_manifest("[]"), Ok((vec![], vec![])), "no additional App");
        for bad in ["", "{}", "null", r#""SECRET""#, "[SECRET]"] {
            let problem = read_manifest(bad).unwrap_err();
            assert!(!problem.contains("SECRET"), "{problem}");
        }
        let entry = r#"{"idParamName": "a", "keyParamName": "b"}"#;
        let most = read_manifest(&format!("[{}]", vec![entry; MAX_APPS].join(","))).unwrap();
        assert_eq!((most.0.len(), most.1.len()), (MAX_APPS, 0));
        let many = vec![entry; MAX_APPS + 1].join(",");
        assert!(read_manifest(&format!("[{many}]")).unwrap_err().contains("51"));
    }

    #[test]
    fn an_entry_of_the_manifest_that_is_none_costs_the_others_nothing() {
        let good = r#"{"idParamName": "/a/id", "keyParamName": "/a/key"}"#;
        let bad = [
            r#"{"idParamName": "/b"}"#,
            r#"{"idParamName": 7, "keyParamName": "SECRET"}"#,
            r#"{"idParamName": "", "keyParamName": "SECRET"}"#,
            r#""SECRET""#,
            "null",
        ];
        for bad in bad {
            let (apps, problems) = read_manifest(&format!("[{bad}, {good}]")).unwrap();
            assert_eq!((apps.len(), problems.len()), (1, 1), "{bad}");
            assert!(problems[0].contains("entry 1") && !problems[0].contains("SECRET"));
        }
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
