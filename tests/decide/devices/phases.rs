//! Init containers, sidecars and apps: the pod's set is the peak, the split a plan.

use baton::decide::devices::{merge, overlap, peak};
use proptest::prelude::*;

use super::nodes::{Limits, Written, gpu, gpu_minors, machine, place, pod, pool_of};
use crate::prelude::*;

const GPU1: &[(&str, &str)] = &[("nvidia.com/gpu", "1")];
const GPU2: &[(&str, &str)] = &[("nvidia.com/gpu", "2")];
const GPU4: &[(&str, &str)] = &[("nvidia.com/gpu", "4")];

fn plan(pool: &NodePool, request: &PodDeviceRequest) -> Vec<Vec<i32>> {
    let split = pick(pool, request).unwrap().container_devices(pool, request, "node-a");
    let minors = |name: &str| split.of(name, &DeviceType::Gpu).iter().map(|entry| entry.minor).collect();
    request.names().iter().map(|name| minors(name)).collect()
}

#[test]
fn an_init_container_leaves_its_devices_to_the_sidecar_and_the_app() {
    let pool = pool_of(machine(2));
    let request = pod(&[("init", Init, GPU4), ("side", Sidecar, GPU1), ("main", App, GPU2)], Wishes::default());
    assert_eq!(plan(&pool, &request), [vec![0, 1, 2, 3], vec![0], vec![1, 2]]);
    let picked = pick(&pool, &request).unwrap();
    assert_eq!(gpu_minors(&pool, &picked), [0, 1, 2, 3], "the set is the peak of the phases");
}

#[test]
fn a_sidecar_that_starts_first_keeps_its_device_from_the_init_container() {
    let pool = pool_of(machine(2));
    let request = pod(&[("side", Sidecar, GPU1), ("init", Init, GPU2), ("main", App, GPU1)], Wishes::default());
    assert_eq!(plan(&pool, &request), [vec![0], vec![1, 2], vec![1]]);
}

#[test]
fn apps_never_share_a_whole_gpu() {
    let pool = pool_of(machine(2));
    let request = pod(&[("a", App, GPU2), ("b", App, GPU2)], Wishes::default());
    assert_eq!(plan(&pool, &request), [[0, 1], [2, 3]]);
}

#[test]
fn shares_of_init_and_app_lie_on_one_gpu_and_the_peak_is_taken() {
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    let request = pod(
        &[("init", Init, &[(key::GPU, "70")]), ("a", App, &[(key::GPU, "30")]), ("b", App, &[(key::GPU, "30")])],
        Wishes::default(),
    );
    let picked = place(&mut pool, &request).unwrap();
    assert_eq!(gpu_minors(&pool, &picked), [0]);
    let entry = picked.device_allocated(&pool).of(&DeviceType::Gpu)[0].clone();
    assert_eq!((entry.amount(key::GPU_CORE), entry.amount(key::GPU_MEMORY_RATIO)), (70, 70));
    assert_eq!(plan(&pool, &request), [[1], [1], [1]]);
    assert_eq!(pool.gpu_room(0).0, 30);
}

#[test]
fn shares_that_do_not_all_lie_on_one_gpu_lie_on_several_beside_an_init_share() {
    let pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    let of = |containers: &[(&str, ContainerKind, Limits<'_>)]| plan(&pool, &pod(containers, Wishes::default()));
    let sixty: Limits<'_> = &[(key::GPU, "60")];
    assert_eq!(of(&[("i", Init, &[(key::GPU, "10")]), ("a", App, sixty), ("b", App, sixty)]), [[0], [0], [1]]);
    // The init container runs beside the sidecar, and the app after it.
    let pair = of(&[("s", Sidecar, &[(key::GPU, "30")]), ("i", Init, &[(key::GPU, "80")]), ("c", App, sixty)]);
    assert_eq!(pair, [[0], [1], [0]]);
    let two: Limits<'_> = &[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "120")];
    assert_eq!(of(&[("i", Init, two), ("a", App, two)]), [[0, 1], [0, 1]]);
}

#[test]
fn a_whole_gpu_of_the_init_phase_serves_the_apps_share() {
    let pool = pool_of(vec![gpu(0, "s", "r", 0)]);
    let request = pod(&[("init", Init, GPU1), ("main", App, &[(key::GPU, "30")])], Wishes::default());
    assert_eq!(plan(&pool, &request), [[0], [0]]);
    let both = pod(&[("a", App, GPU1), ("b", App, &[(key::GPU, "30")])], Wishes::default());
    assert!(pick(&pool, &both).is_err());
}

proptest! {
    #[test]
    fn at_no_time_do_two_containers_hold_one_gpu_and_the_set_is_no_larger_than_the_peak(
        containers in prop::collection::vec((prop::bool::ANY, 0..4u32), 0..4), apps in prop::collection::vec(0..4u32, 1..4),
    ) {
        let started = containers.into_iter().map(|(stays, count)| (if stays { Sidecar } else { Init }, count));
        let all: Vec<(ContainerKind, u32)> = started.chain(apps.into_iter().map(|count| (App, count))).filter(|(_, count)| *count > 0).collect();
        let names: Vec<String> = (0..all.len()).map(|at| format!("c{at}")).collect();
        let amounts: Vec<String> = all.iter().map(|(_, count)| count.to_string()).collect();
        let limits: Vec<[(&str, &str); 1]> = amounts.iter().map(|amount| [("nvidia.com/gpu", amount.as_str())]).collect();
        let listed: Vec<_> = all.iter().zip(&names).zip(&limits).map(|(((kind, _), name), limits)| (name.as_str(), *kind, &limits[..])).collect();
        let request = pod(&listed, Wishes::default());
        let kinds: Vec<ContainerKind> = all.iter().map(|(kind, _)| *kind).collect();
        let counts: Vec<u32> = all.iter().map(|(_, count)| *count).collect();
        let pool = pool_of(machine(2));
        match pick(&pool, &request) {
            Err(_) => prop_assert!(peak(&kinds, &counts) > 8),
            Ok(picked) => {
                prop_assert_eq!(picked.grant.gpus().count_ones(), peak(&kinds, &counts));
                for (a, held) in picked.containers.iter().enumerate() {
                    prop_assert_eq!(held.len() as u32, counts[a]);
                    for (b, other) in picked.containers.iter().enumerate().skip(a + 1) {
                        let slots: Vec<Slot> = held.iter().map(|part| part.slot()).collect();
                        let shared = other.iter().any(|part| slots.contains(&part.slot()));
                        prop_assert!(!(shared && overlap(&kinds, a, b)));
                    }
                }
                prop_assert_eq!(&merge(&kinds, &picked.containers)[..], &picked.grant.parts[..]);
            }
        }
    }
}
