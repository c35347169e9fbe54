//! Device nodes, driver files, and input that tries to lead elsewhere.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use baton::hardware::tree::{MAX_FILE, Tree, TreeError, is_name};
use baton::hardware::{NullProvider, Roots, ScanError};
use baton::hardware::{driver, machine, nodes, rdma};
use baton::sim::hardware::Shape;

use super::bench::Bench;
use crate::skip::skipped;

#[test]
fn device_nodes_of_a_gpu_are_named_as_containers_see_them() {
    let bench = Bench::new(Shape::Hgx);
    let dev = bench.roots().dev_tree().unwrap();
    let text = |paths: Vec<std::path::PathBuf>| paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
    assert_eq!(nodes::gpu(&dev, 5).unwrap().to_str(), Some("/dev/nvidia5"));
    assert_eq!(nodes::gpu(&dev, 8), Err("/dev/nvidia8 is missing".to_owned()));
    let all = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];
    assert_eq!(text(nodes::control(&dev)), all);
    std::fs::remove_file(bench.roots().dev.join("nvidia-modeset")).unwrap();
    assert_eq!(text(nodes::control(&dev)), all[..3]);
}

#[test]
fn a_node_with_another_minor_number_is_not_the_gpus() {
    let bench = Bench::new(Shape::Hgx);
    let dev = bench.roots().dev_tree().unwrap();
    let node = dev.root().join("nvidia5");
    let make = |major: &str, minor: &str| {
        let _ = std::fs::remove_file(&node);
        Command::new("mknod").arg(&node).args(["c", major, minor]).status().unwrap().success()
    };
    if !make("195", "6") {
        return skipped("no right to make device nodes");
    }
    assert_eq!(nodes::gpu(&dev, 5), Err("/dev/nvidia5 has the minor number 6 and opens another device".to_owned()));
    assert!(make("195", "5") && nodes::gpu(&dev, 5).is_ok());
    assert!(make("1", "3") && nodes::gpu(&dev, 5).is_ok(), "a stand-in for a node is no GPU's");
}

#[test]
fn driver_libraries_are_listed_with_their_links_as_files_of_their_own() {
    let bench = Bench::new(Shape::Single);
    let files = driver::files(&Tree::open(&bench.node.driver_root()).unwrap());
    let of = |name: &str| files.iter().find(|file| file.container.ends_with(name)).cloned();
    let link = of("usr/lib64/libcuda.so.1").unwrap();
    assert_eq!(link.container.to_str(), Some("/usr/lib64/libcuda.so.1"));
    assert!(link.host.ends_with("usr/lib64/libcuda.so.570.133.20"), "{}", link.host.display());
    assert!(of("libnvidia-ml.so.1").is_some() && of("usr/bin/nvidia-smi").is_some());
    assert!(of("nvml.state").is_none());
    assert!(files.is_sorted_by(|a, b| a.container < b.container));
}

