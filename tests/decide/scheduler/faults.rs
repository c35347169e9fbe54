//! Evictions of pods whose devices have failed.

use baton::decide::health::{FaultAnswer, FaultEvictions, FaultStep, XIDS, XidOrigin};
use baton::decide::world::spec::FaultVictims;

use super::holders::status;
use crate::prelude::*;

const GRACE: Duration = Duration::from_secs(300);
const XID_79: &str = "XID 79: GPU has fallen off the bus (hardware): drain the node and reboot it";

/// Two nodes of four GPUs; pod `NODE-MINOR` runs on each of the first two.
struct Faulty {
    cluster: TestScheduler,
    evictions: FaultEvictions,
}

impl Faulty {
    fn new() -> Self {
        let mut cluster = TestScheduler::new();
        for node in ["a", "b"] {
            cluster.node(node, 4);
            for minor in 0..2 {
                let name = format!("{node}-{minor}");
                cluster.bound_by_another(&name, node, minor);
                cluster.change_pod(&name, |facts| facts.handoff.phase = Phase::Running);
            }
        }
        Self { cluster, evictions: FaultEvictions::new(GRACE) }
    }

    /// The daemon of the node writes this condition of its devices.
    fn fails(&mut self, node: &str, minors: &[usize], reason: &str, message: &str) -> &mut Self {
        let mut device: Device = gpu_device(node, 4);
        for minor in minors {
            let info = &mut device.spec.devices[*minor];
            info.health = false;
            info.conditions = serde_json::from_value(serde_json::json!([{"type": "Healthy", "status": "False",
                "reason": reason, "message": message, "lastTransitionTime": wall(self.cluster.now).to_string()}]))
            .unwrap();
        }
        self.evictions.see(&device, self.cluster.now);
        self.cluster.event(WorldEvent::Devices(Box::new(device)));
        self
    }

    fn next(&mut self) -> Vec<FaultStep> {
        self.evictions.next(self.cluster.world(), self.cluster.now)
    }

    /// The pod whose eviction is asked for now.
    fn asked(&mut self) -> Option<String> {
        self.next().into_iter().find_map(|step| match step {
            FaultStep::Evict(pod, _) => Some(pod.key.name.to_string()),
            FaultStep::Spare(..) => None,
        })
    }

    fn answer(&mut self, pod: &str, answer: &FaultAnswer) {
        self.evictions.answered(&PodUid::new(&format!("uid-{pod}")), answer, self.cluster.now);
    }

    fn after(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..seconds.div_ceil(10) {
            self.cluster.later(10);
            self.cluster.beat_all();
        }
        self
    }

    fn on_fault(&mut self, pod: &str, said: FaultVictims) {
        self.cluster.change_pod(pod, |facts| facts.spec.on_fault = said);
    }
}

#[test]
fn the_pods_of_a_failed_gpu_are_evicted_after_the_grace_and_no_others() {
    let mut faulty = Faulty::new();
    assert_eq!(faulty.fails("a", &[1], "Xid", XID_79).asked(), None);
    assert_eq!(faulty.after(290).asked(), None, "it may come back");
    let [FaultStep::Evict(pod, why)] = &faulty.after(10).next()[..] else { panic!() };
    assert_eq!(&*pod.key.name, "a-1");
    tells(why, ["GPU-a-1", "XID 79: GPU has fallen off the bus"]);
    assert_eq!(faulty.asked(), None, "one is asked for at a time");
    faulty.answer("a-1", &FaultAnswer::Done);
    faulty.cluster.delete("a-1");
    assert_eq!(faulty.asked(), None);
}

/// The kubelet takes a failed GPU from what it offers, and the request of the pod that has it still counts on the node.
#[test]
fn a_gpu_that_fails_under_its_pod_takes_no_free_one_with_it() {
    for priority in [0, 100] {
        let mut faulty = Faulty::new();
        faulty.fails("a", &[0], "Xid", XID_79);
        faulty.cluster.change_node("a", |facts| facts.allocatable.set(key::NVIDIA_GPU, Quantity::units(3)));
        faulty.cluster.change_node("b", |facts| facts.unschedulable = true);
        faulty.cluster.comes_as("two", TWO, |facts| facts.spec.priority = priority);
        assert_eq!(faulty.cluster.node_of("two"), Some("a"), "{:?}", faulty.cluster.conditions);
        faulty.cluster.comes("third", ONE);
        assert_eq!(faulty.cluster.node_of("third"), None, "the failed one is given to no pod");
        assert_eq!(faulty.cluster.evicted, Vec::<String>::new(), "it needs no victim");
    }
}

