//! Places that become void, attempts that end, schedulers that restart, writes that fail.

use baton::contract::tyjob::WorkerEnd;
use baton::decide::world::Place;

use crate::harness::tyjobs::key as job_key;
use crate::prelude::*;

fn two_nodes() -> TestJobs {
    TestJobs::on_each(&["a", "b"], 4, 0)
}

/// The same, with a job of so many workers.
fn two_nodes_with(workers: i32) -> TestJobs {
    let mut jobs = two_nodes();
    jobs.run("rl", CPU, (workers, CPU), |_| {});
    jobs
}

#[test]
fn a_leader_place_that_is_not_used_in_time_is_given_up_and_found_again() {
    let mut jobs = two_nodes_with(1);
    assert_eq!(jobs.places("rl")["learner"], "a");
    assert_eq!(jobs.cluster.after(59).stats().jobs.places_void, 0);
    jobs.cluster.change_node("a", |facts| facts.unschedulable = true);
    assert_eq!(jobs.after(3).places("rl")["learner"], "b");
    assert_eq!(jobs.places("rl")["actor-0"], "a", "no pod waits for it: there is no leader's address yet");
    assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledSucceed));
}

/// Four nodes of eight GPUs, all but the first full of small pods, and a gang that needs two nodes.
fn beside_a_large_gang() -> TestJobs {
    let mut jobs = TestJobs::on_each(&["n0", "n1", "n2", "n3"], 64, 8);
    for (node, minor) in ["n1", "n2", "n3"].into_iter().flat_map(|node| (0..8).map(move |minor| (node, minor))) {
        jobs.cluster.bound_by_another(&format!("{node}-{minor}"), node, minor);
    }
    for name in ["big-0", "big-1"] {
        jobs.cluster
            .pod_as(name, &[(key::NVIDIA_GPU, "8")], |facts| facts.spec.gang = declared("ml", &gang("big", "2", &[])));
    }
    jobs.cluster.settle();
    jobs
}

impl TestJobs {
    fn kept(&self) -> Vec<&str> {
        self.cluster.world().nodes().filter(|(_, node)| node.kept_for.is_some()).map(|(_, node)| &*node.name).collect()
    }
}

#[test]
fn a_pod_takes_its_place_on_a_node_that_is_kept_for_a_gang_since() {
    let mut jobs = beside_a_large_gang();
    jobs.cluster.wait(580);
    jobs.run("rl", CPU, (1, &[(key::NVIDIA_GPU, "8")]), |_| {});
    assert_eq!(jobs.places("rl")["actor-0"], "n0");
    assert!(jobs.controller("rl").after(40).kept().contains(&"n0"), "{:?}", jobs.kept());
    jobs.leader_up("rl").controller("rl");
    assert_eq!(jobs.cluster.node_of("rl-actor-0"), Some("n0"), "every pod that has a place keeps it");
    assert!(jobs.kept().contains(&"n0"), "the node is kept on");
}

#[test]
fn a_job_of_higher_priority_gets_places_on_kept_nodes() {
    let mut jobs = beside_a_large_gang();
    assert!(jobs.after(620).kept().contains(&"n0"), "{:?}", jobs.kept());
    jobs.cluster.priority_class("high", 9);
    for (name, class, places) in [("low", None, 0), ("high", Some("high"), 2)] {
        jobs.run(name, CPU, (1, &[(key::NVIDIA_GPU, "8")]), |spec| {
            spec.basic = BasicPolicy::Gang;
            spec.parts.iter_mut().for_each(|part| part.ask.class = class.map(Into::into));
        });
        assert_eq!(jobs.after(2).places(name).len(), places, "{name}: {}", jobs.message(name));
    }
}

