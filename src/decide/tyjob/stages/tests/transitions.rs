//! Every row of the table of stages.

use super::rig::{Rig, spec};
use crate::contract::tyjob::{ScheduleState, Stage, condition};
use crate::decide::tyjob::stages::{Effect, ImageWait, NodeSight, Phase};

#[test]
fn a_new_valid_job_is_pending_with_its_finalizer_and_makes_nothing() {
    let mut rig = Rig::new(spec(2));
    rig.settle();
    assert_eq!(rig.stage(), Stage::Pending);
    assert!(rig.job.metadata.finalizers.is_some() && rig.pods.is_empty());
    assert_eq!((rig.status().total_workers, rig.status().ready.as_deref()), (2, Some("0/2")));
    assert_eq!(rig.told[0].0, "Pending");
}

#[test]
fn an_unscheduled_job_stays_pending() {
    let mut rig = Rig::new(spec(2));
    rig.settle();
    rig.place(&[], ScheduleState::Unscheduled);
    rig.settle();
    assert_eq!((rig.stage(), rig.pods.len()), (Stage::Pending, 0));
}

#[test]
fn a_placed_job_makes_its_leader_and_is_starting() {
    for state in [ScheduleState::ScheduledSucceed, ScheduleState::ScheduledPartly] {
        let mut rig = Rig::new(spec(2));
        rig.settle();
        rig.place(&["rl-learner", "rl-actor-0"], state);
        rig.settle();
        assert_eq!(rig.stage(), Stage::Starting);
        assert_eq!(rig.names(), ["rl-learner"]);
        assert!(rig.status().start_time.is_some() && rig.status().accepted_spec.is_some());
    }
}

#[test]
fn a_place_of_another_attempt_is_void() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.job.status.as_mut().unwrap().allocations[0].attempt = 1;
    rig.settle();
    assert_eq!((rig.stage(), rig.pods.len()), (Stage::Pending, 0));
}

#[test]
fn a_job_that_does_not_fit_fails_and_says_why() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place(&[], ScheduleState::ScheduledFailed);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Failed);
    assert!(rig.status().message.unwrap().contains("3 nodes are too small"));
    let mut rig = Rig::running(1);
    rig.ends("rl-learner", Phase::Failed);
    rig.settle();
    rig.place(&[], ScheduleState::ScheduledFailed);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Failed, "also when it is to be placed again");
}

#[test]
fn workers_are_made_when_the_leader_has_an_address_and_the_job_runs_when_enough_are_ready() {
    let mut rig = Rig::new(spec(3));
    rig.job.spec.min_workers_num = 2;
    rig.settle();
    rig.place_all();
    rig.settle();
    assert_eq!(rig.names(), ["rl-learner"]);
    rig.bind("rl-learner");
    rig.settle();
    assert_eq!(rig.names(), ["rl-actor-0", "rl-actor-1", "rl-actor-2", "rl-learner"]);
    assert_eq!(rig.status().leader_address.as_deref(), Some("10.0.0.1"));
    rig.ready("rl-actor-0");
    rig.ready("rl-actor-1");
    rig.settle();
    assert_eq!(rig.stage(), Stage::Starting, "the leader is not ready");
    rig.ready("rl-learner");
    rig.pod("rl-actor-1").ready = false;
    rig.settle();
    assert_eq!(rig.stage(), Stage::Starting, "one worker is too few");
    rig.ready("rl-actor-1");
    rig.settle();
    assert_eq!((rig.stage(), rig.status().ready.as_deref()), (Stage::Running, Some("2/3")));
    let reasons: Vec<&str> = rig.told.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons, ["Pending", "Starting", "Running"]);
}

#[test]
fn a_succeeded_worker_counts_towards_the_minimum_and_is_not_made_again() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.bind("rl-learner");
    rig.settle();
    rig.ends("rl-actor-0", Phase::Succeeded);
    rig.settle();
    rig.ready("rl-learner");
    rig.settle();
    assert_eq!(rig.stage(), Stage::Running);
    // Somebody tidies up ended pods.
    rig.pods.remove("rl-actor-0");
    rig.settle();
    assert_eq!((rig.names(), rig.status().ready.as_deref()), (vec!["rl-learner"], Some("1/1")));
}

