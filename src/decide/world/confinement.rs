//! The nodes that the pods of a gathered group may use.

use super::NodeId;
use super::node::Node;

/// The nodes that the pods of a group may use: those with certain labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    labels: Vec<Box<str>>,
    /// Those of one domain; `None` for any.
    values: Option<Vec<Box<str>>>,
    /// The nodes, where they were looked up; their labels decide all the same.
    nodes: Vec<NodeId>,
}

/// A domain, and two sums over its nodes.
pub type MeasuredDomain = (Confinement, (i64, i64));

impl Confinement {
    /// To nodes that have all `labels`: with these values, if any, and among `nodes` where they were looked up.
    pub fn new(labels: Vec<Box<str>>, values: Option<Vec<Box<str>>>, nodes: Vec<NodeId>) -> Self {
        Self { labels, values, nodes }
    }

    /// The values of its labels; `None` for any.
    pub fn values(&self) -> Option<&Vec<Box<str>>> {
        self.values.as_ref()
    }

    /// The nodes, where they were looked up.
    pub fn looked_up(&self) -> &[NodeId] {
        &self.nodes
    }

    /// A node that the pods may use.
    pub fn has(&self, node: &Node) -> bool {
        let value = |label: &str| node.facts.as_ref().and_then(|facts| facts.domain(label));
        match &self.values {
            Some(values) => {
                self.labels.iter().zip(values).all(|(label, wanted)| value(label).is_some_and(|is| *is == **wanted))
            }
            None => self.labels.iter().all(|label| value(label).is_some()),
        }
    }

    /// `example.com/rack=r7`.
    pub fn name(&self) -> String {
        let Some(values) = &self.values else { return format!("the nodes with {}", self.labels.join(" and ")) };
        let pairs = self.labels.iter().zip(values).map(|(label, value)| format!("{label}={value}"));
        pairs.collect::<Vec<_>>().join(", ")
    }
}
