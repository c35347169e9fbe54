//! What admission makes of the pods of a TYJob: their containers ask for what LimitRanges give to those that name nothing.

use baton_contract::quota::{Amounts, PodAsk};
use baton_contract::{ContainerRequest, Quantity};

use super::pod::PodFacts;
use super::resources::{Rated, RequestParts, Resources};
use super::spec::Qos;

/// Makes the pod ask for these amounts, as if they stood in its spec: what quotas count of a pod is what its place has room for.
pub(super) fn ask_for(pod: &mut PodFacts, ask: &PodAsk) {
    // It is not placed, and `ask` has the names that its record leaves out.
    if pod.spec.too_large.is_some() {
        return;
    }
    let requests = parts(pod, ask, &Resources::default(), |_| true).total();
    let Rated { milli_cpu, memory } = Rated::UNNAMED;
    let unnamed = Resources { milli_cpu, memory, ..Resources::default() };
    let rated = Rated::from(&parts(pod, ask, &unnamed, |name| matches!(name, "cpu" | "memory")).total());
    let qos = qos(ask);
    // Pods of one template share their records: one that stays as it is stays shared.
    if (&pod.spec.requests, pod.spec.rated, pod.spec.qos) != (&requests, rated, qos) {
        let spec = &mut *pod.spec;
        (spec.requests, spec.rated, spec.qos) = (requests, rated, qos);
    }
    let judged: Vec<_> = ask.containers().map(|(_, limits)| ContainerRequest::judge(named(limits))).collect();
    if pod.handoff.containers.iter().zip(&judged).any(|(container, request)| container.request != *request) {
        let containers = &mut *pod.handoff.containers;
        containers.iter_mut().zip(judged).for_each(|(container, request)| container.request = request);
    }
}

/// What the pod's requests are computed from. A container has `unnamed` of what it does not name; of the rest only what `counts`.
fn parts(pod: &PodFacts, ask: &PodAsk, unnamed: &Resources, counts: impl Fn(&str) -> bool) -> RequestParts {
    let asked = |requests: &Amounts| {
        let mut sum = unnamed.clone();
        named(requests).filter(|(name, _)| counts(name)).for_each(|(name, amount)| sum.set(name, amount));
        sum
    };
    let containers = pod.handoff.containers.iter().zip(ask.containers());
    RequestParts {
        containers: containers.map(|(container, (requests, _))| (container.kind, asked(requests))).collect(),
        pod_level: Some(ask.whole().0.clone()),
        overhead: Resources::of(named(ask.overhead())),
    }
}

fn named(amounts: &Amounts) -> impl Iterator<Item = (&str, Quantity)> {
    amounts.iter().map(|(name, amount)| (&**name, *amount))
}

/// By the containers, unless the pod as a whole names CPU or memory.
fn qos(ask: &PodAsk) -> Qos {
    let of = |list: &Amounts| {
        let cpu = list.get("cpu").map_or(0, |amount| amount.milli_value());
        [cpu, list.get("memory").map_or(0, |amount| amount.value())]
    };
    let both = |(requests, limits): (&Amounts, &Amounts)| (of(requests), of(limits));
    // What is limited is asked for.
    let (asked, _) = ask.whole();
    if asked.contains_key("cpu") || asked.contains_key("memory") {
        return Qos::of([both(ask.whole())]);
    }
    Qos::of(ask.containers().map(both))
}
