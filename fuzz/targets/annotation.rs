//! `cargo +nightly fuzz run annotation corpus/annotation seeds/annotation`, in `fuzz/`.
#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::annotation(data));
