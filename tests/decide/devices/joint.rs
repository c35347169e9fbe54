//! GPUs and NICs chosen near each other.

use proptest::prelude::*;

use super::nodes::{
    Limits, Written, ask, gpu, gpu_minors, machine, mig, nic, nic_minors, object, place, pod, pool_of, recounted, wish,
    with_vfs,
};
use crate::prelude::*;

const NEAR: Option<&str> = Some(r#"{"deviceTypes":["gpu","rdma"]}"#);
const SAME: Option<&str> = Some(r#"{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}"#);

#[test]
fn four_gpus_and_two_nics_come_from_below_one_switch() {
    let mut pool = pool_of(machine(2));
    let request = wish(&[("nvidia.com/gpu", "4"), (key::RDMA, "200")], None, SAME);
    let first = place(&mut pool, &request).unwrap();
    assert_eq!((gpu_minors(&pool, &first), nic_minors(&pool, &first)), (vec![0, 1, 2, 3], vec![0, 1]));
    let second = place(&mut pool, &request).unwrap();
    assert_eq!((gpu_minors(&pool, &second), nic_minors(&pool, &second)), (vec![4, 5, 6, 7], vec![2, 3]));
}

#[test]
fn with_two_gpus_and_a_nic_below_each_switch_every_gpu_has_its_nic() {
    let pool = pool_of(machine(4));
    let request = wish(&[("nvidia.com/gpu", "4"), (key::RDMA, "200")], None, SAME);
    let picked = pick(&pool, &request).unwrap();
    assert_eq!((gpu_minors(&pool, &picked), nic_minors(&pool, &picked)), (vec![0, 1, 2, 3], vec![0, 1]));
    let all = pick(&pool, &wish(&[("nvidia.com/gpu", "8"), (key::RDMA, "400")], None, SAME)).unwrap();
    assert_eq!(nic_minors(&pool, &all), [0, 1, 2, 3]);
}

#[test]
fn gpus_go_where_the_nic_is_free() {
    let mut pool = pool_of(machine(4));
    (0..2).for_each(|_| _ = place(&mut pool, &ask(&[(key::RDMA, "100")])).unwrap());
    for joint in [NEAR, SAME] {
        let picked = pick(&pool, &wish(&[("nvidia.com/gpu", "2"), (key::RDMA, "100")], None, joint)).unwrap();
        assert_eq!((gpu_minors(&pool, &picked), nic_minors(&pool, &picked)), (vec![4, 5], vec![2]));
        let share = pick(&pool, &wish(&[(key::GPU, "50"), (key::RDMA, "50")], None, joint)).unwrap();
        assert_eq!((gpu_minors(&pool, &share), nic_minors(&pool, &share)), (vec![4], vec![2]));
    }
}

#[test]
fn same_pcie_falls_back_to_the_root_complex_and_no_farther() {
    let far = |root: &str| pool_of(vec![gpu(0, "s0", "r0", 0), nic(0, "s1", root, 0)]);
    let request = |joint| wish(&[("nvidia.com/gpu", "1"), (key::RDMA, "100")], None, joint);
    assert!(pick(&far("r0"), &request(SAME)).is_ok());
    let reason = pick(&far("r1"), &request(SAME)).unwrap_err();
    assert_eq!(reason, Reason::NotNear { wanted: 1, near: 0 });
    assert_eq!(reason.to_string(), "NICs under the same PCIe switch: 0 of 1");
    assert!(pick(&far("r1"), &request(NEAR)).is_ok(), "a preference only");
    let share = wish(&[(key::GPU, "50"), (key::RDMA, "100")], None, SAME);
    assert_eq!(pick(&far("r1"), &share).unwrap_err(), Reason::NotNear { wanted: 1, near: 0 });
}

#[test]
fn one_near_nic_of_two_is_counted() {
    let devices = vec![gpu(0, "s0", "r0", 0), nic(0, "s0", "r0", 0), nic(1, "s1", "r1", 1)];
    let request = wish(&[("nvidia.com/gpu", "1"), (key::RDMA, "200")], None, SAME);
    let reason = pick(&pool_of(devices), &request).unwrap_err();
    assert_eq!(reason.to_string(), "NICs under the same PCIe switch: 1 of 2");
}

#[test]
fn too_few_nics_anywhere_is_the_reason_rather_than_too_few_near() {
    let pool = pool_of(machine(2));
    let reason = pick(&pool, &wish(&[("nvidia.com/gpu", "1"), (key::RDMA, "500")], None, SAME)).unwrap_err();
    assert_eq!(reason.to_string(), "4 of 5 RDMA NICs free (the node has 4)");
}

#[test]
fn one_virtual_function_of_lowest_address_comes_from_each_nic_that_has_any() {
    let vfs = ["0000:3c:00.3", "0000:3c:00.2"];
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), with_vfs(nic(0, "s", "r", 0), "a", &vfs), nic(1, "t", "q", 1)]);
    let vf_of = |pool: &NodePool, assignment: &baton::decide::devices::Assignment| {
        let allocated = assignment.device_allocated(pool);
        let entry = &allocated.of(&DeviceType::Rdma)[0];
        entry.extension.clone().map(|extension| extension.vfs[0].bus_id.to_string())
    };
    let request = wish(&[("nvidia.com/gpu", "1"), (key::RDMA, "30")], None, NEAR);
    let first = place(&mut pool, &request).unwrap();
    assert_eq!(vf_of(&pool, &first).as_deref(), Some("0000:3c:00.2"));
    let second = place(&mut pool, &ask(&[(key::RDMA, "30")])).unwrap();
    assert_eq!(vf_of(&pool, &second).as_deref(), Some("0000:3c:00.3"));
    let third = place(&mut pool, &ask(&[(key::RDMA, "30")])).unwrap();
    assert_eq!((nic_minors(&pool, &third), vf_of(&pool, &third)), (vec![1], None), "no function is left on the first");
    let picky = Some(r#"{"rdma":{"vfSelector":{"matchLabels":{"fabric":"a"}}}}"#);
    let reason = pick(&pool, &wish(&[(key::RDMA, "30")], picky, None)).unwrap_err();
    assert_eq!(reason.to_string(), "no free virtual function matches");
    let pool = recounted(&pool, [&second.grant, &third.grant]);
    let again = pick(&pool, &wish(&[(key::RDMA, "30")], picky, None)).unwrap();
    assert_eq!(vf_of(&pool, &again).as_deref(), Some("0000:3c:00.2"));
}

