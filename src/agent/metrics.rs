//! What the daemon counts, beside what the hand-off counts itself.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::handoff::HandoffMetrics;
use baton_contract::DeviceType;
use baton_contract::inventory::{DeviceInfo, device_names};
use baton_runtime::metrics::{FloatGauge, LabelPairs, MetricSet, PassingGauge, RequestMetrics, labels};

/// All of it. Methods never block and never fail.
pub struct AgentMetrics {
    set: MetricSet,
    handoff: HandoffMetrics,
    registrations_lost: Family<LabelPairs, Counter>,
    registered: Family<LabelPairs, Gauge>,
    xids: Family<LabelPairs, Counter>,
    unhealthy: PassingGauge,
    gpus: PassingGauge,
    offered: Family<LabelPairs, Gauge>,
    ready: FloatGauge,
    pod_shares: PassingGauge,
    suspect: Gauge,
    shares_unavailable: Gauge,
}

/// Series of pods that one node shows; a node has at most a few hundred containers with devices.
const MOST_SHARES: usize = 1000;

/// A container's part of a GPU or MIG device.
#[derive(Debug, Clone, PartialEq)]
pub struct PodShare {
    /// Namespace of the pod.
    pub namespace: Box<str>,
    /// Its name.
    pub pod: Box<str>,
    /// Container.
    pub container: Box<str>,
    /// UUID of the device.
    pub uuid: Box<str>,
    /// 1 for the whole device.
    pub share: f64,
}

impl AgentMetrics {
    /// All at zero, beside what the client of the API server counts.
    pub fn new(requests: &RequestMetrics) -> Self {
        let mut set = MetricSet::new("baton_node");
        set.requests(requests);
        let lost = "Registrations with the kubelet lost, by resource and reason";
        let suspect = "1 while the node takes no new pods because its machine failed some";
        let unavailable = "1 while the node serves no GPU shares because their limits cannot be enforced";
        let share = "Part of a GPU or MIG device that a container has, 1 for all of it; shown with --pod-metrics";
        let ready = "Seconds from the first look at the hardware until the kubelet first had every resource; 0 before";
        Self {
            handoff: HandoffMetrics::new(&mut set),
            registrations_lost: set.add("registrations_lost", lost),
            registered: set.add("registered", "1 while the kubelet has the resource"),
            xids: set.add("xid_events", "XID events by code and action"),
            unhealthy: PassingGauge::of(
                &mut set,
                "device_unhealthy",
                "1 while the device is out of service; no series of the others",
            ),
            gpus: PassingGauge::of(&mut set, "gpus", "GPUs and MIG devices by what pods have of them, by the ledger"),
            offered: set.add("ids_offered", "Ids in the kubelet's list by resource and health"),
            suspect: set.add("suspect", suspect),
            shares_unavailable: set.add("gpu_shares_unavailable", unavailable),
            pod_shares: PassingGauge::of(&mut set, "pod_device_share", share),
            ready: set.seconds("ready_after_nvml", ready, FloatGauge::default()),
            set,
        }
    }

    /// The kubelet has every resource for the first time, so long after the hardware was known.
    pub fn ready_after(&self, hardware_known: std::time::Duration) {
        self.ready.set(hardware_known.as_secs_f64());
    }

    /// The hand-off's own.
    pub fn handoff(&self) -> HandoffMetrics {
        self.handoff.clone()
    }

    /// A registration was lost.
    pub fn registration_lost(&self, resource: &str, why: &str) {
        self.registrations_lost.get_or_create(&labels([("resource", resource), ("reason", why)])).inc();
    }

    /// The kubelet has the resource, or not.
    pub fn registered(&self, resource: &str, yes: bool) {
        self.registered.get_or_create(&labels([("resource", resource)])).set(i64::from(yes));
        self.handoff.expect_calls(resource);
    }

    /// The machine has failed pods, or is trusted again.
    pub fn suspect(&self, yes: bool) {
        self.suspect.set(i64::from(yes));
    }

    /// The limits of GPU shares cannot be enforced, or can again.
    pub fn shares_unavailable(&self, yes: bool) {
        self.shares_unavailable.set(i64::from(yes));
    }

    /// An XID was reported and judged.
    pub fn xid(&self, xid: u64, action: &str) {
        self.xids.get_or_create(&labels([("xid", &xid.to_string()), ("action", action)])).inc();
    }

    /// How the devices are, with their names on the node, and what pods have of the GPUs among them.
    pub fn devices(&self, devices: &[DeviceInfo], shares: &[PodShare]) {
        let bad = device_names(devices).into_iter().zip(devices).filter(|(_, of)| of.fault_of_holder().is_some());
        let named = |(name, of): (String, &DeviceInfo)| {
            (labels([("type", of.kind.as_str()), ("device", &name), ("id", of.id.as_str())]), 1.0)
        };
        self.unhealthy.show(bad.map(named));
        let mut states = [("free", 0.0), ("partly", 0.0), ("held", 0.0), ("unhealthy", 0.0)];
        for of in devices.iter().filter(|of| of.kind == DeviceType::Gpu && !of.resources.is_empty()) {
            let held: f64 = shares.iter().filter(|share| *share.uuid == *of.id.as_str()).map(|share| share.share).sum();
            let state = match held {
                _ if !of.health => 3,
                0.99.. => 2,
                0.001.. => 1,
                _ => 0,
            };
            states[state].1 += 1.0;
        }
        self.gpus.show(states.map(|(state, count)| (labels([("state", state)]), count)));
    }

