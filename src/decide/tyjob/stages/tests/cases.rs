//! Workers, edits, clean-up and deletion.

use serde_json::json;

use super::test_job::{TestJob, spec};
use crate::pod::Phase;
use crate::tyjob::stages::{CreateFailure, NodeReachability, rests_on};
use baton_contract::tyjob::{CleanPodPolicy, ScheduleState, Stage, condition};

#[test]
fn a_failed_worker_is_made_again_with_its_index_as_often_as_the_limit_says() {
    let mut test = TestJob::running(2);
    test.job.spec.restart_limit = 2;
    for restart in 1..=2 {
        test.ends("rl-actor-1", Phase::Failed);
        test.settle();
        assert_eq!(test.status().worker_set_restarts["actor"], restart);
        assert!(test.pod("rl-actor-1").deleting.is_some());
        test.bury();
        test.settle();
        assert_eq!(test.calls, ["-rl-actor-1", "+rl-actor-1"]);
        test.ready_all();
        test.calls.clear();
    }
    test.ends("rl-actor-1", Phase::Failed);
    test.settle();
    assert_eq!((test.calls.len(), test.status().worker_set_restarts["actor"]), (0, 2));
    assert!(test.was_reported("WorkerFailed"));
    // Gone for good, also when its ended pods are deleted; until the limit is raised.
    test.pods.remove("rl-actor-1");
    test.settle();
    assert_eq!(test.names(), ["rl-actor-0", "rl-learner"]);
    test.job.spec.restart_limit = 3;
    test.settle();
    assert_eq!(test.names(), ["rl-actor-0", "rl-actor-1", "rl-learner"]);
}

#[test]
fn a_failure_is_counted_once_however_often_it_is_seen() {
    let mut test = TestJob::running(2);
    test.ends("rl-actor-0", Phase::Failed);
    test.settle();
    for _ in 0..5 {
        test.step();
    }
    assert_eq!(test.status().worker_set_restarts["actor"], 1);
    assert_eq!(test.reported.iter().filter(|(reason, _)| *reason == "WorkerRestarted").count(), 1);
}

#[test]
fn a_failure_is_counted_once_also_when_a_late_watch_has_not_shown_the_pod_meanwhile() {
    let mut test = TestJob::running(1);
    test.ends("rl-actor-0", Phase::Failed);
    let counted = test.look().0;
    test.write(counted);
    let failed = test.pods.remove("rl-actor-0").unwrap();
    let late = test.look().0;
    test.write(late);
    test.pods.insert("rl-actor-0".to_owned(), failed);
    test.settle();
    assert_eq!(test.status().worker_set_restarts["actor"], 1);
    assert_eq!(test.calls, ["-rl-actor-0"]);
}

#[test]
fn a_large_status_forgets_failed_pods_once_the_api_server_has_them_no_more() {
    let mut test = TestJob::running(600);
    let replaced = (0..600).map(|at| (format!("rl-actor-{at}"), format!("former-{at}")));
    test.job.status.as_mut().unwrap().replaced = replaced.collect();
    assert_eq!(test.look().0, test.status(), "no status is written for that alone");
    test.ends("rl-actor-0", Phase::Failed);
    let look = |test: &TestJob| {
        let (status, pods) = (test.look().0, test.pods.values().cloned().collect::<Vec<_>>());
        (rests_on(&test.job, &status, &pods), status.replaced)
    };
    let (asked, left) = look(&test);
    assert_eq!((asked.len(), left.len()), (65, 600 - 64), "the one that has failed now is asked for, too");
    assert!(left.contains_key("rl-actor-0") && !left.contains_key("rl-actor-1") && asked.contains("rl-actor-1"));
    // It is there: the watch was behind.
    test.pod("rl-actor-1").uid = "former-1".to_owned();
    let (asked, left) = look(&test);
    assert!(left.len() == 600 - 64 && left.contains_key("rl-actor-1") && !asked.contains("rl-actor-1"));
}

#[test]
fn a_failure_is_counted_before_the_pod_is_deleted() {
    let mut test = TestJob::running(1);
    test.ends("rl-actor-0", Phase::Failed);
    let (status, effects) = test.look();
    assert_eq!(status.worker_set_restarts["actor"], 1);
    assert_eq!(status.replaced.len(), 1);
    // The write goes through, then the controller dies; the next one deletes and does not count again.
    test.write(status);
    drop(effects);
    test.settle();
    assert_eq!((test.status().worker_set_restarts["actor"], test.calls.len()), (1, 1));
}

