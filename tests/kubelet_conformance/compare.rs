//! Compares the calls of one step with the recorded ones.
//!
//! Left out, because a real kubelet leaves it to chance:
//! * the order of resources within a container: calls are grouped by pod, container and resource; in each view, the container
//!   under admission is checked against its own earlier calls instead of against the recording;
//! * which ids are taken at random: see `renaming`;
//! * how often a refused PreStartContainer is repeated before the plugin is set to accept it;
//! * whether `Register` returns before or after ListAndWatch is opened, and how two plugins that register at once interleave;
//! * the order of pods, containers and ids in lists.

use super::prelude::*;
use super::renaming::{Ids, Renaming, ids};

/// What was compared, and what chance left out.
#[derive(Debug, Default)]
pub struct Tally {
    pub calls: usize,
    pub views: usize,
    /// Recorded calls that chance left without a counterpart.
    pub skipped: usize,
    pub left_out: Vec<String>,
}

/// All calls for one resource of one container.
#[derive(Debug, Clone, Default)]
struct Group {
    preferred: Option<Value>,
    allocate: Option<Value>,
    left_late: bool,
}

/// A container's groups in the order of its calls.
#[derive(Debug)]
struct Calls {
    pod: String,
    container: String,
    plain_init: bool,
    groups: Vec<(String, Group)>,
    aborted: bool,
}

/// Compares a step. `pods` are the ones it created.
pub fn step(recorded: &[Value], simulated: &[Value], pods: &[Value], renaming: &mut Renaming, tally: &mut Tally) {
    streams(recorded, simulated, tally);
    admissions(&split(recorded, pods), &split(simulated, pods), renaming, tally);
    starts(recorded, simulated, renaming, tally);
}

/// Registration and streams, plugin by plugin.
fn streams(recorded: &[Value], simulated: &[Value], tally: &mut Tally) {
    let of = |calls: &[Value]| {
        let mut plugins: BTreeMap<String, (Vec<Value>, usize)> = BTreeMap::new();
        for call in calls {
            let (in_order, registers) = plugins.entry(call["plugin"].as_str().unwrap().to_owned()).or_default();
            match call["rpc"].as_str() {
                Some("Register") => *registers += 1,
                Some("GetDevicePluginOptions" | "ListAndWatch") | None => in_order.push(call.clone()),
                Some(_) => {}
            }
        }
        plugins.retain(|_, (in_order, registers)| !in_order.is_empty() || *registers > 0);
        plugins
    };
    let (recorded, simulated) = (of(recorded), of(simulated));
    assert_eq!(recorded, simulated, "registrations and streams differ");
    tally.calls += recorded.values().map(|(in_order, registers)| in_order.len() + registers).sum::<usize>();
}

/// Sorts admission calls into pods, containers and resources.
fn split(calls: &[Value], pods: &[Value]) -> Vec<Calls> {
    let mut calls =
        calls.iter().filter(|call| matches!(call["rpc"].as_str(), Some("GetPreferredAllocation" | "Allocate")));
    let mut next = calls.next();
    let mut sorted = Vec::new();
    for pod in pods {
        let spec = &pod["spec"];
        let inits = spec["initContainers"].as_array().into_iter().flatten().map(|container| (true, container));
        let apps = spec["containers"].as_array().into_iter().flatten().map(|container| (false, container));
        'pod: for (init, container) in inits.chain(apps) {
            let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            let mut left: BTreeSet<String> =
                limits.keys().filter_map(|name| Some(name.split_once('/')?.1.to_owned())).collect();
            let mut of_container = Calls {
                pod: format!("default/{}", pod["name"].as_str().unwrap()),
                container: container["name"].as_str().unwrap().to_owned(),
                plain_init: init && container["restartPolicy"].is_null(),
                groups: Vec::new(),
                aborted: false,
            };
            while let Some(plugin) =
                next.map(|call| call["plugin"].as_str().unwrap().to_owned()).filter(|p| left.remove(p))
            {
                let mut group = Group::default();
                let mut take = |wanted: &dyn Fn(&Value) -> bool| {
                    let taken = next.filter(|call| call["plugin"] == json!(plugin) && wanted(call)).cloned();
                    if taken.is_some() {
                        next = calls.next();
                    }
                    taken
                };
                group.preferred = take(&|call| call["rpc"] == "GetPreferredAllocation");
                let refused = group.preferred.as_ref().is_some_and(|call| call["answer"] == "error");
                if !refused {
                    group.allocate = take(&|call| call["rpc"] == "Allocate" && call["event"].is_null());
                    group.left_late = take(&|call| call["event"] == "slow answer leaves").is_some();
                }
                of_container.aborted = refused || group.allocate.as_ref().is_none_or(|call| call["answer"] == "error");
                of_container.groups.push((plugin, group));
                if of_container.aborted {
                    break;
                }
            }
            let over = of_container.aborted;
            sorted.push(of_container);
            if over {
                break 'pod;
            }
        }
    }
    assert!(next.is_none(), "a call that no container explains: {next:?}");
    sorted
}