/// An image is not of its node's distribution: a container of Debian does not search `/usr/lib64`, one of Fedora nothing else. Images
/// of CUDA name the third directory in `LD_LIBRARY_PATH`, which the loader searches before a cache that names their own `libcuda`.
#[test]
fn driver_files_are_where_the_loaders_of_images_look() {
    let bench = Bench::new(Shape::Single);
    let root = bench.node.driver_root();
    for directory in ["usr/lib/x86_64-linux-gnu", "usr/local/nvidia/lib64", "usr/local/nvidia/bin"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    let [gbm, opencl] = ["libnvidia-egl-gbm.so.570.133.20", "libnvidia-opencl.so.570.133.20"];
    std::fs::write(root.join("usr/lib/x86_64-linux-gnu").join(gbm), "7").unwrap();
    std::fs::write(root.join("usr/local/nvidia/lib64").join(opencl), "7").unwrap();
    std::fs::write(root.join("usr/local/nvidia/bin/nvidia-cuda-mps-control"), "7").unwrap();
    // An empty file is the place of a mount, and hides no library in a later directory.
    std::fs::write(root.join("usr/lib64").join(opencl), "").unwrap();
    let files = driver::files(&Tree::open(&root).unwrap());
    let places = |name: &str| {
        let named = files.iter().filter(|file| file.container.ends_with(name));
        named.map(|file| file.container.parent().unwrap().to_str().unwrap()).collect::<Vec<_>>()
    };
    let debian = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    for library in ["libcuda.so.1", "libcuda.so", gbm, opencl] {
        assert_eq!(places(library), [debian.as_str(), "/usr/lib64", "/usr/local/nvidia/lib64"], "{library}");
    }
    let hosts = files.iter().filter(|file| file.container.ends_with(opencl)).map(|file| &file.host);
    assert!(hosts.clone().all(|host| host.ends_with(Path::new("usr/local/nvidia/lib64").join(opencl))), "{hosts:?}");
    assert_eq!((places("nvidia-cuda-mps-control"), places("nvidia-smi")), (vec!["/usr/bin"], vec!["/usr/bin"]));
}

#[test]
fn every_library_of_the_drivers_version_comes_with_its_other_names() {
    let bench = Bench::new(Shape::Single);
    let root = bench.node.driver_root();
    let at = |name: &str| root.join("usr/lib64").join(name);
    for name in ["libnvidia-future.so.570.133.20", "libnvidia-nvvm70.so.4", "libother.so.1", "libnvidia-past.so.550.1"]
    {
        std::fs::write(at(name), "7").unwrap();
    }
    symlink("libnvidia-future.so.570.133.20", at("libnvidia-future.so.1")).unwrap();
    symlink("libnvidia-future.so.1", at("libnvidia-future.so")).unwrap();
    let has = |files: &[driver::DriverFile], name: &str| files.iter().any(|file| file.container.ends_with(name));
    let files = driver::files(&Tree::open(&root).unwrap());
    for name in ["libnvidia-future.so.570.133.20", "libnvidia-future.so.1", "libnvidia-nvvm70.so.4"] {
        assert!(has(&files, name), "{name}");
    }
    for name in ["libother.so.1", "libnvidia-past.so.550.1", "libnvidia-future.so"] {
        assert!(!has(&files, name), "{name} is no library of this driver, or only for linking");
    }
    // Where libcuda's own name has no version, none of the machine's other libraries are taken for the driver's.
    std::fs::remove_file(at("libcuda.so.1")).unwrap();
    std::fs::write(at("libcuda.so.1"), "7").unwrap();
    let files = driver::files(&Tree::open(&root).unwrap());
    assert!(has(&files, "libcuda.so.1") && has(&files, "libnvidia-ml.so.1"));
    assert!(!has(&files, "libother.so.1") && !has(&files, "libnvidia-future.so.1"));
}

#[test]
fn libraries_of_another_driver_than_the_kernels_are_found_and_nothing_in_doubt() {
    let bench = Bench::new(Shape::Single);
    let root = bench.node.driver_root();
    let mismatch = || {
        let files = driver::files(&Tree::open(&root).unwrap());
        let found = driver::mismatch(&files, &bench.roots().sysfs_tree().unwrap());
        found.map(|of| [of.libraries, of.loaded])
    };
    let (old, new) = ("570.133.20", "580.65.06");
    assert_eq!(mismatch(), None);
    bench.node.update_driver(new).unwrap();
    assert_eq!(mismatch(), Some([new, old].map(str::to_owned)));
    bench.node.load_driver(new).unwrap();
    assert_eq!(mismatch(), None);
    bench.node.update_driver(old).unwrap();
    assert_eq!(mismatch(), Some([old, new].map(str::to_owned)));
    // The kernel does not say, or says what no driver says.
    for said in ["", "1.0", "580.65.06-local", "unknown"] {
        bench.node.load_driver(said).unwrap();
        assert_eq!(mismatch(), None, "{said}");
    }
    let module = bench.node.sysfs_root().join("module/nvidia/version");
    std::fs::remove_file(module).unwrap();
    assert_eq!(mismatch(), None);
    // The library's name does not say, as that of WSL, or there is none.
    bench.node.load_driver(new).unwrap();
    assert!(mismatch().is_some());
    let libcuda = root.join("usr/lib64/libcuda.so.1");
    std::fs::remove_file(&libcuda).unwrap();
    assert_eq!(mismatch(), None);
    std::fs::write(&libcuda, "7").unwrap();
    assert_eq!(mismatch(), None);
}

#[test]
fn driver_links_are_followed_as_in_the_drivers_own_system() {
    let bench = Bench::new(Shape::Single);
    let root = bench.node.driver_root();
    let at = |path: &str| root.join(path);
    // As Debian's alternatives have it, seen from a container that has the host's root below another directory.
    for directory in ["usr/lib/x86_64-linux-gnu/nvidia/current", "etc/alternatives"] {
        std::fs::create_dir_all(at(directory)).unwrap();
    }
    let [opencl, gpucomp] = ["libnvidia-opencl.so.570.133.20", "libnvidia-gpucomp.so.570.133.20"];
    let [outside, circle] = ["libnvidia-pkcs11.so.570.133.20", "libnvidia-tls.so.570.133.20"];
    for name in [opencl, gpucomp] {
        std::fs::write(at("usr/lib/x86_64-linux-gnu/nvidia/current").join(name), "9").unwrap();
    }
    let current = "usr/lib/x86_64-linux-gnu/nvidia/current";
    symlink(Path::new("/").join(current).join(opencl), at("etc/alternatives/opencl")).unwrap();
    symlink("/etc/alternatives/opencl", at("usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1")).unwrap();
    // Nothing leads out: more steps up than there are end at the driver's root.
    symlink("../../../../../../../../etc/passwd", at("usr/lib64").join(outside)).unwrap();
    symlink(circle, at("usr/lib64").join(circle)).unwrap();
    let files = driver::files(&Tree::open(&root).unwrap());
    let of = |name: &str| {
        let file = files.iter().find(|file| file.container.ends_with(name))?;
        let host = file.host.strip_prefix(root.canonicalize().unwrap()).unwrap();
        Some((file.container.display().to_string(), host.display().to_string()))
    };
    let pair = |container: &str, host: &str| Some((container.to_owned(), host.to_owned()));
    let debian = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    for (name, file) in [("libnvidia-opencl.so.1", opencl), (gpucomp, gpucomp)] {
        assert_eq!(of(name), pair(&format!("{debian}/{name}"), &format!("{current}/{file}")), "where loaders look");
    }
    assert_eq!((of(outside), of(circle)), (None, None), "absent there, and a circle");
}

#[test]
fn the_time_of_the_boot_is_read_among_the_kernels_numbers() {
    let bench = Bench::new(Shape::Single);
    let (root, proc) = (bench.node.proc_root(), || Tree::open(&bench.node.proc_root()).unwrap());
    assert_eq!(nodes::booted(&proc()), None, "there is no such file");
    let of = |stat: String| {
        std::fs::write(root.join("stat"), stat).unwrap();
        nodes::booted(&proc())
    };
    let many = "intr 1".to_owned() + &" 0".repeat(100_000);
    assert_eq!(of(format!("cpu 1 2\n{many}\nbtime 1795227561\nprocesses 7\n")), Some(1_795_227_561));
    assert_eq!(of("cpu 1 2\nbtime \n".to_owned()), None);
    assert!(nodes::booted(&Tree::open("/proc".as_ref()).unwrap()).is_some(), "on this machine");
}

#[test]
fn the_boot_id_changes_with_a_reboot() {
    let bench = Bench::new(Shape::Single);
    let before = bench.machine().boot_id.unwrap();
    let after = bench.node.reboot().unwrap();
    assert_ne!(before, after);
    assert_eq!(bench.machine().boot_id, Some(after));
}

#[test]
fn a_root_that_cannot_be_opened_is_named_by_its_flag() {
    let roots = Roots { sysfs: "/no/such/sysfs".into(), ..Roots::default() };
    let error = machine::scan(&roots, &NullProvider).unwrap_err();
    assert!(matches!(error, ScanError::Root { flag: "--sysfs-root", .. }));
    assert!(error.to_string().contains("/no/such/sysfs"), "{error}");
}

#[test]
fn nothing_outside_a_root_is_read() {
    let directory = crate::directory::directory();
    let (root, secret) = (directory.path().join("root"), directory.path().join("secret"));
    std::fs::create_dir_all(root.join("inside")).unwrap();
    std::fs::write(&secret, "secret").unwrap();
    std::fs::write(root.join("inside/file"), " text \n").unwrap();
    symlink(&secret, root.join("absolute")).unwrap();
    symlink("../secret", root.join("relative")).unwrap();
    symlink("inside/file", root.join("good")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    let tree = Tree::open(&root).unwrap();
    assert_eq!(tree.text("good").unwrap(), "text");
    for path in ["absolute", "relative", "../secret", "inside/../../secret", "/etc/hostname"] {
        assert!(matches!(tree.text(path), Err(TreeError::Escapes { .. })), "{path}");
    }
    assert!(matches!(tree.text("loop"), Err(TreeError::Io { .. })));
    assert!(tree.text("absent").unwrap_err().is_absent());
}

#[test]
fn huge_binary_and_special_files_are_refused_without_blocking() {
    let directory = crate::directory::directory();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("huge"), vec![b'a'; MAX_FILE + 1]).unwrap();
    std::fs::write(path("large"), vec![b'a'; MAX_FILE]).unwrap();
    std::fs::write(path("binary"), [0xff, 0xfe]).unwrap();
    std::fs::create_dir(path("directory")).unwrap();
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    let tree = Tree::open(directory.path()).unwrap();
    assert!(matches!(tree.text("huge"), Err(TreeError::TooLong { .. })));
    assert_eq!(tree.text("large").unwrap().len(), MAX_FILE);
    assert!(matches!(tree.text("binary"), Err(TreeError::NotText { .. })));
    assert!(matches!(tree.text("directory"), Err(TreeError::NotAFile { .. })));
    assert!(matches!(tree.text("pipe"), Err(TreeError::NotAFile { .. })));
}

#[test]
fn path_tricks_in_sysfs_cost_the_one_entry() {
    let bench = Bench::new(Shape::Hgx);
    let sysfs = bench.roots().sysfs;
    let nic = |name: &str| sysfs.join("class/infiniband").join(name).canonicalize().unwrap();
    // A device link out of the tree, a guid that is a link to a secret, an owner name that is a path.
    std::fs::remove_file(nic("mlx5_0").join("device")).unwrap();
    symlink("/etc", nic("mlx5_0").join("device")).unwrap();
    std::fs::remove_file(nic("mlx5_1").join("node_guid")).unwrap();
    symlink("/etc/hostname", nic("mlx5_1").join("node_guid")).unwrap();
    let verbs = sysfs.join("class/infiniband_verbs/uverbs2").canonicalize().unwrap();
    std::fs::write(verbs.join("ibdev"), "../../mlx5_2\n").unwrap();
    let machine = bench.machine();
    assert_eq!(machine.nics.len(), 3);
    assert_eq!(machine.nic_faults.len(), 1);
    assert!(machine.nic_faults[0].reason.contains("refused"), "{}", machine.nic_faults[0].reason);
    assert_eq!(machine.nics[0].node_guid, None);
    assert_eq!(machine.nics[1].chars.missing(), ["uverbs"]);
    assert!(machine.nics[2].chars.missing().is_empty());
}

#[test]
fn a_port_state_that_is_a_huge_file_is_unknown() {
    let bench = Bench::new(Shape::Hgx);
    let port = bench.roots().sysfs.join("class/infiniband/mlx5_0/ports/1/state");
    std::fs::write(port, vec![b'4'; MAX_FILE + 1]).unwrap();
    let sysfs = bench.roots().sysfs_tree().unwrap();
    let ports = rdma::ports(&sysfs, bench.nic_bdf(0)).unwrap();
    assert_eq!(ports[0].state, baton::hardware::nic::PortState::Unknown);
}

#[test]
fn names_with_separators_dots_or_odd_bytes_are_not_names() {
    for good in ["mlx5_0", "rocep59s0f0", "0000:3b:00.0", "pci0000:3a", "uverbs192"] {
        assert!(is_name(good), "{good}");
    }
    for bad in ["", ".", "..", "a/b", "a b", "a\n", "é", ".hidden", &"x".repeat(65), "a\0"] {
        assert!(!is_name(bad), "{bad:?}");
    }
}
