//! Of gangs and pods of equal priority the older goes first, whatever failed before; and nothing behind a hopeless one starves.

use std::time::Duration;

use baton::contract::key;

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
            gangs.all_ask(name, 8, &[(key::NVIDIA_GPU, "1")], &gang(name, "8", &[]));
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

#[test]
fn what_waits_behind_hopeless_older_pods_is_tried_though_each_event_wakes_them() {
    let mut gangs = TestGangs::new(4);
    gangs.come("filler", 4, &[]);
    // More hopeless pods than one step tries.
    let hopeless = gangs.cluster.scheduler.config().batch + 20;
    (0..hopeless).for_each(|n| gangs.asks(&format!("hopeless-{n:03}"), &[("cpu", "9")], &[]));
    gangs.settle();
    gangs.comes("young", &[]);
    for n in 0..4 {
        // Room comes free before each step.
        gangs.cluster.finish(&format!("filler-{n}"));
        gangs.cluster.run_once();
    }
    assert_eq!(gangs.settled().count("young"), 1);
}
