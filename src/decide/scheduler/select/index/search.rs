//! The search over kept verdicts.

use crate::contract::Shared;
use crate::decide::pod::PodContainer;
use crate::decide::scheduler::rules::{Kept, Plugins, Reads, Slots, View};
use crate::decide::scheduler::select::choose::{Choice, prepare_in, scan};
use crate::decide::world::{NodeId, Pod, PodSpec};

use super::concern::Concern;
use super::shape::PodShape;
use super::table::Table;

/// Verdicts of the shapes that were asked for lately. It belongs to one world and one set of plugins.
#[derive(Default)]
pub struct Index {
    /// Latest used last; boxed, because they change places at every decision.
    #[allow(clippy::vec_box)]
    shapes: Vec<Box<Known>>,
}

/// What is known of one shape.
struct Known {
    shape: PodShape,
    /// The latest pod's parts that say its shape, all but the node: pods of one template share them.
    like: (Shared<PodSpec>, Shared<Vec<PodContainer>>),
    table: Table,
    kept: Kept,
}

impl Known {
    fn is_of(&self, pod: &Pod) -> bool {
        self.is_like(pod) && self.shape.node() == pod.facts.handoff.node.as_deref() || self.shape.is_of(pod)
    }

    /// Another pod of the latest one's template.
    fn is_like(&self, pod: &Pod) -> bool {
        let (spec, containers) = &self.like;
        spec.is_same(&pod.facts.spec) && containers.is_same(&pod.facts.handoff.containers)
    }
}

impl Index {
    /// Most shapes that are kept.
    pub const SHAPES: usize = 64;

    /// Chooses as [`choose`](super::super::choose()) does. Also tells how many nodes were judged.
    pub fn choose(&mut self, view: View<'_>, plugins: &Plugins, pod: &Pod, only: Option<NodeId>) -> (Choice, u64) {
        let at = self.shapes.iter().rposition(|known| known.is_of(pod));
        let mut slots = Slots::with(at.map(|at| std::mem::take(&mut self.shapes[at].kept)).unwrap_or_default());
        let prepared = prepare_in(view, plugins, pod, &mut slots);
        let concern = Concern::of(plugins, pod, &slots);
        if prepared.is_err() || only.is_some() || concern.reads == Reads::World {
            if let Some(at) = at {
                self.shapes[at].kept = slots.take_kept();
            }
            return match prepared {
                Err(end) => (end, 0),
                Ok(()) => scan(view, plugins, pod, only, slots),
            };
        }
        let epoch = (concern.reads == Reads::Mix).then(|| view.world.mix().epoch());
        let known = self.latest(at, pod);
        let Ok(asked) = known.table.catch_up(view, plugins, (pod, &concern), &mut slots, epoch) else {
            // A rule failed: the scan tells which fault comes first.
            self.shapes.pop();
            return scan(view, plugins, pod, only, slots);
        };
        let mut judged = asked.len() as u64;
        let chosen = known.table.best(view, plugins, (pod, &concern));
        let diagnosis = chosen.is_none().then(|| known.table.diagnosis());
        if let Some((id, node)) =
            chosen.filter(|id| asked.binary_search(id).is_err()).and_then(|id| Some((id, view.world.node(id)?)))
        {
            // The verdict stands; this is for what filters leave in the slots about the chosen node.
            judged += 1;
            concern.judge(view, plugins, pod, (id, node), &mut slots);
        }
        known.kept = slots.take_kept();
        let Some(id) = chosen else { return (Choice::Nowhere(diagnosis.unwrap_or_default()), judged) };
        (Choice::Node(id, Box::new(slots)), judged)
    }

    /// What is known of the pod's shape, as the latest used: that at `at`, or nothing yet in place of the longest unused.
    fn latest(&mut self, at: Option<usize>, pod: &Pod) -> &mut Known {
        if let Some(at) = at {
            self.shapes[at..].rotate_left(1);
        } else {
            if self.shapes.len() == Self::SHAPES {
                self.shapes.remove(0);
            }
            let (table, kept) = (Table::default(), Kept::default());
            self.shapes.push(Box::new(Known { shape: PodShape::of(pod), like: like(pod), table, kept }));
        }
        let latest = self.shapes.len() - 1;
        let known = &mut self.shapes[latest];
        if !known.is_like(pod) {
            known.like = like(pod);
        }
        known
    }
}

fn like(pod: &Pod) -> (Shared<PodSpec>, Shared<Vec<PodContainer>>) {
    (pod.facts.spec.clone(), pod.facts.handoff.containers.clone())
}
