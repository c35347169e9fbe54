//! Random streams of pods, faults, deletions and restarts: nothing twice, nothing lost, the same input the same output.

use baton::contract::key;
use proptest::prelude::*;

use crate::harness::{Fault, TestScheduler};

#[derive(Debug, Clone)]
enum Step {
    Pod { gpu: usize },
    Finish(usize),
    Delete(usize),
    Release(usize),
    LockFault(Fault),
    BindFault(Fault),
    Wait(u64),
    Hold,
    Deliver,
    Restart,
}

const REQUESTS: [&[(&str, &str)]; 7] = [
    &[(key::NVIDIA_GPU, "1")],
    &[(key::NVIDIA_GPU, "4")],
    &[(key::NVIDIA_GPU, "8")],
    &[(key::GPU, "50")],
    &[(key::GPU_CORE, "30"), (key::GPU_MEMORY, "20Gi")],
    &[("cpu", "4")],
    &[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "60")],
];

fn step() -> impl Strategy<Value = Step> {
    let fault = || prop_oneof![Just(Fault::LostAnswer), Just(Fault::Fails), Just(Fault::Refused)];
    prop_oneof![
        6 => (0..REQUESTS.len()).prop_map(|gpu| Step::Pod { gpu }),
        2 => any::<usize>().prop_map(Step::Finish),
        2 => any::<usize>().prop_map(Step::Delete),
        6 => any::<usize>().prop_map(Step::Release),
        1 => fault().prop_map(Step::LockFault),
        1 => fault().prop_map(Step::BindFault),
        2 => (1..40u64).prop_map(Step::Wait),
        1 => Just(Step::Hold),
        2 => Just(Step::Deliver),
        1 => Just(Step::Restart),
    ]
}

/// Plays the steps; the audit runs inside after every effect. Returns a digest of the cluster.
fn play(steps: &[Step]) -> String {
    let mut cluster = TestScheduler::new();
    for node in ["a", "b", "c"] {
        cluster.node(node, 8);
    }
    for (at, step) in steps.iter().enumerate() {
        let pick = |cluster: &TestScheduler, n: usize| {
            let names: Vec<String> = cluster.pods.keys().map(|key| key.name.to_string()).collect();
            (!names.is_empty()).then(|| names[n % names.len()].clone())
        };
        match step {
            Step::Pod { gpu } => cluster.pod(&format!("p{at:03}"), REQUESTS[*gpu]),
            Step::Finish(n) => {
                if let Some(name) = pick(&cluster, *n).filter(|name| cluster.node_of(name).is_some()) {
                    cluster.finish(&name);
                }
            }
            Step::Delete(n) => {
                if let Some(name) = pick(&cluster, *n) {
                    cluster.delete(&name);
                }
            }
            Step::Release(n) => {
                let locked: Vec<String> = cluster.locks.keys().cloned().collect();
                if !locked.is_empty() {
                    let node = locked[n % locked.len()].clone();
                    // An agent serves only a holder that is bound.
                    let holder = cluster.holder(&node).map(str::to_owned);
                    if holder.is_some_and(|name| cluster.node_of(&name) == Some(node.as_str())) {
                        cluster.agent_releases(&node);
                    }
                }
            }
            Step::LockFault(fault) => cluster.lock_faults.push_back(fault.clone()),
            Step::BindFault(fault) => cluster.bind_faults.push_back(fault.clone()),
            Step::Wait(seconds) => cluster.wait(*seconds),
            Step::Hold => cluster.hold = true,
            Step::Deliver => cluster.deliver(),
            Step::Restart => cluster.restart(),
        }
        cluster.settle();
    }
    // Calm weather: agents serve whatever is bound, and everything comes to rest.
    cluster.bind_faults.clear();
    cluster.lock_faults.clear();
    cluster.deliver();
    for _ in 0..120 {
        cluster.wait(1);
        for node in cluster.locks.keys().cloned().collect::<Vec<_>>() {
            let holder = cluster.holder(&node).map(str::to_owned);
            if holder.is_some_and(|name| cluster.node_of(&name) == Some(node.as_str())) {
                cluster.agent_releases(&node);
            }
        }
        cluster.settle();
    }
    if !cluster.locks.is_empty() {
        let holders: Vec<String> =
            cluster.locks.keys().filter_map(|node| cluster.holder(node)).map(str::to_owned).collect();
        let states = holders.iter().map(|name| {
            let key = baton::contract::PodKey::new("ml", name);
            (cluster.pods.get(&key).map(|pod| pod.handoff.clone()), cluster.explain(&key))
        });
        let states: Vec<_> = states.collect();
        panic!("locks left: {:?}, their holders: {states:#?}", cluster.locks);
    }
    assert!(cluster.bind_attempts() == 0, "flights left: {:?}", cluster.scheduler.binder().attempts());
    format!("{:?}", cluster.pods.iter().map(|(key, pod)| (key, &pod.handoff.assignment)).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn no_stream_gives_a_device_twice_or_leaves_a_lock_and_each_is_reproducible(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        prop_assert_eq!(play(&steps), play(&steps));
    }
}
