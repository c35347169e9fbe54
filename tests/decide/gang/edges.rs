//! What happens to gangs at the edges of their rule: when it ends, comes back, moves to another group, or binds only some.

use std::collections::BTreeMap;

use baton::contract::gang::GangId;
use baton::contract::gang::key::CONDITION_SATISFIED;
use baton::contract::{PodKey, Quantity, key};
use baton::decide::core::OnBindFailure;
use baton::decide::pod::Phase;
use baton::decide::scheduler::Config;
use baton::decide::world::gangs::MemberState;
use baton::decide::world::spec::{NodeOperator, NodeRequirement, NodeTerm};
use baton::decide::world::{Resources, WorldEvent};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::harness::gangs::{G, P, TestGangs, declared, gang};
use crate::harness::{Fault, gpu_device};

fn group(keys: &[&str]) -> String {
    format!("[{}]", keys.iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(","))
}

fn condition(name: &str, since: jiff::Timestamp) -> Condition {
    Condition {
        type_: name.to_owned(),
        status: "True".to_owned(),
        reason: name.to_owned(),
        message: String::new(),
        last_transition_time: Time(since),
        observed_generation: None,
    }
}

fn named(name: &str) -> Vec<(String, String)> {
    vec![(P.to_owned(), name.to_owned())]
}

#[test]
fn a_minimum_that_becomes_zero_lets_every_member_go_alone() {
    let mut gangs = TestGangs::new(3);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(5));
    gangs.members("g", 5, &named("g"));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 0);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(0));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 3, "{}", gangs.condition("g-4"));
}

#[test]
fn a_minimum_of_zero_on_the_oldest_pod_frees_the_others_too() {
    let mut gangs = TestGangs::new(3);
    gangs.members("g", 5, &gang("g", "5", &[]));
    gangs.wait(2);
    gangs.change("g-0", |facts| facts.spec.gang = declared("ml", &gang("g", "0", &[])));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 3);
}

#[test]
fn pods_that_waited_for_a_pod_group_of_minimum_zero_go_at_once_when_it_appears() {
    let mut gangs = TestGangs::new(8);
    gangs.members("g", 2, &named("g"));
    gangs.settle();
    assert_eq!(gangs.reason("g-0"), "WaitingForPodGroup");
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(0));
    gangs.settle();
    assert_eq!(gangs.count("g"), 2);
}

#[test]
fn a_late_member_goes_when_the_pod_group_of_its_satisfied_gang_is_there_again() {
    let mut gangs = TestGangs::new(8);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    gangs.members("g", 3, &named("g"));
    gangs.settle();
    assert_eq!(gangs.count("g"), 3);
    gangs.pod_group_gone("ml/g");
    gangs.member("late", &named("g"));
    gangs.settle();
    assert_eq!((gangs.count("late"), gangs.reason("late")), (0, "WaitingForPodGroup"));
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    gangs.settle();
    assert_eq!(gangs.count("late"), 1);
}

#[test]
fn surplus_of_a_gang_that_another_one_made_room_for_pends_alone_and_binds_later() {
    // Table row 4, with a sixth pod in the second gang.
    let mut gangs = TestGangs::new(0);
    gangs.cluster = crate::harness::TestScheduler::new();
    gangs.accumulating = true;
    for (node, cpus) in [("a", 3), ("b", 3), ("c", 4)] {
        gangs.node(node, cpus);
        gangs.cluster.change_node(node, |facts| facts.labels = BTreeMap::from([("pool".to_owned(), node.to_owned())]));
    }
    for (name, count) in [("a", 5), ("b", 6), ("c", 5)] {
        for n in 0..count {
            let mut facts =
                gangs.facts(&format!("{name}-{n}"), &[("cpu", "1")], &gang(name, "5", &[("mode", "NonStrict")]));
            let values = vec![name.to_owned(), "shared".to_owned()];
            let term = NodeRequirement { key: "pool".into(), operator: NodeOperator::In, values };
            facts.spec.node_required = Some(vec![NodeTerm { expressions: vec![term], fields: vec![] }]);
            gangs.cluster.submit(facts);
        }
        gangs.wait(1);
    }
    for node in ["a", "b", "c"] {
        gangs
            .cluster
            .change_node(node, |facts| facts.labels = BTreeMap::from([("pool".to_owned(), "shared".to_owned())]));
    }
    gangs.wait(3);
    assert_eq!((gangs.count("a-"), gangs.count("b-"), gangs.count("c-")), (5, 5, 0));
    (0..5).for_each(|n| gangs.cluster.finish(&format!("a-{n}")));
    gangs.wait(3);
    let waiting: Vec<String> = (0..6).map(|n| format!("b-{n}")).filter(|name| !gangs.bound().contains(name)).collect();
    assert!(gangs.count("c-") == 5 || waiting.is_empty(), "{:?}", gangs.bound());
    gangs.node("d", 6);
    gangs.cluster.change_node("d", |facts| facts.labels = BTreeMap::from([("pool".to_owned(), "shared".to_owned())]));
    gangs.wait(3);
    assert_eq!((gangs.count("b-"), gangs.count("c-")), (6, 5));
}

