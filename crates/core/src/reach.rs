//! Which branches of the use cases are ever taken. A branch marks itself by its name; the simulation counts the
//! marks, knows all names from the sources, and fails a run that never took one of them.

use std::sync::OnceLock;

/// What is told of marks: nothing in a function.
static COUNTED: OnceLock<fn(&'static str)> = OnceLock::new();

/// Marks that this branch was taken. `branch` stands in the source as a literal, `use case: what happened`, and
/// nowhere else. Costs a look at a pointer.
#[inline]
pub(crate) fn reached(branch: &'static str) {
    if let Some(count) = COUNTED.get() {
        count(branch);
    }
}

/// Has `count` told of each mark from now on. For the whole process, and once.
pub fn count_with(count: fn(&'static str)) {
    COUNTED.get_or_init(|| count);
}
