//! Random clusters with jobs, gangs and single pods: whatever happens, nothing is over-committed, no job rests below
//! its minimum, and a gang has its minimum or nothing.

use std::collections::BTreeMap;

use baton::contract::tyjob::{BasicPolicy, JobQueuePolicy, Stage};
use baton::decide::world::WorldEvent;

use crate::dice::Dice;
use crate::harness::gangs::{declared, gang};
use crate::harness::pod;
use crate::harness::tyjobs::TestJobs;

const POLICIES: [BasicPolicy; 6] = [
    BasicPolicy::Gang,
    BasicPolicy::BinPack,
    BasicPolicy::LeaderFirst,
    BasicPolicy::MinFragment,
    BasicPolicy::JobAffinity,
    BasicPolicy::JobAntiAffinity,
];

/// Cases of one run; `BATON_JOB_CASES` asks for another number.
fn cases() -> u64 {
    std::env::var("BATON_JOB_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

#[test]
fn jobs_gangs_and_pods_that_compete_never_take_more_than_there_is() {
    for seed in 0..cases() {
        let result = std::panic::catch_unwind(|| case(&mut Dice(seed)));
        if let Err(panic) = result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// A gang as it was submitted.
struct Group {
    min: usize,
    /// It had its minimum at some time: what it loses later is not held against it.
    satisfied: bool,
}

/// Members of each gang that have a node.
fn check_gangs(jobs: &TestJobs, gangs: &mut BTreeMap<String, Group>) {
    assert!(jobs.cluster.reservations() == 0, "a Strict gang holds nothing at rest");
    for (name, group) in gangs {
        let prefix = format!("{name}-");
        let members = jobs.cluster.pods.values().filter(|facts| facts.handoff.pod.key.name.starts_with(&prefix));
        let bound = members.filter(|facts| facts.handoff.node.is_some()).count();
        group.satisfied |= bound >= group.min;
        assert!(bound == 0 || group.satisfied, "{name}: {bound} of {} have a node", group.min);
    }
}

fn case(dice: &mut Dice) {
    let mut jobs = TestJobs::new();
    for number in 0..=dice.below(3) {
        let (cpus, gpus) = (2 + dice.below(7), dice.pick(&[0, 2, 4]));
        jobs.node(&format!("n{number}"), cpus, gpus);
    }
    let asks: [&[(&str, &str)]; 4] = [
        &[("cpu", "1")],
        &[("cpu", "2")],
        &[("cpu", "1"), ("nvidia.com/gpu", "1")],
        &[("cpu", "1"), ("koordinator.sh/gpu", "50")],
    ];
    let (mut submitted, mut pods) = (Vec::new(), 0);
    let mut gangs: BTreeMap<String, Group> = BTreeMap::new();
    for _ in 0..4 + dice.below(8) {
        match dice.below(12) {
            0..=3 => {
                let name = format!("j{}", submitted.len());
                let workers = 1 + dice.below(4) as i32;
                let (leader, worker) = (dice.pick(&asks), dice.pick(&asks));
                let (basic, min) = (dice.pick(&POLICIES), i64::from(dice.below(workers as u32 + 1)));
                let queue = dice.pick(&[JobQueuePolicy::Priority, JobQueuePolicy::Drf]);
                let priority = 1 + dice.below(10) as i32;
                jobs.run(&name, leader, (workers, worker), |spec| {
                    (spec.basic, spec.min_workers, spec.queue, spec.priority) = (basic, min, queue, priority);
                });
                submitted.push(name);
            }
            4 | 5 => {
                let limits = dice.pick(&asks);
                jobs.cluster.pod(&format!("p{pods}"), limits);
                jobs.cluster.settle();
                pods += 1;
            }
            6 if !submitted.is_empty() => {
                let name = submitted[dice.below(submitted.len() as u32) as usize].clone();
                if jobs.facts(&name).stage == Some(Stage::Pending) {
                    jobs.controller(&name);
                    if jobs.cluster.node_of(&format!("{name}-learner")).is_some() {
                        jobs.leader_up(&name);
                        jobs.controller(&name);
                    }
                }
            }
            7 if !submitted.is_empty() => {
                let name = submitted[dice.below(submitted.len() as u32) as usize].clone();
                let stage = dice.pick(&[Stage::Failed, Stage::Succeeded, Stage::Rescheduling]);
                if !jobs.facts(&name).is_over() {
                    jobs.change(&name, |facts| {
                        facts.stage = Some(stage);
                        facts.attempt += i32::from(stage == Stage::Rescheduling);
                        facts.has_address = false;
                    });
                    let own: Vec<_> = jobs
                        .cluster
                        .pods
                        .keys()
                        .filter(|pod| pod.name.starts_with(&format!("{name}-")))
                        .cloned()
                        .collect();
                    for pod in own {
                        jobs.cluster.delete(&pod.name);
                        jobs.cluster.settle();
                    }
                }
            }
            8 => {
                let name = format!("n{}", dice.below(3));
                if jobs.cluster.nodes.contains_key(&name) && jobs.cluster.nodes.len() > 1 && dice.below(2) == 0 {
                    let there = |facts: &baton::decide::world::PodFacts| facts.handoff.node.as_deref() == Some(&*name);
                    let lost: Vec<_> = jobs.cluster.pods.values().filter(|facts| there(facts)).cloned().collect();
                    jobs.cluster.locks.remove(&name);
                    jobs.cluster.nodes.remove(&name);
                    jobs.cluster.event(WorldEvent::NodeGone(name.as_str().into()));
                    for facts in lost {
                        jobs.cluster.delete(&facts.handoff.pod.key.name);
                    }
                }
            }
            9 | 10 => {
                let (name, members) = (format!("g{}", gangs.len()), 1 + dice.below(5));
                let (min, limits) = (1 + dice.below(members), dice.pick(&asks));
                let least = min.to_string();
                let keys = gang(&name, &least, &[]);
                for member in 0..members {
                    let mut facts = pod(&format!("{name}-{member}"), limits, jobs.cluster.now);
                    facts.spec.gang = declared("ml", &keys);
                    jobs.cluster.submit(facts);
                }
                gangs.insert(name, Group { min: min as usize, satisfied: false });
            }
            _ => jobs.cluster.wait(u64::from(1 + dice.below(70))),
        }
        jobs.cluster.settle();
        jobs.serve();
        jobs.cluster.wait(1);
        jobs.serve();
        jobs.check();
        check_gangs(&jobs, &mut gangs);
    }
}
