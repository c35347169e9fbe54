//! Shares of GPUs, MIG devices and NIC shares.

use proptest::prelude::*;

use super::nodes::{MEMORY, ask, gpu, gpu_ids, gpu_minors, machine, mig, nic_minors, place, pod, pool_of, wish};
use crate::prelude::*;

fn parts(limits: super::nodes::Limits<'_>) -> Vec<Part> {
    let pool = pool_of(machine(2));
    pick(&pool, &ask(limits)).unwrap().grant.parts.to_vec()
}

#[test]
fn every_request_of_the_contract_is_served() {
    let whole = |gpu| Part::Gpu { gpu, core: 100, memory: MEMORY };
    let share = |gpu, core, percent: i64| Part::Gpu { gpu, core, memory: MEMORY * percent / 100 };
    assert_eq!(parts(&[(key::NVIDIA_GPU, "2")]), [whole(0), whole(1)]);
    assert_eq!(parts(&[(key::GPU, "200")]), [whole(0), whole(1)]);
    assert_eq!(parts(&[(key::GPU, "50")]), [share(0, 50, 50)]);
    assert_eq!(parts(&[(key::GPU_MEMORY_RATIO, "25")]), [share(0, 0, 25)]);
    assert_eq!(parts(&[(key::GPU_CORE, "30"), (key::GPU_MEMORY_RATIO, "40")]), [share(0, 30, 40)]);
    let bytes = |gpu, core, memory| Part::Gpu { gpu, core, memory };
    assert_eq!(parts(&[(key::GPU_CORE, "30"), (key::GPU_MEMORY, "8Gi")]), [bytes(0, 30, 8 << 30)]);
    assert_eq!(parts(&[(key::GPU_SHARED, "1"), (key::GPU_MEMORY, "8Gi")]), [bytes(0, 0, 8 << 30)]);
    assert_eq!(parts(&[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "100")]), [share(0, 0, 50), share(1, 0, 50)]);
    assert_eq!(
        parts(&[(key::GPU_SHARED, "2"), (key::GPU_CORE, "60"), (key::GPU_MEMORY, "16Gi")]),
        [bytes(0, 30, 8 << 30), bytes(1, 30, 8 << 30)]
    );
    assert_eq!(parts(&[(key::RDMA, "200")]).len(), 2);
    assert_eq!(parts(&[(key::RDMA, "30")]), [Part::Nic { nic: 0, percent: 30, vfs: 0 }]);
    assert_eq!(parts(&[(key::NVIDIA_GPU, "1"), (key::RDMA, "100")]).len(), 2);
}

#[test]
fn shares_fill_a_gpu_before_they_break_another_and_whole_gpus_stay_whole() {
    let mut pool = pool_of(machine(2));
    for _ in 0..8 {
        let assignment = place(&mut pool, &ask(&[(key::GPU, "12")])).unwrap();
        assert_eq!(gpu_minors(&pool, &assignment), [0]);
    }
    assert_eq!(pool.summary().free_gpus.count_ones(), 7);
    let next = place(&mut pool, &ask(&[(key::GPU, "12")])).unwrap();
    assert_eq!(gpu_minors(&pool, &next), [1], "4% are left on the first");
    let small = place(&mut pool, &ask(&[(key::GPU, "4")])).unwrap();
    assert_eq!(gpu_minors(&pool, &small), [0], "best fit");
}

#[test]
fn sixteen_halves_fill_eight_gpus_and_the_next_names_what_is_missing() {
    let mut pool = pool_of(machine(2));
    for at in 0..16 {
        assert_eq!(gpu_minors(&pool, &place(&mut pool.clone(), &ask(&[(key::GPU, "50")])).unwrap()), [at / 2]);
        place(&mut pool, &ask(&[(key::GPU, "50")])).unwrap();
    }
    let reason = pick(&pool, &ask(&[(key::GPU, "50")])).unwrap_err();
    assert_eq!(reason.to_string(), "no GPU has 50% memory and 50% core left");
    assert_eq!(reason.summary(), "have no GPU with 50% memory and 50% core left");
}

#[test]
fn memory_and_core_are_two_dimensions() {
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    place(&mut pool, &ask(&[(key::GPU_CORE, "10"), (key::GPU_MEMORY_RATIO, "90")])).unwrap();
    let much_memory = place(&mut pool, &ask(&[(key::GPU_CORE, "10"), (key::GPU_MEMORY_RATIO, "20")])).unwrap();
    assert_eq!(gpu_minors(&pool, &much_memory), [1]);
    let much_core = place(&mut pool, &ask(&[(key::GPU_CORE, "90"), (key::GPU_MEMORY_RATIO, "10")])).unwrap();
    assert_eq!(gpu_minors(&pool, &much_core), [0]);
    assert!(pick(&pool, &ask(&[(key::GPU_CORE, "91"), (key::GPU_MEMORY_RATIO, "1")])).is_err());
}

