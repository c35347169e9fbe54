//! Every row of the table of stages.

use super::test_job::{TestJob, spec};
use crate::pod::Phase;
use crate::tyjob::stages::{ImageWait, JobEffect, NodeReachability};
use baton_contract::tyjob::{ScheduleState, Stage, condition};

#[test]
fn a_new_valid_job_is_pending_with_its_finalizer_and_makes_nothing() {
    let mut test = TestJob::new(spec(2));
    test.settle();
    assert_eq!(test.stage(), Stage::Pending);
    assert!(test.job.metadata.finalizers.is_some() && test.pods.is_empty());
    assert_eq!((test.status().total_workers, test.status().ready.as_deref()), (2, Some("0/2")));
    assert_eq!(test.reported[0].0, "Pending");
}

#[test]
fn an_unscheduled_job_stays_pending() {
    let mut test = TestJob::new(spec(2));
    test.settle();
    test.place(&[], ScheduleState::Unscheduled);
    test.settle();
    assert_eq!((test.stage(), test.pods.len()), (Stage::Pending, 0));
}

#[test]
fn a_placed_job_makes_its_leader_and_is_starting() {
    for state in [ScheduleState::ScheduledSucceed, ScheduleState::ScheduledPartly] {
        let mut test = TestJob::new(spec(2));
        test.settle();
        test.place(&["rl-learner", "rl-actor-0"], state);
        test.settle();
        assert_eq!(test.stage(), Stage::Starting);
        assert_eq!(test.names(), ["rl-learner"]);
        assert!(test.status().start_time.is_some() && test.status().accepted_spec.is_some());
    }
}

#[test]
fn a_place_of_another_attempt_is_void() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.job.status.as_mut().unwrap().allocations[0].attempt = 1;
    test.settle();
    assert_eq!((test.stage(), test.pods.len()), (Stage::Pending, 0));
}

#[test]
fn a_job_that_does_not_fit_fails_and_says_why() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place(&[], ScheduleState::ScheduledFailed);
    test.settle();
    assert_eq!(test.stage(), Stage::Failed);
    assert!(test.status().message.unwrap().contains("3 nodes are too small"));
    let mut test = TestJob::running(1);
    test.ends("rl-learner", Phase::Failed);
    test.settle();
    test.place(&[], ScheduleState::ScheduledFailed);
    test.settle();
    assert_eq!(test.stage(), Stage::Failed, "also when it is to be placed again");
}

#[test]
fn workers_follow_the_leaders_address_and_the_job_runs_when_enough_are_ready() {
    let mut test = TestJob::new(spec(3));
    test.job.spec.min_workers_num = 2;
    test.settle();
    test.place_all();
    test.settle();
    assert_eq!(test.names(), ["rl-learner"]);
    test.bind("rl-learner");
    test.settle();
    assert_eq!(test.names(), ["rl-actor-0", "rl-actor-1", "rl-actor-2", "rl-learner"]);
    assert_eq!(test.status().leader_address.as_deref(), Some("10.0.0.1"));
    test.ready("rl-actor-0");
    test.ready("rl-actor-1");
    test.settle();
    assert_eq!(test.stage(), Stage::Starting, "the leader is not ready");
    test.ready("rl-learner");
    test.pod("rl-actor-1").ready = false;
    test.settle();
    assert_eq!(test.stage(), Stage::Starting, "one worker is too few");
    test.ready("rl-actor-1");
    test.settle();
    assert_eq!((test.stage(), test.status().ready.as_deref()), (Stage::Running, Some("2/3")));
    let reasons: Vec<&str> = test.reported.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons, ["Pending", "Starting", "Running"]);
}

#[test]
fn a_succeeded_worker_counts_towards_the_minimum_and_is_not_made_again() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.settle();
    test.bind("rl-learner");
    test.settle();
    test.ends("rl-actor-0", Phase::Succeeded);
    test.settle();
    test.ready("rl-learner");
    test.settle();
    assert_eq!(test.stage(), Stage::Running);
    // Ended pods are deleted by hand.
    test.pods.remove("rl-actor-0");
    test.settle();
    assert_eq!((test.names(), test.status().ready.as_deref()), (vec!["rl-learner"], Some("1/1")));
}

#[test]
fn a_job_without_a_minimum_runs_with_its_leader_alone() {
    let mut test = TestJob::new(spec(1));
    test.job.spec.min_workers_num = 0;
    test.settle();
    test.place(&["rl-learner"], ScheduleState::ScheduledPartly);
    test.settle();
    test.ready("rl-learner");
    test.settle();
    assert_eq!(test.stage(), Stage::Running);
}

