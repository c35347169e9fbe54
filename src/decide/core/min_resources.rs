//! `minResources` of PodGroups: what a gang asks for in all, compared with what is free.

use crate::world::gangs::{GroupId, Member, MemberState};
use crate::world::{PodId, Resources, World};
use baton_contract::gang::MatchPolicy;
use baton_contract::{Quantity, key};

use super::rules::plugins::resources_fit::is_counted_by_devices;

/// What a gang of the group asks for in all and is not free, beyond what its members have that have a node; and the gang's first member.
pub fn missing(world: &World, group: &GroupId) -> Option<(PodId, String)> {
    for gang in world.gangs().of_group(group) {
        let Some(object) = gang.pod_group().filter(|object| !object.min_resources.is_zero()) else { continue };
        let mut wanted = object.min_resources.clone();
        let ended = gang.config().policy == MatchPolicy::WaitingRunningSucceed;
        let counts = |member: &&Member| member.state.has_node() || ended && member.state == MemberState::Succeeded;
        gang.members()
            .filter(counts)
            .filter_map(|member| world.pod(member.pod))
            .for_each(|pod| wanted.sub(&pod.facts.spec.requests));
        let mut free = Resources::default();
        let within = world.gangs().confined(group);
        for (_, node) in world.nodes_in(within.map(AsRef::as_ref)) {
            let Some(facts) = node.facts.as_ref().filter(|facts| facts.takes_pods()) else { continue };
            let mut left: Resources = (*facts.allocatable).clone();
            left.sub(&node.used);
            // The kubelet takes a failed device from what it offers, and its pod's request counts still: such a name
            // is bounded by what is offered, and the device rule decides.
            let by_devices = wanted.scalar.iter().filter(|(name, _)| is_counted_by_devices(name, node));
            let offered = by_devices.map(|(name, _)| (name, Quantity::units(facts.allocatable.scalar(name))));
            left.raise_to(&Resources::of(offered));
            // What is too much on one node takes nothing from the others.
            free.add(&left.at_least_zero());
        }
        let amounts = [
            ("cpu", Quantity::millis(wanted.milli_cpu), Quantity::millis(free.milli_cpu)),
            ("memory", Quantity::bytes(wanted.memory), Quantity::bytes(free.memory)),
            ("ephemeral-storage", Quantity::bytes(wanted.ephemeral), Quantity::bytes(free.ephemeral)),
        ];
        let units = |name: &str| Quantity::units(free.scalar(name));
        // No kubelet offers bytes of GPU memory.
        let scalars = wanted.scalar.iter().filter(|(name, _)| *name != key::GPU_MEMORY);
        let scalars = scalars.map(|(name, wanted)| (name, Quantity::units(wanted), units(name)));
        let short = amounts.into_iter().chain(scalars).find(|(_, wanted, free)| wanted > free);
        if let Some((name, wanted, free)) = short {
            let place = within.map_or_else(|| "all".to_owned(), |within| within.name());
            let text = format!(
                "gang {} asks for at least {wanted} {name} beyond what its members have, {free} are free in {place}",
                gang.id()
            );
            let pod = gang.members().next().map_or(PodId(u64::MAX), |member| member.pod);
            return Some((pod, text));
        }
    }
    None
}