#[test]
fn a_share_in_bytes_goes_to_the_model_it_fills_best() {
    let mut small = gpu(1, "s", "r", 0);
    small.resources.insert(key::GPU_MEMORY.into(), "24Gi".parse().unwrap());
    let pool = pool_of(vec![gpu(0, "s", "r", 0), small]);
    let fits = pick(&pool, &ask(&[(key::GPU_CORE, "10"), (key::GPU_MEMORY, "20Gi")])).unwrap();
    assert_eq!(gpu_minors(&pool, &fits), [1]);
    let large = pick(&pool, &ask(&[(key::GPU_CORE, "10"), (key::GPU_MEMORY, "30Gi")])).unwrap();
    assert_eq!(gpu_minors(&pool, &large), [0]);
    let reason = pick(&pool, &ask(&[(key::GPU_CORE, "10"), (key::GPU_MEMORY, "90Gi")])).unwrap_err();
    assert_eq!(reason.to_string(), "no GPU has 90Gi memory and 10% core left");
}

#[test]
fn two_shares_of_sixty_in_two_containers_are_two_gpus_and_two_of_forty_are_one() {
    let pool = pool_of(machine(2));
    let two = |amount| pod(&[("a", App, &[(key::GPU, amount)]), ("b", App, &[(key::GPU, amount)])], Wishes::default());
    assert_eq!(gpu_minors(&pool, &pick(&pool, &two("60")).unwrap()), [0, 1]);
    assert_eq!(gpu_minors(&pool, &pick(&pool, &two("40")).unwrap()), [0]);
}

#[test]
fn a_first_choice_that_leaves_no_room_for_the_second_share_is_taken_back() {
    // Best fit alone puts 40 onto the GPU with 50 left, and then 60 fits nowhere... so 40 must go to the one with 40.
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    place(&mut pool, &ask(&[(key::GPU_CORE, "40"), (key::GPU_MEMORY_RATIO, "10")])).unwrap();
    let first = pod(
        &[
            ("a", App, &[(key::GPU_CORE, "20"), (key::GPU_MEMORY_RATIO, "80")]),
            ("b", App, &[(key::GPU_CORE, "50"), (key::GPU_MEMORY_RATIO, "50")]),
            ("c", App, &[(key::GPU_CORE, "50"), (key::GPU_MEMORY_RATIO, "50")]),
        ],
        Wishes::default(),
    );
    let picked = pick(&pool, &first).unwrap();
    let on = |at: usize| picked.containers[at].iter().map(|part| part.slot()).collect::<Vec<_>>();
    assert_ne!(on(0), on(1));
    assert_eq!(on(1), on(2));
    pool.take(&picked.grant).unwrap();
}

#[test]
fn mig_devices_are_chosen_by_profile_from_the_parent_that_is_cut_into_most() {
    let mut cut = vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0), gpu(2, "s", "r", 0)];
    for parent in &mut cut[..2] {
        parent.resources.clear();
    }
    for (id, parent) in [("MIG-a", 0), ("MIG-b", 0), ("MIG-c", 1), ("MIG-d", 1), ("MIG-e", 1)] {
        cut.push(mig(id, parent, "1g.10gb", "s"));
    }
    cut.push(mig("MIG-big", 1, "3g.40gb", "s"));
    let mut pool = pool_of(cut);
    let one = &[("nvidia.com/mig-1g.10gb", "1")][..];
    let first = place(&mut pool, &ask(one)).unwrap();
    assert_eq!(gpu_ids(&pool, &first), ["MIG-a"], "parent 0 has fewer left");
    let three = place(&mut pool, &ask(&[("nvidia.com/mig-1g.10gb", "3")])).unwrap();
    assert_eq!(gpu_ids(&pool, &three), ["MIG-c", "MIG-d", "MIG-e"]);
    place(&mut pool, &ask(one)).unwrap();
    assert_eq!(pick(&pool, &ask(one)).unwrap_err().to_string(), "0 of 1 MIG devices 1g.10gb free (the node has 5)");
    assert!(pick(&pool, &ask(&[("nvidia.com/mig-3g.40gb", "1")])).is_ok());
    assert_eq!(gpu_minors(&pool, &pick(&pool, &ask(&[("nvidia.com/gpu", "1")])).unwrap()), [2], "cut GPUs are no GPUs");
    assert!(pick(&pool, &ask(&[("nvidia.com/gpu", "2")])).is_err());
}

