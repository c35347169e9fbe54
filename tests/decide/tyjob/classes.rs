//! Which jobs are tried, and what is kept of an attempt: every row.

use baton::contract::tyjob::{BasicPolicy, Role, ScheduleState, Stage};
use baton::decide::tyjob::placement::{
    AttemptResult, JobClass, JobFacts, JobPart, PlacedPods, Seat, Situation, classify, verdict,
};

use crate::harness::tyjobs::TestJobs;

/// A job of a leader, two workers of one set and one of another.
fn job() -> JobFacts {
    let mut job = TestJobs::new().job("rl", &[], (2, &[]));
    let parts = &mut job.spec.as_mut().unwrap().parts;
    parts.push(JobPart { name: "eval".into(), counts: 1, ..parts[1].clone() });
    job
}

#[test]
fn every_row_of_the_classification() {
    use ScheduleState::{ScheduledFailed, ScheduledPartly, ScheduledSucceed, Unscheduled};
    let with = |edit: fn(&mut JobFacts)| {
        let mut job = job();
        edit(&mut job);
        job
    };
    let still = Situation { missing: true, nodes_changed: false, resting: false };
    let moved = Situation { missing: true, nodes_changed: true, resting: false };
    let whole = Situation { missing: false, nodes_changed: true, resting: false };
    let over: [fn(&mut JobFacts); 4] = [
        |job| job.deleting = true,
        |job| job.stage = Some(Stage::Succeeded),
        |job| job.stage = Some(Stage::Failed),
        |job| job.spec.as_mut().unwrap().terminating = true,
    ];
    for edit in over {
        for state in [None, Some(Unscheduled), Some(ScheduledFailed), Some(ScheduledSucceed)] {
            assert_eq!(classify(&with(edit), state, moved), JobClass::Over);
        }
    }
    let invalid = with(|job| job.spec = Err("spec.leader.name".into()));
    assert_eq!(classify(&invalid, None, moved), JobClass::Invalid);
    let rows = [
        (None, still, JobClass::Waiting),
        (Some(Unscheduled), still, JobClass::Waiting),
        (Some(ScheduledPartly), still, JobClass::Waiting),
        (Some(ScheduledSucceed), still, JobClass::Waiting),
        (Some(ScheduledSucceed), whole, JobClass::Placed),
        (Some(ScheduledPartly), whole, JobClass::Placed),
        (Some(ScheduledFailed), still, JobClass::Unfit),
        (Some(ScheduledFailed), moved, JobClass::Waiting),
    ];
    for stage in [None, Some(Stage::Pending), Some(Stage::Starting), Some(Stage::Running), Some(Stage::Rescheduling)] {
        for (state, situation, wanted) in rows {
            let job = JobFacts { stage, ..job() };
            assert_eq!(classify(&job, state, situation), wanted, "{stage:?} {state:?} {situation:?}");
        }
    }
}

#[test]
fn every_row_of_what_is_kept() {
    let tally = |leader, workers, missing| PlacedPods { leader, workers, missing };
    let judged = |policy, min, started, tally| {
        let AttemptResult { state, keep } = verdict(policy, min, started, tally);
        (state, keep)
    };
    let whole = (ScheduleState::ScheduledSucceed, true);
    let partly = (ScheduleState::ScheduledPartly, true);
    let nothing = (ScheduleState::Unscheduled, false);
    for policy in [
        BasicPolicy::BinPack,
        BasicPolicy::LeaderFirst,
        BasicPolicy::MinFragment,
        BasicPolicy::JobAffinity,
        BasicPolicy::JobAntiAffinity,
    ] {
        assert_eq!(judged(policy, 2, false, tally(true, 3, 0)), whole);
        assert_eq!(judged(policy, 2, false, tally(true, 2, 1)), partly);
        assert_eq!(judged(policy, 2, false, tally(true, 1, 2)), nothing);
        assert_eq!(judged(policy, 2, false, tally(false, 3, 1)), nothing, "never without the leader");
        assert_eq!(judged(policy, 0, false, tally(true, 0, 3)), partly, "the leader runs alone");
        assert_eq!(judged(policy, 2, true, tally(true, 0, 3)), partly, "once started, places are kept");
    }
    assert_eq!(judged(BasicPolicy::Gang, 1, false, tally(true, 3, 0)), whole);
    assert_eq!(judged(BasicPolicy::Gang, 1, false, tally(true, 2, 1)), nothing, "all or none");
    assert_eq!(judged(BasicPolicy::Gang, 1, true, tally(true, 2, 1)), partly);
}

#[test]
fn a_pod_name_leads_to_its_seat_and_back() {
    let job = job();
    let spec = job.spec.as_ref().unwrap();
    let seats: Vec<Seat> = spec.seats("rl").collect();
    let names: Vec<&str> = seats.iter().map(|seat| &*seat.pod).collect();
    assert_eq!(names, ["rl-learner", "rl-actor-0", "rl-actor-1", "rl-eval-0"]);
    for seat in &seats {
        assert_eq!(spec.seat("rl", &seat.pod).as_ref(), Some(seat));
    }
    for strange in
        ["rl-actor-2", "rl-actor-01", "rl-actor--1", "rl-eval", "rl-learner-0", "rl", "x-learner", "rl-actor-"]
    {
        assert_eq!(spec.seat("rl", strange), None, "{strange}");
    }
    let place = job.allocation(&seats[2], "n1");
    assert_eq!((place.worker_set.as_deref(), place.index, place.role), (Some("actor"), 1, Role::Worker));
    assert_eq!(job.allocation(&seats[0], "n1").worker_set, None);
}
