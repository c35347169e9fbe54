//! Taking, and counting again.

use baton::decide::devices::{AfterGrant, DeviceSet, FreeSummary, PoolError, bit};
use proptest::prelude::*;

use super::nodes::{MEMORY, Written, ask, gpu, machine, mig, nic, object, place, pod, pool_of, recounted, wish};
use crate::prelude::*;

#[test]
fn a_grant_above_capacity_is_refused_and_names_the_device() {
    let mut pool = pool_of(machine(2));
    let half = Grant { parts: [Part::Gpu { gpu: 3, core: 60, memory: MEMORY / 4 }].into(), ..Grant::default() };
    pool.take(&half).unwrap();
    let before = pool.clone();
    assert_eq!(pool.take(&half).unwrap_err().to_string(), "device GPU-3: 60 of compute wanted, 40 free");
    assert_eq!(pool, before, "nothing has changed");
    let strange = Grant { parts: [Part::Mig { mig: 7 }].into(), ..Grant::default() };
    assert_eq!(pool.take(&strange).unwrap_err(), PoolError::NoDevice(Slot::Mig(7)));
}

#[test]
fn a_grant_has_one_outcome_on_equal_pools_and_is_computed_again_on_others() {
    let grant = |core| Grant { parts: [Part::Gpu { gpu: 3, core, memory: MEMORY / 4 }].into(), ..Grant::default() };
    let (empty, known, some) = (pool_of(machine(2)), AfterGrant::default(), grant(30));
    let (mut first, mut second, mut plain) = (empty.clone(), empty.clone(), empty.clone());
    plain.take(&some).unwrap();
    first.take_as_before(&some, &known).unwrap();
    second.take_as_before(&some, &known).unwrap();
    let same = |pool: &NodePool, other: &NodePool| {
        assert_eq!((pool, pool.summary(), pool.fingerprint()), (other, other.summary(), other.fingerprint()));
    };
    same(&first, &plain);
    same(&second, &plain);
    plain.take(&some).unwrap();
    second.take_as_before(&some, &known).unwrap();
    same(&second, &plain);
    first.take(&grant(60)).unwrap();
    let full = first.clone();
    assert_eq!(first.take_as_before(&some, &known).unwrap_err(), full.clone().take(&some).unwrap_err());
    assert_eq!(first, full, "nothing has changed");
}

#[test]
fn nodes_of_one_make_store_their_layout_once() {
    let shared = |devices| {
        let (mut pool, mut labels, mut layout) = (pool_of(devices), 0, None);
        pool.share(|_| labels += 1, |_| {}, |own| layout = Some(own.clone()));
        (pool, labels, layout.unwrap())
    };
    let (first, labels, layout) = shared(machine(2));
    assert_eq!(labels, 12, "those of 8 GPUs and 4 NICs");
    let holders = layout.holders();
    let (mut second, _, own) = shared(machine(2));
    second.keep_layout(&first);
    assert_eq!((layout.holders(), own.holders()), (holders + 1, 1));
    let (mut other, _, own) = shared(machine(4));
    other.keep_layout(&first);
    assert_eq!((layout.holders(), own.holders()), (holders + 1, 2), "that of another make stays");
}

#[test]
fn pools_that_differ_in_what_is_taken_or_in_partitions_are_told_apart() {
    let mut tabled = object(machine(2));
    tabled.metadata.annotations =
        Some([(key::GPU_PARTITIONS.to_owned(), r#"{"1":[{"minors":[0]}]}"#.to_owned())].into());
    let (tabled, _) = NodePool::from_device(&tabled);
    let plain = pool_of(machine(2));
    assert!(plain.is_like(&plain.clone()) && !plain.is_like(&tabled) && tabled.is_like(&tabled.clone()));
    let mut taken = plain.clone();
    taken.take(&Grant { parts: [Part::Gpu { gpu: 3, core: 60, memory: 1 }].into(), ..Grant::default() }).unwrap();
    assert!(!plain.is_like(&taken));
    assert_ne!(plain.fingerprint(), taken.fingerprint());
}

#[test]
fn a_mig_device_and_a_virtual_function_are_given_once() {
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), mig("MIG-a", 0, "1g.10gb", "s"), nic(0, "s", "r", 0)]);
    for (part, device) in [(Part::Mig { mig: 0 }, "MIG-a"), (Part::Nic { nic: 0, percent: 10, vfs: 1 }, "0000:00:00.0")]
    {
        let grant = Grant { parts: [part].into(), ..Grant::default() };
        pool.take(&grant).unwrap();
        let before = pool.clone();
        let refused = pool.take(&grant).unwrap_err();
        assert!(matches!(&refused, PoolError::Full { device: of, .. } if of.as_str() == device), "{refused}");
        assert_eq!(pool, before, "nothing has changed");
    }
}

