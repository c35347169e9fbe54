//! `cargo +nightly fuzz run inventory corpus/inventory seeds/inventory`, in `fuzz/`.
#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::inventory(data));
