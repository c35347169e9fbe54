//! A set of nodes of which the oldest is at hand.

use crate::decide::world::NodeId;

/// Nodes as bits of words, by number; words without bits are left out, so that few nodes cost little.
#[derive(Debug, Clone, Default)]
pub(in crate::decide) struct NodeSet(Vec<(u32, u64)>);

impl NodeSet {
    /// Enters a node.
    pub fn insert(&mut self, node: NodeId) {
        let (word, bit) = place(node);
        match self.at(word) {
            Ok(at) => self.0[at].1 |= bit,
            Err(at) => self.0.insert(at, (word, bit)),
        }
    }

    /// Takes a node out, if it is there.
    pub fn remove(&mut self, node: NodeId) {
        let (word, bit) = place(node);
        if let Ok(at) = self.at(word) {
            self.0[at].1 &= !bit;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
        }
    }

    /// The oldest node.
    pub fn first(&self) -> Option<NodeId> {
        self.0.first().map(|(word, bits)| NodeId(word * u64::BITS + bits.trailing_zeros()))
    }

    /// `true` without nodes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn at(&self, word: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&word, |(word, _)| *word)
    }
}

fn place(node: NodeId) -> (u32, u64) {
    (node.0 / u64::BITS, 1 << (node.0 % u64::BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_says_what_an_ordered_set_says(steps in proptest::collection::vec((0u32..300, any::<bool>()), 0..200)) {
            let (mut nodes, mut ordered) = (NodeSet::default(), BTreeSet::new());
            for (id, enters) in steps {
                if enters {
                    nodes.insert(NodeId(id));
                    ordered.insert(NodeId(id));
                } else {
                    nodes.remove(NodeId(id));
                    ordered.remove(&NodeId(id));
                }
                prop_assert_eq!((nodes.first(), nodes.is_empty()), (ordered.first().copied(), ordered.is_empty()));
            }
        }
    }
}
