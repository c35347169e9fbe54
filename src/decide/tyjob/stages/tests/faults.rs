//! The controller dies after every single call of a reference run: the job ends as the undisturbed one does.

use super::rig::{Rig, spec};
use crate::contract::tyjob::{Stage, TyJobStatus};
use crate::decide::tyjob::stages::{Effect, Phase};

/// What a run comes to: status without times, pods without uids.
fn end(rig: &Rig) -> (TyJobStatus, Vec<(String, Option<i32>)>) {
    let pods = rig.pods.values().map(|pod| (pod.name.clone(), pod.attempt)).collect();
    (rig.status(), pods)
}

/// One step whose calls (the status write is the first) stop after `left`. Answers `true` when it got to its end.
fn step_until(rig: &mut Rig, left: &mut usize) -> (bool, bool) {
    let (status, effects) = rig.look();
    let mut busy = false;
    if status != rig.status() {
        if *left == 0 {
            return (false, true);
        }
        *left -= 1;
        busy |= rig.write(status);
    }
    for effect in effects {
        let call = !matches!(effect, Effect::Wake { .. });
        if call && *left == 0 {
            return (false, true);
        }
        *left -= usize::from(call);
        busy |= rig.perform(effect);
    }
    (true, busy)
}

/// Settles with a crash after `left` calls; the next controller goes on from what is there.
fn settle(rig: &mut Rig, left: &mut usize, crashed: &mut bool) {
    for _ in 0..50 {
        let (whole, busy) = if *crashed { (true, rig.step()) } else { step_until(rig, left) };
        *crashed |= !whole;
        if !busy {
            return;
        }
    }
    panic!("never settles");
}

/// From submission over a worker's failure and a leader's to the end. Crashes after `calls`; answers whether it did.
fn run(mut calls: usize) -> (Rig, bool) {
    let (mut rig, mut crashed) = (Rig::new(spec(2)), false);
    let mut settle = |rig: &mut Rig| settle(rig, &mut calls, &mut crashed);
    settle(&mut rig);
    rig.place_all();
    let ready = |rig: &mut Rig, settle: &mut dyn FnMut(&mut Rig)| {
        for _ in 0..4 {
            settle(rig);
            let names: Vec<String> = rig.pods.keys().cloned().collect();
            names.iter().for_each(|name| rig.ready(name));
        }
        settle(rig);
        assert_eq!((rig.stage(), rig.pods.len()), (Stage::Running, 3));
    };
    ready(&mut rig, &mut settle);
    rig.ends("rl-actor-1", Phase::Failed);
    settle(&mut rig);
    rig.bury();
    ready(&mut rig, &mut settle);
    rig.ends("rl-learner", Phase::Failed);
    settle(&mut rig);
    rig.bury();
    settle(&mut rig);
    rig.place_all();
    ready(&mut rig, &mut settle);
    rig.ends("rl-learner", Phase::Succeeded);
    settle(&mut rig);
    rig.bury();
    settle(&mut rig);
    (rig, crashed)
}

#[test]
fn a_crash_after_any_call_changes_nothing_in_the_end() {
    let (undisturbed, crashed) = run(usize::MAX);
    assert!(!crashed);
    assert_eq!((undisturbed.stage(), undisturbed.status().restarts), (Stage::Succeeded, 1));
    assert_eq!(undisturbed.status().worker_set_restarts["actor"], 1);
    let mut points = 0;
    loop {
        let (rig, crashed) = run(points);
        if !crashed {
            break;
        }
        assert_eq!(end(&rig), end(&undisturbed), "after {points} calls");
        points += 1;
    }
    assert!(points > 25, "only {points} calls");
}