#[test]
fn a_job_without_a_minimum_runs_with_its_leader_alone() {
    let mut rig = Rig::new(spec(1));
    rig.job.spec.min_workers_num = 0;
    rig.settle();
    rig.place(&["rl-learner"], ScheduleState::ScheduledPartly);
    rig.settle();
    rig.ready("rl-learner");
    rig.settle();
    assert_eq!(rig.stage(), Stage::Running);
}

#[test]
fn an_image_that_can_never_be_had_fails_a_starting_job_at_once() {
    for reason in ["InvalidImageName", "ErrImageNeverPull"] {
        let mut rig = Rig::new(spec(1));
        rig.settle();
        rig.place_all();
        rig.settle();
        rig.bind("rl-learner");
        rig.pod("rl-learner").image = Some(ImageWait { reason: reason.to_owned(), message: "no".to_owned() });
        rig.settle();
        assert_eq!(rig.stage(), Stage::Failed);
        assert!(rig.status().message.unwrap().contains(reason));
    }
}

#[test]
fn an_image_that_is_not_pulled_fails_a_starting_job_after_five_minutes() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.bind("rl-learner");
    let wait = |reason: &str| Some(ImageWait { reason: reason.to_owned(), message: "not found".to_owned() });
    rig.pod("rl-learner").image = wait("ErrImagePull");
    rig.settle();
    let (_, effects) = rig.look();
    let due = rig.now + jiff::SignedDuration::from_secs(301);
    assert!(effects.contains(&Effect::Wake { at: due }), "it looks again by itself");
    rig.pass(200);
    rig.pod("rl-learner").image = wait("ImagePullBackOff");
    rig.settle();
    rig.pass(100);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Starting, "five minutes are not over five minutes");
    rig.pass(1);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Failed);
}

#[test]
fn an_image_that_is_pulled_in_time_starts_the_clock_anew() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.bind("rl-learner");
    let wait = Some(ImageWait { reason: "ImagePullBackOff".to_owned(), message: "not found".to_owned() });
    for _ in 0..2 {
        rig.pod("rl-learner").image.clone_from(&wait);
        rig.pod("rl-learner").phase = Phase::Pending;
        rig.settle();
        rig.pass(299);
        rig.pod("rl-learner").image = None;
        rig.pod("rl-learner").phase = Phase::Running;
        rig.settle();
    }
    assert_eq!(rig.stage(), Stage::Starting);
    assert!(!rig.status().holds(condition::IMAGE_PULL));
}

#[test]
fn other_reasons_between_two_pulls_do_not_start_the_clock_anew() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.bind("rl-learner");
    for reason in ["ErrImagePull", "", "ImagePullBackOff", "", "ImagePullBackOff"] {
        let wait = ImageWait { reason: reason.to_owned(), message: "not found".to_owned() };
        rig.pod("rl-learner").image = Some(wait).filter(|_| !reason.is_empty());
        rig.settle();
        rig.pass(70);
    }
    rig.settle();
    assert_eq!(rig.stage(), Stage::Failed);
}

#[test]
fn more_places_make_more_workers_of_a_running_job() {
    let mut rig = Rig::new(spec(2));
    rig.settle();
    rig.place(&["rl-learner", "rl-actor-0"], ScheduleState::ScheduledPartly);
    rig.settle();
    rig.ready_all();
    assert_eq!((rig.stage(), rig.names()), (Stage::Running, vec!["rl-actor-0", "rl-learner"]));
    rig.place_all();
    rig.settle();
    assert_eq!(rig.names(), ["rl-actor-0", "rl-actor-1", "rl-learner"]);
}

