//! Of gangs and pods of equal priority the older goes first, whatever failed before; and nothing behind a hopeless one starves.

use crate::prelude::*;

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
            gangs.cluster.later(5);
            gangs.all_ask(name, 8, ONE, &gang(name, "8", &[])).settle();
        }
        // A useful event that frees too little fails both in one pass.
        gangs.cluster.node("small", 4);
        gangs.wait(round % 3);
        gangs.cluster.now += ms(100 * round as u32);
        gangs.cluster.finish("busy");
        assert_eq!(gangs.after(2).counts(["zz", "aa"]), [8, 0], "round {round}");
    }
}

#[test]
fn what_waits_behind_hopeless_older_pods_is_tried_though_each_event_wakes_them() {
    let mut gangs = TestGangs::new(4);
    gangs.come("filler", 4, &[]);
    // More hopeless pods than one step tries.
    let hopeless = gangs.cluster.scheduler.config().batch + 20;
    (0..hopeless).for_each(|n| gangs.asks(&format!("hopeless-{n:03}"), &[("cpu", "9")], &[]));
    gangs.settled().comes("young", &[]);
    for n in 0..4 {
        // Room comes free before each step.
        gangs.cluster.finish(&format!("filler-{n}"));
        gangs.cluster.run_once();
    }
    assert_eq!(gangs.settled().count("young"), 1);
}
