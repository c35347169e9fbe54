//! Nodes whose daemon calls them suspect, and on how many of them that is ranked.
//!
//! Where many nodes fail pods at one time the fault is hardly theirs (a bad driver everywhere, a bad image), and a cluster without
//! nodes would serve no pod: the word of the earliest 30 % counts, of the others it is an alert.

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

/// What a node's Device object says of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Word {
    /// There is such an object.
    exists: bool,
    /// Since when it calls the node suspect.
    since: Option<Timestamp>,
}

impl World {
    /// What the node's Device object says now.
    pub(super) fn suspicion(&self, node: &str) -> Word {
        self.node_id(node).map_or_else(Word::default, |id| self.word(id))
    }

    fn word(&self, id: NodeId) -> Word {
        let stock = self.nodes.get(id).and_then(|node| node.stock.as_ref());
        Word { exists: stock.is_some(), since: stock.and_then(|stock| Some(stock.suspect()?.since)) }
    }

    /// The Device object of a node changed from one that said `before`.
    pub(super) fn suspects_changed(&mut self, id: NodeId, before: Word, changes: &mut Changes) {
        let now = self.word(id);
        let Suspects { known, stocks } = &mut self.suspects;
        *stocks = *stocks + usize::from(now.exists) - usize::from(before.exists);
        before.since.map(|since| known.remove(&(since, id)));
        now.since.map(|since| known.insert((since, id)));
        let most = *stocks * MOST_PERCENT / 100;
        let ranked: Vec<(NodeId, bool)> = known.iter().enumerate().map(|(rank, (_, id))| (*id, rank < most)).collect();
        let gone = before.since.filter(|_| now.since.is_none()).map(|_| (id, false));
        for (id, shun) in ranked.into_iter().chain(gone) {
            let Some(node) = self.nodes.get_mut(id).filter(|node| node.shunned != shun) else { continue };
            node.shunned = shun;
            changes.nodes.push(id);
            if !shun {
                changes.wake = changes.wake.or(Wake::DEVICES);
            }
            self.touch(id);
        }
    }
}
