//! What a pod asks of the place where it runs, beside devices, and what protects it: small valid records of `spec`.

use std::sync::Arc;

use baton_contract::hint::LabelSelector;
use baton_contract::image::ImageName;

use super::resources::{Rated, Resources};
use crate::shares::ShareTerms;
use crate::world::gangs::Declared;
use baton_contract::tyjob::keys;

pub use crate::devices::Labels;

/// The scheduling fields of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PodSpec {
    /// What the pod states about its gang; `None` where it names none. First, because equal specs are looked up by order: specs of
    /// different gangs, most often equal in all else, differ in the first field.
    pub gang: Option<Arc<Declared>>,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `spec.priority`.
    pub priority: i32,
    /// `spec.activeDeadlineSeconds`: the kubelet ends the pod after this time.
    pub deadline: Option<u32>,
    /// `spec.preemptionPolicy` is `Never`: no pod is evicted for it.
    pub never_preempts: bool,
    /// `status.nominatedNodeName`.
    pub nominated: Option<Box<str>>,
    /// The kubelet has refused the pod: it has failed before any of its containers was made.
    pub refused: bool,
    /// It runs without its devices, by its condition `baton.io/DevicesServed`: it counts as not started.
    pub unserved: bool,
    /// Who is evicted when its device fails.
    pub on_fault: FaultVictims,
    /// Class of service by CPU and memory.
    pub qos: Qos,
    /// What the pod takes from a node's allocatable.
    pub requests: Resources,
    /// CPU and memory as ratings of spreading and packing count them.
    pub rated: Rated,
    /// `spec.nodeSelector`.
    pub node_selector: Labels,
    /// `requiredDuringSchedulingIgnoredDuringExecution`: any term must match; `None` where nothing is required.
    pub node_required: Option<Vec<NodeTerm>>,
    /// `preferredDuringSchedulingIgnoredDuringExecution`: weight and term.
    pub node_preferred: Vec<(i64, NodeTerm)>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// Ports that the pod's containers take on the node.
    pub host_ports: Vec<HostPort>,
    /// `spec.schedulingGates`.
    pub gates: Vec<Box<str>>,
    /// `spec.resourceClaims` is not empty.
    pub resource_claims: bool,
    /// Required pod affinity.
    pub affinity: Vec<PodTerm>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<PodTerm>,
    /// Preferred pod affinity (positive weight) and anti-affinity (negative weight).
    pub pods_preferred: Vec<(i64, PodTerm)>,
    /// Topology spread constraints.
    pub spread: Vec<Spread>,
    /// Claims and volumes that have a place.
    pub volumes: Vec<VolumeUse>,
    /// Images of init containers, containers and volumes. Empty unless [`WorldPolicy::images`](super::WorldPolicy::images).
    pub images: Box<[ImageName]>,
    /// The user's device wishes.
    pub wishes: DeviceWishes,
    /// Why it is not placed, whatever is free: it has too many parts, and they are not here.
    pub too_large: Option<Box<str>>,
    /// Its labels and annotations that ask for something that is not built, in words.
    pub unsupported: Option<Box<str>>,
    /// Bytes of its annotations, keys and values; 0 for up to half of what Kubernetes allows, beside which any assignment has room.
    pub annotation_bytes: u32,
    /// Its own priority and whether it never preempts, where its PodGroup states others, which then stand in the fields above.
    pub own_priority: Option<(i32, bool)>,
    /// Uid of the controller of a pod that waits and asks for devices without a gang; `None` for all others.
    pub controller: Option<Box<str>>,
    /// The TYJob that controls the pod, where the pod says which node is reserved for it.
    pub job: Option<Arc<JobClaim>>,
}

/// Who is evicted when a device of a pod fails, by the annotation `baton.io/evict-on-fault`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum FaultVictims {
    /// The pod.
    #[default]
    Pod,
    /// The pod and all members of its gang.
    Gang,
    /// None: nothing makes the pod again, and it does not ask for it.
    Spared,
    /// None: this value means nothing.
    Unknown(Box<str>),
}

impl FaultVictims {
    /// What the annotation says of a pod, which has a controller or none.
    pub fn read(annotation: Option<&str>, controlled: bool) -> Self {
        match annotation {
            Some("pod") => Self::Pod,
            Some("gang") => Self::Gang,
            Some(other) => Self::Unknown(other.chars().take(40).collect()),
            None if controlled => Self::Pod,
            None => Self::Spared,
        }
    }
}

/// What a pod states about the TYJob that controls it. It counts only where the TYJob agrees.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobClaim {
    /// Name of the controlling TYJob.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// The attempt that the pod was made for; none when its label cannot be read.
    pub attempt: Option<i32>,
}

