//! Admission by LimitRange and ResourceQuota. Quotas are enforced as their status states them; only what a new pod adds is counted
//! here: their controller, which fills the status in first and counts pods that end, is played by the test that needs it.

use serde_json::{Value, json};

use super::core::Core;
use super::failure::Failure;
use super::object::{Object, meta};
use super::resource::Resource;
use baton_contract::quota::{Amounts, LimitRangeRules, PodAsk, QuotaRules};

const LIMIT_RANGES: &str = "/limitranges";
const QUOTAS: &str = "/resourcequotas";

/// Gives the containers of a new pod the amounts that LimitRanges have for those that name none.
pub fn fill(core: &Core, resource: &Resource, value: &mut Value) {
    for range in limit_ranges(core, resource, value) {
        for list in ["initContainers", "containers"] {
            for container in value["spec"][list].as_array_mut().into_iter().flatten() {
                for (limits, requests) in range.defaults() {
                    for (kind, amounts) in [("limits", limits), ("requests", requests)] {
                        for (name, amount) in amounts {
                            let set = &mut container["resources"][kind];
                            if set[&**name].is_null() {
                                set[&**name] = json!(amount.to_string());
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Refuses a new pod that LimitRanges or ResourceQuotas do not allow. Unless `dry`, the quotas count it from now on.
pub fn admit(core: &Core, resource: &Resource, value: &Value, dry: bool) -> Result<(), Failure> {
    let ranges = limit_ranges(core, resource, value);
    let name = meta(value, "name");
    let forbidden = |why: &str| {
        Failure::forbidden(format!("pods \"{name}\" is forbidden: {why}"), resource.details(name, &resource.plural))
    };
    if !resource.is_pods() || core.store.count(LIMIT_RANGES) + core.store.count(QUOTAS) == 0 {
        return Ok(());
    }
    let ask = PodAsk::read(&value["spec"]).map_err(|why| forbidden(&why))?;
    if let Some(why) = ranges.iter().find_map(|range| range.refusal(&ask)) {
        return Err(forbidden(&why));
    }
    let quotas = objects(core, QUOTAS, meta(value, "namespace"));
    let rules = |object: &Object| {
        let mut quota = object.value.clone();
        quota["spec"]["hard"] = quota["status"]["hard"].clone();
        serde_json::from_value(quota).map(|quota| QuotaRules::read(&quota)).unwrap_or_default()
    };
    let none = Amounts::new();
    for (_, object) in &quotas {
        let rules = rules(object);
        let refusal = rules.counts(&ask).then(|| rules.refusal(&ask).or_else(|| rules.excess(&ask.usage(), &none)));
        if let Some(why) = refusal.flatten() {
            return Err(forbidden(&why));
        }
    }
    if dry {
        return Ok(());
    }
    for (key, mut object) in quotas {
        // Another pod may be counted at the same time.
        while rules(&object).counts(&ask) {
            let mut counted = object.value.clone();
            for (name, amount) in rules(&object).used_with(&ask.usage()) {
                counted["status"]["used"][&*name] = json!(amount.to_string());
            }
            if core.store.commit(QUOTAS, &key, Some(object.version), Some(counted)).is_ok() {
                break;
            }
            let Some(newer) = core.store.get(QUOTAS, &key) else { break };
            object = newer;
            if let Some(why) = rules(&object).excess(&ask.usage(), &none) {
                return Err(forbidden(&why));
            }
        }
    }
    Ok(())
}

fn limit_ranges(core: &Core, resource: &Resource, value: &Value) -> Vec<LimitRangeRules> {
    if !resource.is_pods() || core.store.count(LIMIT_RANGES) == 0 {
        return Vec::new();
    }
    let all = objects(core, LIMIT_RANGES, meta(value, "namespace"));
    let read = all.iter().filter_map(|(_, object)| serde_json::from_value(object.value.clone()).ok());
    read.map(|range| LimitRangeRules::read(&range)).collect()
}

fn objects(core: &Core, collection: &str, namespace: &str) -> Vec<(String, std::sync::Arc<Object>)> {
    core.store.list(collection, &format!("/{namespace}/"), None, None).map(|all| all.items).unwrap_or_default()
}
