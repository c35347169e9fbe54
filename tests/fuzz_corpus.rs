//! The seeds of the fuzz targets as ordinary tests: the golden values of every wire, whole, cut short and with bytes changed.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // tests

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

use baton::contract::{deviceplugin, podresources};
use prost::Message;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn files(directory: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(Path::new(ROOT).join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().filter(|path| path.is_file()).map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!inputs.is_empty(), "{directory} is empty");
    inputs
}

/// Runs `target` over each seed, every prefix of it (at most 200) and 500 seeded changes of it. Returns the number of inputs.
fn run(target: fn(&[u8]), seeds: &[Vec<u8>]) -> usize {
    let mut random = fastrand::Rng::with_seed(1);
    let mut count = 0;
    for seed in seeds {
        target(seed);
        for cut in 0..seed.len().min(200) {
            target(&seed[..cut * seed.len() / seed.len().min(200)]);
            count += 1;
        }
        for _ in 0..500 {
            let mut changed = seed.clone();
            for _ in 0..random.usize(1..4) {
                if changed.is_empty() {
                    break;
                }
                let at = random.usize(..changed.len());
                match random.u8(0..4) {
                    0 => changed[at] = random.u8(..),
                    1 => changed.truncate(at),
                    2 => changed.insert(at, *random.choice(b"0\"{}[],:-9\xff".iter()).unwrap()),
                    _ => changed[at] ^= 1 << random.u8(0..8),
                }
            }
            target(&changed);
            count += 1;
        }
    }
    count + seeds.len()
}

#[test]
fn annotations_hold_their_rules() {
    let mut seeds = files("tests/golden");
    seeds.extend(files("fuzz/seeds/annotation"));
    println!("annotation: {} inputs", run(bodies::annotation, &seeds));
}

#[test]
fn locks_hold_their_rules() {
    println!("lock: {} inputs", run(bodies::lock, &files("fuzz/seeds/lock")));
}

#[test]
fn inventories_hold_their_rules() {
    println!("inventory: {} inputs", run(bodies::inventory, &files("fuzz/seeds/inventory")));
}

#[test]
fn files_of_the_kernel_hold_their_rules() {
    let seeds = files("fuzz/seeds/sysfs");
    let (trees, texts): (Vec<_>, Vec<_>) = seeds.into_iter().partition(|seed| seed.first() == Some(&b'T'));
    println!("sysfs: {} inputs", run(bodies::sysfs, &texts));
    trees.iter().for_each(|tree| bodies::sysfs(tree));
}

#[test]
fn messages_of_the_kubelet_hold_their_rules() {
    println!("grpc: {} inputs", run(bodies::grpc, &files("fuzz/seeds/grpc")));
}

/// The seeds that are bytes are made here, so that they follow the protocol files: `UPDATE_SEEDS=1` writes them.
#[test]
fn the_seeds_of_messages_are_what_the_protocols_say() {
    use deviceplugin as plugin;
    let ids = ["GPU-5f1c2a90-0000-4000-8000-000000000001", "0000:3c:00.0"].map(str::to_owned).to_vec();
    let allocate = plugin::AllocateRequest {
        container_requests: vec![plugin::ContainerAllocateRequest { devices_ids: ids.clone() }],
    };
    let prefer = plugin::PreferredAllocationRequest {
        container_requests: vec![plugin::ContainerPreferredAllocationRequest {
            available_device_i_ds: ids.clone(),
            must_include_device_i_ds: ids[..1].to_vec(),
            allocation_size: 2,
        }],
    };
    let list = plugin::ListAndWatchResponse {
        devices: vec![plugin::Device {
            id: ids[0].clone(),
            health: "Healthy".into(),
            topology: Some(plugin::TopologyInfo { nodes: vec![plugin::NumaNode { id: 1 }] }),
        }],
    };
    let held = podresources::ListPodResourcesResponse {
        pod_resources: vec![podresources::PodResources {
            name: "train-0".into(),
            namespace: "ml".into(),
            containers: vec![podresources::ContainerResources {
                name: "main".into(),
                devices: vec![podresources::ContainerDevices {
                    resource_name: "nvidia.com/gpu".into(),
                    device_ids: ids,
                    ..Default::default()
                }],
                ..Default::default()
            }],
        }],
    };
    let seeds = [
        ("allocate", allocate.encode_to_vec()),
        ("prefer", prefer.encode_to_vec()),
        ("list-and-watch", list.encode_to_vec()),
        ("pod-resources", held.encode_to_vec()),
    ];
    for (name, bytes) in seeds {
        let path = Path::new(ROOT).join("fuzz/seeds/grpc").join(name);
        if std::env::var_os("UPDATE_SEEDS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}: UPDATE_SEEDS=1 writes it anew");
    }
}
