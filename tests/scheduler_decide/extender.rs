//! What kube-scheduler is told when others leave a node for a pod: the room is that pod's, and budgets count.

use std::collections::BTreeMap;

use baton::contract::hint::LabelSelector;
use baton::contract::{PodKey, PodUid, key};
use baton::decide::pod::Deletion;
use baton::decide::scheduler::rules::plugins::{DefaultSet, NodesWithoutAgent};
use baton::decide::scheduler::{AskId, BindVerdict, EngineConfig, PodState};
use baton::decide::world::{BudgetFacts, PodFacts, WorldEvent};

use crate::env::{Env, pod};

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];
const TWO: &[(&str, &str)] = &[(key::NVIDIA_GPU, "2")];
const THEIRS: &str = "default-scheduler";

fn env() -> Env {
    let config = EngineConfig { asking_names: [THEIRS.into()].into(), ..EngineConfig::default() };
    Env::with(config, DefaultSet::default())
}

/// A pod that kube-scheduler places.
fn theirs(env: &Env, name: &str, limits: &[(&str, &str)], priority: i32) -> PodFacts {
    let mut facts = pod(name, limits, env.now);
    facts.handoff.scheduler_name = THEIRS.into();
    facts.spec.priority = priority;
    facts.spec.labels = BTreeMap::from([("app".to_owned(), name.to_owned())]);
    facts
}

fn bound(env: &mut Env, name: &str, limits: &[(&str, &str)], priority: i32) {
    let mut facts = pod(name, limits, env.now);
    facts.spec.priority = priority;
    facts.spec.labels = BTreeMap::from([("app".to_owned(), name.to_owned())]);
    env.submit(facts);
    env.settle();
    for node in env.locks.keys().cloned().collect::<Vec<_>>() {
        env.agent_releases(&node);
    }
    env.settle();
    assert!(env.node_of(name).is_some(), "{name}");
}

fn fitting(env: &mut Env, facts: &PodFacts, nodes: &[&str]) -> Vec<String> {
    let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
    let now = env.moment();
    env.engine.fit_devices(facts, &nodes, now).fitting
}

#[test]
fn gpus_of_nodes_without_an_agent_are_counted_for_kube_scheduler_too() {
    let config = EngineConfig { asking_names: [THEIRS.into()].into(), ..EngineConfig::default() };
    let set = DefaultSet { without_agent: NodesWithoutAgent::Plain, ..DefaultSet::default() };
    let mut env = Env::with(config, set);
    env.plain_node("n", 2);
    let third = theirs(&env, "third", ONE, 0);
    for name in ["first", "second"] {
        assert_eq!(fitting(&mut env, &third, &["n"]), ["n"]);
        bound(&mut env, name, ONE, 0);
    }
    assert_eq!(fitting(&mut env, &third, &["n"]), [""; 0]);
    env.submit(third.clone());
    let now = env.moment();
    let effects = env.engine.ask_bind(AskId(1), &third.handoff.pod, "n", std::time::Duration::from_secs(10), now);
    env.perform(effects);
    let answers = env.engine.take_answers();
    assert!(
        matches!(&answers[0].verdict, BindVerdict::Failed(why) if why.contains("fewer than 1 free GPUs")),
        "{answers:?}"
    );
    env.delete("first");
    assert_eq!(fitting(&mut env, &third, &["n"]), ["n"]);
}

#[test]
fn a_pod_of_kube_scheduler_is_explained_by_what_it_is_told_here_and_its_bind_is_listed() {
    let mut env = env();
    env.node("n", 1);
    bound(&mut env, "first", ONE, 0);
    let waiting = theirs(&env, "waiting", ONE, 0);
    env.submit(waiting.clone());
    let key = PodKey::new("ml", "waiting");
    let now = env.moment();
    let told = env.engine.explain(&key, now).unwrap().verdict;
    assert!(
        told.message.contains(THEIRS) && told.message.contains("0/1 nodes: 1 have fewer than 1 free GPUs"),
        "{told:?}"
    );
    assert!(!told.rules.is_empty() && told.nodes.len() == 1, "{told:?}");
    env.delete("first");
    let told = env.engine.explain(&key, env.moment()).unwrap().verdict;
    assert!(told.message.ends_with("fits node n"), "{told:?}");
    env.set_lock("n", "who knows");
    let now = env.moment();
    let effects = env.engine.ask_bind(AskId(1), &waiting.handoff.pod, "n", std::time::Duration::from_secs(10), now);
    env.perform(effects);
    let listed = env.engine.queue_report(env.moment()).items;
    let bind = listed.iter().find(|item| item.name == key.to_string()).unwrap();
    assert_eq!((bind.node.as_deref(), bind.state), (Some("n"), PodState::WaitingForLock), "{bind:?}");
}

