//! Claims that wait for their first consumer: the node is chosen, the claim gets its volume there, and only then is the node
//! locked and the pod bound.

use baton::decide::world::spec::{NodeOperator, NodeRequirement};
use baton::decide::world::{AccessModes, ClaimFacts, VolumeFacts};

use crate::prelude::*;

fn once() -> AccessModes {
    AccessModes::of(["ReadWriteOnce"])
}

/// Nodes `a` and `b`, each its own zone.
fn cluster() -> TestScheduler {
    let mut cluster = TestScheduler::with(Config::default(), DefaultSet::default());
    for name in ["a", "b"] {
        cluster.node(name, 8).change_node(name, |facts| _ = facts.labels.insert("zone".into(), name.into()));
    }
    cluster
}

/// With class `local`, whose volumes are made or are there.
pub fn with_class(provisions: bool) -> TestScheduler {
    let mut cluster = cluster();
    cluster.class("local", provisions, &[]);
    cluster
}

impl TestScheduler {
    pub fn class(&mut self, name: &str, provisions: bool, zones: &[&str]) -> &mut Self {
        let zones: Vec<_> = zones.iter().map(|zone| (*zone).into()).collect();
        let topologies = if zones.is_empty() { vec![] } else { vec![vec![("zone".into(), zones)]] };
        self.event(WorldEvent::Class(
            name.into(),
            ClassFacts { waits: true, provisions, provisioner: "csi.example.com".into(), topologies },
        ));
        self
    }

    pub fn claim(&mut self, name: &str, gibibytes: i64, change: impl FnOnce(&mut ClaimFacts)) -> &mut Self {
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
        self.tell_claim(&PodKey::new("ml", name))
    }

    pub fn change_claim(&mut self, name: &str, change: impl FnOnce(&mut ClaimFacts)) -> &mut Self {
        let key = PodKey::new("ml", name);
        let facts = self.claims.get_mut(&key).unwrap();
        change(facts);
        facts.version = format!("{}1", facts.version).into();
        self.tell_claim(&key)
    }

