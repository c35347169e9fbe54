//! Memory and file descriptors of the daemons, sampled from /proc.

use std::collections::BTreeMap;
use std::time::Duration;

/// One look at one process.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    kib: u64,
    descriptors: u64,
}

/// What is too young to be compared: it still starts.
const YOUNG: Duration = Duration::from_secs(3);

/// Samples by role; processes that follow each other after a kill share a role.
#[derive(Default)]
pub struct Vitals {
    samples: BTreeMap<String, Vec<Sample>>,
    since: BTreeMap<u32, Duration>,
}

/// Means of memory and peaks of descriptors in the first and the last third of the run.
#[derive(Debug, Clone, Copy)]
pub struct Drift {
    pub first_kib: u64,
    pub last_kib: u64,
    pub first_descriptors: u64,
    pub last_descriptors: u64,
}

impl Vitals {
    /// Looks at process `pid`, which plays `role`.
    pub fn sample(&mut self, role: &str, pid: u32, now: Duration) {
        let since = *self.since.entry(pid).or_insert(now);
        if now < since + YOUNG {
            return;
        }
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return };
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let Some(kib) = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok()) else { return };
        let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return };
        let sample = Sample { at: now, kib, descriptors: open.count() as u64 };
        self.samples.entry(role.to_owned()).or_default().push(sample);
    }

    /// How each role changed between the first and the last third of its samples' time.
    pub fn drift(&self) -> BTreeMap<String, Drift> {
        let of = |samples: &Vec<Sample>| {
            let (start, end) = (samples.first()?.at, samples.last()?.at);
            let third = (end - start) / 3;
            let part = |from: Duration, to: Duration| -> Option<(u64, u64)> {
                let part: Vec<&Sample> = samples.iter().filter(|s| s.at >= from && s.at <= to).collect();
                let mean = part.iter().map(|s| s.kib).sum::<u64>().checked_div(part.len() as u64)?;
                Some((mean, part.iter().map(|s| s.descriptors).max()?))
            };
            let (first_kib, first_descriptors) = part(start, start + third)?;
            let (last_kib, last_descriptors) = part(end - third, end)?;
            Some(Drift { first_kib, last_kib, first_descriptors, last_descriptors })
        };
        self.samples.iter().filter_map(|(role, samples)| Some((role.clone(), of(samples)?))).collect()
    }
}
