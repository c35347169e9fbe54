//! Restarts of containers inside their pods: counted once, and held to the limit as those of pods are.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::test_job::{TestJob, spec};
use crate::pod::Phase;
use crate::tyjob::stages::{PodView, rests_on};
use baton_contract::tyjob::{CleanPodPolicy, Stage, WorkerEnd};

const LEADER: &str = "rl-learner";
const WORKER: &str = "rl-actor-0";

fn limited(workers: i32, limit: i32) -> TestJob {
    let mut job = spec(workers);
    job.restart_limit = limit;
    TestJob::running_with(job)
}

/// Restarts of the leader, of the set and of both.
fn counted(test: &TestJob) -> (i32, i32, i32) {
    let status = test.status();
    let actors = status.worker_set_restarts.get("actor").copied().unwrap_or(0);
    (status.restarts, actors, status.total_restarts)
}

#[test]
fn a_container_may_be_restarted_as_often_as_the_limit_says() {
    for (name, sums) in [(LEADER, [(2, 0, 2), (3, 0, 3)]), (WORKER, [(0, 2, 2), (0, 3, 3)])] {
        let mut test = limited(1, 2);
        test.restarts(name, "main", 2);
        test.settle();
        assert_eq!((test.stage(), counted(&test), test.calls.len()), (Stage::Running, sums[0], 0), "{name}");
        test.restarts(name, "main", 3);
        test.settle();
        assert_eq!((test.stage(), counted(&test)), (Stage::Failed, sums[1]), "{name}");
        assert!(test.pods.values().all(|pod| pod.deleting.is_some()), "{name}");
        let message = test.status().message.unwrap();
        assert!(message.contains("restartLimit") && message.contains('2'), "{message}");
    }
}

#[test]
fn at_the_limit_a_container_that_waits_for_its_next_restart_has_failed() {
    for name in [LEADER, WORKER] {
        for (restarts, stage) in [(0, Stage::Running), (1, Stage::Failed)] {
            let mut test = limited(1, 1);
            test.restarts(name, "main", restarts);
            test.pod(name).crash_loops = true;
            test.settle();
            assert_eq!((test.stage(), counted(&test).2), (stage, restarts), "{name}");
        }
    }
}

#[test]
fn a_limit_that_was_passed_while_no_controller_ran_fails_the_job_at_the_first_look() {
    for name in [LEADER, WORKER] {
        let mut test = limited(1, 1);
        test.restarts(name, "main", 6);
        test.trouble = None;
        let (status, _) = test.look();
        assert_eq!((status.stage, status.total_restarts), (Some(Stage::Failed), 6), "{name}");
    }
}

#[test]
fn restarts_of_pods_and_of_their_containers_share_the_limit() {
    let mut test = limited(2, 3);
    test.restarts(WORKER, "main", 1);
    test.restarts("rl-actor-1", "side", 1);
    test.ends(WORKER, Phase::Failed);
    test.settle();
    assert_eq!((counted(&test), test.calls.as_slice()), ((0, 3, 3), &["-rl-actor-0".to_owned()][..]));
    test.bury();
    test.settle();
    test.ready_all();
    test.restarts(WORKER, "main", 1);
    test.settle();
    assert_eq!(
        (test.stage(), counted(&test), test.status().ready.as_deref()),
        (Stage::Running, (0, 4, 4), Some("1/2"))
    );
    assert_eq!(test.status().ended_workers, [(WORKER.to_owned(), WorkerEnd::Failed)].into());
    let mut test = limited(1, 3);
    test.restarts(LEADER, "main", 1);
    test.settle();
    test.ends(LEADER, Phase::Failed);
    test.settle();
    assert_eq!((test.stage(), counted(&test).0, test.status().attempt), (Stage::Rescheduling, 2, 2));
    test.bury();
    test.place_all();
    test.settle();
    test.ready_all();
    test.restarts(LEADER, "main", 1);
    test.settle();
    assert_eq!((test.stage(), counted(&test).0, test.status().attempt), (Stage::Running, 3, 2));
    let nodes = test.status().nodes;
    test.ends(LEADER, Phase::Failed);
    test.settle();
    assert_eq!((test.stage(), counted(&test).0), (Stage::Failed, 3));
    assert!(nodes.is_some() && test.status().nodes == nodes, "the places of the attempt that ended are shown");
}

