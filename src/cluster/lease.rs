//! Leadership by a Lease, written by compare-and-swap. Expiry is observed on the local clock, never compared between clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};

use super::restored::{HighestVersion, LeaseError};
use baton_runtime::timings::{s, timings};

timings! {
    /// How fast a dead leader is replaced: as in Kubernetes' own controllers, each below the one before.
    LeaseTimings {
        /// A Lease unchanged for this long is free: nothing is decided for so long after a leader was killed.
        lease_duration: s(15),
        /// A leader that could not renew for this long stops leading, before another may begin.
        lease_renew_deadline: s(10),
        /// Pause between tries: a renewal may fail four times.
        lease_retry: s(2),
    }
}

/// Who leads under which name, and how fast a dead leader is replaced.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// This process; must be unique among candidates.
    pub identity: String,
    /// How fast.
    pub timings: LeaseTimings,
    /// What the leader says of itself in the Lease.
    pub annotations: BTreeMap<String, String>,
}

impl LeaseConfig {
    /// With the fixed times, and nothing that the leader says.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            timings: LeaseTimings::default(),
            annotations: BTreeMap::new(),
        }
    }
}

/// State of the Lease after one try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// This process holds the lease, renewed just now.
    Leading,
    /// Another process holds it.
    Following {
        /// Its identity. `None`: there is no Lease, and a holder that has not been seen may still lead.
        leader: Option<String>,
    },
}

/// A longer duration of another's Lease counts as this: a writer of the Lease could else hold up its followers for ever.
const BELIEVED: Duration = Duration::from_secs(60);

/// How long another's Lease is waited for that says this; `own` where it says nothing, or nothing above zero. Candidates of one Lease
/// are configured alike, so a duration that is our own is believed, too.
fn believed(seconds: Option<i32>, own: Duration) -> Duration {
    let said = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    said.map_or(own, Duration::from_secs).min(BELIEVED.max(own))
}

/// What a candidate does about the Lease that it has read.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseMove {
    /// Create this one: there is none.
    Create(Box<Lease>),
    /// Write this one, provided that the Lease still has the version that was read.
    Replace(Box<Lease>),
    /// Nothing: it is another's, or was a moment ago.
    Follow {
        /// Its holder. `None`: there is no Lease, and a holder that has not been seen may still lead.
        leader: Option<String>,
    },
}

/// The Lease as it was last seen.
#[derive(Debug, Clone)]
struct Observed {
    /// `None`: it had been deleted.
    version: Option<String>,
    /// When it was first seen so.
    since: Duration,
    /// Of the last one that was there.
    holder: Option<String>,
    duration: Duration,
}

/// A candidate's decisions, without its requests: the Lease as it was read comes in, what to write goes out. Times are monotonic, but
/// those that are written into the Lease.
#[derive(Debug, Clone)]
pub struct LeaseJudge {
    config: LeaseConfig,
    /// `None` before the first read, and after one that found no holder.
    observed: Option<Observed>,
    /// When this process last renewed; while set, it leads.
    renewed: Option<Duration>,
}

impl LeaseJudge {
    /// A candidate that has not read the Lease yet.
    pub fn new(config: LeaseConfig) -> Self {
        Self { config, observed: None, renewed: None }
    }

    /// `true` while this process may write as the leader: it renewed within the renew deadline.
    pub fn leads(&self, now: Duration) -> bool {
        now < self.until()
    }

    /// The monotonic end of that.
    pub fn until(&self) -> Duration {
        self.renewed.map_or(Duration::ZERO, |at| at + self.config.timings.lease_renew_deadline)
    }