#[test]
fn a_leader_that_is_lost_or_fails_reschedules_the_job() {
    type Break = fn(&mut Rig);
    let breaks: [(&str, Break); 4] = [
        ("failed", |rig| rig.ends("rl-learner", Phase::Failed)),
        ("gone", |rig| drop(rig.pods.remove("rl-learner"))),
        ("deleted", |rig| rig.evict("rl-learner")),
        ("node", |rig| rig.pod("rl-learner").sight = NodeSight::Gone),
    ];
    for (word, break_it) in breaks {
        for starting in [false, true] {
            let mut rig = Rig::running(2);
            if starting {
                rig.job.status.as_mut().unwrap().stage = Some(Stage::Starting);
            }
            break_it(&mut rig);
            rig.step();
            assert_eq!((rig.stage(), rig.status().restarts), (Stage::Rescheduling, 1), "{word}");
            assert!(rig.status().message.unwrap().contains(word), "{word}");
            rig.settle();
            assert!(rig.pods.values().all(|pod| pod.deleting.is_some()), "{word}: all pods go");
            rig.bury();
            rig.settle();
            assert_eq!(rig.pods.len(), 0, "{word}: the places are of the old attempt");
            rig.place_all();
            rig.settle();
            rig.ready_all();
            assert_eq!((rig.stage(), rig.pods.len()), (Stage::Running, 3), "{word}");
            assert!(rig.pods.values().all(|pod| pod.attempt == Some(1)));
        }
    }
}

#[test]
fn a_leader_at_its_limit_fails_the_job() {
    let mut rig = Rig::running(1);
    for restart in 1..=3 {
        rig.ends("rl-learner", Phase::Failed);
        rig.settle();
        rig.bury();
        assert_eq!((rig.stage(), rig.status().restarts), (Stage::Rescheduling, restart));
        rig.place_all();
        rig.settle();
        rig.ready_all();
    }
    rig.ends("rl-learner", Phase::Failed);
    rig.settle();
    assert_eq!((rig.stage(), rig.status().restarts), (Stage::Failed, 3));
    assert!(rig.status().message.unwrap().contains("restartLimit is 3"));
}

#[test]
fn restarts_of_the_leaders_containers_join_when_the_pod_goes() {
    let mut rig = Rig::running(1);
    rig.pod("rl-learner").container_restarts = 1;
    rig.settle();
    assert_eq!((rig.stage(), rig.status().restarts), (Stage::Running, 0));
    rig.pods.remove("rl-learner");
    rig.settle();
    assert_eq!((rig.stage(), rig.status().restarts), (Stage::Rescheduling, 2));
    rig.bury();
    rig.place_all();
    rig.settle();
    rig.ready_all();
    rig.pod("rl-learner").container_restarts = 1;
    rig.ends("rl-learner", Phase::Failed);
    rig.settle();
    assert_eq!((rig.stage(), rig.status().restarts), (Stage::Failed, 3), "2 + 1 is the limit");
}

#[test]
fn too_few_workers_that_can_still_run_fail_the_job() {
    let mut rig = Rig::new(spec(3));
    (rig.job.spec.min_workers_num, rig.job.spec.restart_limit) = (2, 0);
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.ready_all();
    rig.ends("rl-actor-0", Phase::Failed);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Running, "two of three can still run");
    rig.ends("rl-actor-1", Phase::Succeeded);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Running, "one that succeeded counts");
    rig.ends("rl-actor-2", Phase::Failed);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Failed);
    assert!(rig.status().message.unwrap().starts_with("2 of 3 workers failed for good"));
}

#[test]
fn a_leader_that_succeeds_ends_the_job_in_every_stage_that_has_one() {
    for starting in [false, true] {
        let mut rig = Rig::running(2);
        if starting {
            rig.job.status.as_mut().unwrap().stage = Some(Stage::Starting);
        }
        rig.ends("rl-learner", Phase::Succeeded);
        rig.settle();
        assert_eq!(rig.stage(), Stage::Succeeded);
        assert!(rig.status().completion_time.is_some());
        assert_eq!(rig.told.last().unwrap().0, "Succeeded");
    }
}