impl JobClaim {
    /// The claim of a pod with this controller: its kind, API version, name and uid; `None` unless that is a TYJob and the pod
    /// carries the annotation of a reserved node.
    pub fn read<'a>(
        controller: Option<(&str, &str, &str, &str)>,
        label: impl Fn(&str) -> Option<&'a str>,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Self> {
        let (kind, api_version, name, uid) = controller?;
        let group = api_version.split_once('/').map(|(group, _)| group);
        if kind != keys::KIND || group != Some(keys::GROUP) || annotation(keys::ALLOCATION).is_none_or(str::is_empty) {
            return None;
        }
        let attempt = label(keys::ATTEMPT).and_then(|attempt| attempt.parse().ok());
        Some(Self { name: name.into(), uid: uid.into(), attempt })
    }
}

/// Kubernetes' quality of service class, the better one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Qos {
    /// Every container limits CPU and memory and asks for as much.
    Guaranteed,
    /// Some container asks for or limits one of them.
    Burstable,
    /// No container asks for or limits either.
    #[default]
    BestEffort,
}

impl Qos {
    /// By what each container (or else the pod as a whole) asks for and its limits, CPU in thousandths and memory in bytes;
    /// an amount that is not above zero counts as not named.
    pub fn of(parts: impl IntoIterator<Item = ([i64; 2], [i64; 2])>) -> Self {
        let (mut asked, mut limits, mut all_limited) = ([0i64; 2], [0i64; 2], true);
        for (part_asked, part_limits) in parts {
            for at in 0..2 {
                asked[at] = asked[at].saturating_add(part_asked[at].max(0));
                limits[at] = limits[at].saturating_add(part_limits[at].max(0));
                all_limited &= part_limits[at] > 0;
            }
        }
        match (asked == [0; 2] && limits == [0; 2], all_limited && asked == limits) {
            (true, _) => Self::BestEffort,
            (false, true) => Self::Guaranteed,
            (false, false) => Self::Burstable,
        }
    }
}

/// What the user says about devices beside how many.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DeviceWishes {
    /// `device-allocate-hint`.
    pub hint: Option<Box<str>>,
    /// `device-joint-allocate`.
    pub joint: Option<Box<str>>,
    /// `gpu-partition-spec`.
    pub partition: Option<Box<str>>,
    /// What it says about the limits of GPU shares, where it says something.
    pub shares: Option<Box<ShareTerms>>,
}

/// The label with a node's own name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// One node selector term: all parts must hold; a term without parts matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NodeTerm {
    /// Over labels.
    pub expressions: Vec<NodeRequirement>,
    /// Over `metadata.name`.
    pub fields: Vec<NodeRequirement>,
}

/// One requirement of a node selector term.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeRequirement {
    /// Label or field.
    pub key: String,
    /// What must hold.
    pub operator: NodeOperator,
    /// Values.
    pub values: Vec<String>,
}

/// Operators of a node selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeOperator {
    /// One of the values.
    In,
    /// Absent or none of the values.
    NotIn,
    /// There.
    Exists,
    /// Absent.
    DoesNotExist,
    /// A number above the value.
    Gt,
    /// A number below the value.
    Lt,
    /// A word that this version does not know: never matches.
    Unknown,
}

impl NodeRequirement {
    /// `true` when `value` satisfies this requirement.
    pub fn holds(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|wanted| wanted == value);
        let numbers = || Some((value?.parse::<i64>().ok()?, self.values.first()?.parse::<i64>().ok()?));
        match self.operator {
            NodeOperator::In => value.is_some_and(listed),
            NodeOperator::NotIn => !value.is_some_and(listed),
            NodeOperator::Exists => value.is_some(),
            NodeOperator::DoesNotExist => value.is_none(),
            NodeOperator::Gt => numbers().is_some_and(|(have, bound)| have > bound),
            NodeOperator::Lt => numbers().is_some_and(|(have, bound)| have < bound),
            NodeOperator::Unknown => false,
        }
    }
}

impl NodeTerm {
    /// `true` when every part holds for a node.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        if self.expressions.is_empty() && self.fields.is_empty() {
            return false;
        }
        self.expressions.iter().all(|part| part.holds(labels.get(&part.key).map(String::as_str)))
            && self.fields.iter().all(|part| part.key == "metadata.name" && part.holds(Some(name)))
    }
}

impl PodSpec {
    /// `true` when the node selector and the required node affinity accept the node.
    pub fn accepts_node(&self, name: &str, labels: &Labels) -> bool {
        self.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.node_required.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(name, labels)))
    }

    /// It goes to nodes of given names alone, by selector or required affinity: no node that is added helps it.
    pub fn names_its_nodes(&self) -> bool {
        let is_name = |part: &NodeRequirement| part.operator == NodeOperator::In && part.key == HOSTNAME;
        let by_term = |term: &NodeTerm| {
            term.expressions.iter().any(is_name) || term.fields.iter().any(|part| part.operator == NodeOperator::In)
        };
        self.node_selector.contains_key(HOSTNAME)
            || self.node_required.as_ref().is_some_and(|terms| terms.iter().all(by_term))
    }

    /// The first taint among `taints` with one of `effects` that no toleration covers.
    pub fn untolerated<'a>(&self, taints: &'a [Taint], effects: &[TaintEffect]) -> Option<&'a Taint> {
        taints
            .iter()
            .filter(|taint| effects.contains(&taint.effect))
            .find(|taint| !self.tolerations.iter().any(|toleration| toleration.covers(taint)))
    }
}

