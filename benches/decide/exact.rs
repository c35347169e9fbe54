//! What the exact choice for a pod of several containers costs on a node with 16 GPUs that pods share in many ways.

use baton::contract::{ContainerRequest, key};
use baton::decide::devices::{Assignment, NodePool, PodDeviceRequest, Reason, Wishes, pick};
use baton::decide::pod::ContainerKind::{self, App, Init, Sidecar};

use crate::values::gpu_device;

pub const CHOICES: usize = 100;
type Limits = &'static [(&'static str, &'static str)];

const fn gpu(percent: &'static str) -> [(&'static str, &'static str); 1] {
    [(key::GPU, percent)]
}

/// More than half, so that each has a GPU of its own.
const USED: [Limits; 8] =
    [&gpu("90"), &gpu("80"), &gpu("75"), &gpu("70"), &gpu("65"), &gpu("60"), &gpu("55"), &gpu("52")];
/// Each asks for more than most GPUs have left.
const PLACED: &[(ContainerKind, Limits)] = &[
    (Init, &gpu("44")),
    (Sidecar, &gpu("42")),
    (Init, &[(key::GPU_CORE, "20"), (key::GPU_MEMORY_RATIO, "47")]),
    (App, &[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "80")]),
];
/// The last one finds no room after the others.
const REFUSED: &[(ContainerKind, Limits)] =
    &[(Sidecar, &gpu("46")), (Init, &gpu("48")), (Sidecar, &gpu("47")), (App, &gpu("48"))];

/// The name of a figure, containers, and whether they fit.
type Case = (&'static str, &'static [(ContainerKind, Limits)], bool);

/// What is counted.
pub const CASES: [Case; 2] = [("exact_placed_16_gpus", PLACED, true), ("exact_refused_16_gpus", REFUSED, false)];

fn request(containers: &[(ContainerKind, Limits)]) -> PodDeviceRequest {
    let judged = |limits: Limits| {
        ContainerRequest::judge(limits.iter().map(|(name, amount)| (*name, amount.parse().unwrap()))).unwrap()
    };
    let judged: Vec<_> = containers.iter().map(|(kind, limits)| (*kind, judged(limits))).collect();
    PodDeviceRequest::new(judged.iter().map(|(kind, request)| ("main", *kind, request)), Wishes::default())
}

#[inline(never)]
fn choose(pool: &NodePool, request: &PodDeviceRequest) -> Result<Assignment, Reason> {
    std::hint::black_box(pick(pool, request))
}

/// What is counted, in a process of its own.
pub fn run(case: &str) {
    let (_, containers, fits) = CASES.iter().find(|(name, ..)| *name == case).unwrap();
    let mut pool = NodePool::from_device(&gpu_device("node", 16)).0;
    for used in USED.iter().cycle().take(16) {
        let chosen = pick(&pool, &request(&[(App, used)])).unwrap();
        pool.take(&chosen.grant).unwrap();
    }
    let request = request(containers);
    for _ in 0..CHOICES {
        assert_eq!(choose(&pool, &request).is_ok(), *fits, "{case}");
    }
}
