//! What reading a machine costs the process: threads and memory, measured in a process of its own.

use std::process::Command;

use baton::sim::hardware::Shape;

use super::bench::{Bench, until};

/// Two of NVML's; the daemon's budget of 12 MiB is for everything.
const MAX_GROWTH_KIB: u64 = 2048;

#[test]
fn eight_gpus_cost_two_threads_and_little_memory() {
    let own = std::env::current_exe().unwrap();
    let measured = Command::new(own)
        .args(["--exact", "hardware::footprint::measure", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&measured.stdout);
    assert!(measured.status.success(), "{text}{}", String::from_utf8_lossy(&measured.stderr));
    print!("{text}");
}

#[test]
#[ignore = "run by its neighbour, alone in a process"]
fn measure() {
    let bench = Bench::scanned(Shape::Hgx);
    until("both threads run", || nvml_threads() == 2);
    let before = resident_kib();
    for _ in 0..20 {
        bench.machine();
    }
    let after = resident_kib();
    assert_eq!(nvml_threads(), 2);
    let look = || {
        let before = wake_ups();
        bench.machine();
        wake_ups() - before
    };
    // A busy machine adds to it: the least says what a look takes, once for the machine and once for all GPUs.
    let woken = (0..10).map(|_| look()).min().unwrap();
    println!("a look at eight GPUs wakes the query thread {woken} times");
    assert!(woken <= 4, "{woken}");
    println!("threads of NVML: 2; resident {before} KiB after the first scan, {after} KiB after 20 more");
    assert!(after < before + MAX_GROWTH_KIB);
    drop(bench);
    until("both threads end with the provider", || nvml_threads() == 0);
}

fn nvml_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("nvml-")).count()
}

/// How often the query thread has slept.
fn wake_ups() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let status = |path: &std::path::Path| std::fs::read_to_string(path.join("status")).unwrap_or_default();
    let of_query = tasks.map(|task| status(&task.path())).find(|text| text.starts_with("Name:\tnvml-query"));
    let line =
        of_query.unwrap().lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
    line.unwrap()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