#[test]
fn a_place_has_no_device_of_a_pod_that_another_leader_has_bound() {
    let mut jobs = TestJobs::on("a", 4, 2);
    jobs.run("rl", CPU, (1, &[(key::NVIDIA_GPU, "1")]), |_| {});
    let held = |jobs: &TestJobs| -> Vec<String> {
        let reserved = jobs.cluster.world().pods().filter(|pod| matches!(pod.place, Place::Assumed(_)));
        let devices = reserved.filter_map(|pod| pod.devices.as_ref()).flat_map(|held| held.devices());
        devices.map(|entry| entry.id.to_string()).collect()
    };
    let first = held(&jobs);
    assert_eq!(first.len(), 1);
    let minor = if first[0] == "GPU-a-0" { 0 } else { 1 };
    jobs.cluster.bound_by_another("theirs", "a", minor);
    jobs.cluster.settle();
    assert_eq!((&*jobs.places("rl")["actor-0"], held(&jobs)), ("a", vec![format!("GPU-a-{}", 1 - minor)]));
    jobs.cluster.bound_by_another("theirs-too", "a", 1 - minor);
    assert_eq!((jobs.settled().places("rl").get("actor-0"), held(&jobs)), (None, vec![]), "{}", jobs.message("rl"));
}

#[test]
fn worker_places_run_out_only_once_the_leader_has_an_address() {
    let mut jobs = two_nodes_with(2);
    jobs.controller("rl");
    assert_eq!(jobs.cluster.after(300).stats().jobs.places_void, 0);
    assert_eq!((jobs.leader_up("rl").after(59).cluster.stats().jobs.places_void, jobs.reserved()), (0, 2));
    assert_eq!(jobs.cluster.after(3).stats().jobs.places_void, 2);
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::ScheduledSucceed), 2), "placed again");
}

#[test]
fn a_pod_starts_in_the_room_of_a_place_that_its_own_pod_cannot_take() {
    let mut jobs = TestJobs::on("a", 4, 0);
    jobs.run("rl", CPU, (1, CPU), |_| {});
    jobs.cluster.comes_as("waits", &[("cpu", "3")], |facts| {
        facts.spec.tolerations =
            vec![Toleration { key: "node.kubernetes.io/unschedulable".into(), ..Toleration::default() }];
    });
    jobs.cluster.change_node("a", |facts| facts.unschedulable = true).settle();
    assert_eq!((jobs.places("rl").len(), jobs.cluster.node_of("waits")), (2, None));
    jobs.controller("rl");
    assert_eq!((jobs.cluster.stats().jobs.places_void, jobs.cluster.node_of("waits")), (1, Some("a")));
}

#[test]
fn a_vanished_node_voids_its_places_and_only_those() {
    let mut jobs = two_nodes_with(5);
    jobs.start("rl");
    let before = jobs.places("rl");
    assert_eq!(before.values().filter(|node| *node == "b").count(), 2);
    jobs.cluster.loses_node("b");
    for (short, node) in &before {
        if node == "b" {
            jobs.cluster.delete(&format!("rl-{short}"));
        }
    }
    assert_eq!(jobs.after(2).stand("rl"), (Some(ScheduleState::ScheduledPartly), 4));
    jobs.node("c", 4, 0);
    let after = jobs.after(2).places("rl");
    assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledSucceed));
    assert!(before.iter().all(|(pod, node)| after[pod] == if node == "a" { "a" } else { "c" }), "{after:?}");
    assert_eq!((jobs.controller("rl").cluster.bound(), jobs.reserved()), (6, 0));
    jobs.check();
}

#[test]
fn another_attempt_voids_every_place_and_the_job_is_placed_again() {
    let mut jobs = two_nodes_with(2);
    jobs.start("rl").change("rl", |facts| {
        facts.attempt = 1;
        facts.stage = Some(Stage::Rescheduling);
        facts.has_address = false;
    });
    assert_eq!((jobs.after(1).state("rl"), jobs.reserved()), (Some(ScheduleState::ScheduledSucceed), 3));
    assert!(jobs.facts("rl").allocations.iter().all(|place| place.attempt == 1));
    // The pods of the first attempt go, those of the second take their places.
    ["rl-learner", "rl-actor-0", "rl-actor-1"].into_iter().for_each(|name| _ = jobs.cluster.delete(name));
    assert_eq!((jobs.start("rl").cluster.bound(), jobs.reserved()), (3, 0));
    jobs.check();
}

