//! One moment on a node for tests: change a field, then call.

use jiff::Timestamp;

use super::testing::{NODE, inventory};
use super::*;
use crate::pod::HandoffPod;
use baton_contract::{LockRead, key};

/// Everything a decision looks at, owned. Live reads find what `live` says, or else the watched pods.
pub(super) struct TestNode {
    pub pods: NodePods,
    pub lock: LockRead,
    pub resources: PodResources,
    pub ledger: Ledger,
    pub inventory: NodeInventory,
    pub live_reads: LiveReads,
    pub watching: bool,
    pub now: Timestamp,
    pub policy: AllocatePolicy,
    /// What the API server holds beyond the watch: applied when asked for.
    pub live: Vec<HandoffPod>,
    pub live_lock: Option<LockRead>,
    pub asked_live: usize,
}

impl TestNode {
    pub fn new(all: &[&HandoffPod]) -> Self {
        Self {
            pods: testing::pods(all),
            lock: LockRead::Free,
            resources: PodResources::Missing,
            ledger: Ledger::default(),
            inventory: inventory(8),
            live_reads: LiveReads::default(),
            watching: true,
            now: testing::LOCKED,
            policy: AllocatePolicy::default(),
            live: all.iter().map(|pod| (*pod).clone()).collect(),
            live_lock: None,
            asked_live: 0,
        }
    }

    pub fn lock(mut self, of: &HandoffPod) -> Self {
        self.lock = testing::lock_of(of);
        self
    }

    pub fn listed(mut self, rows: &[(&str, &str, &str, &[&str])]) -> Self {
        self.resources = PodResources::Listed(testing::listing(rows));
        self
    }

    pub fn context(&self) -> AllocateContext<'_> {
        AllocateContext {
            node: NODE,
            pods: &self.pods,
            lock: &self.lock,
            resources: &self.resources,
            ledger: &self.ledger,
            inventory: &self.inventory,
            live_reads: &self.live_reads,
            watching: self.watching,
            now: self.now,
            policy: &self.policy,
        }
    }

    /// Decides as the agent does: reads live what is asked for, until there is an answer; a grant is recorded.
    pub fn call(&mut self, resource: &str, ids: &[&str]) -> AllocateOutcome {
        self.live_reads = LiveReads::default();
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let call = AllocateCall { resource, count: ids.len() as i64, ids: &ids };
        for _ in 0..5 {
            match decide(&self.context(), &call, None) {
                AllocateOutcome::NeedLive(wanted) => self.read_live(wanted),
                AllocateOutcome::Serve(serving) => {
                    let mut entry = serving.entry.clone();
                    entry.answer = Some(entry.container.as_bytes().to_vec());
                    self.ledger.record(entry);
                    return AllocateOutcome::Serve(serving);
                }
                AllocateOutcome::Repeat { key, how } => {
                    self.ledger.repeat(&key, ids.iter().map(|id| id.as_str().into()).collect());
                    return AllocateOutcome::Repeat { key, how };
                }
                refused @ AllocateOutcome::Refuse(_) => return refused,
            }
        }
        panic!("still asking for live reads: {:?}", self.live_reads);
    }

    fn read_live(&mut self, wanted: LiveReads) {
        self.asked_live += 1;
        for key in &wanted.pods {
            let found = self.live.iter().find(|pod| pod.pod.key == *key).cloned();
            self.pods.apply_live(key, found);
        }
        if let (true, Some(lock)) = (wanted.node, &self.live_lock) {
            self.lock = lock.clone();
        }
        self.live_reads.add(wanted);
    }

    pub fn gpu(&mut self, ids: &[&str]) -> AllocateOutcome {
        self.call(key::NVIDIA_GPU, ids)
    }
}

/// Pod name, container and devices of a grant.
#[track_caller]
pub(super) fn served(outcome: &AllocateOutcome) -> (String, String, Vec<String>) {
    let AllocateOutcome::Serve(serving) = outcome else { panic!("not served: {outcome:?}") };
    let entry = &serving.entry;
    let devices = entry.devices().map(ToString::to_string).collect();
    (entry.pod.key.name.to_string(), entry.container.to_string(), devices)
}

#[track_caller]
pub(super) fn refused(outcome: &AllocateOutcome) -> &AllocateRefusal {
    let AllocateOutcome::Refuse(refusal) = outcome else { panic!("not refused: {outcome:?}") };
    refusal
}
