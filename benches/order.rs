//! Makes `order.txt`, which `build.rs` gives to the linker: the functions that the node daemon runs, and then those that only
//! the scheduler runs, lie side by side in the binary. The kernel maps a binary in pieces of 64 KiB and more, so that a daemon
//! whose functions are strewn over the whole of it has most of it resident: 30 MiB instead of 12.
//!
//! `cargo bench --bench order` runs both daemons under callgrind through what they do all day, and writes the file anew. With
//! `BATON_BINARY` their functions in that binary (the image's, whose compiler settings give other names) are added to those
//! that the file has. Names are of one compiler and one `Cargo.lock`: what does not exist any more is passed over by the
//! linker and costs only memory, which `cargo bench --bench agent` judges. Without valgrind it says so and changes nothing.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a bench is a test

#[allow(dead_code)] // another bench uses more of it
mod callgrind;
#[path = "../tests/harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use more of it
mod harness;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::{pods, wait};

/// Names the directory for callgrind's output to the process that plays the day.
const DAY: &str = "BATON_BENCH_ORDER";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/order.txt");
const HEAD: &str = "\
# Made by `cargo bench --bench order`: functions for the linker to lay side by side, first the node daemon's, then those that
# only the scheduler runs. build.rs says when it is used; without it the binary works the same and takes more memory.
";
/// Between the two parts.
const SCHEDULER: &str = "# scheduler\n";
/// Everything that comes twice a minute or more often has come.
const QUIET: Duration = Duration::from_secs(35);
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    if let Some(dir) = std::env::var_os(DAY) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(day(Path::new(&dir)));
    }
    if !callgrind::is_there() {
        println!("skipped: valgrind is not installed, benches/order.txt stays as it is");
        return;
    }
    let given = std::env::var_os("BATON_BINARY").map(PathBuf::from);
    let binary = given.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_baton").into());
    let dir = tempfile::Builder::new().prefix("order").tempdir_in("/tmp").unwrap();
    let wrapper = wrapper(dir.path(), &binary);
    let status = Command::new(std::env::current_exe().unwrap())
        .env(DAY, dir.path())
        .env("BATON_BINARY", wrapper)
        .status()
        .unwrap();
    assert!(status.success(), "the run under valgrind failed");

    let (mut agent, mut scheduler) = (
        callgrind::executed(&dir.path().join("device-plugin.out"), &binary),
        callgrind::executed(&dir.path().join("scheduler.out"), &binary),
    );
    assert!(agent.len() > 1000 && scheduler.len() > 1000, "callgrind names too few functions: is the binary stripped?");
    println!(
        "{}: {} functions of the node daemon, {} of the scheduler",
        binary.display(),
        agent.len(),
        scheduler.len()
    );
    if given.is_some() {
        let before = std::fs::read_to_string(FILE).unwrap();
        let mut parts = before.split(SCHEDULER).map(|part| part.lines().filter(|line| !line.starts_with('#')));
        agent.extend(parts.next().unwrap().map(str::to_owned));
        scheduler.extend(parts.next().into_iter().flatten().map(str::to_owned));
    }
    write(&agent, &scheduler);
}

fn write(agent: &BTreeSet<String>, scheduler: &BTreeSet<String>) {
    let mut text = HEAD.to_owned();
    let lines = |text: &mut String, names: &mut dyn Iterator<Item = &String>| {
        for name in names {
            text.push_str(name);
            text.push('\n');
        }
    };
    lines(&mut text, &mut agent.iter());
    text.push_str(SCHEDULER);
    lines(&mut text, &mut scheduler.difference(agent));
    std::fs::write(FILE, &text).unwrap();
    println!("benches/order.txt: {} functions, {} KiB", agent.union(scheduler).count(), text.len() >> 10);
}

/// A program that runs `binary` under callgrind.
fn wrapper(dir: &Path, binary: &Path) -> PathBuf {
    let path = dir.join("baton");
    let script = format!(
        "#!/bin/sh\nexec valgrind --quiet --log-file={0}/valgrind.%p.log --tool=callgrind --demangle=no --dump-line=no \
         --cache-sim=no --callgrind-out-file={0}/\"$1\".out {1} \"$@\"\n",
        dir.display(),
        binary.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// What daemons do all day: pods with GPUs, shares and NICs come and go, a GPU fails, and then nothing happens for a while.
async fn day(dir: &Path) {
    let cluster = harness::TestCluster::start(1).await;
    cluster.until_agent_is_ready().await;
    let all = [
        pods::pod("whole").app("main", &[("nvidia.com/gpu", "2")]),
        pods::pod("share").app("main", &[("koordinator.sh/gpu-core", "50"), ("koordinator.sh/gpu-memory-ratio", "50")]),
        pods::pod("joint").app("main", &[("nvidia.com/gpu", "1"), ("koordinator.sh/rdma", "1")]).joint(),
        pods::pod("several").init("init", &[("nvidia.com/gpu", "1")]).app("main", &[("nvidia.com/gpu", "1")]),
    ];
    for pod in &all {
        cluster.create(pod).await;
    }
    for name in ["whole", "share", "joint", "several"] {
        cluster.until_running(name).await;
    }
    // More than the node has: it waits, and its condition is written.
    cluster.create(&pods::pod("too-big").app("main", &[("nvidia.com/gpu", "9")])).await;
    let node = &cluster.nodes[0];
    node.hardware.xid(7, 79).unwrap();
    for path in ["/metrics", "/readyz", "/livez"] {
        assert!(node.agent.get(path).await.is_some() && cluster.scheduler.get(path).await.is_some(), "{path}");
    }
    tokio::time::sleep(QUIET).await;
    for name in ["whole", "share", "joint", "several", "too-big"] {
        cluster.delete(name).await;
    }
    cluster.until_unlocked(PATIENCE).await;
    // Ended in order, callgrind writes what it has seen.
    for daemon in [&node.agent, &cluster.scheduler] {
        let id = rustix::process::Pid::from_raw(daemon.pid().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    }
    for name in ["device-plugin.out", "scheduler.out"] {
        let path = dir.join(name);
        // Its last line.
        let written = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains("\ntotals:"));
        wait::until("callgrind writes its counts", PATIENCE, async || written().then_some(())).await;
    }
}
