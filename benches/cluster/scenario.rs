//! One scenario: pods wait, the scheduler gets to lead, and everything until the last pod is bound is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use baton::contract::{DeviceAllocation, key};
use baton::runtime::clock;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;

use crate::daemon::{Daemon, timings};
use crate::pods::{self, Batch, Shape};
use crate::server::{SYSTEM, Server};
use crate::wait::until;
use crate::{agent, bound};

const LONG: Duration = Duration::from_secs(300);
/// The scheduler's Lease.
const LEASE: &str = "baton-scheduler";
/// Linux counts CPU time in hundredths of a second, whatever its own tick is.
const TICKS_PER_SECOND: f64 = 100.0;

/// What is to be done.
#[derive(Clone)]
pub struct Scenario {
    pub name: &'static str,
    /// `--node-lock`.
    pub lock: &'static str,
    pub shape: Shape,
    pub pods: usize,
    /// The only node that the pods may go to.
    pub on: Option<String>,
    /// All or none of so many at a time.
    pub gangs_of: Option<usize>,
    /// So many older pods, in gangs of a hundred, can go nowhere.
    pub infeasible: usize,
}

/// What it cost.
pub struct Figures {
    pub name: &'static str,
    /// From the moment in which the scheduler led.
    pub seconds: f64,
    /// Bound pods per second, from the first to the last.
    pub rate: f64,
    /// The scheduler's user and system time per pod, from when it led.
    pub cpu_ms: f64,
    /// The scheduler's CPU time until its world was complete.
    pub start_seconds: f64,
    pub resident_mib: f64,
    pub peak_mib: f64,
    /// Of the resident memory, pages of the program.
    pub file_mib: f64,
    /// Beside events and Leases; the writer of unlocks included.
    pub writes_per_pod: f64,
    /// Annotations by pod name.
    pub bindings: BTreeMap<String, BTreeMap<String, String>>,
}

impl Scenario {
    /// Runs it and leaves no pod behind.
    pub async fn run(&self, server: &Server) -> Figures {
        let leases: Api<Lease> = Api::namespaced(server.client.clone(), SYSTEM);
        // As long as another process leads, the scheduler watches and does nothing.
        leases.delete(LEASE, &DeleteParams::default()).await.ok();
        let other =
            json!({"metadata": {"name": LEASE}, "spec": {"holderIdentity": "bench", "leaseDurationSeconds": 3600}});
        leases.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
        let never = Batch { name: "never", count: self.infeasible, shape: Shape::Never, on: None, gangs_of: Some(100) };
        pods::create(&server.client, never).await;
        let (shape, on, gangs_of) = (self.shape, self.on.as_deref(), self.gangs_of);
        pods::create(&server.client, Batch { name: "worker", count: self.pods, shape, on, gangs_of }).await;
        let mut scheduler = self.scheduler(server);
        until("the scheduler knows the cluster", LONG, async || {
            scheduler.output().contains("the world is complete").then_some(())
        })
        .await;
        let (heard, served) = mpsc::unbounded_channel();
        let agents = (self.lock == "always").then(|| tokio::spawn(agent::release_locks(server.client.clone(), served)));
        let heard = agents.is_some().then_some(heard);
        let seen = tokio::spawn(bound::all(server.client.clone(), self.pods, heard));
        let before = cpu_seconds(&scheduler);
        let writes_before = server.writes();
        // A Lease that is deleted stays its holder's until it would have expired.
        let free = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        leases.patch(LEASE, &PatchParams::default(), &free).await.unwrap();
        until("the scheduler leads", LONG, async || scheduler.output().contains("leading").then_some(())).await;
        let leading = clock::mono();
        let seen = tokio::time::timeout(LONG, seen).await.expect("all pods are bound in time").unwrap();
        let seconds = (clock::mono() - leading).as_secs_f64().max(seen.span.as_secs_f64());
        if let Some(agents) = agents {
            tokio::time::timeout(LONG, agents).await.expect("all locks go").unwrap();
        }
        let figures = Figures {
            name: self.name,
            seconds,
            rate: (self.pods - 1) as f64 / seen.span.as_secs_f64(),
            cpu_ms: (cpu_seconds(&scheduler) - before) * 1000.0 / self.pods as f64,
            start_seconds: before,
            resident_mib: memory_mib(&scheduler, "VmRSS:"),
            peak_mib: memory_mib(&scheduler, "VmHWM:"),
            file_mib: memory_mib(&scheduler, "RssFile:"),
            writes_per_pod: (server.writes() - writes_before) as f64 / self.pods as f64,
            bindings: seen.annotations,
        };
        scheduler.kill();
        figures.check_no_device_is_overfull();
        pods::delete(&server.client).await;
        figures
    }

    fn scheduler(&self, server: &Server) -> Daemon {
        // The agents' Leases are not renewed here.
        let stale = timings("agent_stale: 1h");
        let words = ["--namespace", SYSTEM, "--listen", "127.0.0.1:0", &stale, "--node-lock", self.lock];
        let mut args: Vec<OsString> = vec!["scheduler".into(), "--kubeconfig".into()];
        args.push(server.kubeconfig.clone().into_os_string());
        args.extend(words.iter().map(OsString::from));
        Daemon::start(args, server.dir.path().join(format!("{}.log", self.name.replace(' ', "-"))))
    }
}

impl Figures {
    /// One line.
    pub fn show(&self) {
        println!(
            "  {:12} {:>9.1} pods/s   {:>7.3} ms CPU per pod   {:>6.1} MiB resident (peak {:.1}, of files {:.1}; start took {:.2} s of CPU)",
            self.name, self.rate, self.cpu_ms, self.resident_mib, self.peak_mib, self.file_mib, self.start_seconds
        );
    }

    fn check_no_device_is_overfull(&self) {
        let mut held: BTreeMap<String, i64> = BTreeMap::new();
        let mut stamps = BTreeSet::new();
        for annotations in self.bindings.values() {
            assert!(stamps.insert(&annotations[key::BIND_TIMESTAMP]), "no two Bindings have one time");
            let allocation = DeviceAllocation::parse(&annotations[key::DEVICE_ALLOCATED]).unwrap();
            for entry in allocation.devices.values().flatten() {
                *held.entry(entry.id.to_string()).or_default() += entry.amount(key::GPU_CORE);
            }
        }
        if let Some((id, percent)) = held.iter().find(|(_, percent)| **percent > 100) {
            panic!("{percent}% of {id} are assigned");
        }
    }
}

/// User and system time of the process so far.
fn cpu_seconds(scheduler: &Daemon) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", scheduler.pid().unwrap())).unwrap();
    // The name in parentheses may hold blanks; the fields after it do not.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

pub fn memory_mib(scheduler: &Daemon, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", scheduler.pid().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