#[test]
fn an_evicted_worker_is_made_again_without_being_counted() {
    let mut test = TestJob::running(2);
    test.evict("rl-actor-0");
    test.settle();
    assert_eq!((test.calls.len(), test.status().ready.as_deref()), (0, Some("1/2")));
    // A killed container fails its pod on the way out.
    test.pod("rl-actor-0").phase = Phase::Failed;
    test.settle();
    test.bury();
    test.settle();
    assert_eq!(test.calls, ["+rl-actor-0"]);
    assert!(test.status().worker_set_restarts.is_empty());
}

#[test]
fn a_worker_that_fails_for_the_sake_of_others_is_made_again_without_being_counted() {
    let mut job = spec(1);
    job.restart_limit = 0;
    let mut test = TestJob::running_with(job);
    for _ in 0..3 {
        test.calls.clear();
        test.ends("rl-actor-0", Phase::Failed);
        test.pod("rl-actor-0").disrupted = true;
        test.settle();
        test.bury();
        test.settle();
        assert_eq!(test.calls, ["-rl-actor-0", "+rl-actor-0"]);
        test.ready_all();
    }
    assert_eq!((test.stage(), test.status().worker_set_restarts.len()), (Stage::Running, 0));
    assert_eq!(test.reported.iter().filter(|(reason, _)| *reason == "WorkerDisrupted").count(), 3);
}

#[test]
fn a_template_edited_after_the_leader_was_made_counts_as_an_edit_after_the_start() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    // The leader is made, and its controller dies before it writes Starting.
    test.step();
    assert_eq!((test.stage(), test.names()), (Stage::Pending, vec!["rl-learner"]));
    test.bind("rl-learner");
    for set in &mut test.job.spec.worker_sets {
        set.template.0["spec"]["hostNetwork"] = true.into();
    }
    test.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    test.settle();
    assert_eq!(test.stage(), Stage::Starting);
    assert!(test.status().holds(condition::INVALID_UPDATE));
    assert!(
        test.bodies["rl-actor-0"]["spec"]["hostNetwork"].is_null(),
        "workers are made of what the leader was made of"
    );
    // What a started job can follow is followed.
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.step();
    test.job.spec.worker_sets[0].counts = 2;
    test.settle();
    assert_eq!((test.stage(), test.status().total_workers), (Stage::Starting, 2));
    assert!(!test.status().holds(condition::INVALID_UPDATE));
}

#[test]
fn a_refused_leader_is_made_of_the_template_as_it_is_edited_meanwhile() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.trouble
        .get_or_insert_default()
        .insert("rl-learner".to_owned(), CreateFailure::Refused("exceeded quota".to_owned()));
    test.settle();
    test.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    test.trouble = Some(std::collections::BTreeMap::new());
    test.settle();
    assert_eq!(test.bodies["rl-learner"]["spec"]["hostNetwork"], true);
    assert!(test.stage() == Stage::Starting && !test.status().holds(condition::INVALID_UPDATE));
}

#[test]
fn worker_sets_of_a_started_job_may_change_their_order_come_and_go() {
    let mut job = spec(1);
    let mut judge = job.worker_sets[0].clone();
    judge.name = "judge".to_owned();
    judge.template.0["spec"]["hostNetwork"] = true.into();
    job.worker_sets.push(judge.clone());
    let mut test = TestJob::running_with(job);
    test.job.spec.worker_sets.reverse();
    test.settle();
    assert_eq!((test.calls.len(), test.status().holds(condition::INVALID_UPDATE)), (0, false));
    judge.name = "critic".to_owned();
    test.job.spec.worker_sets = vec![test.job.spec.worker_sets[1].clone(), judge];
    test.settle();
    test.bury();
    test.place_all();
    test.settle();
    assert_eq!(test.calls, ["-rl-judge-0", "+rl-critic-0"]);
    assert!(!test.status().holds(condition::INVALID_UPDATE));
}

#[test]
fn a_worker_that_ends_well_because_it_was_asked_to_go_is_made_again() {
    let mut test = TestJob::running(1);
    test.evict("rl-actor-0");
    test.ends("rl-actor-0", Phase::Failed);
    test.settle();
    test.bury();
    test.settle();
    assert_eq!((test.calls.as_slice(), test.status().ended_workers.len()), (&["+rl-actor-0".to_owned()][..], 0));
}

