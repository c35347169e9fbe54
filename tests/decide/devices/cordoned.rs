//! Devices that people have taken out of use, and devices that a pod asks for by their uuid.

use super::nodes::{ask, gpu, gpu_ids, gpu_minors, mig, nic, nic_minors, pool_of, wish};
use crate::prelude::*;

#[test]
fn a_cordoned_device_is_given_to_no_new_pod_and_stays_healthy() {
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0), nic(0, "s", "r", 0), nic(1, "s", "r", 0)]);
    let cordoned = [pool.devices().gpus[0].id.clone(), pool.devices().nics[0].id.clone()];
    pool.cordon(|id, _| cordoned.iter().any(|cordoned| cordoned.as_str() == id));
    let one = pick(&pool, &ask(&[("nvidia.com/gpu", "1"), (key::RDMA, "100")])).unwrap();
    assert_eq!((gpu_minors(&pool, &one), nic_minors(&pool, &one)), (vec![1], vec![1]));
    assert_eq!(gpu_minors(&pool, &pick(&pool, &ask(&[(key::GPU, "10")])).unwrap()), [1], "no share of it either");
    assert!(pick(&pool, &ask(&[("nvidia.com/gpu", "2")])).is_err());
    let every = r#"{"gpu":{"allocateStrategy":"ApplyForAll"}}"#;
    let all = pick(&pool, &wish(&[("nvidia.com/gpu", "1")], Some(every), None)).unwrap();
    assert_eq!(gpu_minors(&pool, &all), [1]);
    assert!(pool.devices().gpus[0].common.healthy);
    pool.cordon(|_, _| false);
    assert!(pick(&pool, &ask(&[("nvidia.com/gpu", "2")])).is_ok());
}

#[test]
fn a_cordoned_gpu_covers_its_mig_devices() {
    let devices = vec![gpu(0, "s", "r", 0), mig("MIG-a", 0, "1g.10gb", "s"), mig("MIG-b", 1, "1g.10gb", "s")];
    let mut pool = pool_of(devices);
    let parent = pool.devices().migs[0].parent.clone();
    assert_ne!(parent, pool.devices().migs[1].parent);
    pool.cordon(|id, of| id == &*parent || of == Some(&*parent));
    let one = pick(&pool, &ask(&[("nvidia.com/mig-1g.10gb", "1")])).unwrap();
    assert_eq!(gpu_ids(&pool, &one), ["MIG-b"]);
    assert!(pick(&pool, &ask(&[("nvidia.com/mig-1g.10gb", "2")])).is_err());
}

#[test]
fn a_device_can_be_asked_for_or_avoided_by_its_uuid() {
    let mut devices = vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)];
    // What the object says of it counts for nothing: the id does.
    devices[0].labels.insert(key::UUID.into(), "GPU-another".into());
    let pool = pool_of(devices);
    let id = pool.devices().gpus[1].id.clone();
    let selected = |operator: &str| {
        let expression = format!(r#"{{"key":"{}","operator":"{operator}","values":["{id}"]}}"#, key::UUID);
        let hint = format!(r#"{{"gpu":{{"selector":{{"matchExpressions":[{expression}]}}}}}}"#);
        gpu_minors(&pool, &pick(&pool, &wish(&[("nvidia.com/gpu", "1")], Some(&hint), None)).unwrap())
    };
    assert_eq!((selected("In"), selected("NotIn")), (vec![1], vec![0]));
    assert!(
        !pool.devices().labels(baton::decide::devices::Slot::Gpu(0)).contains_key(key::UUID),
        "equal labels are stored once"
    );
}