fn admissions(recorded: &[Calls], simulated: &[Calls], renaming: &mut Renaming, tally: &mut Tally) {
    let names = |all: &[Calls]| all.iter().map(|c| (c.pod.clone(), c.container.clone(), c.aborted)).collect::<Vec<_>>();
    assert_eq!(names(recorded), names(simulated), "pods and containers are served in another order, or end otherwise");
    // What finished init containers leave to the later containers of their pod, on both sides.
    let mut reusable: BTreeMap<(String, String), (Ids, Ids)> = BTreeMap::new();
    for (recorded, simulated) in recorded.iter().zip(simulated) {
        let of = |calls: &Calls, plugin: &str| calls.groups.iter().position(|(name, _)| name == plugin);
        let plugins: BTreeSet<&String> =
            recorded.groups.iter().chain(&simulated.groups).map(|(name, _)| name).collect();
        for plugin in plugins {
            let at = format!("{} {} {plugin}", recorded.pod, recorded.container);
            let (Some(r), Some(s)) = (of(recorded, plugin), of(simulated, plugin)) else {
                // A refusal ends the container's calls: which resources came before it is chance.
                assert!(recorded.aborted, "{at}: called on one side only");
                if let Some(r) = of(recorded, plugin) {
                    let Group { preferred, allocate, left_late } = &recorded.groups[r].1;
                    tally.skipped +=
                        [preferred.is_some(), allocate.is_some(), *left_late].iter().filter(|is| **is).count();
                }
                tally.left_out.push(format!("{at}: called on one side only, another resource of the container failed"));
                continue;
            };
            let left = reusable.entry((recorded.pod.clone(), plugin.clone())).or_default();
            for (kind, r, s) in [
                ("GetPreferredAllocation", &recorded.groups[r].1.preferred, &simulated.groups[s].1.preferred),
                ("Allocate", &recorded.groups[r].1.allocate, &simulated.groups[s].1.allocate),
            ] {
                assert_eq!(r.is_some(), s.is_some(), "{at}: {kind} on one side only");
                let (Some(r), Some(s)) = (r, s) else { continue };
                tally.calls += 1;
                if kind == "Allocate" {
                    let group = |calls: &Calls| calls.groups[of(calls, plugin).unwrap()].1.clone();
                    allocate(&at, (&group(recorded), &group(simulated)), left, renaming);
                } else {
                    for field in ["available", "mustInclude"] {
                        let (r, s) = (ids(&r[field]), ids(&s[field]));
                        assert!(renaming.same(&r, &s), "{at}: {field} {r:?}, but {s:?} in the simulation");
                    }
                    for field in ["requests", "size"] {
                        assert_eq!(r[field], s[field], "{at}: {field}");
                    }
                    assert_eq!(r["answer"].is_string(), s["answer"].is_string(), "{at}: answer");
                    assert!(renaming.same(&ids(&r["answer"]), &ids(&s["answer"])), "{at}: answers {r} and {s}");
                }
            }
            let late = (recorded.groups[r].1.left_late, simulated.groups[s].1.left_late);
            assert_eq!(late.0, late.1, "{at}: slow answer");
            tally.calls += usize::from(late.0);
            for (kind, r_call, s_call) in [
                ("GetPreferredAllocation", &recorded.groups[r].1.preferred, &simulated.groups[s].1.preferred),
                ("Allocate", &recorded.groups[r].1.allocate, &simulated.groups[s].1.allocate),
            ] {
                let (Some(r_call), Some(s_call)) = (r_call, s_call) else { continue };
                own_entry(recorded, r, r_call);
                own_entry(simulated, s, s_call);
                let without = |call: &Value, calls: &Calls| {
                    let mut view = call["podresources"].clone();
                    if let Some(own) = view[&calls.pod].as_object_mut() {
                        own.remove(&calls.container);
                    }
                    view
                };
                let views = (without(r_call, recorded), without(s_call, simulated));
                assert_same_view(&format!("{at}: {kind}"), &views.0, &views.1, renaming);
                tally.views += 1;
            }
            let held = |calls: &Calls, at: usize| calls.groups[at].1.allocate.as_ref().map(|call| ids(&call["ids"][0]));
            let (r, s) = (held(recorded, r).unwrap_or_default(), held(simulated, s).unwrap_or_default());
            if recorded.plain_init {
                left.0.extend(r);
                left.1.extend(s);
            } else {
                left.0.retain(|id| !r.contains(id));
                left.1.retain(|id| !s.contains(id));
            }
        }
    }
}

