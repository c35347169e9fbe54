//! A machine that fails pods goes out of service for a while, so that it costs three pods and not the whole queue.
//!
//! ```text
//!            3 failures within 5 min                    over                1 failure
//!   trusted ─────────────────────────▶ suspect, 1 min ────────▶ on trial ───────────────▶ suspect, 2, 4 … 30 min
//!      ▲                                     │                     │
//!      └─────────────────────────────────────┴─────────────────────┘  one success
//! ```
//!
//! A failure counts where the machine is to blame for it, whoever owns the pod; a pod that is refused for what it asks for never
//! counts. That a container cannot be started may be its owner's fault: such failures count when pods of two namespaces have them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::pause::doubled;
use baton_contract::{DeviceId, DeviceType};

/// When a device or a node is suspect, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuspectRule {
    /// So many failures …
    pub failures: usize,
    /// … within this.
    pub window: Duration,
    /// The first time it is out for so long; then twice as long each time.
    pub shortest: Duration,
    /// And never longer.
    pub longest: Duration,
}

impl Default for SuspectRule {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Self { failures: 3, window: minutes(5), shortest: minutes(1), longest: minutes(30) }
    }
}

/// What failed a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Blame {
    /// One device.
    Device(DeviceId),
    /// The node, for every pod with devices of this type.
    Node(DeviceType),
    /// The node, where containers are made.
    Start,
}

/// What became of a pod's call or container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeOutcome {
    /// The machine could not serve it.
    Failed {
        /// What did.
        blame: Blame,
        /// For people: one clause.
        why: Box<str>,
    },
    /// It was served.
    Served(BTreeSet<(DeviceType, DeviceId)>),
    /// A container of a served pod could not be made or started with its devices.
    StartFailed {
        /// Namespace of the pod.
        namespace: Box<str>,
        /// Its name.
        pod: Box<str>,
    },
    /// A container of a served pod has started.
    Started,
}

/// A device, or the node, is out of service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Since when, on the clock of the decisions.
    pub since: Duration,
    /// Until when, unless a pod is served before.
    pub until: Duration,
    /// For people: one clause.
    pub why: Box<str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct FailureTrack {
    /// Since the last outage: when, and in which namespace where that matters.
    failures: Vec<(Duration, Box<str>)>,
    /// Without a success between them.
    outages: u32,
    out: Option<Outage>,
}

/// Failures of one node.
#[derive(Debug, Clone, Default)]
pub struct Suspicion {
    rule: SuspectRule,
    tracks: BTreeMap<Blame, FailureTrack>,
}

impl Suspicion {
    /// Nothing has failed yet.
    pub fn new(rule: SuspectRule) -> Self {
        Self { rule, tracks: BTreeMap::new() }
    }

    /// Takes an outcome in. `true` when something went out of service by it, or came back.
    pub fn note(&mut self, outcome: ServeOutcome, now: Duration) -> bool {
        match outcome {
            ServeOutcome::Failed { blame, why } => self.failed(blame, "", why, now),
            ServeOutcome::StartFailed { namespace, pod } => {
                let why = format!(
                    "containers of pods in several namespaces cannot be started with their devices, last of {namespace}/{pod}"
                );
                self.failed(Blame::Start, &namespace, why.into(), now)
            }
            ServeOutcome::Started => self.succeeded(&Blame::Start),
            ServeOutcome::Served(devices) => {
                let of = |(kind, id)| [Blame::Node(kind), Blame::Device(id)];
                devices.into_iter().flat_map(of).map(|blame| self.succeeded(&blame)).filter(|back| *back).count() > 0
            }
        }
    }

    fn succeeded(&mut self, blame: &Blame) -> bool {
        self.tracks.remove(blame).is_some_and(|track| track.out.is_some())
    }

