//! What a node can hold is placed, and what is placed is served: every combination of up to four containers of all kinds, against
//! a search that knows nothing of the one that ships.

use std::rc::Rc;

use baton::decide::handoff::prefer::{self, Preference};
use baton::decide::handoff::{AllocateCall, AllocateContext, IdMismatch};
use baton::decide::pod::ExpectedCall;
use proptest::prelude::*;

use super::accepted::{Node, Wanted, containers_of};
use super::nodes::{gpu, nic, object, pool_of, with_vfs};
use crate::prelude::*;

/// What is free of a GPU or a NIC: compute or percent, and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Free {
    percent: i64,
    memory: i64,
    /// All memory that the device has.
    total: i64,
    /// No pod has a part of it.
    untouched: bool,
}

/// So many devices, whole or so much of each.
#[derive(Debug, Clone, Copy)]
struct Ask {
    count: usize,
    /// Percent, and bytes of a device with so much memory; `None`: whole.
    share: Option<(i64, Bytes)>,
}

/// Of a device with so much memory.
type Bytes = fn(i64) -> i64;

impl Ask {
    /// What is left of a device; `None` where it has too little.
    fn of(self, free: Free) -> Option<Free> {
        let Some((percent, memory)) = self.share else {
            return free.untouched.then_some(Free { percent: 0, memory: 0, untouched: false, ..free });
        };
        let left = Free {
            percent: free.percent - percent,
            memory: free.memory - memory(free.total),
            untouched: false,
            ..free
        };
        (left.percent >= 0 && left.memory >= 0).then_some(left)
    }
}

/// Every set of one or two devices.
fn sets(devices: usize, count: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..devices).flat_map(move |one| {
        let seconds = if count == 1 { one..one + 1 } else { one + 1..devices };
        seconds.map(move |second| if count == 1 { vec![one] } else { vec![one, second] })
    })
}

/// The containers find room one after the other. A plain init container ends before the next one starts; all others stay.
fn can_hold(free: &[Free], containers: &[(ContainerKind, Ask)]) -> bool {
    let Some(((kind, ask), rest)) = containers.split_first() else { return true };
    let mut ways = sets(free.len(), ask.count).filter_map(|set| {
        let mut left = free.to_vec();
        set.into_iter().try_for_each(|at| {
            left[at] = ask.of(left[at])?;
            Some(())
        })?;
        // Which device it is does not matter to the next ones.
        left.sort_unstable();
        Some(left)
    });
    if *kind == Init {
        return ways.next().is_some() && can_hold(free, rest);
    }
    let ways: BTreeSet<Vec<Free>> = ways.collect();
    ways.iter().any(|left| can_hold(left, rest))
}

/// One kind of request.
type Letter = (&'static [(&'static str, i64)], Option<Ask>, Option<Ask>);

const WHOLE: Option<Ask> = Some(Ask { count: 1, share: None });
const TWO: Option<Ask> = Some(Ask { count: 2, share: None });

const fn share(count: usize, percent: i64, memory: fn(i64) -> i64) -> Option<Ask> {
    Some(Ask { count, share: Some((percent, memory)) })
}

const GPUS: [Letter; 7] = [
    (&[(key::NVIDIA_GPU, 1)], WHOLE, None),
    (&[(key::GPU, 60)], share(1, 60, |total| total * 60 / 100), None),
    (&[(key::GPU, 30)], share(1, 30, |total| total * 30 / 100), None),
    (&[(key::GPU_CORE, 20), (key::GPU_MEMORY_RATIO, 70)], share(1, 20, |total| total * 70 / 100), None),
    (&[(key::GPU_SHARED, 2), (key::GPU_MEMORY_RATIO, 100)], share(2, 0, |total| total * 50 / 100), None),
    (&[(key::GPU_CORE, 40), (key::GPU_MEMORY, 45 << 30)], share(1, 40, |_| 45 << 30), None),
    (&[(key::GPU, 200)], TWO, None),
];

const NICS: [Letter; 4] = [
    (&[(key::RDMA, 100)], None, WHOLE),
    (&[(key::RDMA, 60)], None, share(1, 60, |_| 0)),
    (&[(key::RDMA, 30)], None, share(1, 30, |_| 0)),
    (&[(key::RDMA, 200)], None, TWO),
];

/// A pod's containers and what they ask for.
#[derive(Debug)]
struct Combination(Vec<(ContainerKind, Letter)>);

