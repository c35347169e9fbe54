//! What people read: of pods that wait, of pods that do not exist, of the queue. `docs/commands.md` quotes it.

use std::path::Path;

use baton::contract::gang::key as gang_key;
use baton::decide::explain::{QueueItem, RuleCount, Unadmitted, UnadmittedObject};
use baton::decide::world::{ClaimFacts, NodeId};
use baton::ops::explain::{pod_text, what_if_text};

use super::holders::status;
use crate::harness::parts::near as near_pods;
use crate::prelude::*;

impl TestScheduler {
    fn explained(&mut self, name: &str, wide: bool) -> String {
        let explanation = self.explain(&PodKey::new("ml", name)).unwrap();
        // As it goes over the wire.
        let sent = serde_json::to_string(&explanation).unwrap();
        pod_text(&serde_json::from_str(&sent).unwrap(), wide)
    }
}

/// Three nodes: one is full, one has no agent, one is tainted.
fn cluster() -> TestScheduler {
    let mut cluster = TestScheduler::on_each(&["gpu-a", "gpu-b"], 2);
    cluster.node("reserved", 8).plain_node("agentless", 8);
    cluster.change_node("reserved", |facts| {
        facts.taints.push(Taint { key: "gpu".into(), value: "reserved".into(), effect: TaintEffect::NoSchedule });
    });
    cluster
}

#[test]
fn a_snapshot_answers_as_of_its_time_while_the_scheduler_goes_on() {
    let mut cluster = cluster();
    cluster.comes("train", FOUR);
    let (before, moment) = (cluster.scheduler.snapshot(), cluster.moment());
    cluster.node("gpu-c", 8).change_node("gpu-a", |facts| facts.unschedulable = true).settle();
    let key = PodKey::new("ml", "train");
    assert_eq!(cluster.node_of("train"), Some("gpu-c"));
    let (then, now) = (before.explain(&key, moment).unwrap(), cluster.explain(&key).unwrap());
    assert_eq!((then.state, then.node), (PodState::Parked, None));
    assert!(then.verdict.message.contains("nearest: gpu-a with 2 of 4"), "{}", then.verdict.message);
    assert_eq!(now.node.as_deref(), Some("gpu-c"));
    assert!(then.generation < now.generation);
}

fn few_gpus() -> String {
    let mut cluster = cluster();
    cluster.comes("first", ONE).after(20).comes("train", FOUR).wait(12);
    cluster.explained("train", true)
}

#[test]
fn a_name_that_no_node_offers_is_named_first() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes_as("typo", &[], |facts| facts.spec.requests.scalar.insert("nvidia.com/gpux".into(), 1));
    let text = cluster.explained("typo", false);
    let helps = text.split("What helps:\n").nth(1).unwrap();
    assert!(helps.starts_with("- No node offers nvidia.com/gpux: correct the name"), "{text}");
}

fn agent() -> String {
    let mut cluster = TestScheduler::new();
    cluster.plain_node("gpu-a", 8).comes("train", ONE);
    cluster.explained("train", false)
}

fn taint() -> String {
    let mut cluster = TestScheduler::on("reserved", 8);
    cluster.change_node("reserved", |facts| {
        facts.taints.push(Taint { key: "gpu".into(), value: "reserved".into(), effect: TaintEffect::NoSchedule });
    });
    cluster.comes("train", ONE);
    cluster.explained("train", false)
}

fn invalid() -> String {
    let mut cluster = cluster();
    cluster.comes("train", &[(key::GPU_CORE, "50")]);
    cluster.explained("train", false)
}

fn near() -> String {
    let mut cluster = cluster();
    let term = PodTerm { namespaces: vec!["ml".into()], ..near_pods("cache", "kubernetes.io/hostname") };
    cluster.comes_as("train", ONE, |facts| facts.spec.affinity = vec![term]);
    cluster.explained("train", false)
}