#[test]
fn a_former_pod_that_is_not_gone_yet_does_not_use_up_the_time_of_the_place() {
    let mut jobs = two_nodes_with(1);
    jobs.start("rl").change("rl", |facts| {
        facts.attempt = 1;
        facts.stage = Some(Stage::Rescheduling);
        facts.has_address = false;
    });
    assert_eq!(jobs.cluster.after(200).stats().jobs.places_void, 0);
}

#[test]
fn a_restarted_scheduler_rebuilds_the_reservations_from_the_status_alone() {
    let mut jobs = TestJobs::on("a", 64, 8);
    let gpus: &[(&str, &str)] = &[("nvidia.com/gpu", "2")];
    jobs.run("rl", gpus, (3, gpus), |_| {}).controller("rl");
    let before = jobs.facts("rl").clone();
    jobs.cluster.restart();
    assert_eq!(jobs.reserved(), 3, "the leader is bound, the workers' room is kept");
    assert_eq!(jobs.cluster.comes("thief", ONE).node_of("thief"), None);
    assert_eq!(jobs.facts("rl"), &before, "nothing is written that stands there already");
    assert_eq!((jobs.leader_up("rl").controller("rl").cluster.bound(), jobs.reserved()), (4, 0));
    jobs.check();
}

#[test]
fn a_restarted_scheduler_keeps_places_beside_a_pod_with_pending_victims() {
    let mut jobs = TestJobs::on("a", 64, 8);
    let gpus = |count| [("nvidia.com/gpu", count)];
    jobs.cluster.comes("low", &gpus("6"));
    jobs.serve().run("rl", &gpus("1"), (1, &gpus("1")), |_| {});
    let places = jobs.places("rl");
    assert_eq!((places.len(), jobs.reserved()), (2, 2));
    jobs.cluster.comes_as("high", &gpus("6"), |facts| facts.spec.priority = 9);
    assert_eq!(jobs.cluster.evicted, ["low"]);
    jobs.cluster.restart();
    jobs.cluster.settle();
    assert_eq!((jobs.places("rl"), jobs.reserved(), jobs.cluster.stats().jobs.places_void), (places, 2, 0));
    jobs.cluster.goes("low");
    assert_eq!(jobs.serve().cluster.node_of("high"), Some("a"));
    assert_eq!((jobs.start("rl").cluster.bound(), jobs.reserved()), (3, 0));
    jobs.check();
}

#[test]
fn a_deleted_job_gives_its_places_back_and_says_so() {
    let mut jobs = two_nodes_with(2);
    jobs.change("rl", |facts| facts.deleting = true);
    assert_eq!((jobs.reserved(), jobs.facts("rl").allocations.len()), (0, 0), "its finalizer can go");
    assert!(jobs.remove("rl").checked().cluster.job_records().is_empty());
}

#[test]
fn a_worker_that_fails_keeps_its_place_for_the_next_one() {
    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.run("rl", CPU, (2, CPU), |_| {}).start("rl");
    jobs.cluster.change_pod("rl-actor-0", |facts| facts.handoff.phase = Phase::Failed).comes("thief", CPU);
    assert_eq!((jobs.cluster.node_of("thief"), jobs.reserved()), (None, 1));
    jobs.cluster.goes("rl-actor-0");
    jobs.controller("rl");
    assert_eq!((jobs.cluster.node_of("rl-actor-0"), jobs.reserved()), (Some("a"), 0));
}

