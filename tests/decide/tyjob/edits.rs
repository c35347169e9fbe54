//! What changes while a job waits or runs: its own spec, its pods, priorities, and what was said of it before.

use baton::contract::tyjob::WorkerEnd;
use baton::decide::tyjob::placement::PriorityClassFacts;

use crate::harness::tyjobs::key;
use crate::prelude::*;

fn one_node(cpus: u32) -> TestJobs {
    TestJobs::on("a", cpus, 0)
}

#[test]
fn an_edit_of_a_waiting_job_is_tried_although_nothing_else_happens() {
    let mut jobs = one_node(3);
    jobs.run("rl", CPU, (4, CPU), |spec| spec.basic = BasicPolicy::Gang);
    assert_eq!(jobs.after(20).state("rl"), Some(ScheduleState::Unscheduled));
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 2).cluster.wait(1);
    assert_eq!(jobs.checked().stand("rl"), (Some(ScheduleState::ScheduledSucceed), 3));
}

#[test]
fn a_job_that_waits_for_some_of_its_pods_is_tried_when_it_asks_for_others() {
    let mut jobs = one_node(4);
    let large: &[(&str, &str)] = &[("cpu", "3")];
    jobs.run("rl", CPU, (1, CPU), |spec| {
        let mut set = spec.parts[1].clone();
        (set.name, set.pod) = ("large".into(), pod("large", large, std::time::Duration::ZERO));
        spec.parts.push(set);
    });
    assert_eq!(jobs.after(5).stand("rl"), (Some(ScheduleState::ScheduledPartly), 2));
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 2);
    assert!(jobs.after(1).places("rl").contains_key("actor-1"), "{:?}", jobs.places("rl"));
}

#[test]
fn what_was_said_of_a_spec_does_not_outlive_it() {
    let mut jobs = one_node(4);
    let huge: &[(&str, &str)] = &[("cpu", "100")];
    jobs.run("rl", huge, (1, CPU), |_| {}).cluster.wait(200);
    let small = jobs.job("other", CPU, (1, CPU)).spec.unwrap();
    jobs.cluster.comes("busy", &[("cpu", "4")]);
    jobs.change("rl", |facts| facts.spec = Ok(small));
    assert_eq!(jobs.after(400).state("rl"), Some(ScheduleState::Unscheduled), "it fits, there is only no room now");
    jobs.cluster.finish("busy");
    assert_eq!(jobs.after(2).state("rl"), Some(ScheduleState::ScheduledSucceed));
    jobs.run("huge", huge, (1, CPU), |_| {});
    assert_eq!(jobs.after(400).state("huge"), Some(ScheduleState::ScheduledFailed));
    let small = jobs.job("other", CPU, (1, CPU)).spec.unwrap();
    jobs.change("huge", |facts| facts.spec = Ok(small)).cluster.wait(2);
    assert_eq!(jobs.state("huge"), Some(ScheduleState::ScheduledSucceed), "while the controller has not ended it");
}

#[test]
fn bytes_of_gpu_memory_are_counted_by_the_devices_and_not_by_what_kubelets_offer() {
    let mut jobs = TestJobs::on("a", 64, 1);
    jobs.cluster.comes("busy", ONE);
    let share = |memory| [("koordinator.sh/gpu-core", "50"), ("koordinator.sh/gpu-memory", memory)];
    jobs.run("fits", &share("10Gi"), (1, CPU), |_| {}).run("never", &share("9000Gi"), (1, CPU), |_| {});
    assert_eq!(jobs.after(400).state("fits"), Some(ScheduleState::Unscheduled), "{}", jobs.message("fits"));
    assert_eq!(jobs.state("never"), Some(ScheduleState::ScheduledFailed));
    jobs.cluster.finish("busy");
    assert_eq!(jobs.after(2).state("fits"), Some(ScheduleState::ScheduledSucceed));
}

#[test]
fn a_worker_that_is_deleted_after_minutes_keeps_its_place_for_the_next_one() {
    let mut jobs = one_node(4);
    jobs.node("b", 4, 0).run("rl", CPU, (2, CPU), |_| {}).start("rl").cluster.wait(300);
    jobs.cluster.goes("rl-actor-0").wait(2);
    assert_eq!((jobs.places("rl")["actor-0"].as_str(), jobs.reserved()), ("a", 1));
    assert_eq!(jobs.cluster.stats().jobs.places_void, 0);
    jobs.controller("rl");
    assert_eq!((jobs.cluster.node_of("rl-actor-0"), jobs.reserved()), (Some("a"), 0));
    jobs.cluster.delete("rl-actor-0");
    assert_eq!(jobs.cluster.after(63).stats().jobs.places_void, 1, "and no longer than a minute");
    jobs.check();
}