fn claim() -> String {
    let mut cluster = cluster();
    cluster.event(WorldEvent::Claim(PodKey::new("ml", "data"), ClaimFacts { deleting: true, ..ClaimFacts::default() }));
    cluster.comes_as("train", ONE, |facts| facts.spec.volumes = vec![VolumeUse::Claim("data".into())]);
    cluster.explained("train", false)
}

fn dra() -> String {
    let mut cluster = cluster();
    cluster.comes_as("train", ONE, |facts| facts.spec.resource_claims = true);
    cluster.explained("train", false)
}

fn what_if() -> String {
    let mut cluster = cluster();
    let facts = pod("train", &[(key::NVIDIA_GPU, "2")], cluster.now);
    what_if_text(&cluster.what_if(facts), false)
}

#[test]
fn the_documentation_quotes_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = [
        ("docs/commands.md", vec![("what-if", what_if())]),
        (
            "tests/golden/explained.md",
            vec![
                ("few-gpus", few_gpus()),
                ("agent", agent()),
                ("taint", taint()),
                ("invalid", invalid()),
                ("affinity", near()),
                ("claim", claim()),
                ("dra", dra()),
            ],
        ),
    ];
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    for (page, blocks) in pages {
        let mut text = std::fs::read_to_string(root.join(page)).unwrap();
        for (mark, printed) in blocks {
            let open = format!("<!-- {mark} -->\n```text\n");
            let start = text.find(&open).unwrap_or_else(|| panic!("{page} has no block {mark}")) + open.len();
            let end = start + text[start..].find("```").unwrap();
            if update {
                text.replace_range(start..end, &printed);
            }
            assert!(
                update || text[start..end] == printed,
                "{mark}: UPDATE_DOCS=1 writes it again; printed is\n{printed}"
            );
        }
        if update {
            std::fs::write(root.join(page), text).unwrap();
        }
    }
}

/// What the accounts of every node say.
fn accounts(cluster: &TestScheduler) -> Vec<(NodeId, String)> {
    let world = cluster.world();
    let of = |(id, node): (NodeId, &baton::decide::world::Node)| {
        let free = node.stock.as_ref().map(baton::decide::world::Stock::describe);
        (id, format!("{:?} {:?} {free:?}", node.used, node.pods))
    };
    world.nodes().map(of).collect()
}

#[test]
fn what_if_says_what_is_then_decided_and_takes_nothing() {
    for gpus in ["1", "2", "4", "8", "9"] {
        let mut cluster = cluster();
        cluster.node("big", 8).comes("first", FOUR).wait(1);
        let (before, now) = (accounts(&cluster), cluster.moment());
        let facts = pod("next", &[(key::NVIDIA_GPU, gpus)], cluster.now);
        let answer = cluster.what_if(facts.clone());
        assert_eq!(accounts(&cluster), before, "{gpus}: nothing is taken");
        assert!(cluster.world().pod_by_key(&PodKey::new("ml", "next")).is_none());
        assert!(cluster.scheduler.run(now).is_empty(), "nothing is written");
        cluster.agent_releases("big").enters(facts);
        assert_eq!(answer.node.as_deref(), cluster.node_of("next"), "{gpus} GPUs");
        if let Some(node) = &answer.node {
            assert_eq!(&answer.best[0].node, node);
            let devices = cluster.devices_of("next");
            let given: Vec<String> =
                devices.devices.values().flatten().map(|d| format!("gpu-{} ({})", d.minor, d.id)).collect();
            assert_eq!(answer.devices, given, "{gpus} GPUs");
        } else {
            // The condition counts the same reasons, without the node that is nearest.
            let has = |rule: &RuleCount| match rule.count {
                1 => rule.reason.replacen("have ", "has ", 1),
                _ => rule.reason.clone(),
            };
            let reasons = answer.verdict.rules.iter().map(|rule| format!("{} {}", rule.count, has(rule)));
            let counted = format!("0/5 nodes: {}", reasons.collect::<Vec<_>>().join(", "));
            assert_eq!(counted, cluster.conditions["next"], "{gpus} GPUs");
            let said = &answer.verdict.message;
            assert!(said.starts_with(&counted) && said.contains("; nearest: big with 4 of"), "{said}");
        }
    }
}