/// A toleration. Absent parts are wild.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Toleration {
    /// Taint key; empty tolerates every key (with `Exists`).
    pub key: String,
    /// How the value is compared.
    pub operator: TolerationOperator,
    /// Value.
    pub value: String,
    /// Effect; `None` covers all.
    pub effect: Option<TaintEffect>,
}

/// How a toleration compares the taint's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TolerationOperator {
    /// Same value.
    #[default]
    Equal,
    /// Any value.
    Exists,
    /// The taint's number is below the toleration's.
    Lt,
    /// The taint's number is above the toleration's.
    Gt,
    /// A word that this version does not know: covers nothing.
    Unknown,
}

impl Toleration {
    /// `true` when this toleration covers `taint`.
    pub fn covers(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) || (!self.key.is_empty() && self.key != taint.key) {
            return false;
        }
        let numbers = || Some((canonical(&taint.value)?, canonical(&self.value)?));
        match self.operator {
            TolerationOperator::Equal => self.value == taint.value,
            TolerationOperator::Exists => true,
            TolerationOperator::Lt => numbers().is_some_and(|(taint, own)| taint < own),
            TolerationOperator::Gt => numbers().is_some_and(|(taint, own)| taint > own),
            TolerationOperator::Unknown => false,
        }
    }
}

/// A taint's number as kube-scheduler reads it: a decimal integer in its only spelling. `007`, `+7` and `-0` are no numbers here,
/// other than in node affinity.
fn canonical(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; empty where there is none.
    pub value: String,
    /// Effect.
    pub effect: TaintEffect,
}

impl std::fmt::Display for Taint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.value.is_empty() { f.write_str(&self.key) } else { write!(f, "{}={}", self.key, self.value) }
    }
}

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaintEffect {
    /// No new pods.
    NoSchedule,
    /// Rather no new pods.
    PreferNoSchedule,
    /// No pods.
    NoExecute,
}

/// A port that a container takes on its node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Address; `0.0.0.0` is all.
    pub ip: Box<str>,
    /// `TCP`, `UDP`, `SCTP`.
    pub protocol: Box<str>,
    /// Number.
    pub port: i32,
}

impl HostPort {
    /// `true` when both cannot be taken on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        let wild = |ip: &str| ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || wild(&self.ip) || wild(&other.ip))
    }
}

/// One term of pod affinity or anti-affinity, with the owner's own labels already merged in (`matchLabelKeys`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PodTerm {
    /// Which pods; `None` selects no pod.
    pub selector: Option<LabelSelector>,
    /// In these namespaces …
    pub namespaces: Vec<String>,
    /// … and in those with these labels.
    pub namespace_selector: Option<LabelSelector>,
    /// Nodes with the same value of this label are one place.
    pub topology_key: String,
}

/// One topology spread constraint, with the owner's own labels already merged in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spread {
    /// Most that a place may be above the least filled.
    pub max_skew: i64,
    /// Nodes with the same value of this label are one place.
    pub topology_key: String,
    /// `true` for `DoNotSchedule`, `false` for `ScheduleAnyway`.
    pub required: bool,
    /// Which pods count; `None` counts none.
    pub selector: Option<LabelSelector>,
    /// Fewer places than this count as one that is empty.
    pub min_domains: i64,
    /// Only nodes that the pod's node affinity accepts are places.
    pub honor_affinity: bool,
    /// Only nodes whose taints the pod tolerates are places.
    pub honor_taints: bool,
}

/// A volume whose place matters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeUse {
    /// A claim in the pod's namespace.
    Claim(Box<str>),
    /// The claim that a controller makes for a generic ephemeral volume of the pod, by its name.
    Ephemeral(Box<str>),
}

impl VolumeUse {
    /// Name of the claim.
    pub fn claim(&self) -> &str {
        match self {
            Self::Claim(name) | Self::Ephemeral(name) => name,
        }
    }
}

/// What a PodDisruptionBudget says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BudgetFacts {
    /// Which pods of its namespace; `None` selects none.
    pub selector: Option<LabelSelector>,
    /// `status.disruptionsAllowed`.
    pub allowed: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_taints_are_compared_in_their_only_spelling() {
        for (text, number) in
            [("7", Some(7)), ("-2", Some(-2)), ("0", Some(0)), ("007", None), ("-0", None), ("+7", None)]
        {
            assert_eq!(canonical(text), number, "{text}");
        }
        assert_eq!((canonical(""), canonical("9223372036854775808")), (None, None));
    }
}
