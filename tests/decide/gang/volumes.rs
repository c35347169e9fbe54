//! Gangs whose members wait for volumes: no member is bound before it is sure that all are.

use super::faults::zone;
use crate::prelude::*;

/// A node with so many CPUs, where volumes of a class are made once a pod is chosen for them.
pub(super) fn with_claims(cpus: u32) -> TestGangs {
    let mut gangs = TestGangs::with(Config::default()).accumulating();
    gangs.plain_node("a", cpus, "x");
    zone(&mut gangs, "a");
    let class = ClassFacts { waits: true, provisions: true, ..ClassFacts::default() };
    gangs.cluster.classes.insert("local".into(), class.clone());
    gangs.cluster.event(WorldEvent::Class("local".into(), class));
    gangs
}

impl TestGangs {
    /// A member with a claim of its name, whose volume is to be made.
    pub fn claims(&mut self, name: &str, keys: &[(String, String)]) -> &mut Self {
        self.claims_as(name, name, keys)
    }

    fn claims_as(&mut self, name: &str, claim: &str, keys: &[(String, String)]) -> &mut Self {
        self.cluster.claim(claim, 10, |_| ());
        self.asks_as(name, CPU, keys, |facts| facts.spec.volumes = vec![VolumeUse::Claim(claim.into())])
    }
}

/// A gang of three, each with a claim that waits for it.
fn gang_with_claims() -> TestGangs {
    let mut gangs = with_claims(8);
    (0..3).for_each(|n| _ = gangs.claims_as(&format!("g-{n}"), &format!("c{n}"), &gang("g", "3", &[])));
    gangs.cluster.settle();
    assert_eq!(gangs.stand("g"), (0, 3));
    gangs
}

#[test]
fn when_the_volume_of_one_member_cannot_be_made_nobody_of_the_gang_goes() {
    let mut gangs = gang_with_claims();
    gangs.cluster.provision("c0").provision("c1").change_claim("c2", |facts| facts.selected_node = None).settle();
    assert_eq!(gangs.stand("g"), (0, 0), "no lock is taken yet: all of it goes back");
    assert_eq!((gangs.reported("GangBindFailed"), gangs.reported("GangHoldReleased")), (1, 1));
    gangs.cluster.later(2).settle();
    assert_eq!(gangs.reserved("ml/g"), 3, "it is tried again when it has rested");
    gangs.cluster.provision("c2");
    assert_eq!(gangs.settled().count("g"), 3);
}

#[test]
fn a_surplus_member_waits_until_the_first_commit_is_sure() {
    for made in [true, false] {
        let mut gangs = gang_with_claims();
        gangs.asks("g-3", CPU, &gang("g", "3", &[]));
        assert_eq!(gangs.after(2).count("g"), 0, "the volumes of the others may still not be made");
        assert_eq!(gangs.reason("g-3"), "GangIncomplete");
        gangs.cluster.provision("c0").provision("c1");
        if made {
            gangs.cluster.provision("c2");
            assert_eq!(gangs.settled().count("g"), 4);
        } else {
            gangs.cluster.change_claim("c2", |facts| facts.selected_node = None).settle();
            assert_eq!(gangs.count("g"), 0);
            // They go back, rest, and are tried again.
            gangs.after(5).cluster.provision("c2");
            assert_eq!(gangs.after(5).count("g"), 4);
        }
    }
}

#[test]
fn the_surplus_of_a_group_whose_first_commit_is_cancelled_is_not_forgotten() {
    let mut gangs = gang_with_claims();
    gangs.asks("g-3", CPU, &gang("g", "3", &[]));
    gangs.after(1).delete("g-2");
    assert_eq!(gangs.after(5).stand("g"), (0, 3), "with it the gang has its minimum");
    gangs.cluster.provision("c0").provision("c1");
    assert_eq!(gangs.after(5).count("g"), 3);
}

#[test]
fn no_member_is_bound_where_a_gang_of_its_group_is_gone() {
    let mut gangs = gang_with_claims();
    (0..3).for_each(|n| gangs.delete(&format!("g-{n}")));
    let groups = ("groups", r#"["ml/learner","ml/actor"]"#);
    gangs.asks_as("learner-0", CPU, &gang("learner", "1", &[groups]), |facts| {
        facts.spec.volumes = vec![VolumeUse::Claim("c0".into())];
    });
    gangs.member("actor-0", &gang("actor", "1", &[groups]));
    assert_eq!((gangs.after(3).reserved("ml/learner"), gangs.reserved("ml/actor")), (1, 1));
    gangs.delete("actor-0");
    gangs.cluster.provision("c0");
    assert_eq!(gangs.after(5).bound(), [""; 0]);
}

#[test]
fn a_member_that_is_deleted_before_the_first_lock_takes_the_others_back() {
    let mut gangs = gang_with_claims();
    assert_eq!(gangs.goes("g-2").reserved("ml/g"), 0);
    ["c0", "c1"].iter().for_each(|claim| _ = gangs.cluster.provision(claim));
    assert_eq!((gangs.after(3).count("g"), gangs.reason("g-0")), (0, "GangIncomplete"));
    gangs.asks_as("g-2", CPU, &gang("g", "3", &[]), |facts| facts.spec.volumes = vec![]);
    assert_eq!(gangs.after(3).count("g"), 3);
}
