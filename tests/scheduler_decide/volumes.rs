//! Claims that wait for their first consumer: the node is chosen, the claim gets its volume there, and only then is the node
//! locked and the pod bound.

use std::time::Duration;

use baton::contract::{PodKey, key};
use baton::decide::scheduler::rules::plugins::DefaultSet;
use baton::decide::scheduler::{EngineConfig, PodState};
use baton::decide::world::spec::{NodeOperator, NodeRequirement, NodeTerm, VolumeUse};
use baton::decide::world::{AccessModes, ClaimFacts, ClassFacts, VolumeFacts, WorldEvent};

use crate::env::{Env, pod};

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];

fn once() -> AccessModes {
    AccessModes::of(["ReadWriteOnce"])
}

fn zone(zone: &str) -> NodeTerm {
    let values = vec![zone.to_owned()];
    NodeTerm {
        expressions: vec![NodeRequirement { key: "zone".into(), operator: NodeOperator::In, values }],
        ..NodeTerm::default()
    }
}

/// Nodes `a` and `b`, each its own zone.
pub fn cluster() -> Env {
    let mut env = Env::with(EngineConfig::default(), DefaultSet::default());
    for name in ["a", "b"] {
        env.node(name, 8);
        env.change_node(name, |facts| {
            facts.labels.insert("zone".into(), name.into());
        });
    }
    env
}

impl Env {
    pub fn class(&mut self, name: &str, provisions: bool, zones: &[&str]) {
        let zones: Vec<_> = zones.iter().map(|zone| (*zone).into()).collect();
        let topologies = if zones.is_empty() { vec![] } else { vec![vec![("zone".into(), zones)]] };
        self.event(WorldEvent::Class(
            name.into(),
            ClassFacts { waits: true, provisions, provisioner: "csi.example.com".into(), topologies },
        ));
    }

    pub fn claim(&mut self, name: &str, gibibytes: i64, change: impl FnOnce(&mut ClaimFacts)) {
        let mut facts = ClaimFacts {
            uid: format!("uid-{name}").into(),
            class: Some("local".into()),
            modes: once(),
            request: gibibytes << 30,
            version: "1".into(),
            ..ClaimFacts::default()
        };
        change(&mut facts);
        self.claims.insert(PodKey::new("ml", name), facts);
        self.tell_claim(&PodKey::new("ml", name));
    }

    pub fn change_claim(&mut self, name: &str, change: impl FnOnce(&mut ClaimFacts)) {
        let key = PodKey::new("ml", name);
        let facts = self.claims.get_mut(&key).unwrap();
        change(facts);
        facts.version = format!("{}1", facts.version).into();
        self.tell_claim(&key);
    }

    pub fn volume(&mut self, name: &str, gibibytes: i64, at: &str) {
        let facts = VolumeFacts {
            required: Some(vec![zone(at)]),
            class: Some("local".into()),
            capacity: gibibytes << 30,
            modes: once(),
            available: true,
            version: "1".into(),
            ..VolumeFacts::default()
        };
        self.volumes.insert(name.into(), facts);
        self.tell_volume(name);
    }

    /// The volume controller: every promised volume is bound on the claim's side too.
    fn control(&mut self) {
        let promised = self.volumes.iter().filter_map(|(name, facts)| Some((name.clone(), facts.claim.clone()?.0)));
        let incomplete = promised.filter(|(_, claim)| !self.claims[claim].complete);
        for (volume, claim) in incomplete.collect::<Vec<(String, PodKey)>>() {
            self.change_claim(&claim.name, |facts| {
                (facts.volume, facts.complete) = (Some(volume.as_str().into()), true);
            });
        }
        self.settle();
    }

    /// The provisioner makes the volume where it was told to.
    pub fn provision(&mut self, claim: &str) {
        let key = PodKey::new("ml", claim);
        let node = self.claims[&key].selected_node.clone().expect("a node is selected");
        self.volume(&format!("pv-{claim}"), 10, &node);
        let facts = self.volumes.get_mut(&format!("pv-{claim}")).unwrap();
        facts.claim = Some((key, format!("uid-{claim}").into()));
        facts.available = false;
        self.tell_volume(&format!("pv-{claim}"));
        self.control();
    }

