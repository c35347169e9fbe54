//! Assignments as annotations, and bound pods read back from them.

use baton::contract::{ContainerDevices, DeviceEntry};
use baton::decide::devices::{Exclusive, Held, Misfit};
use proptest::prelude::*;

use super::nodes::{
    MEMORY, Written, ask, gpu, gpu_minors, machine, mig, nic, object, place, pod, pool_of, wish, with_vfs,
};
use crate::prelude::*;

fn with_functions() -> Vec<baton::contract::inventory::DeviceInfo> {
    let mut devices = machine(2);
    for (at, info) in devices.iter_mut().filter(|info| info.kind == DeviceType::Rdma).enumerate() {
        *info = with_vfs(info.clone(), "a", &[&format!("0000:{at:02x}:00.1"), &format!("0000:{at:02x}:00.2")]);
    }
    devices
}

#[test]
fn an_assignment_reads_as_the_contract_says() {
    let pool = pool_of(machine(2));
    let request = ask(&[("nvidia.com/gpu", "1"), (key::RDMA, "100")]);
    let picked = pick(&pool, &request).unwrap();
    assert_eq!(
        picked.device_allocated(&pool).print(),
        r#"{"gpu":[{"minor":0,"id":"GPU-0","resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"81559Mi","koordinator.sh/gpu-memory-ratio":"100"}}],"rdma":[{"minor":0,"id":"0000:00:00.0","resources":{"koordinator.sh/rdma":"100"}}]}"#
    );
    let split = picked.container_devices(&pool, &request, "node-a");
    assert_eq!((&*split.node, split.of("main", &DeviceType::Gpu)[0].id.as_str()), ("node-a", "GPU-0"));
    assert_eq!(picked.gpu_minors(&pool), "0");
}

#[test]
fn every_percentage_reads_back_as_itself_and_bytes_are_filled_in() {
    for percent in 1..=100 {
        let mut odd = gpu(0, "s", "r", 0);
        odd.resources.insert(key::GPU_MEMORY.into(), "85899345921".parse().unwrap());
        let pool = pool_of(vec![odd]);
        let picked = pick(&pool, &ask(&[(key::GPU_MEMORY_RATIO, &percent.to_string())])).unwrap();
        let entry = picked.device_allocated(&pool).of(&DeviceType::Gpu)[0].clone();
        assert_eq!(entry.amount(key::GPU_MEMORY_RATIO), percent);
        assert_eq!(entry.amount(key::GPU_MEMORY), 85_899_345_921 * percent / 100);
    }
    let pool = pool_of(machine(2));
    let picked = pick(&pool, &ask(&[(key::GPU_CORE, "30"), (key::GPU_MEMORY, "8Gi")])).unwrap();
    assert_eq!(picked.device_allocated(&pool).of(&DeviceType::Gpu)[0].amount(key::GPU_MEMORY_RATIO), 10);
}

#[test]
fn a_hundred_shares_of_one_percent_in_mixed_units_never_add_up_to_more_than_the_gpu() {
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0)]);
    let mut ratio = 0;
    for at in 0.. {
        let limits: &[(&str, &str)] = if at % 2 == 0 {
            &[(key::GPU_MEMORY_RATIO, "1")]
        } else {
            &[(key::GPU_SHARED, "1"), (key::GPU_MEMORY, "900Mi")]
        };
        let Ok(picked) = place(&mut pool, &ask(limits)) else { break };
        ratio += picked.device_allocated(&pool).of(&DeviceType::Gpu)[0].amount(key::GPU_MEMORY_RATIO);
    }
    assert!(ratio <= 100, "{ratio}");
}

#[test]
fn a_device_that_the_inventory_does_not_list_is_reported_and_not_lost() {
    let text = r#"{"gpu":[{"minor":1,"id":"GPU-1","resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"40Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#;
    let allocation = DeviceAllocation::parse(text).unwrap();
    let mut pool = NodePool::default();
    let (_, misfits) = pool.take_held(&Held::of(&allocation), Exclusive::default());
    assert!(matches!(&misfits[..], [Misfit::Unknown { id, .. }] if id.as_str() == "GPU-1"), "{misfits:?}");
    let (_, misfits) = pool.clone().take_held(&Held::of(&allocation), Exclusive::default());
    assert!(matches!(&misfits[..], [Misfit::Unknown { .. }]), "of each pod that holds it: {misfits:?}");
    assert!(pick(&pool, &ask(&[(key::GPU, "10")])).is_err(), "an unlisted device is never chosen");
    assert_eq!(pool.update(&object(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)])), []);
    let picked = pick(&pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap();
    assert_eq!(gpu_minors(&pool, &picked), [0]);
    assert_eq!(pool.gpu_room(0), (50, MEMORY - (40 << 30)), "the first known device is number 0");
    assert_eq!(pool.emptied().summary().free_gpus.count_ones(), 2);
}

#[test]
fn an_assignment_above_capacity_is_counted_and_named() {
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0)]);
    let whole = place(&mut pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap();
    let held = Held::of(&whole.device_allocated(&pool));
    let (_, misfits) = pool.take_held(&held, Exclusive::default());
    assert_eq!(misfits.len(), 1);
    assert!(misfits[0].to_string().contains("GPU-0: 100 of compute wanted, 0 free"), "{}", misfits[0]);
    let mut left = pool.emptied();
    assert_eq!(left.summary().free_gpus.count_ones(), 1);
    left.take_held(&held, Exclusive::default());
    assert_eq!(left.summary().free_gpus.count_ones(), 0, "the other still holds it");
}

