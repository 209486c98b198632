//! The pages that a browser is shown, as text and headers. They stand by themselves: style and script are in
//! them, and a policy admits these two by their hashes and nothing else. No secret of GitHub's or AWS's ever
//! comes here: the types that these functions take have none.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::app::{Created, EVENTS, Plan, permissions};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// An answer to a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: String,
}

/// What all pages of a set-up have in common.
#[derive(Clone, Debug)]
pub struct Look {
    /// The App to be made.
    pub plan: Plan,
    /// The path of the parameters, as `/ostler`.
    pub prefix: String,
    /// The AWS region that they are in.
    pub region: String,
    /// Parameters that it takes the place of.
    pub replaced: Vec<&'static str>,
}

/// What is shown of an App that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u64,
    /// Where it is installed.
    pub install_url: String,
    /// What GitHub granted less than was asked for, in words.
    pub shortfall: Vec<String>,
}

impl Made {
    /// Of an App; its secrets stay behind.
    pub fn of(app: &Created, plan: &Plan) -> Self {
        Self {
            name: app.name.clone(),
            id: app.id,
            install_url: app.install_url(),
            shortfall: plan
                .shortfall(app)
                .iter()
                .map(|it| format!("{}: {}", it.title, it.level_in_words()))
                .collect(),
        }
    }
}

/// How far a set-up is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nobody has clicked at GitHub yet.
    Waiting,
    /// GitHub has led the browser back; keys are fetched and stored.
    Working,
    /// That failed; the text says why. `again` if it can be tried again.
    Failed {
        /// What happened, to what, and what to do.
        why: String,
        /// Whether the keys are still at hand.
        again: bool,
    },
    /// All is stored. `watched` if somebody looks whether the App is installed.
    Stored {
        /// The App.
        made: Made,
        /// Whether somebody looks whether it is installed.
        watched: bool,
    },
    /// It is installed with that account.
    Installed {
        /// The App.
        made: Made,
        /// The account's login.
        with: String,
    },
    /// The operator has changed their mind; nothing was made.
    Cancelled,
}

impl Stage {
    /// Its name, by which a page sees that it is out of date.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Working => "working",
            Self::Failed { .. } => "failed",
            Self::Stored { .. } => "stored",
            Self::Installed { .. } => "installed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Which of the four steps is under way, from 0; 4 when all are done.
    const fn step(&self) -> usize {
        match self {
            Self::Waiting | Self::Cancelled => 0,
            Self::Working | Self::Failed { .. } => 2,
            Self::Stored { .. } => 3,
            Self::Installed { .. } => 4,
        }
    }

    /// Whether it goes on by itself.
    const fn moves(&self) -> bool {
        matches!(self, Self::Working | Self::Stored { watched: true, .. })
    }
}

const STEPS: [&str; 4] = ["Review", "Create at GitHub", "Store in AWS", "Install"];

impl Page {
    /// Leads the browser elsewhere on this site, by GET.
    pub fn redirect(to: &str) -> Self {
        let mut page = Self::bare(303, "text/plain; charset=utf-8", String::new());
        page.headers.push(("location", to.to_owned()));
        page
    }

    /// JSON.
    pub fn json(body: &serde_json::Value) -> Self {
        Self::bare(200, "application/json", body.to_string())
    }