#[test]
fn the_oldest_waiting_job_goes_before_younger_pods_of_its_priority() {
    let mut jobs = one_node(4);
    jobs.cluster.comes("busy", &[("cpu", "4")]);
    jobs.run("rl", &[("cpu", "2")], (1, &[("cpu", "2")]), |spec| spec.basic = BasicPolicy::Gang).cluster.wait(50);
    (0..4).for_each(|number| _ = jobs.cluster.pod(&format!("young-{number}"), CPU));
    jobs.cluster.after(50).ends("busy");
    assert_eq!(jobs.after(2).state("rl"), Some(ScheduleState::ScheduledSucceed));
    assert!((0..4).all(|number| jobs.cluster.node_of(&format!("young-{number}")).is_none()));
}

#[test]
fn the_priority_class_of_a_template_decides_the_turn_as_that_of_pods_does() {
    let mut jobs = one_node(4);
    jobs.cluster.priority_class("high", 1000).comes("busy", &[("cpu", "4")]);
    jobs.cluster.pod_as("rival", &[("cpu", "3")], |facts| {
        facts.spec.priority = 100;
        facts.spec.never_preempts = true;
    });
    jobs.cluster.wait(5);
    jobs.run("rl", CPU, (1, CPU), |spec| spec.parts[0].ask.class = Some("high".into()));
    let priority =
        |jobs: &TestJobs| jobs.cluster.world().job(&crate::harness::tyjobs::key("rl")).unwrap().spec.clone().unwrap();
    assert_eq!(priority(&jobs).pod_priority(), 1000);
    jobs.cluster.after(5).ends("busy").wait(2);
    assert_eq!((jobs.state("rl"), jobs.cluster.node_of("rival")), (Some(ScheduleState::ScheduledSucceed), None));
    jobs.cluster.event(WorldEvent::PriorityClassGone("high".into()));
    assert_eq!(priority(&jobs).pod_priority(), 0, "admission refuses such pods: nothing is known of them");
    jobs.cluster.event(WorldEvent::PriorityClass(
        "base".into(),
        PriorityClassFacts { value: 7, default: true, never_preempts: false },
    ));
    assert_eq!(priority(&jobs).parts[1].pod.spec.priority, 7, "what names no class has the default's");
}

#[test]
fn once_the_leader_pod_is_there_places_are_kept_whatever_the_stage_says_so_far() {
    let mut jobs = one_node(4);
    jobs.node("b", 1, 0).run("rl", CPU, (4, CPU), |spec| spec.min_workers = 4);
    let made = jobs.pod_of("rl", "rl-learner");
    jobs.cluster.enters(made);
    assert_eq!(jobs.serve().facts("rl").stage, Some(Stage::Pending));
    let lost = if jobs.places("rl")["learner"] == "a" { "b" } else { "a" };
    let before = jobs.places("rl").len();
    let there = jobs.places("rl").values().filter(|node| *node == lost).count();
    jobs.cluster.loses_node(lost);
    assert_eq!(jobs.after(2).state("rl"), Some(ScheduleState::ScheduledPartly));
    assert_eq!(jobs.places("rl").len(), before - there);
}

#[test]
fn job_affinity_looks_for_room_where_the_others_may_go() {
    let mut jobs = one_node(10);
    jobs.node("b", 4, 0).cluster.change_node("b", |facts| facts.labels = labels_of("zone", "b"));
    jobs.run("rl", CPU, (3, CPU), |spec| {
        spec.basic = BasicPolicy::JobAffinity;
        spec.parts[1].pod.spec.node_selector = labels_of("zone", "b");
    });
    assert!(jobs.places("rl").values().all(|node| node == "b"), "{:?}", jobs.places("rl"));
    assert_eq!(jobs.places("rl").len(), 4);
}

#[test]
fn a_pod_that_admission_has_made_larger_is_placed_by_what_it_asks_for() {
    let mut jobs = one_node(3);
    jobs.node("b", 4, 0).cluster.comes("on-a", CPU);
    jobs.run("rl", CPU, (1, CPU), |_| {});
    assert_eq!(jobs.places("rl")["learner"], "a", "the fuller node");
    let mut made = jobs.pod_of("rl", "rl-learner");
    made.spec.requests = baton::decide::world::Resources::of([("cpu", "3".parse().unwrap())]);
    jobs.cluster.submit(made);
    assert_eq!(jobs.after(2).places("rl")["learner"], "b");
    assert_eq!(jobs.cluster.node_of("rl-learner"), Some("b"));
}