    pub fn pod_with_claims(&mut self, name: &str, claims: &[&str]) {
        let mut facts = pod(name, ONE, self.now);
        let mut spec = (*facts.spec).clone();
        spec.volumes = claims.iter().map(|claim| VolumeUse::Claim((*claim).into())).collect();
        facts.spec = spec.into();
        self.submit(facts);
        self.settle();
    }

    pub fn selected(&self, claim: &str) -> Option<&str> {
        self.claims[&PodKey::new("ml", claim)].selected_node.as_deref()
    }

    pub fn promised(&self, volume: &str) -> Option<&str> {
        self.volumes[volume].claim.as_ref().map(|(claim, _)| &*claim.name)
    }

    pub fn state(&mut self, pod: &str) -> PodState {
        let now = self.moment();
        self.engine.explain(&PodKey::new("ml", pod), now).unwrap().state
    }
}

#[test]
fn the_provisioner_is_told_the_node_once_and_the_pod_is_bound_there_when_the_volume_is() {
    let mut env = cluster();
    env.class("local", true, &["b"]);
    env.claim("data", 10, |_| {});
    env.pod_with_claims("p", &["data"]);
    assert_eq!((env.selected("data"), env.node_of("p"), env.lock_writes), (Some("b"), None, 0));
    assert_eq!(env.state("p"), PodState::Preparing);
    // Whatever else happens to volumes meanwhile, it is not written again.
    env.volume("other", 1, "a");
    env.wait(30);
    assert_eq!((env.volume_writes, env.bound()), (1, 0));
    env.provision("data");
    assert_eq!((env.node_of("p"), env.holder("b"), env.volume_writes), (Some("b"), Some("p"), 1));
}

#[test]
fn a_provisioner_that_gives_up_takes_the_node_away_and_another_one_is_chosen() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.claim("data", 10, |_| {});
    env.pod_with_claims("p", &["data"]);
    let first = env.selected("data").unwrap().to_owned();
    env.change_node(&first, |facts| facts.unschedulable = true);
    env.change_claim("data", |facts| facts.selected_node = None);
    env.settle();
    assert!(env.conditions["p"].contains("could not make a volume for claim data"), "{}", env.conditions["p"]);
    assert!(env.notices.contains(&("p".into(), "FailedBinding")), "{:?}", env.notices);
    assert_eq!((env.engine.flights().len(), env.lock_writes), (0, 0));
    env.wait(2);
    let second = env.selected("data").unwrap().to_owned();
    assert_ne!(first, second);
    env.provision("data");
    assert_eq!(env.node_of("p"), Some(second.as_str()));
}

#[test]
fn a_claim_that_gets_no_volume_in_ten_minutes_is_given_up_and_its_room_is_free() {
    let mut env = cluster();
    env.class("local", true, &["a"]);
    env.claim("data", 10, |_| {});
    env.pod_with_claims("p", &["data"]);
    env.wait(599);
    assert_eq!(env.engine.flights().len(), 1);
    env.wait(1);
    assert!(env.conditions["p"].contains("waits for the volume of claim data for 600 s"), "{}", env.conditions["p"]);
    // The annotation stands, as with kube-scheduler: the next try goes to that node.
    env.wait(2);
    assert_eq!((env.selected("data"), env.engine.flights().len()), (Some("a"), 1));
    env.provision("data");
    assert_eq!(env.node_of("p"), Some("a"));
}

#[test]
fn a_claim_gets_the_smallest_free_volume_that_its_node_reaches_and_no_two_claims_get_the_same() {
    let mut env = cluster();
    env.class("local", false, &[]);
    env.volume("small", 5, "a");
    env.volume("middle", 20, "b");
    env.volume("large", 50, "b");
    for name in ["one", "two", "three"] {
        env.claim(name, 10, |_| {});
    }
    env.pod_with_claims("p", &["one"]);
    env.pod_with_claims("q", &["two"]);
    env.pod_with_claims("r", &["three"]);
    assert_eq!(
        (env.promised("middle"), env.promised("large"), env.promised("small")),
        (Some("one"), Some("two"), None)
    );
    assert_eq!(env.bound(), 0, "nothing is bound before the controller has seen it");
    assert_eq!(env.conditions["r"], "0/2 nodes: 2 have no free volume for claim three");
    env.control();
    assert_eq!(env.bound(), 1, "the other one waits for the node's lock");
    env.agent_releases("b");
    env.settle();
    assert_eq!((env.node_of("p"), env.node_of("q")), (Some("b"), Some("b")));
    env.volume("fresh", 10, "a");
    env.settle();
    env.control();
    assert_eq!(env.node_of("r"), Some("a"));
}