#[test]
fn a_share_is_said_as_a_share_of_a_named_device() {
    let mut cluster = TestScheduler::on("n", 1);
    let half = pod("half", &[(key::GPU, "50")], cluster.now);
    assert_eq!(cluster.what_if(half).devices, ["50% of gpu-0 (GPU-n-0)"]);
}

#[test]
fn what_if_says_who_would_have_to_leave() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.comes("small", TWO);
    let mut urgent = pod("urgent", ONE, cluster.now);
    urgent.spec.priority = 100;
    let answer = cluster.what_if(urgent);
    assert_eq!((answer.fits, answer.would_evict.as_slice()), (false, &["ml/small".to_owned()][..]));
    assert!(cluster.evicted.is_empty());
    assert!(answer.verdict.message.contains("would evict ml/small from node n"), "{}", answer.verdict.message);
    let mut of_another = pod("next", &[(key::NVIDIA_GPU, "1")], cluster.now);
    of_another.handoff.scheduler_name = "other".into();
    let waits = pod("next", &[(key::NVIDIA_GPU, "1")], cluster.now);
    let text = what_if_text(&cluster.what_if(waits), false);
    assert!(text.starts_with("Pod ml/next would wait.\n  1 node has no free GPU (n)\n"), "{text}");
    let headline = cluster.what_if(of_another).headline;
    let words = r#"is left to scheduler "other"; with schedulerName baton-scheduler: would "#;
    assert!(headline.starts_with(words), "{headline}");
}

#[test]
fn what_if_gives_its_reasons_once_where_a_pod_leaves_already() {
    let mut cluster = TestScheduler::new();
    cluster.node("n", 1).pod("low", ONE).settle();
    let at = wall(cluster.now + std::time::Duration::from_secs(30));
    cluster.change_pod("low", |facts| facts.handoff.deleting = Some(Deletion { at, grace_seconds: 30 }));
    let mut urgent = pod("urgent", ONE, cluster.now);
    urgent.spec.priority = 100;
    let text = what_if_text(&cluster.what_if(urgent), false);
    let first = "Pod ml/urgent would wait for pods that are leaving node n.\n  1 node has no free GPU (n)\n";
    assert!(text.starts_with(first) && text.matches("no free GPU").count() == 1, "{text}");
}

#[test]
fn the_state_of_a_pod_is_explained_in_every_stage() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("first", ONE).comes("second", ONE);
    let mut state = |name: &str| {
        let reported = cluster.explain(&PodKey::new("ml", name)).unwrap();
        (reported.state, reported.verdict.message)
    };
    let normal = "bound to node n; normal: the kubelet is admitting the pod";
    assert_eq!(state("first"), (PodState::Bound, normal.to_owned()));
    let (second, message) = state("second");
    assert_eq!(second, PodState::WaitingForLock);
    tells(message, ["held by pod ml/first"]);
    assert!(cluster.explained("second", false).contains("baton get locks"));
    cluster.pod_as("theirs", ONE, |facts| facts.handoff.scheduler_name = "default-scheduler".into());
    cluster.finish("first");
    let reported = cluster.explained("theirs", false);
    assert!(reported.contains("names the scheduler \"default-scheduler\""), "{reported}");
    tells(reported, ["What helps", "schedulerName: baton-scheduler"]);
    assert!(cluster.explained("first", false).contains("has ended"));
    assert!(cluster.explain(&PodKey::new("ml", "nobody")).is_none());
}

#[test]
fn a_label_that_no_node_has_is_named_in_the_queue_too() {
    let mut cluster = TestScheduler::on_each(&["n", "m"], 2);
    cluster.change_node("n", |facts| drop(facts.labels.insert("gpu".to_owned(), "h100".to_owned())));
    cluster.change_node("n", |facts| facts.unschedulable = true);
    for (name, value) in [("typo", "h1000"), ("right", "h100")] {
        cluster.pod_as(name, ONE, |facts| facts.spec.node_selector = labels_of("gpu", value));
    }
    let report = cluster.settled().queue_report();
    let message = |name: &str| &*report.items.iter().find(|item| item.name == name).unwrap().message;
    assert!(message("ml/typo").ends_with("; no node has the label gpu=h1000"), "{}", message("ml/typo"));
    assert!(!message("ml/right").contains("no node has the label"), "{}", message("ml/right"));
    let advice = cluster.explain(&PodKey::new("ml", "typo")).unwrap().verdict.advice;
    assert!(advice[0].starts_with("No node has the label gpu=h1000"), "{advice:?}");
}