#[test]
fn more_counts_add_workers_and_fewer_remove_the_highest_indexes() {
    let mut test = TestJob::running(2);
    test.job.spec.worker_sets[0].counts = 4;
    test.settle();
    assert_eq!(test.calls.len(), 0, "a worker without a place is not made");
    test.place_all();
    test.settle();
    assert_eq!(test.calls, ["+rl-actor-2", "+rl-actor-3"]);
    test.ready_all();
    assert_eq!(test.status().ready.as_deref(), Some("4/4"));
    test.calls.clear();
    test.job.spec.worker_sets[0].counts = 1;
    test.settle();
    test.bury();
    assert_eq!(test.calls, ["-rl-actor-1", "-rl-actor-2", "-rl-actor-3"]);
    assert_eq!((test.names(), test.status().ready.as_deref()), (vec!["rl-actor-0", "rl-learner"], Some("1/1")));
}

#[test]
fn a_worker_of_more_counts_waits_for_its_own_dying_predecessor() {
    let mut test = TestJob::running(2);
    test.job.spec.worker_sets[0].counts = 1;
    test.settle();
    test.job.spec.worker_sets[0].counts = 2;
    test.settle();
    assert_eq!(test.calls, ["-rl-actor-1"]);
    test.bury();
    test.settle();
    assert_eq!(test.calls, ["-rl-actor-1", "+rl-actor-1"]);
}

#[test]
fn a_worker_without_a_node_is_told_of_its_new_place() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.settle();
    test.bind("rl-learner");
    test.settle();
    test.job.status.as_mut().unwrap().allocations[1].node = "other".to_owned();
    test.settle();
    assert_eq!(test.pod("rl-actor-0").allocation.as_deref(), Some("other"));
    test.bind("rl-actor-0");
    test.job.status.as_mut().unwrap().allocations[1].node = "third".to_owned();
    test.settle();
    assert_eq!(test.pod("rl-actor-0").allocation.as_deref(), Some("other"), "a bound pod stays");
}

#[test]
fn each_clean_up_policy_removes_what_it_says() {
    for (policy, left) in [
        (CleanPodPolicy::All, vec![]),
        (CleanPodPolicy::Running, vec!["rl-actor-0", "rl-learner"]),
        (CleanPodPolicy::None, vec!["rl-actor-0", "rl-actor-1", "rl-learner"]),
    ] {
        let mut test = TestJob::running(2);
        test.job.spec.clean_pod_policy = policy;
        test.ends("rl-actor-0", Phase::Succeeded);
        test.settle();
        test.ends("rl-learner", Phase::Succeeded);
        test.settle();
        test.bury();
        test.settle();
        assert_eq!(test.names(), left, "{policy:?}");
        assert_eq!(test.status().ready.as_deref(), Some("2/2"));
    }
}

#[test]
fn an_invalid_job_fails_with_the_field_and_makes_nothing() {
    let mut test = TestJob::new(spec(1));
    test.job.spec.priority = 11;
    test.settle();
    test.place_all();
    test.settle();
    assert_eq!((test.stage(), test.pods.len()), (Stage::Failed, 0));
    assert!(test.status().condition(condition::INVALID_SPEC).unwrap().message.contains("spec.priority: 11"));
    assert!(test.was_reported(condition::INVALID_SPEC));
}

#[test]
fn an_invalid_edit_of_a_started_job_is_refused_once_and_the_last_valid_spec_stays() {
    let mut test = TestJob::running(2);
    let valid = test.job.spec.clone();
    test.job.spec.worker_sets[0].counts = 0;
    test.job.metadata.generation = Some(2);
    test.settle();
    test.step();
    assert_eq!((test.stage(), test.pods.len(), test.status().total_workers), (Stage::Running, 3, 2));
    assert!(test.status().holds(condition::INVALID_UPDATE));
    assert_eq!(test.reported.iter().filter(|(reason, _)| *reason == condition::INVALID_UPDATE).count(), 1);
    assert_eq!(test.status().observed_generation, Some(2));
    test.job.spec = valid;
    test.job.spec.worker_sets[0].counts = 1;
    test.settle();
    assert!(!test.status().holds(condition::INVALID_UPDATE));
    assert_eq!(test.status().total_workers, 1, "a valid edit after it counts");
    test.job.spec.priority = 0;
    test.settle();
    assert_eq!(test.status().total_workers, 1, "and is what the next refusal falls back on");
}

