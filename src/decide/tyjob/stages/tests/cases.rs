//! Workers, edits, clean-up and deletion.

use serde_json::json;

use super::rig::{Rig, spec};
use crate::contract::tyjob::{CleanPodPolicy, ScheduleState, Stage, condition};
use crate::decide::tyjob::stages::{NodeSight, Phase, Trouble};

#[test]
fn a_failed_worker_is_made_again_with_its_index_as_often_as_the_limit_says() {
    let mut rig = Rig::running(2);
    rig.job.spec.restart_limit = 2;
    for restart in 1..=2 {
        rig.ends("rl-actor-1", Phase::Failed);
        rig.settle();
        assert_eq!(rig.status().worker_set_restarts["actor"], restart);
        assert!(rig.pod("rl-actor-1").deleting.is_some());
        rig.bury();
        rig.settle();
        assert_eq!(rig.calls, ["-rl-actor-1", "+rl-actor-1"]);
        rig.ready_all();
        rig.calls.clear();
    }
    rig.ends("rl-actor-1", Phase::Failed);
    rig.settle();
    assert_eq!((rig.calls.len(), rig.status().worker_set_restarts["actor"]), (0, 2));
    assert!(rig.was_told("WorkerFailed") && rig.status().replacing.is_empty());
    // Gone for good, also when somebody tidies it up; until the limit is raised.
    rig.pods.remove("rl-actor-1");
    rig.settle();
    assert_eq!(rig.names(), ["rl-actor-0", "rl-learner"]);
    rig.job.spec.restart_limit = 3;
    rig.settle();
    assert_eq!(rig.names(), ["rl-actor-0", "rl-actor-1", "rl-learner"]);
}

#[test]
fn a_failure_is_counted_once_however_often_it_is_seen() {
    let mut rig = Rig::running(2);
    rig.ends("rl-actor-0", Phase::Failed);
    rig.settle();
    for _ in 0..5 {
        rig.step();
    }
    assert_eq!(rig.status().worker_set_restarts["actor"], 1);
    assert_eq!(rig.told.iter().filter(|(reason, _)| *reason == "WorkerRestarted").count(), 1);
}

#[test]
fn a_failure_is_counted_before_the_pod_is_deleted() {
    let mut rig = Rig::running(1);
    rig.ends("rl-actor-0", Phase::Failed);
    let (status, effects) = rig.look();
    assert_eq!(status.worker_set_restarts["actor"], 1);
    assert_eq!(status.replacing.len(), 1);
    // The write goes through, then the controller dies; the next one deletes and does not count again.
    rig.write(status);
    drop(effects);
    rig.settle();
    assert_eq!((rig.status().worker_set_restarts["actor"], rig.calls.len()), (1, 1));
}

#[test]
fn an_evicted_worker_is_made_again_without_being_counted() {
    let mut rig = Rig::running(2);
    rig.evict("rl-actor-0");
    rig.settle();
    assert_eq!((rig.calls.len(), rig.status().ready.as_deref()), (0, Some("1/2")));
    // A killed container fails its pod on the way out.
    rig.pod("rl-actor-0").phase = Phase::Failed;
    rig.settle();
    rig.bury();
    rig.settle();
    assert_eq!(rig.calls, ["+rl-actor-0"]);
    assert!(rig.status().worker_set_restarts.is_empty());
}

#[test]
fn a_worker_that_fails_for_the_sake_of_others_is_made_again_without_being_counted() {
    let mut job = spec(1);
    job.restart_limit = 0;
    let mut rig = Rig::running_with(job);
    for _ in 0..3 {
        rig.calls.clear();
        rig.ends("rl-actor-0", Phase::Failed);
        rig.pod("rl-actor-0").disrupted = true;
        rig.settle();
        rig.bury();
        rig.settle();
        assert_eq!(rig.calls, ["-rl-actor-0", "+rl-actor-0"]);
        rig.ready_all();
    }
    assert_eq!((rig.stage(), rig.status().worker_set_restarts.len()), (Stage::Running, 0));
    assert_eq!(rig.told.iter().filter(|(reason, _)| *reason == "WorkerDisrupted").count(), 3);
}