#[test]
fn a_pod_with_two_claims_gets_both_on_one_node() {
    let mut env = cluster();
    env.class("local", false, &[]);
    env.volume("a1", 10, "a");
    env.volume("b1", 10, "b");
    env.volume("b2", 10, "b");
    env.claim("one", 10, |_| {});
    env.claim("two", 5, |_| {});
    env.pod_with_claims("p", &["one", "two"]);
    env.control();
    assert_eq!((env.node_of("p"), env.promised("a1")), (Some("b"), None));
}

#[test]
fn access_modes_kind_selector_and_promises_of_others_are_respected() {
    let mut env = cluster();
    env.class("local", false, &[]);
    for name in ["many", "block", "labels", "theirs", "gone", "ours"] {
        env.volume(name, 10, "a");
    }
    env.volumes.get_mut("many").unwrap().modes = AccessModes::of(["ReadOnlyMany"]);
    env.volumes.get_mut("block").unwrap().block = true;
    env.volumes.get_mut("theirs").unwrap().claim = Some((PodKey::new("ml", "else"), "uid-else".into()));
    env.volumes.get_mut("gone").unwrap().deleting = true;
    env.volumes.get_mut("ours").unwrap().labels.insert("disk".into(), "ssd".into());
    for name in ["many", "block", "theirs", "gone", "ours"] {
        env.tell_volume(name);
    }
    env.claims.insert(PodKey::new("ml", "else"), ClaimFacts { complete: true, ..ClaimFacts::default() });
    let selector = serde_json::from_str(r#"{"matchLabels":{"disk":"ssd"}}"#).unwrap();
    env.claim("data", 10, |facts| facts.selector = Some(selector));
    env.pod_with_claims("p", &["data"]);
    assert_eq!(env.promised("ours"), Some("data"));
}

#[test]
fn a_write_that_is_lost_or_refused_is_made_again_and_a_new_leader_goes_on() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.claim("data", 10, |_| {});
    env.lost_volume_writes = 1;
    env.pod_with_claims("p", &["data"]);
    assert_eq!((env.volume_writes, env.selected("data")), (1, None));
    env.wait(6);
    assert!(env.selected("data").is_some(), "written again");
    let node = env.selected("data").unwrap().to_owned();
    env.engine.lead(false, env.moment());
    env.lead();
    env.settle();
    assert_eq!(env.state("p"), PodState::Preparing, "the new leader waits for the same volume");
    env.provision("data");
    assert_eq!(env.node_of("p"), Some(node.as_str()));
}

#[test]
fn two_pods_of_one_claim_go_where_its_volume_is_made() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.claim("data", 10, |_| {});
    env.lost_volume_writes = 1;
    // The first one's wish is not seen in the cluster yet when the second one is decided.
    env.pod_with_claims("p", &["data"]);
    env.change_node("a", |facts| facts.unschedulable = true);
    env.pod_with_claims("q", &["data"]);
    env.wait(6);
    env.provision("data");
    env.wait(1);
    let node = env.node_of("p").or(env.node_of("q")).unwrap().to_owned();
    env.agent_releases(&node);
    env.wait(2);
    let nodes: Vec<Option<&str>> = ["p", "q"].iter().map(|name| env.node_of(name)).collect();
    assert!(nodes.iter().flatten().all(|one| *one == node), "{nodes:?}");
    assert_eq!(env.volumes.len(), 1);
}