    /// Renews, takes a free or expired Lease, or observes.
    pub fn judge(&mut self, read: Option<Lease>, now: Duration, wall: Timestamp) -> LeaseMove {
        let leads = self.leads(now);
        let Some(mut lease) = read else {
            // Its holder may still lead, and makes it again: that it is gone is news, and has to stand as long as any other. The
            // manifests have a Lease without a holder, so that the first leader of a cluster does not wait.
            if !leads {
                let duration = self.config.timings.lease_duration;
                let missing = Observed { version: None, since: now, holder: None, duration };
                let of = self.observed.get_or_insert(missing);
                if of.version.take().is_some() {
                    of.since = now;
                }
                if now < of.since + of.duration {
                    return LeaseMove::Follow { leader: of.holder.clone() };
                }
            }
            let metadata = ObjectMeta { name: Some(self.config.name.clone()), ..ObjectMeta::default() };
            return LeaseMove::Create(self.filled(Lease { metadata, spec: None }, self.spec(wall, wall, 0)));
        };
        let version = lease.metadata.resource_version.clone();
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder == self.config.identity {
            let acquired = spec.acquire_time.map_or(wall, |time| time.0);
            let spec = self.spec(acquired, wall, spec.lease_transitions.unwrap_or(0));
            return LeaseMove::Replace(self.filled(lease, spec));
        }
        self.renewed = None;
        let duration = believed(spec.lease_duration_seconds, self.config.timings.lease_duration);
        let since = self.observed.as_ref().filter(|of| of.version == version).map_or(now, |of| of.since);
        let leader = Some(holder).filter(|holder| !holder.is_empty());
        self.observed = leader.clone().map(|holder| Observed { version, since, holder: Some(holder), duration });
        if leader.is_none() || now >= since + duration {
            let spec = self.spec(wall, wall, spec.lease_transitions.unwrap_or(0).saturating_add(1));
            return LeaseMove::Replace(self.filled(lease, spec));
        }
        LeaseMove::Follow { leader }
    }

    /// The write was stored as `version`. `now` is a time before it was sent.
    pub fn won(&mut self, version: Option<String>, now: Duration) {
        let (holder, duration) = (Some(self.config.identity.clone()), self.config.timings.lease_duration);
        self.observed = Some(Observed { version, since: now, holder, duration });
        self.renewed = Some(now);
    }

    fn filled(&self, mut lease: Lease, spec: LeaseSpec) -> Box<Lease> {
        lease.metadata.annotations.get_or_insert_default().extend(self.config.annotations.clone());
        lease.spec = Some(spec);
        Box::new(lease)
    }

