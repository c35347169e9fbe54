//! TYJobs whose pods are gathered: one domain after the other is tried for all pods without a place, as gangs do. Pods with a place fix
//! the domain.
//!
//! What is preferred is given up, the innermost layer first, where it has no room for every pod. What is required is not: of the domains
//! without room for all, that with the most places counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::core::agenda::Scene;
use crate::core::context::Context;
use crate::core::rules::Eligibility;
use crate::core::select::eligible::NodeEligibility;
use crate::core::select::free::{free_on, percent};
use crate::world::{Confinement, GroupTopology, Node, NodeId, Pod, PodId, World};

use super::TyJobs;
use super::allowance::Allowance;
use super::place::template_pod;
use super::placement::{JobFacts, JobSpec, Seat};

/// Domains that are tried although not everything fits there.
const SEARCHED: usize = 16;

/// A job and its pods without a place.
pub struct JobAsk<'a> {
    /// The job.
    pub job: &'a JobFacts,
    /// Its spec.
    pub spec: &'a JobSpec,
    /// The seats of those pods.
    pub missing: &'a [Seat],
    /// Number of its pods with a place, by node.
    pub here: &'a BTreeMap<NodeId, i64>,
    /// What its namespace may still use.
    pub allowance: &'a Allowance,
}

/// What an attempt has reserved for a job.
pub struct JobAttempt {
    /// Pod, node and reservation.
    pub taken: Vec<(Box<str>, NodeId, PodId)>,
    /// Why the first pod without a place has none.
    pub refusal: Option<String>,
    /// What the namespace may use beside.
    pub allowance: Allowance,
}

impl JobAttempt {
    fn refused(ask: &JobAsk<'_>, why: String) -> Self {
        Self { taken: Vec::new(), refusal: Some(why), allowance: ask.allowance.clone() }
    }
}

/// A domain, and whether as much is free there as the missing pods ask for.
struct JobDomain {
    at: Confinement,
    has_room: bool,
}

impl TyJobs {
    /// Reserves places for the missing pods of a job: in one domain where it asks for that.
    pub(super) fn place_gathered(&mut self, cx: &mut Context<'_>, ask: &JobAsk<'_>) -> JobAttempt {
        if let Err(bad) = &ask.spec.topology {
            return JobAttempt::refused(ask, bad.to_string());
        }
        let Some(topology) = asked(cx.world, ask.spec) else { return self.place_missing(cx, ask, None) };
        for labels in topology.levels() {
            let required = labels.len() == topology.required.len();
            let mut most: Option<(usize, Confinement)> = None;
            let domains = domains(cx.terms.scene(cx.world), ask, &labels);
            // Where none has room for all pods, those with the most room may hold as many as the job needs.
            let large = domains.partition_point(|domain| domain.has_room);
            for domain in domains.into_iter().take(large + if required { SEARCHED } else { 0 }) {
                let attempt = self.place_missing(cx, ask, Some(&domain.at));
                if attempt.taken.len() == ask.missing.len() {
                    return attempt;
                }
                let found = attempt.taken.len();
                attempt.taken.into_iter().for_each(|(.., reservation)| _ = cx.world.cancel_place(reservation));
                if most.as_ref().is_none_or(|(most, _)| found > *most) {
                    most = Some((found, domain.at));
                }
            }
            if required {
                return match most {
                    Some((_, at)) => self.place_missing(cx, ask, Some(&at)),
                    None => JobAttempt::refused(ask, no_domain(&labels)),
                };
            }
        }
        self.place_missing(cx, ask, None)
    }
}

/// The labels of the layers that a job asks for.
pub fn asked(world: &World, spec: &JobSpec) -> Option<GroupTopology> {
    world.gangs().layers_asked(spec.topology.as_ref().ok()?.as_deref())
}

/// Why there is no domain.
pub fn no_domain(labels: &[Box<str>]) -> String {
    format!("no node has the label {}", labels.join(" and "))
}

/// The domains where the missing pods may go: first those with room, the least left over first, then the others, the roomiest first.
fn domains(scene: Scene<'_>, ask: &JobAsk<'_>, labels: &[Box<str>]) -> Vec<JobDomain> {
    let world = scene.world;
    let sum = |one: (i64, i64), other: (i64, i64)| (one.0.saturating_add(other.0), one.1.saturating_add(other.1));
    let parts = ask.missing.iter().filter_map(|seat| ask.spec.parts.get(seat.part));
    let wanted = parts.map(|part| &part.pod.spec.requests).map(|wants| (percent(wants), wants.milli_cpu));
    let wanted = wanted.fold((0, 0), sum);
    let parts: BTreeSet<usize> = ask.missing.iter().map(|seat| seat.part).collect();
    let parts = parts.into_iter().filter_map(|part| ask.spec.parts.get(part));
    let pods: Vec<Pod> = parts.map(|part| template_pod(part.pod.clone())).collect();
    let eligible = NodeEligibility::of(scene.terms.rules, &pods);
    let of_node = |(id, node): (NodeId, &Node)| {
        if eligible.on(scene.view(), (id, node)) != Eligibility::Now {
            return (0, 0);
        }
        let cpu = node.facts.as_ref().map_or(0, |facts| facts.allocatable.milli_cpu - node.used.milli_cpu);
        (free_on(node).max(0), cpu.max(0))
    };
    let mut all: Vec<_> = world.domains(&[labels.to_vec()], of_node).into_iter().flatten().collect();
    if let Some(values) = world.domain_of_most(ask.here.keys().copied(), labels) {
        all.retain(|(domain, _)| domain.values() == Some(&values));
    }
    let has_room = |free: (i64, i64)| free.0 >= wanted.0 && free.1 >= wanted.1;
    let measured = all.into_iter().map(|(at, free)| (free, JobDomain { at, has_room: has_room(free) }));
    let mut measured: Vec<((i64, i64), JobDomain)> = measured.collect();
    measured.sort_by_key(|(free, domain)| {
        let (least, roomiest) = if domain.has_room { (*free, (0, 0)) } else { ((0, 0), *free) };
        (!domain.has_room, least, Reverse(roomiest))
    });
    measured.into_iter().map(|(_, domain)| domain).collect()
}
