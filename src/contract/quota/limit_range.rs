//! A LimitRange: the amounts that it gives to containers which name none, and the bounds that it sets.

use k8s_openapi::api::core::v1::LimitRange;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;

use super::pod_ask::{Amounts, PodAsk, Side};
use crate::Quantity;

/// What a LimitRange says of pods.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LimitRangeRules {
    items: Vec<RangeItem>,
    /// Why it cannot be read: then every pod waits.
    problem: Option<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct RangeItem {
    of_pod: bool,
    min: Amounts,
    max: Amounts,
    default: Amounts,
    default_request: Amounts,
    ratio: Amounts,
}

type RawAmounts = Option<std::collections::BTreeMap<String, RawQuantity>>;

pub(super) fn read_amounts(list: &RawAmounts, what: &str, problem: &mut Option<Box<str>>) -> Amounts {
    let mut all = Amounts::new();
    for (name, amount) in list.iter().flatten() {
        match amount.0.parse::<Quantity>() {
            Ok(amount) => drop(all.insert(name.as_str().into(), amount)),
            Err(error) => {
                problem.get_or_insert_with(|| format!("{what}: {name}: {error}").into());
            }
        }
    }
    all
}

impl LimitRangeRules {
    /// Reads the object. An amount that is none makes it refuse every pod, with that amount in the text.
    pub fn read(object: &LimitRange) -> Self {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let mut rules = Self::default();
        for item in object.spec.iter().flat_map(|spec| &spec.limits) {
            if !["Pod", "Container"].contains(&item.type_.as_str()) {
                continue;
            }
            let mut list = |list: &RawAmounts, field: &str| {
                read_amounts(list, &format!("LimitRange {name}, {field}"), &mut rules.problem)
            };
            let mut read = RangeItem {
                of_pod: item.type_ == "Pod",
                min: list(&item.min, "min"),
                max: list(&item.max, "max"),
                default: list(&item.default, "default"),
                default_request: list(&item.default_request, "defaultRequest"),
                ratio: list(&item.max_limit_request_ratio, "maxLimitRequestRatio"),
            };
            if !read.of_pod {
                // As the API server stores it.
                fill(&mut read.default, &read.max);
                fill(&mut read.default_request, &read.default);
                fill(&mut read.default_request, &read.min);
            }
            rules.items.push(read);
        }
        rules
    }

    /// What containers are limited to and what they ask for where they do not say so themselves; earlier entries go first.
    pub fn defaults(&self) -> impl Iterator<Item = (&Amounts, &Amounts)> {
        self.items.iter().filter(|item| !item.of_pod).map(|item| (&item.default, &item.default_request))
    }

    /// Gives containers the amounts that they do not name.
    pub fn fill(&self, ask: &mut PodAsk) {
        for (limits, requests) in self.defaults() {
            for container in &mut ask.containers {
                fill(&mut container.limits, limits);
                fill(&mut container.requests, requests);
            }
        }
    }

    /// Why admission refuses the pod, in its words; `None` where it is within all bounds.
    pub fn refusal(&self, ask: &PodAsk) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(format!("{problem}: correct it"));
        }
        // The API server calls such a pod invalid.
        let invalid = ask.containers.iter().find_map(|container| {
            let mut both =
                container.requests.iter().filter_map(|(of, asked)| Some((of, asked, container.limits.get(of)?)));
            let (of, asked, limit) = both.find(|(_, asked, limit)| asked > limit)?;
            let name = &container.name;
            Some(format!(
                "{name}: its {of} request {asked} must be less than or equal to the {of} limit {limit} of a LimitRange"
            ))
        });
        if invalid.is_some() {
            return invalid;
        }
        let refusals = self.items.iter().filter_map(|item| {
            if item.of_pod {
                return item.refusal("Pod", &ask.total(Side::Requests), &ask.total(Side::Limits));
            }
            ask.containers
                .iter()
                .find_map(|container| item.refusal("Container", &container.requests, &container.limits))
        });
        refusals.into_iter().next()
    }
}

/// Adds the amounts that are not named yet.
fn fill(into: &mut Amounts, from: &Amounts) {
    for (name, amount) in from {
        into.entry(name.clone()).or_insert(*amount);
    }
}

