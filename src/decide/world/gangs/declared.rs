//! What one object, a pod or a PodGroup, states about its gang: read once, at the border, with a warning for each bad value.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::world::Resources;
use baton_contract::gang::{
    BadName, BadValue, GangId, MAX_SUB_PRIORITY, MatchPolicy, Mode, PodGroupApi, PodGroupStatus, TimeoutClock,
    TopologySpec, key, parse_groups, parse_members, parse_rank, parse_sub_priority, parse_wait,
};

use super::config::GangDefaults;
use baton_contract::EventReason;
use baton_contract::key::{is_unsupported, moved};
use baton_contract::name::bad;

type Texts = BTreeMap<String, String>;

/// A key and its value, cut.
type Stated = (&'static str, Box<str>);

/// Before the name of each of Koordinator's keys.
const GANG_DOMAIN: &str = "gang.scheduling.koordinator.sh/";

/// Values of one level of precedence; `None` where nothing valid is stated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DeclaredFields {
    /// Fewest members that may run; 0 means no gang rule.
    pub min: Option<u32>,
    /// How long reserved members wait for the others.
    pub wait: Option<Duration>,
    /// How many members there are in all, as stated.
    pub total: Option<u32>,
    /// What one failure means for the others.
    pub mode: Option<Mode>,
    /// When the waiting time begins.
    pub clock: Option<TimeoutClock>,
    /// Which members count.
    pub policy: Option<MatchPolicy>,
    /// Gangs that start together, as listed; empty means alone.
    pub groups: Option<Arc<BTreeSet<GangId>>>,
    /// Where the members are gathered, by Koordinator's annotation; of a spec, by its constraints.
    pub topology: Option<Arc<TopologySpec>>,
    /// The same by Baton's own keys.
    pub own_topology: Option<Arc<TopologySpec>>,
}

/// The key that named the gang. The order is the precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedBy {
    /// `spec.schedulingGroup.podGroupName`.
    SchedulingGroup,
    /// `pod-group.scheduling.sigs.k8s.io`.
    PodGroup,
    /// `scheduling.x-k8s.io/pod-group`.
    CommunityPodGroup,
    /// `pod-group.scheduling.sigs.k8s.io/name`.
    PodGroupName,
    /// `gang.scheduling.koordinator.sh/name`.
    Koordinator,
    /// Nothing: the pod has keys of a gang, and none that names it.
    Nothing,
}

impl NamedBy {
    /// The key.
    pub const fn key(self) -> &'static str {
        match self {
            Self::SchedulingGroup => key::SCHEDULING_GROUP,
            Self::PodGroup => key::POD_GROUP,
            Self::CommunityPodGroup => key::COMMUNITY_POD_GROUP,
            Self::PodGroupName => key::POD_GROUP_NAME,
            Self::Koordinator => key::NAME,
            Self::Nothing => "no key",
        }
    }

    /// `true` when the name is that of a PodGroup without which the pod waits.
    pub const fn expects_pod_group(self) -> bool {
        matches!(self, Self::SchedulingGroup | Self::PodGroup | Self::CommunityPodGroup)
    }
}

/// The gang that a pod names, and by which key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GangName {
    /// The key.
    pub by: NamedBy,
    /// The gang; a name that could name nothing holds the pod, and so does a missing one.
    pub gang: Result<GangId, BadName>,
}

impl GangName {
    /// The text, a valid name or not.
    pub fn name(&self) -> &str {
        match &self.gang {
            Ok(gang) => gang.name(),
            Err(bad) => bad.value(),
        }
    }
}

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// `apiVersion`.
    pub api_version: Box<str>,
    /// `kind`.
    pub kind: Box<str>,
    /// `name`, in the pod's namespace.
    pub name: Box<str>,
    /// `uid`.
    pub uid: Box<str>,
}

/// What a pod states about its gang. Pods without keys of a gang have none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declared {
    /// By the keys of annotations and labels.
    pub named: Option<GangName>,
    /// By `spec.schedulingGroup`; goes before [`Declared::named`] where the installation reads it.
    pub scheduling_group: Option<GangName>,
    /// Annotations of `gang.scheduling.koordinator.sh`: the highest level.
    pub koordinator: DeclaredFields,
    /// Labels and annotations of `pod-group.scheduling.sigs.k8s.io`: the second level.
    pub pod_group: DeclaredFields,
    /// Label `koordinator.sh/priority`.
    pub sub_priority: i64,
    /// Annotation `timeout` is `"true"`.
    pub timed_out: bool,
    /// The pod's controller.
    pub owner: Option<Owner>,
    /// When the last container of a pod that has ended did, as its kubelet says.
    pub ended: Option<Timestamp>,
    /// What is wrong with its values, and with names in annotations and labels.
    pub warnings: Vec<Warning>,
}