#[test]
fn a_changed_template_of_a_started_job_is_refused_and_of_a_pending_one_taken() {
    let mut test = TestJob::running(1);
    test.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    test.settle();
    let found = test.status().condition(condition::INVALID_UPDATE).unwrap().message.clone();
    assert!(found.contains("spec.leader.template"), "{found}");
    test.ends("rl-learner", Phase::Failed);
    test.settle();
    test.bury();
    test.place_all();
    test.settle();
    assert!(test.bodies["rl-learner"]["spec"]["hostNetwork"].is_null(), "made again from the accepted template");
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    test.place_all();
    test.settle();
    assert_eq!(test.bodies["rl-learner"]["spec"]["hostNetwork"], true);
    assert!(test.status().condition(condition::INVALID_UPDATE).is_none());
}

#[test]
fn a_foreign_pod_of_a_wanted_name_is_a_conflict_that_passes() {
    let mut test = TestJob::running(1);
    test.pods.remove("rl-actor-0");
    test.trouble
        .get_or_insert_default()
        .insert("rl-actor-0".to_owned(), CreateFailure::Foreign("the pod has no owner".to_owned()));
    test.settle();
    let conflict = test.status().condition(condition::NAME_CONFLICT).unwrap().clone();
    assert_eq!((conflict.status.as_str(), test.stage()), ("True", Stage::Running));
    assert!(conflict.message.contains("rl-actor-0: the pod has no owner"));
    assert_eq!(test.calls, Vec::<String>::new(), "it is never deleted");
    // A controller that has just started has not tried yet: nothing is resolved so far.
    let known = test.trouble.take();
    let (status, _) = test.look();
    assert_eq!(status.condition(condition::NAME_CONFLICT), Some(&conflict));
    test.trouble = known;
    test.trouble = Some(std::collections::BTreeMap::new());
    test.settle();
    assert_eq!(
        (test.calls.as_slice(), test.status().holds(condition::NAME_CONFLICT)),
        (&["+rl-actor-0".to_owned()][..], false)
    );
}

#[test]
fn a_pod_that_can_never_be_fails_the_job_and_one_refused_for_now_is_reported() {
    let mut test = TestJob::new(spec(1));
    test.settle();
    test.place_all();
    test.trouble
        .get_or_insert_default()
        .insert("rl-learner".to_owned(), CreateFailure::Refused("exceeded quota".to_owned()));
    test.settle();
    assert!(test.status().holds(condition::POD_REFUSED) && test.stage() == Stage::Pending);
    test.trouble
        .get_or_insert_default()
        .insert("rl-learner".to_owned(), CreateFailure::Invalid("cpu: must be positive".to_owned()));
    test.settle();
    assert_eq!(test.stage(), Stage::Failed);
    assert!(test.status().message.unwrap().contains("cpu: must be positive"));
}

#[test]
fn a_pod_that_is_invalid_ends_no_job_that_has_started() {
    let invalid = |pod: &str| Some([(pod.to_owned(), CreateFailure::Invalid("no image".to_owned()))].into());
    let mut test = TestJob::running(2);
    test.ends("rl-actor-1", Phase::Failed);
    test.trouble = invalid("rl-actor-1");
    test.settle();
    assert_eq!((test.stage(), test.status().condition(condition::INVALID_SPEC)), (Stage::Running, None));
    assert_eq!(test.status().condition(condition::POD_REFUSED).unwrap().message, "rl-actor-1: no image");
    assert!(test.was_reported(condition::POD_REFUSED));
    // The leader of the next attempt.
    let mut test = TestJob::running(1);
    test.ends("rl-learner", Phase::Failed);
    test.trouble = invalid("rl-learner");
    test.settle();
    assert_eq!(test.stage(), Stage::Rescheduling);
    test.trouble = Some(Default::default());
    test.settle();
    test.bury();
    test.place_all();
    test.settle();
    test.ready_all();
    assert_eq!((test.stage(), test.status().holds(condition::POD_REFUSED)), (Stage::Running, false));
}

#[test]
fn a_deleted_job_loses_its_pods_then_its_places_then_its_finalizer() {
    let mut test = TestJob::running(2);
    test.delete_job();
    test.settle();
    assert_eq!(test.calls.len(), 3);
    assert!(test.job.metadata.finalizers.is_some());
    test.bury();
    test.settle();
    assert!(test.job.metadata.finalizers.is_some(), "the scheduler still holds its places");
    test.place(&[], ScheduleState::Unscheduled);
    test.settle();
    assert!(test.gone);
}

