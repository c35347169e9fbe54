//! GPUs and NICs chosen near each other.

use baton::contract::{DeviceType, key};
use baton::decide::alloc::{NodePool, Reason, pick};
use proptest::prelude::*;

use super::nodes::{ask, gpu, gpu_minors, machine, nic, nic_minors, object, place, pool_of, wish, with_vfs};

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
    for _ in 0..2 {
        place(&mut pool, &ask(&[(key::RDMA, "100")])).unwrap();
    }
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
    let vf_of = |pool: &NodePool, assignment: &baton::decide::alloc::Assignment| {
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
    pool.give_back(&first.grant).unwrap();
    let again = pick(&pool, &wish(&[(key::RDMA, "30")], picky, None)).unwrap();
    assert_eq!(vf_of(&pool, &again).as_deref(), Some("0000:3c:00.2"));
}

proptest! {
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
            prop_assert_eq!(assignment.grant.nics().count_ones(), wanted);
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
