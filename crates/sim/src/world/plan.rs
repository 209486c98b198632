//! Which port calls fail, and the record of all.

use ostler_core::time::Timestamp;

use super::State;

/// How a fault strikes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strike {
    /// It fails and has done nothing.
    Before,
    /// It is done, but its answer is an error.
    After,
    /// The caller is killed; nothing was done.
    CutBefore,
    /// It is done, and the caller is killed.
    CutAfter,
    /// It is done, and takes as long as a patient client waits.
    Slow,
    /// It is done twice: the client sends it again because the first answer was lost, as AWS's SDKs do. GitHub's POSTs
    /// are not sent again; of those the answer is lost.
    Twice,
}

impl Strike {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Before, Self::After, Self::CutBefore, Self::CutAfter, Self::Slow, Self::Twice];

    /// Whether the caller hears of it, as an error or by its own end. Of GitHub's POSTs that are made twice it does too.
    pub const fn is_failure(self) -> bool {
        !matches!(self, Self::Slow | Self::Twice)
    }

    /// What it is called in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "call: fails before",
            Self::After => "call: fails after",
            Self::CutBefore => "call: killed before",
            Self::CutAfter => "call: killed after",
            Self::Slow => "call: slow",
            Self::Twice => "call: made twice",
        }
    }
}

/// The faults to come, each one used up when it strikes.
#[derive(Clone, Debug, Default)]
pub struct Plan(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    /// Beginning of the name; empty for all.
    name: &'static str,
    skip: usize,
    times: usize,
    strike: Strike,
}

impl Plan {
    /// Strikes the `number`th call from now, counted from 1.
    pub fn call(number: usize, strike: Strike) -> Self {
        Self::nth("", number, strike)
    }

    /// Strikes the `number`th call from now, counted from 1, among those whose names begin so.
    pub fn nth(name: &'static str, number: usize, strike: Strike) -> Self {
        Self(vec![Rule { name, skip: number.saturating_sub(1), times: 1, strike }])
    }

    /// Strikes `times` calls whose names begin so, from the `number`th on, counted from 1.
    pub fn some(name: &'static str, number: usize, times: usize, strike: Strike) -> Self {
        Self(vec![Rule { name, skip: number.saturating_sub(1), times: times.max(1), strike }])
    }

    /// Strikes the next `times` calls whose names begin so.
    pub fn next(name: &'static str, times: usize, strike: Strike) -> Self {
        Self(vec![Rule { name, skip: 0, times, strike }])
    }

    /// These faults and those.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Whether all faults have struck.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn strike(&mut self, name: &str) -> Option<Strike> {
        let mut strike = None;
        for rule in self.0.iter_mut().filter(|rule| name.starts_with(rule.name)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if strike.is_none() {
                rule.times -= 1;
                strike = Some(rule.strike);
            }
        }
        self.0.retain(|rule| rule.times > 0);
        strike
    }
}

/// A port call that was made.
#[derive(Clone, Debug)]
pub struct Call {
    /// `Port.method`.
    pub name: &'static str,
    /// Who made it.
    pub caller: &'static str,
    /// When.
    pub at: Timestamp,
    /// What befell it.
    pub struck: Option<Strike>,
}

impl State {
    /// Writes a call down. Answers how it is struck.
    pub(super) fn enter(&mut self, name: &'static str) -> Option<Strike> {
        let struck = self.plan.strike(name);
        self.calls.push(Call { name, caller: self.caller, at: self.now, struck });
        struck
    }
}
