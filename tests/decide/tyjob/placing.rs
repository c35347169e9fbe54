//! Jobs placed by the engine: nodes by policy, what is kept, and how the pods take their places over.

use crate::harness::tyjobs::key;
use crate::prelude::*;

#[test]
fn bin_pack_fills_the_fullest_node_first() {
    let mut jobs = TestJobs::uneven();
    jobs.run("rl", CPU, (4, CPU), |_| {});
    assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledSucceed));
    let (pods, nodes): (Vec<_>, Vec<_>) = jobs.places("rl").into_iter().unzip();
    assert_eq!(pods, ["actor-0", "actor-1", "actor-2", "actor-3", "learner"]);
    assert_eq!(nodes, ["c", "c", "c", "b", "c"]);
    assert_eq!(jobs.checked().facts("rl").allocations[0].pod, "rl-learner", "the leader is listed first");
}

#[test]
fn job_affinity_goes_where_all_of_the_job_fits_and_stays_there() {
    let mut jobs = TestJobs::uneven();
    jobs.run("rl", CPU, (6, CPU), |spec| spec.basic = BasicPolicy::JobAffinity);
    let on = |jobs: &TestJobs, name: &str, node: &str, pods: usize| {
        let places = jobs.places(name);
        assert!(places.len() == pods && places.values().all(|there| there == node), "{places:?}");
    };
    on(&jobs, "rl", "a", 7);
    // c has four left, a five, b six: only b takes all six.
    jobs.run("two", CPU, (5, CPU), |spec| spec.basic = BasicPolicy::JobAffinity);
    on(&jobs, "two", "b", 6);
    jobs.change("two", |facts| facts.stage = Some(Stage::Failed));
    // a and b take all five: a is the fuller one.
    jobs.run("three", CPU, (4, CPU), |spec| spec.basic = BasicPolicy::JobAffinity);
    on(&jobs, "three", "a", 5);
}

#[test]
fn a_gang_is_placed_whole_or_not_at_all() {
    let mut jobs = TestJobs::on("a", 4, 0);
    jobs.run("rl", CPU, (4, CPU), |spec| spec.basic = BasicPolicy::Gang);
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::Unscheduled), 0));
    tells(jobs.message("rl"), ["all are needed", "insufficient cpu"]);
    jobs.node("b", 1, 0).cluster.wait(2);
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::ScheduledSucceed), 5));
    jobs.check();
}

#[test]
fn a_job_starts_with_its_minimum_and_the_rest_follows() {
    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.run("rl", CPU, (4, CPU), |spec| spec.min_workers = 2);
    assert_eq!(jobs.stand("rl"), (Some(ScheduleState::ScheduledPartly), 3));
    assert_eq!(jobs.start("rl").node("b", 8, 0).after(2).stand("rl"), (Some(ScheduleState::ScheduledSucceed), 5));
    assert_eq!((jobs.controller("rl").cluster.bound(), jobs.reserved()), (5, 0));
    jobs.check();
}

#[test]
fn below_the_minimum_nothing_is_kept() {
    let mut jobs = TestJobs::on("a", 2, 0);
    jobs.run("rl", CPU, (4, CPU), |spec| spec.min_workers = 2);
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::Unscheduled), 0));
    assert!(jobs.facts("rl").allocations.is_empty());
    assert!(!jobs.facts("rl").scheduled.as_ref().unwrap().holds);
    tells(jobs.message("rl"), ["2 are needed"]);
}

#[test]
fn pods_take_their_places_over_and_end_up_bound_with_their_devices() {
    let mut jobs = TestJobs::on_each(&["a", "b"], 8, 4);
    let gpus: &[(&str, &str)] = &[("cpu", "1"), ("nvidia.com/gpu", "2")];
    jobs.run("rl", gpus, (3, gpus), |_| {});
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::ScheduledSucceed), 4));
    // What is reserved is no other job's.
    assert_eq!(jobs.cluster.comes("alone", ONE).node_of("alone"), None);
    let places = jobs.places("rl");
    assert_eq!(jobs.start("rl").reserved(), 0);
    for (short, node) in places {
        let name = format!("rl-{short}");
        assert_eq!(jobs.cluster.node_of(&name), Some(node.as_str()), "{name}");
        assert_eq!(jobs.cluster.devices_of(&name).of(&DeviceType::Gpu).len(), 2, "{name}");
    }
    jobs.check();
}

#[test]
fn a_forged_claim_counts_for_nothing() {
    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.run("rl", CPU, (2, CPU), |_| {});
    assert_eq!(jobs.reserved(), 3);
    let claim = |uid: &str, job: &str| Some(Arc::new(JobClaim { name: job.into(), uid: uid.into(), attempt: Some(0) }));
    // Of no job; of the job by name alone; of the job, but it asks for no such pod.
    for (name, claim) in
        [("forged", claim("uid-no", "no")), ("rl-learner", claim("uid-x", "rl")), ("rl-actor-9", claim("uid-rl", "rl"))]
    {
        jobs.cluster.comes_as(name, CPU, |facts| facts.spec.job = claim);
        assert_eq!(jobs.cluster.node_of(name), None, "the room is the job's");
        jobs.cluster.delete(name);
    }
    assert_eq!(jobs.reserved(), 3);
    // With room beside the job it is a pod like any other.
    jobs.node("b", 1, 0).cluster.pod_as("forged", CPU, |facts| facts.spec.job = claim("uid-no", "no"));
    assert_eq!(jobs.cluster.after(1).node_of("forged"), Some("b"));
}

