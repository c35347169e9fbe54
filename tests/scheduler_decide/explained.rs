//! What people are told: of pods that wait, of pods that do not exist, of the queue. `docs/explain.md` quotes it.

use std::path::Path;

use baton::contract::PodKey;
use baton::contract::key;
use baton::decide::scheduler::{PodState, QueueItem};
use baton::decide::world::spec::{PodTerm, Taint, TaintEffect, VolumeUse};
use baton::decide::world::{ClaimFacts, NodeId, PodFacts, WorldEvent};
use baton::ops::explain::{pod_text, what_if_text};

use crate::env::{Env, pod};

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];
const FOUR: &[(&str, &str)] = &[(key::NVIDIA_GPU, "4")];

fn explain(env: &mut Env, name: &str, wide: bool) -> String {
    let now = env.moment();
    let explanation = env.engine.explain(&PodKey::new("ml", name), now).unwrap();
    // As it goes over the wire.
    let sent = serde_json::to_string(&explanation).unwrap();
    pod_text(&serde_json::from_str(&sent).unwrap(), wide)
}

fn changed(
    name: &str,
    limits: &[(&str, &str)],
    now: std::time::Duration,
    change: impl FnOnce(&mut PodFacts),
) -> PodFacts {
    let mut facts = pod(name, limits, now);
    change(&mut facts);
    facts
}

/// Three nodes: one is full, one has no agent, one is tainted.
fn cluster() -> Env {
    let mut env = Env::new();
    env.node("gpu-a", 2);
    env.node("gpu-b", 2);
    env.node("reserved", 8);
    env.plain_node("agentless", 8);
    env.change_node("reserved", |facts| {
        facts.taints.push(Taint { key: "gpu".into(), value: "reserved".into(), effect: TaintEffect::NoSchedule });
    });
    env
}

fn few_gpus() -> String {
    let mut env = cluster();
    env.pod("first", ONE);
    env.settle();
    env.wait(20);
    env.pod("train", FOUR);
    env.settle();
    env.wait(12);
    explain(&mut env, "train", true)
}

#[test]
fn a_name_that_no_node_offers_is_named_first() {
    let mut env = Env::new();
    env.node("n", 8);
    let facts = changed("typo", &[], env.now, |facts| facts.spec.requests.scalar.insert("nvidia.com/gpux".into(), 1));
    env.submit(facts);
    env.settle();
    let text = explain(&mut env, "typo", false);
    let helps = text.split("What helps:\n").nth(1).unwrap();
    assert!(helps.starts_with("- No node offers nvidia.com/gpux: correct the name"), "{text}");
}

fn agent() -> String {
    let mut env = Env::new();
    env.plain_node("gpu-a", 8);
    env.pod("train", ONE);
    env.settle();
    explain(&mut env, "train", false)
}

fn taint() -> String {
    let mut env = Env::new();
    env.node("reserved", 8);
    env.change_node("reserved", |facts| {
        facts.taints.push(Taint { key: "gpu".into(), value: "reserved".into(), effect: TaintEffect::NoSchedule });
    });
    env.pod("train", ONE);
    env.settle();
    explain(&mut env, "train", false)
}

fn invalid() -> String {
    let mut env = cluster();
    env.pod("train", &[(key::GPU_CORE, "50")]);
    env.settle();
    explain(&mut env, "train", false)
}

