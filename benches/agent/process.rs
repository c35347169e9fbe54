//! What a process takes, as /proc tells it.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// One running process.
#[derive(Debug, Clone, Copy)]
pub struct Process(pub u32);

impl Process {
    fn read(self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0)).unwrap()
    }

    /// A line of smaps_rollup, in KiB.
    pub fn rollup(self, field: &str) -> u64 {
        kib(self.read("smaps_rollup").lines().find(|line| line.starts_with(&format!("{field}:"))).unwrap())
    }

    /// A line of status, as its first number.
    pub fn status(self, field: &str) -> u64 {
        kib(self.read("status").lines().find(|line| line.starts_with(&format!("{field}:"))).unwrap())
    }

    /// Resident and private dirty KiB of the mappings of files whose path holds `name`.
    pub fn mapped(self, name: &str) -> (u64, u64) {
        let (mut inside, mut sums) = (false, (0, 0));
        for line in self.read("smaps").lines() {
            match line.split_whitespace().next().unwrap_or_default() {
                "Rss:" if inside => sums.0 += kib(line),
                "Private_Dirty:" if inside => sums.1 += kib(line),
                word if !word.ends_with(':') => inside = line.contains(name),
                _ => {}
            }
        }
        sums
    }

    /// The binary that runs, and its size in bytes.
    pub fn binary(self) -> (PathBuf, u64) {
        let path = std::fs::read_link(format!("/proc/{}/exe", self.0)).unwrap();
        let bytes = std::fs::metadata(&path).unwrap().len();
        (path, bytes)
    }

    /// How often each thread has slept and been woken up so far, by thread id.
    pub fn wake_ups(self) -> BTreeMap<u32, (String, u64)> {
        let mut threads = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.0)).unwrap().flatten() {
            let id: u32 = entry.file_name().to_string_lossy().parse().unwrap();
            // A thread may end between the two reads.
            let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
            let line =
                |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().trim();
            let count = line("voluntary_ctxt_switches:").parse().unwrap_or(0);
            threads.insert(id, (line("Name:").to_owned(), count));
        }
        threads
    }

    /// Seconds of processor time so far, in user mode and in the kernel.
    pub fn cpu_seconds(self) -> (f64, f64) {
        let stat = self.read("stat");
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // Hundredths of a second on every Linux that Kubernetes runs on.
        let seconds = |at: usize| fields[at].parse::<f64>().unwrap() / 100.0;
        (seconds(11), seconds(12))
    }
}

fn kib(line: &str) -> u64 {
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