#[test]
fn the_search_keeps_off_room_that_is_nominated_for_others() {
    let mut gangs = TestGangs::new(1);
    gangs.node("m", 1);
    for n in 0..2 {
        let mut facts = gangs.facts(&format!("low-{n}"), &[("cpu", "1")], &[]);
        facts.spec.priority = 1;
        gangs.cluster.submit(facts);
    }
    gangs.settle();
    gangs.node("free", 1);
    for n in 0..3 {
        let mut facts = gangs.facts(&format!("high-{n}"), &[("cpu", "1")], &gang("high", "3", &[]));
        facts.spec.priority = 9;
        gangs.cluster.submit(facts);
    }
    gangs.settle();
    assert_eq!(gangs.cluster.nominations(), 3, "{}", gangs.condition("high-0"));
    let keys = gang("rival", "1", &[]);
    for (name, cpu) in [("rival-a", "1"), ("rival-b", "500m")] {
        let mut facts = gangs.facts(name, &[("cpu", cpu)], &keys);
        facts.spec.priority = 2;
        gangs.cluster.submit(facts);
    }
    gangs.wait(2);
    assert_eq!(gangs.count("rival"), 0);
    (0..2).for_each(|n| gangs.delete(&format!("low-{n}")));
    gangs.wait(2);
    assert_eq!((gangs.count("high"), gangs.count("rival")), (3, 0));
}

#[test]
fn one_choosy_member_does_not_keep_a_large_gang_from_starting() {
    for members in [10, 60] {
        let mut gangs = TestGangs::new(0);
        gangs.cluster = crate::harness::TestScheduler::new();
        gangs.node("a", 1);
        gangs.node("b", members - 1);
        gangs.cluster.change_node("a", |facts| facts.labels = BTreeMap::from([("x".to_owned(), "a".to_owned())]));
        let min = members.to_string();
        let keys = gang("g", &min, &[]);
        gangs.members("g", members as usize - 1, &keys);
        let mut choosy = gangs.facts("g-z", &[("cpu", "1")], &keys);
        choosy.spec.node_selector = BTreeMap::from([("x".to_owned(), "a".to_owned())]);
        gangs.cluster.submit(choosy);
        gangs.wait(2);
        assert_eq!(gangs.count("g"), members as usize, "{}", gangs.condition("g-0"));
    }
}

#[test]
fn a_satisfied_group_is_not_bound_again_when_one_of_its_gangs_is_cleaned_up() {
    let mut gangs = TestGangs::new(8);
    let list = group(&["ml/a", "ml/b"]);
    gangs.members("a", 2, &gang("a", "2", &[("groups", &list)]));
    gangs.members("b", 3, &gang("b", "3", &[("groups", &list)]));
    gangs.settle();
    assert_eq!(gangs.bound().len(), 5);
    (0..2).for_each(|n| gangs.delete(&format!("a-{n}")));
    gangs.delete("b-0");
    gangs.member("b-new", &gang("b", "3", &[("groups", &list)]));
    gangs.settle();
    assert_eq!(gangs.count("b-new"), 1, "{}", gangs.condition("b-new"));
}

