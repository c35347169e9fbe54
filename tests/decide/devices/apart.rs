//! Several containers of one pod with GPUs: each gets GPUs that are near each other, and none is in another's way.

use super::nodes::{Written, gpu, nvlinked, pod, pool_of};
use crate::prelude::*;

/// Minors of each container's GPUs, for containers that want so many whole GPUs.
fn split(devices: Vec<DeviceInfo>, counts: &[u32]) -> Vec<Vec<i32>> {
    let pool = pool_of(devices);
    let amounts: Vec<String> = counts.iter().map(ToString::to_string).collect();
    let limits: Vec<_> = amounts.iter().map(|amount| [(key::NVIDIA_GPU, amount.as_str())]).collect();
    let names = ["a", "b", "c", "d"];
    let containers: Vec<_> = names.iter().zip(&limits).map(|(name, limits)| (*name, App, &limits[..])).collect();
    let request = pod(&containers, Wishes::default());
    let plan = pick(&pool, &request).unwrap().container_devices(&pool, &request, "node-a");
    let minors = |name: &&str| plan.of(name, &DeviceType::Gpu).iter().map(|entry| entry.minor).collect();
    names[..counts.len()].iter().map(minors).collect()
}

/// One GPU for each switch that is named, on NUMA nodes that are named alike.
fn below(switches: &[&str], numa: &[i32]) -> Vec<DeviceInfo> {
    let all = switches.iter().zip(numa).enumerate();
    all.map(|(minor, (switch, numa))| gpu(minor as i32, switch, &format!("pci{numa}"), *numa)).collect()
}

#[test]
fn a_container_that_wants_two_gets_both_below_one_switch_though_another_comes_first() {
    let machine = || below(&["s0", "s0", "s1", "s1"], &[0; 4]);
    assert_eq!(split(machine(), &[1, 2]), [vec![2], vec![0, 1]]);
    assert_eq!(split(machine(), &[2, 1]), [vec![0, 1], vec![2]]);
}

#[test]
fn bridged_gpus_stay_together_where_containers_take_several() {
    let domains = ["p", "p", "q", "q"];
    let bridged = || -> Vec<_> {
        let gpus = below(&["s0", "s1", "s2", "s3"], &[0; 4]).into_iter();
        gpus.zip(domains).map(|(gpu, domain)| nvlinked(gpu, domain)).collect()
    };
    assert_eq!(split(bridged(), &[1, 2]), [vec![2], vec![0, 1]]);
}

#[test]
fn three_and_four_of_eight_lie_on_one_numa_node_each() {
    let machine = below(&["s0", "s0", "s1", "s1", "s2", "s2", "s3", "s3"], &[0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(split(machine, &[3, 4]), [vec![4, 5, 6], vec![0, 1, 2, 3]]);
}

#[test]
fn the_set_itself_is_chosen_so_that_each_container_has_a_domain() {
    let domains = ["x", "x", "x", "y", "y", "z", "z"];
    let gpus = below(&["s"; 7], &[0; 7]).into_iter();
    let machine = gpus.zip(domains).map(|(gpu, domain)| nvlinked(gpu, domain)).collect();
    let plan = split(machine, &[2, 2]);
    for own in &plan {
        assert_eq!(domains[own[0] as usize], domains[own[1] as usize], "{plan:?}");
    }
}

#[test]
fn a_whole_gpu_leaves_the_large_one_to_the_share_that_fits_no_other() {
    let sized = |minor: i32, memory: &str| {
        let mut info = gpu(minor, "s", "r", 0);
        info.resources.insert(key::GPU_MEMORY.into(), memory.parse().unwrap());
        info
    };
    let (gib5, gib70) = ((5i64 << 30).to_string(), (70i64 << 30).to_string());
    let small = [(key::GPU_CORE, "10"), (key::GPU_MEMORY, gib5.as_str())];
    let large = [(key::GPU_CORE, "10"), (key::GPU_MEMORY, gib70.as_str())];
    let whole = [(key::NVIDIA_GPU, "1")];
    for kind in [App, Sidecar, Init] {
        let pool = pool_of(vec![sized(0, "80Gi"), sized(1, "40Gi")]);
        let request = pod(&[("b", kind, &small), ("a", App, &whole), ("c", App, &large)], Wishes::default());
        let plan = pick(&pool, &request).map(|chosen| chosen.container_devices(&pool, &request, "node-a"));
        let of = |name: &str| plan.as_ref().unwrap().of(name, &DeviceType::Gpu)[0].minor;
        assert_eq!(["a", "b", "c"].map(of), [1, 0, 0], "{kind:?}");
    }
}
