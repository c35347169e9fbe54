//! Answers by each strategy, and that GPU and NIC answers of one container never meet on a key.

use std::collections::BTreeMap;

use super::*;
use crate::options::{DeviceIdStrategy, DeviceListStrategy};
use baton_contract::{DeviceExtension, PodRef, Quantity, ShareIsolation, Vf, key};

const GPU: &str = "GPU-5f1c2a90-0000-4000-8000-000000000003";
const NIC: &str = "0000:3c:00.0";
const VF: &str = "0000:3c:00.2";

fn answers(change: impl FnOnce(&mut AgentOptions)) -> AllocateAnswers {
    let mut options = AgentOptions::default();
    change(&mut options);
    let parts = |kind: DeviceType, index: &str, nodes: &[&str]| DeviceNodes {
        kind,
        index: index.into(),
        bdf: format!("0000:{:02x}:00.0", 0x20 - index.parse().unwrap_or(0)).parse().ok(),
        nodes: nodes.iter().map(Into::into).collect(),
        missing: nodes.is_empty().then(|| "/dev/nvidia4 is missing".to_owned()),
    };
    let devices = [
        (GPU, parts(DeviceType::Gpu, "3", &["/dev/nvidia3"])),
        ("GPU-b", parts(DeviceType::Gpu, "5", &["/dev/nvidia5"])),
        ("GPU-gone", parts(DeviceType::Gpu, "4", &[])),
        (NIC, parts(DeviceType::Rdma, "", &["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"])),
        (VF, parts(DeviceType::Rdma, "", &["/dev/infiniband/uverbs4", "/dev/infiniband/rdma_cm"])),
    ];
    let devices = devices.map(|(id, parts)| (DeviceId::parse(id).unwrap(), parts)).into();
    let table =
        DeviceTable { devices, control: vec!["/dev/nvidiactl".into()], driver: Vec::new(), ..DeviceTable::default() };
    let answers = AllocateAnswers::new(Arc::new(options));
    answers.replace(Arc::new(table));
    answers
}

fn grant(kind: DeviceType, id: &str, shares: bool) -> ContainerGrant {
    let memory = (key::GPU_MEMORY.to_owned(), Quantity::bytes(8 << 30));
    let resources = BTreeMap::from([(key::GPU_CORE.to_owned(), Quantity::units(25)), memory]);
    let entry = DeviceEntry { minor: 3, id: DeviceId::parse(id).unwrap(), resources, extension: None };
    ContainerGrant {
        resource: key::NVIDIA_GPU.into(),
        pod: PodRef::new("../../etc", "$(reboot)", "u"),
        container: "/dev/sda".into(),
        entries: vec![(kind, entry)],
        shares,
    }
}

