//! The stand-in for a release of actions/runner.

use std::io::Write;

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

/// What is in the release, executable.
const FILES: [(&str, &str); 2] = [
    ("./run.sh", include_str!("runner/run.sh")),
    ("./bin/Runner.Listener", include_str!("runner/Runner.Listener")),
];

/// The release's `.tar.gz` and its SHA-256, 64 hexadecimal digits. The same bytes each time.
pub fn runner_release() -> (Vec<u8>, String) {
    let mut tar = Vec::new();
    for (name, text) in FILES {
        tar.extend(header(name, text.len()));
        tar.extend(text.as_bytes());
        tar.resize(tar.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end an archive.
    tar.resize(tar.len() + 2 * BLOCK, 0);
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    // Writing to memory does not fail; if it did, the checksum would say so to the machine.
    let _ = gzip.write_all(&tar);
    let bytes = gzip.finish().unwrap_or_default();
    let sum = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    (bytes, sum)
}

const BLOCK: usize = 512;

/// A ustar header of a plain file, mode 755, owned by root, of no date.
fn header(name: &str, length: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put =
        |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{length:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
