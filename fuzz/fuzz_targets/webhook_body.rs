#![no_main]

#[path = "../../crates/core/tests/arbitrary_bytes/inputs.rs"]
#[allow(dead_code)]
mod inputs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| inputs::webhook_body(bytes));
