//! The environment variables of a function, read once.

use std::ops::RangeInclusive;

use ostler_core::{Error, Result};

use crate::clock::SystemClock;

type Read = Box<dyn Fn(&str) -> Option<String>>;

/// Reads variables and collects what is missing or wrong, so that all of it is told of at once.
pub struct Environment {
    read: Read,
    missing: Vec<&'static str>,
    wrong: Vec<String>,
}

impl Environment {
    /// The process's own variables.
    pub fn of_process() -> Self {
        Self::from(|name| std::env::var(name).ok())
    }

    /// Variables from anywhere.
    pub fn from(read: impl Fn(&str) -> Option<String> + 'static) -> Self {
        Self { read: Box::new(read), missing: vec![], wrong: vec![] }
    }

    /// A variable that must be there and not be empty; the empty text while it is not ([`Self::check`]
    /// tells).
    pub fn text(&mut self, name: &'static str) -> String {
        self.optional(name).unwrap_or_else(|| {
            self.missing.push(name);
            String::new()
        })
    }

    /// A variable that may be missing; an empty one counts as missing.
    pub fn optional(&mut self, name: &'static str) -> Option<String> {
        (self.read)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// A comma-separated list that must have at least one entry.
    pub fn list(&mut self, name: &'static str) -> Vec<String> {
        parts(&self.text(name))
    }

    /// A comma-separated list that may be empty or missing.
    pub fn optional_list(&mut self, name: &'static str) -> Vec<String> {
        parts(&self.optional(name).unwrap_or_default())
    }

    /// A whole number within bounds; the lower one while it is missing or wrong.
    pub fn number(&mut self, name: &'static str, bounds: RangeInclusive<u64>) -> u64 {
        let text = self.text(name);
        match text.parse() {
            Ok(number) if bounds.contains(&number) => return number,
            _ if text.is_empty() => {}
            _ => self.wrong.push(format!(
                "{name} is '{text}', not a whole number from {} to {}",
                bounds.start(),
                bounds.end()
            )),
        }
        *bounds.start()
    }

    /// `true` or `false`, and nothing that might mean either.
    pub fn flag(&mut self, name: &'static str) -> bool {
        match self.text(name).as_str() {
            "true" => return true,
            "false" | "" => {}
            other => self.wrong.push(format!("{name} is '{other}', not true or false")),
        }
        false
    }

    /// The clock (`OSTLER_CLOCK`, see [`SystemClock::from_variables`]); real time while it is refused.
    pub fn clock(&mut self) -> SystemClock {
        let (clock, endpoint) = (self.optional("OSTLER_CLOCK"), self.optional("AWS_ENDPOINT_URL"));
        SystemClock::from_variables(clock.as_deref(), endpoint.as_deref()).unwrap_or_else(
            |problem| {
                self.wrong.push(problem);
                SystemClock::REAL
            },
        )
    }

    /// An error that names everything that is missing or wrong.
    pub fn check(&self) -> Result<()> {
        let mut problems = self.wrong.clone();
        if !self.missing.is_empty() {
            problems.push(format!(
                "missing environment variables: {}; they are set by the stack's template",
                self.missing.join(", ")
            ));
        }
        if problems.is_empty() { Ok(()) } else { Err(Error::Permanent(problems.join("; "))) }
    }
}

fn parts(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &'static [(&'static str, &'static str)]) -> Environment {
        Environment::from(move |name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn all_that_is_missing_or_wrong_is_named_at_once() {
        let mut env = environment(&[("A", "x"), ("EMPTY", " "), ("OSTLER_CLOCK", "1@60")]);
        assert_eq!(env.text("A"), "x");
        assert_eq!(
            (env.text("B"), env.text("EMPTY"), env.list("C")),
            ("".into(), "".into(), vec![])
        );
        assert_eq!(env.clock(), SystemClock::REAL);
        let error = env.check().unwrap_err().to_string();
        for named in ["B", "EMPTY", "C", "OSTLER_CLOCK"] {
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn numbers_and_flags_are_exact() {
        let mut env = environment(&[("N", "720"), ("YES", "true"), ("NO", "false"), ("L", "")]);
        assert_eq!(
            (env.number("N", 1..=1000), env.flag("YES"), env.flag("NO")),
            (720, true, false)
        );
        assert_eq!(env.optional_list("L"), Vec::<String>::new());
        assert!(env.check().is_ok());
        let mut env =
            environment(&[("LOW", "0"), ("HIGH", "1001"), ("ODD", "1h"), ("YES", "True")]);
        for name in ["LOW", "HIGH", "ODD", "GONE"] {
            assert_eq!(env.number(name, 1..=1000), 1);
        }
        assert!(!env.flag("YES"));
        let error = env.check().unwrap_err().to_string();
        for named in ["LOW", "HIGH", "ODD", "GONE", "YES", "from 1 to 1000"] {
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn complete_variables_are_no_error() {
        let mut env = environment(&[
            ("SUBNETS", "a, b,,c"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ("OSTLER_CLOCK", "1@60"),
        ]);
        assert_eq!(env.list("SUBNETS"), ["a", "b", "c"]);
        assert_eq!(env.optional("OTHER"), None);
        assert_ne!(env.clock(), SystemClock::REAL);
        assert!(env.check().is_ok());
    }
}