    /// The same with one more header.
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    fn bare(status: u16, kind: &str, body: String) -> Self {
        let fixed = [
            ("content-type", kind),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            // No path, where the opening key once stood, leaves this page. Not `no-referrer`: that makes the
            // form's `Origin` `null`, which servers take for an attack.
            ("referrer-policy", "strict-origin"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ];
        let headers = fixed.map(|(name, value)| (name, value.to_owned())).to_vec();
        Self { status, headers, body }
    }
}

/// The page for a stage. `state` goes into the form's address, `back` into the manifest.
pub fn of_stage(look: &Look, stage: &Stage, state: &str, back: &str) -> Page {
    let main = match stage {
        Stage::Waiting => waiting(look, state, back),
        Stage::Working => {
            "<h1>Storing the App’s keys</h1>\
             <p class=\"wait\" role=\"status\">GitHub has made the App. Its keys are being fetched and stored; this takes a few seconds.</p>"
                .to_owned()
        }
        Stage::Failed { why, again } => failed(why, *again),
        Stage::Stored { made, watched } => stored(look, made, *watched),
        Stage::Installed { made, with } => installed(look, made, with),
        Stage::Cancelled => {
            "<h1>Cancelled</h1><p>Nothing was made at GitHub, and nothing of an App was stored. You can close this page. \
             To begin again, run the set-up once more.</p>"
                .to_owned()
        }
    };
    let to = matches!(stage, Stage::Waiting).then(|| look.plan.origin());
    document(200, Some(stage), to, &main)
}

/// A request that is not served, and why.
pub fn refused(status: u16, title: &str, why: &str) -> Page {
    let main = format!("<h1>{}</h1><p>{}</p>", escape(title), escape(why));
    document(status, None, None, &main)
}

fn waiting(look: &Look, state: &str, back: &str) -> String {
    let Look { plan, prefix, region, replaced } = look;
    let mut main = format!(
        "<h1>Create Ostler’s GitHub App</h1>\
         <p>Ostler acts at GitHub as an App that belongs to you. GitHub will show you its name and ask you to confirm it. \
         You need to be signed in at <a href=\"{github}\" rel=\"noreferrer\" target=\"_blank\">{host}</a> as an owner of {account}.</p>\
         <dl><dt>Owner</dt><dd>{account} at {host}</dd>\
         <dt>Name</dt><dd>{name} <span class=\"soft\">(you can change it at GitHub)</span></dd>\
         <dt>Events go to</dt><dd><code>{webhook}</code></dd>\
         <dt>Keys are stored in</dt><dd>Parameter Store, <code>{prefix}/control/</code> in {region}</dd></dl>",
        github = escape(&plan.github),
        host = escape(plan.host()),
        account = escape(&plan.account.in_words()),
        name = escape(&plan.name),
        webhook = escape(&plan.webhook_url),
        prefix = escape(prefix),
        region = escape(region),
    );
    main.push_str(
        "<h2>What it may do</h2><table><thead><tr><th scope=\"col\">Permission</th><th scope=\"col\">Level</th>\
         <th scope=\"col\">For</th></tr></thead><tbody>",
    );
    for permission in permissions(plan.registration) {
        let _ = write!(
            main,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>",
            escape(permission.title),
            permission.level_in_words(),
            escape(permission.why)
        );
    }
    let _ = write!(
        main,
        "</tbody></table><p>It is told of one kind of event, <code>{}</code>. It has no permission to read your code.</p>",
        EVENTS.join("</code>, <code>")
    );
    if !replaced.is_empty() {
        let names: Vec<_> =
            replaced.iter().map(|name| format!("<code>{}/{name}</code>", escape(prefix))).collect();
        let _ = write!(
            main,
            "<div class=\"note warn\"><p><strong>An App is set up already.</strong> The new one takes its place: {} \
             will be overwritten. The old App stays at GitHub until you delete it there.</p></div>",
            names.join(", ")
        );
    }
    let _ = write!(
        main,
        "<div class=\"buttons\"><form method=\"post\" action=\"{}\">\
         <input type=\"hidden\" name=\"manifest\" value=\"{}\">\
         <button type=\"submit\">Continue at GitHub</button></form>\
         <form method=\"post\" action=\"cancel\"><button class=\"quiet\" type=\"submit\">Cancel</button></form></div>",
        escape(&plan.action(state)),
        escape(&plan.manifest(back))
    );
    main
}

fn failed(why: &str, again: bool) -> String {
    let mut main = format!(
        "<h1>It could not be finished</h1><div class=\"note bad\" role=\"alert\"><p>{}</p></div>",
        escape(why)
    );
    if again {
        main.push_str(
            "<p>The App is there, and its keys are still at hand. Mend the cause, then try again; if you leave \
             instead, its keys are lost and the App has to be deleted at GitHub.</p>\
             <div class=\"buttons\"><form method=\"post\" action=\"again\"><button type=\"submit\">Try again</button></form></div>",
        );
    }
    main
}

fn facts(look: &Look, made: &Made) -> String {
    let mut text = format!(
        "<dl><dt>App</dt><dd>{} (id {})</dd><dt>Stored in</dt><dd><code>{}/control/</code> in {}</dd></dl>",
        escape(&made.name),
        made.id,
        escape(&look.prefix),
        escape(&look.region),
    );
    if !made.shortfall.is_empty() {
        let list: Vec<_> = made.shortfall.iter().map(|it| escape(it)).collect();
        let _ = write!(
            text,
            "<div class=\"note warn\"><p><strong>Permissions are missing</strong>, and Ostler will not work as it \
             should: {}. Add them in the App’s settings.</p></div>",
            list.join("; ")
        );
    }
    text
}

fn stored(look: &Look, made: &Made, watched: bool) -> String {
    let wait = if watched {
        "<p class=\"wait\" role=\"status\">Waiting until it is installed. This page then says so.</p>"
    } else {
        "<p>That is all that this page does; you can close it afterwards.</p>"
    };
    format!(
        "<h1>The keys are stored. Now install the App</h1>\
         <p>Choose the account and its repositories. Jobs of other repositories send no event.</p>{}\
         <div class=\"buttons\"><a class=\"button\" href=\"{}\" rel=\"noreferrer\" target=\"_blank\">Install at GitHub\
         <span class=\"hidden\"> (opens a new tab)</span></a></div><h2>How it goes on</h2>{wait}",
        facts(look, made),
        escape(&made.install_url),
    )
}

fn installed(look: &Look, made: &Made, with: &str) -> String {
    format!(
        "<h1>Ostler is connected</h1><div class=\"note\" role=\"status\"><p>The App is installed with \
         <strong>{}</strong>. You can close this page and go on in the terminal.</p></div>{}",
        escape(with),
        facts(look, made),
    )
}

/// A whole document. `form` is the origin that a form may be sent to, besides this one.
fn document(status: u16, stage: Option<&Stage>, form: Option<&str>, main: &str) -> Page {
    let mut steps = String::new();
    if let Some(stage) = stage {
        steps.push_str("<nav aria-label=\"Steps\"><ol class=\"steps\">");
        for (index, step) in STEPS.iter().enumerate() {
            let now = stage.step();
            let (class, current, said) = match index.cmp(&now) {
                std::cmp::Ordering::Less => (
                    "done",
                    "",
                    "<b aria-hidden=\"true\">✓</b><span class=\"hidden\">done: </span> ",
                ),
                std::cmp::Ordering::Equal => ("now", " aria-current=\"step\"", ""),
                std::cmp::Ordering::Greater => ("todo", "", ""),
            };
            let _ = write!(steps, "<li class=\"{class}\"{current}>{said}{step}</li>");
        }
        steps.push_str("</ol></nav>");
    }
    let moves = stage.is_some_and(Stage::moves);
    let refresh =
        if moves { "<noscript><meta http-equiv=\"refresh\" content=\"3\"></noscript>" } else { "" };
    let name = stage.map_or("refused", Stage::name);
    let moving = if moves { "yes" } else { "no" };
    let title = match stage {
        Some(stage) => format!("{} – Ostler", STEPS.get(stage.step()).unwrap_or(&"Done")),
        None => "Ostler".to_owned(),
    };
    let body = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title>{refresh}\
         <style>{STYLE}</style></head><body data-stage=\"{name}\" data-moves=\"{moving}\"><div class=\"page\">\
         <header>{HORSESHOE}<span>Ostler</span></header>{steps}<main>{main}\
         <p id=\"gone\" class=\"note warn\" role=\"alert\" hidden>The set-up no longer answers. Look at the terminal.</p></main>\
         <footer>This page holds no key or secret. GitHub’s keys go straight to Parameter Store.</footer>\
         </div><script>{SCRIPT}</script></body></html>"
    );
    let forms = match form {
        Some(origin) => format!("'self' {origin}"),
        None => "'self'".to_owned(),
    };
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; form-action {forms}; base-uri 'none'; \
         frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT),
    );
    let mut page = Page::bare(status, "text/html; charset=utf-8", body);
    page.headers.retain(|(name, _)| *name != "content-security-policy");
    page.with("content-security-policy", policy)
}