#[test]
fn an_image_that_can_never_be_had_fails_a_starting_job_at_once() {
    for reason in ["InvalidImageName", "ErrImageNeverPull"] {
        let mut test = TestJob::new(spec(1));
        test.settle();
        test.place_all();
        test.settle();
        test.bind("rl-learner");
        test.pod("rl-learner").image = Some(ImageWait { reason: reason.to_owned(), message: "no".to_owned() });
        test.settle();
        assert_eq!(test.stage(), Stage::Failed);
        assert!(test.status().message.unwrap().contains(reason));
    }
}

#[test]
fn an_image_that_is_not_pulled_fails_a_starting_job_after_five_minutes() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.settle();
    test.bind("rl-learner");
    let wait = |reason: &str| Some(ImageWait { reason: reason.to_owned(), message: "not found".to_owned() });
    test.pod("rl-learner").image = wait("ErrImagePull");
    test.settle();
    let (_, effects) = test.look();
    let due = test.now + jiff::SignedDuration::from_secs(301);
    assert!(effects.contains(&JobEffect::Wake { at: due }), "it looks again by itself");
    test.pass(200);
    test.pod("rl-learner").image = wait("ImagePullBackOff");
    test.settle();
    test.pass(100);
    test.settle();
    assert_eq!(test.stage(), Stage::Starting, "five minutes are not over five minutes");
    test.pass(1);
    test.settle();
    assert_eq!(test.stage(), Stage::Failed);
}

#[test]
fn an_image_that_is_pulled_in_time_starts_the_clock_again() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.settle();
    test.bind("rl-learner");
    let wait = Some(ImageWait { reason: "ImagePullBackOff".to_owned(), message: "not found".to_owned() });
    for _ in 0..2 {
        test.pod("rl-learner").image.clone_from(&wait);
        test.pod("rl-learner").phase = Phase::Pending;
        test.settle();
        test.pass(299);
        test.pod("rl-learner").image = None;
        test.pod("rl-learner").phase = Phase::Running;
        test.settle();
    }
    assert_eq!(test.stage(), Stage::Starting);
    assert!(!test.status().holds(condition::IMAGE_PULL));
}

#[test]
fn other_reasons_between_two_pulls_do_not_start_the_clock_again() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.settle();
    test.bind("rl-learner");
    for reason in ["ErrImagePull", "", "ImagePullBackOff", "", "ImagePullBackOff"] {
        let wait = ImageWait { reason: reason.to_owned(), message: "not found".to_owned() };
        test.pod("rl-learner").image = Some(wait).filter(|_| !reason.is_empty());
        test.settle();
        test.pass(70);
    }
    test.settle();
    assert_eq!(test.stage(), Stage::Failed);
}

#[test]
fn more_places_make_more_workers_of_a_running_job() {
    let mut test = TestJob::new(spec(2));
    test.settle();
    test.place(&["rl-learner", "rl-actor-0"], ScheduleState::ScheduledPartly);
    test.settle();
    test.ready_all();
    assert_eq!((test.stage(), test.names()), (Stage::Running, vec!["rl-actor-0", "rl-learner"]));
    test.place_all();
    test.settle();
    assert_eq!(test.names(), ["rl-actor-0", "rl-actor-1", "rl-learner"]);
}

#[test]
fn a_leader_that_is_lost_or_fails_reschedules_the_job() {
    type Break = fn(&mut TestJob);
    let breaks: [(&str, Break); 4] = [
        ("failed", |test| test.ends("rl-learner", Phase::Failed)),
        ("gone", |test| drop(test.pods.remove("rl-learner"))),
        ("deleted", |test| test.evict("rl-learner")),
        ("node", |test| test.pod("rl-learner").reachability = NodeReachability::Gone),
    ];
    for (word, break_it) in breaks {
        for starting in [false, true] {
            let mut test = TestJob::running(2);
            if starting {
                test.job.status.as_mut().unwrap().stage = Some(Stage::Starting);
            }
            break_it(&mut test);
            test.step();
            assert_eq!((test.stage(), test.status().restarts), (Stage::Rescheduling, 1), "{word}");
            assert!(test.status().message.unwrap().contains(word), "{word}");
            test.settle();
            assert!(test.pods.values().all(|pod| pod.deleting.is_some()), "{word}: all pods go");
            test.bury();
            test.settle();
            assert_eq!(test.pods.len(), 0, "{word}: the places are of the old attempt");
            test.place_all();
            test.settle();
            test.ready_all();
            assert_eq!((test.stage(), test.pods.len()), (Stage::Running, 3), "{word}");
            assert!(test.pods.values().all(|pod| pod.attempt == Some(1)));
        }
    }
}

#[test]
fn a_leader_at_its_limit_fails_the_job() {
    let mut test = TestJob::running(1);
    for restart in 1..=3 {
        test.ends("rl-learner", Phase::Failed);
        test.settle();
        test.bury();
        assert_eq!((test.stage(), test.status().restarts), (Stage::Rescheduling, restart));
        test.place_all();
        test.settle();
        test.ready_all();
    }
    test.ends("rl-learner", Phase::Failed);
    test.settle();
    assert_eq!((test.stage(), test.status().restarts), (Stage::Failed, 3));
    assert!(test.status().message.unwrap().contains("restartLimit is 3"));
}