impl Combination {
    fn wanted(&self) -> Vec<Wanted> {
        self.0.iter().map(|(kind, (limits, ..))| (*kind, limits.to_vec())).collect()
    }

    fn fits(&self, node: &NodePool) -> bool {
        let of = |ask: fn(&Letter) -> Option<Ask>| {
            self.0.iter().filter_map(move |(kind, letter)| Some((*kind, ask(letter)?))).collect::<Vec<_>>()
        };
        can_hold(&gpus(node), &of(|letter| letter.1)) && can_hold(&nics(node), &of(|letter| letter.2))
    }
}

impl std::fmt::Display for Combination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(kind, (limits, ..))| write!(f, "{kind:?} {limits:?}; "))
    }
}

fn gpus(pool: &NodePool) -> Vec<Free> {
    let free = |at: u8| {
        let (core, memory) = pool.gpu_room(at);
        let untouched = pool.summary().free_gpus & (1 << at) != 0;
        Free { percent: core.into(), memory, total: pool.devices().gpus[usize::from(at)].memory, untouched }
    };
    (0..pool.devices().gpus.len() as u8).map(free).collect()
}

fn nics(pool: &NodePool) -> Vec<Free> {
    let free = |at: u8| Free {
        percent: pool.nic_room(at).into(),
        memory: 0,
        total: 0,
        untouched: pool.summary().free_nics & (1 << at) != 0,
    };
    (0..pool.devices().nics.len() as u8).map(free).collect()
}

fn request(containers: &[Wanted]) -> PodDeviceRequest {
    PodDeviceRequest::of_containers(&containers_of(containers), Wishes::default()).unwrap()
}

/// Init containers and sidecars in any order, then apps.
fn orders(containers: usize) -> Vec<Vec<ContainerKind>> {
    let of = |started: usize| {
        let kinds = (0..1u32 << started).map(move |stays| {
            let first = (0..started).map(move |at| if stays & (1 << at) == 0 { Init } else { Sidecar });
            first.chain(std::iter::repeat_n(App, containers - started)).collect()
        });
        kinds.collect::<Vec<_>>()
    };
    (0..=containers).flat_map(of).collect()
}

fn each_combination(letters: &[Letter], containers: usize, mut each: impl FnMut(Combination)) {
    for kinds in orders(containers) {
        for word in 0..letters.len().pow(containers as u32) {
            let letter = |at: usize| letters[word / letters.len().pow(at as u32) % letters.len()];
            each(Combination(kinds.iter().copied().enumerate().map(|(at, kind)| (kind, letter(at))).collect()));
        }
    }
}

/// A GPU with so many GiB.
fn sized(minor: i32, gib: i64) -> DeviceInfo {
    let mut info = gpu(minor, &format!("s{minor}"), "r", 0);
    info.resources.insert(key::GPU_MEMORY.into(), format!("{gib}Gi").parse().unwrap());
    info
}

fn nic_at(minor: i32) -> DeviceInfo {
    nic(minor, &format!("s{minor}"), "r", 0)
}