const GPU: Limits<'static> = &[("nvidia.com/gpu", "1")];
const NIC: Limits<'static> = &[(key::RDMA, "100")];
const BOTH: Limits<'static> = &[("nvidia.com/gpu", "1"), (key::RDMA, "100")];

fn joined(joint: Option<&str>, containers: &[(&str, ContainerKind, Limits<'_>)]) -> PodDeviceRequest {
    pod(containers, Wishes::parse(None, joint, None).unwrap())
}

/// Minors of one container: GPUs (or parents of MIG devices), NICs.
fn of_container(pool: &NodePool, assignment: &Assignment, container: usize) -> (Vec<i32>, Vec<i32>) {
    let (mut gpus, mut nics) = (Vec::new(), Vec::new());
    for part in &assignment.containers[container] {
        match *part {
            Part::Gpu { gpu, .. } => gpus.push(pool.devices().gpus[usize::from(gpu)].common.minor),
            Part::Mig { mig } => gpus.push(pool.devices().migs[usize::from(mig)].common.minor),
            Part::Nic { nic, .. } => nics.push(pool.devices().nics[usize::from(nic)].common.minor),
        }
    }
    (gpus, nics)
}

/// One GPU and one NIC below each of so many switches, each on a root complex of its own.
fn pairs(count: i32) -> NodePool {
    let at = |n: i32| (format!("s{n}"), format!("r{n}"));
    let gpus = (0..count).map(|n| gpu(n, &at(n).0, &at(n).1, 0));
    let nics = (0..count).map(|n| nic(n, &at(n).0, &at(n).1, 0));
    pool_of(gpus.chain(nics).collect())
}

#[test]
fn a_container_without_nics_needs_none_near_its_gpus() {
    let pool = pairs(4);
    let picked = pick(&pool, &joined(SAME, &[("a", App, GPU), ("b", App, BOTH)])).unwrap();
    let (gpus, nics) = of_container(&pool, &picked, 1);
    assert_eq!(gpus, nics);
    assert!(of_container(&pool, &picked, 0).1.is_empty());
}

#[test]
fn each_container_gets_the_nic_of_its_own_gpus_switch() {
    for joint in [NEAR, SAME] {
        let pool = pairs(4);
        let picked = pick(&pool, &joined(joint, &[("a", App, GPU), ("b", App, BOTH)])).unwrap();
        let (gpus, nics) = of_container(&pool, &picked, 1);
        assert_eq!(gpus, nics, "{joint:?}");
    }
}

#[test]
fn nics_on_the_root_complex_are_paired_container_by_container() {
    let devices = vec![gpu(0, "s0", "r0", 0), gpu(1, "s1", "r1", 0), nic(0, "t1", "r1", 0), nic(1, "t0", "r0", 0)];
    let pool = pool_of(devices);
    let picked = pick(&pool, &joined(SAME, &[("a", App, BOTH), ("b", App, BOTH)])).unwrap();
    for container in [0, 1] {
        let (gpus, nics) = of_container(&pool, &picked, container);
        assert_eq!(nics, [1 - gpus[0]], "container {container}");
    }
}

#[test]
fn containers_swap_gpus_where_only_that_brings_their_nics_near() {
    // The only NIC is below the first switch, and the container that wants it comes last.
    let devices = vec![gpu(0, "s0", "r0", 0), gpu(1, "s1", "r1", 0), gpu(2, "s2", "r2", 0), nic(0, "s1", "r1", 0)];
    let pool = pool_of(devices);
    let two: Limits<'_> = &[("nvidia.com/gpu", "2")];
    let picked = pick(&pool, &joined(SAME, &[("a", App, two), ("b", App, BOTH)])).unwrap();
    assert_eq!(of_container(&pool, &picked, 1), (vec![1], vec![0]));
    assert_eq!(of_container(&pool, &picked, 0), (vec![0, 2], vec![]));
}

#[test]
fn a_pod_of_gpu_containers_and_nic_containers_is_judged_as_one() {
    let request = joined(SAME, &[("a", App, GPU), ("b", App, NIC)]);
    let pool = pairs(2);
    let picked = pick(&pool, &request).unwrap();
    assert_eq!(of_container(&pool, &picked, 0).0, of_container(&pool, &picked, 1).1);
    let far = pool_of(vec![gpu(0, "s0", "r0", 0), nic(0, "s1", "r1", 0)]);
    assert_eq!(pick(&far, &request).unwrap_err(), Reason::NotNear { wanted: 1, near: 0 });
}

#[test]
fn an_init_container_leaves_its_gpu_and_nic_to_the_next_one() {
    let pool = pairs(1);
    let picked = pick(&pool, &joined(SAME, &[("i", Init, BOTH), ("a", App, BOTH)])).unwrap();
    assert_eq!(of_container(&pool, &picked, 0), (vec![0], vec![0]));
    assert_eq!(of_container(&pool, &picked, 1), (vec![0], vec![0]));
}

#[test]
fn several_shares_lie_where_one_nic_is_near_to_all_of_them() {
    let devices = vec![
        gpu(0, "s0", "r0", 0),
        gpu(1, "s0", "r0", 0),
        gpu(2, "s1", "r1", 0),
        gpu(3, "s1", "r1", 0),
        nic(0, "s0", "r0", 0),
        nic(1, "s1", "r1", 0),
    ];
    let mut pool = pool_of(devices);
    let only = |minor: i32, pool: &mut NodePool| {
        // Best fit puts the second half beside the first; whole GPUs in between keep them apart.
        let mut filled = pool.clone();
        let found = std::iter::repeat_with(|| place(&mut filled, &ask(&[(key::GPU, "50")])).unwrap())
            .find(|assignment| gpu_minors(pool, assignment) == [minor]);
        pool.take(&found.unwrap().grant).unwrap();
    };
    only(0, &mut pool);
    only(2, &mut pool);
    let limits: Limits<'_> = &[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "100"), (key::RDMA, "100")];
    let apart = pick(&pool, &wish(limits, None, NEAR)).unwrap();
    assert_eq!(gpu_minors(&pool, &apart), [0, 2], "whole GPUs stay whole where nearness is a wish");
    let picked = pick(&pool, &wish(limits, None, SAME)).unwrap();
    assert_eq!((gpu_minors(&pool, &picked), nic_minors(&pool, &picked)), (vec![0, 1], vec![0]));
}

#[test]
fn mig_devices_come_from_a_parent_that_has_a_nic() {
    let devices = vec![
        mig("MIG-a", 0, "1g.10gb", "s0"),
        mig("MIG-b", 1, "1g.10gb", "s1"),
        mig("MIG-c", 1, "1g.10gb", "s1"),
        mig("MIG-d", 1, "1g.10gb", "s1"),
        nic(0, "s1", "pci1", 0),
    ];
    let pool = pool_of(devices);
    let limits: Limits<'_> = &[("nvidia.com/mig-1g.10gb", "1"), (key::RDMA, "100")];
    for joint in [NEAR, SAME] {
        let picked = pick(&pool, &joined(joint, &[("a", App, limits)])).unwrap();
        assert_eq!(of_container(&pool, &picked, 0), (vec![1], vec![0]), "{joint:?}");
    }
    let two: Limits<'_> = &[("nvidia.com/mig-1g.10gb", "4"), (key::RDMA, "100")];
    assert_eq!(pick(&pool, &joined(SAME, &[("a", App, two)])).unwrap_err(), Reason::NotNear { wanted: 1, near: 0 });
}

#[test]
fn a_share_without_nics_beside_a_whole_gpu_with_one_lies_anywhere() {
    let devices = vec![gpu(0, "s0", "r0", 0), gpu(1, "s1", "r1", 0), nic(0, "s0", "r0", 0)];
    let mut pool = pool_of(devices);
    let share: Limits<'_> = &[(key::GPU, "50")];
    let first = place(&mut pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap();
    let second = place(&mut pool, &ask(share)).unwrap();
    assert_ne!(gpu_minors(&pool, &first), gpu_minors(&pool, &second));
    let pool = recounted(&pool, [&second.grant]);
    let picked = pick(&pool, &joined(SAME, &[("a", App, BOTH), ("b", App, share)])).unwrap();
    assert_eq!(of_container(&pool, &picked, 0), (vec![0], vec![0]));
    assert_eq!(of_container(&pool, &picked, 1), (vec![1], vec![]));
}

#[test]
fn containers_that_compete_for_nics_all_get_near_ones() {
    // Two NICs below the first root complex, two below the second; one container wants three of both, the other one.
    let devices = vec![
        gpu(0, "s0", "r0", 0),
        gpu(1, "s1", "r1", 0),
        gpu(2, "s0", "r0", 0),
        nic(0, "s0", "r0", 0),
        nic(1, "s0", "r0", 0),
        nic(2, "s1", "r1", 0),
        nic(3, "s1", "r1", 0),
    ];
    let pool = pool_of(devices);
    let many: Limits<'_> = &[("nvidia.com/gpu", "2"), (key::RDMA, "300")];
    let picked = pick(&pool, &joined(SAME, &[("a", App, many), ("b", App, BOTH)])).unwrap();
    let (gpus, nics) = of_container(&pool, &picked, 1);
    assert_eq!((gpus[0] == 1, nics[0] >= 2), if gpus[0] == 1 { (true, true) } else { (false, false) });
}

#[test]
fn a_split_over_many_places_is_found_though_most_can_be_refused_at_sight() {
    let of =
        |at: i32, info: fn(i32, &str, &str, i32) -> baton::contract::inventory::DeviceInfo, place: (i32, i32, i32)| {
            info(at, &format!("s{}", place.0), &format!("r{}", place.1), place.2)
        };
    let gpus = [(4, 2, 1), (5, 2, 1), (0, 0, 0), (5, 2, 1), (3, 1, 0), (3, 1, 0), (2, 1, 0), (5, 2, 1)];
    let nics = [(0, 0, 0), (5, 2, 1), (0, 0, 0), (4, 2, 1)];
    let gpus = (0..).zip(gpus).map(|(at, place)| of(at, gpu, place));
    let nics = (0..).zip(nics).map(|(at, place)| of(at, nic, place));
    let pool = pool_of(gpus.chain(nics).collect());
    let containers: [(&str, ContainerKind, Limits<'_>); 3] = [
        ("a", App, &[("nvidia.com/gpu", "2"), (key::RDMA, "100")]),
        ("b", App, &[("nvidia.com/gpu", "3")]),
        ("c", App, &[("nvidia.com/gpu", "3"), (key::RDMA, "200")]),
    ];
    let picked = pick(&pool, &joined(SAME, &containers)).unwrap();
    assert!(holds_per_container(&pool, &picked));
}

/// Every container that has GPUs and NICs has them below the same switches or root complexes.
fn holds_per_container(pool: &NodePool, assignment: &Assignment) -> bool {
    (0..assignment.containers.len()).all(|container| {
        let of = |per: i32| {
            let place = |part: &Part| {
                let devices = pool.devices();
                let place = match *part {
                    Part::Gpu { gpu, .. } => devices.gpus[usize::from(gpu)].common.place,
                    Part::Mig { mig } => devices.migs[usize::from(mig)].common.place,
                    Part::Nic { nic, .. } => devices.nics[usize::from(nic)].common.place,
                };
                if per == 0 { place.switch } else { place.root }
            };
            let parts = &assignment.containers[container];
            let is_nic = |part: &&Part| matches!(part, Part::Nic { .. });
            let nics: std::collections::BTreeSet<u8> = parts.iter().filter(is_nic).map(place).collect();
            let gpus: std::collections::BTreeSet<u8> = parts.iter().filter(|part| !is_nic(part)).map(place).collect();
            gpus.is_empty() || nics.is_empty() || gpus == nics
        };
        of(0) || of(1)
    })
}

proptest! {
    #[test]
    fn same_pcie_holds_for_every_container_and_is_found_where_trying_all_ways_finds_it(
        gpus in prop::collection::vec(0..4i32, 2..=5), nics in prop::collection::vec(0..4i32, 1..=4),
        wants in prop::collection::vec((0..=2u32, 0..=2u32), 2..=3),
    ) {
        let root = |switch: i32| format!("r{}", switch / 2);
        let mut devices: Vec<_> = (0..).zip(&gpus).map(|(at, s)| gpu(at, &format!("s{s}"), &root(*s), s / 2)).collect();
        devices.extend((0..).zip(&nics).map(|(at, s)| nic(at, &format!("s{s}"), &root(*s), s / 2)));
        let pool = pool_of(devices);
        let texts: Vec<(String, String)> = wants.iter().map(|(g, n)| (g.to_string(), (n * 100).to_string())).collect();
        let limits: Vec<Vec<(&str, &str)>> = wants.iter().zip(&texts).map(|((g, n), (gpus, nics))| {
            let gpus = (*g > 0).then_some(("nvidia.com/gpu", gpus.as_str()));
            gpus.into_iter().chain((*n > 0).then_some((key::RDMA, nics.as_str()))).collect()
        }).collect();
        let names = ["a", "b", "c"];
        let containers: Vec<_> = limits.iter().zip(names).map(|(limits, name)| (name, App, limits.as_slice())).collect();
        // Pods in which some container has both and none has NICs alone: there the rule is the containers' own.
        prop_assume!(wants.iter().any(|(g, n)| *g > 0 && *n > 0) && wants.iter().all(|(g, n)| *n == 0 || *g > 0));
        let request = joined(SAME, &containers);
        let found = pick(&pool, &request);
        if let Ok(assignment) = &found {
            prop_assert!(holds_per_container(&pool, assignment), "{assignment:?}");
        }
        // All ways: each GPU and each NIC to one container or none.
        let wanted: Vec<(u32, u32)> = wants.iter().copied().filter(|(g, n)| *g + *n > 0).collect();
        let owners = wanted.len() + 1;
        let possible = (0..owners.pow(gpus.len() as u32)).any(|code| {
            let owner = |at: usize| code / owners.pow(at as u32) % owners;
            let own = |c: usize| gpus.iter().enumerate().filter(move |(at, _)| owner(*at) == c + 1).map(|(_, s)| *s);
            (0..wanted.len()).all(|c| own(c).count() as u32 == wanted[c].0)
                && (0..owners.pow(nics.len() as u32)).any(|code| {
                    let owner = |at: usize| code / owners.pow(at as u32) % owners;
                    let near = |c: usize| nics.iter().enumerate().filter(move |(at, _)| owner(*at) == c + 1).map(|(_, s)| *s);
                    (0..wanted.len()).all(|c| {
                        let set = |list: &mut dyn Iterator<Item = i32>, per: i32| {
                            list.map(|s| s / per).collect::<std::collections::BTreeSet<i32>>()
                        };
                        let same = |per| set(&mut own(c), per) == set(&mut near(c), per);
                        near(c).count() as u32 == wanted[c].1 && (wanted[c].1 == 0 || same(1) || same(2))
                    })
                })
        });
        prop_assert_eq!(found.is_ok(), possible, "{:?} {:?} {:?}: {:?}", gpus, nics, wants, found);
    }

    #[test]
    fn never_more_nics_than_asked_and_same_pcie_always_holds(
        gpus in prop::collection::vec((0..4i32, any::<bool>()), 1..=8), nics in prop::collection::vec(0..4i32, 0..=4),
        count in 1..=4u32, wanted in 1..=3u32,
    ) {
        let root = |switch: i32| format!("r{}", switch / 2);
        let mut devices: Vec<_> = (0..).zip(&gpus).map(|(at, (s, health))| {
            let mut info = gpu(at, &format!("s{s}"), &root(*s), s / 2);
            info.health = *health;
            info
        }).collect();
        devices.extend((0..).zip(&nics).map(|(at, s)| nic(at, &format!("s{s}"), &root(*s), s / 2)));
        let (pool, _) = NodePool::from_device(&object(devices));
        let (count, wanted_text) = (count.to_string(), (wanted * 100).to_string());
        let limits = [("nvidia.com/gpu", count.as_str()), (key::RDMA, wanted_text.as_str())];
        let plain = pick(&pool, &wish(&limits, None, None));
        let near = pick(&pool, &wish(&limits, None, NEAR));
        prop_assert_eq!(near.is_ok(), plain.is_ok(), "a preference refuses nothing");
        if let Ok(assignment) = pick(&pool, &wish(&limits, None, SAME)) {
            prop_assert_eq!(assignment.grant.held().nics.count_ones(), wanted);
            let of = |minors: Vec<i32>, switch: &dyn Fn(usize) -> i32, per: i32| {
                minors.into_iter().map(|minor| switch(minor as usize) / per).collect::<std::collections::BTreeSet<_>>()
            };
            let same = |per| {
                of(gpu_minors(&pool, &assignment), &|at| gpus[at].0, per) == of(nic_minors(&pool, &assignment), &|at| nics[at], per)
            };
            prop_assert!(same(1) || same(2));
        } else if let Ok(near) = near {
            // What SamePCIe refuses, the best near choice does not hold either.
            let close = |per: i32| {
                let g: std::collections::BTreeSet<_> = gpu_minors(&pool, &near).into_iter().map(|at| gpus[at as usize].0 / per).collect();
                let n: std::collections::BTreeSet<_> = nic_minors(&pool, &near).into_iter().map(|at| nics[at as usize] / per).collect();
                g == n
            };
            prop_assert!(!close(1) && !close(2));
        }
    }
}