impl RangeItem {
    fn refusal(&self, kind: &str, requests: &Amounts, limits: &Amounts) -> Option<String> {
        for (name, min) in &self.min {
            let bound = format!("minimum {name} usage per {kind} is {min}");
            match (requests.get(name), limits.get(name)) {
                (None, _) => return Some(format!("{bound}.  No request is specified")),
                (Some(request), _) if request < min => return Some(format!("{bound}, but request is {request}")),
                (_, Some(limit)) if limit < min => return Some(format!("{bound}, but limit is {limit}")),
                _ => {}
            }
        }
        for (name, max) in &self.max {
            let bound = format!("maximum {name} usage per {kind} is {max}");
            match (requests.get(name), limits.get(name)) {
                (_, None) => return Some(format!("{bound}.  No limit is specified")),
                (_, Some(limit)) if limit > max => return Some(format!("{bound}, but limit is {limit}")),
                (Some(request), _) if request > max => return Some(format!("{bound}, but request is {request}")),
                _ => {}
            }
        }
        for (name, ratio) in &self.ratio {
            let bound = format!("{name} max limit to request ratio per {kind} is {ratio}");
            let above_zero = |amounts: &Amounts| amounts.get(name).copied().filter(|amount| *amount > Quantity::ZERO);
            match (above_zero(requests), above_zero(limits)) {
                (None, _) => return Some(format!("{bound}, but no request is specified or request is 0")),
                (_, None) => return Some(format!("{bound}, but no limit is specified or limit is 0")),
                (Some(request), Some(limit)) if limit.exceeds_ratio(request, *ratio) => {
                    return Some(format!("{bound}, but limit {limit} is more than that times request {request}"));
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rules(item: Value) -> LimitRangeRules {
        LimitRangeRules::read(
            &serde_json::from_value(json!({"metadata": {"name": "l"}, "spec": {"limits": [item]}})).unwrap(),
        )
    }

    fn verdict(item: Value, resources: Value) -> Option<String> {
        let rules = rules(item);
        let mut ask = PodAsk::read(&json!({"containers": [{"name": "main", "resources": resources}]})).unwrap();
        rules.fill(&mut ask);
        rules.refusal(&ask)
    }

    #[test]
    fn bounds_are_those_of_admission() {
        let cpu = |amount: &str| json!({"limits": {"cpu": amount}});
        let max = json!({"type": "Container", "max": {"cpu": "2"}});
        assert_eq!(verdict(max.clone(), cpu("2")), None);
        assert_eq!(verdict(max.clone(), cpu("3")).unwrap(), "maximum cpu usage per Container is 2, but limit is 3");
        assert_eq!(verdict(max, json!({})), None, "the maximum is the default, too");
        let pod = json!({"type": "Pod", "max": {"cpu": "2"}});
        assert_eq!(verdict(pod, json!({})).unwrap(), "maximum cpu usage per Pod is 2.  No limit is specified");
        let ratio = json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}});
        let asked = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2001m"}});
        assert!(verdict(ratio, asked).unwrap().contains("max limit to request ratio per Container is 2"));
    }

    #[test]
    fn a_limit_that_a_range_gives_below_the_request_is_refused() {
        let default = json!({"type": "Container", "default": {"memory": "512Mi"}});
        let refused = verdict(default.clone(), json!({"requests": {"memory": "2Gi"}})).unwrap();
        assert_eq!(
            refused,
            "main: its memory request 2Gi must be less than or equal to the memory limit 512Mi of a LimitRange"
        );
        assert_eq!(verdict(default.clone(), json!({"requests": {"memory": "512Mi"}})), None);
        assert_eq!(verdict(default, json!({"limits": {"memory": "2Gi"}})), None, "it has a limit of its own");
    }

    #[test]
    fn a_range_with_a_minimum_only_gives_it_to_containers_that_ask_for_nothing() {
        let min = json!({"type": "Container", "min": {"cpu": "100m"}});
        assert_eq!(verdict(min.clone(), json!({})), None);
        let little = json!({"requests": {"cpu": "50m"}});
        assert_eq!(verdict(min, little).unwrap(), "minimum cpu usage per Container is 100m, but request is 50m");
    }

    #[test]
    fn a_range_that_cannot_be_read_refuses_and_says_what() {
        let bad = verdict(json!({"type": "Container", "max": {"cpu": "lots"}}), json!({})).unwrap();
        assert!(bad.contains("LimitRange l, max: cpu: \"lots\" is not a quantity"), "{bad}");
    }
}