#[test]
fn what_is_wrong_with_a_claim_is_said() {
    let mut env = cluster();
    let mut said = |claim: &str| {
        let name = format!("pod-{claim}");
        env.pod_with_claims(&name, &[claim]);
        env.conditions[&name].clone()
    };
    assert_eq!(said("missing"), "claim missing does not exist");
    let mut env = cluster();
    env.event(WorldEvent::Class("now".into(), ClassFacts { waits: false, provisions: true, ..ClassFacts::default() }));
    env.claim("leaving", 1, |facts| facts.deleting = true);
    env.claim("lost", 1, |facts| {
        (facts.lost, facts.volume, facts.complete) = (true, Some("pv".into()), true);
    });
    env.claim("classless", 1, |facts| facts.class = Some("none".into()));
    env.claim("immediate", 1, |facts| facts.class = Some("now".into()));
    env.claim("half", 1, |facts| (facts.volume, facts.complete) = (Some("nowhere".into()), true));
    for (claim, text) in [
        ("leaving", "claim leaving is being deleted"),
        ("lost", "claim lost is lost: its volume pv is gone"),
        ("classless", "claim classless is not bound to a volume, and its storage class none does not exist"),
        ("immediate", "claim immediate is not bound to a volume"),
        ("half", "volume nowhere of claim half does not exist"),
    ] {
        env.pod_with_claims(&format!("pod-{claim}"), &[claim]);
        assert_eq!(env.conditions[&format!("pod-{claim}")], text);
    }
    // Once the class is there, the pod wakes.
    env.class("none", true, &["nowhere"]);
    env.settle();
    assert_eq!(
        env.conditions["pod-classless"],
        "claim classless is not bound to a volume, and its storage class none does not exist"
    );
    env.wait(10);
    assert_eq!(env.conditions["pod-classless"], "0/2 nodes: 2 storage class none makes no volumes there");
}

#[test]
fn an_ephemeral_volume_waits_for_its_own_claim() {
    let mut env = cluster();
    env.class("local", true, &[]);
    let mut facts = pod("p", ONE, env.now);
    let mut spec = (*facts.spec).clone();
    spec.volumes = vec![VolumeUse::Ephemeral("p-scratch".into())];
    facts.spec = spec.into();
    env.submit(facts);
    env.settle();
    assert_eq!(env.conditions["p"], "claim p-scratch of an ephemeral volume has not been made yet");
    env.claim("p-scratch", 1, |facts| facts.owner = Some("somebody".into()));
    env.wait(11);
    assert!(env.conditions["p"].contains("was not made for this pod"), "{}", env.conditions["p"]);
    env.change_claim("p-scratch", |facts| facts.owner = Some("uid-p".into()));
    env.settle();
    env.provision("p-scratch");
    assert!(env.node_of("p").is_some());
}

#[test]
fn a_pod_that_is_deleted_while_its_volume_is_made_frees_its_room_and_its_volume() {
    let mut env = cluster();
    env.class("local", false, &[]);
    env.volume("only", 10, "a");
    env.claim("one", 10, |_| {});
    env.claim("two", 10, |_| {});
    env.lost_volume_writes = 1;
    env.pod_with_claims("p", &["one"]);
    env.pod_with_claims("q", &["two"]);
    assert_eq!((env.promised("only"), env.node_of("q")), (None, None));
    env.delete("p");
    env.settle();
    env.wait(1);
    assert_eq!(env.promised("only"), Some("two"), "the volume that p was to get is free again");
    env.control();
    assert_eq!(env.node_of("q"), Some("a"));
    assert!(env.now > Duration::from_secs(1000));
}

#[test]
fn a_claim_for_one_pod_only_is_freed_by_evicting_a_less_important_pod() {
    let mut env = cluster();
    env.class("local", false, &[]);
    env.volume("pv", 20, "a");
    env.claim("data", 10, |facts| facts.single_pod = true);
    env.pod_with_claims("low", &["data"]);
    env.control();
    assert_eq!(env.node_of("low"), Some("a"));
    env.agent_releases("a");
    let mut facts = pod("high", ONE, env.now);
    let mut spec = (*facts.spec).clone();
    spec.volumes = vec![VolumeUse::Claim("data".into())];
    spec.priority = 1000;
    facts.spec = spec.into();
    env.submit(facts);
    env.settle();
    assert!(env.conditions["high"].contains("claim data is in use by its one pod"), "{}", env.conditions["high"]);
    assert_eq!(env.evicted, ["low"]);
    env.delete("low");
    env.wait(2);
    assert_eq!(env.node_of("high"), Some("a"));
}

