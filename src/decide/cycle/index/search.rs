//! The search over kept verdicts.

use crate::decide::cycle::choose::{Choice, judge, prepare, scan};
use crate::decide::framework::{Plugins, Reads, Slots, View};
use crate::decide::world::{NodeId, Pod};

use super::shape::PodShape;
use super::table::Table;

/// Verdicts of the shapes that were asked for lately. It belongs to one world and one set of plugins.
#[derive(Default)]
pub struct Index {
    /// Latest used last.
    shapes: Vec<(PodShape, Table)>,
}

impl Index {
    /// Most shapes that are kept.
    pub const SHAPES: usize = 64;

    /// Chooses as [`choose`](super::super::choose()) does. Also tells how many nodes were judged.
    pub fn choose(&mut self, view: View<'_>, plugins: &Plugins, pod: &Pod, only: Option<NodeId>) -> (Choice, u64) {
        let mut slots = match prepare(view, plugins, pod) {
            Ok(slots) => slots,
            Err(end) => return (end, 0),
        };
        let reads = reads(plugins, pod, &slots);
        if only.is_some() || reads == Reads::World {
            return scan(view, plugins, pod, only, slots);
        }
        let epoch = (reads == Reads::Mix).then(|| view.world.mix().epoch());
        let (shape, mut table) = self.take(pod);
        slots.put(std::mem::take(&mut table.choices));
        let Ok(asked) = table.catch_up(view, plugins, pod, &mut slots, epoch) else {
            // A rule failed: the scan tells which fault comes first.
            return scan(view, plugins, pod, only, slots);
        };
        let mut judged = asked.len() as u64;
        let chosen = table.best(plugins);
        let diagnosis = chosen.is_none().then(|| table.diagnosis());
        if let Some((id, node)) =
            chosen.filter(|id| !asked.contains(id)).and_then(|id| Some((id, view.world.node(id)?)))
        {
            // The verdict stands; this is for what filters leave in the slots about the chosen node.
            judged += 1;
            judge(view, plugins, pod, (id, node), &mut slots);
        }
        table.choices = slots.take().unwrap_or_default();
        self.shapes.push((shape, table));
        let Some(id) = chosen else { return (Choice::Nowhere(diagnosis.unwrap_or_default()), judged) };
        (Choice::Node(id, Box::new(slots)), judged)
    }

    /// The pod's table, or a fresh one in place of the longest unused.
    fn take(&mut self, pod: &Pod) -> (PodShape, Table) {
        if let Some(at) = self.shapes.iter().rposition(|(shape, _)| shape.is_of(pod)) {
            return self.shapes.remove(at);
        }
        if self.shapes.len() == Self::SHAPES {
            self.shapes.remove(0);
        }
        (PodShape::of(pod), Table::default())
    }
}

/// The most that any enabled rule reads.
fn reads(plugins: &Plugins, pod: &Pod, slots: &Slots) -> Reads {
    let enabled = plugins.enabled();
    let filters = enabled.filter.iter().map(|plugin| plugin.reads(pod, slots));
    let pre_scores = enabled.pre_score.iter().map(|plugin| plugin.reads(pod, slots));
    let scores = enabled.score.iter().map(|(plugin, _)| plugin.reads(pod, slots));
    filters.chain(pre_scores).chain(scores).max().unwrap_or(Reads::Node)
}
