//! Metrics as lines of the log, in CloudWatch's embedded metric format: no call, no permission, no buffer.
//! (docs.aws.amazon.com, "CloudWatch embedded metric format specification".)

use std::io::{Stdout, Write, stdout};
use std::sync::Mutex;

use ostler_core::metrics::{NAMESPACE, unit};
use ostler_core::ports::{Clock, MENDED_BY_OPERATORS, OPERATOR_NEEDED, Telemetry};
use serde_json::{Value, json};

/// Writes one line per count. Every metric has a series without dimensions, for alarms, and one by the
/// count's dimensions (`Tier`, mostly) where it has any.
pub struct Emf<C, W = Stdout> {
    clock: C,
    out: Mutex<W>,
}

impl<C: Clock> Emf<C> {
    /// To the function's log.
    pub fn new(clock: C) -> Self {
        Self::to(clock, stdout())
    }
}

impl<C: Clock, W: Write> Emf<C, W> {
    /// To any writer.
    pub fn to(clock: C, out: W) -> Self {
        Self { clock, out: Mutex::new(out) }
    }

    fn line(&self, metric: &str, by: &[(&str, &str)], value: f64) -> Value {
        let names: Vec<_> = by.iter().map(|(name, _)| name).collect();
        let dimensions = if by.is_empty() { json!([[]]) } else { json!([[], names]) };
        let mut line = json!({
            "_aws": {
                "Timestamp": self.clock.now().millis(),
                "CloudWatchMetrics": [{
                    "Namespace": NAMESPACE,
                    "Dimensions": dimensions,
                    "Metrics": [{"Name": metric, "Unit": unit(metric)}],
                }],
            },
        });
        if MENDED_BY_OPERATORS.contains(&metric) {
            let directives = line["_aws"]["CloudWatchMetrics"].as_array_mut();
            directives.into_iter().for_each(|all| {
                all.push(json!({
                    "Namespace": NAMESPACE,
                    "Dimensions": [[]],
                    "Metrics": [{"Name": OPERATOR_NEEDED, "Unit": "Count"}],
                }));
            });
            line[OPERATOR_NEEDED] = json!(value);
        }
        for (name, value) in by {
            line[name] = json!(value);
        }
        line[metric] = json!(value);
        line
    }
}

impl<C: Clock, W: Write> Telemetry for Emf<C, W> {
    fn count_by(&self, metric: &'static str, by: &[(&'static str, &str)], value: f64) {
        let line = format!("{}\n", self.line(metric, by, value));
        let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One write per line, so that log lines never get into it. A log that takes no line has nowhere
        // to say so, and is no reason to fail the work that is being counted.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use ostler_core::time::Timestamp;

    use super::*;

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(1_764_504_000_123)
        }
    }

    fn written(count: impl Fn(&Emf<Fixed, &mut Vec<u8>>)) -> Vec<Value> {
        let mut out = Vec::new();
        count(&Emf::to(Fixed, &mut out));
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with('\n'));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_count_is_one_line_that_cloudwatch_takes() {
        let lines = written(|emf| emf.count("RunnerStarted", None, 1.0));
        assert_eq!(
            lines,
            [json!({"_aws": {"Timestamp": 1_764_504_000_123_i64, "CloudWatchMetrics": [{
                "Namespace": "Ostler", "Dimensions": [[]],
                "Metrics": [{"Name": "RunnerStarted", "Unit": "Count"}]}]}, "RunnerStarted": 1.0})]
        );
    }

    #[test]
    fn a_dimension_adds_a_series_and_does_not_replace_the_one_without() {
        let lines = written(|emf| {
            emf.count("Stolen", Some(("Tier", "linux-x64")), 2.0);
            emf.count("Stolen", Some(("Tier", "quote\"\nline")), 1.0);
        });
        assert_eq!(lines.len(), 2, "text from outside never breaks a line");
        let metrics = &lines[0]["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(metrics["Dimensions"], json!([[], ["Tier"]]));
        assert_eq!((&lines[0]["Tier"], &lines[0]["Stolen"]), (&json!("linux-x64"), &json!(2.0)));
        let both = [("Replaced", "true"), ("Tier", "small")];
        let line = &written(|emf| emf.count_by("Stolen", &both, 1.0))[0];
        let metrics = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(metrics["Dimensions"], json!([[], ["Replaced", "Tier"]]));
        assert_eq!((&line["Replaced"], &line["Tier"]), (&json!("true"), &json!("small")));
    }

    #[test]
    fn a_metrics_name_says_its_unit() {
        for (metric, unit) in
            [("QueueSeconds", "Seconds"), ("JobCostUsd", "None"), ("Stolen", "Count")]
        {
            let line = &written(|emf| emf.count(metric, None, 1.5))[0];
            let metrics = &line["_aws"]["CloudWatchMetrics"][0];
            assert_eq!(metrics["Metrics"][0], json!({"Name": metric, "Unit": unit}));
            assert_eq!(line[metric], json!(1.5));
        }
    }

    #[test]
    fn what_an_operator_has_to_mend_is_counted_under_one_more_name_for_one_alarm() {
        let line = &written(|emf| emf.count("NotAssigned", Some(("Tier", "small")), 2.0))[0];
        let metrics = &line["_aws"]["CloudWatchMetrics"];
        assert_eq!(metrics[0]["Metrics"][0]["Name"], "NotAssigned");
        assert_eq!(metrics[1]["Metrics"][0]["Name"], OPERATOR_NEEDED);
        assert_eq!(metrics[1]["Dimensions"], json!([[]]));
        assert_eq!((&line["NotAssigned"], &line[OPERATOR_NEEDED]), (&json!(2.0), &json!(2.0)));
        let other = &written(|emf| emf.count("RunnerStarted", None, 1.0))[0];
        assert_eq!(other["_aws"]["CloudWatchMetrics"].as_array().map(Vec::len), Some(1));
    }
}