#[test]
fn job_affinity_counts_pods_that_keep_apart_as_few_as_a_node_can_hold() {
    let mut jobs = one_node(10);
    jobs.node("b", 4, 0).cluster.pod("on-a", &[("cpu", "6")]);
    for name in ["a", "b"] {
        jobs.cluster.change_node(name, |facts| {
            let labels = [("kubernetes.io/hostname", name), ("zone", name)];
            facts.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        });
    }
    jobs.cluster.change_node("b", |facts| facts.unschedulable = true);
    assert_eq!(jobs.cluster.settled().node_of("on-a"), Some("a"));
    jobs.cluster.change_node("b", |facts| facts.unschedulable = false).settle();
    // Four would fit on a by their amounts, and three of them keep apart; b has room for the leader, one of them and both judges.
    jobs.run("rl", CPU, (3, CPU), |spec| {
        spec.basic = BasicPolicy::JobAffinity;
        let mut judge = spec.parts[1].clone();
        (judge.name, judge.counts) = ("judge".into(), 2);
        let actor = &mut spec.parts[1].pod.spec;
        actor.labels = labels_of("app", "actor");
        actor.anti_affinity = vec![near("actor", "kubernetes.io/hostname")];
        spec.parts.push(judge);
        let zone = |facts: &mut PodFacts| facts.spec.node_selector = labels_of("zone", "b");
        zone(&mut spec.parts[2].pod);
    });
    let places = jobs.places("rl");
    assert_eq!(places["learner"], "b", "{places:?}");
    let apart: BTreeSet<&String> = (0..3).filter_map(|index| places.get(&format!("actor-{index}"))).collect();
    assert_eq!((apart.len(), places.len()), (2, 5), "{places:?}");
}

#[test]
fn job_affinity_counts_shares_of_several_gpus_by_the_devices() {
    let mut jobs = TestJobs::on("a", 64, 3);
    jobs.node("b", 8, 2);
    // Sixty percent of two GPUs each: three GPUs hold one such pod, as two do.
    let share: &[(&str, &str)] = &[
        ("koordinator.sh/gpu.shared", "2"),
        ("koordinator.sh/gpu-core", "120"),
        ("koordinator.sh/gpu-memory-ratio", "120"),
    ];
    jobs.run("rl", CPU, (2, share), |spec| spec.basic = BasicPolicy::JobAffinity);
    let places = jobs.places("rl");
    assert_eq!(
        (places["learner"].as_str(), places["actor-0"].as_str()),
        ("b", "b"),
        "the fuller of equals: {places:?}"
    );
    assert_eq!(places.get("actor-1").map(String::as_str), Some("a"), "{places:?}");
}

#[test]
fn mig_devices_that_a_node_lists_count_although_its_agent_is_away() {
    let mut jobs = TestJobs::on("a", 8, 0);
    let mut device = gpu_device("a", 2);
    for (number, info) in device.spec.devices.iter_mut().enumerate() {
        info.id = DeviceId::parse(&format!("MIG-{number}")).unwrap();
        info.resources = [("nvidia.com/mig-1g.10gb".to_owned(), Quantity::units(1))].into();
    }
    jobs.cluster.event(WorldEvent::Devices(Box::new(device)));
    let mig: &[(&str, &str)] = &[("nvidia.com/mig-1g.10gb", "1")];
    let other: &[(&str, &str)] = &[("nvidia.com/mig-7g.80gb", "1")];
    jobs.run("fits", mig, (1, mig), |_| {}).run("never", other, (1, CPU), |_| {});
    assert_eq!(jobs.after(400).state("fits"), Some(ScheduleState::Unscheduled), "{}", jobs.message("fits"));
    assert_eq!(jobs.state("never"), Some(ScheduleState::ScheduledFailed));
}

#[test]
fn a_pod_that_its_job_does_not_ask_for_any_more_takes_no_room() {
    let mut jobs = one_node(4);
    jobs.run("rl", CPU, (2, CPU), |_| {}).start("rl");
    let made = jobs.pod_of("rl", "rl-actor-1");
    jobs.cluster.delete("rl-actor-1");
    // Counts go down while the pod is being made.
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 1).cluster.submit(made);
    assert_eq!(jobs.cluster.after(2).node_of("rl-actor-1"), None);
    jobs.check();
}

/// A job of a leader and three workers that runs on a node of four CPUs, and a pod of higher priority that comes.
fn preempted() -> (TestJobs, String) {
    let mut jobs = one_node(4);
    assert_eq!(jobs.run("rl", CPU, (3, CPU), |_| {}).start("rl").cluster.bound(), 4);
    jobs.cluster.comes_as("urgent", CPU, |facts| facts.spec.priority = 100);
    let [victim] = &jobs.cluster.evicted[..] else { panic!("one worker: {:?}", jobs.cluster.evicted) };
    assert!(victim.starts_with("rl-actor"), "a surplus worker: {victim}");
    let victim = victim.clone();
    (jobs, victim)
}

