//! Room for a whole group at the cost of pods of lower priority: nobody leaves unless every gang's minimum fits then.

use crate::decide::cycle::Candidate;
use crate::decide::cycle::effect::Effects;
use crate::decide::cycle::engine::Engine;
use crate::decide::cycle::preempt::candidates;
use crate::decide::cycle::settings::Moment;
use crate::decide::gang::GroupId;
use crate::decide::world::PodId;

use super::offer::{Aim, Offer};

impl Engine {
    /// Looks for victims for everybody whom the group needs. Evicts them and nominates the members, or changes nothing. `true` when
    /// the group waits for victims.
    pub(super) fn preempt_for_group(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) -> bool {
        if self.plugins.enabled().post_filter.is_empty() || !self.is_strict(group) {
            return false;
        }
        let once = self.satisfied_once(group);
        let offer = Offer::of(&self.world, group, &[], Aim::Minimum { once });
        let needed = offer.needed(&self.world, &[]);
        let waits = |id: &PodId| self.nominations.get(id).is_some_and(|nomination| !nomination.victims.is_empty());
        if needed.iter().any(waits) {
            return true;
        }
        let lowest = self.world.lowest_priority();
        let may = |id: &PodId| {
            let pod = self.world.pod(*id).filter(|pod| !pod.facts.spec.never_preempts);
            pod.is_some_and(|pod| lowest.is_some_and(|lowest| lowest < pod.facts.spec.priority))
        };
        if needed.is_empty() || !needed.iter().all(may) {
            return false;
        }
        let mut held: Vec<PodId> = Vec::new();
        let mut out: Vec<PodId> = Vec::new();
        let mut plans: Vec<(PodId, Candidate)> = Vec::new();
        let mut whole = true;
        for id in needed {
            if self.try_member(id, now).is_ok() {
                held.push(id);
                continue;
            }
            let Some(pod) = self.world.pod(id).cloned() else { continue };
            let found = candidates(&mut self.world, &self.plugins, &pod, now.mono);
            let picked = self.plugins.enabled().post_filter.iter().find_map(|plugin| plugin.pick(&found)).cloned();
            let Some(picked) = picked else {
                whole = false;
                break;
            };
            for victim in &picked.victims {
                self.world.displace(victim.pod);
                out.push(victim.pod);
            }
            plans.push((id, picked));
            if self.try_member(id, now).is_ok() {
                held.push(id);
            } else {
                // Whoever is leaving already has not left yet.
                whole = false;
                break;
            }
        }
        // Members that fit as it is need their room kept as well.
        let places: Vec<(PodId, crate::decide::world::NodeId)> =
            held.iter().filter_map(|id| Some((*id, self.holds.get(id)?.node))).collect();
        self.undo(&held);
        for id in out.into_iter().rev() {
            self.world.put_back(id);
        }
        if !whole || plans.is_empty() {
            return false;
        }
        for (id, node) in places {
            let victims = plans.iter().find(|(of, _)| *of == id).map(|(_, plan)| plan.victims.clone());
            let candidate = Candidate { node, victims: victims.unwrap_or_default() };
            self.nominate(id, &candidate, now, effects);
        }
        true
    }
}
