//! Nodes whose daemon calls them suspect, and on how many of them that is heeded.
//!
//! Where many nodes fail pods at one time the fault is hardly theirs (a bad driver everywhere, a bad image), and a cluster without
//! nodes would serve nobody's pods: the word of the earliest 30 % counts, of the others it is an alert.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::NodeId;
use super::event::{Changes, Wake};
use super::state::World;

/// Percent of the nodes with devices that may be out at one time.
const MOST_PERCENT: usize = 30;

/// The suspect nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Suspects {
    /// By the time since when.
    known: BTreeSet<(Timestamp, NodeId)>,
    /// Nodes with a Device object.
    stocks: usize,
}

/// A node's daemon says that its machine fails pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Since when.
    pub since: Timestamp,
    /// Why, and until when; for people.
    pub message: Box<str>,
}

impl World {
    /// Since when the node's Device object calls it suspect; the outer `None` where there is no object.
    pub(super) fn suspicion(&self, node: &str) -> Option<Option<Timestamp>> {
        let stock = self.nodes.get(self.node_id(node)?)?.stock.as_ref()?;
        Some(stock.suspect().map(|suspect| suspect.since))
    }

    /// The Device object of a node changed from one that said `before`, or that did not exist (`None`).
    pub(super) fn suspects_changed(&mut self, id: NodeId, before: Option<Option<Timestamp>>, changes: &mut Changes) {
        let name = self.nodes.get(id).map(|node| node.name.clone());
        let now = name.and_then(|name| self.suspicion(&name));
        let Suspects { known, stocks } = &mut self.suspects;
        *stocks = *stocks + usize::from(now.is_some()) - usize::from(before.is_some());
        before.flatten().map(|since| known.remove(&(since, id)));
        now.flatten().map(|since| known.insert((since, id)));
        let most = *stocks * MOST_PERCENT / 100;
        let heeded: Vec<(NodeId, bool)> = known.iter().enumerate().map(|(rank, (_, id))| (*id, rank < most)).collect();
        let gone = before.flatten().filter(|_| now.flatten().is_none()).map(|_| (id, false));
        for (id, heed) in heeded.into_iter().chain(gone) {
            let Some(node) = self.nodes.get_mut(id).filter(|node| node.shunned != heed) else { continue };
            node.shunned = heed;
            changes.nodes.push(id);
            if !heed {
                changes.wake = changes.wake.or(Wake::DEVICES);
            }
            self.touch(id);
        }
    }
}
