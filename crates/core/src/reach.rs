//! Which branches of the use cases are ever taken. A branch marks itself by its name; the simulation counts the
//! marks, knows all names from the sources, and fails a run that never took one of them.
//!
//! Only with the feature `reach`, which the simulation asks for: a function's archive has no room for names that
//! nobody reads there.

#[cfg(feature = "reach")]
use std::sync::OnceLock;

/// What is told of marks.
#[cfg(feature = "reach")]
static COUNTED: OnceLock<fn(&'static str)> = OnceLock::new();

/// Marks that this branch was taken. `branch` stands in the source as a literal, `use case: what happened`, and
/// nowhere else.
#[cfg(feature = "reach")]
#[inline]
pub(crate) fn reached(branch: &'static str) {
    if let Some(count) = COUNTED.get() {
        count(branch);
    }
}

/// Nobody asks.
#[cfg(not(feature = "reach"))]
#[inline(always)]
pub(crate) const fn reached(_branch: &'static str) {}

/// Has `count` told of each mark from now on. For the whole process, and once.
#[cfg(feature = "reach")]
pub fn count_with(count: fn(&'static str)) {
    COUNTED.get_or_init(|| count);
}
