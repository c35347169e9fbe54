//! The cluster as pages see it: objects as they come, and the rows made of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::ask::Report;
use super::feed::RowFeed;
use super::rows;
use crate::view::{Follower, JobRow, NodesView, Rules, Snapshot, job_rows, name_of};
use baton_cluster::node::LightNode;
use baton_contract::LockRead;
use baton_decide::explain::QueueReport;
use baton_decide::lock::LockAge;
use baton_runtime::clock;

/// Changes are published together.
const TOGETHER: Duration = Duration::from_millis(250);
/// Ticks within which every node is looked at again: some things change with time alone.
const ROUND: usize = 40;
/// Released locks whose times are kept.
const LOCKS: usize = 1000;
/// A kind of objects that has not been read yet.
const READING: &str = "is being read";

/// Something to be answered from the objects.
pub type ModelQuestion = Box<dyn FnOnce(&Model) + Send>;

/// Objects, and what the scheduler says.
pub struct Model {
    /// The objects.
    pub snapshot: Snapshot,
    /// Settings of the daemons.
    pub rules: Rules,
    /// What the scheduler said last.
    pub report: Arc<Report>,
    feed: Arc<RowFeed>,
    /// For how many milliseconds each of the last locks stood that were released.
    held: VecDeque<u64>,
    ticks: usize,
    /// Nodes that are locked: their rows change with time, and every tick makes them again.
    locked: BTreeSet<String>,
    /// When the scheduler answered last.
    heard: Option<Timestamp>,
    /// The node that was looked at last for the time alone.
    last: String,
}

impl Model {
    /// Nothing is read yet.
    pub fn new(rules: Rules, feed: Arc<RowFeed>) -> Self {
        let mut snapshot = Snapshot::default();
        let kinds = ["nodes", "devices", "pods", "leases", "tyjobs"];
        snapshot.unread.extend(kinds.map(|kind| (kind.to_owned(), READING.to_owned())));
        Self {
            snapshot,
            rules,
            report: Arc::default(),
            feed,
            held: VecDeque::new(),
            ticks: 0,
            locked: BTreeSet::new(),
            heard: None,
            last: String::new(),
        }
    }

