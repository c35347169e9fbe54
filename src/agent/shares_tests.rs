//! What can be wrong with what limits GPU shares, and what is found of it.

use std::os::unix::net::UnixListener;

use super::*;

/// The first bytes of a library of this machine.
fn elf() -> Vec<u8> {
    let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    [&[0x7f, b'E', b'L', b'F', 2, 1][..], &[0; 12], &[machine, 0], b"rest"].concat()
}

/// A file, what stands in it with which mode, and what is said of it.
type Case<'a> = (&'a str, Option<(&'a [u8], u32)>, &'a str);

struct Install {
    dir: tempfile::TempDir,
    options: AgentOptions,
    guard: ShareGuard,
}

impl Install {
    fn of(isolation: ShareIsolation, change: impl FnOnce(&mut AgentOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = AgentOptions {
            share_isolation: isolation,
            hami_core_dir: dir.path().join("hami"),
            mps_root: dir.path().join("mps"),
            ..AgentOptions::default()
        };
        change(&mut options);
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.path().join("hami")).unwrap();
        let guard = ShareGuard::new(Arc::new(options.clone()));
        let this = Self { dir, options, guard };
        this.put("libvgpu.so", &elf(), 0o755);
        this.put("ld.so.preload", b"/usr/local/vgpu/libvgpu.so\n", 0o644);
        this
    }

    fn file(&self, name: &str) -> PathBuf {
        self.options.hami_core_dir.join(name)
    }

    fn put(&self, name: &str, content: &[u8], mode: u32) {
        let _ = std::fs::remove_file(self.file(name));
        std::fs::write(self.file(name), content).unwrap();
        std::fs::set_permissions(self.file(name), Permissions::from_mode(mode)).unwrap();
    }

    /// Why nothing is limited now.
    fn why(&mut self) -> Option<String> {
        self.guard.look().unavailable.map(Into::into)
    }
}

/// A mounted file keeps its type, and the loader skips what it may not read.
#[test]
fn a_library_that_selinux_keeps_from_containers_is_no_limit() {
    let sysfs = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(sysfs.path().join("fs/selinux")).unwrap();
    let enforce = |text: &str| std::fs::write(sysfs.path().join("fs/selinux/enforce"), text).unwrap();
    let mut install = Install::of(ShareIsolation::HamiCore, |options| options.paths.sysfs_root = sysfs.path().into());
    let label = |file: &Path, kind: &str| {
        let text = format!("system_u:object_r:{kind}:s0\0");
        rustix::fs::setxattr(file, "security.selinux", text.as_bytes(), rustix::fs::XattrFlags::empty())
    };
    enforce("1");
    assert!(install.why().unwrap().contains("has the SELinux type"));
    let (library, list, dir) =
        (install.file("libvgpu.so"), install.file("ld.so.preload"), install.options.hami_core_dir.clone());
    if label(&library, "var_lib_t").is_ok() {
        assert!(install.why().unwrap().contains("libvgpu.so has the SELinux type var_lib_t"));
        label(&library, "container_ro_file_t").unwrap();
        label(&list, "container_file_t").unwrap();
        assert!(install.why().unwrap().contains("has the SELinux type"), "containers write below the directory");
        // As `chcon -R` does: what is made below it has its type from then on.
        [dir.clone(), dir.join("baton")].iter().filter(|dir| dir.exists()).for_each(|dir| {
            label(dir, "container_file_t").unwrap();
        });
        assert_eq!(install.why(), None);
    }
    enforce("0");
    assert_eq!(install.why(), None);
}

