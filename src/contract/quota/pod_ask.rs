//! What a pod asks for, by the names that quotas count.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::Quantity;

/// Amounts by name.
pub type Amounts = BTreeMap<Box<str>, Quantity>;

/// The amounts of a pod's containers and what else decides which quotas count it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodAsk {
    pub(super) containers: Vec<ContainerAsk>,
    /// `spec.resources`, which stands for the containers where it names something.
    whole: ContainerAsk,
    overhead: Amounts,
    /// `spec.activeDeadlineSeconds` is there.
    pub(super) ends: bool,
    /// A term of its pod affinity looks into other namespaces.
    pub(super) crosses: bool,
    /// Its PriorityClass; admission names the default one where the pod names none.
    pub class: Option<Box<str>>,
    /// Its priority, where it states one: admission takes only that of its class.
    pub priority: Option<i64>,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ContainerAsk {
    pub name: Box<str>,
    runs: Runs,
    pub requests: Amounts,
    pub limits: Amounts,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Runs {
    Init,
    Sidecar,
    #[default]
    App,
}

/// Which amounts of a container.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Side {
    /// Those that it asks for.
    Requests,
    /// Those that it is limited to.
    Limits,
}

impl Side {
    fn of(self, container: &ContainerAsk) -> &Amounts {
        match self {
            Self::Requests => &container.requests,
            Self::Limits => &container.limits,
        }
    }
}