#[test]
fn a_worker_that_has_done_its_work_gives_its_room_up_and_stays_listed() {
    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.run("rl", CPU, (2, CPU), |_| {}).start("rl").cluster.finish("rl-actor-0");
    jobs.change("rl", |facts| _ = facts.ended.insert("rl-actor-0".into(), WorkerEnd::Succeeded));
    assert_eq!(jobs.cluster.comes("next", CPU).node_of("next"), Some("a"));
    assert_eq!(jobs.stand("rl"), (Some(ScheduleState::ScheduledSucceed), 3));
    assert_eq!(jobs.cluster.after(120).stats().jobs.places_void, 0);
}

#[test]
fn counts_that_are_raised_and_lowered_are_followed() {
    let mut jobs = two_nodes_with(2);
    jobs.start("rl").change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 4).cluster.wait(1);
    assert_eq!(jobs.stand("rl"), (Some(ScheduleState::ScheduledSucceed), 5));
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 1).cluster.wait(1);
    assert_eq!((jobs.places("rl").len(), jobs.reserved()), (2, 0));
}

#[test]
fn a_pod_that_does_not_fit_into_its_place_gets_another_one() {
    let mut jobs = two_nodes_with(1);
    jobs.cluster.change_node("a", |facts| facts.unschedulable = true);
    let made = jobs.pod_of("rl", "rl-learner");
    jobs.cluster.submit(made);
    assert_eq!(jobs.cluster.after(2).node_of("rl-learner"), Some("b"), "the cordoned node does not take it");
    assert_eq!(jobs.places("rl")["learner"], "b");
}

#[test]
fn a_pod_of_another_attempt_is_not_bound() {
    let mut jobs = two_nodes_with(1);
    let made = jobs.pod_of("rl", "rl-actor-0");
    jobs.change("rl", |facts| facts.attempt = 1).cluster.submit(made);
    assert_eq!(jobs.after(2).place_of("rl-actor-0"), Some(Place::Waiting));
    assert!(jobs.cluster.conditions["rl-actor-0"].contains("another attempt"), "{:?}", jobs.cluster.conditions);
}

#[test]
fn a_write_that_fails_is_repeated_until_the_status_says_what_was_decided() {
    let mut jobs = two_nodes();
    jobs.cluster.job_faults.extend([Fault::Fails, Fault::Fails, Fault::Fails]);
    jobs.run("rl", CPU, (1, CPU), |_| {});
    assert_eq!(jobs.state("rl"), None);
    assert_eq!(jobs.after(5).stand("rl"), (Some(ScheduleState::ScheduledSucceed), 2));
    let writes = jobs.cluster.job_writes;
    assert_eq!(jobs.cluster.after(30).job_writes, writes, "a job at rest is not written");
}

#[test]
fn places_that_the_status_has_no_room_for_are_given_back_and_it_is_said() {
    let mut jobs = two_nodes();
    jobs.cluster.most_places = 2;
    jobs.run("rl", CPU, (3, CPU), |_| {}).cluster.wait(5);
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::Unscheduled), 0));
    assert_eq!(&*jobs.facts("rl").scheduled.as_ref().unwrap().reason, "StatusTooLarge");
    let why = "with 4 places the status is larger than the API server stores (etcdserver: request is too large), ask for fewer \
               workers: 4 places without pods are given back; tried again in 1 min";
    assert!(jobs.message("rl").starts_with(why), "{}", jobs.message("rl"));
    assert!(jobs.cluster.notices.contains(&("rl".to_owned(), "StatusTooLarge")), "{:?}", jobs.cluster.notices);
    let writes = jobs.cluster.job_writes;
    assert_eq!(jobs.cluster.after(50).job_writes, writes, "it rests");
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 1).cluster.wait(2);
    assert_eq!(jobs.checked().stand("rl"), (Some(ScheduleState::ScheduledSucceed), 2));
}

#[test]
fn another_clients_edit_of_our_half_is_put_right() {
    let mut jobs = two_nodes_with(1);
    jobs.change("rl", |facts| facts.allocations.clear());
    assert_eq!(jobs.places("rl").len(), 2);
}

