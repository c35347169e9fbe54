//! The basic policies' ratings on one cluster of four nodes, computed by hand.
//!
//! | node | cpu used / total | memory | GPU percent |
//! | --- | --- | --- | --- |
//! | a | 0 / 10 | 0 / 100 | 0 / 800 |
//! | b | 5 / 10 | 20 / 100 | 400 / 800 |
//! | c | 8 / 10 | 70 / 100 | none |
//! | d | 2 / 10 | 20 / 100 | 600 / 800 |

use baton::contract::tyjob::Role;
use baton::decide::core::MetricWeights;
use baton::decide::tyjob::placement::{Metric, Rank, Utilisation};

use crate::prelude::*;

fn cluster() -> [Utilisation; 4] {
    let load =
        |cpu: i64, memory, gpu, gpus| Utilisation { used: [cpu * 1000, memory, gpu], total: [10_000, 100, gpus] };
    [load(0, 0, 0, 800), load(5, 20, 400, 800), load(8, 70, 0, 0), load(2, 20, 600, 800)]
}

/// 1 CPU, 10 memory, and GPUs.
fn pod(gpus: i64) -> Resources {
    let mut pod = Resources { milli_cpu: 1000, memory: 10, ..Resources::default() };
    if gpus > 0 {
        pod.scalar.insert("nvidia.com/gpu".into(), gpus);
    }
    pod
}

#[test]
fn every_policy_rates_by_its_own_means_of_utilisation() {
    for (policy, role, gpus, wanted) in [
        // a: (0.1 + 0.1 + 0) / 3; b: (0.6 + 0.3 + 0.5) / 3; c: (0.9 + 0.8) / 2; d: (0.3 + 0.3 + 0.75) / 3
        (BasicPolicy::BinPack, Role::Worker, 0, [66_666_667, 466_666_667, 850_000_000, 450_000_000]),
        (BasicPolicy::BinPack, Role::Leader, 0, [66_666_667, 466_666_667, 850_000_000, 450_000_000]),
        (BasicPolicy::Gang, Role::Worker, 0, [66_666_667, 466_666_667, 850_000_000, 450_000_000]),
        (BasicPolicy::Gang, Role::Leader, 0, [66_666_667, 466_666_667, 850_000_000, 450_000_000]),
        (BasicPolicy::JobAffinity, Role::Worker, 0, [66_666_667, 466_666_667, 850_000_000, 450_000_000]),
        (BasicPolicy::JobAffinity, Role::Leader, 0, [66_666_667, 466_666_667, 850_000_000, 450_000_000]),
        (BasicPolicy::JobAntiAffinity, Role::Worker, 0, [933_333_333, 533_333_333, 150_000_000, 550_000_000]),
        // Little use, GPUs raised. a: (0.1 + 0.1 + 3 * 0.125) / 5; b: (0.6 + 0.3 + 3 * 0.625) / 5; c: 0.85; d: (0.6 + 3 * 0.875) / 5
        (BasicPolicy::LeaderFirst, Role::Leader, 1, [885_000_000, 445_000_000, 150_000_000, 355_000_000]),
        // Much use, CPU raised. a: (0.3 + 0.1 + 0) / 5; b: (1.8 + 0.3 + 0.5) / 5; c: (2.7 + 0.8) / 4; d: (0.9 + 0.3 + 0.75) / 5
        (BasicPolicy::LeaderFirst, Role::Worker, 0, [80_000_000, 520_000_000, 875_000_000, 390_000_000]),
        // What CPU and memory lie apart is taken off. a: 1 * 0.0667; b: (1 - 0.3) * 0.4667; c: (1 - 0.1) * 0.85; d: 1 * 0.45
        (BasicPolicy::MinFragment, Role::Worker, 0, [66_666_667, 326_666_667, 765_000_000, 450_000_000]),
    ] {
        let metric = Metric::of(policy, role);
        let rates = cluster().map(|load| metric.rate(&load, &pod(gpus), &MetricWeights::default()));
        assert_eq!(rates, wanted, "{policy:?} of a {role:?} with {gpus} GPUs");
    }
}

#[test]
fn utilisation_counts_at_most_as_one_and_a_node_with_nothing_rates_zero() {
    let full = Utilisation { used: [20_000, 0, 0], total: [10_000, 100, 0] };
    assert_eq!(Metric::Full.rate(&full, &pod(0), &MetricWeights::default()), 550_000_000);
    for metric in [Metric::Full, Metric::Even, Metric::Empty, Metric::EmptyGpuRaised, Metric::FullCpuRaised] {
        assert_eq!(metric.rate(&Utilisation::default(), &pod(0), &MetricWeights::default()), 0);
    }
}

#[test]
fn weights_weigh() {
    let load = Utilisation { used: [0; 3], total: [2000, 100, 0] };
    let weights = MetricWeights { cpu: 3, memory: 1, ..MetricWeights::default() };
    assert_eq!(Metric::Full.rate(&load, &pod(0), &weights), 400_000_000, "(3 * 0.5 + 0.1) / 4");
}

#[test]
fn affinity_compares_company_then_room_then_use_and_anti_affinity_company_then_use() {
    let rank = |policy, metric, here, room| Rank::of(policy, metric, here, || room);
    let near = BasicPolicy::JobAffinity;
    assert!(rank(near, 1, 2, 0) > rank(near, 9, 1, 9));
    assert!(rank(near, 1, 1, 3) > rank(near, 9, 1, 2));
    assert!(rank(near, 9, 1, 3) > rank(near, 1, 1, 3));
    let apart = BasicPolicy::JobAntiAffinity;
    assert!(rank(apart, 1, 0, 0) > rank(apart, 9, 1, 9));
    assert!(rank(apart, 9, 1, 0) > rank(apart, 1, 1, 9));
    assert_eq!(rank(BasicPolicy::BinPack, 5, 7, 7), Rank { company: 0, room: 0, metric: 5 });
}

#[test]
fn what_a_node_has_given_of_its_gpus_is_the_sum_of_what_each_pod_takes() {
    let mut jobs = TestJobs::on_each(&["a", "b"], 8, 2);
    let share = |core, ratio| [("koordinator.sh/gpu-core", core), ("koordinator.sh/gpu-memory-ratio", ratio)];
    // a: 60 and 60 of 200 percent; b: 100 of 200. Sums of each name alone would make a 70.
    for (name, other, limits) in [
        ("p", "b", &share("60", "10")[..]),
        ("q", "b", &share("10", "60")),
        ("r", "a", &[("koordinator.sh/gpu", "100")]),
    ] {
        jobs.cluster.change_node(other, |facts| facts.unschedulable = true).comes(name, limits);
        jobs.serve().cluster.change_node(other, |facts| facts.unschedulable = false);
    }
    assert_eq!(jobs.cluster.bound(), 3);
    let asked: &[(&str, &str)] = &[("koordinator.sh/gpu", "20")];
    jobs.run("rl", asked, (1, asked), |_| {});
    assert_eq!(jobs.places("rl").into_values().collect::<Vec<_>>(), ["a", "a"], "{}", jobs.message("rl"));
}
