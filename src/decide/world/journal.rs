//! Which nodes changed, in order, so that a reader that keeps something per node catches up instead of looking at every node.

use std::collections::VecDeque;

use super::NodeId;

/// Changes that are remembered at least; beyond, two per node are.
const LEAST: usize = 1024;

/// The latest changes of what decisions read of a node: its object, agent, devices, and what pods take of it. The lock and a
/// Lease that was merely renewed are no such change.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    changed: VecDeque<NodeId>,
    /// Number of changes that are forgotten.
    forgotten: u64,
}

impl Journal {
    pub(super) fn note(&mut self, node: NodeId, nodes: usize) {
        while self.changed.len() >= LEAST.max(nodes * 2) {
            self.changed.pop_front();
            self.forgotten += 1;
        }
        self.changed.push_back(node);
    }

    /// Number of changes so far: a reader that has seen everything keeps it as its mark.
    pub fn mark(&self) -> u64 {
        self.forgotten + self.changed.len() as u64
    }

    /// Nodes that changed after `mark`, oldest change first, a node once per change; some may be gone by now. `None` when that
    /// is so long ago that looking at every node costs no more.
    pub fn since(&self, mark: u64) -> Option<impl Iterator<Item = NodeId> + '_> {
        let from = usize::try_from(mark.checked_sub(self.forgotten)?).ok()?;
        (from <= self.changed.len()).then(|| self.changed.range(from..).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_hears_of_every_change_after_its_mark_or_that_it_is_too_late() {
        let mut journal = Journal::default();
        journal.note(NodeId(1), 1);
        let mark = journal.mark();
        journal.note(NodeId(2), 1);
        journal.note(NodeId(1), 1);
        let heard = |journal: &Journal, mark| journal.since(mark).map(Iterator::collect::<Vec<_>>);
        assert_eq!(heard(&journal, mark), Some(vec![NodeId(2), NodeId(1)]));
        assert_eq!(heard(&journal, journal.mark()), Some(vec![]));
        for _ in 0..LEAST {
            journal.note(NodeId(3), 1);
        }
        assert_eq!(heard(&journal, mark), None);
        assert_eq!(heard(&journal, journal.mark() + 1), None);
    }
}
