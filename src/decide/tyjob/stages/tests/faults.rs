//! The controller dies after every single call of a reference run: the job ends as the undisturbed one does.

use super::test_job::{TestJob, spec};
use crate::pod::Phase;
use crate::tyjob::stages::{JobEffect, rests_on};
use baton_contract::tyjob::{Stage, TyJobStatus};

/// What a run comes to: status without times, pods without uids.
fn end(test: &TestJob) -> (TyJobStatus, Vec<(String, Option<i32>)>) {
    let pods = test.pods.values().map(|pod| (pod.name.clone(), pod.attempt)).collect();
    (test.status(), pods)
}

/// One step whose calls (the status write is the first) stop after `left`. Answers `true` when it got to its end.
fn step_until(test: &mut TestJob, left: &mut usize) -> (bool, bool) {
    let (status, effects) = test.look();
    let mut busy = false;
    if status != test.status() {
        if *left == 0 {
            return (false, true);
        }
        *left -= 1;
        busy |= test.write(status);
    }
    for effect in effects {
        let call = !matches!(effect, JobEffect::Wake { .. });
        if call && *left == 0 {
            return (false, true);
        }
        *left -= usize::from(call);
        busy |= test.perform(effect);
    }
    (true, busy)
}

/// Settles with a crash after `left` calls; the next controller goes on from what is there.
fn settle(test: &mut TestJob, left: &mut usize, crashed: &mut bool) {
    for _ in 0..50 {
        let (whole, busy) = if *crashed { (true, test.step()) } else { step_until(test, left) };
        *crashed |= !whole;
        if !busy {
            return;
        }
    }
    panic!("never settles");
}

/// From submission over a worker's failure and a leader's to the end. Crashes after `calls`; answers whether it did.
fn run(mut calls: usize) -> (TestJob, bool) {
    let (mut test, mut crashed) = (TestJob::new(spec(2)), false);
    let mut settle = |test: &mut TestJob| settle(test, &mut calls, &mut crashed);
    settle(&mut test);
    test.place_all();
    let ready = |test: &mut TestJob, settle: &mut dyn FnMut(&mut TestJob)| {
        for _ in 0..4 {
            settle(test);
            let names: Vec<String> = test.pods.keys().cloned().collect();
            names.iter().for_each(|name| test.ready(name));
        }
        settle(test);
        assert_eq!((test.stage(), test.pods.len()), (Stage::Running, 3));
    };
    ready(&mut test, &mut settle);
    test.ends("rl-actor-1", Phase::Failed);
    settle(&mut test);
    test.bury();
    ready(&mut test, &mut settle);
    test.ends("rl-learner", Phase::Failed);
    settle(&mut test);
    test.bury();
    settle(&mut test);
    test.place_all();
    ready(&mut test, &mut settle);
    test.ends("rl-learner", Phase::Succeeded);
    settle(&mut test);
    test.bury();
    settle(&mut test);
    (test, crashed)
}

#[test]
fn a_crash_after_any_call_changes_nothing_in_the_end() {
    let (undisturbed, crashed) = run(usize::MAX);
    assert!(!crashed);
    assert_eq!((undisturbed.stage(), undisturbed.status().restarts), (Stage::Succeeded, 1));
    assert_eq!(undisturbed.status().worker_set_restarts["actor"], 1);
    let mut points = 0;
    loop {
        let (test, crashed) = run(points);
        if !crashed {
            break;
        }
        assert_eq!(end(&test), end(&undisturbed), "after {points} calls");
        points += 1;
    }
    assert!(points > 25, "only {points} calls");
}

#[test]
fn a_pod_of_another_attempt_is_not_the_leader_that_is_there() {
    let mut test = TestJob::running(1);
    let read = |test: &TestJob| {
        let pods: Vec<_> = test.pods.values().cloned().collect();
        Vec::from_iter(rests_on(&test.job, &test.look().0, &pods))
    };
    assert_eq!(read(&test), [""; 0]);
    // The watch of pods is an attempt behind.
    test.job.status.as_mut().unwrap().attempt = 1;
    assert_eq!(read(&test), ["rl-learner"]);
    let status = test.job.status.as_mut().unwrap();
    (status.stage, status.leader_address) = (Some(Stage::Rescheduling), None);
    assert_eq!(read(&test), [""; 0], "it is still to be made");
}