#[test]
fn the_smaller_dominant_share_goes_first_where_both_ask_for_drf() {
    let mut jobs = TestJobs::on("a", 10, 0);
    // Not before both are there.
    jobs.cluster.change_node("a", |facts| facts.unschedulable = true);
    let large: &[(&str, &str)] = &[("cpu", "4")];
    let small: &[(&str, &str)] = &[("cpu", "3")];
    let drf = |spec: &mut baton::decide::tyjob::placement::JobSpec| spec.queue = JobQueuePolicy::Drf;
    jobs.run("a-large", large, (1, large), drf).run("b-small", small, (1, small), drf);
    jobs.cluster.change_node("a", |facts| facts.unschedulable = false);
    assert_eq!(jobs.after(2).state("b-small"), Some(ScheduleState::ScheduledSucceed));
    assert_eq!(jobs.state("a-large"), Some(ScheduleState::Unscheduled));
}

#[test]
fn a_job_that_never_fits_fails_after_the_grace_and_not_before() {
    let mut jobs = TestJobs::on("a", 4, 0);
    let large: &[(&str, &str)] = &[("cpu", "5")];
    jobs.run("rl", large, (1, CPU), |_| {});
    assert_eq!(jobs.after(298).state("rl"), Some(ScheduleState::Unscheduled));
    assert_eq!(jobs.after(4).state("rl"), Some(ScheduleState::ScheduledFailed));
    tells(jobs.message("rl"), ["the leader learner fits on none of 1 nodes"]);
    // A larger node comes before the controller has ended the job.
    jobs.node("b", 8, 0);
    assert_eq!(jobs.after(2).state("rl"), Some(ScheduleState::ScheduledSucceed));
}

#[test]
fn a_job_that_only_waits_for_others_to_leave_never_fails() {
    let mut jobs = TestJobs::on("a", 4, 0);
    jobs.cluster.pod_as("taken", &[("cpu", "4")], |facts| facts.handoff.node = Some("a".into()));
    jobs.run("rl", CPU, (3, CPU), |spec| spec.basic = BasicPolicy::Gang);
    jobs.cluster.change_node("a", |facts| facts.unschedulable = true);
    assert_eq!(jobs.after(400).state("rl"), Some(ScheduleState::Unscheduled), "cordoned nodes count");
    jobs.cluster.change_node("a", |facts| facts.unschedulable = false).finish("taken");
    assert_eq!(jobs.after(2).state("rl"), Some(ScheduleState::ScheduledSucceed));
}

#[test]
fn an_invalid_job_and_one_that_has_ended_get_nothing() {
    let mut jobs = TestJobs::on("a", 8, 0);
    let mut invalid = jobs.job("bad", CPU, (1, CPU));
    (invalid.spec, invalid.stage) = (Err("spec.leader.name: empty".into()), None);
    jobs.submit(invalid).run("rl", CPU, (2, CPU), |_| {});
    assert_eq!((jobs.state("bad"), jobs.reserved()), (None, 3), "the controller ends it");
    // The controller has seen it and has nothing against it: only the scheduler knows.
    jobs.change("bad", |facts| facts.stage = Some(Stage::Pending));
    assert_eq!((jobs.state("bad"), jobs.message("bad")), (Some(ScheduleState::Unscheduled), "spec.leader.name: empty"));
    jobs.change("rl", |facts| facts.stage = Some(Stage::Failed));
    assert_eq!(jobs.reserved(), 0);
    let reported = jobs.cluster.explain_job(&key("rl")).unwrap();
    assert_eq!(reported.class, "over");
    assert!(reported.message.starts_with("the job is over and holds nothing; `baton get jobs ml/rl"), "{reported:?}");
    assert!(reported.seats.is_empty() && reported.dominant_resource.is_none(), "{reported:?}");
    jobs.check();
}

#[test]
fn what_is_explained_names_turn_share_ranks_and_refusals() {
    let mut jobs = TestJobs::uneven();
    let large: &[(&str, &str)] = &[("cpu", "13")];
    jobs.run("rl", CPU, (3, large), |_| {});
    let reported = jobs.cluster.explain_job(&key("rl")).unwrap();
    assert_eq!(
        (reported.class.as_str(), reported.turn, reported.dominant_resource.as_deref()),
        ("waiting", Some((1, 1)), Some("cpu"))
    );
    assert!((reported.dominant_share - 40.0 / 36.0).abs() < 1e-9);
    assert_eq!(reported.seats.len(), 2, "pods that are alike are reported together");
    let leader: Vec<&str> = reported.seats[0].nodes.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(leader, ["c", "b", "a"], "the fullest first");
    assert_eq!(reported.seats[1].pods, 3);
    assert!(reported.seats[1].nodes.iter().all(|node| node.refused.as_deref() == Some("insufficient cpu")));
    assert!(jobs.cluster.explain_job(&PodKey::new("ml", "none")).is_none());
}