#[test]
fn a_gang_that_joins_a_running_one_in_a_new_group_still_starts_as_a_whole() {
    let mut gangs = TestGangs::new(4);
    gangs.members("a", 2, &gang("a", "2", &[]));
    gangs.settle();
    assert_eq!(gangs.count("a"), 2);
    let list = group(&["ml/a", "ml/b"]);
    for n in 0..2 {
        let key = PodKey::new("ml", &format!("a-{n}"));
        let keys = gang("a", "2", &[("groups", &list)]);
        gangs.change(&key.name, |facts| facts.spec.gang = declared("ml", &keys));
    }
    gangs.members("b", 3, &gang("b", "3", &[("groups", &list)]));
    gangs.wait(2);
    assert_eq!(gangs.count("b"), 0, "two places for three");
}

#[test]
fn a_gang_whose_rule_is_over_does_not_wait_for_a_sibling_whose_rule_stays() {
    let mut gangs = TestGangs::new(8);
    let list = group(&["ml/a", "ml/b"]);
    gangs.members("a", 2, &gang("a", "2", &[("groups", &list), ("match-policy", "only-waiting")]));
    gangs.members("b", 2, &gang("b", "2", &[("groups", &list)]));
    gangs.settle();
    assert_eq!(gangs.bound().len(), 4);
    gangs.member("b-late", &gang("b", "2", &[("groups", &list)]));
    gangs.settle();
    assert_eq!(gangs.count("b-late"), 1, "{}", gangs.condition("b-late"));
}

#[test]
fn members_that_nobody_needs_say_why_they_wait_whatever_the_policy() {
    let mut gangs = TestGangs::new(4);
    gangs.members("g", 6, &gang("g", "3", &[("match-policy", "waiting-and-running")]));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 4);
    let silent: Vec<&str> = ["g-0", "g-1", "g-2", "g-3", "g-4", "g-5"]
        .into_iter()
        .filter(|name| !gangs.bound().contains(&(*name).to_owned()) && gangs.reason(name) != "Unschedulable")
        .collect();
    assert_eq!(silent, Vec::<&str>::new());
    gangs.node("more", 2);
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 6);
}

#[test]
fn a_gang_that_becomes_strict_gives_back_what_it_has_accumulated() {
    let mut gangs = TestGangs::new(2);
    gangs.accumulating = true;
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(3);
        facts.annotated.mode = Some(baton::contract::gang::Mode::NonStrict);
    });
    gangs.members("g", 3, &named("g"));
    gangs.settle();
    assert_eq!(gangs.reserved("ml/g"), 2);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    gangs.wait(2);
    assert_eq!(gangs.reserved("ml/g"), 0);
}

#[test]
fn a_member_whose_node_was_cordoned_is_placed_anew_before_the_gang_binds() {
    let mut gangs = TestGangs::new(2);
    gangs.accumulating = true;
    gangs.members("g", 3, &gang("g", "3", &[("mode", "NonStrict")]));
    gangs.settle();
    assert_eq!(gangs.reserved("ml/g"), 2);
    gangs.cluster.change_node("n", |facts| facts.unschedulable = true);
    gangs.node("other", 3);
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 3);
    let on_cordoned = (0..3).filter(|n| gangs.cluster.node_of(&format!("g-{n}")) == Some("n")).count();
    assert_eq!(on_cordoned, 0);
}

#[test]
fn a_shorter_wait_counts_from_the_first_reservation() {
    let mut gangs = TestGangs::new(2);
    gangs.accumulating = true;
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    let mut keys = named("g");
    keys.push((format!("{G}mode"), "NonStrict".to_owned()));
    gangs.members("g", 3, &keys);
    gangs.wait(3);
    assert_eq!(gangs.reserved("ml/g"), 2);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(3);
        facts.spec.wait = Some(std::time::Duration::from_secs(5));
    });
    gangs.wait(4);
    assert_eq!((gangs.reserved("ml/g"), gangs.state("g-0")), (0, MemberState::TimedOut));
}

#[test]
fn a_pod_group_that_asks_for_less_in_all_is_tried_again() {
    let mut gangs = TestGangs::new(4);
    let wanted = |cpus: i64| {
        let mut wanted = Resources::default();
        wanted.set("cpu", Quantity::units(cpus));
        wanted
    };
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(2), wanted(100)));
    gangs.members("g", 2, &named("g"));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 0);
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(2), wanted(2)));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 2);
}