    /// Which container has how much of which device; what is not among these any more is forgotten.
    pub fn pod_shares(&self, node: &str, shares: &[PodShare]) {
        self.pod_shares.show(shares.iter().take(MOST_SHARES).map(
            |PodShare { namespace, pod, container, uuid, share }| {
                let named =
                    [("node", node), ("namespace", namespace), ("pod", pod), ("container", container), ("uuid", uuid)];
                (labels(named), *share)
            },
        ));
    }

    /// What one resource name offers: healthy ids and all.
    pub fn offered(&self, resource: &str, healthy: usize, all: usize) {
        let of = |health: &str, count: usize| {
            self.offered.get_or_create(&labels([("resource", resource), ("health", health)])).set(count as i64);
        };
        of("healthy", healthy);
        of("unhealthy", all - healthy);
    }

    /// OpenMetrics text.
    pub fn print(&self) -> String {
        self.set.print()
    }
}

#[cfg(test)]
#[path = "../../tests/harness/documented.rs"]
mod documented;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_printed_with_its_labels() {
        let metrics = AgentMetrics::new(&RequestMetrics::default());
        metrics.handoff().count_call("nvidia.com/gpu", "no-room", 0.0003);
        metrics.xid(48, "unhealthy");
        metrics.devices(&[gpu("GPU-a", false)], &[]);
        metrics.devices(
            &[gpu("GPU-b", false), gpu("GPU-c", true), gpu("GPU-d", true)],
            &[PodShare { uuid: "GPU-c".into(), ..half() }],
        );
        metrics.offered("nvidia.com/gpu", 3, 4);
        metrics.registered("nvidia.com/gpu.shared", true);
        let text = metrics.print();
        for line in [
            r#"baton_node_allocate_refused_total{resource="nvidia.com/gpu"} 1"#,
            r#"baton_node_allocate_refused_total{resource="nvidia.com/gpu.shared"} 0"#,
            r#"baton_node_divergence_total{reason="DeviceDivergence"} 0"#,
            r#"baton_node_allocate_total{resource="nvidia.com/gpu",result="no-room"} 1"#,
            r#"baton_node_xid_events_total{xid="48",action="unhealthy"} 1"#,
            r#"baton_node_device_unhealthy{type="gpu",device="gpu-0",id="GPU-b"} 1.0"#,
            r#"baton_node_gpus{state="free"} 1.0"#,
            r#"baton_node_gpus{state="partly"} 1.0"#,
            r#"baton_node_ids_offered{resource="nvidia.com/gpu",health="unhealthy"} 1"#,
            // `AgentTimings::rpc_budget` is 2 s: what waits for all of it is distinct from what waits for longer.
            r#"baton_node_watch_wait_seconds_bucket{le="3.2768"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("GPU-a"), "a device that left is forgotten");
    }

    fn gpu(id: &str, health: bool) -> DeviceInfo {
        let amounts = serde_json::json!({"koordinator.sh/gpu-core": "100"});
        let text = serde_json::json!({"type": "gpu", "id": id, "minor": 0, "health": health, "resources": amounts});
        serde_json::from_value(text).unwrap()
    }

    fn half() -> PodShare {
        let [namespace, pod, container, uuid] = ["ml", "train-0", "main", "GPU-a"].map(Into::into);
        PodShare { namespace, pod, container, uuid, share: 0.5 }
    }

    #[test]
    fn shares_of_pods_are_shown_by_uuid_forgotten_with_the_pod_and_bounded() {
        let metrics = AgentMetrics::new(&RequestMetrics::default());
        metrics.pod_shares("node-a", &[half()]);
        let line = r#"baton_node_pod_device_share{node="node-a",namespace="ml",pod="train-0",container="main",uuid="GPU-a"} 0.5"#;
        assert!(metrics.print().contains(line), "{}", metrics.print());
        metrics.pod_shares("node-a", &[]);
        assert!(!metrics.print().contains("train-0"));
        let many: Vec<PodShare> = (0..5000).map(|n| PodShare { pod: format!("p-{n}").into(), ..half() }).collect();
        metrics.pod_shares("node-a", &many);
        assert_eq!(metrics.print().matches("baton_node_pod_device_share{").count(), MOST_SHARES);
    }

    #[test]
    fn every_metric_is_documented() {
        let metrics = AgentMetrics::new(&super::documented::requests());
        let handoff = metrics.handoff();
        handoff.count_call("nvidia.com/gpu", "served", 0.0003);
        handoff.live_reads.get_or_create(&[("call", "Allocate")]).inc();
        for family in [&handoff.identified, &handoff.released, &handoff.divergences] {
            family.get_or_create(&[("reason", "lock")]).inc();
        }
        metrics.registration_lost("nvidia.com/gpu", "socket");
        metrics.registered("nvidia.com/gpu", true);
        metrics.xid(48, "unhealthy");
        metrics.devices(&[gpu("GPU-a", false)], &[]);
        metrics.offered("nvidia.com/gpu", 1, 1);
        metrics.pod_shares("node-a", &[half()]);
        super::documented::check(&metrics.print(), "baton device-plugin");
    }
}
