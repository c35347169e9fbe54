//! The sentence of a gang that waits: its numbers are those that anybody can count.

use crate::prelude::*;

impl TestGangs {
    fn fill(&mut self, node: &str, name: &str, gpus: usize) -> &mut Self {
        self.asks_as(name, &[(key::NVIDIA_GPU, &gpus.to_string())], &[], |facts| {
            facts.spec.node_selector.insert("on".to_owned(), node.to_owned());
        });
        self.settled()
    }

    fn waits_of(&mut self, count: usize, each: usize) -> &mut Self {
        self.all_ask("big", count, &[(key::NVIDIA_GPU, &each.to_string())], &gang("big", &count.to_string(), &[]));
        self.after(2)
    }
}

fn node(gangs: &mut TestGangs, name: &str, gpus: u32) {
    gangs.cluster.node(name, gpus);
    gangs.cluster.change_node(name, |facts| drop(facts.labels.insert("on".to_owned(), name.to_owned())));
}

fn on(nodes: &[(&str, u32)]) -> TestGangs {
    let mut gangs = TestGangs::with(Default::default());
    nodes.iter().for_each(|(name, gpus)| node(&mut gangs, name, *gpus));
    gangs
}

fn free(gangs: &TestGangs, node: &str) -> u32 {
    let world = gangs.cluster.world();
    let node = world.node_id(node).and_then(|id| world.node(id)).unwrap();
    node.stock.as_ref().unwrap().pool().summary().free_gpus.count_ones()
}

#[test]
fn it_counts_what_found_room_and_names_the_nearest_node_and_its_holder() {
    let mut gangs = on(&[("node-0", 8), ("node-1", 8)]);
    gangs.fill("node-0", "default/a", 8).fill("node-1", "default/b", 3).waits_of(4, 2);
    let said = "gang ml/big: 0 of 4 placed, 2 without room; needs 4 × 2 GPUs; room for 2 (node-1: 5 free); \
                nearest for the rest: node-0 lacks 2, held by default/a; \
                pod ml/big-2 beside those: 0/2 nodes: 2 have fewer than 2 free GPUs";
    (0..4).for_each(|n| assert_eq!(gangs.condition(&format!("big-{n}")), said));
}

#[test]
fn on_the_only_node_the_rest_lacks_what_others_hold() {
    let mut gangs = on(&[("n", 8)]);
    gangs.fill("n", "other", 3).waits_of(3, 2);
    tells(gangs.condition("big-0"), ["room for 2 (n: 5 free); nearest for the rest: n lacks 1, held by ml/other; "]);
}

#[test]
fn room_that_comes_and_does_not_suffice_is_told_too() {
    let mut gangs = on(&[("n", 8)]);
    ["a", "b", "c", "d"].iter().for_each(|name| _ = gangs.fill("n", name, 2));
    gangs.waits_of(4, 2);
    assert!(
        gangs.condition("big-0").contains(
            "4 without room; needs 4 × 2 GPUs; nearest: n lacks 2, held by ml/a, ml/b, ml/c and another pod;"
        )
    );
    gangs.cluster.finish("a");
    gangs.wait(200);
    let said = gangs.condition("big-3");
    tells(said, ["3 without room; needs 4 × 2 GPUs; room for 1 (n: 2 free); nearest for the rest: n lacks 2"]);
}

#[test]
fn a_gang_that_the_empty_cluster_has_no_room_for_is_told_that_it_never_starts() {
    let explained = |gangs: &TestGangs| {
        let found =
            gangs.cluster.scheduler.explain_gang(&GangId::new("ml", "big").unwrap(), gangs.cluster.moment()).unwrap();
        (found.message, found.advice)
    };
    let waiting = |count: usize| {
        let mut gangs = on(&[("n", 8), ("m", 8)]);
        gangs.fill("n", "a", 8).waits_of(count, 6);
        gangs
    };
    let (said, advice) = explained(&waiting(3));
    assert!(
        said.contains("it never starts here: all nodes, even empty, would take 2 of its 3 members of 6 GPUs;"),
        "{said}"
    );
    let lower = "or lower the minimum (gang.scheduling.koordinator.sh/min-available on the pods of ml/big): freed";
    assert!(advice.starts_with("add nodes, ask for less per member") && advice.contains(lower), "{advice}");
    let (said, advice) = explained(&waiting(2));
    assert!(!said.contains("never") && advice.contains("nothing else needs to be done"), "{said} {advice}");
}