    fn failed(&mut self, blame: Blame, namespace: &str, why: Box<str>, now: Duration) -> bool {
        let rule = self.rule;
        let starts = blame == Blame::Start;
        let track = self.tracks.entry(blame).or_default();
        if track.out.is_some() {
            // On its way here before.
            return false;
        }
        track.failures.retain(|(at, _)| now.saturating_sub(*at) < rule.window);
        track.failures.push((now, namespace.into()));
        let namespaces: BTreeSet<_> = track.failures.iter().map(|(_, namespace)| namespace).collect();
        let enough = if track.outages > 0 { 1 } else { rule.failures };
        if track.failures.len() < enough || starts && namespaces.len() < 2 {
            return false;
        }
        let lasts = doubled((rule.shortest, rule.longest), track.outages);
        track.out = Some(Outage { since: now, until: now + lasts, why });
        track.outages = track.outages.saturating_add(1);
        track.failures.clear();
        true
    }

    /// What an agent after this one has to know: what has been out since it last served a pod, how often, and whether it still is.
    pub fn outages(&self) -> impl Iterator<Item = (&Blame, u32, Option<&Outage>)> {
        let known = self.tracks.iter().filter(|(_, track)| track.outages > 0);
        known.map(|(blame, track)| (blame, track.outages, track.out.as_ref()))
    }

    /// What the agent before this one knew. However the clocks went between the two, nothing is out for longer than it may be.
    pub fn recall(&mut self, blame: Blame, outages: u32, out: Option<Outage>, now: Duration) {
        let out = out.map(|out| Outage { until: out.until.min(now + self.rule.longest), ..out });
        let out = out.filter(|out| out.until > now);
        self.tracks.insert(blame, FailureTrack { failures: Vec::new(), outages, out });
    }

    /// Ends the outages whose time is over: what they were about is on trial. `true` when one ended.
    pub fn age(&mut self, now: Duration) -> bool {
        let over = |track: &mut FailureTrack| track.out.take_if(|out| out.until <= now).is_some();
        self.tracks.values_mut().map(over).filter(|over| *over).count() > 0
    }