#[test]
fn a_failed_bind_leaves_the_place_to_the_pod() {
    let mut jobs = TestJobs::on("a", 2, 0);
    jobs.run("rl", CPU, (1, CPU), |_| {}).cluster.bind_faults.push_back(Fault::Refused);
    let made = jobs.pod_of("rl", "rl-learner");
    jobs.cluster.enters(made);
    assert_eq!((jobs.cluster.node_of("rl-learner"), jobs.reserved()), (None, 2), "kept for the next try");
    assert_eq!(jobs.cluster.pod("thief", CPU).after(3).nodes_of(["thief", "rl-learner"]), [None, Some("a")]);
}

#[test]
fn a_job_of_the_same_name_is_another_job() {
    let mut jobs = two_nodes_with(1);
    let mut next = jobs.job("rl", CPU, (1, CPU));
    next.job.uid = "uid-next".into();
    next.version = 50;
    assert_eq!((jobs.submit(next).after(1).places("rl").len(), jobs.reserved()), (2, 2));
    assert_eq!(&*jobs.cluster.job_records()[&PodKey::new("ml", "rl")].uid, "uid-next");
    assert_eq!(job_key("rl"), PodKey::new("ml", "rl"));
}

#[test]
fn a_write_that_somebody_came_before_is_decided_again_on_what_is_there_now() {
    // The controller writes, and the watch has not shown it when the scheduler decides.
    let mut jobs = two_nodes_with(1);
    assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledSucceed));
    jobs.cluster.jobs.get_mut(&job_key("rl")).unwrap().version += 1;
    let written = jobs.cluster.job_writes;
    let lost = jobs.places("rl")["actor-0"].clone();
    jobs.cluster.loses_node(&lost);
    assert_eq!(jobs.cluster.settled().job_writes, written + 1, "not again at once: the watch shows what came between");
    assert_eq!(
        jobs.cluster.after(6).job_writes,
        written + 3,
        "nothing was shown: again after 1 s and 2 s more, refused as before"
    );
    jobs.change("rl", |_| {});
    assert!(jobs.after(2).checked().places("rl").values().all(|node| *node != lost), "{:?}", jobs.places("rl"));
}

/// Four CPUs of which a Gang of the least priority holds some, and a job before it that wants them all.
fn a_job_before_a_gang() -> TestJobs {
    let mut jobs = TestJobs::on("a", 4, 0);
    jobs.node("b", 2, 0).run("gang", &[("cpu", "4")], (1, &[("cpu", "2")]), |spec| {
        (spec.basic, spec.priority) = (BasicPolicy::Gang, 1);
    });
    jobs.run("first", &[("cpu", "3")], (1, CPU), |spec| spec.priority = 9);
    jobs.cluster.comes("thief", &[("cpu", "4")]);
    assert_eq!((jobs.state("first"), jobs.cluster.node_of("thief")), (Some(ScheduleState::Unscheduled), None));
    jobs
}

#[test]
fn what_a_job_gives_back_in_a_round_is_for_the_jobs_that_were_tried_before_it() {
    let mut jobs = a_job_before_a_gang();
    jobs.cluster.loses_node("b").settle();
    assert_eq!(jobs.stand("gang"), (Some(ScheduleState::Unscheduled), 0));
    assert_eq!(jobs.stand("first"), (Some(ScheduleState::ScheduledSucceed), 2));
    assert_eq!(jobs.cluster.node_of("thief"), None, "a younger pod comes after them");
    let rounds = jobs.cluster.stats().jobs.rounds;
    assert_eq!(jobs.cluster.after(30).stats().jobs.rounds, rounds, "then there is nothing to try again");
    jobs.check();
}

