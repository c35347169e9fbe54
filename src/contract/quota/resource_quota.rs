//! A ResourceQuota: which pods it counts, and what is left.

use std::collections::BTreeSet;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{ResourceQuota, ScopedResourceSelectorRequirement};

use super::limit_range::read_amounts;
use super::pod_ask::{Amounts, PodAsk, add};
use crate::Quantity;

/// What a ResourceQuota says of pods.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QuotaRules {
    /// Its name.
    pub name: Box<str>,
    scopes: Vec<ScopedResourceSelectorRequirement>,
    hard: Amounts,
    used: Amounts,
    /// Names that are enforced and whose use is not known yet.
    unknown: BTreeSet<Box<str>>,
    /// Why it cannot be read: then every pod that it counts waits.
    problem: Option<Box<str>>,
}

/// Names that every container has to state where a quota counts them.
const STATED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

impl QuotaRules {
    /// Reads the object. Of `spec.hard` and `status.hard`, which follows it, the lower amount counts. An amount that is none makes
    /// the quota refuse every pod that it counts, with that amount in the text.
    pub fn read(object: &ResourceQuota) -> Self {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let mut rules = Self { name: name.into(), ..Self::default() };
        let (spec, status) = (object.spec.clone().unwrap_or_default(), object.status.clone().unwrap_or_default());
        let mut list =
            |list, field: &str| read_amounts(list, &format!("ResourceQuota {name}, {field}"), &mut rules.problem);
        rules.hard = list(&spec.hard, "spec.hard");
        let enforced = list(&status.hard, "status.hard");
        rules.used = list(&status.used, "status.used");
        rules.unknown = enforced.keys().filter(|name| !rules.used.contains_key(*name)).cloned().collect();
        for (name, amount) in enforced {
            let known = rules.hard.entry(name).or_insert(amount);
            *known = (*known).min(amount);
        }
        let exists = |scope_name: String| ScopedResourceSelectorRequirement {
            scope_name,
            operator: "Exists".to_owned(),
            values: None,
        };
        rules.scopes = spec.scopes.into_iter().flatten().map(exists).collect();
        rules.scopes.extend(spec.scope_selector.and_then(|selector| selector.match_expressions).into_iter().flatten());
        rules
    }

    /// `true` when the quota counts the pod: its scopes hold, and it limits something that pods use.
    pub fn counts(&self, ask: &PodAsk) -> bool {
        self.scopes.iter().all(|scope| holds(scope, ask))
            && (self.problem.is_some() || {
                let usage = ask.usage();
                self.hard.keys().any(|name| usage.contains_key(name) || STATED.contains(&&**name))
            })
    }

    /// Why admission refuses such a pod however little is used; `None` where the amounts decide.
    pub fn refusal(&self, ask: &PodAsk) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(format!("{problem}: correct it"));
        }
        let name = &self.name;
        if let Some(unnamed) = ask.unnamed(self.hard.keys().map(|name| &**name).filter(|name| STATED.contains(name))) {
            return Some(format!("failed quota: {name}: must specify {unnamed}"));
        }
        let usage = ask.usage();
        let unknown: Vec<&str> =
            self.unknown.iter().map(|name| &**name).filter(|name| usage.contains_key(*name)).collect();
        (!unknown.is_empty()).then(|| format!("status unknown for quota: {name}, resources: {}", unknown.join(",")))
    }

    /// Why a pod of this usage is too much beside what is used and `reserved`; `None` when it is not.
    pub fn excess(&self, usage: &Amounts, reserved: &Amounts) -> Option<String> {
        let over = |name: &str, hard: Quantity| {
            let wanted = usage.get(name).filter(|wanted| **wanted > Quantity::ZERO);
            wanted.is_some_and(|wanted| wanted.plus(self.taken(name, reserved)) > hard)
        };
        let bounds = self.hard.iter().map(|(name, hard)| (&**name, *hard));
        let names: Vec<&str> = bounds.filter(|(name, hard)| over(name, *hard)).map(|(name, _)| name).collect();
        if names.is_empty() {
            return None;
        }
        let mut text = format!("exceeded quota: {}, requested: {}", self.name, listed(&names, usage));
        let _ = write!(text, ", used: {}", listed(&names, &self.used));
        if names.iter().any(|name| reserved.contains_key(*name)) {
            let _ = write!(text, ", reserved for TYJobs: {}", listed(&names, reserved));
        }
        let _ = write!(text, ", limited: {}", listed(&names, &self.hard));
        Some(text)
    }

    /// The names that `reserved` has and of which it and what is used are more than the quota allows.
    pub fn exceeded<'a>(&'a self, reserved: &'a Amounts) -> impl Iterator<Item = &'a str> {
        let above_zero = reserved.iter().filter(|(_, amount)| **amount > Quantity::ZERO);
        let bounded = above_zero.filter_map(|(name, _)| Some((&**name, *self.hard.get(name)?)));
        bounded.filter(|(name, hard)| self.taken(name, reserved) > *hard).map(|(name, _)| name)
    }

    /// The use of its names after one more pod, as admission writes it into the status.
    pub fn used_with(&self, usage: &Amounts) -> Amounts {
        let mut used = self.used.clone();
        let counted = usage.iter().filter(|(name, _)| self.hard.contains_key(*name));
        add(&mut used, &counted.map(|(name, amount)| (name.clone(), *amount)).collect());
        used
    }

    fn taken(&self, name: &str, reserved: &Amounts) -> Quantity {
        let of = |amounts: &Amounts| amounts.get(name).copied().unwrap_or(Quantity::ZERO);
        of(&self.used).plus(of(reserved))
    }
}