/// A node whose daemon or device is away offers less than its pods have.
#[test]
fn a_node_that_offers_less_than_is_taken_there_costs_a_gang_nothing_elsewhere() {
    let mut gangs = TestGangs::new(4);
    gangs.node("m", 4);
    gangs.cluster.change_node("n", |facts| facts.unschedulable = true);
    (0..4).for_each(|n| gangs.member(&format!("other-{n}"), &[]));
    gangs.wait(2);
    assert_eq!(gangs.count("other"), 4);
    gangs.cluster.change_node("m", |facts| facts.allocatable.set("cpu", Quantity::units(1)));
    gangs.cluster.change_node("n", |facts| facts.unschedulable = false);
    let mut wanted = Resources::default();
    wanted.set("cpu", Quantity::units(4));
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(4), wanted));
    gangs.members("g", 4, &named("g"));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 4, "{}", gangs.condition("g-0"));
}

/// The kubelet takes a failed GPU from what it offers, and the request of the pod that has it counts still.
#[test]
fn min_resources_count_the_free_gpu_beside_one_that_failed_under_its_pod() {
    let mut gangs = TestGangs::new(64);
    (0..7).for_each(|minor| gangs.cluster.bound_by_another(&format!("held-{minor}"), "n", minor));
    let mut device = gpu_device("n", 8);
    device.spec.devices[0].health = false;
    gangs.cluster.event(WorldEvent::Devices(Box::new(device)));
    gangs.cluster.change_node("n", |facts| facts.allocatable.set(key::NVIDIA_GPU, Quantity::units(7)));
    let wanted = Resources::of([(key::NVIDIA_GPU, Quantity::units(1))]);
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(1), wanted));
    gangs.asks("g-0", &[(key::NVIDIA_GPU, "1")], &named("g"));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 1, "{}", gangs.condition("g-0"));
}

/// No kubelet offers bytes of GPU memory.
#[test]
fn a_pod_group_may_ask_for_bytes_of_gpu_memory() {
    let mut gangs = TestGangs::new(4);
    let asks = [(key::GPU_SHARED, "1"), (key::GPU_MEMORY, "8Gi")];
    let quantity = |text: &str| text.parse::<Quantity>().unwrap();
    let wanted = Resources::of(asks.map(|(name, text)| (name, quantity(text))));
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(1), wanted));
    gangs.asks("g-0", &asks, &named("g"));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 1, "{}", gangs.condition("g-0"));
}

/// Under a policy that counts what has succeeded, the rest of a gang needs room for itself alone.
#[test]
fn what_has_succeeded_needs_no_room_of_min_resources() {
    let mut gangs = TestGangs::new(4);
    let mut wanted = Resources::default();
    wanted.set("cpu", Quantity::units(4));
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(4), wanted));
    let keys = [named("g"), vec![(format!("{G}match-policy"), "waiting-running-succeed".to_owned())]].concat();
    gangs.members("g", 4, &keys);
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 4);
    (0..3).for_each(|n| gangs.cluster.finish(&format!("g-{n}")));
    (0..3).for_each(|n| gangs.member(&format!("other-{n}"), &[]));
    gangs.wait(2);
    gangs.fail("g-3");
    gangs.member("g-4", &keys);
    gangs.wait(2);
    assert!(gangs.bound().contains(&"g-4".to_owned()), "{}", gangs.condition("g-4"));
}

#[test]
fn a_final_failure_evicts_the_others_and_not_the_pod_itself() {
    let mut config = Config::default();
    config.gangs.on_bind_failure = OnBindFailure::EvictGang;
    config.retry.2 = std::time::Duration::from_secs(2);
    let mut gangs = TestGangs::with(config);
    gangs.node("n", 8);
    gangs.cluster.bind_faults = std::iter::repeat_n(Fault::Fails, 40).collect();
    gangs.members("g", 3, &gang("g", "3", &[]));
    gangs.wait(1);
    let first = gangs.cluster.bind_faults.len();
    gangs.wait(68);
    assert!(first > gangs.cluster.bind_faults.len() || first < 40);
    let evicted = gangs.cluster.evicted.clone();
    assert!(!evicted.is_empty(), "a member could not be bound for good");
    assert!(evicted.len() < 3 * 3, "{evicted:?}");
}