/// Members of the gang `ml/g` of two, each of four GPUs.
fn member(cluster: &mut TestScheduler, name: &str) {
    let keys = crate::harness::gangs::gang("g", "2", &[]);
    cluster.pod_as(name, FOUR, |facts| facts.spec.gang = crate::harness::gangs::declared("ml", &keys));
}

#[test]
fn a_member_is_explained_by_what_its_gang_lacks_whoever_came_first() {
    let mut cluster = TestScheduler::on("n", 6);
    member(&mut cluster, "g-0");
    cluster.settled().wait(2);
    let reported = cluster.explained("g-0", false);
    assert!(
        reported.contains("starts together with the gang ml/g") && reported.contains("has 1 of 2 pods"),
        "{reported}"
    );
    assert!(
        reported.contains("baton explain gang ml/g") && reported.contains("the gang or its members change"),
        "{reported}"
    );
    assert!(
        !reported.contains("REFUSED") && !reported.contains("would go to"),
        "no node has to do with it: {reported}"
    );
    let report = cluster.queue_report();
    let held = report.items.iter().find(|item| item.kind == "group").unwrap();
    assert!(held.queued_seconds >= 2 && held.rules == ["Gang"], "{held:?}");
    member(&mut cluster, "g-1");
    cluster.settled().wait(2);
    for name in ["g-0", "g-1"] {
        let reported = cluster.explained(name, false);
        assert!(
            reported.contains("starts together with the gang ml/g") && reported.contains("tried 1 time"),
            "{reported}"
        );
        assert!(
            reported.contains("gang ml/g: 0 of 2 placed") && reported.contains("by itself: would go to node n"),
            "{reported}"
        );
        assert!(!reported.contains("the pod itself, or its gang, changes"), "{reported}");
    }
    let report = cluster.queue_report();
    let names: Vec<&str> = report.items.iter().map(|item| &*item.name).collect();
    assert_eq!(names, ["ml/g"], "the first one stands in no line of its own any more");
}

#[test]
fn the_queue_tells_state_attempts_next_try_and_refusing_rules() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.comes("first", ONE).pod("second", ONE).comes("big", FOUR);
    let report = cluster.after(10).queue_report();
    assert!(report.leading);
    let item = |name: &str| report.items.iter().find(|item| item.name == name).unwrap();
    let QueueItem { state, attempts, next_try_seconds, rules, wakes, .. } = item("ml/big");
    assert_eq!((*state, *attempts, *next_try_seconds), (PodState::Parked, 1, Some(290)));
    assert_eq!(rules, &["NodeResourcesFit"]);
    assert!(wakes.iter().any(|wake| wake == "a pod leaves its node"), "{wakes:?}");
    assert_eq!(report.items[0].name, "ml/second", "who is in flight comes first");
    assert_eq!((item("ml/second").state, item("ml/second").node.as_deref()), (PodState::WaitingForLock, Some("n")));
    cluster.step_down();
    assert!(!cluster.queue_report().leading);
}

