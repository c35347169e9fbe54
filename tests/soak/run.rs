//! One run: the cluster, the stream of pods, the chaos and the checks, in one loop.

use std::ops::Range;
use std::time::Duration;

use baton::contract::key;
use baton::runtime::clock;

use crate::audit::Audit;
use crate::chaos::Chaos;
use crate::harness::daemon::Daemon;
use crate::harness::pods::pod;
use crate::harness::{LOCK_GONE, QUICK_LEASE, TestCluster, timings};
use crate::load::Load;
use crate::skip::skipped;
use crate::vitals::Vitals;

/// What is held to be flat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// A short run: processes still grow into their size.
    Descriptors,
    /// A long run.
    MemoryAndDescriptors,
}

/// One run's size.
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    /// Pods that must run to their end.
    pub pods: u64,
    pub at_once: usize,
    /// How long pods run, in the kubelets' seconds (a twentieth of real ones).
    pub run_seconds: Range<u32>,
    pub kill_every: Duration,
    /// At least so many kills, and then none; 0 kills as long as the run lasts.
    pub kills: u64,
    pub kubelet_restarts: u64,
    pub blackouts: u64,
    pub flat: Strictness,
}

/// Waiting times short enough that what waits for them ends within the run; no rule is switched off.
const TIMES: &str = "agent_settled: 5s, lock_abandoned: 12s, lock_sweep: 2s";
const EXPIRY: &str = "--node-lock-expiry=15s";
/// No lock stands longer: expiry, agent settled, the holder's end, a new leader and a blackout, one after the other.
const LOCK_BOUND: Duration = Duration::from_secs(60);
/// Descriptors of a scheduler that leads: its watches, and the connections of its writes.
const LEADING: u64 = 45;
/// API group of the Device objects.
const DEVICES: &str = "scheduling.koordinator.sh";
/// The longest that nothing may come to its end.
const STUCK: Duration = Duration::from_secs(90);

/// Runs `plan`; panics at the first broken promise.
pub async fn soak(plan: Plan) {
    println!("soak: seed {} ({} pods on {} nodes)", plan.seed, plan.pods, plan.nodes);
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let scheduler = [&*timings(&format!("{QUICK_LEASE}, {TIMES}")), EXPIRY];
    let mut cluster = TestCluster::with_args(plan.nodes, &[], &scheduler).await;
    if cluster.control_plane.simulated().is_none() {
        return skipped("a real API server is not taken away");
    }
    let mut spare = cluster.spare_scheduler(&scheduler).await;
    let mut load = Load::new(cluster.client.clone(), random.fork(), plan.run_seconds.clone(), plan.at_once);
    let began = clock::mono();
    let mut chaos = Chaos::new(random.fork(), &plan, began);
    let (mut audit, mut vitals) = (Audit::default(), Vitals::default());
    let (mut ended, mut ended_at, mut sampled_at) = (0, began, began);
    loop {
        let now = clock::mono();
        let views: Vec<_> = cluster.nodes.iter().map(|node| (node.name.clone(), node.kubelet.view())).collect();
        let server = cluster.control_plane.simulated().expect("simulated");
        let devices = server.objects(DEVICES, "devices");
        let (pods, nodes) = (server.objects("", "pods"), server.objects("", "nodes"));
        audit.look(&views, &pods, &nodes, now);
        if let Some((node, value, age)) = audit.lost_lock(LOCK_BOUND, now) {
            panic!("LOST LOCK: {value} on {node} for {age:?} (seed {})", plan.seed);
        }
        let progress = load.served as f64 / plan.pods as f64;
        chaos.darken(server, progress, now);
        let more = load.served < plan.pods || !chaos.is_over();
        if !chaos.is_dark() {
            load.step(&pods, more, now).await;
        }
        if !more && load.outstanding() == 0 {
            break;
        }
        chaos.kill(&mut cluster.nodes, [&mut cluster.scheduler, &mut spare], now);
        chaos.restart_kubelet(&cluster.nodes, progress).await;
        if now >= sampled_at + Duration::from_secs(1) {
            sampled_at = now;
            audit.judge(&nodes, &devices, &pods, LOCK_BOUND);
            for (at, node) in cluster.nodes.iter().enumerate() {
                let role = if at == 0 { "agent (never killed)" } else { "agents" };
                node.agent.pid().into_iter().for_each(|pid| vitals.sample(role, pid, now));
            }
            [&cluster.scheduler, &spare].map(Daemon::pid).into_iter().flatten().for_each(|pid| {
                vitals.sample("schedulers", pid, now);
            });
        }
        let count = load.served + load.failed.values().sum::<u64>() + load.deleted;
        if count > ended {
            (ended, ended_at) = (count, now);
        }
        assert!(now < ended_at + STUCK, "nothing ended for {STUCK:?} (seed {}): {:?}", plan.seed, pods.first());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.until_unlocked(LOCK_GONE).await;
    assert!(load.is_complete(), "every pod is accounted for");
    let took = clock::mono() - began;
    whole_nodes_are_free(&cluster).await;
    let done = chaos.done;
    println!(
        "soak: seed {}: {} pods served in {took:.0?}; failed {:?}, deleted {}",
        plan.seed, load.served, load.failed, load.deleted
    );
    println!(
        "soak: kill -9: {} agents, {} schedulers; {} kubelet restarts, {} API blackouts",
        done.agent_kills, done.scheduler_kills, done.kubelet_restarts, done.blackouts
    );
    println!(
        "soak: 0 double assignments in {} looks ({} devices compared, {} pods with other kubelet ids), nothing broken in {} audits, 0 lost locks of {} seen, longest {:.1?}",
        audit.looks,
        audit.answers,
        audit.renamed.len(),
        audit.judged,
        audit.locks_seen,
        audit.longest_lock
    );
    for (reason, message) in &load.messages {
        println!("soak: failed {reason}, for example: {message}");
    }
    for (role, drift) in vitals.drift() {
        println!(
            "soak: {role}: {} → {} KiB resident, {} → {} descriptors (first → last third)",
            drift.first_kib, drift.last_kib, drift.first_descriptors, drift.last_descriptors
        );
        // Who leads has more connections than who stands by, and a short run may see only the latter at its start.
        let most = drift.first_descriptors.max(LEADING) + 12;
        assert!(drift.last_descriptors <= most, "{role} leaks descriptors: {drift:?}");
        if plan.flat == Strictness::MemoryAndDescriptors {
            assert!(drift.last_kib <= drift.first_kib * 11 / 10 + 3 * 1024, "{role} grows: {drift:?}");
        }
    }
}

/// Free + assigned = inventory: with nothing left, one pod per node gets all its GPUs.
async fn whole_nodes_are_free(cluster: &TestCluster) {
    cluster.until_agent_is_ready().await;
    for node in &cluster.nodes {
        cluster.create(&pod(&format!("all-of-{}", node.name)).app("main", &[(key::NVIDIA_GPU, "8")])).await;
    }
    for node in &cluster.nodes {
        cluster.until_running(&format!("all-of-{}", node.name)).await;
    }
    cluster.check_no_device_twice().await;
    cluster.until_unlocked(LOCK_GONE).await;
}