#[test]
fn too_few_workers_that_can_still_run_fail_the_job() {
    let mut test = TestJob::new(spec(3));
    (test.job.spec.min_workers_num, test.job.spec.restart_limit) = (2, 0);
    test.settle();
    test.place_all();
    test.settle();
    test.ready_all();
    test.ends("rl-actor-0", Phase::Failed);
    test.settle();
    assert_eq!(test.stage(), Stage::Running, "two of three can still run");
    test.ends("rl-actor-1", Phase::Succeeded);
    test.settle();
    assert_eq!(test.stage(), Stage::Running, "one that succeeded counts");
    test.ends("rl-actor-2", Phase::Failed);
    test.settle();
    assert_eq!(test.stage(), Stage::Failed);
    assert!(test.status().message.unwrap().starts_with("2 of 3 workers failed for good"));
}

#[test]
fn a_leader_that_succeeds_ends_the_job_in_every_stage_that_has_one() {
    for starting in [false, true] {
        let mut test = TestJob::running(2);
        if starting {
            test.job.status.as_mut().unwrap().stage = Some(Stage::Starting);
        }
        test.ends("rl-learner", Phase::Succeeded);
        test.settle();
        assert_eq!(test.stage(), Stage::Succeeded);
        assert!(test.status().completion_time.is_some());
        assert_eq!(test.reported.last().unwrap().0, "Succeeded");
    }
}

#[test]
fn a_leader_that_ends_well_because_it_was_asked_to_go_is_lost() {
    let mut test = TestJob::running(1);
    test.evict("rl-learner");
    test.ends("rl-learner", Phase::Failed);
    test.settle();
    assert_eq!((test.stage(), test.status().restarts), (Stage::Rescheduling, 1));
    // One that had ended before it was deleted has done its work.
    let mut test = TestJob::running(1);
    test.ends("rl-learner", Phase::Succeeded);
    test.evict("rl-learner");
    test.settle();
    assert_eq!(test.stage(), Stage::Succeeded);
}

#[test]
fn terminating_ends_a_job_in_every_stage() {
    let mut rigs = vec![TestJob::new(spec(1)), TestJob::running(1), TestJob::running(1)];
    rigs[0].settle();
    rigs[2].ends("rl-learner", Phase::Failed);
    rigs[2].settle();
    let mut new = TestJob::new(spec(1));
    new.job.spec.terminating = true;
    rigs.push(new);
    for mut test in rigs {
        test.job.spec.terminating = true;
        test.settle();
        assert_eq!(test.stage(), Stage::Succeeded);
        assert!(test.pods.values().all(|pod| pod.deleting.is_some()));
    }
}

#[test]
fn a_terminal_stage_is_never_left() {
    for end in [Phase::Succeeded, Phase::Failed] {
        let mut test = TestJob::running(1);
        test.job.spec.restart_limit = 0;
        test.ends("rl-learner", end);
        test.settle();
        let stage = test.stage();
        assert!(stage.is_terminal());
        test.bury();
        test.job.spec.priority = 99;
        test.place_all();
        test.settle();
        assert_eq!((test.stage(), test.pods.len()), (stage, 0));
    }
}

/// A job whose leader was made, and its controller killed before it wrote that down.
fn made_and_not_written() -> TestJob {
    let mut test = TestJob::new(spec(2));
    test.settle();
    test.place_all();
    test.settle();
    test.job.status.as_mut().unwrap().stage = Some(Stage::Pending);
    test
}

#[test]
fn a_leader_that_was_made_counts_whatever_became_of_its_place_since() {
    for state in [ScheduleState::Unscheduled, ScheduleState::ScheduledFailed] {
        for deleted in [false, true] {
            let mut test = made_and_not_written();
            test.ends("rl-learner", Phase::Succeeded);
            test.place(&[], state);
            if deleted {
                test.evict("rl-learner");
            }
            test.settle();
            assert_eq!(test.stage(), Stage::Succeeded, "{state:?}, deleted: {deleted}");
        }
    }
    let mut test = made_and_not_written();
    test.place(&[], ScheduleState::Unscheduled);
    test.settle();
    assert_eq!((test.stage(), test.names()), (Stage::Starting, vec!["rl-learner"]), "it lives");
    let mut test = made_and_not_written();
    test.place(&[], ScheduleState::Unscheduled);
    test.ends("rl-learner", Phase::Failed);
    test.settle();
    assert_eq!((test.stage(), test.status().restarts), (Stage::Rescheduling, 1));
    let mut test = made_and_not_written();
    test.place(&[], ScheduleState::ScheduledFailed);
    test.settle();
    assert_eq!(test.stage(), Stage::Failed, "there is no room for it in the whole cluster");
}