#[test]
fn the_pods_of_a_job_that_is_deleted_without_them_run_on() {
    let mut test = TestJob::running(2);
    test.delete_job();
    test.job.metadata.finalizers.as_mut().unwrap().push("orphan".to_owned());
    test.settle();
    assert_eq!(test.calls, [""; 0], "the garbage collector has not taken the job's name from them yet");
}

#[test]
fn a_job_deleted_in_mid_creation_makes_no_more_pods() {
    let mut test = TestJob::new(spec(2));
    test.settle();
    test.place_all();
    test.settle();
    test.bind("rl-learner");
    test.delete_job();
    test.settle();
    test.bury();
    test.place(&[], ScheduleState::Unscheduled);
    test.settle();
    assert_eq!((test.calls, test.gone), (vec!["+rl-learner".to_owned(), "-rl-learner".to_owned()], true));
}

#[test]
fn a_terminating_pod_is_waited_for_unless_its_node_is_gone_or_long_silent() {
    for (reachability, seconds) in [(NodeReachability::Gone, 30), (NodeReachability::There, 0)] {
        let mut test = TestJob::running(1);
        test.evict("rl-actor-0");
        test.pod("rl-actor-0").reachability = reachability;
        test.settle();
        assert_eq!(test.calls.len(), 0, "within its grace nothing is forced");
        test.pass(3600);
        test.settle();
        assert_eq!(test.calls.first().map(String::as_str), (seconds > 0).then_some("!rl-actor-0"), "{reachability:?}");
    }
    let mut test = TestJob::running(1);
    test.evict("rl-actor-0");
    test.pod("rl-actor-0").reachability = NodeReachability::UnreachableSince(test.now);
    test.pass(300);
    test.settle();
    assert_eq!(test.calls.len(), 0);
    test.pass(1);
    test.settle();
    assert_eq!(test.calls, ["!rl-actor-0", "+rl-actor-0"]);
}

#[test]
fn a_worker_of_a_vanished_node_is_removed_and_made_again() {
    let mut test = TestJob::running(1);
    test.pod("rl-actor-0").reachability = NodeReachability::Gone;
    test.settle();
    assert_eq!(test.calls, ["-rl-actor-0"]);
    test.pass(31);
    test.settle();
    assert_eq!(test.calls, ["-rl-actor-0", "!rl-actor-0", "+rl-actor-0"]);
    assert!(test.status().worker_set_restarts.is_empty());
}

/// Its tolerations say for how long: a node that is cut off may run it on.
#[test]
fn a_pod_that_has_ended_since_it_was_seen_is_not_deleted() {
    for is_over in [true, false] {
        let mut test = TestJob::running(1);
        test.job.spec.clean_pod_policy = CleanPodPolicy::Running;
        if is_over {
            test.ends("rl-learner", Phase::Succeeded);
        } else {
            test.pod("rl-actor-0").reachability = NodeReachability::Gone;
        }
        let (status, effects) = test.look();
        test.ends("rl-actor-0", Phase::Succeeded);
        test.write(status);
        for effect in effects {
            test.perform(effect);
        }
        test.settle();
        assert_eq!(test.calls, [""; 0], "its logs stay, and its work is done");
        assert!(is_over || test.status().ended_workers.contains_key("rl-actor-0"));
    }
}

#[test]
fn a_pod_of_a_silent_node_that_nothing_deletes_stays() {
    let mut test = TestJob::running(1);
    for pod in ["rl-actor-0", "rl-learner"] {
        test.pod(pod).reachability = NodeReachability::UnreachableSince(test.now);
    }
    test.pass(3600);
    test.settle();
    assert_eq!((test.calls.len(), test.stage()), (0, Stage::Running));
}