#[test]
fn a_worker_that_failed_by_its_containers_is_stopped_whatever_is_cleaned_up() {
    let mut job = spec(2);
    (job.restart_limit, job.clean_pod_policy) = (0, CleanPodPolicy::None);
    let mut test = TestJob::running_with(job);
    test.restarts(WORKER, "main", 1);
    test.settle();
    assert_eq!((test.stage(), test.calls.as_slice()), (Stage::Running, &["-rl-actor-0".to_owned()][..]));
    assert_eq!(test.reported.iter().filter(|(reason, _)| *reason == "WorkerFailed").count(), 1);
    test.bury();
    test.settle();
    assert_eq!(test.names(), ["rl-actor-1", LEADER], "it is not made again");
    test.job.spec.restart_limit = 2;
    test.settle();
    assert_eq!(test.names(), [WORKER, "rl-actor-1", LEADER], "until the limit is raised");
}

#[test]
fn a_lower_limit_fails_no_pod_that_works() {
    for name in [LEADER, WORKER] {
        let mut test = limited(1, 3);
        test.restarts(name, "main", 2);
        test.settle();
        test.job.spec.restart_limit = 1;
        test.settle();
        assert_eq!(test.stage(), Stage::Running, "{name}");
        test.pod(name).crash_loops = true;
        test.settle();
        assert_eq!(test.stage(), Stage::Failed, "{name}");
    }
}

#[test]
fn a_leader_that_succeeded_has_succeeded_however_often_it_was_restarted() {
    let mut test = limited(1, 1);
    test.restarts(LEADER, "main", 5);
    test.ends(LEADER, Phase::Succeeded);
    test.settle();
    assert_eq!((test.stage(), counted(&test)), (Stage::Succeeded, (5, 0, 5)));
}

#[test]
fn a_status_without_containers_and_a_count_that_was_lost_take_nothing_back() {
    let mut test = limited(1, 100);
    test.restarts(WORKER, "main", 3);
    test.restarts(WORKER, "side", 2);
    test.settle();
    test.pod(WORKER).container_restarts.clear();
    test.settle();
    assert_eq!(counted(&test).1, 5);
    for (main, sum) in [(3, 5), (0, 5), (1, 6), (2, 7), (2, 7)] {
        test.pod(WORKER).container_restarts = [("main".to_owned(), main), ("side".to_owned(), 2)].into();
        test.settle();
        assert_eq!(counted(&test).1, sum, "{main}");
    }
}

#[derive(Debug, Clone)]
enum Happens {
    /// A step that gets as far as its status and this many effects.
    Look(usize),
    /// Another controller looks, whose watch of pods shows what an earlier one saw; it gets no further than its status.
    LateLook(usize),
    /// The controller dies before its status is written.
    Dies,
    Restarts(usize, bool),
    /// A kubelet that has lost its count begins at zero.
    Loses(usize),
    Removed(usize),
    Evicted(usize),
    Buried,
    Placed,
    Ready,
    Counts(i32),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => (0..6_usize).prop_map(Happens::Look),
        3 => (0..9_usize).prop_map(Happens::LateLook),
        1 => Just(Happens::Dies),
        8 => (0..5_usize, any::<bool>()).prop_map(|(at, side)| Happens::Restarts(at, side)),
        1 => (0..5_usize).prop_map(Happens::Loses),
        1 => (0..5_usize).prop_map(Happens::Removed),
        1 => (0..5_usize).prop_map(Happens::Evicted),
        3 => Just(Happens::Buried),
        2 => Just(Happens::Placed),
        3 => Just(Happens::Ready),
        1 => (1..4_i32).prop_map(Happens::Counts),
    ]
}

/// A job without a limit, and how often the containers of each pod really were restarted.
struct Ledger {
    test: TestJob,
    /// By uid.
    happened: BTreeMap<String, i32>,
    /// By name and uid, what a controller was shown.
    shown: BTreeMap<(String, String), i32>,
    /// Leaders that were lost.
    lost: i32,
    /// Pods as they were at earlier looks.
    earlier: Vec<BTreeMap<String, PodView>>,
}

