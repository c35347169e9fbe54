//! Decisions for pods of a shape that was seen before.
//!
//! Promise: the index chooses exactly what [`choose`](super::choose::choose()) chooses by asking every node. It serves pods of
//! which no enabled rule says [`Reads::World`]; all others, and pods pinned to a node, are decided by that scan. A decision costs
//! one judgement per node that changed since this shape was last asked for, each `O(log nodes)` to enter. Kept per shape and node:
//! about 70 bytes; at most [`SHAPES`](super::table::SHAPES) shapes, the longest unused one goes first.

use crate::scheduler::rules::{Plugins, Reads, Slots, View};
use crate::world::{NodeId, Pod};

use super::choose::{Choice, prepare_in, scan};
use super::concern::Concern;
use super::ranks::Ranks;
use super::table::{Judge, Table, Tables};

/// Answers to the shapes that were asked for lately. It belongs to one world and one set of plugins.
#[derive(Default)]
pub struct Index {
    tables: Tables<Ranks, ()>,
}

impl Index {
    /// Chooses as [`choose`](super::choose::choose()) does. Also returns how many nodes were judged.
    pub fn choose(&mut self, view: View<'_>, plugins: &Plugins, pod: &Pod, only: Option<NodeId>) -> (Choice, u64) {
        let mut known = self.tables.take(pod, &());
        let mut slots = Slots::with(known.as_mut().map(|table| std::mem::take(&mut table.kept)).unwrap_or_default());
        let prepared = prepare_in(view, plugins, pod, &mut slots);
        let rules = Concern::of(view, plugins, pod, &slots);
        if prepared.is_err() || only.is_some() || rules.reads == Reads::World {
            if let Some(mut table) = known {
                table.kept = slots.take_kept();
                self.tables.keep(table);
            }
            return match prepared {
                Err(end) => (end, 0),
                Ok(()) => scan(view, plugins, pod, only, slots),
            };
        }
        let epoch = (rules.reads == Reads::Mix).then(|| view.world.mix().epoch());
        let mut table = known.unwrap_or_else(|| Table::new(pod, ()));
        let Ok(asked) = table.update(view.world, &rules, &mut slots, (epoch, rules.scores)) else {
            // A rule failed: the scan finds which fault comes first.
            return scan(view, plugins, pod, only, slots);
        };
        let mut judged = asked.len() as u64;
        let chosen = table.ranking().best(&rules);
        let diagnosis = chosen.is_none().then(|| table.diagnosis());
        if let Some((id, node)) =
            chosen.filter(|id| asked.binary_search(id).is_err()).and_then(|id| Some((id, view.world.node(id)?)))
        {
            // The verdict stands; this is for what filters leave in the slots about the chosen node.
            judged += 1;
            rules.judge((id, node), &mut slots);
        }
        table.kept = slots.take_kept();
        self.tables.keep(table);
        let Some(id) = chosen else { return (Choice::Nowhere(diagnosis.unwrap_or_default()), judged) };
        (Choice::Node(id, Box::new(slots)), judged)
    }
}