#[test]
fn a_template_that_is_edited_after_the_leader_was_made_counts_as_an_edit_after_the_start() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    // The leader is made, and its controller dies before it writes Starting.
    rig.step();
    assert_eq!((rig.stage(), rig.names()), (Stage::Pending, vec!["rl-learner"]));
    rig.bind("rl-learner");
    for set in &mut rig.job.spec.worker_sets {
        set.template.0["spec"]["hostNetwork"] = true.into();
    }
    rig.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    rig.settle();
    assert_eq!(rig.stage(), Stage::Starting);
    assert!(rig.status().holds(condition::INVALID_UPDATE));
    assert!(
        rig.bodies["rl-actor-0"]["spec"]["hostNetwork"].is_null(),
        "workers are made of what the leader was made of"
    );
    // What a started job can follow is followed.
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.step();
    rig.job.spec.worker_sets[0].counts = 2;
    rig.settle();
    assert_eq!((rig.stage(), rig.status().total_workers), (Stage::Starting, 2));
    assert!(!rig.status().holds(condition::INVALID_UPDATE));
}

#[test]
fn a_refused_leader_is_made_of_the_template_as_it_is_edited_meanwhile() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.trouble.get_or_insert_default().insert("rl-learner".to_owned(), Trouble::Refused("exceeded quota".to_owned()));
    rig.settle();
    rig.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    rig.trouble = Some(std::collections::BTreeMap::new());
    rig.settle();
    assert_eq!(rig.bodies["rl-learner"]["spec"]["hostNetwork"], true);
    assert!(rig.stage() == Stage::Starting && !rig.status().holds(condition::INVALID_UPDATE));
}

#[test]
fn worker_sets_of_a_started_job_may_change_their_order_come_and_go() {
    let mut job = spec(1);
    let mut judge = job.worker_sets[0].clone();
    judge.name = "judge".to_owned();
    judge.template.0["spec"]["hostNetwork"] = true.into();
    job.worker_sets.push(judge.clone());
    let mut rig = Rig::running_with(job);
    rig.job.spec.worker_sets.reverse();
    rig.settle();
    assert_eq!((rig.calls.len(), rig.status().holds(condition::INVALID_UPDATE)), (0, false));
    judge.name = "critic".to_owned();
    rig.job.spec.worker_sets = vec![rig.job.spec.worker_sets[1].clone(), judge];
    rig.settle();
    rig.bury();
    rig.place_all();
    rig.settle();
    assert_eq!(rig.calls, ["-rl-judge-0", "+rl-critic-0"]);
    assert!(!rig.status().holds(condition::INVALID_UPDATE));
}

#[test]
fn a_worker_that_ends_well_because_it_was_asked_to_go_is_made_again() {
    let mut rig = Rig::running(1);
    rig.evict("rl-actor-0");
    rig.ends("rl-actor-0", Phase::Succeeded);
    rig.pod("rl-actor-0").stopped = true;
    rig.settle();
    rig.bury();
    rig.settle();
    assert_eq!((rig.calls.as_slice(), rig.status().ended_workers.len()), (&["+rl-actor-0".to_owned()][..], 0));
}

#[test]
fn more_counts_add_workers_and_fewer_remove_the_highest_indexes() {
    let mut rig = Rig::running(2);
    rig.job.spec.worker_sets[0].counts = 4;
    rig.settle();
    assert_eq!(rig.calls.len(), 0, "a worker without a place is not made");
    rig.place_all();
    rig.settle();
    assert_eq!(rig.calls, ["+rl-actor-2", "+rl-actor-3"]);
    rig.ready_all();
    assert_eq!(rig.status().ready.as_deref(), Some("4/4"));
    rig.calls.clear();
    rig.job.spec.worker_sets[0].counts = 1;
    rig.settle();
    rig.bury();
    assert_eq!(rig.calls, ["-rl-actor-1", "-rl-actor-2", "-rl-actor-3"]);
    assert_eq!((rig.names(), rig.status().ready.as_deref()), (vec!["rl-actor-0", "rl-learner"], Some("1/1")));
}

#[test]
fn a_worker_of_more_counts_waits_for_its_own_dying_predecessor() {
    let mut rig = Rig::running(2);
    rig.job.spec.worker_sets[0].counts = 1;
    rig.settle();
    rig.job.spec.worker_sets[0].counts = 2;
    rig.settle();
    assert_eq!(rig.calls, ["-rl-actor-1"]);
    rig.bury();
    rig.settle();
    assert_eq!(rig.calls, ["-rl-actor-1", "+rl-actor-1"]);
}

#[test]
fn a_worker_without_a_node_is_told_of_its_new_place() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.bind("rl-learner");
    rig.settle();
    rig.job.status.as_mut().unwrap().allocations[1].node = "other".to_owned();
    rig.settle();
    assert_eq!(rig.pod("rl-actor-0").allocation.as_deref(), Some("other"));
    rig.bind("rl-actor-0");
    rig.job.status.as_mut().unwrap().allocations[1].node = "third".to_owned();
    rig.settle();
    assert_eq!(rig.pod("rl-actor-0").allocation.as_deref(), Some("other"), "a bound pod stays");
}

