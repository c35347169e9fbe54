//! One move that would help: named where the real scheduler would start the pod that waits, and the moved one elsewhere.

use baton::contract::hint::LabelSelector;
use baton::decide::explain::{OneMove, Unadmitted, UnadmittedObject};

use crate::prelude::*;

fn asks(name: &str, gpus: u32, now: std::time::Duration) -> PodFacts {
    match gpus {
        0 => pod(name, &[(key::GPU, "50")], now),
        gpus => pod(name, &[(key::NVIDIA_GPU, &gpus.to_string())], now),
    }
}

fn settle(cluster: &mut TestScheduler) {
    (0..3).for_each(|_| cluster.settled().all_release());
}

fn found(cluster: &mut TestScheduler, name: &str) -> Option<OneMove> {
    cluster.explain(&PodKey::new("ml", name)).unwrap().verdict.one_move
}

/// Nodes with pods, some of which may use one node only and some of which are of gangs; and `w`, which waits for room or has it.
fn random(seed: u64) -> TestScheduler {
    let mut dice = Dice(seed);
    let mut cluster = TestScheduler::new();
    let nodes = 2 + dice.below(2);
    for n in 0..nodes {
        cluster.node(&format!("n{n}"), 2 + dice.below(3));
        cluster.change_node(&format!("n{n}"), |facts| drop(facts.labels.insert("n".to_owned(), n.to_string())));
    }
    let pods: Vec<String> = (0..4 + dice.below(6)).map(|at| format!("p{at}")).collect();
    for name in &pods {
        let mut facts = asks(name, dice.below(3), cluster.now);
        match dice.below(6) {
            0 => facts.spec.node_selector = [("n".to_owned(), dice.below(nodes).to_string())].into(),
            1 => facts.spec.gang = declared("ml", &gang(&format!("g-{name}"), "1", &[])),
            _ => {}
        }
        cluster.submit(facts);
        settle(&mut cluster);
    }
    for name in &pods {
        if cluster.node_of(name).is_none() || dice.below(3) == 0 {
            cluster.delete(name);
        }
    }
    settle(&mut cluster);
    cluster.submit(asks("w", 2 + dice.below(3), cluster.now));
    settle(&mut cluster);
    cluster
}

/// Whether `w` starts when this pod leaves, and the same pod made again after that.
fn helps(seed: u64, name: &str) -> Option<(String, String)> {
    let mut cluster = random(seed);
    let mut facts = cluster.pods[&PodKey::new("ml", name)].clone();
    cluster.delete(name);
    settle(&mut cluster);
    let from = cluster.node_of("w")?.to_owned();
    let limits = pod("again", &[], cluster.now).handoff;
    facts.handoff.pod = limits.pod;
    facts.handoff.node = None;
    facts.handoff.assignment = limits.assignment;
    cluster.submit(facts);
    settle(&mut cluster);
    Some((from, cluster.node_of("again")?.to_owned()))
}

#[test]
fn one_move_is_named_just_where_the_scheduler_would_start_both_pods() {
    let mut seen = [0; 2];
    for seed in 0..200 {
        let mut cluster = random(seed);
        if cluster.node_of("w").is_some() {
            assert_eq!(found(&mut cluster, "w"), None);
            continue;
        }
        let condition = cluster.conditions["w"].clone();
        let verdict = cluster.explain(&PodKey::new("ml", "w")).unwrap().verdict;
        let words = verdict.message.split("; nearest: ").next();
        assert_eq!(words, Some(&*condition), "seed {seed}: condition and explanation are one sentence");
        let said = verdict.one_move;
        seen[usize::from(said.is_some())] += 1;
        let alone = |facts: &&PodFacts| facts.spec.gang.is_none() && facts.handoff.node.is_some();
        let mut others = cluster.pods.values().filter(alone).map(|facts| facts.handoff.pod.key.name.to_string());
        match said {
            Some(OneMove { pod, from, to, .. }) => {
                assert_eq!(helps(seed, pod.strip_prefix("ml/").unwrap()), Some((from, to)), "seed {seed}: {pod}");
            }
            // Every pod is tried in some of the worlds.
            None if seed % 4 == 0 => {
                assert_eq!(others.find(|name| helps(seed, name).is_some()), None, "seed {seed}");
            }
            None => {}
        }
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn a_move_that_a_budget_forbids_is_named_with_it_and_for_gangs_too() {
    let mut cluster = TestScheduler::on("a", 4);
    cluster.pod("x", ONE);
    settle(&mut cluster);
    cluster.node("c", 1);
    let member = |at: u32, now| {
        let mut facts = asks(&format!("m{at}"), 2, now);
        facts.spec.gang = declared("ml", &gang("train", "2", &[]));
        facts
    };
    let unadmitted = |facts| Unadmitted { facts, class: None, priority: None, never_preempts: None };
    let pods = (0..2).map(|at| unadmitted(member(at, cluster.now))).collect();
    let object = UnadmittedObject { pods, ..UnadmittedObject::default() };
    let answer = cluster.scheduler.what_if_objects(vec![object], cluster.moment()).unwrap();
    assert!(answer.objects[0].headline.ends_with("; one move would help: ml/x from a to c"), "{answer:?}");
    let alone = cluster.what_if(asks("new", 4, cluster.now));
    assert!(alone.headline.ends_with("; one move would help: ml/x from a to c"), "{}", alone.headline);
    (0..2).for_each(|at| _ = cluster.submit(member(at, cluster.now)));
    settle(&mut cluster);
    let of_gang = cluster.scheduler.explain_gang(&GangId::new("ml", "train").unwrap(), cluster.moment()).unwrap();
    assert_eq!(of_gang.one_move.as_ref().map(|found| &*found.pod), Some("ml/x"), "{of_gang:?}");
    assert_eq!(found(&mut cluster, "m0"), of_gang.one_move);
    let selector = Some(LabelSelector::default());
    cluster.event(WorldEvent::Budget(PodKey::new("ml", "none"), BudgetFacts { allowed: 0, selector }));
    let said = found(&mut cluster, "m0").unwrap().to_string();
    assert!(said.ends_with("from a to c, which the disruption budget ml/none does not allow now"), "{said}");
}