/// A node of these devices on which pods with these limits run, and its kubelet.
fn node(devices: Vec<DeviceInfo>, others: &[&[(&'static str, i64)]]) -> (Node, Kubelet) {
    let device = object(devices);
    let (mut node, mut kubelet) = (Node::of(&device), Kubelet::of(&device));
    node.id_mismatch = IdMismatch::Reject;
    for (at, limits) in others.iter().enumerate() {
        let other = (App, limits.to_vec());
        let mut ids = |context: &AllocateContext<'_>, call: &ExpectedCall<'_>| kubelet.choose(context, call);
        node.admit(&format!("other-{at}"), &[other], None, &mut ids).unwrap();
    }
    (node, kubelet)
}

/// A kubelet's ids: those that init containers of the pod have left first, then what the node daemon prefers.
#[derive(Clone)]
struct Kubelet {
    ids: Rc<BTreeMap<&'static str, Vec<String>>>,
    used: BTreeMap<String, BTreeSet<String>>,
    left: BTreeMap<String, BTreeSet<String>>,
    /// It takes ids that are left in that order, or the other way round.
    backwards: bool,
}

impl Kubelet {
    fn of(device: &Device) -> Self {
        let mut ids: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for info in &device.spec.devices {
            let units = || (0..100).map(|unit| format!("{}::{unit}", info.id));
            if info.resources.contains_key(key::RDMA) {
                ids.entry(key::RDMA).or_default().extend(units());
                continue;
            }
            ids.entry(key::NVIDIA_GPU).or_default().push(info.id.to_string());
            for name in [key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED] {
                ids.entry(name).or_default().extend(units());
            }
        }
        Self { ids: ids.into(), used: BTreeMap::new(), left: BTreeMap::new(), backwards: false }
    }

    fn choose(&mut self, context: &AllocateContext<'_>, call: &ExpectedCall<'_>) -> Vec<String> {
        let (needed, name) = (call.count as usize, call.resource);
        let left = self.left.entry(name.to_owned()).or_default();
        let used = self.used.entry(name.to_owned()).or_default();
        let mut ids: Vec<String> = left.iter().cloned().collect();
        if self.backwards {
            ids.reverse();
        }
        ids.truncate(needed);
        if ids.len() < needed {
            let free = self.ids[name].iter().filter(|id| !used.contains(*id));
            let available: Vec<String> = free.chain(&ids).cloned().collect();
            let call = AllocateCall { resource: name, count: call.count, ids: &[] };
            let Preference::Order(order, _) = prefer::preference(context, &call) else { panic!("{call:?}") };
            let preferred = prefer::pick(&order, &available, &ids, needed);
            assert!(preferred.len() == needed && ids.iter().all(|id| preferred.contains(id)), "{preferred:?}");
            ids = preferred;
        }
        used.extend(ids.iter().cloned());
        if call.container.kind == Init {
            left.extend(ids.iter().cloned());
        } else {
            left.retain(|id| !ids.contains(id));
        }
        ids
    }
}

fn amounts(part: &Part) -> (i64, i64) {
    match *part {
        Part::Gpu { core, memory, .. } => (core.into(), memory),
        Part::Nic { percent, .. } => (percent.into(), 0),
        Part::Mig { .. } => (0, 0),
    }
}

/// Most that is held of each device at one time, counted moment by moment.
fn most(containers: &[Wanted], chosen: &Assignment) -> BTreeMap<Slot, (i64, i64)> {
    let mut most: BTreeMap<Slot, (i64, i64)> = BTreeMap::new();
    let last = containers.len() - 1;
    for moment in (0..containers.len()).filter(|at| containers[*at].0 == Init || *at == last) {
        let mut now: BTreeMap<Slot, (i64, i64)> = BTreeMap::new();
        for at in (0..=moment).filter(|at| *at == moment || containers[*at].0 != Init) {
            for part in &chosen.containers[at] {
                let (held, more) = (now.entry(part.slot()).or_default(), amounts(part));
                *held = (held.0 + more.0, held.1 + more.1);
            }
        }
        for (slot, held) in now {
            let top = most.entry(slot).or_default();
            *top = (top.0.max(held.0), top.1.max(held.1));
        }
    }
    most
}

/// Tries one combination on a node; says what is wrong.
fn judge((node, kubelet): &mut (Node, Kubelet), combination: &Combination) -> Result<bool, String> {
    let wanted = combination.wanted();
    let fits = combination.fits(&node.pool);
    let chosen = node.admit("p", &wanted, None, &mut |context, call| {
        kubelet.backwards = !kubelet.backwards;
        kubelet.choose(context, call)
    })?;
    match chosen {
        Some(_) if !fits => Err("placed where there is no room".to_owned()),
        None if fits => Err("not placed where there is room".to_owned()),
        None => Ok(false),
        Some(chosen) => {
            let counted = most(&wanted, &chosen);
            let granted = chosen.grant.parts.iter().map(|part| (part.slot(), amounts(part)));
            let granted: BTreeMap<Slot, (i64, i64)> = granted.collect();
            if granted == counted { Ok(true) } else { Err(format!("granted {granted:?}, held {counted:?}")) }
        }
    }
}

/// Tries combinations of so many containers on each node; prints how many there were.
fn all_agree(nodes: &[(Node, Kubelet)], families: &[(&[Letter], usize)]) {
    let (mut tried, mut placed, mut wrong) = (0, 0, Vec::new());
    for (letters, containers) in families {
        each_combination(letters, *containers, |combination| {
            for (at, node) in nodes.iter().enumerate() {
                tried += 1;
                match judge(&mut node.clone(), &combination) {
                    Ok(fits) => placed += usize::from(fits),
                    Err(why) => wrong.push(format!("node {at}, {combination}: {why}")),
                }
            }
        });
    }
    println!("{tried} combinations, {placed} placed, {} differences", wrong.len());
    assert!(wrong.is_empty(), "{} of {tried}: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);
}

#[test]
fn whole_gpus_and_shares_are_placed_where_any_way_to_lay_them_out_exists() {
    let nodes = [
        node(vec![sized(0, 80), sized(1, 80)], &[]),
        node(vec![sized(0, 80), sized(1, 40), sized(2, 80)], &[&[(key::GPU, 50)]]),
    ];
    all_agree(&nodes, &[(&GPUS, 1), (&GPUS, 2), (&GPUS[..5], 3), (&GPUS[..3], 4)]);
}

#[test]
fn whole_nics_and_shares_are_placed_where_any_way_to_lay_them_out_exists() {
    let shared = with_vfs(nic_at(2), "a", &["0000:3c:00.2", "0000:3c:00.3"]);
    let nodes =
        [node(vec![nic_at(0), nic_at(1)], &[]), node(vec![nic_at(0), nic_at(1), shared], &[&[(key::RDMA, 50)]])];
    all_agree(&nodes, &[(&NICS, 1), (&NICS, 2), (&NICS, 3), (&NICS[..3], 4)]);
}

prop_compose! {
    /// Up to four containers, each with GPUs, NICs or both.
    fn containers()(
        started in prop::collection::vec(prop_oneof![Just(Init), Just(Sidecar)], 0..=4), apps in 0..=4usize,
        letters in prop::collection::vec((0..9usize, 0..5usize), 4),
    ) -> Combination {
        let kinds = started.into_iter().chain(std::iter::repeat_n(App, apps)).take(4);
        let both = |(gpu, nic): (usize, usize)| {
            let (gpu, nic) = (GPUS.get(gpu), NICS.get(nic));
            let limits: Vec<_> = [gpu, nic].into_iter().flatten().flat_map(|letter| letter.0).copied().collect();
            (&*limits.leak(), gpu.and_then(|letter| letter.1), nic.and_then(|letter| letter.2))
        };
        Combination(kinds.zip(letters.into_iter().map(both)).filter(|(_, letter)| !letter.0.is_empty()).collect())
    }
}

proptest! {
    #[test]
    fn any_containers_are_placed_where_any_way_to_lay_them_out_exists(
        pod in containers(), sizes in prop::collection::vec(prop_oneof![3 => Just(80i64), 1 => Just(40)], 1..=4), count in 0..4i32,
        used in prop::collection::vec((0..7usize, any::<bool>()), 0..3),
    ) {
        prop_assume!(!pod.0.is_empty());
        let gpus = (0..).zip(&sizes).map(|(at, gib)| sized(at, *gib));
        let limits = |(at, is_gpu): (usize, bool)| if is_gpu { GPUS[at].0 } else { NICS[at % NICS.len()].0 };
        let others: Vec<_> = used.into_iter().map(limits).collect();
        let mut node = node(gpus.chain((0..count).map(nic_at)).collect(), &others);
        let judged = judge(&mut node, &pod);
        prop_assert!(judged.is_ok(), "{pod}: {judged:?}");
        // What is left is served to other pods under ids of their devices.
        let (mut node, mut kubelet) = node;
        for at in 0..12 {
            kubelet.left.clear();
            let next = (App, vec![([key::GPU, key::RDMA][at % 2], 20)]);
            let mut ids = |context: &AllocateContext<'_>, call: &ExpectedCall<'_>| kubelet.choose(context, call);
            let served = node.admit(&format!("next-{at}"), &[next], None, &mut ids);
            prop_assert!(served.is_ok(), "after {pod}: {served:?}");
        }
    }

    #[test]
    fn sixteen_gpus_and_nics_in_any_state_are_judged_exactly(
        pod in containers(), used in prop::collection::vec((0..7usize, 0..4usize), 0..24), big in 0..=16i32,
    ) {
        prop_assume!(!pod.0.is_empty());
        let gpus = (0..16).map(|at| sized(at, if at < big { 80 } else { 40 }));
        let mut pool = pool_of(gpus.chain((0..16).map(nic_at)).collect());
        for (gpu, nic) in used {
            for limits in [GPUS[gpu].0, NICS[nic].0] {
                if let Ok(chosen) = pick(&pool, &request(&[(App, limits.to_vec())])) {
                    pool.take(&chosen.grant).unwrap();
                }
            }
        }
        prop_assert_eq!(pick(&pool, &request(&pod.wanted())).is_ok(), pod.fits(&pool), "{}", pod);
    }
}
