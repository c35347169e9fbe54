//! `cargo +nightly fuzz run lock corpus/lock seeds/lock`, in `fuzz/`.
#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::lock(data));