#[test]
fn what_is_wrong_with_the_library_or_its_list_is_named_and_over_when_mended() {
    let mut install = Install::of(ShareIsolation::HamiCore, |_| {});
    let mut other = elf();
    other[18] = 40;
    let cases: [Case<'_>; 8] = [
        ("libvgpu.so", None, "cannot be found"),
        ("libvgpu.so", Some((&elf(), 0o600)), "chmod a+r"),
        ("libvgpu.so", Some((b"#!/bin/sh", 0o755)), "no 64-bit library"),
        ("libvgpu.so", Some((&other, 0o755)), "no 64-bit library"),
        ("ld.so.preload", None, "cannot be found"),
        ("ld.so.preload", Some((b"/usr/local/vgpu/libvgpu.so\n", 0o640)), "chmod a+r"),
        ("ld.so.preload", Some((b"", 0o644)), "nothing else"),
        ("ld.so.preload", Some((b"/usr/local/vgpu/libvgpu.so /x.so", 0o644)), "nothing else"),
    ];
    for (name, content, says) in cases {
        assert_eq!(install.why(), None, "before {says}");
        let good = std::fs::read(install.file(name)).unwrap();
        match content {
            Some((content, mode)) => install.put(name, content, mode),
            None => std::fs::remove_file(install.file(name)).unwrap(),
        }
        let why = install.why().unwrap();
        assert!(why.contains(says) && why.contains(&*install.file(name).to_string_lossy()), "{why}");
        install.put(name, &good, 0o755);
    }
    assert_eq!(install.why(), None);
}

#[test]
fn a_library_of_another_checksum_is_another_version_also_while_pods_run() {
    let plain = Install::of(ShareIsolation::HamiCore, |_| {});
    let sha256 = library(&plain.options).unwrap().sha256;
    let mut install = Install::of(ShareIsolation::HamiCore, |options| options.hami_core_sha256 = sha256.to_uppercase());
    assert_eq!(install.why(), None);
    install.put("libvgpu.so", &[elf(), b"newer".to_vec()].concat(), 0o755);
    let why = install.why().unwrap();
    assert!(why.contains("another version") && why.contains(&sha256.to_uppercase()), "{why}");
}

#[test]
fn a_look_for_people_changes_nothing() {
    let install = Install::of(ShareIsolation::HamiCore, |_| {});
    assert_eq!(works(&install.options).unwrap().path, install.file("libvgpu.so"));
    assert!(!root(&install.options).exists());
}

#[test]
fn a_full_directory_takes_shares_out_of_service() {
    let at = tempfile::tempdir().unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(at.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no right to mount");
        return;
    }
    let options = AgentOptions { hami_core_dir: at.path().into(), ..AgentOptions::default() };
    let found = has_room(&options);
    assert!(std::process::Command::new("umount").arg("-l").arg(at.path()).status().unwrap().success());
    let why = found.unwrap_err();
    assert!(
        why.contains("less than 16 MiB are free"),
        "{why}: no number that changes, or the Device object is written each time"
    );
}

#[test]
fn an_mps_daemon_that_is_silent_takes_shares_out_of_service_until_it_is_back() {
    let mut install = Install::of(ShareIsolation::Mps, |_| {});
    assert!(install.why().unwrap().contains("does not answer"), "there is none");
    let pipe = install.dir.path().join("mps/nvidia.com/gpu/pipe");
    std::fs::create_dir_all(&pipe).unwrap();
    let control = pipe.join("control");
    let listener = UnixListener::bind(&control).unwrap();
    assert_eq!(install.why(), None);
    drop(listener);
    let why = install.why().unwrap();
    assert!(why.contains("Connection refused") && why.contains(&*control.to_string_lossy()), "it died: {why}");
    std::fs::remove_file(&control).unwrap();
    let _listener = UnixListener::bind(&control).unwrap();
    assert_eq!(install.why(), None);
}

