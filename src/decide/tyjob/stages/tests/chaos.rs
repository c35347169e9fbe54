//! Random worlds: whatever happens, in whatever order, and wherever the controller dies.

use proptest::collection::vec;
use proptest::prelude::*;

use super::rig::{Rig, spec};
use crate::contract::tyjob::{ScheduleState, Stage};
use crate::decide::tyjob::stages::{NodeSight, Phase};

#[derive(Debug, Clone)]
enum Happens {
    /// A step of which only the status and this many effects get through.
    Step(usize),
    Place(bool),
    Ready(usize),
    Ends(usize, bool),
    Evicted(usize),
    Removed(usize),
    NodeGone(usize),
    Silent(usize),
    Bury,
    Passes(i64),
    Counts(i32),
    BadEdit,
    ContainerRestarts(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::{
        BadEdit, Bury, ContainerRestarts, Counts, Ends, Evicted, NodeGone, Passes, Place, Ready, Removed, Silent, Step,
    };
    prop_oneof![
        8 => (0..6_usize).prop_map(Step),
        3 => any::<bool>().prop_map(Place),
        8 => (0..8_usize).prop_map(Ready),
        2 => (0..8_usize, any::<bool>()).prop_map(|(at, well)| Ends(at, well)),
        1 => (0..8_usize).prop_map(Evicted),
        1 => (0..8_usize).prop_map(Removed),
        1 => (0..8_usize).prop_map(NodeGone),
        1 => (0..8_usize).prop_map(Silent),
        3 => Just(Bury),
        1 => (0..400_i64).prop_map(Passes),
        1 => (1..5_i32).prop_map(Counts),
        1 => Just(BadEdit),
        1 => (0..8_usize).prop_map(ContainerRestarts),
    ]
}

fn name(rig: &Rig, at: usize) -> Option<String> {
    let names = rig.names();
    (!names.is_empty()).then(|| names[at % names.len()].to_owned())
}

fn happen(rig: &mut Rig, what: &Happens) {
    match what {
        Happens::Step(most) => {
            let (status, effects) = rig.look();
            rig.write(status);
            effects.into_iter().take(*most).for_each(|effect| {
                rig.perform(effect);
            });
        }
        Happens::Place(true) => rig.place_all(),
        Happens::Place(false) => rig.place(&["rl-learner", "rl-actor-0"], ScheduleState::ScheduledPartly),
        Happens::Passes(seconds) => rig.pass(*seconds),
        Happens::Bury => rig.bury(),
        Happens::Counts(counts) => rig.job.spec.worker_sets[0].counts = *counts,
        Happens::BadEdit => {
            // Only of a started job: else it is no edit to fall back from.
            if rig.job.started() {
                rig.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
            }
        }
        Happens::Ready(at) => with(rig, *at, |rig, name| {
            if !rig.pod(name).phase.is_terminal() {
                rig.ready(name);
            }
        }),
        Happens::Ends(at, well) => with(rig, *at, |rig, name| {
            let leader_done = *well && name == "rl-learner";
            if !leader_done && !rig.pod(name).phase.is_terminal() {
                rig.ends(name, if *well { Phase::Succeeded } else { Phase::Failed });
            }
        }),
        Happens::Evicted(at) => with(rig, *at, Rig::evict),
        Happens::Removed(at) => with(rig, *at, |rig, name| drop(rig.pods.remove(name))),
        Happens::NodeGone(at) => with(rig, *at, |rig, name| rig.pod(name).sight = NodeSight::Gone),
        Happens::Silent(at) => with(rig, *at, |rig, name| {
            let now = rig.now;
            rig.pod(name).sight = NodeSight::UnreachableSince(now);
        }),
        Happens::ContainerRestarts(at) => with(rig, *at, |rig, name| rig.pod(name).container_restarts += 1),
    }
}

fn with(rig: &mut Rig, at: usize, act: impl FnOnce(&mut Rig, &str)) {
    if let Some(name) = name(rig, at) {
        act(rig, &name);
    }
}

/// What no moment may break. Terminal stages and counters are watched where the status is written, names where pods are made.
fn invariants(rig: &Rig) {
    let status = rig.status();
    let distinct: std::collections::BTreeSet<&String> = status.replacing.iter().collect();
    assert_eq!(distinct.len(), status.replacing.len(), "a failure is counted once");
    assert!(status.ready_workers <= status.total_workers.max(4), "{status:?}");
    let limit = rig.job.spec.restart_limit;
    assert!(status.worker_set_restarts.values().all(|restarts| *restarts <= limit), "{status:?}");
}

/// The weather clears up: the scheduler places, kubelets run and confirm, until the job rests.
fn clear_up(rig: &mut Rig) {
    for _ in 0..20 {
        rig.pods.values_mut().for_each(|pod| pod.sight = NodeSight::There);
        rig.settle();
        rig.bury();
        rig.settle();
        if rig.stage().is_terminal() {
            rig.bury();
            rig.settle();
            return;
        }
        rig.place_all();
        rig.settle();
        let ended = |name: &String, rig: &Rig| rig.pods[name].phase.is_terminal();
        let names: Vec<String> = rig.pods.keys().filter(|name| !ended(name, rig)).cloned().collect();
        names.iter().for_each(|name| rig.ready(name));
    }
    rig.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_job_ends_as_an_undisturbed_one_or_at_its_limit(story in vec(happens(), 0..120)) {
        let mut rig = Rig::new(spec(3));
        rig.job.spec.restart_limit = 4;
        rig.step();
        for what in &story {
            happen(&mut rig, what);
            invariants(&rig);
        }
        clear_up(&mut rig);
        let status = rig.status();
        match rig.stage() {
            Stage::Failed => {
                let limit = status.restarts >= 4 || status.worker_set_restarts.values().any(|count| *count >= 4);
                prop_assert!(limit, "failed below its limits: {:?}", status);
                prop_assert!(rig.pods.is_empty());
            }
            Stage::Running => {
                // Those that are not at work have ended.
                let spec = rig.job.effective(None).unwrap().spec;
                let wanted = usize::try_from(spec.total_workers()).unwrap();
                let at_work = rig.pods.values().filter(|pod| pod.ready).count() - 1;
                prop_assert_eq!(at_work + status.ended_workers.len(), wanted, "{:?}", status);
                rig.ends("rl-learner", Phase::Succeeded);
                rig.settle();
                rig.bury();
                rig.settle();
                prop_assert_eq!(rig.stage(), Stage::Succeeded);
                prop_assert!(rig.pods.is_empty());
            }
            other => prop_assert!(false, "rests in {:?}: {:?}", other, status),
        }
    }
}