#[test]
fn a_waiting_pod_is_told_the_nearest_node_and_who_holds_what_it_lacks() {
    let mut cluster = TestScheduler::new();
    for (name, pod, gpus) in [("near", "default-holds", "4"), ("far", "holds-more", "7")] {
        cluster.node(name, 8).comes(pod, &[(key::NVIDIA_GPU, gpus)]).serves(name);
    }
    cluster.device("near", 8, |device| {
        device.metadata.annotations =
            Some([(key::CORDONED.to_owned(), r#"{"GPU-near-7":{"reason":"fan"}}"#.to_owned())].into());
    });
    cluster.comes("big", &[(key::GPU, "800")]);
    let verdict = cluster.explain(&PodKey::new("ml", "big")).unwrap().verdict;
    let nearest = "near with 3 of 8 (ml/default-holds holds 4, 1 is cordoned)";
    assert_eq!(verdict.message, format!("0/2 nodes: 2 have fewer than 8 free GPUs; nearest: {nearest}"));
    assert_eq!(verdict.nearest.as_deref(), Some(nearest));
    let cordoned = verdict.nodes[0].devices.iter().filter(|device| device.cordon.is_some()).count();
    assert_eq!(cordoned, 1);
}

#[test]
fn a_pod_that_is_larger_than_every_node_is_not_told_to_wait() {
    let mut cluster = TestScheduler::on("n", 8);
    let explained = |cluster: &mut TestScheduler, pod: &str, gpus: &str| {
        cluster.comes(pod, &[(key::NVIDIA_GPU, gpus)]);
        cluster.explain(&PodKey::new("ml", pod)).unwrap().verdict
    };
    let verdict = explained(&mut cluster, "nine", "9");
    assert_eq!(
        verdict.message,
        "0/1 nodes: 1 has fewer than 9 GPUs in service; nearest: n with 8 of 9 (the node has 8)"
    );
    assert!(verdict.advice[0].contains("too small for it even when they are empty"), "{:?}", verdict.advice);
    // Autoscalers add nodes for Unschedulable.
    assert_eq!(cluster.reasons["nine"], "Unschedulable", "autoscalers judge by themselves which kind of node helps");
    cluster.comes("one", ONE);
    let verdict = explained(&mut cluster, "eight", "8");
    assert_eq!(cluster.reasons["eight"], "Unschedulable");
    assert_eq!(verdict.message, "0/1 nodes: 1 has fewer than 8 free GPUs; nearest: n with 7 of 8 (ml/one holds 1)");
    assert!(verdict.advice[0].starts_with("Wait for pods"), "{:?}", verdict.advice);
}

#[test]
fn of_a_pinned_pod_its_node_comes_first_and_its_selector_last() {
    let mut cluster = TestScheduler::new();
    for node in ["n", "m", "o"] {
        cluster.node(node, 2);
        cluster.change_node(node, |facts| drop(facts.labels.insert("on".to_owned(), node.to_owned())));
    }
    let mut pinned = pod("pinned", &[(key::NVIDIA_GPU, "1")], cluster.now);
    pinned.spec.node_selector.insert("on".to_owned(), "n".to_owned());
    let silent = AgentStatus { registered: Vec::new(), ..status() };
    cluster.say("n", AgentStatus { ended: true, ..silent.clone() }).enters(pinned);
    let explained = |cluster: &TestScheduler| {
        cluster.scheduler.explain(&PodKey::new("ml", "pinned"), cluster.moment()).unwrap().verdict
    };
    let verdict = explained(&cluster);
    assert!(
        verdict.message.starts_with("0/3 nodes: 1 has a node daemon that was stopped, 2 have no labels"),
        "{verdict:?}"
    );
    assert!(verdict.advice[0].starts_with("The node daemon there was shut down"), "{verdict:?}");
    assert!(verdict.advice[1].contains("nodeSelector"), "{verdict:?}");
    assert_eq!(verdict.rules.iter().map(|rule| rule.count).collect::<Vec<_>>(), [1, 2]);
    cluster.say("n", silent);
    let verdict = explained(&cluster);
    assert!(verdict.message.contains("1 has a kubelet that is away: the node daemon runs and is not registered"));
    assert!(verdict.advice[0].contains("kubectl describe node"), "{verdict:?}");
}

#[test]
fn a_node_is_explained_by_what_is_free_or_by_what_keeps_pods_away() {
    let mut cluster = TestScheduler::on("n", 2);
    let message = |cluster: &TestScheduler| {
        let answer = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
        (answer.takes_devices, answer.message)
    };
    assert_eq!(message(&cluster), (true, "takes new pods with devices: 2 of 2 GPUs are free".to_owned()));
    cluster.comes("a", ONE);
    let answer = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
    assert!(answer.lock.unwrap().starts_with("held by ml/a"));
    assert_eq!(answer.devices[0].held_by, ["ml/a"]);
    cluster.agent_releases("n").comes("b", ONE).agent_releases("n");
    let full = "takes new pods with devices, and no whole GPU is free: 0 of 2 GPUs are free";
    assert_eq!(message(&cluster), (true, full.to_owned()));
    cluster.change_node("n", |facts| facts.unschedulable = true);
    assert!(!message(&cluster).0 && message(&cluster).1.contains("cordoned"), "{:?}", message(&cluster));
    cluster.change_node("n", |facts| (facts.unschedulable, facts.not_ready) = (false, true));
    assert_eq!(
        message(&cluster).1,
        "takes no new pods with devices: the kubelet of n is away or not well: the Node is not Ready"
    );
    cluster.change_node("n", |facts| {
        facts.not_ready = false;
        let mut left = (*facts.allocatable).clone();
        for name in [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO] {
            left.set(name, "0".parse().unwrap());
        }
        facts.allocatable = left.into();
    });
    assert!(message(&cluster).1.contains("of n is gone: the kubelet offers 0 of 2 GPUs"), "{:?}", message(&cluster));
    assert!(cluster.scheduler.explain_node("nowhere", cluster.moment()).is_none());
}

#[test]
fn of_a_node_that_is_not_ready_and_has_no_daemon_the_kubelet_comes_first() {
    let mut cluster = TestScheduler::new();
    cluster.plain_node("n", 2);
    let said = |cluster: &TestScheduler| {
        let answer = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
        (answer.message, answer.advice.unwrap())
    };
    let (message, advice) = said(&cluster);
    assert!(
        message.ends_with(": no node daemon has reported from n") && advice.starts_with("The node daemon is missing")
    );
    cluster.change_node("n", |facts| facts.not_ready = true);
    let (message, advice) = said(&cluster);
    let both = "the kubelet of n is away or not well: the Node is not Ready; no node daemon has reported from n";
    assert!(message.ends_with(both), "{message}");
    let daemon = advice.find("The node daemon is missing").unwrap();
    assert!(advice.find("`systemctl status kubelet`").unwrap() < daemon, "{advice}");
    cluster.change_node("n", |facts| {
        let key = "node.kubernetes.io/unreachable".to_owned();
        facts.taints = vec![Taint { key, value: String::new(), effect: TaintEffect::NoSchedule }];
    });
    cluster.pod("waits", ONE).settle();
    let verdict = cluster.explain(&PodKey::new("ml", "waits")).unwrap().verdict;
    assert!(verdict.advice[0].starts_with("The kubelet there is away or not well"), "{verdict:?}");
}

#[test]
fn a_served_pod_says_when_and_how_long_the_lock_stood_for_it() {
    let mut cluster = TestScheduler::on("n", 8);
    assert_eq!(cluster.comes("p", FOUR).explain(&PodKey::new("ml", "p")).unwrap().served_at, None);
    cluster.after(3).agent_releases("n");
    let before = cluster.moment().wall;
    cluster.wait(2);
    let answer = cluster.explain(&PodKey::new("ml", "p")).unwrap();
    assert_eq!((answer.served_at, answer.lock_held_millis), (Some(before), Some(3000)));
    tells(cluster.explained("p", false), ["; the lock of n was held for 3000 ms\n"]);
}

#[test]
fn devices_are_to_be_brought_back_only_where_some_are_away() {
    for away in [false, true] {
        let mut cluster = cluster();
        cluster.change_node("gpu-b", |facts| facts.unschedulable = true);
        if away {
            cluster.device("gpu-a", 2, |device| device.spec.devices[1].health = false);
        }
        let (gpus, offered) = if away { ("2", "1") } else { ("4", "2") };
        cluster.change_node("gpu-a", |facts| {
            let mut left = (*facts.allocatable).clone();
            left.set(key::NVIDIA_GPU, offered.parse().unwrap());
            facts.allocatable = left.into();
        });
        cluster.comes("train", &[(key::NVIDIA_GPU, gpus)]);
        let said = cluster.explained("train", false);
        assert!(said.contains("ask for less per pod") && said.contains("bring back") == away, "{said}");
    }
}

#[test]
fn nothing_is_free_of_a_device_that_is_out_of_use() {
    let mut cluster = TestScheduler::new();
    let mut device = gpu_device("n", 2);
    device.spec.devices[1].health = false;
    cluster.node("n", 2).event(WorldEvent::Devices(Box::new(device)));
    let answer = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
    let free: Vec<&str> = answer.devices.iter().map(|device| &*device.free).collect();
    assert!(free[0].starts_with("100% core") && free[1] == "nothing", "{free:?}");
    let (free, away) = ("1 of 2 GPUs is free", "1 GPU is out of service");
    assert_eq!(answer.message, format!("takes new pods with devices: {free}; {away}"));
    cluster.change_node("n", |facts| facts.unschedulable = true);
    let closed = cluster.scheduler.explain_node("n", cluster.moment()).unwrap().message;
    assert!(closed.contains("cordoned") && closed.ends_with(&format!("; {away}")), "{closed}");
}

#[test]
fn what_is_said_of_several_objects_is_what_is_then_decided() {
    let (mut seen, mut gathered_waits) = ([0; 3], 0);
    for seed in 0..60 {
        let mut dice = crate::dice::Dice(seed);
        let mut cluster = TestScheduler::new();
        for n in 0..1 + dice.below(3) {
            cluster.node(&format!("n{n}"), 8).change_node(&format!("n{n}"), |facts| {
                facts.labels.insert("rack".to_owned(), format!("r{}", n % 2));
            });
        }
        let mut objects = Vec::new();
        for at in 0..1 + dice.below(3) {
            let (count, gpus, gang) = (1 + dice.below(5), (1 + dice.below(8)).to_string(), dice.below(2) == 0);
            let min = (1 + dice.below(count)).to_string();
            let gathered =
                [&[][..], &[(gang_key::REQUIRED_TOPOLOGY, "rack")], &[(gang_key::PREFERRED_TOPOLOGY, "rack")]]
                    [dice.below(3) as usize];
            let pods: Vec<PodFacts> = (0..count)
                .map(|n| {
                    let mut facts = pod(&format!("o{at}-{n}"), &[(key::NVIDIA_GPU, &gpus)], cluster.now);
                    let keys = crate::harness::gangs::gang(&format!("o{at}"), &min, gathered);
                    facts.spec.gang = gang.then(|| crate::harness::gangs::declared("ml", &keys)).flatten();
                    facts
                })
                .collect();
            objects.push((format!("Deployment ml/o{at}"), pods));
        }
        let unadmitted = |(name, pods): &(String, Vec<PodFacts>)| UnadmittedObject {
            name: name.clone(),
            pods: pods
                .iter()
                .map(|facts| Unadmitted { facts: facts.clone(), class: None, priority: None, never_preempts: None })
                .collect(),
            ..UnadmittedObject::default()
        };
        let (before, now) = (accounts(&cluster), cluster.moment());
        let answer = cluster.scheduler.what_if_objects(objects.iter().map(unadmitted).collect(), now).unwrap();
        assert_eq!(accounts(&cluster), before, "nothing is taken");
        // One object after the other, as a person would create them.
        for ((_, pods), said) in objects.iter().zip(&answer.objects) {
            for facts in pods {
                cluster.submit(facts.clone());
            }
            (0..40).for_each(|_| cluster.settled().all_release());
            let bound = pods.iter().filter(|facts| {
                let world = cluster.world();
                world.pod_by_key(&facts.handoff.pod.key).is_some_and(|pod| pod.node().is_some())
            });
            let (bound, starts) = (bound.count(), said.starts.values().sum::<usize>());
            assert_eq!(bound, starts, "{seed}: {said:?}");
            let is = said.headline.as_str();
            gathered_waits += u64::from(is.contains(" in rack=r"));
            let waits = ["would wait: ", "never starts here: "].iter().any(|words| is.starts_with(words));
            assert_eq!(waits, starts == 0, "{is}");
            assert_eq!(is.starts_with("would start now on "), starts == pods.len(), "{is}");
            seen[if starts == 0 {
                0
            } else if starts < pods.len() {
                1
            } else {
                2
            }] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 5) && gathered_waits > 2, "{seen:?} {gathered_waits}");
}

#[test]
fn a_gang_of_the_file_is_one_and_is_gathered() {
    let mut cluster = TestScheduler::new();
    for (name, gpus, rack) in [("a", 1, "r1"), ("b", 4, "r2"), ("c", 1, "r3")] {
        cluster.node(name, gpus);
        cluster.change_node(name, |facts| drop(facts.labels.insert("rack".to_owned(), rack.to_owned())));
    }
    let ask = |min: u32, pods: usize| {
        let mut group = PodGroupFacts::new(PodGroupApi::Sigs, GangId::new("ml", "g").unwrap());
        group.spec.min = Some(min);
        group.spec.topology = TopologySpec::short(Some("rack"), None).unwrap().map(Arc::new);
        let pod = |n: usize| {
            let mut facts = pod(&format!("p{n}"), &[(key::NVIDIA_GPU, "1")], cluster.now);
            facts.spec.gang =
                crate::harness::gangs::declared("ml", &[(gang_key::POD_GROUP.to_owned(), "g".to_owned())]);
            Unadmitted { facts, class: None, priority: None, never_preempts: None }
        };
        let pods = UnadmittedObject { pods: (0..pods).map(pod).collect(), ..UnadmittedObject::default() };
        let declared = UnadmittedObject { pod_group: Some(Box::new(group)), ..UnadmittedObject::default() };
        let answer = cluster.scheduler.what_if_objects(vec![pods, declared], cluster.moment()).unwrap();
        answer.objects.into_iter().map(|object| object.headline).collect::<Vec<_>>()
    };
    assert_eq!(ask(4, 4), ["would start now on b"]);
    let [waits] = &*ask(5, 5) else { panic!("one gang") };
    assert!(waits.starts_with("would wait: room in rack=r2 for 4 of the 5 that start together; "), "{waits}");
}

#[test]
fn a_tyjob_of_the_file_evicts_no_pods() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.pod("low", FOUR).comes("other", FOUR);
    let said = |is_tyjob| {
        let facts = pod("rl-learner-0", FOUR, cluster.now);
        let pods = vec![Unadmitted { facts, class: None, priority: Some(9), never_preempts: None }];
        let object = UnadmittedObject { pods, is_tyjob, ..UnadmittedObject::default() };
        let mut answer = cluster.scheduler.what_if_objects(vec![object], cluster.moment()).unwrap();
        answer.objects.remove(0)
    };
    assert!(said(false).headline.contains("would evict"), "{:?}", said(false));
    assert!(said(true).headline.starts_with("would wait: 0/1 nodes"), "{:?}", said(true));
    assert!(said(true).notes.iter().any(|note| note.contains("basicPolicy")), "{:?}", said(true));
}

#[test]
fn pods_of_one_name_are_several_and_one_that_exists_keeps_its_room() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("p", FOUR);
    let facts = pod("p", FOUR, cluster.now);
    let one = || Unadmitted { facts: facts.clone(), class: None, priority: None, never_preempts: None };
    let object =
        |name: &str| UnadmittedObject { name: name.to_owned(), pods: vec![one()], ..UnadmittedObject::default() };
    let answer = cluster.scheduler.what_if_objects(vec![object("Pod ml/p"), object("Pod ml/q")], cluster.moment());
    let said: Vec<String> = answer.unwrap().objects.into_iter().map(|object| object.headline).collect();
    assert_eq!(said, ["would start now on n", "would wait: 0/1 nodes: 1 has fewer than 4 free GPUs"]);
}
