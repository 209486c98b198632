//! The blocks of the documents that are marked `sh run` are run, with the real `ostler`, each in an empty folder.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::Command;

#[test]
fn blocks_that_are_marked_to_be_run_run() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let ostler = Path::new(env!("CARGO_BIN_EXE_ostler")).parent().unwrap();
    let path = format!("{}:{}", ostler.display(), std::env::var("PATH").unwrap());
    let mut ran = 0;
    for entry in std::fs::read_dir(docs).unwrap() {
        let page = entry.unwrap().path();
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&page).unwrap();
        for block in text.split("```sh run\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let done = Command::new("bash")
                .args(["-euo", "pipefail", "-c", block])
                .current_dir(folder.path())
                .env("PATH", &path)
                .env("HOME", folder.path())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{}: {block}\n{said}", page.display());
            ran += 1;
        }
    }
    assert!(ran > 1, "{ran}");
}