/// The allocated ids: a fixed part, and a part taken at random from a pool.
fn allocate(at: &str, (recorded, simulated): (&Group, &Group), left: &(Ids, Ids), renaming: &mut Renaming) {
    let parts = |group: &Group, left: &Ids| {
        let call = group.allocate.as_ref().unwrap();
        assert_eq!(call["ids"].as_array().unwrap().len(), 1, "{at}: one container a call");
        let all = ids(&call["ids"][0]);
        let (fixed, pool) = match &group.preferred {
            // Without a question, all comes from what the pod's init containers left.
            None => (Ids::new(), left.clone()),
            Some(asked) => {
                let available = ids(&asked["available"]);
                let wanted = ids(&asked["answer"]).intersection(&available).cloned().collect::<Ids>();
                let fixed = &wanted | &ids(&asked["mustInclude"]);
                let pool = &available - &fixed;
                (fixed, pool)
            }
        };
        let by_chance = &all - &fixed;
        (all, fixed, pool, by_chance)
    };
    let r = parts(recorded, &left.0);
    let s = parts(simulated, &left.1);
    assert!(renaming.same(&r.1, &s.1), "{at}: {:?} were due, {:?} in the simulation", r.1, s.1);
    assert!(r.1.is_subset(&r.0) && s.1.is_subset(&s.0), "{at}: preferred ids were not taken: {:?} {:?}", r.0, s.0);
    if r.3.is_empty() && s.3.is_empty() {
        return;
    }
    let agreed = renaming.chosen((&r.2, &s.2), (&r.3, &s.3));
    assert!(agreed, "{at}: {:?} of {:?} at random, in the simulation {:?} of {:?}", r.3, r.2, s.3, s.2);
}

/// The container under admission shows exactly what its own earlier calls gave it; a plain init container does not show.
fn own_entry(calls: &Calls, position: usize, call: &Value) {
    let entry = &call["podresources"][&calls.pod][&calls.container];
    if calls.plain_init {
        assert!(entry.is_null(), "{}: a plain init container is listed", calls.pod);
        return;
    }
    let earlier = calls.groups[..position].iter().filter_map(|(plugin, group)| {
        let held = ids(&group.allocate.as_ref()?["ids"][0]);
        Some((format!("example.com/{plugin}"), held))
    });
    let earlier: BTreeMap<String, Ids> = earlier.collect();
    let shown: BTreeMap<String, Ids> =
        entry.as_object().unwrap().iter().map(|(name, held)| (name.clone(), ids(held))).collect();
    assert_eq!(shown, earlier, "{} {}: shown under admission", calls.pod, calls.container);
}

fn assert_same_view(at: &str, recorded: &Value, simulated: &Value, renaming: &Renaming) {
    let flat = |view: &Value| {
        let mut shape: BTreeMap<String, Option<Ids>> = BTreeMap::new();
        for (pod, containers) in view.as_object().unwrap() {
            for (container, resources) in containers.as_object().unwrap() {
                shape.insert(format!("{pod} {container}"), None);
                for (resource, held) in resources.as_object().unwrap() {
                    shape.insert(format!("{pod} {container} {resource}"), Some(ids(held)));
                }
            }
        }
        shape
    };
    let (recorded, simulated) = (flat(recorded), flat(simulated));
    let keys = |shape: &BTreeMap<String, Option<Ids>>| shape.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&recorded), keys(&simulated), "{at}: PodResources");
    for (key, held) in &recorded {
        let other = &simulated[key];
        let same = held.as_ref().zip(other.as_ref()).is_none_or(|(held, other)| renaming.same(held, other));
        assert!(same, "{at}: PodResources {key}: {held:?}, but {other:?} in the simulation");
    }
}

/// PreStartContainer calls, in order. A refused one is repeated every 10 to 15 seconds until it is not: how often depends on
/// when the refusals end, so the simulated kubelet may have asked more often, with the same words.
fn starts(recorded: &[Value], simulated: &[Value], renaming: &Renaming, tally: &mut Tally) {
    let of = |calls: &[Value]| {
        let last_admission = calls.iter().rposition(|call| call["rpc"] == "Allocate");
        let first = calls.iter().position(|call| call["rpc"] == "PreStartContainer");
        assert!(
            first.is_none() || last_admission.is_none() || last_admission < first,
            "started before it was admitted"
        );
        calls.iter().filter(|call| call["rpc"] == "PreStartContainer").cloned().collect::<Vec<_>>()
    };
    let (recorded, simulated) = (of(recorded), of(simulated));
    let enough = recorded.len() <= simulated.len() && recorded.is_empty() == simulated.is_empty();
    assert!(enough, "PreStartContainer calls: {recorded:?} {simulated:?}");
    let padded = recorded.iter().chain(recorded.last().into_iter().cycle());
    for (r, s) in padded.zip(&simulated) {
        assert!(renaming.same(&ids(&r["ids"]), &ids(&s["ids"])), "PreStartContainer: {r} and {s}");
        assert_same_view("PreStartContainer", &r["podresources"], &s["podresources"], renaming);
    }
    tally.calls += recorded.len();
    tally.views += recorded.len();
}
