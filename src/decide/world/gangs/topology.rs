//! The layers in which a group of gangs is gathered.

use super::book::GangBook;
use super::config::GroupId;
use crate::world::spec::HOSTNAME;
use baton_contract::gang::{CLUSTER_LAYER, NODE_LAYER, TopologyLayer, TopologySpec};

/// Labels that a group prefers; further ones, the inner ones, do not count.
const MOST_PREFERRED: usize = 16;

/// The labels of the layers in which a group is gathered, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupTopology {
    /// All members are in one domain of each.
    pub required: Vec<Box<str>>,
    /// The same where it is possible; without those that are required.
    pub preferred: Vec<Box<str>>,
}

impl GroupTopology {
    /// The labels to gather in, the most that is asked for first; what is preferred is given up from the innermost layer on.
    pub fn levels(&self) -> impl Iterator<Item = Vec<Box<str>>> + '_ {
        let level = |kept: usize| [&self.required[..], &self.preferred[..kept]].concat();
        (0..=self.preferred.len()).rev().map(level).filter(|labels| !labels.is_empty())
    }
}

impl GangBook {
    /// What the gangs of a group ask for together; `None` for most.
    pub fn topology_of(&self, group: &GroupId) -> Option<GroupTopology> {
        if !self.gathers() {
            return None;
        }
        self.layers_asked(self.listing(group).filter_map(|gang| gang.topology()).map(|spec| &**spec))
    }

    /// What these ask for together, as labels.
    pub fn layers_asked<'a>(&self, specs: impl IntoIterator<Item = &'a TopologySpec>) -> Option<GroupTopology> {
        let mut asked = GroupTopology::default();
        for spec in specs {
            asked.required.extend(spec.required.iter().cloned());
            asked.preferred.extend(spec.preferred.iter().cloned());
        }
        let layers = &self.defaults().layers;
        for list in [&mut asked.required, &mut asked.preferred] {
            list.retain(|layer| **layer != *CLUSTER_LAYER);
            for layer in &mut *list {
                let is_label = |known: &TopologyLayer| known.label.split(',').any(|label| *label == **layer);
                let known = layers.iter().find(|known| known.name == *layer || is_label(known));
                match known {
                    Some(known) => layer.clone_from(&known.label),
                    None if **layer == *NODE_LAYER => *layer = HOSTNAME.into(),
                    None => {}
                }
            }
            // A label that is no layer of the cluster counts as an inner one, a node as the innermost.
            let depth = |label: &str| {
                let at = layers.iter().position(|known| *known.label == *label);
                (label == HOSTNAME, at.unwrap_or(usize::MAX))
            };
            list.sort_by(|a, b| depth(a).cmp(&depth(b)).then_with(|| a.cmp(b)));
            list.dedup();
        }
        asked.preferred.retain(|label| !asked.required.contains(label));
        // Each is one more level that is tried, and a group may have many gangs.
        asked.preferred.truncate(MOST_PREFERRED);
        (!asked.required.is_empty() || !asked.preferred.is_empty()).then_some(asked)
    }
}