impl Ledger {
    fn look(&mut self, effects: usize) {
        let (status, planned) = self.test.look();
        self.note_attempt(status.attempt);
        self.test.write(status);
        for pod in self.test.pods.values() {
            let happened = self.happened.get(&pod.uid).copied().unwrap_or(0);
            self.shown.insert((pod.name.clone(), pod.uid.clone()), happened);
        }
        self.earlier.push(self.test.pods.clone());
        planned.into_iter().take(effects).for_each(|effect| {
            self.test.perform(effect);
        });
    }

    fn note_attempt(&mut self, attempt: i32) {
        self.lost += i32::from(attempt != self.test.status().attempt);
    }

    fn late_look(&mut self, back: usize) {
        let Some(at) = self.earlier.len().checked_sub(1 + back) else { return };
        let shown = self.earlier[at].clone();
        let now = std::mem::replace(&mut self.test.pods, shown);
        let (mut status, _) = self.test.look();
        let pods: Vec<PodView> = self.test.pods.values().cloned().collect();
        for name in rests_on(&self.test.job, &status, &pods) {
            self.test.pods.remove(&name);
            let there = now.get(&name).filter(|pod| {
                let seen = self.shown.get(&(pod.name.clone(), pod.uid.clone()));
                self.happened.get(&pod.uid) == seen
            });
            let Some(there) = there else {
                self.test.pods = now;
                return;
            };
            self.test.pods.insert(name, there.clone());
            status = self.test.look().0;
        }
        self.note_attempt(status.attempt);
        self.test.write(status);
        self.test.pods = now;
    }

    fn happen(&mut self, what: &Happens) {
        let test = &mut self.test;
        let names: Vec<String> = test.pods.keys().cloned().collect();
        let name = |at: usize| names.get(at % names.len().max(1));
        match what {
            Happens::Look(effects) => self.look(*effects),
            Happens::LateLook(back) => self.late_look(*back),
            Happens::Dies => drop(test.look()),
            Happens::Restarts(at, side) => {
                let Some(name) = name(*at) else { return };
                let container = if *side { "side" } else { "main" };
                let pod = test.pod(name);
                *pod.container_restarts.entry(container.to_owned()).or_default() += 1;
                *self.happened.entry(pod.uid.clone()).or_default() += 1;
            }
            Happens::Loses(at) => {
                let Some(name) = name(*at) else { return };
                // Between two looks it would be indistinguishable from no restart.
                self.look(0);
                self.test.pod(name).container_restarts.values_mut().for_each(|count| *count = 0);
                self.look(0);
            }
            Happens::Removed(at) => drop(name(*at).and_then(|name| test.pods.remove(name))),
            Happens::Evicted(at) => {
                if let Some(name) = name(*at) {
                    test.evict(name);
                }
            }
            Happens::Buried => test.bury(),
            Happens::Placed => test.place_all(),
            Happens::Ready => names.iter().for_each(|name| test.ready(name)),
            Happens::Counts(counts) => test.job.spec.worker_sets[0].counts = *counts,
        }
    }

    fn check(&self) {
        let of = |leader: bool| {
            let shown = self.shown.iter().filter(|((name, _), _)| (name == LEADER) == leader);
            shown.map(|(_, restarts)| restarts).sum::<i32>()
        };
        let (leader, actors, all) = counted(&self.test);
        assert_eq!((leader, actors), (of(true) + self.lost, of(false)), "{:?}", self.test.status());
        assert_eq!(all, leader + actors);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_restart_that_was_shown_is_counted_and_none_is_counted_twice(story in vec(happens(), 0..100)) {
        let mut ledger = Ledger {
            test: limited(3, i32::MAX),
            happened: BTreeMap::new(),
            shown: BTreeMap::new(),
            lost: 0,
            earlier: Vec::new(),
        };
        for what in &story {
            ledger.happen(what);
            ledger.check();
        }
    }
}