#[test]
fn a_device_is_closed_only_where_no_other_pod_holds_it_and_then_to_all() {
    let mut pool = pool_of(machine(2));
    let half = |gpu| Part::Gpu { gpu, core: 50, memory: MEMORY / 2 };
    let closing = |gpu, closed| Grant {
        parts: [half(gpu)].into(),
        closed: DeviceSet { gpus: bit(closed), ..DeviceSet::default() },
    };
    pool.take(&Grant { parts: [half(3)].into(), ..Grant::default() }).unwrap();
    let before = pool.clone();
    assert!(matches!(pool.take(&closing(4, 3)), Err(PoolError::Closed { device }) if device.as_str() == "GPU-3"));
    assert_eq!(pool, before, "nothing has changed");
    pool.take(&closing(4, 5)).unwrap();
    let other = Grant { parts: [half(5)].into(), ..Grant::default() };
    assert!(matches!(pool.take(&other), Err(PoolError::Closed { device }) if device.as_str() == "GPU-5"));
}

#[test]
fn what_is_free_is_summed_up_without_devices_that_are_out_of_service() {
    let mut devices = machine(2);
    devices[0].health = false;
    devices[8].health = false;
    let mut pool = pool_of(devices);
    let nic = |nic, percent| Part::Nic { nic, percent, vfs: 0 };
    let some = |parts: &[Part]| Grant { parts: parts.into(), ..Grant::default() };
    pool.take(&some(&[Part::Gpu { gpu: 3, core: 60, memory: MEMORY / 4 }, nic(1, 30)])).unwrap();
    pool.take(&some(&[Part::Gpu { gpu: 4, core: 10, memory: MEMORY / 2 }, nic(2, 100)])).unwrap();
    pool.take(&some(&[Part::Gpu { gpu: 5, core: 100, memory: MEMORY }])).unwrap();
    let expected = FreeSummary {
        open_gpus: 0b1111_1110,
        free_gpus: 0b1100_0110,
        open_nics: 0b1110,
        free_nics: 0b1000,
        free_migs: 0,
        gpus: 8,
        nics: 4,
        core_total: 800,
        core_free: 7 * 100 - 60 - 10 - 100,
        memory_free: 7 * 100 - 25 - 50 - 100,
        // One is out of service, one is full, and of two it is the more used part that counts.
        taken: 100 + 100 + 60 + 50,
        core_most: 100,
        memory_most: 100,
        nic_free: 70 + 100,
        nic_most: 100,
    };
    assert_eq!(*pool.summary(), expected);
    let rest: Vec<Part> = [1, 2, 6, 7].map(|gpu| Part::Gpu { gpu, core: 80, memory: MEMORY * 9 / 10 }).into();
    pool.take(&some(&rest)).unwrap();
    pool.take(&some(&[nic(3, 55)])).unwrap();
    let now = pool.summary();
    assert_eq!((now.core_most, now.memory_most, now.nic_most, now.free_gpus, now.free_nics), (90, 75, 70, 0, 0));
    assert_eq!((now.core_free, now.memory_free, now.nic_free), (40 + 90 + 80, 75 + 50 + 40, 70 + 45));
}

#[test]
fn bad_entries_are_skipped_aloud_and_the_others_work() {
    let mut devices = machine(2);
    devices[1].minor = -1;
    devices[2].id = devices[0].id.clone();
    let (pool, skipped) = NodePool::from_device(&object(devices));
    let reported: Vec<String> = skipped.iter().map(ToString::to_string).collect();
    assert_eq!(reported, ["device GPU-1: minor -1 is negative", "device GPU-0: is listed twice"]);
    assert_eq!(pool.summary().free_gpus.count_ones(), 6);
}

#[test]
fn grants_stay_valid_while_devices_come_and_go() {
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    place(&mut pool, &ask(&[("nvidia.com/gpu", "2")])).unwrap();
    pool.update(&object(vec![gpu(1, "s", "r", 0), gpu(5, "s", "r", 0)]));
    assert_eq!(pool.summary().free_gpus, 0b100, "the new one");
    let mut pool = recounted(&pool, []);
    assert_eq!(pool.summary().free_gpus, 0b110, "the one that left is not offered");
    pool.update(&object(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0), gpu(5, "s", "r", 0)]));
    assert_eq!(pool.summary().free_gpus.count_ones(), 3);
}