fn near() -> String {
    let mut env = cluster();
    let term = PodTerm {
        selector: Some(serde_json::from_str(r#"{"matchLabels":{"app":"cache"}}"#).unwrap()),
        namespaces: vec!["ml".into()],
        topology_key: "kubernetes.io/hostname".into(),
        ..PodTerm::default()
    };
    env.submit(changed("train", ONE, env.now, |facts| {
        let mut spec = (*facts.spec).clone();
        spec.affinity = vec![term];
        facts.spec = spec.into();
    }));
    env.settle();
    explain(&mut env, "train", false)
}

fn claim() -> String {
    let mut env = cluster();
    env.event(WorldEvent::Claim(PodKey::new("ml", "data"), ClaimFacts { deleting: true, ..ClaimFacts::default() }));
    env.submit(changed("train", ONE, env.now, |facts| {
        let mut spec = (*facts.spec).clone();
        spec.volumes = vec![VolumeUse::Claim("data".into())];
        facts.spec = spec.into();
    }));
    env.settle();
    explain(&mut env, "train", false)
}

fn dra() -> String {
    let mut env = cluster();
    env.submit(changed("train", ONE, env.now, |facts| {
        let mut spec = (*facts.spec).clone();
        spec.resource_claims = true;
        facts.spec = spec.into();
    }));
    env.settle();
    explain(&mut env, "train", false)
}

fn what_if() -> String {
    let mut env = cluster();
    let facts = pod("train", &[(key::NVIDIA_GPU, "2")], env.now);
    let now = env.moment();
    what_if_text(&env.engine.what_if(facts, now), false)
}

#[test]
fn the_documentation_quotes_what_is_printed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/explain.md");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let blocks = [
        ("few-gpus", few_gpus()),
        ("agent", agent()),
        ("taint", taint()),
        ("invalid", invalid()),
        ("affinity", near()),
        ("claim", claim()),
        ("dra", dra()),
        ("what-if", what_if()),
    ];
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    for (mark, printed) in blocks {
        let open = format!("<!-- {mark} -->\n```text\n");
        let start = text.find(&open).unwrap_or_else(|| panic!("docs/explain.md has no block {mark}")) + open.len();
        let end = start + text[start..].find("```").unwrap();
        if update {
            text.replace_range(start..end, &printed);
        }
        assert!(update || text[start..end] == printed, "{mark}: UPDATE_DOCS=1 writes it anew; printed is\n{printed}");
    }
    if update {
        std::fs::write(&path, text).unwrap();
    }
}

/// What the accounts of every node say.
fn accounts(env: &Env) -> Vec<(NodeId, String)> {
    let world = env.engine.world();
    let of = |(id, node): (NodeId, &baton::decide::world::Node)| {
        let free = node.stock.as_ref().map(baton::decide::world::Stock::describe);
        (id, format!("{:?} {:?} {free:?}", node.used, node.pods))
    };
    world.nodes().map(of).collect()
}

#[test]
fn what_if_says_what_is_then_decided_and_takes_nothing() {
    for gpus in ["1", "2", "4", "8", "9"] {
        let mut env = cluster();
        env.node("big", 8);
        env.pod("first", FOUR);
        env.settle();
        env.wait(1);
        let (before, now) = (accounts(&env), env.moment());
        let facts = pod("next", &[(key::NVIDIA_GPU, gpus)], env.now);
        let answer = env.engine.what_if(facts.clone(), now);
        assert_eq!(accounts(&env), before, "{gpus}: nothing is taken");
        assert!(env.engine.world().pod_by_key(&PodKey::new("ml", "next")).is_none());
        assert!(env.engine.run(now).is_empty(), "nothing is written");
        env.agent_releases("big");
        env.submit(facts);
        env.settle();
        assert_eq!(answer.node.as_deref(), env.node_of("next"), "{gpus} GPUs");
        if let Some(node) = &answer.node {
            assert_eq!(&answer.best[0].node, node);
            let devices = env.devices_of("next");
            let given: Vec<String> =
                devices.devices.values().flatten().map(|d| format!("{} (minor {})", d.id, d.minor)).collect();
            assert_eq!(answer.devices, given, "{gpus} GPUs");
        } else {
            assert_eq!(answer.verdict.message, env.conditions["next"], "{gpus} GPUs");
        }
    }
}

#[test]
fn what_if_says_who_would_have_to_leave() {
    let mut env = Env::new();
    env.node("n", 2);
    env.pod("small", &[(key::NVIDIA_GPU, "2")]);
    env.settle();
    let facts = changed("urgent", ONE, env.now, |facts| {
        let mut spec = (*facts.spec).clone();
        spec.priority = 100;
        facts.spec = spec.into();
    });
    let now = env.moment();
    let answer = env.engine.what_if(facts, now);
    assert_eq!((answer.fits, answer.would_evict.as_slice()), (false, &["ml/small".to_owned()][..]));
    assert!(env.evicted.is_empty());
    assert!(answer.verdict.message.contains("would evict ml/small from node n"), "{}", answer.verdict.message);
}