#[test]
fn a_directory_above_the_mps_pipe_that_other_users_cannot_pass_is_named() {
    let mut install = Install::of(ShareIsolation::Mps, |_| {});
    let root = install.dir.path().to_owned();
    let (mps, pipe) = (root.join("mps"), root.join("mps/nvidia.com/gpu/pipe"));
    std::fs::create_dir_all(&pipe).unwrap();
    let _listener = UnixListener::bind(pipe.join("control")).unwrap();
    for directory in [&root, &mps, &pipe] {
        std::fs::set_permissions(directory, Permissions::from_mode(0o750)).unwrap();
        let why = install.why().unwrap();
        assert!(why.contains(&format!("chmod o+x {}", directory.display())), "{why}");
        std::fs::set_permissions(directory, Permissions::from_mode(0o711)).unwrap();
        assert_eq!(install.why(), None);
    }
}

#[test]
fn an_mps_daemon_that_takes_nobody_in_does_not_answer() {
    let mut install = Install::of(ShareIsolation::Mps, |_| {});
    let pipe = install.dir.path().join("mps/nvidia.com/gpu/pipe");
    std::fs::create_dir_all(&pipe).unwrap();
    let _listener = UnixListener::bind(pipe.join("control")).unwrap();
    let reach = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(pipe.join("control")).unwrap()).map(|()| socket)
    };
    let mut waiting = Vec::new();
    while let Ok(socket) = reach() {
        waiting.push(socket);
        assert!(waiting.len() < 100_000, "its queue is full at some time");
    }
    assert!(install.why().unwrap().contains("does not answer"));
}

#[test]
fn a_container_that_starts_counts_anew_and_no_link_is_followed() {
    let install = Install::of(ShareIsolation::HamiCore, |_| {});
    let start = |container, how| may_start(&install.options, "uid-1", container, how);
    assert_eq!((start("a", ShareStart::Anew), start("b", ShareStart::Anew)), (Ok(()), Ok(())), "there is nothing yet");
    let [own, sibling] = ["uid-1_a", "uid-1_b"].map(|name| containers(&install.options).join(name).join("vgpu.cache"));
    for file in [&own, &sibling] {
        std::fs::write(file, "locked").unwrap();
    }
    start("a", ShareStart::Beside).unwrap();
    assert!(own.exists(), "its processes may run");
    start("a", ShareStart::Anew).unwrap();
    assert_eq!((own.exists(), sibling.exists()), (false, true));
    std::os::unix::fs::symlink(&sibling, &own).unwrap();
    start("a", ShareStart::Anew).unwrap();
    assert!(own.symlink_metadata().is_err() && sibling.exists());
    let deep = own.join("deep");
    std::fs::create_dir_all(&deep).unwrap();
    start("a", ShareStart::Anew).unwrap();
    let left = containers(&install.options).join("uid-1_a.old");
    assert_eq!(left_behind(&install.options, |_, container| ["a", "b"].contains(&container)), [left]);
    std::fs::create_dir_all(&deep).unwrap();
    assert!(start("a", ShareStart::Anew).unwrap_err().contains("cannot be removed"), "one at a time");
}

#[test]
fn a_container_has_a_directory_of_its_own_while_it_holds_a_share() {
    let install = Install::of(ShareIsolation::HamiCore, |_| {});
    let options = &install.options;
    let mut answer = ContainerAllocateResponse::default();
    for container in ["a", "b"] {
        mount_own(&mut answer, options, "uid-1", container).unwrap();
    }
    assert_eq!(answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"], "/usr/local/vgpu/cache/vgpu.cache");
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(containers(options).join("uid-1_a")), 0o777);
    // Not sticky: a lock that a process of one user left is removed by the next one, of whatever user.
    assert_eq!((mode(lock(options)), mode(containers(options))), (0o777, 0o755));
    assert_eq!(mode(root(options)), 0o700, "no user of the node reaches what containers put there");
    std::fs::create_dir(containers(options).join("somebody-elses")).unwrap();
    assert_eq!(left_behind(options, |_, container| container == "b"), [containers(options).join("uid-1_a")]);
    for uid in ["", "../..", "a/b", "static:default/web"] {
        assert!(mount_own(&mut answer, options, uid, "a").unwrap_err().contains("no name of a directory"));
    }
}