#[test]
fn a_commit_that_lost_a_member_is_completed_by_the_others_after_a_restart() {
    let mut gangs = TestGangs::new(3);
    gangs.members("g", 4, &gang("g", "3", &[("match-policy", "only-waiting")]));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 3);
    let gone = gangs.bound().first().cloned().unwrap();
    gangs.delete(&gone);
    gangs.member("young", &gang("g", "3", &[("match-policy", "only-waiting")]));
    gangs.wait(2);
    assert_eq!(gangs.bound().len(), 2, "only-waiting asks for a new quorum");
    gangs.cluster.restart();
    gangs.wait(2);
    let bound = gangs.bound();
    assert_eq!((bound.len(), bound.contains(&"young".to_owned())), (3, false), "{bound:?}");
}

#[test]
fn each_member_has_one_event_of_each_state_of_its_gang() {
    let mut gangs = TestGangs::new(2);
    let reported = |gangs: &TestGangs, reason: &str| {
        let of_reason = gangs.cluster.notices.iter().filter(|(_, found)| *found == reason);
        of_reason.map(|(pod, _)| pod.clone()).collect::<Vec<_>>()
    };
    gangs.members("g", 5, &gang("g", "5", &[]));
    gangs.wait(5);
    assert_eq!(reported(&gangs, "Unschedulable"), ["g-0", "g-1", "g-2", "g-3", "g-4"]);
    assert_eq!(gangs.reported("FailedScheduling"), 0);
    gangs.wait(300);
    assert_eq!(gangs.reported("Unschedulable"), 5, "nothing has changed");
    gangs.delete("g-0");
    gangs.wait(2);
    assert_eq!(
        reported(&gangs, "GangIncomplete")[4..],
        ["g-1", "g-2", "g-3", "g-4"],
        "the first four: while it was made"
    );
    gangs.member("g-5", &gang("g", "5", &[]));
    gangs.wait(2);
    assert_eq!(reported(&gangs, "Unschedulable")[5..], ["g-1", "g-2", "g-3", "g-4", "g-5"]);
    // What an event says is what the condition says.
    let last = |pod: &str| gangs.cluster.messages.iter().rfind(|(of, ..)| of == pod).map(|(.., text)| text.clone());
    for n in 1..6 {
        assert_eq!(last(&format!("g-{n}")).as_deref(), Some(gangs.condition(&format!("g-{n}"))));
    }
}

#[test]
fn a_running_gang_that_only_counts_who_waits_is_not_shown_as_failed() {
    let mut gangs = TestGangs::new(8);
    gangs.members("g", 3, &gang("g", "3", &[("match-policy", "only-waiting")]));
    gangs.wait(2);
    assert_eq!(gangs.count("g"), 3);
    let moment = gangs.cluster.moment();
    let shown = gangs.cluster.scheduler.snapshot().gang_views(moment);
    assert_eq!(shown[0].last_failure, None);
    let id = baton::contract::gang::GangId::parse("ml/g").unwrap();
    assert_eq!(gangs.cluster.scheduler.snapshot().explain_gang(&id, moment).unwrap().state, "satisfied");
}

#[test]
fn pods_made_in_the_second_of_a_former_satisfaction_need_their_minimum() {
    let mut gangs = TestGangs::new(4);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(2));
    gangs.members("g", 2, &named("g"));
    gangs.settle();
    assert_eq!(gangs.count("g"), 2);
    gangs.cluster.now += std::time::Duration::from_secs(1);
    let since = crate::harness::wall(gangs.cluster.now);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(2);
        facts.status.conditions = vec![condition(CONDITION_SATISFIED, since)];
    });
    ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
    gangs.settle();
    gangs.member("again", &named("g"));
    gangs.wait(2);
    assert_eq!((gangs.count("again"), gangs.reason("again")), (0, "GangIncomplete"));
    gangs.member("too", &named("g"));
    gangs.wait(2);
    assert_eq!((gangs.count("again"), gangs.count("too")), (1, 1));
}

