//! The nodes that the pods of a gathered group may use.

use super::NodeId;
use super::node::Node;

/// The nodes that the pods of a group may use: those with certain labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    pub(super) labels: Vec<Box<str>>,
    /// Those of one domain; `None` for any.
    pub(super) values: Option<Vec<Box<str>>>,
    /// The nodes, where they were looked up; their labels decide all the same.
    pub(super) nodes: Vec<NodeId>,
}

impl Confinement {
    /// A node that the pods may use.
    pub fn has(&self, node: &Node) -> bool {
        let value = |label: &str| node.facts.as_ref().and_then(|facts| facts.labels.get(label));
        match &self.values {
            Some(values) => {
                self.labels.iter().zip(values).all(|(label, wanted)| value(label).is_some_and(|is| **is == **wanted))
            }
            None => self.labels.iter().all(|label| value(label).is_some()),
        }
    }

    /// Its nodes were looked up once: it is one of a group in hand.
    pub fn is_looked_up(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// `example.com/rack=r7`.
    pub fn name(&self) -> String {
        let Some(values) = &self.values else { return format!("the nodes with {}", self.labels.join(" and ")) };
        let pairs = self.labels.iter().zip(values).map(|(label, value)| format!("{label}={value}"));
        pairs.collect::<Vec<_>>().join(", ")
    }
}
