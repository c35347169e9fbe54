//! Nodes whose daemon calls them suspect, and on how many of them that is ranked.
//!
//! Where many nodes fail pods at one time the fault is hardly theirs (a bad driver everywhere, a bad image), and a cluster without
//! nodes would serve no pod: the word of the earliest 30 % counts, of the others it is an alert.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::NodeId;
use super::devices::Stock;

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

/// What a node's Device object says of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Word {
    /// There is such an object.
    exists: bool,
    /// Since when it calls the node suspect.
    since: Option<Timestamp>,
}

impl From<Option<&Stock>> for Word {
    fn from(stock: Option<&Stock>) -> Self {
        Self { exists: stock.is_some(), since: stock.and_then(|stock| Some(stock.suspect()?.since)) }
    }
}

impl Suspects {
    /// A node's Device object said `before` and says `now`. Returns every node whose rank may have changed, and whether its daemon's
    /// word counts.
    pub fn changed(&mut self, id: NodeId, before: Word, now: Word) -> Vec<(NodeId, bool)> {
        let Self { known, stocks } = self;
        *stocks = *stocks + usize::from(now.exists) - usize::from(before.exists);
        before.since.map(|since| known.remove(&(since, id)));
        now.since.map(|since| known.insert((since, id)));
        let most = *stocks * MOST_PERCENT / 100;
        let ranked = known.iter().enumerate().map(|(rank, (_, id))| (*id, rank < most));
        let gone = before.since.filter(|_| now.since.is_none()).map(|_| (id, false));
        ranked.chain(gone).collect()
    }
}
