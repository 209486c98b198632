//! The faults that `scripts/mutants.sh` puts into the use cases can still be put there. Whether they are noticed takes
//! hours to find out, and is not found out here.

#![allow(clippy::unwrap_used)] // helpers of tests, which the lint does not take for tests

use std::path::{Path, PathBuf};
use std::process::Command;

/// So many at least.
const FEWEST: usize = 30;

fn patches() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations");
    let mut found: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn every_seeded_fault_still_applies_to_the_use_cases() {
    let patches = patches();
    assert!(patches.len() >= FEWEST, "{}", patches.len());
    for patch in patches {
        let told = Command::new("git")
            .args(["apply", "--check"])
            .arg(&patch)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .output()
            .unwrap();
        let (name, why) = (patch.display(), String::from_utf8_lossy(&told.stderr));
        assert!(told.status.success(), "{name}: make it anew: {why}");
        let text = std::fs::read_to_string(&patch).unwrap();
        assert!(text.contains("+++ b/crates/core/src/"), "{name} is not about a use case");
    }
}