    /// Follows the cluster, publishes rows and answers questions, for ever.
    pub async fn run(
        mut self,
        mut follower: Follower,
        mut reports: watch::Receiver<Arc<Report>>,
        mut questions: mpsc::Receiver<ModelQuestion>,
    ) {
        let mut tick = tokio::time::interval(TOGETHER);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => self.publish(),
                Some(question) = questions.recv() => question(&self),
                Ok(()) = reports.changed() => {
                    let report = reports.borrow_and_update().clone();
                    self.hear(report);
                }
                () = follower.step(&mut self.snapshot) => {}
            }
        }
    }

    /// What the scheduler says now.
    fn hear(&mut self, report: Arc<Report>) {
        self.snapshot.wall = clock::wall();
        let before = std::mem::replace(&mut self.report, report);
        let report = &self.report;
        let (was, is) = (&before.queue, &report.queue);
        if was.closed != is.closed || was.unheeded != is.unheeded || was.reserved != is.reserved {
            let of = |queue: &QueueReport| -> Vec<String> {
                let (closed, reserved) = (queue.closed.iter(), queue.reserved.iter());
                let named = closed.map(|of| &of.node).chain(reserved.map(|of| &of.node));
                named.chain(&queue.unheeded).cloned().collect()
            };
            self.snapshot.changed.extend(of(was).into_iter().chain(of(is)));
        }
        if report.problem.is_none() {
            self.heard = Some(self.snapshot.wall);
            self.feed.put_table("queue", rows::queue(&report.queue.items, &report.gangs, &self.snapshot));
            self.feed.put_table("gangs", report.gangs.iter().map(|gang| rows::gang(gang, &self.snapshot)));
        }
    }

    /// What is wrong, by kind of object; of the scheduler also since when nothing is heard.
    fn problems(&self) -> Vec<(String, Value)> {
        let unread = self.snapshot.unread.iter().map(|(kind, why)| (kind.clone(), json!({ "why": why })));
        let server = self.report.no_server.iter().map(|why| ("API server".to_owned(), json!({ "why": why })));
        let heard = self.heard.map(Timestamp::as_second);
        let silent = |why| rows::row(&json!({"why": why, "heardAt": heard}), self.snapshot.wall);
        let scheduler = self.report.problem.iter().map(|why| ("scheduler".to_owned(), silent(why)));
        unread.chain(server).chain(scheduler).collect()
    }

    /// Makes rows of what changed, and publishes them.
    fn publish(&mut self) {
        let wall = clock::wall();
        self.snapshot.wall = wall;
        self.ticks += 1;
        self.feed.put_table("problems", self.problems());
        let theirs = Some(&self.report.queue.version).filter(|version| !version.is_empty());
        let scheduler =
            json!({"leader": self.report.leader, "scheduler": theirs, "version": env!("CARGO_PKG_VERSION")});
        self.feed.put("about", "scheduler", Some(rows::row(&scheduler, wall)));
        // Pods that are not read yet would leave their GPUs free.
        if !self.snapshot.unread.values().any(|why| why == READING) {
            self.locks();
            self.nodes();
            if self.ticks.is_multiple_of(4) {
                let jobs = job_rows(&self.snapshot, None);
                let job = |job: &JobRow| (format!("{}/{}", job.namespace, job.name), rows::row(job, wall));
                self.feed.put_table("jobs", jobs.iter().map(job));
            }
        }
        self.feed.publish(wall);
    }

    /// Notes for how long the locks stood that were released.
    fn locks(&mut self) {
        let key = &self.rules.lock_key;
        let lock = |node: &LightNode| node.metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        let mut later: BTreeMap<String, Option<String>> = BTreeMap::new();
        let before = self.held.len();
        for (node, at) in std::mem::take(&mut self.snapshot.replaced).into_iter().rev() {
            let (name, was) = (name_of(&node), lock(&node));
            let now = later.get(name).cloned().unwrap_or_else(|| self.snapshot.node(name).and_then(lock));
            if was != now
                && let LockRead::Held { value, .. } = LockRead::parse(was.as_deref())
                && let Some(age) = LockAge::of(&value, at).known()
            {
                self.held.push_back(age.as_millis().try_into().unwrap_or(u64::MAX));
            }
            later.insert(name.to_owned(), was);
        }
        if self.held.len() == before {
            return;
        }
        self.held.drain(..self.held.len().saturating_sub(LOCKS));
        let mut held: Vec<u64> = self.held.iter().copied().collect();
        held.sort_unstable();
        let of = |percent: usize| held[(held.len() - 1) * percent / 100];
        self.feed.put("about", "locks", Some(json!({"released": held.len(), "p50": of(50), "p99": of(99)})));
    }

    /// Rows of the nodes that changed, and of some that may have changed with time.
    fn nodes(&mut self) {
        let mut changed = std::mem::take(&mut self.snapshot.changed);
        let after = (Bound::Excluded(self.last.clone()), Bound::Unbounded);
        let turn = self.snapshot.nodes.len().div_ceil(ROUND);
        let turn: Vec<String> = self.snapshot.nodes.range(after).take(turn).map(|(name, _)| name.clone()).collect();
        self.last = turn.last().cloned().unwrap_or_default();
        changed.extend(turn);
        changed.append(&mut self.locked);
        if changed.is_empty() {
            return;
        }
        let part = self.snapshot.part(&changed, &self.rules.lock_key);
        let said = self.said(&changed);
        let view = NodesView::of(&part, &self.rules, &said);
        let mut gone = changed;
        for row in &view.nodes {
            self.feed.put("nodes", &row.name, Some(rows::node(row, view.devices_of(&row.name), part.wall)));
            self.feed.put("locks", &row.name, row.lock.as_ref().map(|lock| rows::row(lock, part.wall)));
            self.locked.extend(row.lock.as_ref().map(|lock| lock.node.clone()));
            gone.remove(&row.name);
        }
        for node in gone {
            self.feed.put("nodes", &node, None);
            self.feed.put("locks", &node, None);
        }
    }

    /// What the scheduler says of these nodes.
    pub fn said(&self, nodes: &BTreeSet<String>) -> QueueReport {
        let QueueReport { closed, unheeded, reserved, locks, .. } = &self.report.queue;
        QueueReport {
            closed: closed.iter().filter(|closed| nodes.contains(&closed.node)).cloned().collect(),
            unheeded: unheeded & nodes,
            reserved: reserved.iter().filter(|reserved| nodes.contains(&reserved.node)).cloned().collect(),
            locks: locks.iter().filter(|lock| nodes.contains(&lock.node)).cloned().collect(),
            ..QueueReport::default()
        }
    }
}
