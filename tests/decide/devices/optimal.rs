//! The chosen set of whole GPUs against brute force over all subsets.

use baton::contract::inventory::DeviceInfo;
use baton::decide::devices::{NodePool, Reason, best, bit, bits, objective, pick};
use proptest::prelude::*;

use super::nodes::{ask, gpu, gpu_minors, machine, nic, nvlinked, object, place, pool_of, wish};

prop_compose! {
    /// Up to 8 GPUs and 4 NICs in random places; some places unknown, some GPUs sick.
    fn topology()(
        gpus in prop::collection::vec((0..5usize, 0..3usize, 0..2i32, 0..3usize, prop::bool::weighted(0.9)), 1..=8),
        nics in prop::collection::vec((0..5usize, 0..3usize, 0..2i32), 0..=4),
    ) -> Vec<DeviceInfo> {
        let switch = ["", "0000:a0:00.0", "0000:b0:00.0", "0000:c0:00.0", "0000:d0:00.0"];
        let root = ["", "pci0000:a0", "pci0000:b0"];
        let domain = ["", "d0", "d1"];
        let mut all = Vec::new();
        for (at, (s, r, numa, d, health)) in (0..).zip(gpus) {
            let mut info = gpu(at, switch[s], root[r], numa);
            info.health = health;
            all.push(if d == 0 { info } else { nvlinked(info, domain[d]) });
        }
        all.extend((0..).zip(nics).map(|(at, (s, r, numa))| nic(at, switch[s], root[r], numa)));
        all
    }
}