#[test]
fn each_clean_up_policy_removes_what_it_says() {
    for (policy, left) in [
        (CleanPodPolicy::All, vec![]),
        (CleanPodPolicy::Running, vec!["rl-actor-0", "rl-learner"]),
        (CleanPodPolicy::None, vec!["rl-actor-0", "rl-actor-1", "rl-learner"]),
    ] {
        let mut rig = Rig::running(2);
        rig.job.spec.clean_pod_policy = policy;
        rig.ends("rl-actor-0", Phase::Succeeded);
        rig.settle();
        rig.ends("rl-learner", Phase::Succeeded);
        rig.settle();
        rig.bury();
        rig.settle();
        assert_eq!(rig.names(), left, "{policy:?}");
        assert_eq!(rig.status().ready.as_deref(), Some("2/2"));
    }
}

#[test]
fn an_invalid_job_fails_with_the_field_and_makes_nothing() {
    let mut rig = Rig::new(spec(1));
    rig.job.spec.priority = 11;
    rig.settle();
    rig.place_all();
    rig.settle();
    assert_eq!((rig.stage(), rig.pods.len()), (Stage::Failed, 0));
    assert!(rig.status().condition(condition::INVALID_SPEC).unwrap().message.contains("spec.priority: 11"));
    assert!(rig.was_told(condition::INVALID_SPEC));
}

#[test]
fn an_invalid_edit_of_a_started_job_is_refused_once_and_the_last_valid_spec_stays() {
    let mut rig = Rig::running(2);
    let valid = rig.job.spec.clone();
    rig.job.spec.worker_sets[0].counts = 0;
    rig.job.metadata.generation = Some(2);
    rig.settle();
    rig.step();
    assert_eq!((rig.stage(), rig.pods.len(), rig.status().total_workers), (Stage::Running, 3, 2));
    assert!(rig.status().holds(condition::INVALID_UPDATE));
    assert_eq!(rig.told.iter().filter(|(reason, _)| *reason == condition::INVALID_UPDATE).count(), 1);
    assert_eq!(rig.status().observed_generation, Some(2));
    rig.job.spec = valid;
    rig.job.spec.worker_sets[0].counts = 1;
    rig.settle();
    assert!(!rig.status().holds(condition::INVALID_UPDATE));
    assert_eq!(rig.status().total_workers, 1, "a valid edit after it counts");
    rig.job.spec.priority = 0;
    rig.settle();
    assert_eq!(rig.status().total_workers, 1, "and is what the next refusal falls back on");
}

#[test]
fn a_changed_template_of_a_started_job_is_refused_and_of_a_pending_one_taken() {
    let mut rig = Rig::running(1);
    rig.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    rig.settle();
    let found = rig.status().condition(condition::INVALID_UPDATE).unwrap().message.clone();
    assert!(found.contains("spec.leader.template"), "{found}");
    rig.ends("rl-learner", Phase::Failed);
    rig.settle();
    rig.bury();
    rig.place_all();
    rig.settle();
    assert!(rig.bodies["rl-learner"]["spec"]["hostNetwork"].is_null(), "made anew from the accepted template");
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.job.spec.leader.template.0["spec"]["hostNetwork"] = true.into();
    rig.place_all();
    rig.settle();
    assert_eq!(rig.bodies["rl-learner"]["spec"]["hostNetwork"], true);
    assert!(rig.status().condition(condition::INVALID_UPDATE).is_none());
}

#[test]
fn a_foreign_pod_of_a_wanted_name_is_a_conflict_that_passes() {
    let mut rig = Rig::running(1);
    rig.pods.remove("rl-actor-0");
    rig.trouble
        .get_or_insert_default()
        .insert("rl-actor-0".to_owned(), Trouble::Foreign("the pod is owned by nobody".to_owned()));
    rig.settle();
    let conflict = rig.status().condition(condition::NAME_CONFLICT).unwrap().clone();
    assert_eq!((conflict.status.as_str(), rig.stage()), ("True", Stage::Running));
    assert!(conflict.message.contains("rl-actor-0: the pod is owned by nobody"));
    assert_eq!(rig.calls, Vec::<String>::new(), "it is never deleted");
    // A controller that has just started has not tried yet: nothing is resolved so far.
    let known = rig.trouble.take();
    let (status, _) = rig.look();
    assert_eq!(status.condition(condition::NAME_CONFLICT), Some(&conflict));
    rig.trouble = known;
    rig.trouble = Some(std::collections::BTreeMap::new());
    rig.settle();
    assert_eq!(
        (rig.calls.as_slice(), rig.status().holds(condition::NAME_CONFLICT)),
        (&["+rl-actor-0".to_owned()][..], false)
    );
}