#[test]
fn devices_that_were_freed_for_a_nominated_pod_are_closed_to_less_important_ones() {
    let mut env = env();
    env.node("n1", 2);
    env.node("n2", 1);
    let mut high = theirs(&env, "high", TWO, 100);
    high.spec.nominated = Some("n1".into());
    env.submit(high.clone());
    let low = theirs(&env, "low", ONE, 0);
    env.submit(low.clone());
    assert_eq!(fitting(&mut env, &low, &["n1", "n2"]), ["n2"], "the room was made for the other one");
    assert_eq!(fitting(&mut env, &high, &["n1", "n2"]), ["n1"]);
    let higher = theirs(&env, "higher", ONE, 200);
    assert_eq!(fitting(&mut env, &higher, &["n1", "n2"]), ["n1", "n2"]);
    let now = env.moment();
    let effects = env.engine.ask_bind(AskId(1), &low.handoff.pod, "n1", std::time::Duration::from_secs(10), now);
    env.perform(effects);
    let answers = env.engine.take_answers();
    assert!(matches!(&answers[0].verdict, BindVerdict::Failed(why) if why.contains("n1")), "{answers:?}");
    env.delete("high");
    assert_eq!(fitting(&mut env, &low, &["n1", "n2"]), ["n1", "n2"]);
}

#[test]
fn the_node_is_closed_while_the_victims_of_a_nominated_pod_are_leaving() {
    let mut env = env();
    env.node("n1", 2);
    bound(&mut env, "victim", ONE, 0);
    let mut high = theirs(&env, "high", TWO, 100);
    high.spec.nominated = Some("n1".into());
    env.submit(high);
    let low = theirs(&env, "low", ONE, 0);
    assert_eq!(fitting(&mut env, &low, &["n1"]), [""; 0]);
}

fn guard(env: &mut Env, app: &str) {
    let selector: LabelSelector = serde_json::from_str(&format!(r#"{{"matchLabels":{{"app":"{app}"}}}}"#)).unwrap();
    env.event(WorldEvent::Budget(PodKey::new("ml", app), BudgetFacts { selector: Some(selector), allowed: 0 }));
}

fn room(env: &mut Env, facts: &PodFacts, proposed: &[&str]) -> Option<(Vec<String>, i64)> {
    let uids = proposed.iter().map(|name| PodUid::new(&format!("uid-{name}"))).collect();
    let now = env.moment();
    let mut found = env.engine.make_room(facts, &BTreeMap::from([("n1".to_owned(), uids)]), now);
    found.remove("n1").map(|room| (room.victims.iter().map(ToString::to_string).collect(), room.more_broken))
}

#[test]
fn further_victims_are_those_that_no_budget_guards_and_broken_budgets_are_counted() {
    let mut env = env();
    env.node("n1", 2);
    bound(&mut env, "guarded", ONE, 1);
    bound(&mut env, "free", ONE, 5);
    guard(&mut env, "guarded");
    let one = theirs(&env, "one", ONE, 100);
    assert_eq!(room(&mut env, &one, &[]), Some((vec!["uid-free".to_owned()], 0)), "more important, and not guarded");
    let two = theirs(&env, "two", TWO, 100);
    let (victims, broken) = room(&mut env, &two, &["free"]).unwrap();
    assert_eq!((victims, broken), (vec!["uid-free".to_owned(), "uid-guarded".to_owned()], 1));
    assert_eq!(room(&mut env, &two, &["free", "guarded"]).unwrap().1, 0, "kube-scheduler has counted its own");
}

#[test]
fn nobody_leaves_beside_pods_that_are_leaving_already() {
    let mut env = env();
    env.node("n1", 2);
    bound(&mut env, "leaving", ONE, 1);
    bound(&mut env, "staying", ONE, 1);
    env.change_pod("leaving", |facts| {
        facts.handoff.deleting = Some(Deletion { at: facts.handoff.created, grace_seconds: 30 });
    });
    let one = theirs(&env, "one", ONE, 100);
    assert_eq!(room(&mut env, &one, &[]), Some((vec![], 0)));
}