#[test]
fn by_default_a_gpu_is_its_cdi_name_and_a_nic_its_name_and_address() {
    let answers = answers(|_| {});
    let gpu = answers.answer(&grant(DeviceType::Gpu, GPU, false)).unwrap();
    assert_eq!(gpu.cdi_devices[0].name, format!("koordinator.sh/gpu={GPU}"));
    assert!(gpu.devices.is_empty() && gpu.mounts.is_empty() && gpu.annotations.is_empty());
    assert_eq!(gpu.envs, [("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())].into());
    assert_eq!(named(&gpu), [DeviceId::parse(GPU).unwrap()].into());
    let nic = answers.answer(&grant(DeviceType::Rdma, NIC, false)).unwrap();
    assert_eq!(nic.cdi_devices[0].name, format!("koordinator.sh/rdma={NIC}"));
    assert_eq!(nic.envs, [("PCIDEVICE_KOORDINATOR_SH_RDMA".to_owned(), NIC.to_owned())].into());
}

#[test]
fn every_strategy_adds_its_own_and_an_index_is_used_where_asked_for() {
    let answers = answers(|options| {
        options.device_list_strategy =
            vec![DeviceListStrategy::Envvar, DeviceListStrategy::CdiAnnotations, DeviceListStrategy::CdiCri];
        options.device_id_strategy = DeviceIdStrategy::Index;
        options.pass_device_specs = true;
        options.cdi_kind = "nvidia.com/gpu".into();
    });
    let gpu = answers.answer(&grant(DeviceType::Gpu, GPU, false)).unwrap();
    assert_eq!(gpu.envs["NVIDIA_VISIBLE_DEVICES"], "3");
    assert_eq!(gpu.annotations["cdi.k8s.io/baton_gpu"], format!("nvidia.com/gpu={GPU}"));
    assert_eq!(gpu.cdi_devices.len(), 1);
    let nodes: Vec<&str> = gpu.devices.iter().map(|spec| spec.host_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/nvidia3", "/dev/nvidiactl"]);
}

#[test]
fn without_cdi_a_nic_comes_as_its_device_nodes() {
    let answers = answers(|options| options.device_list_strategy = vec![DeviceListStrategy::VolumeMounts]);
    let nic = answers.answer(&grant(DeviceType::Rdma, NIC, false)).unwrap();
    assert!(nic.devices.iter().all(|spec| spec.permissions == "rw") && nic.devices.len() == 2);
    let gpu = answers.answer(&grant(DeviceType::Gpu, GPU, false)).unwrap();
    assert_eq!(gpu.envs["NVIDIA_VISIBLE_DEVICES"], "/var/run/nvidia-container-devices");
    assert_eq!(gpu.mounts[0].container_path, format!("/var/run/nvidia-container-devices/{GPU}"));
}

#[test]
fn a_virtual_function_is_given_instead_of_its_nic() {
    let mut grant = grant(DeviceType::Rdma, NIC, false);
    grant.entries[0].1.extension =
        Some(DeviceExtension { vfs: vec![Vf { minor: 0, bus_id: DeviceId::parse(VF).unwrap() }] });
    let answer = answers(|_| {}).answer(&grant).unwrap();
    assert_eq!(answer.cdi_devices[0].name, format!("koordinator.sh/rdma={VF}"));
    assert_eq!(answer.cdi_devices.len(), 1);
}

#[test]
fn gpu_and_nic_answers_never_use_the_same_key_and_hold_no_word_of_the_pod() {
    let answers = answers(|options| {
        options.device_list_strategy = DeviceListStrategy::ALL.to_vec();
        options.pass_device_specs = true;
        options.share_isolation = ShareIsolation::Mps;
    });
    let gpu = answers.answer(&grant(DeviceType::Gpu, GPU, true)).unwrap();
    let nic = answers.answer(&grant(DeviceType::Rdma, NIC, true)).unwrap();
    assert!(gpu.envs.keys().all(|key| !nic.envs.contains_key(key)));
    assert!(gpu.annotations.keys().all(|key| !nic.annotations.contains_key(key)));
    let path = |spec: &baton_contract::deviceplugin::DeviceSpec| spec.container_path.clone();
    assert!(gpu.devices.iter().map(path).all(|of_gpu| nic.devices.iter().map(path).all(|of_nic| of_nic != of_gpu)));
    assert_eq!(gpu.envs["CUDA_DEVICE_MEMORY_LIMIT_0"], "8192m");
    assert_eq!(gpu.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "25");
    assert_eq!(gpu.envs["CUDA_MPS_PIPE_DIRECTORY"], "/mps/nvidia.com/gpu/pipe");
    let mounts: Vec<(&str, &str)> =
        gpu.mounts.iter().map(|mount| (mount.container_path.as_str(), mount.host_path.as_str())).collect();
    assert!(mounts.contains(&("/mps/nvidia.com/gpu/pipe", "/run/nvidia/mps/nvidia.com/gpu/pipe")), "{mounts:?}");
    assert!(mounts.contains(&("/dev/shm", "/run/nvidia/mps/shm")), "{mounts:?}");
    let whole = answers.answer(&grant(DeviceType::Gpu, GPU, false)).unwrap();
    assert!(!whole.envs.keys().any(|key| key.contains("MPS")), "a whole GPU is its container's own");
    for answer in [gpu, nic] {
        let text = format!("{answer:?}");
        assert!(["etc", "reboot", "/dev/sda"].iter().all(|word| !text.contains(word)), "{text}");
    }
}

#[test]
fn limits_of_a_share_are_numbered_as_the_container_sees_its_devices() {
    let mut grant = grant(DeviceType::Gpu, GPU, true);
    let mut larger = grant.entries[0].clone();
    larger.1.id = DeviceId::parse("GPU-b").unwrap();
    larger.1.resources.insert(key::GPU_MEMORY.to_owned(), Quantity::bytes(16 << 30));
    grant.entries.push(larger);
    let limits = |grant: &ContainerGrant| {
        let envs = answers(|options| options.share_isolation = ShareIsolation::Mps).answer(grant).unwrap().envs;
        [
            "CUDA_DEVICE_MEMORY_LIMIT_0",
            "CUDA_DEVICE_MEMORY_LIMIT_1",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_DEVICE_ORDER",
        ]
        .map(|key| envs.get(key).cloned().unwrap_or_default())
    };
    let expected = ["16384m", "8192m", "0=16384M,1=8192M", "PCI_BUS_ID"].map(str::to_owned);
    assert_eq!(limits(&grant), expected, "the second has the lower PCI address");
    grant.entries.reverse();
    assert_eq!(limits(&grant), expected);
    grant.entries.pop();
    assert_eq!(limits(&grant), ["16384m", "", "0=16384M", ""].map(str::to_owned), "one device has one number");
}

#[test]
fn a_device_that_is_not_here_or_of_another_kind_or_without_node_is_refused() {
    let answers = answers(|_| {});
    for (kind, id, part) in [
        (DeviceType::Gpu, "GPU-other", "not in this machine"),
        (DeviceType::Gpu, NIC, "not in this machine"),
        (DeviceType::Gpu, "GPU-gone", "no device node"),
    ] {
        let error = answers.answer(&grant(kind, id, false)).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(id), "{error}");
    }
}

#[test]
fn a_runtime_that_finds_the_nodes_itself_is_told_of_a_gpu_without_a_node_here() {
    let envvar = answers(|options| options.device_list_strategy = vec![DeviceListStrategy::Envvar]);
    assert_eq!(
        envvar.answer(&grant(DeviceType::Gpu, "GPU-gone", false)).unwrap().envs["NVIDIA_VISIBLE_DEVICES"],
        "GPU-gone"
    );
    let vendor = answers(|options| options.cdi_kind = "nvidia.com/gpu".into());
    let answer = vendor.answer(&grant(DeviceType::Gpu, "GPU-gone", false)).unwrap();
    assert_eq!(answer.cdi_devices[0].name, "nvidia.com/gpu=GPU-gone");
}

#[test]
fn nodes_below_another_root_are_named_where_they_lie_and_appear_in_dev() {
    let table = DeviceTable { dev_root: Some("/host/dev".into()), ..DeviceTable::default() };
    assert_eq!(table.on_host("/dev/infiniband/uverbs0".as_ref()), std::path::Path::new("/host/dev/infiniband/uverbs0"));
    assert_eq!(DeviceTable::default().on_host("/dev/nvidia0".as_ref()), std::path::Path::new("/dev/nvidia0"));
}

#[test]
fn a_share_of_two_gpus_names_each_memory_and_the_smaller_compute() {
    let entry = |id: &str, core, gib: i64| DeviceEntry {
        minor: 0,
        id: DeviceId::parse(id).unwrap(),
        resources: [
            (key::GPU_CORE.to_owned(), Quantity::units(core)),
            (key::GPU_MEMORY.to_owned(), Quantity::bytes(gib << 30)),
        ]
        .into(),
        extension: None,
    };
    let (a, b) = (entry("GPU-a", 50, 40), entry("GPU-b", 30, 20));
    let plain = share_env(&[&a, &b], ShareIsolation::None);
    let expected = [
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "40960m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "20480m"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_DEVICE_SM_LIMIT", "30"),
    ];
    assert_eq!(plain, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    let mps = share_env(&[&a, &b], ShareIsolation::Mps);
    assert_eq!(mps["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "30");
    assert_eq!(mps["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=40960M,1=20480M");
    assert!(share_env(&[&entry("GPU-c", 0, 0)], ShareIsolation::Mps).is_empty());
}

#[test]
fn a_share_under_hami_core_has_the_library_by_cdi_or_mounts_and_a_whole_gpu_has_not() {
    let dir = tempfile::tempdir().unwrap();
    let of = |strategies: &[DeviceListStrategy], shares| {
        let answers = answers(|options| {
            options.share_isolation = ShareIsolation::HamiCore;
            options.hami_core_dir = dir.path().into();
            options.device_list_strategy = strategies.to_vec();
        });
        let grant = ContainerGrant { container: "main".into(), ..grant(DeviceType::Gpu, GPU, shares) };
        let answer = answers.answer(&grant).unwrap();
        assert_eq!(named(&answer).len(), 1, "{answer:?}");
        answer
    };
    let at = |answer: &ContainerAllocateResponse| -> Vec<String> {
        answer.mounts.iter().map(|mount| mount.container_path.clone()).collect()
    };
    let cdi = of(&[DeviceListStrategy::CdiCri, DeviceListStrategy::CdiAnnotations], true);
    let names: Vec<&str> = cdi.cdi_devices.iter().map(|device| &*device.name).collect();
    assert_eq!(names, [&*format!("koordinator.sh/gpu={GPU}"), "baton.io/share=hami-core"]);
    assert!(cdi.annotations[GPU_ANNOTATION].ends_with(",baton.io/share=hami-core"));
    assert_eq!(at(&cdi), ["/usr/local/vgpu/cache"]);
    let plain = of(&[DeviceListStrategy::Envvar], true);
    let all = ["/usr/local/vgpu/cache", "/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload", "/tmp/vgpulock"];
    assert_eq!(at(&plain), all);
    assert_eq!(plain.mounts.iter().map(|mount| mount.read_only).collect::<Vec<_>>(), [false, true, true, false]);
    let whole = of(&[DeviceListStrategy::Envvar], false);
    assert!(whole.mounts.is_empty() && !whole.envs.keys().any(|key| key.starts_with("CUDA")), "{whole:?}");
}

#[tokio::test]
async fn what_ended_containers_left_goes_also_when_shares_are_not_limited_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("baton/containers/uid-1_main");
    std::fs::create_dir_all(&left).unwrap();
    let answers = answers(|options| options.hami_core_dir = dir.path().into());
    answers.retain(&|uid, _| uid == "uid-1");
    answers.retain(&|_, _| false);
    let gone = async {
        while left.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), gone).await.expect("it goes");
}

#[test]
fn a_stored_answer_by_numbers_that_are_other_devices_now_is_not_started_with() {
    let by_node = |options: &mut AgentOptions| {
        options.device_list_strategy = vec![DeviceListStrategy::Envvar];
        options.pass_device_specs = true;
    };
    let by_index = |options: &mut AgentOptions| {
        options.device_list_strategy = vec![DeviceListStrategy::VolumeMounts, DeviceListStrategy::Envvar];
        options.device_id_strategy = DeviceIdStrategy::Index;
    };
    // After the boot: the first GPU and NIC have left, and the others have moved up.
    let after = |answers: &AllocateAnswers| {
        let mut table = DeviceTable::clone(&answers.table.load());
        for (gone, moved) in [(GPU, "GPU-b"), (NIC, VF)] {
            let parts = table.devices.remove(&DeviceId::parse(gone).unwrap()).unwrap();
            table.devices.insert(DeviceId::parse(moved).unwrap(), parts);
        }
        // Another module has been loaded since.
        table.control.push("/dev/nvidia-modeset".into());
        answers.replace(Arc::new(table));
    };
    let ways: [fn(&mut AgentOptions); 3] = [|_| {}, by_node, by_index];
    let kinds = [(DeviceType::Gpu, [GPU, "GPU-b"]), (DeviceType::Rdma, [NIC, VF])];
    let cases = ways.into_iter().zip([true, false, false]);
    for ((change, by_name), (kind, ids)) in cases.flat_map(|way| kinds.clone().map(|kind| (way, kind))) {
        let answers = answers(change);
        let stored = ids.map(|id| {
            let grant = grant(kind.clone(), id, false);
            (answers.answer(&grant).unwrap(), grant.entries)
        });
        let may = |(stored, entries): &(_, Vec<_>)| answers.still_names(stored, entries);
        assert_eq!(stored.each_ref().map(may), [Ok(()), Ok(())], "nothing has changed");
        after(&answers);
        for ((_, entries), outcome) in stored.iter().zip(stored.each_ref().map(may)) {
            assert_eq!(outcome.is_ok(), by_name, "{entries:?}");
            assert!(outcome.err().is_none_or(|why| why.contains(entries[0].1.id.as_str())));
        }
    }
    // One that has its own number still, beside one whose number has another device.
    let answers = answers(by_node);
    let [mut both, other] = [GPU, "GPU-b"].map(|id| answers.answer(&grant(DeviceType::Gpu, id, false)).unwrap());
    both.devices.extend(other.devices);
    assert!(answers.still_names(&both, &grant(DeviceType::Gpu, GPU, false).entries).is_err());
}