#[test]
fn the_memory_of_a_share_is_the_lesser_of_its_bytes_and_its_percent() {
    const GIB: i64 = 1 << 30;
    let half = MEMORY / 2;
    let counted = |info: DeviceInfo, ratio: Option<i64>, bytes: Option<i64>| {
        let mut pool = pool_of(vec![info]);
        let amounts = [(key::GPU_MEMORY_RATIO, ratio), (key::GPU_MEMORY, bytes)];
        let resources =
            amounts.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), Quantity::units(amount?))));
        let entry = DeviceEntry {
            minor: 0,
            id: DeviceId::parse("GPU-0").unwrap(),
            resources: resources.collect(),
            extension: None,
        };
        let allocation =
            DeviceAllocation { devices: [(DeviceType::Gpu, vec![entry])].into(), ..DeviceAllocation::default() };
        pool.take_held(&Held::of(&allocation), Exclusive::default());
        let room = pool.gpu_room(0).1;
        pool.emptied().gpu_room(0).1 - room
    };
    let whole = || gpu(0, "s", "r", 0);
    assert_eq!(counted(whole(), Some(50), None), half);
    assert_eq!(counted(whole(), None, Some(10 * GIB)), 10 * GIB);
    assert_eq!(counted(whole(), Some(50), Some(half + GIB / 2)), half + GIB / 2, "rounded");
    assert_eq!(counted(whole(), Some(50), Some(MEMORY)), half, "not an amount of ours");
    let mut of_unknown_size = whole();
    of_unknown_size.resources.remove(key::GPU_MEMORY);
    assert_eq!(counted(of_unknown_size.clone(), Some(50), Some(10 * GIB)), 50, "in percent");
    assert_eq!(counted(of_unknown_size, None, Some(10 * GIB)), 0);
}

#[test]
fn devices_held_by_minor_are_whole() {
    let mut pool = pool_of(machine(2));
    let (grant, misfits) = pool.take_minors(&DeviceType::Gpu, &[2, 3, 9]);
    assert_eq!(misfits, [Misfit::UnknownMinor { kind: DeviceType::Gpu, minor: 9 }]);
    assert_eq!((grant.gpus(), pool.summary().free_gpus.count_ones()), (0b1100, 6));
    let mut divided = gpu(8, "s", "r", 0);
    divided.resources.clear();
    let mut devices = machine(2);
    devices.extend([divided, mig("MIG-a", 8, "1g.10gb", "s"), mig("MIG-b", 8, "1g.10gb", "s")]);
    let mut pool = pool_of(devices);
    let (grant, misfits) = pool.take_minors(&DeviceType::Gpu, &[8]);
    assert_eq!((&*grant.parts, misfits.len()), (&[Part::Mig { mig: 0 }, Part::Mig { mig: 1 }][..], 0));
    let (grant, misfits) = pool.take_minors(&DeviceType::Rdma, &[3]);
    assert_eq!((&*grant.parts, misfits.len()), (&[Part::Nic { nic: 3, percent: 100, vfs: 0 }][..], 0));
}

#[test]
fn functions_that_no_nic_has_are_reported() {
    let text = r#"{"rdma":[{"minor":0,"id":"0000:00:00.0","resources":{"koordinator.sh/rdma":"1"},"extension":{"vfs":[{"busID":"0000:00:00.7"}]}}]}"#;
    let mut pool = pool_of(vec![nic(0, "s", "r", 0)]);
    let (_, misfits) = pool.take_held(&Held::of(&DeviceAllocation::parse(text).unwrap()), Exclusive::default());
    assert!(matches!(&misfits[..], [Misfit::UnknownVf { .. }]), "{misfits:?}");
}

proptest! {
    #[test]
    fn what_is_printed_and_read_back_takes_the_same_devices(
        requests in prop::collection::vec((0..6usize, 1..=3u32, 1..=100u32), 1..12),
    ) {
        let (mut planned, mut restored) = (pool_of(with_functions()), pool_of(with_functions()));
        for (kind, count, percent) in requests {
            let (n, hundreds, p) = (count.to_string(), (count * 100).to_string(), percent.to_string());
            let request = match kind {
                0 => ask(&[("nvidia.com/gpu", &n)]),
                1 => ask(&[(key::GPU, &p)]),
                2 => ask(&[(key::GPU_CORE, &p), (key::GPU_MEMORY, "8Gi"), (key::RDMA, &p)]),
                3 => wish(&[("nvidia.com/gpu", &n), (key::RDMA, &hundreds)], None, Some(r#"{"deviceTypes":["gpu","rdma"]}"#)),
                4 => wish(&[(key::GPU, &p)], Some(r#"{"gpu":{"exclusivePolicy":"PCIeLevel"}}"#), None),
                _ => pod(&[("init", Init, &[(key::GPU, &p)]), ("main", App, &[(key::GPU_MEMORY_RATIO, &p)])], Wishes::default()),
            };
            let Ok(picked) = place(&mut planned, &request) else { continue };
            let printed = picked.device_allocated(&planned).print();
            let written = picked.annotations(&planned, &request, "node \"a\"");
            let split = picked.container_devices(&planned, &request, "node \"a\"").print();
            prop_assert_eq!(written, [printed.clone(), split, picked.gpu_minors(&planned)]);
            prop_assert_eq!(picked.held(&planned), Held::of(&picked.device_allocated(&planned)));
            let (grant, misfits) = restored.take_held(&Held::of(&DeviceAllocation::parse(&printed).unwrap()), request.shape().wishes.exclusive());
            prop_assert_eq!(misfits, vec![]);
            prop_assert_eq!(&grant, &picked.grant);
            prop_assert_eq!(&restored, &planned);
            let split = picked.container_devices(&planned, &request, "node-a");
            prop_assert_eq!(ContainerDevices::parse(&split.print()).unwrap().unwrap(), split);
        }
    }
}