#[test]
fn a_leader_that_gets_another_address_is_lost_with_its_workers() {
    let mut test = TestJob::running(2);
    let known = test.status().leader_address.unwrap();
    test.pod("rl-learner").ip = None;
    test.settle();
    assert_eq!((test.calls.len(), test.stage()), (0, Stage::Running), "a kubelet may not know it for a moment");
    test.pod("rl-learner").ip = Some("10.0.7.7".to_owned());
    test.settle();
    assert_eq!((test.stage(), test.status().restarts), (Stage::Rescheduling, 1));
    assert_eq!(test.calls, ["-rl-actor-0", "-rl-actor-1", "-rl-learner"]);
    test.bury();
    test.place_all();
    test.settle();
    test.ready_all();
    assert_eq!((test.stage(), test.status().leader_address.as_ref() == Some(&known)), (Stage::Running, false));
    // The kubelet has restarted its container in the new sandbox: one event, one restart.
    let mut test = TestJob::running(1);
    test.job.spec.restart_limit = 1;
    test.restarts("rl-learner", "main", 1);
    test.pod("rl-learner").ip = Some("10.0.7.7".to_owned());
    test.settle();
    assert_eq!((test.stage(), test.status().restarts, test.status().attempt), (Stage::Rescheduling, 1, 1));
}

#[test]
fn refusals_of_thousands_of_workers_make_a_short_status() {
    let of = |count: i32, why: CreateFailure| {
        let mut test = TestJob::running(1);
        test.trouble = Some((0..count).map(|index| (format!("rl-actor-{index}"), why.clone())).collect());
        test.step();
        test
    };
    let status = of(5000, CreateFailure::Invalid("x".repeat(1500))).status();
    assert_eq!(status.condition(condition::POD_REFUSED).unwrap().message.len(), 1024);
    let test = of(5, CreateFailure::Refused("quota".to_owned()));
    let refused = test.status().condition(condition::POD_REFUSED).unwrap().message.clone();
    assert_eq!(refused, "rl-actor-0: quota; rl-actor-1: quota; rl-actor-2: quota; and 2 more");
}

#[test]
fn an_ended_job_has_seen_the_generation_that_it_is_cleaned_by() {
    let mut test = TestJob::running(1);
    test.job.spec.clean_pod_policy = CleanPodPolicy::None;
    test.ends("rl-learner", Phase::Succeeded);
    test.settle();
    assert_eq!(test.pods.len(), 2);
    test.job.spec.clean_pod_policy = CleanPodPolicy::All;
    test.job.metadata.generation = Some(7);
    test.settle();
    assert_eq!((test.calls.len(), test.status().observed_generation), (2, Some(7)));
}

#[test]
fn a_pod_of_an_older_attempt_or_without_a_readable_one_is_removed() {
    let mut test = TestJob::running(2);
    test.pod("rl-actor-0").attempt = None;
    test.pod("rl-actor-1").attempt = Some(7);
    test.settle();
    assert_eq!(test.calls, ["-rl-actor-0", "-rl-actor-1"]);
}

#[test]
fn a_worker_set_added_later_is_warned_once_of_variables_that_it_sets_itself() {
    let mut test = TestJob::running(1);
    let mut added = test.job.spec.worker_sets[0].clone();
    added.name = "late".to_owned();
    added.template = serde_json::from_value(json!({ "spec": { "containers": [
        { "name": "main", "image": "late", "env": [{ "name": "TYJOB_INDEX", "value": "7" }] },
    ] } }))
    .unwrap();
    test.job.spec.worker_sets.push(added);
    test.settle();
    test.pass(60);
    test.settle();
    let reported: Vec<_> = test.reported.iter().filter(|(reason, _)| *reason == "EnvOverridden").collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].1.contains("late/main sets TYJOB_INDEX itself"), "{reported:?}");
}

#[test]
fn a_leader_whose_pod_cannot_be_made_is_not_called_being_made() {
    for (failure, said) in [
        (
            CreateFailure::Foreign("the pod has no owner".to_owned()),
            "the name rl-learner is taken: the pod has no owner",
        ),
        (CreateFailure::Refused("exceeded quota".to_owned()), "the API server refuses it: exceeded quota"),
    ] {
        let mut test = TestJob::new(spec(1));
        test.settle();
        test.place_all();
        let (status, _) = test.look();
        assert_eq!(status.message.as_deref(), Some("the leader rl-learner is being made for node-0"));
        test.trouble = Some([("rl-learner".to_owned(), failure.clone())].into());
        let (status, _) = test.look();
        let message = status.message.unwrap();
        assert!(message.contains("cannot be made") && message.ends_with(said), "{message}");
        // Trouble of another pod is none of the leader's.
        test.trouble = Some([("rl-actor-0".to_owned(), failure)].into());
        assert!(test.look().0.message.unwrap().contains("is being made"));
    }
}