impl PodAsk {
    /// Of a pod's `spec`. The error names the amount that is none, or that the API server refuses: what a pod is limited to is
    /// reserved for it, so it may not count as less.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let whole = ContainerAsk::read(&spec["resources"], "the pod", Runs::App)?;
        let of_pods = |name: &str| ["cpu", "memory"].contains(&name) || name.starts_with("hugepages-");
        if let Some(name) = whole.requests.keys().find(|name| !of_pods(name)) {
            return Err(format!(
                "resources of the pod: {name}: only cpu, memory and hugepages are set for a pod as a whole: set it in a container"
            ));
        }
        let mut ask = Self {
            whole,
            overhead: amounts(&spec["overhead"], "overhead")?,
            ends: spec["activeDeadlineSeconds"].is_i64(),
            crosses: crosses(&spec["affinity"]),
            priority: spec["priority"].as_i64(),
            class: spec["priorityClassName"].as_str().filter(|name| !name.is_empty()).map(Into::into),
            ..Self::default()
        };
        for (list, init) in [("initContainers", true), ("containers", false)] {
            for container in spec[list].as_array().into_iter().flatten() {
                let runs = match (init, container["restartPolicy"] == "Always") {
                    (true, true) => Runs::Sidecar,
                    (true, false) => Runs::Init,
                    (false, _) => Runs::App,
                };
                let name = container["name"].as_str().unwrap_or_default();
                ask.containers.push(ContainerAsk::read(&container["resources"], name, runs)?);
            }
        }
        Ok(ask)
    }

    /// Requests and limits of each container: init containers and sidecars in spec order, then app containers.
    pub fn containers(&self) -> impl Iterator<Item = (&Amounts, &Amounts)> {
        self.containers.iter().map(|container| (&container.requests, &container.limits))
    }

    /// Requests and limits of the pod as a whole, which stand for those of its containers where they name something.
    pub fn whole(&self) -> (&Amounts, &Amounts) {
        (&self.whole.requests, &self.whole.limits)
    }

    /// What the pod takes beside its containers.
    pub fn overhead(&self) -> &Amounts {
        &self.overhead
    }

    /// What it uses of every name that quotas can count.
    pub fn usage(&self) -> Amounts {
        let one = Quantity::units(1);
        let mut usage = Amounts::from([("pods".into(), one), ("count/pods".into(), one)]);
        for (name, amount) in self.total(Side::Requests) {
            match &*name {
                "cpu" | "memory" | "ephemeral-storage" => {}
                name if name.starts_with("hugepages-") => {}
                name if is_extended(name) => {
                    usage.insert(format!("requests.{name}").into(), amount);
                    continue;
                }
                _ => continue,
            }
            usage.insert(format!("requests.{name}").into(), amount);
            usage.insert(name, amount);
        }
        for (name, amount) in self.total(Side::Limits) {
            if ["cpu", "memory", "ephemeral-storage"].contains(&&*name) {
                usage.insert(format!("limits.{name}").into(), amount);
            }
        }
        usage
    }

    /// All containers together: those that run at once, or the most that an init container needs with the sidecars before it.
    pub(super) fn total(&self, side: Side) -> Amounts {
        let (mut running, mut sidecars, mut peak) = (Amounts::new(), Amounts::new(), Amounts::new());
        for container in &self.containers {
            match container.runs {
                Runs::App => add(&mut running, side.of(container)),
                Runs::Sidecar => {
                    add(&mut running, side.of(container));
                    add(&mut sidecars, side.of(container));
                    raise(&mut peak, &sidecars);
                }
                Runs::Init => {
                    let mut now = sidecars.clone();
                    add(&mut now, side.of(container));
                    raise(&mut peak, &now);
                }
            }
        }
        raise(&mut running, &peak);
        for (name, amount) in side.of(&self.whole) {
            running.insert(name.clone(), *amount);
        }
        for (name, amount) in &self.overhead {
            if side == Side::Requests {
                running.entry(name.clone()).or_insert(Quantity::ZERO);
            }
            if let Some(sum) = running.get_mut(name) {
                *sum = sum.plus(*amount);
            }
        }
        running
    }

    /// No container names CPU or memory.
    pub(super) fn is_best_effort(&self) -> bool {
        !self.whole.names_amounts() && !self.containers.iter().any(ContainerAsk::names_amounts)
    }

    /// Of these quota names, those that some container does not name though admission wants every container to:
    /// `limits.cpu for: main,init`. `None` where none is missing.
    pub(super) fn unnamed<'a>(&self, names: impl Iterator<Item = &'a str>) -> Option<String> {
        let mut text = String::new();
        for name in names {
            let (side, resource) = match name.split_once('.') {
                Some(("limits", resource)) => (Side::Limits, resource),
                Some(("requests", resource)) => (Side::Requests, resource),
                _ => (Side::Requests, name),
            };
            if !["cpu", "memory"].contains(&resource) || side.of(&self.whole).contains_key(resource) {
                continue;
            }
            let without = self.containers.iter().filter(|container| !side.of(container).contains_key(resource));
            let without: Vec<&str> = without.map(|container| &*container.name).collect();
            if !without.is_empty() {
                let between = if text.is_empty() { "" } else { "; " };
                let _ = write!(text, "{between}{name} for: {}", without.join(","));
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

impl ContainerAsk {
    /// The API server fills requests in from limits.
    fn read(resources: &Value, name: &str, runs: Runs) -> Result<Self, String> {
        let limits = amounts(&resources["limits"], &format!("limits of {name}"))?;
        let mut requests = limits.clone();
        requests.extend(amounts(&resources["requests"], &format!("requests of {name}"))?);
        for (resource, request) in &requests {
            let at = || format!("requests of {name}: {resource}");
            let fixed = is_extended(resource) || resource.starts_with("hugepages-");
            match limits.get(resource) {
                None if fixed => return Err(format!("{}: there is no limit: set one of {request}", at())),
                Some(limit) if fixed && limit != request => {
                    return Err(format!("{}: {request} is not the limit, {limit}: leave the request out", at()));
                }
                Some(limit) if limit < request => {
                    return Err(format!("{}: {request} is more than the limit, {limit}: lower it", at()));
                }
                _ if is_extended(resource) && !request.is_whole() => {
                    return Err(format!("{}: {request} is not a whole number", at()));
                }
                _ => {}
            }
        }
        Ok(Self { name: name.into(), runs, requests, limits })
    }

    fn names_amounts(&self) -> bool {
        let names = |amounts: &Amounts| {
            ["cpu", "memory"].iter().any(|name| amounts.get(*name).is_some_and(|amount| *amount > Quantity::ZERO))
        };
        names(&self.requests) || names(&self.limits)
    }
}

fn amounts(list: &Value, what: &str) -> Result<Amounts, String> {
    let mut all = Amounts::new();
    for (name, amount) in list.as_object().into_iter().flatten().filter(|(_, amount)| !amount.is_null()) {
        let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        let amount = text.parse::<Quantity>().map_err(|error| format!("{what}: {name}: {}", error.of(name)))?;
        if amount < Quantity::ZERO {
            return Err(format!("{what}: {name}: {text} is below zero: leave it out"));
        }
        all.insert(name.as_str().into(), amount);
    }
    Ok(all)
}

/// A name of a vendor's: neither Kubernetes' own nor under its domain.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// Required and preferred terms of pod affinity and anti-affinity that name namespaces.
fn crosses(affinity: &Value) -> bool {
    let kinds = ["podAffinity", "podAntiAffinity"].map(|kind| &affinity[kind]);
    let mut terms = kinds.into_iter().flat_map(|kind| {
        let list = |list: &str| kind[list].as_array().into_iter().flatten();
        let preferred = list("preferredDuringSchedulingIgnoredDuringExecution").map(|term| &term["podAffinityTerm"]);
        list("requiredDuringSchedulingIgnoredDuringExecution").chain(preferred)
    });
    terms.any(|term| {
        let named = term["namespaces"].as_array().is_some_and(|names| !names.is_empty());
        named || !term["namespaceSelector"].is_null()
    })
}

/// Adds amounts.
pub(super) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let known = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *known = known.plus(*amount);
    }
}

fn raise(sum: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = sum.entry(name.clone()).or_insert(*amount);
        *known = (*known).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_counted_under_every_name_that_a_quota_may_have() {
        let ask = PodAsk::read(&json!({
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                {"name": "init", "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "8Gi"}}},
            ],
            "containers": [{"name": "main", "resources": {
                "requests": {"cpu": "500m"},
                "limits": {"cpu": 2, "memory": "1Gi", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "2", "example.kubernetes.io/x": "1"}}}],
            "overhead": {"cpu": "100m", "memory": "64Mi"},
        }))
        .unwrap();
        let usage = ask.usage();
        let printed: Vec<String> = usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(
            printed,
            [
                "count/pods=1",
                "cpu=4100m",
                "hugepages-2Mi=4Mi",
                "limits.cpu=2100m",
                "limits.memory=8256Mi",
                "memory=8256Mi",
                "pods=1",
                "requests.cpu=4100m",
                "requests.hugepages-2Mi=4Mi",
                "requests.memory=8256Mi",
                "requests.nvidia.com/gpu=2",
            ]
        );
    }

    #[test]
    fn an_amount_that_is_none_is_named() {
        let error = PodAsk::read(&json!({"containers": [{"name": "main", "resources": {"limits": {"cpu": "many"}}}]}));
        let error = error.unwrap_err();
        assert!(error.contains("limits of main: cpu: \"many\" is not a quantity"), "{error}");
    }

    #[test]
    fn amounts_that_the_api_server_refuses_are_named() {
        let refusal = |spec: Value| PodAsk::read(&spec).unwrap_err();
        let main = |resources: Value| refusal(json!({"containers": [{"name": "main", "resources": resources}]}));
        for (said, expected) in [
            (
                main(json!({"requests": {"nvidia.com/gpu": 0}, "limits": {"nvidia.com/gpu": 8}})),
                "requests of main: nvidia.com/gpu: 0 is not the limit, 8: leave the request out",
            ),
            (
                main(json!({"requests": {"nvidia.com/gpu": "1"}})),
                "requests of main: nvidia.com/gpu: there is no limit: set one of 1",
            ),
            (
                main(json!({"limits": {"nvidia.com/gpu": "500m"}})),
                "requests of main: nvidia.com/gpu: 500m is not a whole number",
            ),
            (main(json!({"requests": {"cpu": "-1000"}})), "requests of main: cpu: -1000 is below zero: leave it out"),
            (
                main(json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}})),
                "requests of main: memory: 2Gi is more than the limit, 1Gi: lower it",
            ),
            (
                refusal(json!({"containers": [], "resources": {"limits": {"nvidia.com/gpu": 0}}})),
                "resources of the pod: nvidia.com/gpu: only cpu, memory and hugepages are set for a pod as a whole: set it in a container",
            ),
            (
                refusal(json!({"containers": [], "overhead": {"nvidia.com/gpu": -8}})),
                "overhead: nvidia.com/gpu: -8 is below zero: leave it out",
            ),
        ] {
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn terms_that_look_into_other_namespaces_are_seen() {
        let with = |term: Value| {
            let list = json!([{"weight": 1, "podAffinityTerm": term}]);
            let away = json!({"preferredDuringSchedulingIgnoredDuringExecution": list});
            PodAsk::read(&json!({"affinity": {"podAntiAffinity": away}})).unwrap().crosses
        };
        assert!(with(json!({"namespaces": ["other"]})) && with(json!({"namespaceSelector": {}})));
        assert!(!with(json!({"topologyKey": "zone"})));
    }
}