#[test]
fn a_gang_and_its_members_say_alike_when_they_are_tried_again() {
    // Two members start when the other pod leaves; there is never room for three.
    for (count, frees) in [(2, true), (3, false)] {
        let mut gangs = on(&[("n", 8), ("m", 8)]);
        gangs.fill("n", "a", 8).waits_of(count, 6);
        let (id, now) = (GangId::new("ml", "big").unwrap(), gangs.cluster.moment());
        let gang = gangs.cluster.scheduler.explain_gang(&id, now).unwrap();
        let member = gangs.cluster.explain(&PodKey::new("ml", "big-0")).unwrap();
        assert!(gang.wakes == member.verdict.wakes && !gang.wakes.is_empty(), "{gang:?} {member:?}");
        assert!(gang.next_try_seconds == member.next_try_seconds && gang.next_try_seconds.is_some(), "{gang:?}");
        assert_eq!(gang.wakes.iter().any(|when| when == "a pod leaves its node"), frees, "{gang:?}");
    }
}

#[test]
fn gangs_that_are_alike_name_one_node_until_a_node_changes() {
    let mut gangs = on(&[("node-0", 8), ("node-1", 8)]);
    [("node-0", "a", 4), ("node-0", "c", 2), ("node-1", "b", 5)].iter().for_each(|(at, pod, gpus)| {
        gangs.fill(at, pod, *gpus);
    });
    let names = ["x-0", "x-1", "y-0", "y-1", "pinned-0", "pinned-1"];
    for name in names {
        let keys = gang(name.split_once('-').unwrap().0, "2", &[]);
        let mut facts = gangs.facts(name, &[(key::NVIDIA_GPU, "5")], &keys);
        if name.starts_with("pinned") {
            facts.spec.node_selector.insert("on".to_owned(), "node-0".to_owned());
        }
        gangs.cluster.submit(facts);
    }
    let lacks = |gangs: &TestGangs| {
        let said = names.map(|name| gangs.condition(name).split_once("nearest: ").unwrap().1.to_owned());
        said.map(|said| said.split_once(',').unwrap().0.to_owned())
    };
    gangs.wait(2);
    let [near, far] = ["node-1 lacks 2", "node-0 lacks 3"];
    assert_eq!(lacks(&gangs), [near, near, near, near, far, far]);
    gangs.cluster.finish("c");
    gangs.wait(200);
    assert_eq!(lacks(&gangs), ["node-0 lacks 1"; 6]);
}

/// Numbers after a word.
fn number(said: &str, after: &str) -> Option<u32> {
    let rest = said.split_once(after)?.1;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn its_numbers_never_contradict_the_free_counts() {
    let mut seen = [0; 3];
    for seed in 0..150 {
        let mut dice = Dice(seed);
        let mut gangs = TestGangs::with(Default::default());
        let nodes: Vec<String> = (0..1 + dice.below(4)).map(|n| format!("node-{n}")).collect();
        for name in &nodes {
            node(&mut gangs, name, 8);
            (0..dice.below(4)).for_each(|n| {
                let gpus = 1 + dice.below(4) as usize;
                gangs.fill(name, &format!("{name}-{n}"), gpus);
            });
        }
        let (count, each) = (2 + dice.below(6) as usize, 1 + dice.below(8) as usize);
        gangs.waits_of(count, each);
        if gangs.state("big-0") != MemberState::Pending {
            continue;
        }
        let said = gangs.condition("big-0").to_owned();
        let found = number(&said, "room for ").unwrap_or(0);
        assert_eq!(number(&said, "placed, ").unwrap() + found, count as u32, "{said}");
        let most: u32 = nodes.iter().map(|name| free(&gangs, name) / each as u32).sum();
        assert_eq!(found, most, "{seed}: {said}");
        for name in &nodes {
            if let Some(shown) = number(&said, &format!("{name}: ")) {
                assert_eq!(shown, free(&gangs, name), "{said}");
                seen[0] += 1;
            }
        }
        let Some((_, nearest)) = said.split_once("nearest") else { continue };
        let nearest = nearest.split_once("; ").unwrap().0;
        let name = nodes.iter().find(|name| nearest.contains(&***name)).unwrap();
        let left =
            if said.contains(&format!("{name}: ")) { free(&gangs, name) % each as u32 } else { free(&gangs, name) };
        assert_eq!(number(nearest, "lacks "), Some(each as u32 - left), "{said}");
        seen[1] += 1;
        if let Some((_, holders)) = nearest.split_once("held by ") {
            let holder = holders.split([',', ' ']).next().unwrap();
            let world = gangs.cluster.world();
            let pod = world.pod_by_key(&TestGangs::key(holder)).unwrap();
            assert_eq!(pod.node().and_then(|id| world.node(id)).map(|node| &*node.name), Some(name.as_str()), "{said}");
            seen[2] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}
