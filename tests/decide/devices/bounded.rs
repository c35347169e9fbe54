//! What a choice costs at most, in sets and ways that are looked at.

use baton::decide::devices::pick_counting;

use super::nodes::{Limits, gpu, mig, nic, pod, pool_of};
use crate::prelude::*;

const NEAR: Option<&str> = Some(r#"{"deviceTypes":["gpu","rdma"]}"#);
const SAME: Option<&str> = Some(r#"{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}"#);

/// So many GPUs and NICs, the GPU and the NIC of one number below a switch and a root complex of their own.
fn apart(gpus: i32, nics: std::ops::Range<i32>) -> NodePool {
    let at = |n: i32| (format!("s{n}"), format!("r{n}"));
    let gpus = (0..gpus).map(|n| gpu(n, &at(n).0, &at(n).1, 0));
    pool_of(gpus.chain(nics.map(|n| nic(n, &at(n).0, &at(n).1, 0))).collect())
}

/// A pod of apps, each with so many GPUs and so many percent of NICs.
fn apps(joint: Option<&str>, wants: &[(u32, u32)]) -> PodDeviceRequest {
    let texts: Vec<_> = wants.iter().map(|(gpus, nics)| (gpus.to_string(), nics.to_string())).collect();
    let limits: Vec<Vec<(&str, &str)>> =
        texts.iter().map(|(gpus, nics)| vec![("nvidia.com/gpu", gpus.as_str()), (key::RDMA, nics.as_str())]).collect();
    let names: Vec<String> = (0..wants.len()).map(|at| format!("c{at}")).collect();
    let containers: Vec<_> = names.iter().zip(&limits).map(|(name, limits)| (name.as_str(), App, &**limits)).collect();
    pod(&containers, Wishes::parse(None, joint, None).unwrap())
}

fn chosen(pool: &NodePool, request: &PodDeviceRequest, most: u64) -> Result<Assignment, Reason> {
    let (chosen, looked) = pick_counting(pool, request);
    assert!(looked <= most, "looked {looked} times, more than {most}: {chosen:?}");
    chosen
}

#[test]
fn a_container_that_can_be_near_nowhere_is_refused_before_the_others_are_tried() {
    let pool = apart(16, 0..16);
    let request = apps(SAME, &[(4, 400), (4, 400), (4, 400), (4, 100)]);
    assert!(matches!(chosen(&pool, &request, 10).unwrap_err(), Reason::NotNear { .. }));
}

#[test]
fn a_search_ends_with_the_first_way_that_is_as_near_as_can_be() {
    // The second container needs the switch with two NICs, which is the first's by the order of the GPUs.
    let at = |n: i32| (format!("s{n}"), format!("r{n}"));
    let gpus = (0..32).map(|n| gpu(n, &at(n).0, &at(n).1, 0));
    let nics = (0..33).map(|n| nic(n, &at(n % 32).0, &at(n % 32).1, 0));
    let pool = pool_of(gpus.chain(nics).collect());
    chosen(&pool, &apps(SAME, &[(16, 1600), (16, 1700)]), 500).unwrap();
    chosen(&pool, &apps(NEAR, &[(16, 1600), (16, 1700)]), 500).unwrap();
}

#[test]
fn containers_that_cannot_all_be_near_are_refused_at_once() {
    // Each of eight containers could have its GPU on seven switches.
    let mut devices: Vec<_> = (0..8).map(|n| gpu(n, &format!("s{n}"), &format!("r{n}"), 0)).collect();
    devices.extend((1..9).map(|n| nic(n, &format!("s{n}"), &format!("r{n}"), 0)));
    let pool = pool_of(devices);
    let alike = apps(SAME, &[(1, 100); 8]);
    assert!(matches!(chosen(&pool, &alike, 10).unwrap_err(), Reason::NotNear { .. }));
    let shares: Vec<(u32, u32)> = (0..8).map(|at| (1, 50 + at)).collect();
    assert!(matches!(chosen(&pool, &apps(SAME, &shares), 10).unwrap_err(), Reason::NotNear { .. }));
}

#[test]
fn no_other_split_is_tried_where_none_can_be_nearer() {
    // NICs beside the GPUs' switches, below the same root complexes: one step for each, however the GPUs are split.
    let mut devices: Vec<_> = (0..8).map(|n| gpu(n, &format!("s{n}"), &format!("r{}", n / 4), n / 4)).collect();
    devices.extend((0..8).map(|n| nic(n, &format!("t{n}"), &format!("r{}", n / 4), n / 4)));
    let pool = pool_of(devices);
    for joint in [NEAR, SAME] {
        // 70 sets of four GPUs, NICs once for each.
        chosen(&pool, &apps(joint, &[(1, 100), (1, 100), (1, 100), (1, 100)]), 2 * 70 + 10).unwrap();
    }
}

#[test]
fn the_work_is_bounded_where_nothing_can_be_said_beforehand() {
    // GPUs two by two, NICs below other switches in an order of their own: most splits hold for all containers but one.
    let mut devices: Vec<_> = (0..16).map(|n| gpu(n, &format!("s{n}"), &format!("r{}", n / 2), 0)).collect();
    devices.extend((0..16).map(|n| nic(n, &format!("t{n}"), &format!("r{}", n * 5 % 9), 0)));
    let pool = pool_of(devices);
    let wants: Vec<(u32, u32)> = (0..8).map(|at| (1 + at % 3, 55 + at)).collect();
    for joint in [NEAR, SAME] {
        let (_, looked) = pick_counting(&pool, &apps(joint, &wants));
        assert!(looked < 1 << 17, "{looked}");
    }
}

#[test]
fn gpus_beside_a_nic_that_only_another_container_may_have_are_near_enough() {
    // Containers with NICs have no GPUs: one wants a whole NIC, and the NIC beside the first GPU has room for the other's share.
    let at = |n: i32| (format!("s{n}"), format!("r{n}"));
    let devices = (0..2).flat_map(|n| [gpu(n, &at(n).0, &at(n).1, n), nic(n, &at(n).0, &at(n).1, n)]);
    let mut pool = pool_of(devices.collect());
    super::nodes::place(&mut pool, &super::nodes::ask(&[(key::RDMA, "40")])).unwrap();
    let containers: [(&str, ContainerKind, Limits<'_>); 3] = [
        ("g", App, &[("nvidia.com/gpu", "2")]),
        ("whole", App, &[(key::RDMA, "100")]),
        ("half", App, &[(key::RDMA, "50")]),
    ];
    let request = pod(&containers, Wishes::parse(None, SAME, None).unwrap());
    chosen(&pool, &request, 20).unwrap();
}

#[test]
fn on_a_node_cut_whole_nobody_takes_the_mig_device_that_another_container_holds() {
    let pool = pool_of(vec![mig("MIG-a", 0, "1g.10gb", "s"), mig("MIG-b", 0, "2g.20gb", "s")]);
    let any: Limits<'_> = &[("nvidia.com/gpu", "1")];
    for profile in ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"] {
        let certain: Limits<'_> = &[(profile, "1")];
        for containers in [[("a", App, any), ("b", App, certain)], [("a", App, certain), ("b", App, any)]] {
            let picked = chosen(&pool, &pod(&containers, Wishes::default()), 10).unwrap();
            let of = |at: usize| match *picked.containers[at] {
                [Part::Mig { mig }] => mig,
                ref other => panic!("{other:?}"),
            };
            assert_ne!(of(0), of(1), "{profile}");
        }
        let one = pool_of(vec![mig("MIG-a", 0, &profile["nvidia.com/mig-".len()..], "s")]);
        let both = pod(&[("a", App, any), ("b", App, certain)], Wishes::default());
        assert!(chosen(&one, &both, 10).is_err(), "one device for two at one time");
        let after = pod(&[("a", Init, any), ("b", App, certain)], Wishes::default());
        assert!(chosen(&one, &after, 10).is_ok(), "one after the other");
    }
}

#[test]
fn shares_around_init_containers_are_laid_out_on_sixteen_unlike_gpus_in_few_tries() {
    let share = |percent: u32| vec![(key::GPU, percent.to_string())];
    let spread = |gpus: u32, percent: u32| {
        vec![(key::GPU_SHARED, gpus.to_string()), (key::GPU_MEMORY_RATIO, (gpus * percent).to_string())]
    };
    let of = |containers: &[(ContainerKind, Vec<(&str, String)>)]| {
        let limits: Vec<Vec<(&str, &str)>> =
            containers.iter().map(|(_, limits)| limits.iter().map(|(name, q)| (*name, q.as_str())).collect()).collect();
        let names = ["a", "b", "c", "d"];
        let all: Vec<_> = (0..limits.len()).map(|at| (names[at], containers[at].0, &*limits[at])).collect();
        pod(&all, Wishes::default())
    };
    // Of fourteen GPUs 16 to 94 percent are taken, of each another amount; two are free.
    let mut uneven = apart(16, 0..0);
    (0..14).for_each(|at| _ = super::nodes::place(&mut uneven, &of(&[(App, share(94 - 6 * at))])).unwrap());
    let whole = || vec![(key::NVIDIA_GPU, "1".to_owned())];
    // What is placed takes some tries for each piece. What fits nowhere is known when the ways that differ have been tried.
    let pods = [
        (true, 40, vec![(Init, share(10)), (App, share(60)), (App, share(60))]),
        (true, 40, vec![(Sidecar, share(30)), (Init, share(80)), (App, share(50)), (App, share(60))]),
        (true, 40, vec![(Sidecar, spread(4, 20)), (Init, whole()), (App, spread(4, 30)), (App, whole())]),
        (false, 4096, vec![(Sidecar, share(70)), (Init, share(99)), (App, share(99)), (App, share(99))]),
        (
            false,
            2 * 4096,
            vec![(Sidecar, spread(8, 30)), (Init, spread(8, 60)), (App, spread(8, 30)), (App, spread(6, 40))],
        ),
    ];
    for (fits, most, containers) in pods {
        for pool in [apart(16, 0..0), uneven.clone()] {
            let (chosen, looked) = pick_counting(&pool, &of(&containers));
            println!("{containers:?}: {looked} tries, {}", chosen.is_ok());
            assert!(looked <= most, "{containers:?}: {looked} tries");
            assert!(
                chosen.is_ok() || !fits || pool.summary().free_gpus.count_ones() < 16,
                "{containers:?}: {chosen:?}"
            );
        }
    }
}
