//! Nodes that take no device pods although their daemon is live: it locks otherwise than the scheduler, or another driver hands out
//! the same GPUs.

use baton::contract::{LockFormat, LockWord};
use baton::decide::world::SliceFacts;

use crate::harness::scheduler::NAMES;
use crate::prelude::*;

fn status(lock: Option<LockWord>) -> AgentStatus {
    AgentStatus { exceptions: None, lock, ..TestScheduler::status(Identity::Lock, &NAMES) }
}

#[test]
fn a_node_whose_daemon_locks_otherwise_takes_no_device_pods_until_it_agrees() {
    let mut cluster = TestScheduler::on("n", 4);
    cluster.say("n", status(Some(LockWord::new("other.example/lock", LockFormat::Uid))));
    assert_eq!(cluster.comes("p", ONE).node_of("p"), None);
    tells(&cluster.conditions["p"], ["AgentConfig: the node daemon has --node-lock-key=other.example/lock, the sched"]);
    let node = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
    assert!(!node.takes_devices && node.message.contains("pods with devices: AgentConfig: the node daemon has"));
    assert!(node.advice.unwrap().contains("--node-lock-key"));
    let closed = cluster.queue_report().closed.remove(0);
    assert!(closed.kind.is_none() && node.message.ends_with(&closed.why), "{closed:?}");
    assert_eq!(cluster.scheduler.fleet(cluster.moment()).largest_free["none"], 0);
    assert_eq!(cluster.comes("plain", CPU).node_of("plain"), Some("n"), "pods without devices need no daemon");
    // Daemons read every format.
    cluster.say("n", status(Some(LockWord::new(key::NODE_LOCK, LockFormat::Timestamp))));
    assert_eq!(cluster.settled().node_of("p"), Some("n"));
    assert_eq!(cluster.scheduler.fleet(cluster.moment()).largest_free["none"], 3);
}

#[test]
fn a_node_whose_gpus_another_driver_offers_takes_no_device_pods() {
    let mut cluster = TestScheduler::on("n", 4);
    let slice = |node: &str, driver: &str| Some(SliceFacts { node: node.into(), driver: driver.into() });
    cluster.event(WorldEvent::Slice("n-nics".into(), slice("n", "dra.net")));
    cluster.event(WorldEvent::Slice("n-screen".into(), slice("n", "gpu.intel.com")));
    cluster.event(WorldEvent::Slice("m-gpus".into(), slice("m", "gpu.nvidia.com")));
    assert_eq!(cluster.comes("first", ONE).node_of("first"), Some("n"), "no GPUs of this node");
    cluster.serves("n").event(WorldEvent::Slice("n-gpus".into(), slice("n", "gpu.nvidia.com")));
    cluster.event(WorldEvent::Slice("n-gpus-2".into(), slice("n", "gpu.nvidia.com")));
    assert_eq!(cluster.comes("second", ONE).node_of("second"), None);
    tells(&cluster.conditions["second"], ["AnotherGpuDriver: gpu.nvidia.com offers the node's GPUs by ResourceSlices"]);
    let explained = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
    assert!(explained.message.contains("AnotherGpuDriver") && !explained.takes_devices, "{explained:?}");
    cluster.event(WorldEvent::Slice("n-gpus".into(), None));
    assert_eq!(cluster.settled().node_of("second"), None, "one slice is left");
    cluster.event(WorldEvent::Slice("n-gpus-2".into(), slice("m", "gpu.nvidia.com")));
    assert_eq!(cluster.settled().node_of("second"), Some("n"));
    cluster.serves("n").event(WorldEvent::Slice("n-shares".into(), slice("n", "hami-core-gpu.project-hami.io")));
    assert_eq!(cluster.comes("third", ONE).node_of("third"), None);
}
