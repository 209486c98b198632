//! AWS by its own command line tool, for what an operator asks once: stacks, quotas, roles, buckets. It is
//! what deploys a stack anyway, it knows every partition and way to sign in, and its library for these
//! services would be minutes of compiling each. What the functions call too goes by the SDK instead.

use std::process::Stdio;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::process::Command;

/// The tool.
#[derive(Clone, Debug)]
pub struct Tool {
    region: Option<String>,
}

/// What AWS refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// AWS's code for it, as `ValidationError`; empty where the tool itself failed.
    pub code: String,
    /// The whole text.
    pub text: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    fn of(stderr: &str) -> Self {
        let code = stderr
            .split_once("An error occurred (")
            .and_then(|(_, rest)| rest.split_once(')'))
            .map_or("", |(code, _)| code);
        Self { code: code.to_owned(), text: stderr.trim().to_owned() }
    }
}

impl Tool {
    /// In that region, or in the shell's.
    pub fn new(region: Option<String>) -> Self {
        Self { region }
    }

    /// A call of an API: `cloudformation describe-stacks` with its input. An error that AWS answered is a
    /// [`Refusal`].
    pub async fn call(
        &self,
        service: &str,
        operation: &str,
        input: &Value,
    ) -> anyhow::Result<Value> {
        let input = input.to_string();
        let words = [service, operation, "--output", "json", "--cli-input-json", &input];
        let answer = self.run(&words).await?;
        if answer.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&answer)
            .with_context(|| format!("aws {service} {operation} did not answer JSON"))
    }

    /// Runs the tool, and gives what it says.
    pub async fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("aws");
        command.args(words).env("AWS_PAGER", "").stdin(Stdio::null()).kill_on_drop(true);
        if let Some(region) = &self.region {
            command.args(["--region", region]);
        }
        let output = match command.output().await {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                "the AWS command line tool `aws` is not on the PATH: install it, or `make setup` and use \
                 .venv/bin"
            ),
            Err(error) => return Err(error).context("run aws"),
        };
        if !output.status.success() {
            return Err(Refusal::of(&String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The code of AWS's refusal, if that is what the error is.
pub fn code_of(error: &anyhow::Error) -> &str {
    error.downcast_ref::<Refusal>().map_or("", |refusal| &refusal.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_refusal_is_found_in_the_tools_words() {
        let text = "\nAn error occurred (NoSuchEntity) when calling the GetRole operation: no\n";
        let refusal = Refusal::of(text);
        assert_eq!(refusal.code, "NoSuchEntity");
        assert!(refusal.text.starts_with("An error"));
        assert_eq!(Refusal::of("Unable to locate credentials").code, "");
        assert_eq!(code_of(&refusal.into()), "NoSuchEntity");
        assert_eq!(code_of(&anyhow::anyhow!("x")), "");
    }
}
