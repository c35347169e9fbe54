//! Devices for several pods of one node at once, against brute force.

use baton::decide::devices::{NodePool, PodDeviceRequest, bits, pick, together};
use baton::decide::pod::ContainerKind::App;
use proptest::prelude::*;

use super::nodes::{ask, gpu, machine, nic, place, pod, pool_of, wish};

const TRIES: usize = 20_000;

fn share(percent: u16) -> PodDeviceRequest {
    ask(&[("koordinator.sh/gpu", &percent.to_string())])
}

/// What is found can be taken, all of it.
fn found(pool: &NodePool, requests: &[PodDeviceRequest]) -> bool {
    let all: Vec<&PodDeviceRequest> = requests.iter().collect();
    let Some(assignments) = together(pool, &all, &mut TRIES.clone()) else { return false };
    assert_eq!(assignments.len(), requests.len());
    let mut after = pool.clone();
    assignments.iter().for_each(|assignment| after.take(&assignment.grant).unwrap());
    true
}

fn one_by_one(pool: &NodePool, requests: &[PodDeviceRequest]) -> bool {
    let mut after = pool.clone();
    requests.iter().all(|request| pick(&after, request).is_ok_and(|found| after.take(&found.grant).is_ok()))
}

#[test]
fn shares_of_40_and_30_percent_fill_two_gpus_though_best_fit_does_not() {
    let pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    let asked: Vec<PodDeviceRequest> = [40, 40, 30, 30, 30, 30].map(share).into();
    assert!(!one_by_one(&pool, &asked), "40 + 40 lie on one GPU by best fit");
    assert!(found(&pool, &asked));
    let more: Vec<PodDeviceRequest> = [40, 40, 30, 30, 30, 31].map(share).into();
    assert!(!found(&pool, &more), "201 percent of 200");
}

#[test]
fn a_share_leaves_the_switch_whole_that_another_pod_must_have() {
    // Two GPUs below one switch, one alone; best fit puts a share where something is taken already.
    let mut pool = pool_of(vec![gpu(0, "a", "r", 0), gpu(1, "a", "r", 0), gpu(2, "b", "r", 0), gpu(3, "c", "r", 0)]);
    place(&mut pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap();
    let scope = Some(r#"{"gpu":{"requiredTopologyScope":"PCIe"}}"#);
    let pair = wish(&[("koordinator.sh/gpu.shared", "2"), ("koordinator.sh/gpu-memory-ratio", "160")], scope, None);
    let single = wish(&[("koordinator.sh/gpu-memory-ratio", "50")], None, None);
    assert!(found(&pool, &[single.clone(), single, pair]));
}

#[test]
fn several_pods_with_near_nics_share_out_the_switches() {
    let pool = pool_of(machine(4));
    let joint = Some(r#"{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}"#);
    let near = |gpus: &str| wish(&[("nvidia.com/gpu", gpus), ("koordinator.sh/rdma", "100")], None, joint);
    assert!(found(&pool, &[near("2"), near("2"), near("1"), near("1")]));
    assert!(!found(&pool, &[near("2"), near("2"), near("1"), near("1"), near("1")]), "four NICs");
}

#[test]
fn shares_of_nics_are_searched_too() {
    let pool = pool_of(vec![nic(0, "s", "r", 0), nic(1, "s", "r", 0)]);
    let nics: Vec<PodDeviceRequest> =
        ["40", "40", "30", "30", "30", "30"].iter().map(|part| ask(&[("koordinator.sh/rdma", part)])).collect();
    assert!(!one_by_one(&pool, &nics));
    assert!(found(&pool, &nics));
}

#[test]
fn pods_of_two_containers_lie_any_way_round() {
    let pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0), gpu(2, "s", "r", 0)]);
    let two = |a: &str, b: &str| {
        let none = baton::decide::devices::Wishes::default();
        pod(&[("a", App, &[("koordinator.sh/gpu", a)]), ("b", App, &[("koordinator.sh/gpu", b)])], none)
    };
    // 300 percent in all: 60 + 40, 70 + 30, 50 + 50.
    assert!(found(&pool, &[two("60", "30"), two("70", "50"), two("40", "50")]));
}