/// Its kubelet counts the GPUs of a node as before when a NIC has failed under a pod.
#[test]
fn a_nic_that_fails_under_its_pod_gives_no_gpu_away() {
    let mut cluster = TestScheduler::on("a", 4);
    let mut device = gpu_device("a", 4);
    let mut nic = device.spec.devices[0].clone();
    (nic.kind, nic.id, nic.health) = (DeviceType::Rdma, DeviceId::parse("0000:10:00.0").unwrap(), false);
    nic.resources = [(key::RDMA.to_owned(), Quantity::units(100))].into();
    device.spec.devices.push(nic);
    cluster.event(WorldEvent::Devices(Box::new(device)));
    let mut facts = pod("nic", &[(key::RDMA, "100")], cluster.now);
    facts.handoff.node = Some("a".into());
    let held = r#"{"rdma":[{"minor":0,"id":"0000:10:00.0","resources":{"koordinator.sh/rdma":"100"}}]}"#;
    facts.handoff.assignment.device_allocated = Some(held.into());
    cluster.submit(facts).change_node("a", |facts| facts.allocatable.set(key::NVIDIA_GPU, Quantity::units(1)));
    assert_eq!(cluster.comes("two", TWO).node_of("two"), None, "the kubelet offers one");
    cluster.comes("one", ONE);
    assert_eq!(cluster.node_of("one"), Some("a"), "{:?}", cluster.conditions);
}

#[test]
fn a_gpu_that_comes_back_within_the_grace_costs_no_pod() {
    let mut faulty = Faulty::new();
    faulty.fails("a", &[0], "Xid", XID_79).after(200).fails("a", &[], "", "");
    assert_eq!(faulty.after(100).asked(), None);
    assert_eq!(faulty.fails("a", &[0], "Xid", XID_79).after(200).asked(), None, "its grace begins again");
}

#[test]
fn only_an_xid_that_the_hardware_causes_evicts() {
    let evicts = |reason: &str, message: &str| {
        let mut faulty = Faulty::new();
        faulty.fails("a", &[0], reason, message).after(400).asked().is_some()
    };
    for rule in XIDS {
        for reason in ["Xid", "XidNeedsReset", "XidNeedsReboot"] {
            let message = baton::decide::health::xid_words(rule.xid);
            assert_eq!(evicts(reason, &message), rule.origin == XidOrigin::Hardware, "{message}");
        }
    }
    for (reason, message) in [
        ("Gone", XID_79),
        ("LinkDown", XID_79),
        ("", XID_79),
        ("Xid", ""),
        ("Xid", "XID"),
        ("Xid", "XID x79"),
        ("Xid", "XID 7900"),
        ("Xid", "XID 99999999999999999999999999"),
        ("Xid", "XID -79"),
        ("Xid", "xid 79"),
        ("Xid", "an unknown XID 7000"),
    ] {
        assert!(!evicts(reason, message), "{reason}: {message}");
    }
    assert!(evicts("Xid", &format!("{XID_79} {}", "x".repeat(100_000))), "however long the text is");
}

#[test]
fn one_node_is_emptied_before_the_next_one() {
    let mut faulty = Faulty::new();
    faulty.fails("a", &[0, 1], "Xid", XID_79).fails("b", &[0, 1], "XidNeedsReboot", XID_79).after(300);
    let mut order = Vec::new();
    while let Some(pod) = faulty.asked() {
        faulty.answer(&pod, &FaultAnswer::Done);
        let now = wall(faulty.cluster.now);
        faulty.cluster.change_pod(&pod, |facts| facts.handoff.deleting = Some(Deletion { at: now, grace_seconds: 30 }));
        order.push(pod);
    }
    assert_eq!(order, ["a-0", "a-1"], "node b waits until the pods of a are gone");
    faulty.cluster.delete("a-0");
    assert_eq!(faulty.asked(), None);
    faulty.cluster.delete("a-1");
    assert_eq!(faulty.asked().as_deref(), Some("b-0"));
}