#[test]
fn room_that_was_made_by_preemption_of_a_worker_is_not_kept_for_its_successor() {
    let (mut jobs, victim) = preempted();
    assert_eq!(jobs.cluster.goes(&victim).node_of("urgent"), Some("a"), "in the same instant");
    jobs.serve().cluster.wait(70);
    assert_eq!(jobs.cluster.evicted.len(), 1, "one pod of one CPU costs one worker: {:?}", jobs.cluster.evicted);
    assert_eq!(jobs.checked().stand("rl"), (Some(ScheduleState::ScheduledPartly), 3));
}

#[test]
fn room_that_was_made_before_a_restart_is_not_kept_for_the_job_either() {
    let (mut jobs, victim) = preempted();
    jobs.cluster.change_pod("urgent", |facts| facts.spec.nominated = Some("a".into()));
    jobs.cluster.pods.remove(&key(&victim)).unwrap();
    jobs.cluster.restart();
    assert_eq!(jobs.cluster.settled().after(2).node_of("urgent"), Some("a"));
}

#[test]
fn a_template_that_changes_before_the_leader_is_made_is_placed_again() {
    let mut jobs = one_node(4);
    jobs.run("rl", CPU, (2, CPU), |spec| spec.basic = BasicPolicy::Gang);
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::ScheduledSucceed), 3));
    let large = jobs.job("other", CPU, (2, &[("cpu", "3")])).spec.unwrap();
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].pod = large.parts[1].pod.clone());
    jobs.cluster.wait(2);
    assert_eq!((jobs.state("rl"), jobs.reserved()), (Some(ScheduleState::Unscheduled), 0), "{}", jobs.message("rl"));
    jobs.node("b", 4, 0);
    assert_eq!(jobs.after(2).checked().state("rl"), Some(ScheduleState::ScheduledSucceed));
}

#[test]
fn what_changes_within_the_pause_is_said_after_it() {
    let mut jobs = one_node(2);
    jobs.run("rl", CPU, (3, CPU), |_| {});
    assert!(jobs.message("rl").starts_with("the leader and 1 of 3 workers have a place"), "{}", jobs.message("rl"));
    jobs.node("b", 1, 0);
    assert_eq!(jobs.after(2).places("rl").len(), 3);
    jobs.cluster.wait(12);
    assert!(jobs.message("rl").starts_with("the leader and 2 of 3 workers have a place"), "{}", jobs.message("rl"));
    // The number of a job that is placed whole, too.
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 2);
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 1);
    assert_eq!(jobs.after(12).message("rl"), "the leader and 1 workers have a place");
}

#[test]
fn the_places_of_many_workers_that_have_ended_leave_the_status() {
    let mut jobs = one_node(200);
    jobs.run("rl", CPU, (100, CPU), |_| {}).start("rl");
    let end = |jobs: &mut TestJobs, workers: u32| {
        let before = jobs.cluster.job_writes;
        jobs.change("rl", |facts| {
            let ended = (0..workers).map(|at| (format!("rl-actor-{at}").into(), WorkerEnd::Succeeded));
            facts.ended = ended.collect();
        });
        jobs.cluster.wait(2);
        (jobs.places("rl").len(), jobs.cluster.job_writes - before)
    };
    assert_eq!(end(&mut jobs, 64), (101, 0), "few take little room");
    assert_eq!(end(&mut jobs, 65), (101 - 65, 1));
    assert_eq!(end(&mut jobs, 66), (101 - 65, 0), "not a write for each");
    assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledSucceed));
    jobs.cluster.restart();
    assert_eq!(jobs.after(2).stand("rl"), (Some(ScheduleState::ScheduledSucceed), 36));
    // One that is to run once more is placed again.
    jobs.change("rl", |facts| _ = facts.ended.remove("rl-actor-0")).cluster.wait(2);
    assert_eq!(jobs.checked().stand("rl"), (Some(ScheduleState::ScheduledSucceed), 37));
}

#[test]
fn pods_that_a_job_has_left_behind_leave_one_by_one() {
    let mut jobs = one_node(4);
    jobs.run("rl", CPU, (3, CPU), |spec| spec.min_workers = 3).start("rl");
    // The leader has succeeded; cleanPodPolicy None leaves the others alone.
    jobs.change("rl", |facts| facts.stage = Some(Stage::Succeeded));
    jobs.cluster.comes_as("urgent", CPU, |facts| facts.spec.priority = 100);
    assert_eq!(jobs.cluster.evicted.len(), 1, "{:?}", jobs.cluster.evicted);
}