#[test]
fn equal_shapes_are_equal_whatever_the_containers_are_called() {
    let shape = |name, hint| {
        pod(&[(name, App, &[("nvidia.com/gpu", "1")])], Wishes::parse(hint, None, None).unwrap()).shape().clone()
    };
    assert_eq!(shape("a", None), shape("b", Some(" ")));
    assert_ne!(shape("a", None), shape("a", Some(r#"{"gpu":{"requiredTopologyScope":"PCIe"}}"#)));
    let mut seen = std::collections::HashSet::new();
    assert!(seen.insert(shape("a", None)) && !seen.insert(shape("b", None)));
}

proptest! {
    #[test]
    fn nothing_is_ever_above_capacity_and_counting_again_gives_the_same(
        steps in prop::collection::vec((0..9usize, 1..=4u32, 1..=100u32, any::<prop::sample::Index>()), 1..40), switches in prop::sample::select(vec![2, 4]),
    ) {
        let empty = pool_of(machine(switches));
        let (mut pool, mut held) = (empty.clone(), Vec::<Grant>::new());
        for (kind, count, percent, which) in steps {
            let (n, hundreds, p) = (count.to_string(), (count * 100).to_string(), percent.to_string());
            let spread = (count * (percent / 2 + 1)).to_string();
            let request = match kind {
                0 => ask(&[("nvidia.com/gpu", &n)]),
                1 => ask(&[(key::GPU, &p)]),
                2 => ask(&[(key::GPU_CORE, &p), (key::GPU_MEMORY, "8Gi"), (key::RDMA, &p)]),
                3 => wish(&[("nvidia.com/gpu", &n), (key::RDMA, &hundreds)], None, Some(r#"{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}"#)),
                4 => wish(&[(key::GPU, &p)], Some(r#"{"gpu":{"exclusivePolicy":"DeviceLevel"}}"#), None),
                5 => pod(&[("init", Init, &[(key::GPU, &p)]), ("side", Sidecar, &[(key::GPU, "10")]), ("main", App, &[(key::GPU_MEMORY_RATIO, &p)])], Wishes::default()),
                6 => ask(&[(key::GPU_SHARED, &n), (key::GPU_MEMORY_RATIO, &spread)]),
                7 => pod(&[("a", App, &[("nvidia.com/gpu", &n)]), ("b", App, &[(key::GPU, &p), (key::RDMA, "20")])], Wishes::default()),
                _ => {
                    if !held.is_empty() {
                        held.remove(which.index(held.len()));
                        pool = recounted(&pool, &held);
                    }
                    continue;
                }
            };
            if let Ok(picked) = pick(&pool, &request) {
                pool.take(&picked.grant).unwrap();
                held.push(picked.grant);
                prop_assert_eq!(&recounted(&pool, &held), &pool);
            }
            for gpu in 0..8u8 {
                let parts = || held.iter().flat_map(|grant| grant.parts.iter());
                let core: u32 = parts().map(|part| match part { Part::Gpu { gpu: g, core, .. } if *g == gpu => u32::from(*core), _ => 0 }).sum();
                let memory: i64 = parts().map(|part| match part { Part::Gpu { gpu: g, memory, .. } if *g == gpu => *memory, _ => 0 }).sum();
                prop_assert!(core <= 100 && memory <= MEMORY, "GPU {gpu}: {core}% and {memory} bytes");
                prop_assert_eq!(pool.gpu_room(gpu), (100 - core as u16, MEMORY - memory));
            }
        }
        let left = recounted(&pool, []);
        prop_assert_eq!(&left, &empty);
        prop_assert_eq!(left.summary(), empty.summary());
    }
}

#[test]
fn a_node_whose_gpus_are_all_cut_gives_its_mig_devices_to_whoever_asks_for_gpus() {
    let mut parent = super::nodes::gpu(0, "s", "pci0", 0);
    parent.resources.clear();
    let cut = (0..3).map(|n| super::nodes::mig(&format!("MIG-{n}"), 0, "1g.10gb", "s"));
    let mut pool = super::nodes::pool_of(std::iter::once(parent).chain(cut).collect());
    let two = super::nodes::ask(&[("nvidia.com/gpu", "2")]);
    let given = super::nodes::place(&mut pool, &two).unwrap();
    assert_eq!(super::nodes::gpu_ids(&pool, &given), ["MIG-0", "MIG-1"]);
    assert_eq!(given.device_allocated(&pool).of(&baton::contract::DeviceType::Gpu).len(), 2);
    let refused = super::nodes::place(&mut pool, &two).unwrap_err();
    tells(refused.summary(), ["fewer than 2 free GPUs"]);
}

#[test]
fn unlisted_virtual_functions_are_not_given_and_labels_are_of_the_newest_object() {
    let nic = |fabric: &str, vfs: &[&str]| {
        super::nodes::object(vec![super::nodes::with_vfs(super::nodes::nic(0, "s", "r", 0), fabric, vfs)])
    };
    let mut pool = super::nodes::pool_of(nic("a", &["0000:00:00.1", "0000:00:00.2"]).spec.devices);
    pool.update(&nic("b", &["0000:00:00.2", "0000:00:00.3"]));
    let labelled = |fabric: &str| {
        let hint = format!(r#"{{"rdma":{{"vfSelector":{{"matchLabels":{{"fabric":"{fabric}"}}}}}}}}"#);
        super::nodes::wish(&[("koordinator.sh/rdma", "10")], Some(&hint), None)
    };
    assert!(super::nodes::place(&mut pool, &labelled("a")).is_err(), "no function says so any more");
    let mut vfs = Vec::new();
    while let Ok(given) = super::nodes::place(&mut pool, &labelled("b")) {
        let entries = given.device_allocated(&pool);
        let entry = entries.of(&baton::contract::DeviceType::Rdma)[0].clone();
        vfs.extend(entry.extension.unwrap().vfs.into_iter().map(|vf| vf.bus_id.to_string()));
    }
    assert_eq!(vfs, ["0000:00:00.2", "0000:00:00.3"]);
}