#[test]
fn a_pod_that_can_never_be_fails_the_job_and_one_that_is_refused_for_now_is_told() {
    let mut rig = Rig::new(spec(1));
    rig.settle();
    rig.place_all();
    rig.trouble.get_or_insert_default().insert("rl-learner".to_owned(), Trouble::Refused("exceeded quota".to_owned()));
    rig.settle();
    assert!(rig.status().holds(condition::POD_REFUSED) && rig.stage() == Stage::Pending);
    rig.trouble
        .get_or_insert_default()
        .insert("rl-learner".to_owned(), Trouble::Invalid("cpu: must be positive".to_owned()));
    rig.settle();
    assert_eq!(rig.stage(), Stage::Failed);
    assert!(rig.status().message.unwrap().contains("cpu: must be positive"));
}

#[test]
fn a_deleted_job_loses_its_pods_then_its_places_then_its_finalizer() {
    let mut rig = Rig::running(2);
    rig.delete_job();
    rig.settle();
    assert_eq!(rig.calls.len(), 3);
    assert!(rig.job.metadata.finalizers.is_some());
    rig.bury();
    rig.settle();
    assert!(rig.job.metadata.finalizers.is_some(), "the scheduler still holds its places");
    rig.place(&[], ScheduleState::Unscheduled);
    rig.settle();
    assert!(rig.gone);
}

#[test]
fn a_job_deleted_in_mid_creation_makes_no_more_pods() {
    let mut rig = Rig::new(spec(2));
    rig.settle();
    rig.place_all();
    rig.settle();
    rig.bind("rl-learner");
    rig.delete_job();
    rig.settle();
    rig.bury();
    rig.place(&[], ScheduleState::Unscheduled);
    rig.settle();
    assert_eq!((rig.calls, rig.gone), (vec!["+rl-learner".to_owned(), "-rl-learner".to_owned()], true));
}

#[test]
fn a_dying_pod_is_waited_for_unless_its_node_is_gone_or_silent_for_over_five_minutes() {
    for (sight, seconds) in [(NodeSight::Gone, 30), (NodeSight::There, 0)] {
        let mut rig = Rig::running(1);
        rig.evict("rl-actor-0");
        rig.pod("rl-actor-0").sight = sight;
        rig.settle();
        assert_eq!(rig.calls.len(), 0, "within its grace nothing is forced");
        rig.pass(3600);
        rig.settle();
        assert_eq!(rig.calls.first().map(String::as_str), (seconds > 0).then_some("!rl-actor-0"), "{sight:?}");
    }
    let mut rig = Rig::running(1);
    rig.evict("rl-actor-0");
    rig.pod("rl-actor-0").sight = NodeSight::UnreachableSince(rig.now);
    rig.pass(300);
    rig.settle();
    assert_eq!(rig.calls.len(), 0);
    rig.pass(1);
    rig.settle();
    assert_eq!(rig.calls, ["!rl-actor-0", "+rl-actor-0"]);
}

#[test]
fn a_worker_of_a_vanished_node_is_removed_and_made_again() {
    let mut rig = Rig::running(1);
    rig.pod("rl-actor-0").sight = NodeSight::Gone;
    rig.settle();
    assert_eq!(rig.calls, ["-rl-actor-0"]);
    rig.pass(31);
    rig.settle();
    assert_eq!(rig.calls, ["-rl-actor-0", "!rl-actor-0", "+rl-actor-0"]);
    assert!(rig.status().worker_set_restarts.is_empty());
}

#[test]
fn a_pod_of_an_older_attempt_or_without_a_readable_one_is_removed() {
    let mut rig = Rig::running(2);
    rig.pod("rl-actor-0").attempt = None;
    rig.pod("rl-actor-1").attempt = Some(7);
    rig.settle();
    assert_eq!(rig.calls, ["-rl-actor-0", "-rl-actor-1"]);
}

#[test]
fn a_worker_set_that_is_added_later_is_told_of_the_variables_that_it_sets_itself_once() {
    let mut rig = Rig::running(1);
    let mut added = rig.job.spec.worker_sets[0].clone();
    added.name = "late".to_owned();
    added.template = serde_json::from_value(json!({ "spec": { "containers": [
        { "name": "main", "image": "late", "env": [{ "name": "TYJOB_INDEX", "value": "7" }] },
    ] } }))
    .unwrap();
    rig.job.spec.worker_sets.push(added);
    rig.settle();
    rig.pass(60);
    rig.settle();
    let told: Vec<_> = rig.told.iter().filter(|(reason, _)| *reason == "EnvOverridden").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains("late/main sets TYJOB_INDEX itself"), "{told:?}");
}
