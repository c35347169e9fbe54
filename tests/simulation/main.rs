//! The whole system under faults, simulated: schedulers, node daemons and kubelets around the functions that ship, in virtual time,
//! from one seed.
//!
//! `SIMULATION_SEED` runs one seed and prints how it went, `SIMULATION_SEEDS` says how many are run.
#![allow(clippy::unwrap_used, clippy::panic)] // a test may
#![allow(missing_docs)] // modules of tests

#[path = "../harness/dice.rs"]
mod dice;
#[path = "../harness/scheduler/mod.rs"]
#[allow(dead_code, unused_imports)] // other tests use more of it
mod harness;
#[allow(dead_code, unused_imports)] // the bench uses more of it
mod system;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use system::{FAILED, Fault, Mutant, Outcome, Plan, RARE, System};

/// Seeds of the ordinary run.
const SEEDS: u64 = 40;
const PODS: u32 = 50;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Fails with everything that is needed to look into it.
fn is_sound(plan: &Plan, outcome: &Outcome) {
    let Some(violation) = &outcome.violation else { return };
    let last: Vec<&str> = outcome.history.last.iter().map(String::as_str).collect();
    panic!(
        "seed {}, {violation}\n{}\nagain: SIMULATION_SEED={} cargo test --test simulation\nless: cargo bench --bench simulation -- --shrink {}",
        plan.seed,
        last.join("\n"),
        plan.seed,
        plan.seed
    );
}

/// Runs seeds on every core. A run has no thread of its own, so each is the same as alone.
fn run_all(seeds: Range<u64>) -> Vec<(Plan, Outcome)> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut done = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return done;
            }
            let plan = Plan::new(seed, PODS);
            let plan = Plan { lines: number("SIMULATION_LINES").map_or(plan.lines, |lines| lines as usize), ..plan };
            done.push((plan.clone(), System::run(plan)));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut all: Vec<(Plan, Outcome)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_by_key(|(plan, _)| plan.seed);
    all
}

#[test]
fn no_promise_is_broken_under_faults() {
    let seeds = match number("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SIMULATION_SEEDS").unwrap_or(SEEDS) + 1,
    };
    let (mut faults, mut seen): (BTreeMap<Fault, u64>, BTreeSet<&str>) = Default::default();
    let mut ended: BTreeMap<&str, u32> = BTreeMap::new();
    for (plan, outcome) in run_all(seeds.clone()) {
        is_sound(&plan, &outcome);
        outcome.counts.iter().for_each(|(fault, count)| *faults.entry(*fault).or_default() += count);
        outcome.ended.iter().for_each(|(how, count)| *ended.entry(how).or_default() += count);
        seen.extend(outcome.history.seen.keys());
        println!(
            "seed {}: {:016x}, {} lines, {} s",
            plan.seed,
            outcome.history.hash,
            outcome.history.steps,
            outcome.took.as_secs()
        );
    }
    println!("{ended:?}");
    faults.iter().for_each(|(fault, count)| println!("{count:>6} {}", fault.words()));
    println!("seen: {seen:#?}");
    if seeds.end - seeds.start >= SEEDS {
        let never: Vec<&str> =
            Fault::ALL.iter().filter(|fault| !faults.contains_key(fault)).map(|f| f.words()).collect();
        assert!(never.is_empty(), "faults that never happened: {never:?}");
        let missed: Vec<&&str> = RARE.iter().filter(|what| !seen.contains(*what)).collect();
        assert!(missed.is_empty(), "branches that were never passed: {missed:?}");
    }
}

#[test]
fn without_faults_every_pod_succeeds_at_its_first_try() {
    for seed in 1..=3 {
        let plan = Plan { faults: 0, ..Plan::new(seed, PODS) };
        let outcome = System::run(plan.clone());
        is_sound(&plan, &outcome);
        assert!(!outcome.history.seen.contains_key(FAILED), "seed {seed}: {:?}", outcome.history.seen);
    }
}

#[test]
fn a_seed_has_one_history() {
    let [first, second] = [(), ()].map(|()| System::run(Plan::new(7, PODS)).history);
    assert_eq!((first.hash, first.steps), (second.hash, second.steps));
    let other = System::run(Plan::new(8, PODS)).history;
    assert_ne!(first.hash, other.hash);
}

/// Adapters that perform effects in another order than the machines and the scheduler state, each with a seed that finds it. Nothing
/// observes, so that no order is asserted, whether the new ledger is published before its file is written or after, and in which order
/// comes what follows an answer.
const ORDER: &[(Mutant, u64)] = &[
    (Mutant::UnlocksBeforeGranting, 1),
    (Mutant::UnlocksBeforeWriting, 25),
    (Mutant::UnlocksAfterRefusing, 1),
    (Mutant::UnlocksAfterBinding, 1),
    (Mutant::AnswersUnwritten, 1),
    (Mutant::ListsAfterDeciding, 1),
    (Mutant::RebuildsBeforeListing, 74),
    (Mutant::DropsBeforeLooking, 2),
    (Mutant::StatusAfterEffects, 2),
    (Mutant::BindCountsWhenSent, 1),
];

#[test]
fn a_wrong_order_of_effects_is_found() {
    for (mutant, seed) in ORDER {
        // Other dice move the seed.
        let found = std::iter::once(*seed).chain(1..=40).find(|seed| {
            let plan = Plan { mutant: Some(*mutant), ..Plan::new(*seed, PODS) };
            System::run(plan).violation.is_some()
        });
        println!("{}: seed {found:?}", mutant.words());
        assert!(found.is_some(), "not found: {}", mutant.words());
    }
}

#[test]
fn a_wrong_adapter_is_found() {
    // Others need more seeds: `cargo bench --bench simulation -- --mutants` has all of them.
    let mutants = [
        Mutant::LockWithoutTest,
        Mutant::AnswersBeforeWriting,
        Mutant::KubeletChooses,
        Mutant::UnlockIsNoNews,
        Mutant::FreedAtDeletion,
        Mutant::GateSharesPermits,
        Mutant::StatusAssumed,
        Mutant::StaleControllerWrites,
    ];
    for mutant in mutants {
        let found = (1..=20).find(|seed| {
            let plan = Plan { mutant: Some(mutant), ..Plan::new(*seed, PODS) };
            System::run(plan).violation.is_some()
        });
        println!("{}: seed {found:?}", mutant.words());
        assert!(found.is_some(), "not found: {}", mutant.words());
    }
}