fn listed(names: &[&str], amounts: &Amounts) -> String {
    let one = |name: &&str| format!("{name}={}", amounts.get(*name).copied().unwrap_or(Quantity::ZERO));
    names.iter().map(one).collect::<Vec<_>>().join(",")
}

/// A scope that this version does not know counts no pod, as in admission.
fn holds(scope: &ScopedResourceSelectorRequirement, ask: &PodAsk) -> bool {
    match scope.scope_name.as_str() {
        "Terminating" => ask.ends,
        "NotTerminating" => !ask.ends,
        "BestEffort" => ask.is_best_effort(),
        "NotBestEffort" => !ask.is_best_effort(),
        "CrossNamespacePodAffinity" => ask.crosses,
        "PriorityClass" => {
            let listed = |class: &str| scope.values.iter().flatten().any(|value| value == class);
            match (scope.operator.as_str(), ask.class.as_deref()) {
                ("Exists", class) => class.is_some(),
                ("DoesNotExist", class) => class.is_none(),
                ("In", class) => class.is_some_and(listed),
                ("NotIn", class) => !class.is_some_and(listed),
                _ => false,
            }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rules(spec: Value, status: Value) -> QuotaRules {
        let object = json!({"metadata": {"name": "q"}, "spec": spec, "status": status});
        QuotaRules::read(&serde_json::from_value(object).unwrap())
    }

    fn ask(more: Value) -> PodAsk {
        let mut spec =
            json!({"containers": [{"name": "main", "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}}}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        PodAsk::read(&spec).unwrap()
    }

    #[test]
    fn a_pod_beyond_what_is_used_and_reserved_is_refused_with_the_numbers() {
        let hard = json!({"requests.nvidia.com/gpu": "4", "cpu": "100"});
        let quota =
            rules(json!({"hard": hard}), json!({"hard": hard, "used": {"requests.nvidia.com/gpu": "2", "cpu": "0"}}));
        let pod = ask(json!({}));
        assert!(quota.counts(&pod) && quota.refusal(&pod).is_none());
        let mut reserved = pod.usage();
        assert_eq!(quota.excess(&pod.usage(), &reserved), None);
        add(&mut reserved, &pod.usage());
        assert_eq!(
            quota.excess(&pod.usage(), &reserved).unwrap(),
            "exceeded quota: q, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, reserved for \
             TYJobs: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=4"
        );
        assert_eq!(quota.exceeded(&reserved).next(), None);
        add(&mut reserved, &pod.usage());
        assert!(quota.exceeded(&reserved).next().is_some());
    }

    #[test]
    fn the_lower_of_what_is_wanted_and_what_is_enforced_counts() {
        let quota = |wanted: &str, enforced: &str| {
            rules(json!({"hard": {"pods": wanted}}), json!({"hard": {"pods": enforced}, "used": {"pods": "3"}}))
        };
        let usage = ask(json!({})).usage();
        for (wanted, enforced, room) in [("4", "4", true), ("3", "4", false), ("4", "3", false), ("1", "4", false)] {
            assert_eq!(quota(wanted, enforced).excess(&usage, &Amounts::new()).is_none(), room, "{wanted} {enforced}");
        }
        assert!(rules(json!({"hard": {"pods": "1"}}), json!({})).excess(&usage, &Amounts::new()).is_none());
    }

    #[test]
    fn scopes_decide_which_pods_count() {
        let in_scope = |scope: &str, more: Value| {
            rules(json!({"hard": {"pods": "1"}, "scopes": [scope]}), json!({})).counts(&ask(more))
        };
        assert!(in_scope("Terminating", json!({"activeDeadlineSeconds": 5})) && !in_scope("Terminating", json!({})));
        assert!(in_scope("NotBestEffort", json!({})) && !in_scope("BestEffort", json!({})));
        assert!(!in_scope("FutureScope", json!({})));
        let by_class = |operator: &str, class: &str| {
            let expression = json!({"scopeName": "PriorityClass", "operator": operator, "values": ["high"]});
            let selector = json!({"matchExpressions": [expression]});
            let quota = rules(json!({"hard": {"pods": "1"}, "scopeSelector": selector}), json!({}));
            quota.counts(&ask(json!({"priorityClassName": class})))
        };
        assert!(by_class("In", "high") && !by_class("In", "low") && !by_class("In", ""));
        assert!(by_class("NotIn", "low") && by_class("NotIn", "") && by_class("DoesNotExist", ""));
    }

    #[test]
    fn what_admission_cannot_count_is_refused() {
        let pod = ask(json!({}));
        let memory = rules(json!({"hard": {"limits.memory": "1Gi"}}), json!({}));
        assert_eq!(memory.refusal(&pod).unwrap(), "failed quota: q: must specify limits.memory for: main");
        let uncounted = rules(json!({"hard": {"pods": "1"}}), json!({"hard": {"pods": "1"}}));
        assert_eq!(uncounted.refusal(&pod).unwrap(), "status unknown for quota: q, resources: pods");
        let unreadable = rules(json!({"hard": {"pods": "few"}}), json!({}));
        assert!(unreadable.counts(&pod));
        assert!(unreadable.refusal(&pod).unwrap().contains("ResourceQuota q, spec.hard: pods: \"few\" is not"));
    }
}
