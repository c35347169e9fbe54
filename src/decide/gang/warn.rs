//! Events about a group as a whole: one per change of state, on its oldest member that waits.

use std::collections::BTreeSet;

use crate::contract::gang::GangId;
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::Engine;
use crate::decide::world::PodId;
use crate::decide::world::gangs::{Gang, GroupId, Warning};

impl Engine {
    /// Says that a group is held, and why.
    pub(in crate::decide) fn notice_hold(&mut self, group: &GroupId, effects: &mut Effects) {
        let Some((reason, message)) = self.groups.get(group).and_then(|record| record.held.clone()) else { return };
        // The end of the wait was told when it came.
        if reason == "GangTimeout" {
            if let Some(record) = self.groups.get_mut(group) {
                record.told = Some(reason);
            }
            return;
        }
        self.notice_waiting(group, reason, &message, effects);
    }

    /// Says why a group waits, once for as long as the reason stays.
    pub(in crate::decide) fn notice_waiting(
        &mut self,
        group: &GroupId,
        reason: &'static str,
        message: &str,
        effects: &mut Effects,
    ) {
        let Some(first) = self.waiting(group).next().map(|member| member.pod) else { return };
        let Some(record) = self.groups.get_mut(group).filter(|record| record.told != Some(reason)) else { return };
        record.told = Some(reason);
        self.notice(first, true, reason, message.to_owned(), effects);
    }

    /// Says what is wrong with the declarations of a group, each thing once for as long as it lasts.
    pub(in crate::decide) fn warn(&mut self, group: &GroupId, effects: &mut Effects) {
        let flag = self.world.gangs().defaults().scheduling_groups;
        let gangs = self.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let mut found: BTreeSet<(GangId, Warning)> = BTreeSet::new();
        let mut news: Vec<(PodId, Warning)> = Vec::new();
        let known = self.groups.get(group).map(|record| &record.warned);
        for gang in gangs.filter(|gang| self.gang_is_ours(gang)) {
            let Some(oldest) = gang.members().next().filter(|member| member.state.is_live()) else { continue };
            for warning in gang.warnings() {
                let key = (gang.id().clone(), warning);
                if known.is_none_or(|known| !known.contains(&key)) {
                    news.push((subject(gang, &key.1, flag).unwrap_or(oldest.pod), key.1.clone()));
                }
                found.insert(key);
            }
        }
        let Some(record) = self.groups.get_mut(group).filter(|record| record.warned != found) else { return };
        record.warned = found;
        for (pod, warning) in news {
            self.notice(pod, true, warning.reason(), warning.to_string(), effects);
        }
    }

    /// One of its living members is for this scheduler.
    pub(in crate::decide) fn gang_is_ours(&self, gang: &Gang) -> bool {
        gang.schedulers().any(|name| self.config.scheduler_names.contains(name))
    }
}

/// The member that a warning is about, where it is about one.
fn subject(gang: &Gang, warning: &Warning, flag: bool) -> Option<PodId> {
    let mut live = gang.members().take_while(|member| member.state.is_live());
    live.find(|member| member.declared.all_warnings(flag).any(|known| *known == *warning)).map(|member| member.pod)
}
