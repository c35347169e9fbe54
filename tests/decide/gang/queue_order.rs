//! Of gangs and pods of equal priority the older goes first, whatever failed before; and nothing behind a hopeless one starves.
//!
//! Every world is its seed. `ORDER_SEED` runs one world, `ORDER_WORLDS` sets how many are run.

use std::time::Duration;

use baton::contract::key;

use crate::dice::Dice;
use crate::harness::gangs::{TestGangs, gang};

fn ms(count: u32) -> Duration {
    Duration::from_millis(u64::from(count))
}

#[test]
fn the_older_of_two_gangs_starts_when_its_gpus_come_free_ten_times_of_ten() {
    for round in 0..10 {
        let mut gangs = TestGangs::new(64);
        gangs.asks("busy", &[(key::NVIDIA_GPU, "8")], &[]);
        gangs.settle();
        for name in ["zz", "aa"] {
            gangs.cluster.now += Duration::from_secs(5);
            let keys = gang(name, "8", &[]);
            (0..8).for_each(|n| gangs.asks(&format!("{name}-{n}"), &[(key::NVIDIA_GPU, "1")], &keys));
            gangs.settle();
        }
        // A useful event that frees too little fails both in one pass.
        gangs.cluster.node("small", 4);
        gangs.wait(round % 3);
        gangs.cluster.now += ms(100 * round as u32);
        gangs.cluster.finish("busy");
        gangs.wait(2);
        assert_eq!((gangs.count("zz"), gangs.count("aa")), (8, 0), "round {round}");
    }
}

/// Gangs of equal size and single pods of one kind, older and younger, on a full node of which parts come free.
fn world(seed: u64) {
    let mut dice = Dice(seed);
    let (size, small) = (1 + dice.below(4) as usize, 1 + dice.below(3));
    let fillers = 2 + dice.below(6) as usize;
    let mut gangs = TestGangs::new(fillers as u32);
    gangs.cluster.watchful = false;
    gangs.members("filler", fillers, &[]);
    gangs.settle();
    // In the order in which they are to start: of gangs, and of single pods.
    let (mut waiting, mut single) = (Vec::new(), Vec::new());
    let mut fillers: Vec<usize> = (0..fillers).collect();
    for n in 0..4 + dice.below(12) {
        match dice.below(6) {
            // Names fall, so that the order by name is not the order by age.
            0 | 1 => {
                let name = format!("g{:02}", 99 - n);
                gangs.members(&name, size, &gang(&name, &size.to_string(), &[]));
                waiting.push(name);
            }
            2 => {
                let name = format!("s{:02}", 99 - n);
                gangs.asks(&name, &[("cpu", &small.to_string())], &[]);
                single.push(name);
            }
            3 => gangs.node(&format!("n{n}"), dice.below(size as u32 + 1)),
            _ if fillers.is_empty() => {}
            _ => {
                let ended = fillers.swap_remove(dice.below(fillers.len() as u32) as usize);
                gangs.cluster.finish(&format!("filler-{ended}"));
            }
        }
        for what in [&mut waiting, &mut single] {
            settle_in_order(&mut gangs, what, seed);
        }
        gangs.cluster.now += ms(1 + dice.below(1500));
        for what in [&mut waiting, &mut single] {
            settle_in_order(&mut gangs, what, seed);
        }
    }
    (0..3).for_each(|_| gangs.wait(1));
    settle_in_order(&mut gangs, &mut waiting, seed);
    let free: i64 = gangs.cluster.world().nodes().map(|(_, node)| free_cpus(node)).sum();
    let most = gangs.cluster.world().nodes().map(|(_, node)| free_cpus(node)).max().unwrap_or(0);
    assert!(waiting.is_empty() || free < size as i64 * 1000, "seed {seed}: {waiting:?} starve, {free} are free");
    assert!(single.is_empty() || most < i64::from(small) * 1000, "seed {seed}: {single:?} starve, {most} are free");
}

fn free_cpus(node: &baton::decide::world::Node) -> i64 {
    node.facts.as_ref().map_or(0, |facts| facts.allocatable.milli_cpu - node.used.milli_cpu)
}

/// No younger one of a kind has started while an older one waits.
fn settle_in_order(gangs: &mut TestGangs, waiting: &mut Vec<String>, seed: u64) {
    gangs.settle();
    let started: Vec<bool> = waiting.iter().map(|name| gangs.count(name) > 0).collect();
    assert!(started.is_sorted_by(|older, younger| older >= younger), "seed {seed}: {waiting:?} started {started:?}");
    waiting.retain(|name| gangs.count(name) == 0);
}

#[test]
fn no_younger_gang_or_pod_of_equal_request_starts_before_an_older_one() {
    let of = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = of("ORDER_SEED") {
        return world(seed);
    }
    let worlds = of("ORDER_WORLDS").unwrap_or(10_000);
    println!("seeds 1 to {worlds}");
    (1..=worlds).for_each(world);
}

#[test]
fn what_waits_behind_hopeless_older_pods_is_tried_though_each_event_wakes_them() {
    let mut gangs = TestGangs::new(4);
    gangs.members("filler", 4, &[]);
    gangs.settle();
    // More hopeless pods than one step tries.
    let hopeless = gangs.cluster.scheduler.config().batch + 20;
    (0..hopeless).for_each(|n| gangs.asks(&format!("hopeless-{n:03}"), &[("cpu", "9")], &[]));
    gangs.settle();
    gangs.member("young", &[]);
    gangs.settle();
    for n in 0..4 {
        // Room comes free before each step.
        gangs.cluster.finish(&format!("filler-{n}"));
        let effects = gangs.cluster.scheduler.run(gangs.cluster.moment());
        gangs.cluster.perform(effects);
    }
    gangs.settle();
    assert_eq!(gangs.count("young"), 1);
}