#[test]
fn nic_shares_fill_a_nic_and_whole_nics_are_counted() {
    let mut pool = pool_of(machine(2));
    for _ in 0..3 {
        let share = place(&mut pool, &ask(&[(key::RDMA, "30")])).unwrap();
        assert_eq!(nic_minors(&pool, &share), [0]);
    }
    let three = place(&mut pool, &ask(&[(key::RDMA, "300")])).unwrap();
    assert_eq!(nic_minors(&pool, &three), [1, 2, 3]);
    let reason = pick(&pool, &ask(&[(key::RDMA, "100")])).unwrap_err();
    assert_eq!(reason.to_string(), "0 of 1 RDMA NICs free (the node has 4)");
    let reason = pick(&pool, &ask(&[(key::RDMA, "20")])).unwrap_err();
    assert_eq!(reason.to_string(), "no RDMA NIC has 20% left, the most is 10%");
}

#[test]
fn hostile_counts_are_refused_at_once() {
    let pool = pool_of(machine(2));
    let billions = [(key::GPU_SHARED, "4000000000"), (key::GPU_MEMORY_RATIO, "4000000000")];
    let reason = pick(&pool, &ask(&billions)).unwrap_err().to_string();
    assert_eq!(reason, "no room for 4000000000 GPU shares, the largest of 1% memory and 0% core");
    assert!(pick(&pool, &ask(&[("nvidia.com/gpu", "9223372036854775807")])).is_err());
    assert!(pick(&pool, &ask(&[("nvidia.com/mig-1g.10gb", "4000000000")])).is_err());
    assert!(pick(&pool, &ask(&[(key::RDMA, "400000000000")])).is_err());
    let as_count = wish(&[(key::RDMA, "99")], Some(r#"{"rdma":{"allocateStrategy":"RequestsAsCount"}}"#), None);
    assert_eq!(pick(&pool, &as_count).unwrap_err().to_string(), "4 of 99 RDMA NICs free (the node has 4)");
    let many: Vec<String> = (0..40).map(|at| format!("c{at}")).collect();
    let apps: Vec<_> = many.iter().map(|name| (name.as_str(), App, &[(key::GPU, "34")][..])).collect();
    assert!(pick(&pool, &pod(&apps, Wishes::default())).is_err());
}

#[test]
fn what_a_dra_claim_serves_is_not_chosen_and_a_broken_rule_names_the_container() {
    let container = |limits: &[(&str, &str)], dra_backed: &[&str]| {
        let mut container = crate::harness::pod("p", limits, Duration::ZERO).handoff.containers[0].clone();
        container.dra_backed = dra_backed.iter().map(|name| (*name).into()).collect();
        container
    };
    let of = |container| PodDeviceRequest::of_containers(&[container], Wishes::default());
    assert!(of(container(&[("nvidia.com/gpu", "1")], &["nvidia.com/gpu"])).unwrap().is_empty());
    assert!(!of(container(&[("nvidia.com/gpu", "1"), (key::RDMA, "10")], &["nvidia.com/gpu"])).unwrap().is_empty());
    let problem = of(container(&[(key::GPU_CORE, "50")], &[])).unwrap_err().to_string();
    assert!(problem.starts_with("container main: koordinator.sh/gpu-core alone"), "{problem}");
}

proptest! {
    #[test]
    fn a_share_goes_to_the_started_gpu_it_fills_best_and_only_else_breaks_a_whole_one(
        used in prop::collection::vec((0..100i64, 0..100i64), 2..=8), core in 1..=100i64, ratio in 1..=100i64,
    ) {
        let mut pool = pool_of((0..).zip(&used).map(|(at, _)| gpu(at, "s", "r", 0)).collect());
        for (at, (core, ratio)) in (0u8..).zip(&used).filter(|(_, (core, ratio))| core + ratio > 0) {
            let part = Part::Gpu { gpu: at, core: *core as u16, memory: MEMORY * ratio / 100 };
            pool.take(&Grant { parts: [part].into(), ..Grant::default() }).unwrap();
        }
        let (c, r) = (core.to_string(), ratio.to_string());
        let picked = pick(&pool, &ask(&[(key::GPU_CORE, &c), (key::GPU_MEMORY_RATIO, &r)]));
        // Percent left afterwards, compute and memory counting alike; the bytes lost in rounding decide nothing here.
        let left = |at: usize| 200 - used[at].0 - used[at].1 - core - ratio;
        let fits = |at: &usize| used[*at].0 + core <= 100 && used[*at].1 + ratio <= 100;
        let whole = |at: usize| used[at] == (0, 0);
        match (0..used.len()).filter(fits).map(|at| (whole(at), left(at))).min() {
            None => prop_assert!(picked.is_err()),
            Some(best) => {
                let at = gpu_minors(&pool, &picked.unwrap())[0] as usize;
                prop_assert_eq!((whole(at), left(at)), best);
            }
        }
    }
}

fn percent_pod(containers: &[(&str, &str, &str)]) -> PodDeviceRequest {
    // Count of GPUs, compute and memory in all.
    let limits: Vec<[(&str, &str); 3]> = containers
        .iter()
        .map(|(count, core, memory)| {
            [(key::GPU_SHARED, *count), (key::GPU_CORE, *core), (key::GPU_MEMORY_RATIO, *memory)]
        })
        .collect();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let all: Vec<_> = names.iter().zip(&limits).map(|(name, limits)| (*name, App, &limits[..])).collect();
    pod(&all, Wishes::default())
}

#[test]
fn shares_of_several_containers_are_found_wherever_they_fit() {
    let mut pool = pool_of((0..8).map(|minor| gpu(minor, "s", "r", 0)).collect());
    for minor in 0..4 {
        let held = ask(&[(key::GPU, "40")]);
        let mut assignment = pick(&pool, &held).unwrap();
        // Each on a GPU of its own.
        let Part::Gpu { core, memory, .. } = assignment.grant.parts[0] else { panic!() };
        assignment.grant.parts = [Part::Gpu { gpu: minor, core, memory }].into();
        pool.take(&assignment.grant).unwrap();
    }
    let found = pick(&pool, &percent_pod(&[("4", "160", "160"), ("8", "480", "480")])).unwrap();
    assert_eq!(found.containers[0].len(), 4);
    let small: Vec<(&str, &str, &str)> =
        (0..10).map(|at| if at < 5 { ("1", "40", "40") } else { ("1", "60", "60") }).collect();
    let empty = pool_of((0..5).map(|minor| gpu(minor, "s", "r", 0)).collect());
    assert!(pick(&empty, &percent_pod(&small)).is_ok());
}

/// All ways: rooms in tenths, container after container, each on distinct GPUs.
fn fits(rooms: &mut Vec<i64>, wants: &[(u32, i64)], from: usize, left: u32) -> bool {
    let Some(((_, size), rest)) = wants.split_first() else { return true };
    if left == 0 {
        return match rest.first() {
            None => true,
            Some((next, _)) => fits(rooms, rest, 0, *next),
        };
    }
    for at in from..rooms.len() {
        if rooms[at] >= *size {
            rooms[at] -= size;
            if fits(rooms, wants, at + 1, left - 1) {
                return true;
            }
            rooms[at] += size;
        }
    }
    false
}

proptest! {
    #[test]
    fn shares_are_found_exactly_where_trying_all_ways_finds_them(
        held in prop::collection::vec(0..=9i64, 4..=8), wants in prop::collection::vec((1..=4u32, 1..=9i64), 1..=3),
    ) {
        let mut pool = pool_of((0..held.len() as i32).map(|minor| gpu(minor, "s", "r", 0)).collect());
        for (at, tenths) in held.iter().enumerate().filter(|(_, tenths)| **tenths > 0) {
            let part = Part::Gpu { gpu: at as u8, core: (tenths * 10) as u16, memory: MEMORY * tenths / 10 };
            pool.take(&Grant { parts: [part].into(), ..Grant::default() }).unwrap();
        }
        let texts: Vec<[String; 2]> = wants.iter().map(|(count, tenths)| [count.to_string(), (i64::from(*count) * tenths * 10).to_string()]).collect();
        let containers: Vec<(&str, &str, &str)> = texts.iter().map(|[count, amount]| (count.as_str(), amount.as_str(), amount.as_str())).collect();
        let found = pick(&pool, &percent_pod(&containers));
        let mut rooms: Vec<i64> = held.iter().map(|tenths| 10 - tenths).collect();
        let possible = fits(&mut rooms, &wants, 0, wants[0].0);
        prop_assert_eq!(found.is_ok(), possible, "{:?} {:?}: {:?}", held, wants, found);
    }
}
