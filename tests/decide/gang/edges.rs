//! What happens to gangs at the edges of their rule: when it ends, comes back, moves to another group, or binds only some.

use baton::contract::gang::GangId;
use baton::contract::gang::key::CONDITION_SATISFIED;
use baton::contract::{Quantity, key};
use baton::decide::core::OnBindFailure;
use baton::decide::explain::GangView;
use baton::decide::pod::Phase;
use baton::decide::scheduler::Config;
use baton::decide::world::{NodeFacts, Resources, WorldEvent};

use crate::harness::gangs::{G, P, TestGangs, end, gang};
use crate::harness::parts::{condition, labels_of};
use crate::harness::{Fault, gpu_device};

fn group(keys: &[&str]) -> String {
    format!("[{}]", keys.iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(","))
}

fn named(name: &str) -> Vec<(String, String)> {
    vec![(P.to_owned(), name.to_owned())]
}

/// A node whose daemon or device is away offers less than its pods have.
#[test]
fn a_node_that_offers_less_than_is_taken_there_costs_a_gang_nothing_elsewhere() {
    let mut gangs = TestGangs::new(4);
    gangs.node("m", 4);
    gangs.cluster.change_node("n", |facts| facts.unschedulable = true);
    (0..4).for_each(|n| gangs.member(&format!("other-{n}"), &[]));
    assert_eq!(gangs.after(2).count("other"), 4);
    gangs.cluster.change_node("m", |facts| facts.allocatable.set("cpu", Quantity::units(1)));
    gangs.cluster.change_node("n", |facts| facts.unschedulable = false);
    let mut wanted = Resources::default();
    wanted.set("cpu", Quantity::units(4));
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(4), wanted));
    gangs.members("g", 4, &named("g"));
    assert_eq!(gangs.after(2).count("g"), 4, "{}", gangs.condition("g-0"));
}

/// The kubelet takes a failed GPU from what it offers, and the request of the pod that has it counts still.
#[test]
fn min_resources_count_the_free_gpu_beside_one_that_failed_under_its_pod() {
    let mut gangs = TestGangs::new(64);
    (0..7).for_each(|minor| gangs.cluster.bound_by_another(&format!("held-{minor}"), "n", minor));
    gangs.cluster.device("n", 8, |device| device.spec.devices[0].health = false);
    gangs.cluster.change_node("n", |facts| facts.allocatable.set(key::NVIDIA_GPU, Quantity::units(7)));
    let wanted = Resources::of([(key::NVIDIA_GPU, Quantity::units(1))]);
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(1), wanted));
    gangs.asks("g-0", &[(key::NVIDIA_GPU, "1")], &named("g"));
    assert_eq!(gangs.after(2).count("g"), 1, "{}", gangs.condition("g-0"));
}

/// The same by a name of shares.
#[test]
fn min_resources_count_the_free_share_beside_one_that_failed_under_its_pod() {
    let mut gangs = TestGangs::new(64);
    let share = [(key::GPU_SHARED, "1"), (key::GPU_MEMORY_RATIO, "100")];
    (0..7).for_each(|at| gangs.asks(&format!("held-{at}"), &share, &[]));
    gangs.wait(8);
    let mut device = gpu_device("n", 8);
    let at = gangs.cluster.devices_of("held-0").devices.values().flatten().next().unwrap().minor;
    device.spec.devices[at as usize].health = false;
    gangs.cluster.event(WorldEvent::Devices(Box::new(device)));
    let seven = |facts: &mut NodeFacts| facts.allocatable.set(key::GPU_MEMORY_RATIO, Quantity::units(700));
    gangs.cluster.change_node("n", seven);
    let wanted = Resources::of([(key::GPU_MEMORY_RATIO, Quantity::units(100))]);
    gangs.pod_group("ml/g", |facts| (facts.spec.min, facts.min_resources) = (Some(1), wanted));
    gangs.asks("g-0", &share, &named("g"));
    assert_eq!(gangs.after(2).count("g"), 1, "{}", gangs.condition("g-0"));
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
    assert_eq!(gangs.after(2).count("g"), 1, "{}", gangs.condition("g-0"));
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
    assert_eq!(gangs.after(2).count("g"), 4);
    (0..3).for_each(|n| gangs.cluster.finish(&format!("g-{n}")));
    (0..3).for_each(|n| gangs.member(&format!("other-{n}"), &[]));
    gangs.wait(2);
    gangs.fail("g-3");
    gangs.member("g-4", &keys);
    assert!(gangs.after(2).bound().contains(&"g-4".to_owned()), "{}", gangs.condition("g-4"));
}