#[test]
fn a_leader_that_ends_well_because_it_was_asked_to_go_is_lost() {
    let mut rig = Rig::running(1);
    rig.evict("rl-learner");
    rig.ends("rl-learner", Phase::Succeeded);
    rig.pod("rl-learner").stopped = true;
    rig.settle();
    assert_eq!((rig.stage(), rig.status().restarts), (Stage::Rescheduling, 1));
    // One that had ended before somebody deleted it has done its work.
    let mut rig = Rig::running(1);
    rig.ends("rl-learner", Phase::Succeeded);
    rig.evict("rl-learner");
    rig.settle();
    assert_eq!(rig.stage(), Stage::Succeeded);
}

#[test]
fn terminating_ends_a_job_in_every_stage() {
    let mut rigs = vec![Rig::new(spec(1)), Rig::running(1), Rig::running(1)];
    rigs[0].settle();
    rigs[2].ends("rl-learner", Phase::Failed);
    rigs[2].settle();
    let mut new = Rig::new(spec(1));
    new.job.spec.terminating = true;
    rigs.push(new);
    for mut rig in rigs {
        rig.job.spec.terminating = true;
        rig.settle();
        assert_eq!(rig.stage(), Stage::Succeeded);
        assert!(rig.pods.values().all(|pod| pod.deleting.is_some()));
    }
}

#[test]
fn a_terminal_stage_is_never_left() {
    for end in [Phase::Succeeded, Phase::Failed] {
        let mut rig = Rig::running(1);
        rig.job.spec.restart_limit = 0;
        rig.ends("rl-learner", end);
        rig.settle();
        let stage = rig.stage();
        assert!(stage.is_terminal());
        rig.bury();
        rig.job.spec.priority = 99;
        rig.place_all();
        rig.settle();
        assert_eq!((rig.stage(), rig.pods.len()), (stage, 0));
    }
}

/// A job whose leader was made, and its controller killed before it wrote that down.
fn made_and_not_written() -> Rig {
    let mut rig = Rig::new(spec(2));
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.job.status.as_mut().unwrap().stage = Some(Stage::Pending);
    rig
}

#[test]
fn a_leader_that_was_made_counts_whatever_became_of_its_place_since() {
    for state in [ScheduleState::Unscheduled, ScheduleState::ScheduledFailed] {
        for deleted in [false, true] {
            let mut rig = made_and_not_written();
            rig.ends("rl-learner", Phase::Succeeded);
            rig.place(&[], state);
            if deleted {
                rig.evict("rl-learner");
            }
            rig.settle();
            assert_eq!(rig.stage(), Stage::Succeeded, "{state:?}, deleted: {deleted}");
        }
    }
    let mut rig = made_and_not_written();
    rig.place(&[], ScheduleState::Unscheduled);
    rig.settle();
    assert_eq!((rig.stage(), rig.names()), (Stage::Starting, vec!["rl-learner"]), "it lives");
    let mut rig = made_and_not_written();
    rig.place(&[], ScheduleState::Unscheduled);
    rig.ends("rl-learner", Phase::Failed);
    rig.settle();
    assert_eq!((rig.stage(), rig.status().restarts), (Stage::Rescheduling, 1));
    let mut rig = made_and_not_written();
    rig.place(&[], ScheduleState::ScheduledFailed);
    rig.settle();
    assert_eq!(rig.stage(), Stage::Failed, "there is no room for it in the whole cluster");
}

#[test]
fn a_job_that_fails_at_its_limit_with_restarts_of_containers_still_shows_its_nodes() {
    let mut rig = Rig::running(1);
    rig.pod("rl-learner").container_restarts = 4;
    rig.ends("rl-learner", Phase::Failed);
    let before = rig.status().nodes;
    rig.settle();
    assert_eq!((rig.stage(), rig.status().restarts), (Stage::Failed, 4));
    assert_eq!(rig.status().leader_container_restarts, 0, "they are counted");
    assert!(before.is_some() && rig.status().nodes == before, "{before:?}, {:?}", rig.status().nodes);
}
