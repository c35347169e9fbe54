//! Random worlds: whatever happens, in whatever order, and wherever the controller dies.

use proptest::collection::vec;
use proptest::prelude::*;

use super::test_job::{TestJob, spec};
use crate::pod::Phase;
use crate::tyjob::stages::NodeReachability;
use baton_contract::tyjob::{ScheduleState, Stage};

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

fn name(test: &TestJob, at: usize) -> Option<String> {
    let names = test.names();
    (!names.is_empty()).then(|| names[at % names.len()].to_owned())
}

fn happen(test: &mut TestJob, what: &Happens) {
    match what {
        Happens::Step(most) => {
            let (status, effects) = test.look();
            test.write(status);
            effects.into_iter().take(*most).for_each(|effect| {
                test.perform(effect);
            });
        }
        Happens::Place(true) => test.place_all(),
        Happens::Place(false) => test.place(&["rl-learner", "rl-actor-0"], ScheduleState::ScheduledPartly),
        Happens::Passes(seconds) => test.pass(*seconds),
        Happens::Bury => test.bury(),
        Happens::Counts(counts) => test.job.spec.worker_sets[0].counts = *counts,
        Happens::BadEdit => {
            // Only of a started job: else it is no edit to fall back from.
            if test.job.started() {
                test.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
            }
        }
        Happens::Ready(at) => with(test, *at, |test, name| {
            if !test.pod(name).phase.is_terminal() {
                test.ready(name);
            }
        }),
        Happens::Ends(at, well) => with(test, *at, |test, name| {
            let leader_done = *well && name == "rl-learner";
            if !leader_done && !test.pod(name).phase.is_terminal() {
                test.ends(name, if *well { Phase::Succeeded } else { Phase::Failed });
            }
        }),
        Happens::Evicted(at) => with(test, *at, TestJob::evict),
        Happens::Removed(at) => with(test, *at, |test, name| drop(test.pods.remove(name))),
        Happens::NodeGone(at) => with(test, *at, |test, name| test.pod(name).reachability = NodeReachability::Gone),
        Happens::Silent(at) => with(test, *at, |test, name| {
            let now = test.now;
            test.pod(name).reachability = NodeReachability::UnreachableSince(now);
        }),
        Happens::ContainerRestarts(at) => with(test, *at, |test, name| {
            *test.pod(name).container_restarts.entry("main".to_owned()).or_default() += 1;
        }),
    }
}

fn with(test: &mut TestJob, at: usize, act: impl FnOnce(&mut TestJob, &str)) {
    if let Some(name) = name(test, at) {
        act(test, &name);
    }
}

/// What no moment may break. Terminal stages and counters are watched where the status is written, names where pods are made.
fn invariants(test: &TestJob) {
    let status = test.status();
    assert!(status.ready_workers <= status.total_workers.max(4), "{status:?}");
}

/// The weather clears up: the scheduler places, kubelets run and confirm, until the job rests.
fn clear_up(test: &mut TestJob) {
    for _ in 0..20 {
        test.pods.values_mut().for_each(|pod| pod.reachability = NodeReachability::There);
        test.settle();
        test.bury();
        test.settle();
        if test.stage().is_terminal() {
            test.bury();
            test.settle();
            return;
        }
        test.place_all();
        test.settle();
        let ended = |name: &String, test: &TestJob| test.pods[name].phase.is_terminal();
        let names: Vec<String> = test.pods.keys().filter(|name| !ended(name, test)).cloned().collect();
        names.iter().for_each(|name| test.ready(name));
    }
    test.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_job_ends_as_an_undisturbed_one_or_at_its_limit(story in vec(happens(), 0..120)) {
        let mut test = TestJob::new(spec(3));
        test.job.spec.restart_limit = 4;
        test.step();
        for what in &story {
            happen(&mut test, what);
            invariants(&test);
        }
        clear_up(&mut test);
        let status = test.status();
        match test.stage() {
            Stage::Failed => {
                let limit = status.restarts >= 4 || status.worker_set_restarts.values().any(|count| *count >= 4);
                prop_assert!(limit, "failed below its limits: {:?}", status);
                prop_assert!(test.pods.is_empty());
            }
            Stage::Running => {
                // Those that are not at work have ended.
                let spec = test.job.effective(None).unwrap().spec;
                let wanted = usize::try_from(spec.total_workers()).unwrap();
                let at_work = test.pods.values().filter(|pod| pod.ready).count() - 1;
                prop_assert_eq!(at_work + status.ended_workers.len(), wanted, "{:?}", status);
                test.ends("rl-learner", Phase::Succeeded);
                test.settle();
                test.bury();
                test.settle();
                prop_assert_eq!(test.stage(), Stage::Succeeded);
                prop_assert!(test.pods.is_empty());
            }
            other => prop_assert!(false, "rests in {:?}: {:?}", other, status),
        }
    }
}
