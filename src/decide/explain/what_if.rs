//! What would be decided for a pod that does not exist: the rules of a real decision judge the present world, nothing is reserved.

use crate::core::context::NEW_POD;
use crate::core::preemption::{candidates, eviction_text};
use crate::core::rules::View;
use crate::core::rules::plugins::device_fit;
use crate::core::timers::Moment;
use crate::devices::Held;
use crate::scheduler::Scheduler;
use crate::world::{Pod, PodFacts};

use super::answer::{RatedNode, WhatIf};
use super::judged::judge_all;

/// A pod as in its manifest, before admission has set its priority.
#[derive(Debug, Clone)]
pub struct Unadmitted {
    /// All but the priority.
    pub facts: PodFacts,
    /// `spec.priorityClassName`.
    pub class: Option<Box<str>>,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// Whether `spec.preemptionPolicy` is `Never`; `None` when it is not set.
    pub never_preempts: Option<bool>,
}

impl Scheduler {
    /// [`Scheduler::what_if`] for a pod that gets its priority from the cluster's PriorityClasses. The error is why the API server
    /// would reject it.
    pub fn what_if_admitted(&self, pod: Unadmitted, now: Moment) -> Result<WhatIf, String> {
        let Unadmitted { mut facts, class, priority, never_preempts } = pod;
        let (priority, never) = self.world().admit_priority(class.as_deref(), priority, never_preempts)?;
        (facts.spec.priority, facts.spec.never_preempts) = (priority, never);
        Ok(self.what_if(facts, now))
    }

    /// Judges a pod as if it were created now and its turn had come.
    pub fn what_if(&self, facts: PodFacts, now: Moment) -> WhatIf {
        let notes = self.notes(&facts);
        let pod = Pod::unplaced(NEW_POD, facts);
        let priority = pod.facts.spec.priority;
        let world = self.beside_nominated(priority, NEW_POD, None, now);
        let view = View { world: &world, now: now.mono };
        let mut judged = judge_all(view, self.rules(), &pod);
        let best = self.best_nodes(view, &pod, &mut judged);
        let chosen = best.first().and_then(|best| self.world().node_id(&best.node));
        let plan = chosen.and_then(|id| device_fit::plan(&judged.slots, (id, self.world().node(id)?)));
        let held = plan.map(|plan| plan.held());
        let devices = held.iter().flat_map(Held::devices);
        let devices = devices.map(|device| format!("{} (minor {})", device.id, device.minor)).collect();
        let node = self.node_name(chosen);
        let mut verdict = judged.verdict;
        let (mut would_evict, mut preemption) = (Vec::new(), None);
        if let Some(node) = &node {
            verdict.message = format!("would go to node {node}");
            (verdict.wakes, verdict.advice) = (Vec::new(), Vec::new());
        } else if !verdict.nodes.is_empty() && !pod.facts.spec.never_preempts {
            let gone = self.preemption().chosen_victims(self.world());
            let found = candidates(&mut world.into_owned(), self.rules(), &pod, &gone, now.mono);
            let picked = self.rules().enabled().post_filter().iter().find_map(|plugin| plugin.pick(&found));
            if let Some(picked) = picked {
                let victims = picked.victims.iter().filter_map(|victim| self.world().pod(victim.pod));
                would_evict = victims.map(|pod| pod.key().to_string()).collect();
                let node = self.node_name(Some(picked.node)).unwrap_or_default();
                let way = match eviction_text(self.world(), picked) {
                    None => format!("would wait for pods that are leaving node {node}"),
                    Some(eviction) => format!("would evict {eviction}"),
                };
                verdict.message = format!("{}; {way}", verdict.message);
                preemption = Some(way);
            }
        }
        WhatIf {
            pod: pod.key().to_string(),
            fits: node.is_some(),
            node,
            devices,
            best,
            would_evict,
            preemption,
            notes,
            verdict,
            generation: self.world().generation(),
        }
    }

    /// Every node that fits a pod that does not exist, best first, with each rule's score; [`Scheduler::what_if`] names the best few. Tests
    /// compare the scores with kube-scheduler's.
    pub fn ratings(&self, facts: PodFacts, now: Moment) -> Vec<RatedNode> {
        let pod = Pod::unplaced(NEW_POD, facts);
        let world = self.beside_nominated(pod.facts.spec.priority, NEW_POD, None, now);
        let view = View { world: &world, now: now.mono };
        let mut judged = judge_all(view, self.rules(), &pod);
        self.rated_nodes(view, &pod, &mut judged)
    }

    /// What the answer does not take into account.
    fn notes(&self, facts: &PodFacts) -> Vec<String> {
        let mut notes = Vec::new();
        let handoff = &facts.handoff;
        if !self.config().scheduler_names.contains(&handoff.scheduler_name) {
            let ours: Vec<&str> = self.config().scheduler_names.iter().map(|name| &**name).collect();
            notes.push(format!(
                "spec.schedulerName is {:?}: this scheduler would leave the pod alone; it places pods of {}",
                handoff.scheduler_name,
                ours.join(", ")
            ));
        }
        if self.world().pod_by_key(&handoff.pod.key).is_some() {
            notes.push("a pod of this name exists; it is counted beside this one".to_owned());
        }
        if facts.spec.gang.is_some() {
            notes.push("the pod names a gang: here it is judged by itself, its gang decides when it starts".to_owned());
        }
        let ahead = self.queue().standings().filter(|(_, standing)| standing.priority >= facts.spec.priority).count();
        if ahead > 0 {
            notes.push(format!("{ahead} queued items of the same or a higher priority may take room first"));
        }
        notes
    }
}