#[test]
fn a_final_failure_evicts_the_others_and_not_the_pod_itself() {
    let mut config = Config::default();
    config.gangs.on_bind_failure = OnBindFailure::EvictGang;
    config.retry.limit = std::time::Duration::from_secs(2);
    let mut gangs = TestGangs::with(config);
    gangs.node("n", 8);
    gangs.cluster.bind_faults = std::iter::repeat_n(Fault::Fails, 40).collect();
    gangs.members("g", 3, &gang("g", "3", &[]));
    let first = gangs.after(1).cluster.bind_faults.len();
    gangs.wait(68);
    assert!(first > gangs.cluster.bind_faults.len() || first < 40);
    let evicted = gangs.cluster.evicted.clone();
    assert!(!evicted.is_empty(), "a member could not be bound for good");
    assert!(evicted.len() < 3 * 3, "{evicted:?}");
}

#[test]
fn a_commit_that_lost_a_member_is_completed_by_the_others_after_a_restart() {
    let mut gangs = TestGangs::new(3).asked("g", 4, "3", &[("match-policy", "only-waiting")]);
    assert_eq!(gangs.after(2).count("g"), 3);
    let gone = gangs.bound().first().cloned().unwrap();
    gangs.delete(&gone);
    gangs.member("young", &gang("g", "3", &[("match-policy", "only-waiting")]));
    assert_eq!(gangs.after(2).bound().len(), 2, "only-waiting asks for a new quorum");
    gangs.cluster.restart();
    let bound = gangs.after(2).bound();
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
    assert_eq!(gangs.after(300).reported("Unschedulable"), 5, "nothing has changed");
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
    let mut gangs = TestGangs::new(8).asked("g", 3, "3", &[("match-policy", "only-waiting")]);
    assert_eq!(gangs.after(2).count("g"), 3);
    let moment = gangs.cluster.moment();
    let shown = gangs.cluster.scheduler.snapshot().gang_views(moment);
    assert_eq!(shown[0].last_failure, None);
    let id = baton::contract::gang::GangId::parse("ml/g").unwrap();
    assert_eq!(gangs.cluster.scheduler.snapshot().explain_gang(&id, moment).unwrap().state, "satisfied");
}

#[test]
fn members_that_have_ended_or_are_marked_are_not_shown_as_not_created() {
    let mut gangs = TestGangs::new(8).asked("g", 4, "4", &[]);
    gangs.member("h-0", &gang("h", "3", &[("timeout", "true")]));
    gangs.wait(2);
    let now = gangs.cluster.now;
    gangs.change("g-0", |facts| end(facts, Phase::Succeeded, now));
    gangs.fail("g-1");
    let moment = gangs.cluster.moment();
    let shown = gangs.cluster.scheduler.snapshot().gang_views(moment);
    let members: Vec<String> = shown.iter().map(GangView::members).collect();
    assert!(
        members[0].starts_with("2 bound, ") && members[0].ends_with(" started, 1 succeeded, 1 failed"),
        "{members:?}"
    );
    assert_eq!(members[1], "1 marked, 2 not created");
}

#[test]
fn pods_made_in_the_second_of_a_former_satisfaction_need_their_minimum() {
    need_their_minimum(|_| ());
    // The next leader has not seen that no member lived in between.
    need_their_minimum(|gangs| gangs.cluster.restart());
}