#[test]
fn the_state_of_a_pod_is_told_in_every_stage() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("first", ONE);
    env.settle();
    env.pod("second", ONE);
    env.settle();
    let now = env.moment();
    let mut state = |name: &str| {
        let told = env.engine.explain(&PodKey::new("ml", name), now).unwrap();
        (told.state, told.verdict.message)
    };
    assert_eq!(state("first"), (PodState::Bound, "bound to node n".to_owned()));
    let (second, message) = state("second");
    assert_eq!(second, PodState::WaitingForLock);
    assert!(message.contains("held by ml/first"), "{message}");
    assert!(explain(&mut env, "second", false).contains("baton get locks"));
    env.submit(changed("theirs", ONE, env.now, |facts| facts.handoff.scheduler_name = "default-scheduler".into()));
    env.finish("first");
    let told = explain(&mut env, "theirs", false);
    assert!(told.contains("spec.schedulerName is default-scheduler"), "{told}");
    assert!(told.contains("What helps") && told.contains("schedulerName: baton-scheduler"), "{told}");
    assert!(explain(&mut env, "first", false).contains("has ended"));
    let now = env.moment();
    assert!(env.engine.explain(&PodKey::new("ml", "nobody"), now).is_none());
}

/// Members of the gang `ml/g` of two, each of four GPUs.
fn member(env: &mut Env, name: &str) {
    let keys = crate::gang_env::gang("g", "2", &[]);
    env.submit(changed(name, FOUR, env.now, |facts| facts.spec.gang = crate::gang_env::declared("ml", &keys)));
}

#[test]
fn a_member_is_explained_by_what_its_gang_lacks_whoever_came_first() {
    let mut env = Env::new();
    env.node("n", 6);
    member(&mut env, "g-0");
    env.settle();
    env.wait(2);
    let told = explain(&mut env, "g-0", false);
    assert!(told.contains("starts together with the gang ml/g") && told.contains("has 1 of 2 pods"), "{told}");
    assert!(told.contains("baton explain gang ml/g") && told.contains("the gang or its members change"), "{told}");
    assert!(!told.contains("REFUSED") && !told.contains("would go to"), "no node has to do with it: {told}");
    let report = env.engine.queue_report(env.moment());
    let held = report.items.iter().find(|item| item.kind == "group").unwrap();
    assert!(held.queued_seconds >= 2 && held.rules == ["Gang"], "{held:?}");
    member(&mut env, "g-1");
    env.settle();
    env.wait(2);
    for name in ["g-0", "g-1"] {
        let told = explain(&mut env, name, false);
        assert!(told.contains("starts together with the gang ml/g") && told.contains("tried 1 time"), "{told}");
        assert!(told.contains("gang ml/g: 0 of 2 placed") && told.contains("by itself: would go to node n"), "{told}");
        assert!(!told.contains("Only a change of the pod itself"), "{told}");
    }
    let report = env.engine.queue_report(env.moment());
    let names: Vec<&str> = report.items.iter().map(|item| &*item.name).collect();
    assert_eq!(names, ["ml/g"], "the first one stands in no line of its own any more");
}

#[test]
fn the_queue_tells_state_attempts_next_try_and_refusing_rules() {
    let mut env = Env::new();
    env.node("n", 2);
    env.pod("first", ONE);
    env.settle();
    env.pod("second", ONE);
    env.pod("big", FOUR);
    env.settle();
    env.wait(10);
    let report = env.engine.queue_report(env.moment());
    assert!(report.leading);
    let item = |name: &str| report.items.iter().find(|item| item.name == name).unwrap();
    let QueueItem { state, attempts, next_try_seconds, rules, wakes, .. } = item("ml/big");
    assert_eq!((*state, *attempts, *next_try_seconds), (PodState::Parked, 1, Some(290)));
    assert_eq!(rules, &["NodeResourcesFit"]);
    assert!(wakes.iter().any(|wake| wake == "a pod leaves its node"), "{wakes:?}");
    assert_eq!(report.items[0].name, "ml/second", "who is in flight comes first");
    assert_eq!((item("ml/second").state, item("ml/second").node.as_deref()), (PodState::WaitingForLock, Some("n")));
    env.engine.lead(false, env.moment());
    assert!(!env.engine.queue_report(env.moment()).leading);
}
