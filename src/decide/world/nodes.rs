//! The table of nodes: by name, by lock, by what is listed on them, and which of them changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use baton_contract::LockRead;
use baton_contract::image::ImageName;
use baton_contract::inventory::Device;

use super::NodeId;
use super::agent::LeaseSeen;
use super::changes::{Changes, Wake};
use super::dense::Dense;
use super::devices::Stock;
use super::finder::LockedNodes;
use super::journal::Journal;
use super::node::{Images, Node, NodeFacts};
use super::shared::SharedParts;
use super::suspects::{Suspects, Word};

/// Nodes that anything mentions.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes {
    next: u32,
    /// Records of many sizes are boxed: the map's own slots stay small.
    all: Dense<NodeId, Box<Node>>,
    ids: BTreeMap<Box<str>, NodeId>,
    /// Nodes that have a Node object.
    objects: usize,
    images: Images,
    /// Nodes of the ResourceSlices of GPU drivers, by the slice's name.
    slices: BTreeMap<Box<str>, Box<str>>,
    locked: LockedNodes,
    suspects: Suspects,
    /// Nodes that may have no use any more.
    left: Vec<NodeId>,
    /// Nodes with devices of pods that have left before their processes.
    leaving: BTreeSet<NodeId>,
    journal: Journal,
    ages: Ages,
}

/// Before these times no agent grows stale and no cordon ends: a Lease that is renewed only puts its time off.
#[derive(Debug, Clone, Copy, Default)]
struct Ages {
    agents: Duration,
    cordons: Timestamp,
}

impl Ages {
    fn cordon(&mut self, stock: &Stock) {
        self.cordons = stock.next_cordon_end().map_or(self.cordons, |end| self.cordons.min(end));
    }
}

