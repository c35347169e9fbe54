//! The rule at its extension points; what comes before the Binding is in `pre_bind`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::decide::help::Help;
use crate::decide::scheduler::rules::{Claimed, Filter, Outcome, Plugin, PreFilter, Reads, Reserve, Slots, View};
use crate::decide::world::volume::{Provision, VolumePlan};
use crate::decide::world::{Node, NodeId, Pod, Wake};

use super::claims::{Claims, sort};
use super::match_volume::match_volume;
use super::zone::in_zone;

/// The rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeBinding {
    /// Claims that are not bound by then are given up. 600 s, as in kube-scheduler.
    pub bind_timeout: Duration,
}

impl Default for VolumeBinding {
    fn default() -> Self {
        Self { bind_timeout: Duration::from_secs(600) }
    }
}

pub(super) const NAME: &str = "VolumeBinding";
const WAKE: Wake = Wake::VOLUME.or(Wake::NODE_ADDED).or(Wake::NODE_CHANGED).or(Wake::POD_FREED);

/// What is planned on each node that fits.
#[derive(Default)]
struct Plans(BTreeMap<NodeId, VolumePlan>);

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if pod.facts.spec.volumes.is_empty() { Reads::Nothing } else { Reads::World }
    }
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, view: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome {
        if pod.facts.spec.volumes.is_empty() {
            return Outcome::Fit;
        }
        match sort(view, pod) {
            Ok(claims) => slots.put(claims),
            Err(no) => return no,
        }
        Outcome::Fit
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, view: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let (Some(claims), Some(facts)) = (slots.get::<Claims>(), &node.facts) else { return Outcome::Fit };
        let never = |text: String| Outcome::never(NAME, text, WAKE);
        if let Some(claim) = &claims.taken {
            return Outcome::unfit(NAME, format!("claim {claim} is in use by its one pod"), Wake::POD_FREED);
        }
        for (volume, zoned) in &claims.bound {
            if !volume.reaches(&facts.labels) {
                return Outcome::never(NAME, "volume node affinity", WAKE).helped_by(Help::Reach);
            }
            if *zoned && !in_zone(&volume.labels, &facts.labels) {
                return Outcome::never(NAME, "volume in another zone", WAKE).helped_by(Help::Reach);
            }
        }
        let mut plan = VolumePlan::default();
        for claim in &claims.waiting {
            let name = &claim.key.name;
            let is_full = || claim.storage.as_ref().is_some_and(|storage| !storage.is_near(&facts.labels));
            let full = || {
                let text = format!("have too little free storage of class {} for claim {name}", claim.class_name);
                never(text).helped_by(Help::Storage)
            };
            let provision = || Provision { claim: (&**name).into(), seen: claim.facts.selected_node.is_some() };
            match &claim.node {
                Some(chosen) if *chosen == node.name => {
                    if !claim.class.provisions_at(&facts.labels) {
                        return never(format!("storage class {} makes no volumes there", claim.class_name));
                    }
                    if is_full() {
                        return full();
                    }
                    plan.provision.push(provision());
                    continue;
                }
                Some(chosen) => return never(format!("the volume of claim {name} is made for node {chosen}")),
                None => {}
            }
            if let Some(volume) = match_volume(view, pod.id, claim, node, &plan.bind) {
                plan.bind.push(((&**name).into(), volume.into()));
            } else if claim.class.provisions_at(&facts.labels) {
                if is_full() {
                    return full();
                }
                plan.provision.push(provision());
            } else if claim.class.provisions {
                return never(format!("storage class {} makes no volumes there", claim.class_name));
            } else {
                return never(format!("have no free volume for claim {name}")).helped_by(Help::Volume);
            }
        }
        if !claims.waiting.is_empty() {
            slots.entry::<Plans>().0.insert(id, plan);
        }
        Outcome::Fit
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, _: View<'_>, _: &Pod, node: NodeId, slots: &mut Slots, claimed: &mut Claimed) -> Outcome {
        claimed.volumes = slots.get::<Plans>().and_then(|plans| plans.0.get(&node)).cloned();
        Outcome::Fit
    }
}
