//! A long life in short: pods stream through the daemons as they ship while processes are killed with -9, kubelets restart
//! and the API server goes away. No device is ever held twice, no lock outlives its bound, and the daemons stay flat.
//!
//! `cargo test --test soak` runs a small one; `cargo test --release --test soak -- --ignored --nocapture` the full one of 2,000
//! pods. `SOAK_SEED` repeats a run's choices, `SOAK_PODS` changes the length of the full one.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // tests

mod audit;
mod chaos;
#[path = "../harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // other crates of tests use more of it
mod harness;
mod load;
mod run;
#[path = "../harness/skip.rs"]
mod skip;
mod vitals;

use std::time::Duration;

use run::{Plan, Strictness, soak};

fn seed() -> u64 {
    let given = std::env::var("SOAK_SEED").ok().map(|text| text.parse().expect("SOAK_SEED is a number"));
    given.unwrap_or_else(|| fastrand::u64(..))
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_pods_survive_kills_a_kubelet_restart_and_a_blackout() {
    soak(Plan {
        seed: seed(),
        nodes: 2,
        pods: 60,
        at_once: 16,
        run_seconds: 10..30,
        kill_every: Duration::from_secs(3),
        kills: 3,
        kubelet_restarts: 1,
        blackouts: 1,
        flat: Strictness::Descriptors,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --release --test soak -- --ignored --nocapture"]
async fn two_thousand_pods_survive_a_kill_every_five_seconds() {
    let pods = std::env::var("SOAK_PODS").map_or(2_000, |text| text.parse().expect("SOAK_PODS is a number"));
    soak(Plan {
        seed: seed(),
        nodes: 4,
        pods,
        at_once: 48,
        run_seconds: 20..160,
        kill_every: Duration::from_secs(5),
        kills: 0,
        kubelet_restarts: 20,
        blackouts: 10,
        flat: Strictness::MemoryAndDescriptors,
    })
    .await;
}