fn need_their_minimum(then: impl Fn(&mut TestGangs)) {
    let mut gangs = TestGangs::new(4);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(2));
    gangs.come("g", 2, &named("g"));
    assert_eq!(gangs.count("g"), 2);
    gangs.cluster.now += std::time::Duration::from_secs(1);
    let since = crate::harness::wall(gangs.cluster.now);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(2);
        facts.status.conditions = vec![condition(CONDITION_SATISFIED, CONDITION_SATISFIED, "", since)];
    });
    ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
    gangs.settle();
    gangs.member("again", &named("g"));
    then(&mut gangs);
    gangs.wait(2);
    assert_eq!((gangs.count("again"), gangs.reason("again")), (0, "GangIncomplete"));
    gangs.member("too", &named("g"));
    gangs.wait(2);
    assert_eq!((gangs.count("again"), gangs.count("too")), (1, 1));
}

/// As after a list in place of a watch that broke: the scheduler runs only once the new ones are there.
#[test]
fn pods_that_took_the_place_of_all_others_unseen_need_their_minimum() {
    let mut gangs = TestGangs::new(4).asked("g", 2, "2", &[]);
    assert_eq!(gangs.after(2).count("g"), 2);
    ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
    gangs.member("again", &gang("g", "2", &[]));
    gangs.wait(2);
    assert_eq!((gangs.count("again"), gangs.reason("again")), (0, "GangIncomplete"));
    gangs.member("too", &gang("g", "2", &[]));
    gangs.wait(2);
    assert_eq!((gangs.count("again"), gangs.count("too")), (1, 1));
}

/// It was there when the gang was satisfied, and all that were bound have gone since: nothing tells the next leader in which order.
#[test]
fn a_member_that_waits_needs_the_minimum_once_all_others_have_gone() {
    let mut gangs = TestGangs::new(2);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(2));
    gangs.come("g", 3, &named("g"));
    let bound = gangs.bound();
    assert_eq!(bound.len(), 2);
    gangs.wait(1);
    let since = crate::harness::wall(gangs.cluster.now);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(2);
        facts.status.conditions = vec![condition(CONDITION_SATISFIED, CONDITION_SATISFIED, "", since)];
    });
    bound.iter().for_each(|name| gangs.delete(name));
    gangs.cluster.restart();
    gangs.wait(2);
    assert_eq!((gangs.bound().len(), gangs.reason("g-2")), (0, "GangIncomplete"));
    gangs.member("g-3", &named("g"));
    gangs.wait(2);
    assert_eq!(gangs.bound().len(), 2, "{}", gangs.condition("g-3"));
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
    gangs.comes("b-0", &keys);
    assert_eq!((gangs.reason("a-0"), gangs.reason("b-0")), ("GangIncomplete", "WaitingForPodGroup"));
    gangs.pod_group("ml/b", |facts| facts.spec.min = Some(1));
    assert_eq!(gangs.settled().reason("b-0"), "GangIncomplete");
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
            gangs.asks_as(&format!("{name}-{n}"), &[("cpu", "1")], &keys, |facts| {
                facts.spec.priority = priority;
                facts.spec.node_selector = labels_of(key, value);
            });
        }
        gangs.wait(2);
    };
    gangs.asks_as("filler", &[("cpu", "1")], &[], |facts| {
        facts.spec.priority = 100;
        facts.spec.node_selector = labels_of("pool", "y");
    });
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
    let mut gangs = TestGangs::new(4).asked("g", 1, "1", &[]);
    gangs.cluster.settle();
    let mut started = |unserved| {
        gangs.change("g-0", |facts| (facts.handoff.phase, facts.spec.unserved) = (Phase::Running, unserved));
        let book = gangs.cluster.world().gangs();
        let counts = book.gang(&GangId::parse("ml/g").unwrap()).unwrap().counts();
        (counts.bound, counts.running)
    };
    assert_eq!([started(false), started(true)], [(0, 1), (1, 0)]);
}