    fn spec(&self, acquired: Timestamp, renewed: Timestamp, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: i32::try_from(self.config.timings.lease_duration.as_secs().max(1)).ok(),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(renewed)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

/// A candidate. Call [`LeaseCandidate::step`] every `retry`, from one place, with the monotonic time.
pub struct LeaseCandidate {
    api: Api<Lease>,
    judge: LeaseJudge,
    highest: HighestVersion,
}

impl LeaseCandidate {
    /// A candidate that has not read the Lease yet.
    pub fn new(client: Client, config: LeaseConfig) -> Self {
        let api = Api::namespaced(client, &config.namespace);
        Self { api, judge: LeaseJudge::new(config), highest: HighestVersion::default() }
    }

    /// `true` while this process may write as the leader: it renewed within the renew deadline.
    pub fn leads(&self, now: Duration) -> bool {
        self.judge.leads(now)
    }

    /// The settings.
    pub fn config(&self) -> &LeaseConfig {
        &self.judge.config
    }

    /// Renews, takes a free or expired lease, or observes. An error (API server away, conflict) changes nothing: a leader
    /// goes on until [`LeaseCandidate::leads`] says no.
    pub async fn step(&mut self, now: Duration, wall: Timestamp) -> Result<LeaseState, LeaseError> {
        let read = self.api.get_opt(&self.config().name).await?;
        if let Some(lease) = &read {
            self.highest.see(&lease.metadata)?;
        }
        let params = PostParams::default();
        let written = match self.judge.judge(read, now, wall) {
            LeaseMove::Follow { leader } => return Ok(LeaseState::Following { leader }),
            LeaseMove::Create(lease) => self.api.create(&params, &lease).await?,
            // PUT with the resourceVersion that was read: the loser of a race gets 409 and follows.
            LeaseMove::Replace(lease) => self.api.replace(&self.config().name, &params, &lease).await?,
        };
        self.highest.see(&written.metadata)?;
        self.judge.won(written.metadata.resource_version, now);
        Ok(LeaseState::Leading)
    }

    /// Gives the lease away at shutdown, so that the next leader need not wait. Does nothing when not leading.
    pub async fn release(&mut self, wall: Timestamp) -> Result<(), kube::Error> {
        if self.judge.renewed.take().is_none() {
            return Ok(());
        }
        let config = self.config();
        let Some(mut lease) = self.api.get_opt(&config.name).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
        if spec.holder_identity.as_deref() != Some(&config.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(wall));
        self.api.replace(&config.name, &PostParams::default(), &lease).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duration_of_anothers_lease_is_believed_up_to_a_minute() {
        let own = Duration::from_secs(15);
        for (said, counts) in
            [(Some(15), 15), (Some(60), 60), (Some(61), 60), (Some(i32::MAX), 60), (Some(1), 1), (Some(0), 15)]
        {
            assert_eq!(believed(said, own).as_secs(), counts, "{said:?}");
        }
        for nonsense in [None, Some(-1), Some(i32::MIN)] {
            assert_eq!(believed(nonsense, own), own, "{nonsense:?}");
        }
        assert_eq!(believed(Some(300), Duration::from_secs(120)).as_secs(), 120, "as long as one's own");
    }

    #[test]
    fn a_follower_takes_over_once_one_version_has_stood_for_its_duration() {
        let (wall, second) = (Timestamp::UNIX_EPOCH, Duration::from_secs);
        let judge = |identity| LeaseJudge::new(LeaseConfig::new("ns", "leader", identity));
        let written = |step: LeaseMove, version: &str| match step {
            LeaseMove::Create(mut lease) | LeaseMove::Replace(mut lease) => {
                lease.metadata.resource_version = Some(version.to_owned());
                *lease
            }
            LeaseMove::Follow { leader } => panic!("{leader:?} leads"),
        };
        let (mut first, mut second_one) = (judge("a"), judge("b"));
        let lease = written(first.judge(Some(Lease::default()), second(0), wall), "1");
        first.won(Some("1".to_owned()), second(0));
        assert!(first.leads(second(9)) && !first.leads(second(10)), "until the renew deadline");
        let follows = LeaseMove::Follow { leader: Some("a".to_owned()) };
        assert_eq!(second_one.judge(Some(lease.clone()), second(1), wall), follows);
        assert_eq!(second_one.judge(Some(lease.clone()), second(15), wall), follows);
        let renewed = written(first.judge(Some(lease), second(15), wall), "2");
        assert_eq!(second_one.judge(Some(renewed.clone()), second(17), wall), follows, "another version");
        let taken = written(second_one.judge(Some(renewed), second(32), wall), "3");
        second_one.won(Some("3".to_owned()), second(32));
        assert_eq!(first.judge(Some(taken), second(33), wall), LeaseMove::Follow { leader: Some("b".to_owned()) });
        assert!(!first.leads(second(33)) && second_one.leads(second(33)));
    }

    #[test]
    fn a_lease_that_is_deleted_is_its_holders_to_make_again() {
        let (wall, second) = (Timestamp::UNIX_EPOCH, Duration::from_secs);
        let judge = |identity| LeaseJudge::new(LeaseConfig::new("ns", "leader", identity));
        let (mut first, mut follower) = (judge("a"), judge("b"));
        let free = Some(Lease::default());
        let LeaseMove::Replace(mut lease) = first.judge(free, second(0), wall) else { panic!("it has no holder") };
        lease.metadata.resource_version = Some("1".to_owned());
        first.won(Some("1".to_owned()), second(0));
        let follows = LeaseMove::Follow { leader: Some("a".to_owned()) };
        assert_eq!(follower.judge(Some(*lease.clone()), second(1), wall), follows);
        // The follower was cut off meanwhile.
        assert_eq!(follower.judge(None, second(100), wall), follows);
        assert_eq!(follower.judge(None, second(114), wall), follows);
        first.won(Some("1".to_owned()), second(99));
        assert!(matches!(first.judge(None, second(100), wall), LeaseMove::Create(_)), "it leads");
        assert_eq!(first.judge(None, second(120), wall), follows, "it leads no more");
        assert!(matches!(follower.judge(None, second(115), wall), LeaseMove::Create(_)), "its holder is gone");
        // One that starts now has not seen who may still lead.
        let mut new = judge("c");
        let nameless = LeaseMove::Follow { leader: None };
        assert_eq!(new.judge(None, second(101), wall), nameless);
        assert_eq!(new.judge(None, second(115), wall), nameless);
        assert!(matches!(new.judge(None, second(116), wall), LeaseMove::Create(_)));
        // A Lease that was given away has no holder to wait for.
        lease.spec.get_or_insert_default().holder_identity = Some(String::new());
        assert!(matches!(follower.judge(Some(*lease), second(117), wall), LeaseMove::Replace(_)));
        assert_eq!(follower.judge(None, second(118), wall), nameless, "another may have taken it meanwhile");
    }
}