#[test]
fn a_budget_puts_an_eviction_off_and_does_not_hold_up_other_nodes_for_ever() {
    let mut faulty = Faulty::new();
    faulty.fails("a", &[0], "Xid", XID_79).fails("b", &[0], "Xid", XID_79).after(300);
    let mut asked = Vec::new();
    for _ in 0..70 {
        if let Some(pod) = faulty.asked() {
            let answer = if pod == "a-0" { FaultAnswer::PutOff } else { FaultAnswer::Done };
            faulty.answer(&pod, &answer);
            asked.push(pod.clone());
            if pod == "b-0" {
                faulty.cluster.delete("b-0");
            }
        }
        faulty.after(10);
    }
    let first_b = asked.iter().position(|pod| pod == "b-0").expect("node b has its turn");
    assert!((15..=22).contains(&first_b), "a-0 is asked for every 30 s for ten minutes: {asked:?}");
    assert_eq!(asked.last().unwrap(), "a-0", "and then again");
}

#[test]
fn a_pod_says_who_goes_with_it_and_one_that_nothing_makes_again_is_left_alone() {
    let mut faulty = Faulty::new();
    for pod in ["a-0", "b-0", "b-1"] {
        faulty.cluster.change_pod(pod, |facts| {
            let keys = [(baton::contract::gang::key::NAME.to_owned(), "train".to_owned())];
            facts.spec.gang = declared("ml", &keys);
        });
    }
    faulty.on_fault("a-0", FaultVictims::Gang);
    faulty.on_fault("a-1", FaultVictims::read(Some("never"), true));
    let steps = faulty.fails("a", &[0, 1], "Xid", XID_79).after(300).next();
    let spared: Vec<&String> =
        steps.iter().filter_map(|step| if let FaultStep::Spare(_, why) = step { Some(why) } else { None }).collect();
    assert!(spared.len() == 1 && spared[0].contains("baton.io/evict-on-fault is \"never\""), "{spared:?}");
    let mut evicted = vec!["a-0".to_owned()];
    faulty.answer("a-0", &FaultAnswer::Done);
    faulty.cluster.change_pod("a-0", |facts| facts.handoff.grace_seconds = 30);
    while let Some(pod) = faulty.asked() {
        faulty.answer(&pod, &FaultAnswer::Done);
        evicted.push(pod);
    }
    evicted.sort_unstable();
    assert_eq!(evicted, ["a-0", "b-0", "b-1"], "the gang, on whichever node; and each once");
    for (said, controlled, expected) in [
        (None, true, FaultVictims::Pod),
        (None, false, FaultVictims::Spared),
        (Some("pod"), false, FaultVictims::Pod),
        (Some("gang"), true, FaultVictims::Gang),
        (Some(""), true, FaultVictims::Unknown("".into())),
        (Some("Gang"), true, FaultVictims::Unknown("Gang".into())),
    ] {
        assert_eq!(FaultVictims::read(said, controlled), expected, "{said:?}");
    }
}

#[test]
fn a_pod_without_its_devices_goes_and_a_silent_daemon_is_not_believed() {
    let mut faulty = Faulty::new();
    let bare = AgentStatus { exceptions: Some([(PodUid::new("uid-a-0"), [].into())].into()), ..status() };
    faulty.cluster.say("a", bare);
    assert_eq!(faulty.asked(), None);
    assert_eq!(faulty.after(300).asked().as_deref(), Some("a-0"));
    let mut faulty = Faulty::new();
    faulty.fails("a", &[0], "Xid", XID_79);
    for _ in 0..60 {
        // Neither daemon says anything.
        faulty.cluster.later(10);
        faulty.cluster.settle();
    }
    assert_eq!(faulty.asked(), None, "what it wrote may be before a repair");
    assert_eq!(key::EVICT_ON_FAULT, "baton.io/evict-on-fault");
}