    /// When the next outage ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.tracks.values().filter_map(|track| track.out.as_ref()).map(|out| out.until).min()
    }

    /// Why the node is out of service, no device being to blame: of several reasons the one that lasts longest.
    pub fn node(&self) -> Option<&Outage> {
        let of_node = self.tracks.iter().filter(|(blame, _)| !matches!(blame, Blame::Device(_)));
        of_node.filter_map(|(_, track)| track.out.as_ref()).max_by_key(|out| out.until)
    }

    /// Devices that are out of service by themselves.
    pub fn devices(&self) -> impl Iterator<Item = (&DeviceId, &Outage)> {
        self.tracks.iter().filter_map(|(blame, track)| match blame {
            Blame::Device(id) => Some((id, track.out.as_ref()?)),
            Blame::Node(_) | Blame::Start => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fails(suspicion: &mut Suspicion, at: u64) -> bool {
        suspicion.note(ServeOutcome::Failed { blame: Blame::Node(DeviceType::Gpu), why: "no room".into() }, s(at))
    }

    fn serves(suspicion: &mut Suspicion, kind: DeviceType) -> bool {
        suspicion.note(ServeOutcome::Served([(kind, DeviceId::parse("GPU-1").unwrap())].into()), s(0))
    }

    #[test]
    fn the_third_failure_in_five_minutes_is_an_outage_and_each_doubles_to_half_an_hour() {
        let mut suspicion = Suspicion::default();
        assert!(!fails(&mut suspicion, 0) && !fails(&mut suspicion, 299) && !fails(&mut suspicion, 301));
        assert_eq!(suspicion.node(), None, "the first is too old by then");
        assert!(fails(&mut suspicion, 302));
        let mut now = 302;
        for minutes in [1, 2, 4, 8, 16, 30, 30] {
            let out = suspicion.node().expect("it is out");
            assert_eq!((out.since, out.until, suspicion.next_end()), (s(now), s(now + minutes * 60), Some(out.until)));
            assert!(!fails(&mut suspicion, now + 1), "pods that were on their way count no more");
            assert!(!suspicion.age(s(now + minutes * 60 - 1)));
            now += minutes * 60;
            assert!(suspicion.age(s(now)) && suspicion.node().is_none() && suspicion.next_end().is_none());
            assert!(fails(&mut suspicion, now), "on trial one failure is enough");
        }
    }

    #[test]
    fn one_success_forgets_everything_of_its_kind() {
        let mut suspicion = Suspicion::default();
        assert_eq!((0..3).map(|at| fails(&mut suspicion, at)).collect::<Vec<_>>(), [false, false, true]);
        assert!(!serves(&mut suspicion, DeviceType::Rdma) && suspicion.node().is_some(), "a NIC proves no GPU");
        assert!(serves(&mut suspicion, DeviceType::Gpu) && suspicion.node().is_none());
        assert!(!fails(&mut suspicion, 3) && !fails(&mut suspicion, 4), "it is trusted as at first");
        assert!(!serves(&mut suspicion, DeviceType::Gpu));
        assert!(!fails(&mut suspicion, 5) && !fails(&mut suspicion, 6) && fails(&mut suspicion, 7));
    }

    #[test]
    fn what_was_known_goes_on_after_a_restart_as_if_there_was_none() {
        let mut before = Suspicion::default();
        assert_eq!((0..3).map(|at| fails(&mut before, at)).collect::<Vec<_>>(), [false, false, true]);
        let known: Vec<_> = before.outages().map(|(blame, count, out)| (blame.clone(), count, out.cloned())).collect();
        let recalled = |at: u64| {
            let mut after = Suspicion::default();
            known.iter().for_each(|(blame, count, out)| after.recall(blame.clone(), *count, out.clone(), s(at)));
            after
        };
        assert_eq!(recalled(10).node(), before.node());
        let mut later = recalled(100);
        assert_eq!(later.node(), None, "its minute is over");
        assert!(fails(&mut later, 101), "and it is on trial");
        assert_eq!(later.node().unwrap().until, s(101 + 120));
        assert!(serves(&mut later, DeviceType::Gpu) && later.outages().next().is_none());
        let mut early = Suspicion::default();
        let far = Outage { since: s(0), until: s(1 << 40), why: "the clock was set".into() };
        early.recall(Blame::Start, 1, Some(far), s(0));
        assert_eq!(early.next_end(), Some(s(30 * 60)));
    }

    #[test]
    fn a_device_to_blame_goes_alone() {
        let mut suspicion = Suspicion::default();
        let id = DeviceId::parse("GPU-1").unwrap();
        let failed = || ServeOutcome::Failed { blame: Blame::Device(id.clone()), why: "lost".into() };
        let went: Vec<bool> = (0..3).map(|at| suspicion.note(failed(), s(at))).collect();
        assert_eq!((went, suspicion.node()), (vec![false, false, true], None));
        assert_eq!(
            suspicion.devices().map(|(id, out)| (id.as_str(), out.until)).collect::<Vec<_>>(),
            [("GPU-1", s(62))]
        );
    }

    #[test]
    fn a_tenant_alone_takes_no_node_out_by_containers_that_do_not_start() {
        let mut suspicion = Suspicion::default();
        let failed = |namespace: &str| ServeOutcome::StartFailed { namespace: namespace.into(), pod: "p".into() };
        assert!((0..1000).all(|at| !suspicion.note(failed("a"), s(at))));
        assert!(suspicion.note(failed("b"), s(1000)));
        assert!(suspicion.age(s(1060)));
        assert!((1060..2000).all(|at| !suspicion.note(failed("b"), s(at))), "nor keeps it out");
        assert!(!suspicion.note(ServeOutcome::Started, s(2000)));
        assert!(!suspicion.note(failed("b"), s(2001)) && !suspicion.note(failed("a"), s(2002)));
        assert!(suspicion.note(failed("a"), s(2003)));
    }
}
