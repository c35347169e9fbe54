//! What the scheduler chooses, the node serves: both sides of the hand-off judge the same assignment alike.

use baton::contract::{ContainerRequest, LockRead};
use baton::decide::handoff::{
    AllocateCall, AllocateContext, AllocateOutcome, AllocatePolicy, IdMismatch, InventoryDevice, Ledger,
    ListedContainers, ListedPod, LiveReads, NodeInventory, NodePods, PodListing, PodResources, decide,
};
use baton::decide::lock::LockMode;
use baton::decide::pod::{AssignmentText, ExpectedCall, HandoffPod, PodContainer};
use proptest::prelude::*;

use super::nodes::{Written, device, machine, nic, object, with_vfs};
use crate::prelude::*;

const NODE: &str = "node-a";

/// What one container asks for, and when it runs.
pub type Wanted = (ContainerKind, Vec<(&'static str, i64)>);

/// One node as the scheduler and the agent see it.
#[derive(Clone)]
pub struct Node {
    pub pool: NodePool,
    inventory: NodeInventory,
    pods: NodePods,
    ledger: Ledger,
    /// What happens where the kubelet chooses other ids.
    pub id_mismatch: IdMismatch,
}

/// The ids that the kubelet chooses for a call.
pub type Chooses<'a> = dyn FnMut(&AllocateContext<'_>, &ExpectedCall<'_>) -> Vec<String> + 'a;

/// Ids of devices that are not assigned.
fn strange(_: &AllocateContext<'_>, call: &ExpectedCall<'_>) -> Vec<String> {
    (0..call.count).map(|unit| format!("GPU-strange::{unit}")).collect()
}

/// The agent's view of the same devices.
fn inventory_of(device: &Device) -> NodeInventory {
    let mut devices = BTreeMap::new();
    for info in &device.spec.devices {
        let own = InventoryDevice {
            kind: info.kind.clone(),
            minor: info.minor,
            healthy: info.health,
            reason: None,
            memory_bytes: info.resources.get(key::GPU_MEMORY).map(|bytes| bytes.value()),
            parent: None,
            mig_profile: None,
        };
        for vf in info.vf_groups.iter().flat_map(|group| &group.vfs) {
            let part = InventoryDevice { parent: Some(info.id.clone()), minor: vf.minor, ..own.clone() };
            devices.insert(vf.bus_id.clone(), part);
        }
        devices.insert(info.id.clone(), own);
    }
    NodeInventory { devices, ..NodeInventory::default() }
}

impl Node {
    pub fn of(device: &Device) -> Self {
        let mut node = Self {
            pool: NodePool::default(),
            inventory: NodeInventory::default(),
            pods: NodePods::default(),
            ledger: Ledger::default(),
            id_mismatch: IdMismatch::default(),
        };
        node.changes(device);
        node
    }

    fn changes(&mut self, device: &Device) {
        assert_eq!(self.pool.update(device), []);
        self.inventory = inventory_of(device);
    }

    /// Chooses, binds and admits a pod; `false` where the scheduler finds no room. What the agent refuses is an error.
    fn run(&mut self, name: &str, containers: &[Wanted], hint: Option<&str>) -> Result<bool, String> {
        let chosen = self.admit(name, containers, hint, &mut strange)?;
        Ok(chosen.is_some())
    }

    /// The same with the devices that were chosen, and a kubelet that chooses its ids like this.
    pub fn admit(
        &mut self,
        name: &str,
        containers: &[Wanted],
        hint: Option<&str>,
        ids: &mut Chooses<'_>,
    ) -> Result<Option<Assignment>, String> {
        let wanted = containers_of(containers);
        let wishes = Wishes::parse(hint, None, None).unwrap();
        let (gpus, nics) = (wishes.gpu.counting(), wishes.rdma.counting());
        let request = PodDeviceRequest::of_containers(&wanted, wishes).map_err(|problem| problem.to_string())?;
        let Ok(chosen) = pick(&self.pool, &request) else { return Ok(None) };
        self.pool.take(&chosen.grant).map_err(|error| error.to_string())?;
        let split = chosen.container_devices(&self.pool, &request, NODE);
        let pod = HandoffPod {
            pod: PodRef::new("default", name, name),
            node: Some(NODE.into()),
            scheduler_name: "baton-scheduler".into(),
            phase: Phase::Pending,
            deleting: None,
            grace_seconds: 30,
            scheduled_condition: true,
            resizing: false,
            created: jiff::Timestamp::UNIX_EPOCH,
            containers: wanted.into(),
            assignment: AssignmentText {
                container_devices: Some(split.print().into()),
                gpus,
                nics,
                ..AssignmentText::default()
            },
        };
        self.pods.apply(pod.clone());
        let listed = pod.containers.iter().filter(|container| container.kind != Init);
        let mut listed: ListedContainers = listed.map(|container| (container.name.clone(), BTreeMap::new())).collect();
        let policy =
            AllocatePolicy { lock: LockMode::Auto, id_mismatch: self.id_mismatch, ..AllocatePolicy::default() };
        for call in pod.expected_calls(|_| true) {
            let pods = vec![ListedPod { key: PodKey::new("default", name), containers: listed.clone() }];
            let resources = PodResources::Listed(PodListing { pods, ..PodListing::default() });
            let context = AllocateContext {
                node: NODE,
                pods: &self.pods,
                lock: &LockRead::Free,
                resources: &resources,
                ledger: &self.ledger,
                inventory: &self.inventory,
                live_reads: &LiveReads::pods_and_node(self.pods.iter().map(|pod| pod.pod.key.clone())),
                watching: true,
                now: jiff::Timestamp::UNIX_EPOCH,
                policy: &policy,
            };
            let ids = ids(&context, &call);
            match decide(&context, &AllocateCall { resource: call.resource, count: call.count, ids: &ids }, None) {
                AllocateOutcome::Serve(serving) => self.ledger.record(serving.entry),
                other => return Err(format!("{name}, {}: {other:?}", call.resource)),
            }
            if let Some(resources) = listed.get_mut(&call.container.name) {
                resources.insert(call.resource.into(), ids.iter().map(|id| id.as_str().into()).collect());
            }
        }
        Ok(Some(chosen))
    }
}

/// Containers as the hand-off sees them.
pub fn containers_of(containers: &[Wanted]) -> Vec<PodContainer> {
    let names = ["c0", "c1", "c2", "c3"];
    let wanted = names.iter().zip(containers).map(|(name, (kind, limits))| PodContainer {
        name: (*name).into(),
        kind: *kind,
        request: ContainerRequest::judge(limits.iter().map(|(name, amount)| (*name, Quantity::units(*amount)))),
        running: false,
        started: false,
        lacks_devices: false,
        ended: None,
        dra_backed: vec![],
    });
    wanted.collect()
}

/// 8 GPUs and 4 NICs; the first `with` NICs have two virtual functions each.
fn object_with_vfs(with: usize) -> Device {
    let mut devices = machine(2);
    for (at, info) in devices.iter_mut().filter(|info| info.kind == DeviceType::Rdma).enumerate().take(with) {
        let vfs = [format!("0000:{at:02x}:00.2"), format!("0000:{at:02x}:00.3")];
        *info = with_vfs(info.clone(), "a", &[&vfs[0], &vfs[1]]);
    }
    object(devices)
}

const ALL: &str = r#"{"gpu":{"allocateStrategy":"ApplyForAll"},"rdma":{"allocateStrategy":"ApplyForAll"}}"#;
const COUNT: &str = r#"{"rdma":{"allocateStrategy":"RequestsAsCount"}}"#;

#[test]
fn the_node_serves_as_many_devices_as_the_hint_makes_of_the_amount() {
    for (hint, limit) in
        [(ALL, (key::RDMA, 10)), (COUNT, (key::RDMA, 2)), (ALL, (key::NVIDIA_GPU, 1)), (ALL, (key::GPU, 50))]
    {
        let mut node = Node::of(&object(machine(2)));
        assert_eq!(node.run("a", &[(App, vec![limit])], Some(hint)), Ok(true), "{limit:?}");
    }
    let alone = r#"{"rdma":{"allocateStrategy":"RequestsAsCount","exclusivePolicy":"DeviceLevel"}}"#;
    let mut node = Node::of(&object(machine(2)));
    assert_eq!(node.run("a", &[(App, vec![(key::RDMA, 2)])], Some(alone)), Ok(true));
}

#[test]
fn containers_of_one_pod_share_the_virtual_function_that_the_pod_has_of_a_nic() {
    let vfs = ["0000:3c:00.2", "0000:3c:00.3"];
    let mut node = Node::of(&object(vec![with_vfs(nic(0, "s", "r", 0), "a", &vfs)]));
    let share = || vec![(key::RDMA, 30)];
    let function = |node: &Node, container: &str| {
        let entry =
            node.ledger.iter().find(|entry| &*entry.container == container && &*entry.pod.key.name == "p").unwrap();
        entry.served[0].1.extension.as_ref().unwrap().vfs[0].bus_id.clone()
    };
    assert_eq!(node.run("p", &[(Init, share()), (App, share()), (App, share())], None), Ok(true));
    let first = DeviceId::parse(vfs[0]).unwrap();
    assert_eq!([function(&node, "c1"), function(&node, "c2")], [first.clone(), first.clone()]);
    assert_eq!(node.run("q", &[(App, share())], None), Ok(true));
    assert_eq!(node.run("r", &[(App, vec![(key::RDMA, 10)])], None), Ok(false), "no third function");
    assert!(device(DeviceType::Rdma, vfs[1], 0, "s", "r", 0).id != first);
}

#[test]
fn a_nic_that_gets_functions_while_it_is_shared_as_one_gives_none_of_them() {
    let mut node = Node::of(&object(machine(2)));
    let share = || [(App, vec![(key::RDMA, 30)])];
    assert_eq!(node.run("before", &share(), None), Ok(true));
    node.changes(&object_with_vfs(1));
    assert_eq!(node.run("after", &share(), None), Ok(true));
    assert_eq!((node.pool.nic_room(0), node.pool.nic_room(1)), (70, 70));
}

fn limits() -> impl Strategy<Value = Vec<(&'static str, i64)>> {
    prop_oneof![
        (1..3i64).prop_map(|count| vec![(key::NVIDIA_GPU, count)]),
        (1..9i64).prop_map(|tenth| vec![(key::GPU, tenth * 10)]),
        (1..9i64).prop_map(|tenth| vec![(key::RDMA, tenth * 10)]),
        (1..3i64).prop_map(|count| vec![(key::RDMA, count * 100)]),
        (1..9i64).prop_map(|tenth| vec![(key::GPU, tenth * 10), (key::RDMA, tenth * 10)]),
        Just(vec![(key::NVIDIA_GPU, 1), (key::RDMA, 100)]),
        (1..4i64).prop_map(|count| vec![(key::GPU_SHARED, count), (key::GPU_MEMORY_RATIO, 20 * count)]),
    ]
}

proptest! {
    #[test]
    fn whatever_the_scheduler_assigns_the_agent_serves(
        pods in proptest::collection::vec(
            (proptest::collection::vec(limits(), 1..4), 0..3usize, prop_oneof![5 => Just(None), 1 => Just(Some(ALL)), 1 => Just(Some(COUNT))]),
            1..7,
        ),
        functions in proptest::collection::vec(0..5usize, 7),
    ) {
        let mut node = Node::of(&object_with_vfs(functions[0]));
        let mut have = functions[0];
        for (at, (containers, first, hint)) in pods.into_iter().enumerate() {
            // Functions come while devices are in use.
            have = have.max(functions[at]);
            node.changes(&object_with_vfs(have));
            let inits = first.min(containers.len() - 1);
            let kind = |at: usize| if at >= inits { App } else if at == 0 { Init } else { Sidecar };
            let containers: Vec<_> = containers.into_iter().enumerate().map(|(at, limits)| (kind(at), limits)).collect();
            match node.run(&format!("p{at}"), &containers, hint) {
                Err(refused) if refused.starts_with("container") => {}
                other => prop_assert!(other.is_ok(), "{other:?}"),
            }
        }
    }
}