#[test]
fn what_a_job_gives_back_because_it_asks_for_more_goes_to_the_one_that_waits() {
    let mut jobs = a_job_before_a_gang();
    jobs.change("gang", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 9);
    assert_eq!((jobs.state("gang"), jobs.reserved()), (Some(ScheduleState::Unscheduled), 2));
    assert_eq!((jobs.state("first"), jobs.cluster.node_of("thief")), (Some(ScheduleState::ScheduledSucceed), None));
}

#[test]
fn the_room_of_an_ended_job_goes_to_the_next_job_before_a_younger_pod() {
    let mut jobs = a_job_before_a_gang();
    jobs.change("gang", |facts| facts.deleting = true);
    assert_eq!((jobs.state("first"), jobs.cluster.node_of("thief")), (Some(ScheduleState::ScheduledSucceed), None));
}

#[test]
fn a_job_that_loses_a_place_is_judged_before_anything_is_written() {
    let gang = |jobs: &mut TestJobs| {
        jobs.run("rl", &[("cpu", "2")], (2, CPU), |spec| spec.basic = BasicPolicy::Gang);
        assert_eq!(jobs.places("rl")["actor-1"], "b");
        jobs.cluster.job_writes
    };
    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.node("b", 1, 0);
    let writes = gang(&mut jobs);
    jobs.cluster.loses_node("b").settle();
    assert_eq!(jobs.stand("rl"), (Some(ScheduleState::Unscheduled), 0));
    assert_eq!(jobs.cluster.job_writes, writes + 1, "no status says that a gang of two pods may start");

    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.node("b", 1, 0);
    let writes = gang(&mut jobs);
    let large = jobs.job("other", CPU, (1, &[("cpu", "3")])).spec.unwrap().parts[1].pod.clone();
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].pod = large);
    assert_eq!(jobs.stand("rl"), (Some(ScheduleState::Unscheduled), 0));
    assert_eq!(jobs.cluster.job_writes, writes + 1, "nor after an edit of the template");
}

#[test]
fn a_place_that_is_found_anew_where_it_was_is_not_written() {
    let mut jobs = TestJobs::on("a", 4, 0);
    jobs.run("rl", CPU, (2, CPU), |_| {});
    let writes = jobs.cluster.job_writes;
    assert_eq!(jobs.cluster.after(200).stats().jobs.places_void, 3, "the controller is away");
    assert_eq!((jobs.cluster.job_writes, jobs.places("rl").len()), (writes, 3));
}

#[test]
fn a_pod_that_is_bound_elsewhere_than_its_place_has_its_place_there() {
    let mut jobs = two_nodes_with(2);
    assert_eq!(jobs.places("rl")["actor-0"], "a");
    jobs.controller("rl").leader_up("rl");
    let mut made = jobs.pod_of("rl", "rl-actor-0");
    made.handoff.node = Some("b".into());
    jobs.cluster.enters(made);
    assert_eq!((jobs.places("rl")["actor-0"].as_str(), jobs.reserved()), ("b", 1), "it was bound by hand");
    assert_eq!(jobs.checked().state("rl"), Some(ScheduleState::ScheduledSucceed));
}

#[test]
fn places_are_kept_when_the_leader_has_ended_before_its_controller_saw_it() {
    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.node("b", 1, 0).run("rl", &[("cpu", "2")], (2, CPU), |spec| spec.min_workers = 2);
    assert_eq!(jobs.places("rl")["actor-1"], "b");
    let made = jobs.pod_of("rl", "rl-learner");
    jobs.cluster.enters(made);
    jobs.serve().cluster.finish("rl-learner");
    jobs.cluster.comes("next", &[("cpu", "2")]);
    assert_eq!(jobs.cluster.node_of("next"), Some("a"), "its room is another pod's by now");
    jobs.cluster.loses_node("b");
    assert_eq!(jobs.settled().facts("rl").stage, Some(Stage::Pending));
    assert_eq!(jobs.stand("rl"), (Some(ScheduleState::ScheduledPartly), 2));
}
