//! What AWS charges, from a dated list in the repository.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use super::super::figures::Calls;

/// `bench/prices.json`: USD in one region, beyond all free allowances.
#[derive(Clone, Debug, Deserialize)]
pub struct Prices {
    /// The day it was written.
    pub as_of: String,
    /// The region.
    pub region: String,
    lambda_gb_second: f64,
    lambda_request: f64,
    step_functions_transition: f64,
    sqs_request: f64,
    sqs_fifo_request: f64,
    dynamodb_write_unit: f64,
    dynamodb_read_unit: f64,
    secrets_manager_call: f64,
    secrets_manager_secret_month: f64,
    alarm_month: f64,
}

impl Prices {
    /// Reads the list.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not its like", path.display()))
    }

    /// USD of a state transition.
    pub const fn transition(&self) -> f64 {
        self.step_functions_transition
    }

    /// USD of a call of a FIFO queue.
    pub const fn fifo_request(&self) -> f64 {
        self.sqs_fifo_request
    }

    /// USD of a call of another queue.
    pub const fn request(&self) -> f64 {
        self.sqs_request
    }

    /// USD of an item that is written.
    pub const fn write_unit(&self) -> f64 {
        self.dynamodb_write_unit
    }

    /// USD of an item that is read.
    pub const fn read_unit(&self) -> f64 {
        self.dynamodb_read_unit
    }

    /// USD of a secret in a month.
    pub const fn secret_month(&self) -> f64 {
        self.secrets_manager_secret_month
    }

    /// USD of an alarm in a month.
    pub const fn alarm_month(&self) -> f64 {
        self.alarm_month
    }

    /// USD of an invocation, whose duration is charged by the millisecond begun.
    pub fn invocation(&self, duration_ms: f64, memory_mb: u32) -> f64 {
        let gb_seconds = duration_ms.ceil() / 1000.0 * f64::from(memory_mb) / 1024.0;
        self.lambda_request + gb_seconds * self.lambda_gb_second
    }

    /// USD of calls: of those that are charged by the call. Items are small, so that each read or write of one is one
    /// unit; a transaction takes two for each item, and strongly consistent reads are assumed.
    #[allow(clippy::cast_precision_loss, reason = "a few calls")]
    pub fn calls(&self, calls: &Calls) -> f64 {
        let price = |call: &str| match call.split_once(':') {
            Some(("secretsmanager", _)) => self.secrets_manager_call,
            Some(("sqs", _)) => self.sqs_fifo_request,
            Some(("dynamodb", "GetItem" | "Query" | "BatchGetItem")) => self.dynamodb_read_unit,
            Some(("dynamodb", "TransactWriteItems")) => 2.0 * self.dynamodb_write_unit,
            Some(("dynamodb", _)) => self.dynamodb_write_unit,
            _ => 0.0,
        };
        calls.iter().map(|(call, times)| price(call) * *times as f64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_in_the_repository_prices_time_by_the_millisecond_and_calls_by_kind() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/prices.json");
        let prices = Prices::read(&path).unwrap();
        // 128 MB are an eighth of a GB; 2.1 ms are charged as 3.
        let invocation = prices.invocation(2.1, 128);
        assert!((invocation - (0.000_000_2 + 0.003 / 8.0 * 0.000_016_666_7)).abs() < 1e-15);
        let calls = |of: &[(&str, u64)]| {
            of.iter().map(|(call, times)| ((*call).to_owned(), *times)).collect::<Calls>()
        };
        let priced = prices.calls(&calls(&[("secretsmanager:GetSecretValue", 2)]));
        assert!((priced - 0.000_01).abs() < 1e-12);
        assert_eq!(prices.calls(&calls(&[("states:StartExecution", 9), ("GET /octocat", 1)])), 0.0);
        let item = prices.calls(&calls(&[("dynamodb:PutItem", 1)]));
        assert_eq!(prices.calls(&calls(&[("dynamodb:TransactWriteItems", 1)])), 2.0 * item);
    }
}
