//! `cargo +nightly fuzz run sysfs corpus/sysfs seeds/sysfs`, in `fuzz/`.
#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::sysfs(data));