/// Where declarations stand on a pod.
#[derive(Debug, Clone, Copy)]
pub struct DeclarationSource<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.labels`.
    pub labels: Option<&'a Texts>,
    /// `metadata.annotations`.
    pub annotations: Option<&'a Texts>,
    /// `spec.schedulingGroup.podGroupName`.
    pub scheduling_group: Option<&'a str>,
}

impl<'a> DeclarationSource<'a> {
    fn label(&self, key: &str) -> Option<&'a str> {
        self.labels?.get(key).map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&'a str> {
        self.annotations?.get(key).map(String::as_str)
    }

    /// Label, then annotation.
    fn either(&self, key: &'static str) -> impl Iterator<Item = (&'static str, &'a str)> {
        [self.label(key), self.annotation(key)].into_iter().flatten().map(move |text| (key, text))
    }

    /// Every gang that the pod names in labels and annotations, the one that counts first.
    fn names(&self) -> impl Iterator<Item = (NamedBy, &'a str)> {
        let all = [
            (NamedBy::PodGroup, self.label(key::POD_GROUP)),
            (NamedBy::PodGroup, self.annotation(key::POD_GROUP)),
            (NamedBy::CommunityPodGroup, self.label(key::COMMUNITY_POD_GROUP)),
            (NamedBy::PodGroupName, self.label(key::POD_GROUP_NAME)),
            (NamedBy::PodGroupName, self.annotation(key::POD_GROUP_NAME)),
            (NamedBy::Koordinator, self.annotation(key::NAME)),
        ];
        all.into_iter().filter_map(|(by, name)| Some((by, name.filter(|name| !name.is_empty())?)))
    }

    /// Some key may be one of a gang. Most pods have none.
    fn has_gang_keys(&self) -> bool {
        let keys = self.labels.into_iter().chain(self.annotations).flat_map(BTreeMap::keys);
        let of_gang = |key: &str| {
            key.starts_with(GANG_DOMAIN)
                || key.starts_with(key::POD_GROUP)
                || [key::COMMUNITY_POD_GROUP, key::TIMEOUT_CLOCK, key::REQUIRED_TOPOLOGY, key::PREFERRED_TOPOLOGY]
                    .contains(&key)
        };
        keys.map(String::as_str).any(of_gang)
    }

    /// Every key of a gang with its value, and what is wrong with the place where it stands.
    fn stated(&self) -> impl Iterator<Item = (&'static str, &'a str, Option<&'static str>)> {
        key::POD_KEYS.iter().flat_map(|place| {
            let label = (!place.label).then_some("is a label, and read as an annotation only");
            let annotation = (!place.annotation).then_some("is an annotation, and read as a label only");
            let label = self.label(place.key).map(|text| (place.key, text, label));
            label.into_iter().chain(self.annotation(place.key).map(|text| (place.key, text, annotation)))
        })
    }

    /// What a pod that has keys of a gang and no name of one has to be told.
    fn nameless(&self) -> Option<GangName> {
        let (key, text, misplaced) = self.stated().next()?;
        let unnamed = if text.is_empty() { "names no gang" } else { "is stated, and no key names the gang" };
        Some(GangName { by: NamedBy::Nothing, gang: Err(bad(key, text, misplaced.unwrap_or(unnamed))) })
    }
}

/// The first valid value. What is invalid, or differs from the first, warns.
fn first<'a, T: PartialEq>(
    candidates: impl Iterator<Item = (&'static str, &'a str)>,
    warnings: &mut Vec<Warning>,
    parse: impl Fn(&'static str, &str) -> Result<Option<T>, BadValue>,
) -> Option<T> {
    let mut found: Option<(T, Stated)> = None;
    for (key, text) in candidates {
        match (parse(key, text), &found) {
            (Err(bad), _) => warnings.push(Warning::Value(bad)),
            (Ok(Some(value)), None) => found = Some((value, (key, excerpt(text)))),
            (Ok(Some(value)), Some((used, stated))) if *used != value => {
                warnings.push(Warning::TwoValues { used: stated.clone(), ignored: (key, excerpt(text)) });
            }
            (Ok(_), _) => {}
        }
    }
    found.map(|(value, _)| value)
}

fn some<T>(
    parse: impl Fn(&'static str, &str) -> Result<T, BadValue>,
) -> impl Fn(&'static str, &str) -> Result<Option<T>, BadValue> {
    move |key, text| parse(key, text).map(Some)
}

fn listed(key: &'static str, text: &str) -> Result<Arc<BTreeSet<GangId>>, BadValue> {
    parse_groups(key, text).map(Arc::new)
}

/// Without a topology that cannot be read the members would run elsewhere than asked for: it holds them.
fn topology(read: Result<Option<TopologySpec>, BadValue>, warnings: &mut Vec<Warning>) -> Option<Arc<TopologySpec>> {
    read.unwrap_or_else(|bad| {
        warnings.push(Warning::NotHonoured(bad));
        None
    })
    .map(Arc::new)
}

impl DeclaredFields {
    /// Annotations that both pods and PodGroups carry.
    fn koordinator(from: &DeclarationSource<'_>, warnings: &mut Vec<Warning>) -> Self {
        let at = |key: &'static str| from.annotation(key).map(|text| (key, text)).into_iter();
        Self {
            min: None,
            wait: None,
            total: first(at(key::TOTAL_NUMBER), warnings, some(parse_members)),
            mode: first(at(key::MODE), warnings, some(Mode::parse)),
            clock: first(at(key::TIMEOUT_CLOCK), warnings, some(TimeoutClock::parse)),
            policy: first(at(key::MATCH_POLICY), warnings, some(MatchPolicy::parse)),
            groups: first(at(key::GROUPS).chain(at(key::GANG_GROUPS)), warnings, some(listed)),
            topology: topology(
                from.annotation(key::NETWORK_TOPOLOGY_SPEC)
                    .map_or(Ok(None), |text| TopologySpec::parse(key::NETWORK_TOPOLOGY_SPEC, text)),
                warnings,
            ),
            own_topology: topology(
                TopologySpec::short(from.annotation(key::REQUIRED_TOPOLOGY), from.annotation(key::PREFERRED_TOPOLOGY)),
                warnings,
            ),
        }
    }

    /// Labels and annotations that both pods and PodGroups carry.
    fn pod_group(from: &DeclarationSource<'_>, warnings: &mut Vec<Warning>) -> Self {
        Self {
            policy: first(from.either(key::POD_GROUP_MATCH_POLICY), warnings, some(MatchPolicy::parse)),
            groups: first(from.either(key::POD_GROUP_GROUPS), warnings, some(listed)),
            ..Self::default()
        }
    }

    /// Warns of what `second`, the second level of the same object, states otherwise.
    fn contradict(&self, second: &Self, from: &DeclarationSource<'_>, warnings: &mut Vec<Warning>) {
        fn differ<T: PartialEq>(first: Option<&T>, second: Option<&T>) -> bool {
            first.zip(second).is_some_and(|(first, second)| first != second)
        }
        for (differ, used, ignored) in [
            (differ(self.min.as_ref(), second.min.as_ref()), key::MIN_AVAILABLE, key::POD_GROUP_MIN_AVAILABLE),
            (differ(self.policy.as_ref(), second.policy.as_ref()), key::MATCH_POLICY, key::POD_GROUP_MATCH_POLICY),
            (differ(self.groups.as_ref(), second.groups.as_ref()), key::GROUPS, key::POD_GROUP_GROUPS),
        ] {
            let text = |key| from.either(key).next().map_or_else(Box::default, |(_, text)| excerpt(text));
            if differ {
                warnings.push(Warning::TwoValues { used: (used, text(used)), ignored: (ignored, text(ignored)) });
            }
        }
    }

    /// What the labels and annotations of a PodGroup object say.
    pub fn of_pod_group(labels: Option<&Texts>, annotations: Option<&Texts>) -> (Self, Vec<Warning>) {
        let from = DeclarationSource { namespace: "", labels, annotations, scheduling_group: None };
        let mut warnings = Vec::new();
        let mut fields = Self::koordinator(&from, &mut warnings);
        let second = Self::pod_group(&from, &mut warnings);
        fields.contradict(&second, &from, &mut warnings);
        fields.policy = fields.policy.or(second.policy);
        fields.groups = fields.groups.or(second.groups);
        for key in [key::MIN_AVAILABLE, key::WAITING_TIME, key::POD_GROUP_MIN_AVAILABLE, key::NETWORK_TOPOLOGY_INDEX] {
            let stated = from.either(key).map(|(_, text)| BadValue::new(key, text, "is read on pods only"));
            warnings.extend(stated.map(Warning::Value));
        }
        warnings.extend(unsupported(labels, annotations).map(Warning::NotSupported));
        (fields, warnings)
    }
}

impl Declared {
    /// Reads a pod. `None` for a pod without keys of a gang. `owner` is called only for the others.
    pub fn read(from: &DeclarationSource<'_>, owner: impl FnOnce() -> Option<Owner>) -> Option<Self> {
        let scheduling_group = from.scheduling_group.filter(|name| !name.is_empty());
        if scheduling_group.is_none() && !from.has_gang_keys() {
            return None;
        }
        let named = |(by, name): (NamedBy, &str)| GangName { by, gang: GangId::new(from.namespace, name) };
        let mut names = from.names();
        let first_name = names.next();
        let by_keys = first_name.map(named).or_else(|| from.nameless());
        if by_keys.is_none() && scheduling_group.is_none() {
            return None;
        }
        let misplaced = from.stated().filter_map(|(key, text, why)| Some(BadValue::new(key, text, why?)));
        let mut warnings: Vec<Warning> = misplaced.map(Warning::Value).collect();
        if let Some((by, used)) = first_name
            && let Some((other, ignored)) = names.find(|(_, name)| *name != used)
        {
            warnings
                .push(Warning::TwoNames { used: (by.key(), excerpt(used)), ignored: (other.key(), excerpt(ignored)) });
        }
        let at = |key: &'static str| from.annotation(key).map(|text| (key, text)).into_iter();
        let mut koordinator = DeclaredFields::koordinator(from, &mut warnings);
        koordinator.min = first(at(key::MIN_AVAILABLE), &mut warnings, some(parse_members));
        koordinator.wait = first(at(key::WAITING_TIME), &mut warnings, parse_wait);
        let mut pod_group = DeclaredFields::pod_group(from, &mut warnings);
        pod_group.min = first(from.either(key::POD_GROUP_MIN_AVAILABLE), &mut warnings, some(parse_members));
        koordinator.contradict(&pod_group, from, &mut warnings);
        // The rank itself is no part of this: pods of one template share all the rest.
        first(at(key::NETWORK_TOPOLOGY_INDEX), &mut warnings, some(parse_rank));
        let (sub_priority, beyond) = read_sub_priority(from.label(key::SUB_PRIORITY));
        warnings.extend(beyond);
        Some(Self {
            named: by_keys,
            scheduling_group: scheduling_group.map(|name| named((NamedBy::SchedulingGroup, name))),
            koordinator,
            pod_group,
            sub_priority,
            timed_out: from.annotation(key::TIMEOUT) == Some("true"),
            owner: owner(),
            ended: None,
            warnings,
        })
    }

    /// Brings its waiting time down to what is allowed, with a warning where it is longer.
    pub fn clamp(&mut self, allowed: &GangDefaults) {
        self.warnings.extend(clamp_wait(&mut self.koordinator.wait, key::WAITING_TIME, allowed));
    }

    /// `true` when [`Declared::clamp`] would change it.
    pub fn exceeds(&self, allowed: &GangDefaults) -> bool {
        self.koordinator.wait.is_some_and(|wait| wait > allowed.max_wait)
    }

    /// The gang that counts: of `spec.schedulingGroup` where the installation reads it.
    pub fn named(&self, defaults: &GangDefaults) -> Option<&GangName> {
        self.scheduling_group.as_ref().filter(|_| defaults.scheduling_groups).or(self.named.as_ref())
    }

    /// What is wrong with it, two names that differ included where the installation reads both.
    pub fn all_warnings(&self, defaults: &GangDefaults) -> impl Iterator<Item = Cow<'_, Warning>> {
        let by_keys = self.named.as_ref().filter(|named| named.by != NamedBy::Nothing);
        let both = self.scheduling_group.as_ref().filter(|_| defaults.scheduling_groups).zip(by_keys);
        let differ = both.filter(|(used, ignored)| used.name() != ignored.name()).map(|(used, ignored)| {
            let word = |named: &GangName| (named.by.key(), excerpt(named.name()));
            Cow::Owned(Warning::TwoNames { used: word(used), ignored: word(ignored) })
        });
        self.warnings.iter().map(Cow::Borrowed).chain(differ)
    }
}

/// `169h`, `90m` or `30s`.
fn written(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

fn clamp_wait(wait: &mut Option<Duration>, key: &'static str, allowed: &GangDefaults) -> Option<Warning> {
    let (stated, most) = ((*wait)?, allowed.max_wait);
    (stated > most).then(|| {
        *wait = Some(most);
        Warning::LongWait { key, stated, most }
    })
}

/// The label [`key::SUB_PRIORITY`] as it counts, and what is wrong with it.
pub fn read_sub_priority(text: Option<&str>) -> (i64, Option<Warning>) {
    match parse_sub_priority(text) {
        Ok(stated) if stated > MAX_SUB_PRIORITY => (MAX_SUB_PRIORITY, Some(Warning::HighSubPriority { stated })),
        Ok(stated) => (stated, None),
        Err(bad) => (0, Some(Warning::Value(bad))),
    }
}

/// The labels and annotations that ask for something that is not built, in words; `None` where there are none. An empty one asks for
/// nothing.
pub fn unsupported(labels: Option<&Texts>, annotations: Option<&Texts>) -> Option<Box<str>> {
    /// Its author writes as many as it likes.
    const SHOWN: usize = 5;
    let both = labels.into_iter().chain(annotations).flatten();
    let asks = |text: &str| !matches!(text.trim(), "" | "{}" | "[]" | "null");
    let mut keys = both.filter(|(key, text)| is_unsupported(key) && asks(text)).map(|(key, _)| match moved(key) {
        Some(now) => format!("{key} (not read any more; the key is {now})"),
        None => key.clone(),
    });
    let shown: Vec<String> = keys.by_ref().take(SHOWN).collect();
    let shown = (!shown.is_empty()).then(|| shown.join(", "))?;
    match keys.count() {
        0 => Some(shown.into()),
        more => Some(format!("{shown} and {more} more").into()),
    }
}

fn excerpt(text: &str) -> Box<str> {
    text.chars().take(80).collect::<String>().into()
}

/// One PodGroup object.
#[derive(Debug, Clone, PartialEq)]
pub struct PodGroupFacts {
    /// Which API it is of.
    pub api: PodGroupApi,
    /// Namespace and name: the gang.
    pub gang: GangId,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`: precondition of writes.
    pub version: Box<str>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// The scheduler made it for pods without a controller: nothing else removes it.
    pub ours: bool,
    /// Its labels and annotations: the third level.
    pub annotated: DeclaredFields,
    /// Its `spec`: the fourth level. Only minimum and wait.
    pub spec: DeclaredFields,
    /// `spec.minResources`.
    pub min_resources: Resources,
    /// `spec.priority` of `scheduling.k8s.io`: that of its pods, whatever they state.
    pub priority: Option<i32>,
    /// `spec.preemptionPolicy` there, likewise: it is `Never`.
    pub never_preempts: Option<bool>,
    /// `status`, as it stands; what cannot be read is absent.
    pub status: PodGroupStatus,
    /// What is wrong with it.
    pub warnings: Vec<Warning>,
}