/// Two members of a gang with a claim each.
fn gang_with_claims(env: &mut Env, mode: &str) {
    let keys = crate::gang_env::gang("g", "2", &[("mode", mode)]);
    for (name, claim) in [("p", "one"), ("q", "two")] {
        let mut facts = pod(name, &[(key::NVIDIA_GPU, "8")], env.now);
        let mut spec = (*facts.spec).clone();
        spec.volumes = vec![VolumeUse::Claim(claim.into())];
        spec.gang = crate::gang_env::declared("ml", &keys);
        facts.spec = spec.into();
        env.submit(facts);
    }
    env.settle();
}

#[test]
fn nobody_of_a_gang_locks_a_node_before_the_volumes_of_all_its_members_are_settled() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.claim("one", 10, |_| {});
    env.claim("two", 10, |_| {});
    gang_with_claims(&mut env, "Strict");
    assert!(env.selected("one").is_some() && env.selected("two").is_some());
    env.provision("one");
    assert_eq!((env.lock_writes, env.bound()), (0, 0), "the other claim is not bound yet");
    env.provision("two");
    env.settle();
    assert_eq!(env.bound(), 2);
}

#[test]
fn a_gang_that_accumulates_keeps_what_it_planned_for_claims_over_failed_attempts() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.claim("one", 10, |_| {});
    env.claim("two", 10, |_| {});
    env.pod("other", &[(key::NVIDIA_GPU, "8")]);
    env.settle();
    let taken = env.node_of("other").unwrap().to_owned();
    env.agent_releases(&taken);
    gang_with_claims(&mut env, "NonStrict");
    env.wait(3);
    assert_eq!(
        (env.engine.holds().len(), env.volume_writes),
        (1, 0),
        "one of two has room, nothing is told to anybody"
    );
    env.finish("other");
    env.wait(3);
    assert!(env.selected("one").is_some() && env.selected("two").is_some());
    assert_eq!(env.bound(), 1, "only the other pod");
    env.provision("one");
    env.provision("two");
    env.settle();
    assert_eq!(env.bound(), 3);
}

#[test]
fn a_claim_whose_volume_is_promised_elsewhere_gets_no_other_one() {
    let mut env = cluster();
    env.class("local", false, &[]);
    env.volume("pv-a", 10, "a");
    env.volume("pv-b", 10, "b");
    let key = PodKey::new("ml", "data");
    env.volumes.get_mut("pv-a").unwrap().claim = Some((key, "".into()));
    env.tell_volume("pv-a");
    env.claim("data", 5, |_| {});
    let mut facts = pod("p", ONE, env.now);
    facts.spec.volumes = vec![VolumeUse::Claim("data".into())];
    facts.spec.node_selector = [("zone".to_owned(), "b".to_owned())].into();
    env.submit(facts);
    env.settle();
    assert_eq!(env.node_of("p"), None, "its volume is on the other node");
    env.change_pod("p", |facts| facts.spec.node_selector.clear());
    env.settle();
    let now = env.moment();
    assert_eq!(env.engine.explain(&PodKey::new("ml", "p"), now).unwrap().node.as_deref(), Some("a"));
}

#[test]
fn what_a_volume_says_of_a_node_by_its_name_holds_for_a_node_without_a_name() {
    for (operator, reached) in [(NodeOperator::In, false), (NodeOperator::NotIn, true)] {
        let mut env = cluster();
        env.class("local", false, &[]);
        env.volume("only", 10, "a");
        let values = vec!["a".to_owned()];
        let named = NodeRequirement { key: "metadata.name".into(), operator, values };
        let facts = env.volumes.get_mut("only").unwrap();
        facts.required.as_mut().unwrap()[0].fields = vec![named];
        env.tell_volume("only");
        env.claim("data", 10, |_| {});
        env.pod_with_claims("p", &["data"]);
        env.control();
        assert_eq!(env.node_of("p"), reached.then_some("a"), "kubelets and kube-scheduler ask the labels only");
    }
}