/// A horseshoe.
const HORSESHOE: &str = "<svg viewBox=\"0 0 24 24\" aria-hidden=\"true\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2.4\" \
    stroke-linecap=\"round\"><path d=\"M7.2 21H4.6C3.4 17.6 2.8 14.6 2.8 11.6a9.2 9.2 0 0 1 18.4 0c0 3-.6 6-1.8 9.4h-2.6c1-3.2 1.5-6.2 1.5-9.2a6.3 6.3 0 0 0-12.6 0c0 3 .5 6 1.5 9.2z\"/></svg>";

/// A source of a policy: what has this hash.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

/// Text in HTML, between tags or in double quotes.
fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, char| {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(char),
        }
        out
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::setup::app::Account;
    use crate::setup::app::tests::{created, plan};

    pub(crate) fn look() -> Look {
        let plan = plan(Account::organization("acme").unwrap());
        Look { plan, prefix: "/ostler".into(), region: "eu-west-1".into(), replaced: vec![] }
    }

    fn stages() -> Vec<Stage> {
        let made = Made::of(&created(), &look().plan);
        vec![
            Stage::Waiting,
            Stage::Working,
            Stage::Failed { why: "SSM <refused>".into(), again: true },
            Stage::Stored { made: made.clone(), watched: true },
            Stage::Installed { made, with: "acme".into() },
            Stage::Cancelled,
        ]
    }

    fn header<'a>(page: &'a Page, name: &str) -> &'a str {
        let mut found = page.headers.iter().filter(|(known, _)| *known == name);
        let value = found.next().unwrap_or_else(|| panic!("no {name}"));
        assert!(found.next().is_none(), "{name} twice");
        &value.1
    }

    #[test]
    fn i9_no_page_has_a_secret_and_each_says_what_it_allows() {
        for stage in stages() {
            let page = of_stage(&look(), &stage, "s1", "http://127.0.0.1:1/back");
            assert!(!page.body.contains("PEMPEM") && !page.body.contains("hush"), "{stage:?}");
            let policy = header(&page, "content-security-policy");
            assert!(
                policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
                "{policy}"
            );
            assert!(
                policy.contains("frame-ancestors 'none'") && policy.contains("base-uri 'none'")
            );
            assert_eq!(header(&page, "cache-control"), "no-store");
            assert_eq!(header(&page, "referrer-policy"), "strict-origin");
            // The way to GitHub is open only while it is needed.
            let open = policy.contains("form-action 'self' https://github.com;");
            assert_eq!(open, stage == Stage::Waiting, "{policy}");
        }
    }

    #[test]
    fn se_what_comes_from_outside_is_text_and_nothing_else() {
        let mut look = look();
        look.plan.name = "\"><script>alert(1)</script>".into();
        look.plan.webhook_url = "https://x/'><img src=x>".into();
        look.region = "<b>".into();
        let why = Stage::Failed { why: "<script>alert(2)</script>".into(), again: false };
        for stage in [Stage::Waiting, why] {
            let page = of_stage(&look, &stage, "s", "http://127.0.0.1:1/back");
            for evil in ["<script>alert", "<img", "<b>\""] {
                assert!(!page.body.contains(evil), "{evil} in {}", page.body);
            }
            assert_eq!(page.body.matches("<script").count(), 1, "our own");
        }
        assert!(!refused(403, "<i>", "<u>").body.contains("<i>"));
    }

    #[test]
    fn the_page_shows_all_that_the_app_will_be() {
        let mut look = look();
        look.replaced = vec!["control/app"];
        let body = of_stage(&look, &Stage::Waiting, "s1", "http://127.0.0.1:1/back").body;
        for permission in permissions(look.plan.registration) {
            assert!(body.contains(&escape(permission.title)), "{}", permission.title);
        }
        for text in [
            "ostler-acme",
            "https://hook.example/",
            "/ostler/control/app",
            "will be overwritten",
            "state=s1",
        ] {
            assert!(body.contains(text), "{text}");
        }
        assert!(!body.contains("Administration"));
    }

    #[test]
    fn pages_that_wait_look_again_with_and_without_a_script() {
        for stage in stages() {
            let body = of_stage(&look(), &stage, "s", "b").body;
            let moves = matches!(stage, Stage::Working | Stage::Stored { .. });
            assert_eq!(body.contains("data-moves=\"yes\""), moves, "{stage:?}");
            assert_eq!(body.contains("http-equiv=\"refresh\""), moves, "{stage:?}");
            assert!(body.contains(&format!("data-stage=\"{}\"", stage.name())));
        }
    }
}