impl PodGroupFacts {
    /// An object that states nothing.
    pub fn new(api: PodGroupApi, gang: GangId) -> Self {
        Self {
            api,
            gang,
            uid: Box::default(),
            version: Box::default(),
            created: Timestamp::UNIX_EPOCH,
            ours: false,
            annotated: DeclaredFields::default(),
            spec: DeclaredFields::default(),
            min_resources: Resources::default(),
            priority: None,
            never_preempts: None,
            status: PodGroupStatus::default(),
            warnings: Vec::new(),
        }
    }

    /// A wait in seconds as `spec.scheduleTimeoutSeconds` states it: only one above zero counts.
    pub fn wait_seconds(seconds: i64) -> Option<Duration> {
        u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    /// Brings its waiting times down to what is allowed, with a warning for each that is beyond.
    pub fn clamp(&mut self, allowed: &GangDefaults) {
        self.warnings.extend(clamp_wait(&mut self.annotated.wait, key::WAITING_TIME, allowed));
        self.warnings.extend(clamp_wait(&mut self.spec.wait, "spec.scheduleTimeoutSeconds", allowed));
    }
}

/// What is wrong with a declaration. All but those that [hold](Warning::holds) keep no pod from running and are reported once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Warning {
    /// A value that cannot be used; the next level, another member or the default holds.
    Value(BadValue),
    /// A field of a PodGroup of `scheduling.k8s.io`, or a part of a topology, that is not honoured.
    NotHonoured(BadValue),
    /// Keys that ask for something that is not built.
    NotSupported(Box<str>),
    /// An object states two values for one setting; the first counts.
    TwoValues {
        /// Key and value that count.
        used: Stated,
        /// Key and value that do not.
        ignored: Stated,
    },
    /// A waiting time above the allowed one, which counts.
    LongWait {
        /// Key or field.
        key: &'static str,
        /// As written.
        stated: Duration,
        /// What counts.
        most: Duration,
    },
    /// A sub-priority above [`MAX_SUB_PRIORITY`], which counts.
    HighSubPriority {
        /// As written.
        stated: i64,
    },
    /// A pod names two gangs; the first counts.
    TwoNames {
        /// Key and name that count.
        used: Stated,
        /// Key and name that do not.
        ignored: Stated,
    },
    /// Members disagree; the oldest one's value counts.
    Disagreement {
        /// Key.
        key: &'static str,
        /// The value that counts, as text.
        used: Box<str>,
    },
    /// The total is below the minimum; the minimum counts.
    TotalBelowMin {
        /// `total-number`.
        total: u32,
        /// `min-available`.
        min: u32,
    },
    /// Several APIs have a PodGroup of this name; the first counts.
    TwoPodGroups {
        /// API whose object counts.
        used: &'static str,
        /// API whose object does not.
        ignored: &'static str,
    },
}