#[test]
fn what_cannot_be_is_given_up_before_the_tries_are_used() {
    let pool = pool_of(machine(4));
    // Eight unlike shares of more than half cannot share a GPU; the ninth finds none.
    let asked: Vec<PodDeviceRequest> = (51..60).map(share).collect();
    let all: Vec<&PodDeviceRequest> = asked.iter().collect();
    let mut tries = TRIES;
    assert_eq!(together(&pool, &all, &mut tries), None);
    assert!(TRIES - tries < 200, "{} tries", TRIES - tries);
}

/// Every way to put shares (core, memory) onto GPUs with this much room.
fn shares_fit(rooms: &mut [(i64, i64)], shares: &[(i64, i64)]) -> bool {
    let Some(((core, memory), rest)) = shares.split_first() else { return true };
    (0..rooms.len()).any(|at| {
        if rooms[at].0 < *core || rooms[at].1 < *memory {
            return false;
        }
        rooms[at] = (rooms[at].0 - core, rooms[at].1 - memory);
        let fits = shares_fit(rooms, rest);
        rooms[at] = (rooms[at].0 + core, rooms[at].1 + memory);
        fits
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn shares_find_place_exactly_when_brute_force_does(
        gpus in 1..=3i32,
        taken in prop::collection::vec(1..=60i64, 0..3),
        shares in prop::collection::vec((1..=80i64, 1..=80i64), 1..=7),
    ) {
        let mut pool = pool_of((0..gpus).map(|at| gpu(at, &format!("s{at}"), "r", 0)).collect());
        let ask_for = |core: i64, memory: i64| {
            let (core, memory) = (core.to_string(), memory.to_string());
            ask(&[("koordinator.sh/gpu-core", &core), ("koordinator.sh/gpu-memory-ratio", &memory)])
        };
        for part in taken {
            let _ = place(&mut pool, &ask_for(part, part));
        }
        let bytes = |percent: i64| (i128::from(super::nodes::MEMORY) * i128::from(percent) / 100) as i64;
        let mut rooms: Vec<(i64, i64)> = (0..gpus as u8).map(|at| {
            let (core, memory) = pool.gpu_room(at);
            (i64::from(core), memory)
        }).collect();
        let wanted: Vec<(i64, i64)> = shares.iter().map(|(core, memory)| (*core, bytes(*memory))).collect();
        let requests: Vec<PodDeviceRequest> = shares.iter().map(|(core, memory)| ask_for(*core, *memory)).collect();
        prop_assert_eq!(found(&pool, &requests), shares_fit(&mut rooms, &wanted));
    }

    #[test]
    fn sets_below_one_switch_find_place_exactly_when_brute_force_does(
        below in prop::collection::vec(0..4usize, 4..=8),
        sick in any::<u8>(),
        counts in prop::collection::vec((1..=3u32, any::<bool>()), 1..=5),
    ) {
        let devices = (0i32..).zip(&below).map(|(at, switch)| {
            let mut info = gpu(at, &format!("s{switch}"), "r", 0);
            info.health = sick & (1 << at) == 0 || at % 2 == 0;
            info
        });
        let pool = pool_of(devices.collect());
        let free: Vec<u8> = bits(pool.summary().free_gpus).collect();
        let scope = Some(r#"{"gpu":{"requiredTopologyScope":"PCIe"}}"#);
        let requests: Vec<PodDeviceRequest> = counts
            .iter()
            .map(|(count, near)| wish(&[("nvidia.com/gpu", &count.to_string())], scope.filter(|_| *near), None))
            .collect();
        prop_assert_eq!(found(&pool, &requests), sets_fit(&below, &free, &counts));
    }
}

/// Every way to give each request its GPUs, below one switch where it must be so.
fn sets_fit(below: &[usize], free: &[u8], counts: &[(u32, bool)]) -> bool {
    let Some(((count, near), rest)) = counts.split_first() else { return true };
    (0u32..1 << free.len()).filter(|set| set.count_ones() == *count).any(|set| {
        let mut taken = bits(u128::from(set)).map(|at| below[usize::from(free[usize::from(at)])]);
        let first = taken.next();
        if *near && taken.any(|switch| Some(switch) != first) {
            return false;
        }
        let left: Vec<u8> =
            free.iter().enumerate().filter(|(at, _)| set & (1 << at) == 0).map(|(_, gpu)| *gpu).collect();
        sets_fit(below, &left, rest)
    })
}
