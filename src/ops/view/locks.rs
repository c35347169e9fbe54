//! The holder of each node's lock, for how long, and what an operator can do.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::daemons;
use super::snapshot::{Rules, Snapshot, name_of};
use super::table::{Row, RowId, age};
use baton_cluster::agent_lease::LightLease;
use baton_cluster::node::LightNode;
use baton_contract::word::word_enum;
use baton_contract::{AgentStatus, LockRead};
use baton_decide::explain::{QueueReport, taken_over};
use baton_decide::lock::{BoundHolder, Delay, HolderState, LockAge, LockDelay, stands};
use baton_decide::world::without_devices;

word_enum! {
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    LockState {
        /// The holder exists and is not bound yet.
        Binding = "binding",
        /// The holder is bound here and no container of it runs yet.
        Held = "held",
        /// The holder's devices were handed out: the node daemon is about to release the lock.
        Served = "served",
        /// The holder will never be served.
        Dangling = "dangling",
        /// A readable time that matches no pod.
        Unknown = "unknown",
        /// Not a lock at all.
        Malformed = "malformed",
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockRow {
    pub node: String,
    pub state: LockState,
    /// `namespace/name`, where the value or its time names one.
    pub holder: Option<String>,
    pub holder_uid: Option<String>,
    /// By the time in the value and this machine's clock, unless that time is in the future.
    pub age_seconds: Option<u64>,
    #[serde(skip)]
    age: Option<LockAge>,
    /// What to know and to do.
    pub advice: String,
    /// The annotation's value.
    pub value: String,
    /// Whether it stands for as long as others do, where its holder exists.
    pub delay: Option<Delay>,
    /// When it is taken over if it still stands: by the scheduler's word, or else by its own time. `null` where neither is known.
    pub expires: Option<Timestamp>,
    /// No other pod with devices comes until something is done or it is taken over.
    pub stands: bool,
    /// Whose it is, in words.
    #[serde(skip)]
    whose: String,
    #[serde(skip)]
    labels: BTreeMap<String, String>,
}

/// Every lock, by node, with what the scheduler says of them.
pub fn rows(snapshot: &Snapshot, rules: &Rules, said: &QueueReport) -> Vec<LockRow> {
    snapshot.nodes.values().filter_map(|node| of_node(snapshot, rules, said, node)).collect()
}

pub(super) fn of_node(snapshot: &Snapshot, rules: &Rules, said: &QueueReport, node: &LightNode) -> Option<LockRow> {
    let (read, holder) = snapshot.lock(node, &rules.lock_key)?;
    let (read, holder, key, object, node) = (&read, &holder, &rules.lock_key, node, name_of(node));
    let value = match read {
        LockRead::Held { value, .. } => Some(value),
        LockRead::Free | LockRead::Malformed { .. } => None,
    };
    let age = value.map(|value| LockAge::of(value, snapshot.wall));
    let expired = age.and_then(LockAge::known).is_some_and(|age| age > rules.expiry);
    let named = value.and_then(|value| value.holder.as_ref());
    let live = match holder {
        HolderState::Unbound(pod) | HolderState::BoundHere(pod) => Some(pod),
        HolderState::Unknown | HolderState::Gone(_) => None,
    };
    let status = snapshot.leases.get(&AgentStatus::lease_name(node)).and_then(LightLease::status);
    let bound = live
        .and_then(|pod| snapshot.pods.get(&pod.key))
        .map(|pod| BoundHolder::of(read, pod, status.as_ref()))
        .unwrap_or_default();
    let is_bare = live.is_some_and(|pod| status.as_ref().is_some_and(|status| status.is_unserved(&pod.uid)));
    let state = match holder {
        HolderState::Unbound(_) => LockState::Binding,
        HolderState::BoundHere(_) if is_bare => LockState::Held,
        HolderState::BoundHere(_) if bound != BoundHolder::Waits => LockState::Served,
        HolderState::BoundHere(_) => LockState::Held,
        HolderState::Gone(_) => LockState::Dangling,
        HolderState::Unknown if value.is_none() => LockState::Malformed,
        HolderState::Unknown => LockState::Unknown,
    };
    let ends = said.locks.iter().find(|end| end.node == node && Some(&*end.value) == read.raw()).map(|end| end.at);
    let by_time = value.filter(|_| age.and_then(LockAge::known).is_some() && state != LockState::Dangling);
    let by_time = by_time.filter(|_| bound != BoundHolder::Served);
    let agent = daemons::of_node(snapshot, object);
    let fresh = agent.as_ref().is_some_and(|agent| agent.fresh);
    let daemon = daemons::state(snapshot, object, agent.as_ref());
    let waits = live.filter(|_| state == LockState::Held);
    let delay = waits.zip(age).map(|(pod, age)| LockDelay { node, holder: &pod.key, age, daemon });
    let unchanged = || format!("unchanged after {}", humantime::format_duration(rules.expiry));
    let end = taken_over(&ends.map_or_else(unchanged, |at| format!("at {at:.0}")));
    let advice = match (state, holder) {
        (LockState::Binding, _) => match age.map(LockAge::judge) {
            Some(Delay::Stuck) => format!(
                "stuck: {} left it unbound: is it running? A scheduler of Baton resumes or releases it within a minute; \
                 otherwise, {end}",
                live.and_then(|pod| snapshot.pods.get(&pod.key)).map_or("its scheduler", |pod| &pod.scheduler_name),
            ),
            Some(Delay::Ahead) => format!("its time is in the future: {}; {end}", LockAge::AHEAD),
            Some(Delay::Slow) => "slow: its bind is in flight, usually for less than 2 s".to_owned(),
            Some(Delay::Usual) | None => "normal: its bind is in flight".to_owned(),
        },
        (LockState::Served, _) if bound == BoundHolder::Served => {
            "its holder is served, and the node daemon cannot remove it: see its log; the next bind takes it over"
                .to_owned()
        }
        (LockState::Held, _) if is_bare => format!("its holder {}", without_devices(node)),
        (LockState::Held, _) => {
            let then = match (expired, fresh) {
                (true, true) => "the next bind takes it over once the scheduler has watched it for as long; ",
                (true, false) => "it stays: only the node daemon knows whether its holder was served; ",
                (false, _) => "",
            };
            let words = delay.as_ref().map(|delay| match delay.judge() {
                Delay::Usual => delay.to_string(),
                Delay::Slow | Delay::Stuck | Delay::Ahead => format!("{delay}; {then}look: {}", delay.look()),
            });
            words.unwrap_or_default()
        }
        (LockState::Served, _) => {
            "the node daemon releases it within 10s; if not, is it running? Once expired, the next bind takes it over"
                .to_owned()
        }
        (_, HolderState::Gone(reason)) => {
            format!("holder {reason}: the next bind takes it over, or: {}", remove(object, key))
        }
        _ => format!("{end}, or: {}", remove(object, key)),
    };
    let pod = live.map(|pod| &pod.key).or_else(|| named.map(|named| &named.pod)).map(ToString::to_string);
    Some(LockRow {
        node: node.to_owned(),
        state,
        delay: age.filter(|_| live.is_some() && bound != BoundHolder::Served).map(LockAge::judge),
        expires: ends.or_else(|| by_time?.time.checked_add(rules.expiry).ok()),
        stands: stands(read, holder, bound, snapshot.wall),
        whose: pod.clone().or_else(|| read.whose()).unwrap_or_default(),
        holder: pod,
        holder_uid: live
            .map(|pod| pod.uid.to_string())
            .or_else(|| named.and_then(|named| named.uid.as_ref().map(ToString::to_string))),
        age_seconds: age.and_then(LockAge::known).map(|age| age.as_secs()),
        age,
        advice,
        value: read.raw().unwrap_or_default().to_owned(),
        labels: snapshot.labels_of(node),
    })
}

/// The command that takes the annotation away by hand, as long as the node is as it was read: never the lock that came after.
fn remove(node: &LightNode, key: &str) -> String {
    let version = node.metadata.resource_version.as_ref().map(|version| format!(" --resource-version={version}"));
    format!("kubectl annotate node {} {key}-{}", name_of(node), version.unwrap_or_default())
}

impl LockRow {
    /// What is not as of most locks: `stuck`, `dangling`, `binding, slow`.
    pub(super) fn mark(&self) -> Option<String> {
        let late = match self.delay {
            Some(Delay::Slow) => "slow",
            Some(Delay::Stuck) => "stuck",
            // Of which time, it says beside its holder.
            Some(Delay::Usual | Delay::Ahead) | None => "",
        };
        match (self.state, late) {
            (LockState::Held, "") => None,
            (LockState::Held, late) => Some(late.to_owned()),
            (state, "") => Some(state.to_string()),
            (state, late) => Some(format!("{state}, {late}")),
        }
    }

    /// What `explain node` says of it.
    pub fn sentence(&self) -> String {
        let mark = self.mark().filter(|_| self.state != LockState::Held).map(|mark| format!(" ({mark})"));
        let held = if self.holder.is_some() { "held by " } else { "" };
        format!("{held}{}{}: {}", self.whose(), mark.unwrap_or_default(), self.advice)
    }

    /// `ml/train for 3s`, `ml/train with a time 2h0m in the future`, `"mine", which names no pod`.
    pub(super) fn whose(&self) -> String {
        let age = self.age.map(|of| match of {
            LockAge::Since(by) => format!(" for {}", age(by)),
            LockAge::Ahead(by) => format!(" with a time {} in the future", age(by)),
        });
        format!("{}{}", self.whose, age.unwrap_or_default())
    }

    /// Its holder exists and may be served.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, LockState::Binding | LockState::Held | LockState::Served)
    }
}

impl Row for LockRow {
    const WHAT: &'static str = "lock of node";
    const PLURAL: &'static str = "locks";
    const NONE: &'static str = "No node is locked.";
    const HEADERS: &'static str = "NODE,STATE,HOLDER,AGE,WHAT TO DO,EXPIRES,UID,VALUE";
    const NARROW: usize = 5;
    fn id(&self) -> RowId<'_> {
        RowId { name: &self.node, node: Some(&self.node), labels: Some(&self.labels), ..RowId::default() }
    }
    fn cells(&self) -> Vec<String> {
        vec![
            self.node.clone(),
            self.state.to_string(),
            self.whose.clone(),
            match self.age {
                Some(LockAge::Since(by)) => age(by),
                Some(LockAge::Ahead(by)) => format!("{} ahead", age(by)),
                None => String::new(),
            },
            self.advice.clone(),
            self.expires.map(|at| format!("{at:.0}")).unwrap_or_default(),
            self.holder_uid.clone().unwrap_or_default(),
            self.value.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::view::snapshot_tests::cluster;
    use baton_contract::key;
    use baton_decide::explain::LockEnd;

    #[test]
    fn each_state_of_a_lock_has_its_word() {
        let mut cluster = cluster();
        let states = |cluster: &Snapshot| {
            rows(cluster, &Rules::default(), &QueueReport::default()).iter().map(|row| row.state).collect::<Vec<_>>()
        };
        assert_eq!(states(&cluster), [LockState::Held, LockState::Dangling, LockState::Malformed]);
        let train = cluster.pods.values_mut().next().unwrap();
        train.containers[0].running = true;
        assert_eq!(states(&cluster)[0], LockState::Served);
        let train = cluster.pods.values_mut().next().unwrap();
        train.node = None;
        assert_eq!(states(&cluster)[0], LockState::Binding);
        let bare = "2026-11-21T02:00:00Z".to_owned();
        cluster.nodes.get_mut("node-c").unwrap().metadata.annotations =
            Some([(key::NODE_LOCK.to_owned(), bare)].into());
        assert_eq!(states(&cluster)[2], LockState::Unknown);
    }

    #[test]
    fn a_lock_whose_time_is_in_the_future_is_normal_in_no_state() {
        let mut cluster = cluster();
        cluster.wall = "2026-11-21T01:35:12Z".parse().unwrap();
        let lock = |cluster: &Snapshot| rows(cluster, &Rules::default(), &QueueReport::default()).remove(0);
        let held = lock(&cluster);
        assert_eq!((held.state, held.delay, held.age_seconds), (LockState::Held, Some(Delay::Ahead), None));
        assert_eq!(
            (&*held.cells()[3], serde_json::to_value(&held).unwrap()["delay"].as_str()),
            ("1h0m ahead", Some("ahead"))
        );
        assert!(held.stands && held.advice.contains("in the future: a clock is wrong"), "{held:?}");
        assert!(
            held.sentence().starts_with("held by ml/train with a time 1h0m in the future: not served yet"),
            "{held:?}"
        );
        cluster.pods.values_mut().next().unwrap().node = None;
        let binding = lock(&cluster);
        assert_eq!((binding.state, binding.delay), (LockState::Binding, Some(Delay::Ahead)));
        assert!(binding.advice.starts_with("its time is in the future: a clock is wrong"), "{binding:?}");
    }

    #[test]
    fn a_lock_says_when_it_is_taken_over_by_the_schedulers_word_or_its_own_time() {
        let cluster = cluster();
        let at: Timestamp = "2026-11-21T02:41:00Z".parse().unwrap();
        let end = |node: &str, value: &str| LockEnd { node: node.to_owned(), value: value.to_owned(), at };
        let expires = |locks: Vec<LockEnd>| {
            let rows = rows(&cluster, &Rules::default(), &QueueReport { locks, ..QueueReport::default() });
            rows.into_iter().map(|row| (row.cells()[5].clone(), row.advice)).collect::<Vec<_>>()
        };
        let unheard = expires(Vec::new());
        assert_eq!(unheard[0].0, "2026-11-21T02:40:12Z");
        assert_eq!((&*unheard[1].0, &*unheard[2].0), ("", ""), "dangling, and without a time");
        assert!(
            unheard[2].1.starts_with("if it still stands unchanged after 5m, it is taken over, or: "),
            "{unheard:?}"
        );
        let heard = expires(vec![end("node-c", "yes"), end("node-a", "of before")]);
        assert_eq!((&*heard[0].0, &*heard[2].0), ("2026-11-21T02:40:12Z", "2026-11-21T02:41:00Z"));
        let words = "if it still stands at 2026-11-21T02:41:00Z, it is taken over, or: kubectl annotate";
        assert!(heard[2].1.starts_with(words), "{heard:?}");
    }

    #[test]
    fn an_expired_lock_gets_another_advice() {
        let mut cluster = cluster();
        let normal = rows(&cluster, &Rules::default(), &QueueReport::default()).remove(0);
        assert_eq!((normal.age_seconds, normal.delay), (Some(47), Some(Delay::Stuck)));
        assert_eq!(serde_json::to_value(&normal).unwrap()["delay"], "stuck");
        assert!(normal.advice.starts_with("stuck: not served for over 15 s; the kubelet has not asked"), "{normal:?}");
        cluster.wall = "2026-11-21T02:45:00Z".parse().unwrap();
        let away = rows(&cluster, &Rules::default(), &QueueReport::default()).remove(0);
        assert!(away.advice.contains("has not been heard for") && away.advice.contains("it stays"), "{away:?}");
        let lease = cluster.leases.values_mut().next().unwrap();
        let renewed =
            serde_json::json!({"metadata": lease.metadata, "spec": {"renewTime": "2026-11-21T02:44:50.000000Z"}});
        *lease = serde_json::from_value(renewed).unwrap();
        let expired = rows(&cluster, &Rules::default(), &QueueReport::default()).remove(0);
        assert!(expired.advice.contains("the next bind takes it over"), "{expired:?}");
        let longer =
            rows(&cluster, &Rules { expiry: Duration::from_secs(3600), ..Rules::default() }, &QueueReport::default());
        assert!(
            !longer[0].advice.contains("takes it over"),
            "not expired where the cluster waits for an hour: {longer:?}"
        );
        assert!(longer[2].advice.contains("unchanged after 1h"), "{longer:?}");
        let lease = cluster.leases.values_mut().next().unwrap();
        let status = AgentStatus { unreleased: Some(expired.value.as_str().into()), ..lease.status().unwrap() };
        lease.metadata.annotations = Some([(key::AGENT.to_owned(), status.print())].into());
        let served = rows(&cluster, &Rules::default(), &QueueReport::default()).remove(0);
        assert!(served.advice.contains("cannot remove it"), "{served:?}");
    }
}