impl Warning {
    /// What holds the gang: without the list of gangs that cannot be read its pods would run without the others, and without the
    /// field that is not honoured they would run otherwise than asked for.
    pub fn holds(&self) -> Option<&BadValue> {
        match self {
            Self::NotHonoured(bad) => Some(bad),
            Self::Value(bad) if [key::GROUPS, key::GANG_GROUPS, key::POD_GROUP_GROUPS].contains(&bad.key) => Some(bad),
            _ => None,
        }
    }

    /// Reason of the event.
    pub const fn reason(&self) -> EventReason {
        match self {
            Self::Value(_) | Self::LongWait { .. } | Self::HighSubPriority { .. } | Self::TotalBelowMin { .. } => {
                EventReason::GangInvalidValue
            }
            Self::NotHonoured(_) => EventReason::InvalidGang,
            Self::NotSupported(_) => EventReason::NotSupported,
            Self::TwoNames { .. } => EventReason::GangNameConflict,
            Self::TwoValues { .. } | Self::Disagreement { .. } | Self::TwoPodGroups { .. } => {
                EventReason::GangConfigConflict
            }
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(bad) => write!(f, "{bad}; the value is ignored"),
            Self::NotHonoured(bad) => bad.fmt(f),
            Self::NotSupported(keys) => write!(f, "{keys}: Baton does not do what this asks for, and ignores it"),
            Self::TwoValues { used, ignored } => write!(
                f,
                "{} says {:?} and {} says {:?}; the first counts, remove one",
                used.0, used.1, ignored.0, ignored.1
            ),
            Self::LongWait { key, stated, most } => {
                let (stated, most) = (written(*stated), written(*most));
                write!(f, "{key}: {stated} is longer than max-waiting-time: {most} counts")
            }
            Self::HighSubPriority { stated } => {
                write!(f, "{}: {stated} is higher than {MAX_SUB_PRIORITY}, which counts", key::SUB_PRIORITY)
            }
            Self::TwoNames { used, ignored } => write!(
                f,
                "the pod names two gangs: {} says {:?} and {} says {:?}; the first counts, remove one",
                used.0, used.1, ignored.0, ignored.1
            ),
            Self::Disagreement { key, used } => {
                write!(f, "members disagree about {key}: {used} of the oldest member with a valid value counts")
            }
            Self::TotalBelowMin { total, min } => {
                write!(f, "total-number {total} is below min-available {min}: {min} counts")
            }
            Self::TwoPodGroups { used, ignored } => {
                write!(f, "{used} and {ignored} both have a PodGroup of this name: that of {used} counts")
            }
        }
    }
}
