//! Instructions per decision, counted by callgrind: a gate that does not depend on how busy the machine is.
//!
//! Fixed worlds of 1,000, 5,000 and 20,000 nodes with eight GPUs, half of them taken; pods for 1, 2, 4 and 8 GPUs and for
//! shares, and all of these in turn. Before each decision some pod has ended. Then full worlds, in which a GPU comes free and is
//! offered to all that wait; and one node's choice for a pod of several containers. The bench starts itself under valgrind;
//! without valgrind it says so and passes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss, missing_docs)] // a bench is a test

#[allow(dead_code)] // another bench uses more of it
mod callgrind;
#[path = "decide/cluster.rs"]
#[allow(dead_code)] // the other bench uses more of it
mod cluster;
#[path = "decide/exact.rs"]
mod exact;
#[allow(dead_code)] // other benches use more of it
mod expect;
#[path = "decide/gangs.rs"]
mod gangs;
#[path = "../tests/harness/scheduler/values.rs"]
mod values;
#[path = "decide/waiting.rs"]
mod waiting;

use baton::decide::scheduler::{Effects, Moment, NodeSearch, Scheduler};
use cluster::{Cluster, MIXED};
use expect::Expect;

/// Names the world's size to the process under valgrind.
const NODES: &str = "BATON_BENCH_INSTRUCTIONS";
/// Names what else is counted.
const CASE: &str = "BATON_BENCH_CASE";
const SIZES: [usize; 3] = [1000, 5000, 20_000];
const DECISIONS: usize = 100;
/// Verdicts are kept from here on: the first decision of a shape judges every node and is no figure of this bench.
const WARM_UP: usize = 10;

type Run = fn(&mut Scheduler, Moment) -> Effects;

/// One function for each stream, so that callgrind tells them apart by name.
macro_rules! streams {
    ($($name:ident),*) => {
        $(#[inline(never)]
        fn $name(engine: &mut Scheduler, now: Moment) -> Effects {
            // Not the last thing done: a tail call would leave no trace of this function.
            // The name keeps the functions apart: the linker folds equal ones into one.
            std::hint::black_box(stringify!($name));
            std::hint::black_box(engine.run(now))
        })*
        const STREAMS: [(&str, Run); 6] = [$((stringify!($name), $name)),*];
    };
}
streams!(one_gpu, two_gpus, four_gpus, eight_gpus, one_share, mixed_in_turn);

fn main() {
    if let Some(nodes) = std::env::var_os(NODES) {
        return decide(nodes.to_str().unwrap().parse().unwrap());
    }
    if let Ok(case) = std::env::var(CASE) {
        return if case.starts_with("exact") { exact::run(&case) } else { waiting::run(&case) };
    }
    if !callgrind::is_there() {
        println!("skipped: valgrind is not installed, instructions cannot be counted");
        return;
    }
    let mut expect = Expect::load("instructions");
    let mut mixed = Vec::new();
    for nodes in SIZES {
        let costs = callgrind::costs(&[(NODES, &nodes.to_string())]);
        for (name, _) in STREAMS {
            let calls = costs.get(name).unwrap_or_else(|| panic!("callgrind saw no call of {name}"));
            assert_eq!(calls.count as usize, DECISIONS, "every decision of {name} is counted");
            let each = calls.instructions as f64 / DECISIONS as f64;
            expect.at_most(&format!("{name}_{nodes}"), each);
            if name == "mixed_in_turn" {
                mixed.push(each);
            }
        }
    }
    let roots = (SIZES[2] as f64 / SIZES[0] as f64).sqrt();
    expect.at_most("growth_to_root", mixed[2] / mixed[0] / roots);
    let waiting = waiting::CASES.map(|(case, _)| (case, "free_one", waiting::FREES));
    let exact = exact::CASES.map(|(case, ..)| (case, "choose", exact::CHOICES));
    for (case, function, times) in waiting.into_iter().chain(exact) {
        let costs = callgrind::costs(&[(CASE, case)]);
        let calls = costs.get(function).unwrap_or_else(|| panic!("callgrind saw no call of {function}"));
        assert_eq!(calls.count as usize, times, "every call of {function} is counted");
        expect.at_most(case, calls.instructions as f64 / times as f64);
    }
    expect.finish();
}

/// What is counted, in a process of its own.
fn decide(nodes: usize) {
    let mut cluster = Cluster::new(nodes, NodeSearch::Indexed);
    cluster.fill_unevenly();
    cluster.lead();
    for (at, (_, run)) in STREAMS.into_iter().enumerate() {
        let asks = if at < MIXED.len() { &MIXED[at..=at] } else { &MIXED[..] };
        for turn in 0..WARM_UP + DECISIONS {
            cluster.end_one();
            let ask = &asks[turn % asks.len()];
            let decision = if turn < WARM_UP { cluster.decide(ask) } else { cluster.decide_by(ask, run) };
            assert!(decision.bound, "a pod found no node in a half full world");
        }
    }
}