/// Every subset of the candidates, judged by the stated order; the objective is the only thing shared with the search.
fn brute_force(pool: &NodePool, candidates: u128, count: u32) -> Option<u128> {
    let list: Vec<u8> = bits(candidates).collect();
    let subsets = (0u32..1 << list.len()).filter(|subset| subset.count_ones() == count);
    let sets = subsets.map(|subset| bits(u128::from(subset)).fold(0, |set, at| set | bit(list[usize::from(at)])));
    sets.min_by_key(|set| objective(pool, *set, 0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_request_gets_the_best_set_of_all_subsets(devices in topology(), taken in any::<u8>()) {
        let mut pool = pool_of(devices);
        for at in bits(u128::from(taken) & pool.summary().free_gpus) {
            if at % 2 == 0 {
                let _ = place(&mut pool, &ask(&[("koordinator.sh/gpu", "50")]));
            } else {
                let _ = place(&mut pool, &ask(&[("nvidia.com/gpu", "1")]));
            }
        }
        let free = pool.summary().free_gpus;
        for count in 1..=8u32 {
            let amount = count.to_string();
            let picked = pick(&pool, &ask(&[("nvidia.com/gpu", &amount)]));
            if let Some(set) = brute_force(&pool, free, count) {
                prop_assert_eq!(picked.unwrap().grant.gpus(), set, "{} GPUs", count);
            } else {
                let Err(Reason::FewGpus { wanted, free: reported, .. }) = picked else { panic!("{picked:?}") };
                prop_assert_eq!((wanted, reported), (count, free.count_ones()));
            }
        }
    }

    #[test]
    fn the_same_pool_and_request_give_the_same_answer(devices in topology(), count in 1..=4u32) {
        let (one, other) = (pool_of(devices.clone()), pool_of(devices));
        let amount = count.to_string();
        let joint = Some(r#"{"deviceTypes":["gpu","rdma"]}"#);
        let request = wish(&[("nvidia.com/gpu", &amount), ("koordinator.sh/rdma", "100")], None, joint);
        prop_assert_eq!(pick(&one, &request), pick(&other, &request));
    }
}

#[test]
fn sixteen_gpus_all_apart_take_exactly_every_subset_and_neighbours_take_few() {
    let apart = pool_of((0..16).map(|at| gpu(at, &format!("s{at}"), &format!("r{at}"), at)).collect());
    let all = apart.summary().free_gpus;
    assert_eq!(best(&apart, all, 8, |_| Some(0)).looked_at, 12_870);
    let switches = pool_of((0..16).map(|at| gpu(at, &format!("s{}", at / 4), "r", at / 8)).collect());
    let found = best(&switches, all, 8, |_| Some(0));
    assert!(found.looked_at <= 85, "{} sets", found.looked_at);
    assert_eq!(found.set.unwrap().0, 0xff);
}

#[test]
fn sixty_four_gpus_are_searched_exactly_where_few_differ_else_greedily() {
    let regular = pool_of((0..64).map(|at| gpu(at, &format!("s{}", at / 8), "r", at / 32)).collect());
    let found = best(&regular, regular.summary().free_gpus, 8, |_| Some(0));
    assert_eq!(found.set.unwrap().0, 0xff);
    let wild = pool_of((0..64).map(|at| gpu(at, &format!("s{}", at / 2), "r", at % 2)).collect());
    let found = best(&wild, wild.summary().free_gpus, 8, |_| Some(0));
    assert!(found.looked_at <= 64 && found.set.unwrap().0.count_ones() == 8, "{found:?}");
}

#[test]
fn nvlink_goes_before_switch_and_switch_before_numa_node() {
    // 0+1 share a switch, 1+2 an NVLink domain.
    let pool =
        pool_of(vec![gpu(0, "s0", "r", 0), nvlinked(gpu(1, "s0", "r", 0), "d"), nvlinked(gpu(2, "s1", "r", 1), "d")]);
    assert_eq!(gpu_minors(&pool, &pick(&pool, &ask(&[("nvidia.com/gpu", "2")])).unwrap()), [1, 2]);
    let pool = pool_of(vec![gpu(0, "s0", "r", 0), gpu(1, "s1", "r", 0), gpu(2, "s2", "r", 1), gpu(3, "s2", "r", 1)]);
    assert_eq!(gpu_minors(&pool, &pick(&pool, &ask(&[("nvidia.com/gpu", "2")])).unwrap()), [2, 3]);
    assert_eq!(gpu_minors(&pool, &pick(&pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap()), [0]);
}

#[test]
fn a_small_request_leaves_the_larger_free_groups_whole() {
    let mut pool = pool_of(machine(2));
    let first = place(&mut pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap();
    assert_eq!(gpu_minors(&pool, &first), [0], "lowest minor on an empty node");
    let second = place(&mut pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap();
    assert_eq!(gpu_minors(&pool, &second), [1], "the four below the other switch stay together");
    let four = place(&mut pool, &ask(&[("nvidia.com/gpu", "4")])).unwrap();
    assert_eq!(gpu_minors(&pool, &four), [4, 5, 6, 7]);
}

#[test]
fn of_two_groups_that_lose_as_much_the_larger_one_stays_together() {
    let pool = pool_of((0..5).map(|at| gpu(at, if at < 3 { "s0" } else { "s1" }, "r", 0)).collect());
    assert_eq!(gpu_minors(&pool, &pick(&pool, &ask(&[("nvidia.com/gpu", "2")])).unwrap()), [3, 4]);
    let pool = pool_of((0..6).map(|at| gpu(at, if at < 5 { "s0" } else { "s1" }, "r", 0)).collect());
    assert_eq!(gpu_minors(&pool, &pick(&pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap()), [5]);
}

#[test]
fn a_sick_gpu_is_never_chosen_and_the_refusal_counts_without_it() {
    let mut devices = machine(2);
    devices[3].health = false;
    let (pool, _) = NodePool::from_device(&object(devices));
    let reason = pick(&pool, &ask(&[("nvidia.com/gpu", "8")])).unwrap_err();
    assert_eq!(reason.to_string(), "7 of 8 GPUs free (the node has 8)");
    assert_eq!(reason.summary(), "have fewer than 8 free GPUs");
    let seven = pick(&pool, &ask(&[("nvidia.com/gpu", "7")])).unwrap();
    assert!(!gpu_minors(&pool, &seven).contains(&3));
}