    pub fn volume(&mut self, name: &str, gibibytes: i64, at: &str) -> &mut Self {
        let facts = VolumeFacts {
            required: Some(vec![among("zone", &[at])]),
            class: Some("local".into()),
            capacity: gibibytes << 30,
            modes: once(),
            available: true,
            version: "1".into(),
            ..VolumeFacts::default()
        };
        self.volumes.insert(name.into(), facts);
        self.tell_volume(name)
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

    /// The provisioner makes the volume where the claim says.
    pub fn provision(&mut self, claim: &str) -> &mut Self {
        let key = PodKey::new("ml", claim);
        let node = self.claims[&key].selected_node.clone().expect("a node is selected");
        self.volume(&format!("pv-{claim}"), 10, &node);
        let facts = self.volumes.get_mut(&format!("pv-{claim}")).unwrap();
        facts.claim = Some((key, format!("uid-{claim}").into()));
        facts.available = false;
        self.tell_volume(&format!("pv-{claim}"));
        self.control();
        self
    }

    pub fn pod_with_claims(&mut self, name: &str, claims: &[&str]) -> &mut Self {
        let mut facts = pod(name, ONE, self.now);
        facts.spec.volumes = claims.iter().map(|claim| VolumeUse::Claim((*claim).into())).collect();
        self.enters(facts)
    }

    pub fn selected(&self, claim: &str) -> Option<&str> {
        self.claims[&PodKey::new("ml", claim)].selected_node.as_deref()
    }

    pub fn promised(&self, volume: &str) -> Option<&str> {
        self.volumes[volume].claim.as_ref().map(|(claim, _)| &*claim.name)
    }

    pub fn state(&mut self, pod: &str) -> PodState {
        self.explain(&PodKey::new("ml", pod)).unwrap().state
    }
}

#[test]
fn the_node_is_selected_once_and_the_pod_is_bound_when_the_volume_is() {
    let mut cluster = cluster();
    cluster.class("local", true, &["b"]).claim("data", 10, |_| {}).pod_with_claims("p", &["data"]);
    assert_eq!((cluster.selected("data"), cluster.node_of("p"), cluster.lock_writes), (Some("b"), None, 0));
    assert_eq!(cluster.state("p"), PodState::Preparing);
    // Whatever else happens to volumes meanwhile, it is not written again.
    assert_eq!((cluster.volume("other", 1, "a").after(30).volume_writes, cluster.bound()), (1, 0));
    cluster.provision("data");
    assert_eq!((cluster.node_of("p"), cluster.holder("b"), cluster.volume_writes), (Some("b"), Some("p"), 1));
}

#[test]
fn a_provisioner_that_gives_up_takes_the_node_away_and_another_one_is_chosen() {
    let mut cluster = with_class(true);
    cluster.claim("data", 10, |_| {}).pod_with_claims("p", &["data"]);
    let first = cluster.selected("data").unwrap().to_owned();
    cluster.change_claim("data", |facts| facts.selected_node = None).settle();
    cluster.change_node(&first, |facts| facts.unschedulable = true).settle();
    tells(&cluster.conditions["p"], ["could not make a volume for claim data"]);
    assert!(cluster.notices.contains(&("p".into(), "FailedBinding")), "{:?}", cluster.notices);
    assert_eq!((cluster.bind_attempts(), cluster.lock_writes), (0, 0));
    let second = cluster.after(2).selected("data").unwrap().to_owned();
    assert_ne!(first, second);
    assert_eq!(cluster.provision("data").node_of("p"), Some(second.as_str()));
}

#[test]
fn a_claim_that_gets_no_volume_in_ten_minutes_is_given_up_and_its_room_is_free() {
    let mut cluster = cluster();
    cluster.class("local", true, &["a"]).claim("data", 10, |_| {}).pod_with_claims("p", &["data"]);
    assert_eq!(cluster.after(599).bind_attempts(), 1);
    tells(&cluster.after(1).conditions["p"], ["waits for the volume of claim data for 600 s"]);
    // The annotation stands, as with kube-scheduler: the next try goes to that node.
    cluster.wait(2);
    assert_eq!((cluster.selected("data"), cluster.bind_attempts()), (Some("a"), 1));
    assert_eq!(cluster.provision("data").node_of("p"), Some("a"));
}

#[test]
fn each_claim_gets_the_smallest_free_volume_of_its_node_and_none_is_given_twice() {
    let mut cluster = with_class(false);
    cluster.volume("small", 5, "a").volume("middle", 20, "b").volume("large", 50, "b");
    ["one", "two", "three"].into_iter().for_each(|name| _ = cluster.claim(name, 10, |_| {}));
    cluster.pod_with_claims("p", &["one"]).pod_with_claims("q", &["two"]).pod_with_claims("r", &["three"]);
    assert_eq!(
        (cluster.promised("middle"), cluster.promised("large"), cluster.promised("small")),
        (Some("one"), Some("two"), None)
    );
    assert_eq!(cluster.bound(), 0, "nothing is bound before the controller has seen it");
    assert_eq!(cluster.conditions["r"], "0/2 nodes: 2 have no free volume for claim three");
    cluster.control();
    assert_eq!(cluster.bound(), 1, "the other one waits for the node's lock");
    assert_eq!(cluster.serves("b").nodes_of(["p", "q"]), [Some("b"), Some("b")]);
    cluster.volume("fresh", 10, "a").settled().control();
    assert_eq!(cluster.node_of("r"), Some("a"));
}

#[test]
fn a_pod_with_two_claims_gets_both_on_one_node() {
    let mut cluster = with_class(false);
    cluster.volume("a1", 10, "a").volume("b1", 10, "b").volume("b2", 10, "b");
    cluster.claim("one", 10, |_| {}).claim("two", 5, |_| {}).pod_with_claims("p", &["one", "two"]).control();
    assert_eq!((cluster.node_of("p"), cluster.promised("a1")), (Some("b"), None));
}

#[test]
fn access_modes_kind_selector_and_promises_of_others_are_respected() {
    let mut cluster = with_class(false);
    for name in ["many", "block", "labels", "theirs", "gone", "gold", "ours"] {
        cluster.volume(name, 10, "a");
    }
    // Promised already, and never bound: the controller goes by the VolumeAttributesClass, too.
    let gold = cluster.volumes.get_mut("gold").unwrap();
    (gold.attributes, gold.claim) = ("gold".into(), Some((PodKey::new("ml", "data"), "".into())));
    cluster.volumes.get_mut("many").unwrap().modes = AccessModes::of(["ReadOnlyMany"]);
    cluster.volumes.get_mut("block").unwrap().block = true;
    cluster.volumes.get_mut("theirs").unwrap().claim = Some((PodKey::new("ml", "else"), "uid-else".into()));
    cluster.volumes.get_mut("gone").unwrap().deleting = true;
    cluster.volumes.get_mut("ours").unwrap().labels.insert("disk".into(), "ssd".into());
    for name in ["many", "block", "theirs", "gone", "gold", "ours"] {
        cluster.tell_volume(name);
    }
    cluster.claims.insert(PodKey::new("ml", "else"), ClaimFacts { complete: true, ..ClaimFacts::default() });
    let selector = with_label("disk", "ssd");
    cluster.claim("data", 10, |facts| facts.selector = Some(selector));
    assert_eq!(cluster.pod_with_claims("p", &["data"]).promised("ours"), Some("data"));
}

#[test]
fn a_write_that_is_lost_or_refused_is_made_again_and_a_new_leader_goes_on() {
    let mut cluster = with_class(true);
    cluster.claim("data", 10, |_| {});
    cluster.lost_volume_writes = 1;
    assert_eq!((cluster.pod_with_claims("p", &["data"]).volume_writes, cluster.selected("data")), (1, None));
    assert!(cluster.after(6).selected("data").is_some(), "written again");
    let node = cluster.selected("data").unwrap().to_owned();
    cluster.step_down().lead();
    assert_eq!(cluster.settled().state("p"), PodState::Preparing, "the new leader waits for the same volume");
    assert_eq!(cluster.provision("data").node_of("p"), Some(node.as_str()));
}

#[test]
fn two_pods_of_one_claim_go_where_its_volume_is_made() {
    let mut cluster = with_class(true);
    cluster.claim("data", 10, |_| {});
    cluster.lost_volume_writes = 1;
    // The first one's wish is not seen in the cluster yet when the second one is decided.
    cluster.pod_with_claims("p", &["data"]).change_node("a", |facts| facts.unschedulable = true);
    cluster.pod_with_claims("q", &["data"]).after(6).provision("data").wait(1);
    let node = cluster.node_of("p").or(cluster.node_of("q")).unwrap().to_owned();
    cluster.agent_releases(&node).wait(2);
    let nodes: Vec<Option<&str>> = ["p", "q"].iter().map(|name| cluster.node_of(name)).collect();
    assert!(nodes.iter().flatten().all(|one| *one == node), "{nodes:?}");
    assert_eq!(cluster.volumes.len(), 1);
}

#[test]
fn what_is_wrong_with_a_claim_is_said() {
    let mut cluster = cluster();
    let mut said = |claim: &str| {
        let name = format!("pod-{claim}");
        cluster.pod_with_claims(&name, &[claim]);
        cluster.conditions[&name].clone()
    };
    assert_eq!(said("missing"), "claim missing does not exist");
    let mut cluster = self::cluster();
    cluster
        .event(WorldEvent::Class("now".into(), ClassFacts { waits: false, provisions: true, ..ClassFacts::default() }));
    cluster.claim("leaving", 1, |facts| facts.deleting = true);
    cluster.claim("lost", 1, |facts| (facts.lost, facts.volume, facts.complete) = (true, Some("pv".into()), true));
    cluster.claim("classless", 1, |facts| facts.class = Some("none".into()));
    cluster.claim("immediate", 1, |facts| facts.class = Some("now".into()));
    cluster.claim("half", 1, |facts| (facts.volume, facts.complete) = (Some("nowhere".into()), true));
    for (claim, text) in [
        ("leaving", "claim leaving is being deleted"),
        ("lost", "claim lost is lost: its volume pv is gone"),
        ("classless", "claim classless is not bound to a volume, and its storage class none does not exist"),
        ("immediate", "claim immediate is not bound to a volume"),
        ("half", "volume nowhere of claim half does not exist"),
    ] {
        cluster.pod_with_claims(&format!("pod-{claim}"), &[claim]);
        assert_eq!(cluster.conditions[&format!("pod-{claim}")], text);
    }
    // Once the class is there, the pod wakes.
    cluster.class("none", true, &["nowhere"]);
    assert_eq!(
        cluster.settled().conditions["pod-classless"],
        "claim classless is not bound to a volume, and its storage class none does not exist"
    );
    assert_eq!(cluster.after(10).conditions["pod-classless"], "0/2 nodes: 2 storage class none makes no volumes there");
}

#[test]
fn an_ephemeral_volume_waits_for_its_own_claim() {
    let mut cluster = with_class(true);
    let mut facts = pod("p", ONE, cluster.now);
    facts.spec.volumes = vec![VolumeUse::Ephemeral("p-scratch".into())];
    assert_eq!(cluster.enters(facts).conditions["p"], "claim p-scratch of an ephemeral volume has not been made yet");
    cluster.claim("p-scratch", 1, |facts| facts.owner = Some("somebody".into()));
    tells(&cluster.after(11).conditions["p"], ["was not made for this pod"]);
    cluster.change_claim("p-scratch", |facts| facts.owner = Some("uid-p".into())).settle();
    assert!(cluster.provision("p-scratch").node_of("p").is_some());
}

#[test]
fn a_pod_that_is_deleted_while_its_volume_is_made_frees_its_room_and_its_volume() {
    let mut cluster = with_class(false);
    cluster.volume("only", 10, "a").claim("one", 10, |_| {}).claim("two", 10, |_| {});
    cluster.lost_volume_writes = 1;
    cluster.pod_with_claims("p", &["one"]).pod_with_claims("q", &["two"]);
    assert_eq!((cluster.promised("only"), cluster.node_of("q")), (None, None));
    cluster.goes("p");
    assert_eq!(cluster.after(1).promised("only"), Some("two"), "the volume that p was to get is free again");
    cluster.control();
    assert_eq!(cluster.node_of("q"), Some("a"));
    assert!(cluster.now > Duration::from_secs(1000));
}

#[test]
fn a_claim_for_one_pod_only_is_freed_by_evicting_a_less_important_pod() {
    let mut cluster = with_class(false);
    cluster.volume("pv", 20, "a").claim("data", 10, |facts| facts.single_pod = true);
    cluster.pod_with_claims("low", &["data"]).control();
    assert_eq!(cluster.node_of("low"), Some("a"));
    cluster.agent_releases("a");
    let mut facts = pod("high", ONE, cluster.now);
    facts.spec.volumes = vec![VolumeUse::Claim("data".into())];
    facts.spec.priority = 1000;
    tells(&cluster.enters(facts).conditions["high"], ["claim data is in use by its one pod"]);
    assert_eq!(cluster.evicted, ["low"]);
    cluster.delete("low");
    assert_eq!(cluster.after(2).node_of("high"), Some("a"));
}

/// Two members of a gang with a claim each.
fn gang_with_claims(cluster: &mut TestScheduler, mode: &str) {
    let keys = crate::harness::gangs::gang("g", "2", &[("mode", mode)]);
    for (name, claim) in [("p", "one"), ("q", "two")] {
        cluster.pod_as(name, &[(key::NVIDIA_GPU, "8")], |facts| {
            facts.spec.volumes = vec![VolumeUse::Claim(claim.into())];
            facts.spec.gang = crate::harness::gangs::declared("ml", &keys);
        });
    }
    cluster.settle();
}

#[test]
fn no_member_locks_a_node_before_the_volumes_of_all_its_gang_are_settled() {
    let mut cluster = with_class(true);
    cluster.claim("one", 10, |_| {}).claim("two", 10, |_| {});
    gang_with_claims(&mut cluster, "Strict");
    assert!(cluster.selected("one").is_some() && cluster.selected("two").is_some());
    assert_eq!((cluster.provision("one").lock_writes, cluster.bound()), (0, 0), "the other claim is not bound yet");
    assert_eq!(cluster.provision("two").settled().bound(), 2);
}

#[test]
fn a_gang_that_accumulates_keeps_what_it_planned_for_claims_over_failed_attempts() {
    let mut cluster = with_class(true);
    cluster.claim("one", 10, |_| {}).claim("two", 10, |_| {}).comes("other", &[(key::NVIDIA_GPU, "8")]);
    let taken = cluster.node_of("other").unwrap().to_owned();
    cluster.agent_releases(&taken);
    gang_with_claims(&mut cluster, "NonStrict");
    cluster.wait(3);
    assert_eq!((cluster.reservations(), cluster.volume_writes), (1, 0), "one of two has room, no event is written");
    cluster.finish("other");
    assert!(cluster.after(3).selected("one").is_some() && cluster.selected("two").is_some());
    assert_eq!(cluster.bound(), 1, "only the other pod");
    assert_eq!(cluster.provision("one").provision("two").settled().bound(), 3);
}

#[test]
fn a_claim_whose_volume_is_promised_elsewhere_gets_no_other_one() {
    let mut cluster = with_class(false);
    cluster.volume("pv-a", 10, "a").volume("pv-b", 10, "b");
    let key = PodKey::new("ml", "data");
    cluster.volumes.get_mut("pv-a").unwrap().claim = Some((key, "".into()));
    cluster.tell_volume("pv-a").claim("data", 5, |_| {});
    cluster.comes_as("p", ONE, |facts| {
        facts.spec.volumes = vec![VolumeUse::Claim("data".into())];
        facts.spec.node_selector = labels_of("zone", "b");
    });
    assert_eq!(cluster.node_of("p"), None, "its volume is on the other node");
    cluster.change_pod("p", |facts| facts.spec.node_selector.clear());
    assert_eq!(cluster.settled().explain(&PodKey::new("ml", "p")).unwrap().node.as_deref(), Some("a"));
}

#[test]
fn what_a_volume_says_of_a_node_by_its_name_holds_for_a_node_without_a_name() {
    for (operator, reached) in [(NodeOperator::In, false), (NodeOperator::NotIn, true)] {
        let mut cluster = with_class(false);
        cluster.volume("only", 10, "a");
        let values = vec!["a".to_owned()];
        let named = NodeRequirement { key: "metadata.name".into(), operator, values };
        let facts = cluster.volumes.get_mut("only").unwrap();
        facts.required.as_mut().unwrap()[0].fields = vec![named];
        cluster.tell_volume("only").claim("data", 10, |_| {}).pod_with_claims("p", &["data"]).control();
        assert_eq!(cluster.node_of("p"), reached.then_some("a"), "kubelets and kube-scheduler ask the labels only");
    }
}
