//! The seeds of the fuzz targets as ordinary tests: the golden values of every wire, whole, cut short and with bytes changed.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // tests

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

use baton::contract::{deviceplugin, podresources};
use baton::runtime::clock;
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

/// Changes one place of `input`.
fn change(input: &mut Vec<u8>, random: &mut fastrand::Rng) {
    if input.is_empty() {
        input.push(random.u8(..));
        return;
    }
    let at = random.usize(..input.len());
    match random.u8(0..7) {
        0 => input[at] = random.u8(..),
        1 => input.truncate(at),
        2 => input.insert(at, *random.choice(b"0\"{}[],:-9\xff".iter()).unwrap()),
        3 => {
            let to = random.usize(at..input.len().min(at + 32));
            let piece = input[at..=to].to_vec();
            input.splice(at..at, piece);
        }
        4 => {
            input.remove(at);
        }
        5 => input[at] = random.u8(b'0'..=b'9'),
        _ => input[at] ^= 1 << random.u8(0..8),
    }
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
                change(&mut changed, &mut random);
            }
            target(&changed);
            count += 1;
        }
    }
    count + seeds.len()
}

/// Name and body of a fuzz target.
type Target = (&'static str, fn(&[u8]));

/// Changes of the seeds for `FUZZ_SECONDS` (60) per target, from a printed seed: for machines without cargo-fuzz.
#[test]
#[ignore = "minutes long: cargo test --release --test fuzz_corpus -- --ignored --nocapture"]
fn changed_seeds_hold_the_rules_for_a_minute_each() {
    let seconds = std::env::var("FUZZ_SECONDS").map_or(60, |text| text.parse().unwrap());
    let targets: [Target; 5] = [
        ("annotation", bodies::annotation),
        ("lock", bodies::lock),
        ("inventory", bodies::inventory),
        ("sysfs", bodies::sysfs),
        ("grpc", bodies::grpc),
    ];
    let start = fastrand::u64(..);
    std::thread::scope(|scope| {
        for (name, target) in targets {
            scope.spawn(move || {
                let seeds = files(&format!("fuzz/seeds/{name}"));
                let mut random = fastrand::Rng::with_seed(start);
                let end = clock::mono() + std::time::Duration::from_secs(seconds);
                let mut count = 0u64;
                while clock::mono() < end {
                    for _ in 0..100 {
                        let mut input = seeds[random.usize(..seeds.len())].clone();
                        for _ in 0..random.usize(1..6) {
                            change(&mut input, &mut random);
                        }
                        target(&input);
                        count += 1;
                    }
                }
                println!("{name}: {count} inputs in {seconds} s, seed {start}");
            });
        }
    });
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
    for tree in &trees {
        bodies::sysfs(tree);
    }
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
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}: UPDATE_SEEDS=1 writes it again");
    }
}
