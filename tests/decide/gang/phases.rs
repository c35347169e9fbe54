//! The phase of a PodGroup: the first row of the table that matches.

use baton::contract::gang::{PodGroupPhase, PodGroupStatus, key};
use baton::decide::world::gangs::{GangProgress, GroupAttempts, status};

use PodGroupPhase::{Failed, Finished, Pending, PreScheduling, Running, Scheduled, Scheduling};

use crate::prelude::*;

/// Members without a node, with one, running, succeeded, failed.
type Members = (usize, usize, usize, usize, usize);

fn stand(min: u32, (pending, bound, running, succeeded, failed): Members) -> TestGangs {
    let mut gangs = TestGangs::new(64);
    // No scheduler runs: the members are as they are made.
    gangs.cluster.step_down();
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(min));
    let states = [
        (pending, None, Phase::Pending),
        (bound, Some("n"), Phase::Pending),
        (running, Some("n"), Phase::Running),
        (succeeded, Some("n"), Phase::Succeeded),
        (failed, Some("n"), Phase::Failed),
    ];
    let mut number = 0;
    for (count, node, phase) in states {
        for _ in 0..count {
            gangs.asks_as(&format!("g-{number}"), CPU, &[(P.to_owned(), "g".to_owned())], |facts| {
                facts.handoff.node = node.map(Into::into);
                facts.handoff.phase = phase;
            });
            number += 1;
        }
    }
    gangs
}

fn reported(gangs: &TestGangs, before: &PodGroupStatus) -> PodGroupStatus {
    let gang = gangs.cluster.world().gangs().gang(&GangId::parse("ml/g").unwrap()).unwrap();
    let progress = GangProgress::default();
    let attempts = GroupAttempts { progress: &progress, next_try: None, not_ready: None };
    status(gang, attempts, before, gangs.cluster.moment().wall)
}

#[test]
fn every_phase_is_that_of_the_first_row_that_matches() {
    // minimum, members (pending, bound, running, succeeded, failed), phase
    let table: &[(u32, Members, PodGroupPhase)] = &[
        (3, (0, 0, 0, 0, 0), Pending),
        (3, (2, 0, 0, 0, 0), Pending),
        (3, (3, 0, 0, 0, 0), PreScheduling),
        (3, (2, 1, 0, 0, 0), Scheduling),
        (3, (4, 1, 1, 0, 0), Scheduling),
        (3, (0, 3, 0, 0, 0), Scheduled),
        (3, (0, 2, 1, 0, 0), Scheduled),
        (3, (1, 1, 1, 1, 0), Scheduled),
        (3, (0, 0, 3, 0, 0), Running),
        (3, (5, 0, 3, 0, 0), Running),
        (3, (0, 0, 1, 2, 0), Running),
        (3, (0, 0, 0, 3, 0), Finished),
        (3, (9, 9, 9, 3, 9), Finished),
        // Failed needs a failure and too few who live or have succeeded.
        (3, (0, 0, 2, 0, 1), Failed),
        (3, (1, 1, 0, 0, 1), Failed),
        (3, (0, 0, 1, 1, 1), Failed),
        (3, (0, 0, 0, 0, 3), Failed),
        (3, (0, 0, 3, 0, 1), Running),
        (3, (3, 0, 0, 0, 5), PreScheduling),
        (3, (1, 0, 2, 0, 1), Scheduling),
        (3, (0, 1, 1, 1, 1), Scheduled),
        // Too few without a failure is no failure.
        (3, (0, 0, 2, 0, 0), Scheduling),
        (1, (0, 0, 0, 1, 0), Finished),
    ];
    for (min, members, phase) in table {
        let found = reported(&stand(*min, *members), &PodGroupStatus::default());
        assert_eq!(found.phase, Some(*phase), "minimum {min} of {members:?}");
        let (_, bound, running, succeeded, failed) = *members;
        let counts = (found.scheduled, found.running, found.succeeded, found.failed);
        let wanted = (bound + running, running, succeeded, failed);
        assert_eq!(counts, (wanted.0 as i32, wanted.1 as i32, wanted.2 as i32, wanted.3 as i32), "{members:?}");
    }
}

#[test]
fn finished_stays_while_its_pods_are_cleaned_up_and_ends_with_a_new_generation() {
    let finished = reported(&stand(3, (0, 0, 0, 3, 0)), &PodGroupStatus::default());
    assert_eq!((finished.phase, finished.succeeded), (Some(Finished), 3));
    let cleaned = reported(&stand(3, (0, 0, 0, 1, 0)), &finished);
    assert_eq!((cleaned.phase, cleaned.succeeded), (Some(Finished), 3));
    let placed = |status: &PodGroupStatus| {
        let found = status.conditions.iter().find(|condition| condition.type_ == key::CONDITION_SCHEDULED);
        found.map(|condition| condition.status.clone())
    };
    assert_eq!((placed(&finished), placed(&cleaned)), (Some("True".into()), Some("True".into())));
    let empty = reported(&stand(3, (0, 0, 0, 0, 0)), &cleaned);
    assert_eq!((empty.phase, placed(&empty)), (Some(Finished), Some("True".into())));
    let mut again = stand(3, (0, 0, 0, 0, 0));
    again.cluster.later(60);
    again.members("new", 3, &[(P.to_owned(), "g".to_owned())]);
    assert_eq!(reported(&again, &cleaned).phase, Some(PreScheduling));
}

#[test]
fn finished_stays_where_the_object_keeps_no_conditions() {
    let mut finished = reported(&stand(2, (0, 0, 1, 2, 0)), &PodGroupStatus::default());
    assert_eq!(finished.phase, Some(Finished));
    finished.conditions.clear();
    let cleaned = reported(&stand(2, (0, 0, 1, 1, 0)), &finished);
    assert_eq!((cleaned.phase, cleaned.succeeded), (Some(Finished), 2));
    let mut again = stand(2, (0, 0, 0, 1, 0));
    again.cluster.later(60);
    again.members("new", 2, &[(P.to_owned(), "g".to_owned())]);
    assert_eq!(reported(&again, &finished).phase, Some(PreScheduling));
}

#[test]
fn a_gang_without_a_minimum_is_pending() {
    let mut gangs = stand(1, (1, 0, 0, 0, 0));
    gangs.pod_group("ml/g", |_| {});
    assert_eq!(reported(&gangs, &PodGroupStatus::default()).phase, Some(Pending));
}

#[test]
fn a_status_that_another_controller_replaces_is_written_again_ever_more_rarely() {
    let mut gangs = TestGangs::new(8);
    let mut version = 1;
    let mut shown = |gangs: &mut TestGangs, status: PodGroupStatus| {
        version += 1;
        gangs.pod_group("ml/g", |facts| {
            facts.uid = "u".into();
            facts.version = version.to_string().into();
            facts.spec.min = Some(3);
            facts.status = status;
        });
    };
    shown(&mut gangs, PodGroupStatus::default());
    gangs.members("g", 3, &[(P.to_owned(), "g".to_owned())]);
    let mut writes = Vec::new();
    for second in 0..600 {
        gangs.wait(1);
        for write in std::mem::take(&mut gangs.cluster.pod_group_writes) {
            writes.push(second);
            let result = Some(Box::new(write.status.clone()));
            gangs.cluster.report(EffectResult::PodGroup { gang: write.gang, result });
            shown(&mut gangs, write.status);
            shown(&mut gangs, PodGroupStatus { phase: Some(Failed), ..PodGroupStatus::default() });
        }
    }
    assert!((6..20).contains(&writes.len()), "{writes:?}");
    shown(&mut gangs, PodGroupStatus::default());
}
