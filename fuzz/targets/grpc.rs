//! `cargo +nightly fuzz run grpc corpus/grpc seeds/grpc`, in `fuzz/`.
#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::grpc(data));