impl Nodes {
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.all.get(id).map(|node| &**node)
    }

    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.all.get_mut(id).map(|node| &mut **node)
    }

    pub fn id(&self, name: &str) -> Option<NodeId> {
        self.ids.get(name).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.all.iter().map(|(id, node)| (id, &**node))
    }

    pub fn objects(&self) -> usize {
        self.objects
    }

    pub fn image(&self, name: ImageName) -> Option<(i64, usize)> {
        self.images.find(name)
    }

    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    pub fn locked(&self) -> &LockedNodes {
        &self.locked
    }

    /// The id of a node, made when it is first mentioned.
    pub fn mention(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = NodeId(self.next);
        self.next += 1;
        self.ids.insert(name.into(), id);
        self.all.insert(id, Box::new(Node::mentioned(name)));
        id
    }

    /// Notes a change of what decisions read of a node.
    pub fn touch(&mut self, id: NodeId) {
        self.journal.note(id, self.all.len());
    }

    /// Notes the lock that stands on a node.
    pub fn note_lock(&mut self, id: NodeId) {
        let read = self.all.get(id).map_or(&LockRead::Free, |node| &node.lock.read);
        self.locked.note(id, read);
    }

    pub fn forget_if_unused(&mut self, id: NodeId) {
        if self.get(id).is_some_and(Node::is_forgotten)
            && let Some(node) = self.all.remove(id)
        {
            self.ids.remove(&node.name);
            self.locked.note(id, &LockRead::Free);
            self.touch(id);
        }
    }

    /// A node whose Node object is gone may have no pod any more. It stays until the next event: its pods may be back by then, as
    /// after a dry run.
    pub fn note_left(&mut self, id: NodeId) {
        if self.get(id).is_some_and(|node| node.facts.is_none()) {
            self.left.push(id);
        }
    }

    /// Forgets the nodes that have no use since [`Nodes::note_left`].
    pub fn forget_left(&mut self) {
        std::mem::take(&mut self.left).into_iter().for_each(|id| self.forget_if_unused(id));
    }

    /// A Node object came or changed. Says whether the node's devices are to be counted again.
    pub fn set_object(&mut self, id: NodeId, facts: NodeFacts, now: Duration, changes: &mut Changes) -> bool {
        let Some(node) = self.all.get_mut(id) else { return false };
        let locked = node.see_lock(LockRead::parse(facts.lock.as_deref()), now);
        changes.wake = node.facts.as_ref().map_or(Wake::NODE_ADDED, |old| facts.wakes(old));
        let rebooted = node.facts.as_ref().is_some_and(|old| old.boot_id != facts.boot_id);
        let freed = rebooted && node.exceptions.restarted(changes);
        let turned = node.facts.as_ref().is_some_and(|old| old.not_ready != facts.not_ready);
        if locked || turned || !changes.wake.is_none() {
            changes.nodes.push(id);
        }
        let listed = node.facts.as_ref().map_or(&[][..], |old| &old.images);
        let pulled = *listed != *facts.images;
        if pulled {
            self.images.leave(listed);
            self.images.enter(&facts.images);
        }
        self.objects += usize::from(node.facts.is_none());
        let offers_others = node.facts.as_ref().is_none_or(|old| {
            let [before, after] = [old, &facts].map(|facts| facts.allocatable.scalar.iter().map(|(name, _)| name));
            !old.allocatable.is_same(&facts.allocatable) && !before.eq(after)
        });
        node.facts = Some(facts);
        if pulled || !changes.wake.is_none() {
            self.touch(id);
        }
        self.note_lock(id);
        // Pods that ask for nothing the node offers hold nothing there.
        offers_others || freed
    }

    /// The Node object is gone.
    pub fn take_object(&mut self, id: NodeId) {
        if let Some(facts) = self.all.get_mut(id).and_then(|node| node.facts.take()) {
            self.images.leave(&facts.images);
            self.objects -= 1;
        }
    }

    /// The Device object of a node came or changed. `true` when it says something new.
    pub fn set_devices(&mut self, id: NodeId, device: &Device, wall: Timestamp, shared: &mut SharedParts) -> bool {
        let Some(node) = self.all.get_mut(id) else { return false };
        let news = match &mut node.stock {
            Some(stock) => stock.update(device, wall),
            none => {
                *none = Some(Stock::new(device, wall));
                true
            }
        };
        if let Some(stock) = &mut node.stock {
            self.ages.cordon(stock);
            if news {
                shared.store_once(stock);
            }
        }
        news
    }

    /// The Lease of a node's agent came or changed. `true` when its liveness or its word did.
    pub fn see_agent(
        &mut self,
        id: NodeId,
        lease: LeaseSeen,
        stale: Duration,
        now: (Duration, Timestamp),
        changes: &mut Changes,
    ) -> bool {
        self.ages.agents = self.ages.agents.min(now.0 + stale);
        self.get_mut(id).is_some_and(|node| node.see_agent(lease, stale, now, changes))
    }

    /// A ResourceSlice is of another node from now on, or of none. Returns the node that it was of.
    pub fn move_slice(&mut self, slice: &str, to: Option<Box<str>>) -> Option<Box<str>> {
        match to {
            Some(node) => self.slices.insert(slice.into(), node),
            None => self.slices.remove(slice),
        }
    }

    /// What the node's Device object says of its machine.
    pub fn suspicion(&self, id: NodeId) -> Word {
        self.get(id).and_then(|node| node.stock.as_ref()).into()
    }

    /// The Device object of a node changed from one that said `before`.
    pub fn suspects_changed(&mut self, id: NodeId, before: Word, changes: &mut Changes) {
        for (id, shun) in self.suspects.changed(id, before, self.suspicion(id)) {
            if !self.get_mut(id).is_some_and(|node| node.shun(shun)) {
                continue;
            }
            changes.nodes.push(id);
            if !shun {
                changes.wake = changes.wake.or(Wake::DEVICES);
            }
            self.touch(id);
        }
    }

    /// `true` when an agent may have grown stale or a cordon may have ended.
    pub fn may_age(&self, now: Duration, wall: Timestamp) -> bool {
        now >= self.ages.agents || wall >= self.ages.cordons
    }

    /// Lets agents grow stale and cordons end. Returns the nodes whose devices are to be counted again.
    pub fn age(
        &mut self,
        stale: Duration,
        (now, wall): (Duration, Timestamp),
        shared: &mut SharedParts,
        changes: &mut Changes,
    ) -> Vec<NodeId> {
        let mut opened = Vec::new();
        self.ages = Ages { agents: Duration::MAX, cordons: Timestamp::MAX };
        for (id, node) in self.all.iter_mut() {
            if let Some(stock) = &mut node.stock {
                if stock.age(wall) {
                    shared.store_once(stock);
                    opened.push(id);
                }
                self.ages.cordon(stock);
            }
            if node.age_agent(stale, now) {
                changes.nodes.push(id);
                changes.silent.push(id);
            }
            if let Some(live) = node.live_until(stale) {
                self.ages.agents = self.ages.agents.min(live);
            }
        }
        opened
    }

    /// A pod has left the node before its processes.
    pub fn note_leaving(&mut self, id: NodeId) {
        self.leaving.insert(id);
    }

    /// The nodes of [`Nodes::note_leaving`], each to be noted again while it holds.
    pub fn take_leaving(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.leaving)
    }
}