#[test]
fn each_gang_of_a_group_that_is_not_ready_is_told_its_own_reason() {
    let mut gangs = TestGangs::new(8);
    let of_group = (format!("{G}groups"), group(&["ml/a", "ml/b", "ml/c"]));
    let mut keys = gang("a", "1", &[]);
    keys.push(of_group.clone());
    gangs.member("a-0", &keys);
    let mut keys = named("b");
    keys.push(of_group);
    gangs.member("b-0", &keys);
    gangs.settle();
    assert_eq!((gangs.reason("a-0"), gangs.reason("b-0")), ("GangIncomplete", "WaitingForPodGroup"));
    gangs.pod_group("ml/b", |facts| facts.spec.min = Some(1));
    gangs.settle();
    assert_eq!(gangs.reason("b-0"), "GangIncomplete");
    assert!(gangs.condition("b-0").contains("which has no pods yet"), "{}", gangs.condition("b-0"));
}

#[test]
fn a_group_that_two_others_try_in_one_call_commits_once() {
    let mut gangs = TestGangs::with(Config::default());
    gangs.accumulating = true;
    for (node, cpus) in [("x", 2), ("y", 2), ("z", 2)] {
        gangs.plain_node(node, cpus, node);
    }
    for node in ["y", "z"] {
        gangs.cluster.change_node(node, |facts| facts.labels.extend([("wide".to_owned(), "yes".to_owned())]));
    }
    let submit = |gangs: &mut TestGangs, name: &str, priority: i32, pools: &[(&str, &str)]| {
        let keys =
            gang(name, &pools.len().to_string(), &[("mode", "NonStrict"), ("match-policy", "waiting-and-running")]);
        for (n, (key, value)) in pools.iter().enumerate() {
            let mut facts = gangs.facts(&format!("{name}-{n}"), &[("cpu", "1")], &keys);
            facts.spec.priority = priority;
            facts.spec.node_selector = [((*key).to_owned(), (*value).to_owned())].into();
            gangs.cluster.submit(facts);
        }
        gangs.wait(2);
    };
    let mut filler = gangs.facts("filler", &[("cpu", "1")], &[]);
    filler.spec.priority = 100;
    filler.spec.node_selector = [("pool".to_owned(), "y".to_owned())].into();
    gangs.cluster.submit(filler);
    gangs.wait(1);
    submit(&mut gangs, "d", 10, &[("pool", "x"), ("pool", "z"), ("pool", "z"), ("pool", "nowhere")]);
    submit(&mut gangs, "c", 20, &[("wide", "yes"), ("wide", "yes"), ("pool", "q")]);
    submit(&mut gangs, "b", 30, &[("pool", "y"), ("pool", "y"), ("pool", "q")]);
    gangs.delete("filler");
    gangs.wait(2);
    submit(&mut gangs, "a", 40, &[("pool", "x"), ("pool", "x"), ("pool", "q")]);
    let held = ["ml/a", "ml/b", "ml/c", "ml/d"].map(|name| gangs.reserved(name));
    assert_eq!(held, [1, 1, 1, 3], "each lacks what another one holds, or a node");

    // One pass: a takes x from d, b takes y from c, and c moves to z, which d has left. a's pass, too, tries c.
    gangs.plain_node("q", 3, "q");
    gangs.wait(30);
    assert_eq!(["a", "b", "c", "d"].map(|name| gangs.count(name)), [3, 3, 3, 0]);
    assert_eq!(gangs.reported("GangSatisfied"), 3);
}

#[test]
fn a_member_that_runs_without_its_devices_has_not_started() {
    let mut gangs = TestGangs::new(4);
    gangs.members("g", 1, &gang("g", "1", &[]));
    gangs.cluster.settle();
    let mut started = |unserved| {
        gangs.change("g-0", |facts| (facts.handoff.phase, facts.spec.unserved) = (Phase::Running, unserved));
        let book = gangs.cluster.world().gangs();
        let counts = book.gang(&GangId::parse("ml/g").unwrap()).unwrap().counts();
        (counts.bound, counts.running)
    };
    assert_eq!([started(false), started(true)], [(0, 1), (1, 0)]);
}
