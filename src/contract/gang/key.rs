//! Every annotation and label that declares a gang, once.

/// Pod annotation: name of the pod's gang.
pub const NAME: &str = "gang.scheduling.koordinator.sh/name";
/// Pod annotation: fewest members that may run, an integer.
pub const MIN_AVAILABLE: &str = "gang.scheduling.koordinator.sh/min-available";
/// Pod annotation: how long reserved members wait for the others, a Go duration.
pub const WAITING_TIME: &str = "gang.scheduling.koordinator.sh/waiting-time";
/// Pod or PodGroup annotation: when the waiting time begins, `holding` or `pending`.
pub const TIMEOUT_CLOCK: &str = "baton.io/timeout-clock";
/// Pod or PodGroup annotation: how many members there are in all, an integer.
pub const TOTAL_NUMBER: &str = "gang.scheduling.koordinator.sh/total-number";
/// Pod or PodGroup annotation: `Strict` or `NonStrict`.
pub const MODE: &str = "gang.scheduling.koordinator.sh/mode";
/// Pod or PodGroup annotation: gangs that start together, a JSON array of `"namespace/gang"`.
pub const GROUPS: &str = "gang.scheduling.koordinator.sh/groups";
/// Another name of [`GROUPS`].
pub const GANG_GROUPS: &str = "gang.scheduling.koordinator.sh/gang-groups";
/// Pod or PodGroup annotation: which members count for satisfaction.
pub const MATCH_POLICY: &str = "gang.scheduling.koordinator.sh/match-policy";
/// Pod or PodGroup annotation: in which layers the members are gathered, JSON with a `gatherStrategy`.
pub const NETWORK_TOPOLOGY_SPEC: &str = "gang.scheduling.koordinator.sh/network-topology-spec";
/// Pod annotation: its rank among the members, an integer; members that are gathered get nodes in this order.
pub const NETWORK_TOPOLOGY_INDEX: &str = "gang.scheduling.koordinator.sh/network-topology-index";
/// Pod or PodGroup annotation: all members run in one domain of this layer or label.
pub const REQUIRED_TOPOLOGY: &str = "baton.io/required-topology";
/// Pod or PodGroup annotation: all members run in one domain of this layer or label where that is possible.
pub const PREFERRED_TOPOLOGY: &str = "baton.io/preferred-topology";
/// Pod annotation, by the scheduler: `"true"` once the gang's wait is over; such a pod is never scheduled.
pub const TIMEOUT: &str = "gang.scheduling.koordinator.sh/timeout";

/// Pod label or annotation: name of the PodGroup in the pod's namespace.
pub const POD_GROUP: &str = "pod-group.scheduling.sigs.k8s.io";
/// Pod label: the same, as the community's scheduler plugins write it.
pub const COMMUNITY_POD_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// Pod label or annotation: name of a gang that needs no PodGroup.
pub const POD_GROUP_NAME: &str = "pod-group.scheduling.sigs.k8s.io/name";
/// Pod label or annotation: as [`MIN_AVAILABLE`].
pub const POD_GROUP_MIN_AVAILABLE: &str = "pod-group.scheduling.sigs.k8s.io/min-available";
/// Pod or PodGroup, label or annotation: as [`GROUPS`].
pub const POD_GROUP_GROUPS: &str = "pod-group.scheduling.sigs.k8s.io/groups";
/// Pod or PodGroup, label or annotation: as [`MATCH_POLICY`].
pub const POD_GROUP_MATCH_POLICY: &str = "pod-group.scheduling.sigs.k8s.io/match-policy";
/// Pod field that names a PodGroup of `scheduling.k8s.io`; read where the installation says so.
pub const SCHEDULING_GROUP: &str = "spec.schedulingGroup.podGroupName";

/// A key of a pod's gang, and whether it is read as a label, as an annotation, or as both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodKeyPlace {
    /// The key.
    pub key: &'static str,
    /// It is read as a label.
    pub label: bool,
    /// It is read as an annotation.
    pub annotation: bool,
}

const fn annotation(key: &'static str) -> PodKeyPlace {
    PodKeyPlace { key, label: false, annotation: true }
}

const fn label(key: &'static str) -> PodKeyPlace {
    PodKeyPlace { key, label: true, annotation: false }
}

const fn either(key: &'static str) -> PodKeyPlace {
    PodKeyPlace { key, label: true, annotation: true }
}

/// Every key with which a pod declares something of its gang.
pub const POD_KEYS: [PodKeyPlace; 19] = [
    annotation(NAME),
    annotation(MIN_AVAILABLE),
    annotation(WAITING_TIME),
    annotation(TIMEOUT_CLOCK),
    annotation(TOTAL_NUMBER),
    annotation(MODE),
    annotation(GROUPS),
    annotation(GANG_GROUPS),
    annotation(MATCH_POLICY),
    annotation(NETWORK_TOPOLOGY_SPEC),
    annotation(NETWORK_TOPOLOGY_INDEX),
    annotation(REQUIRED_TOPOLOGY),
    annotation(PREFERRED_TOPOLOGY),
    either(POD_GROUP),
    label(COMMUNITY_POD_GROUP),
    either(POD_GROUP_NAME),
    either(POD_GROUP_MIN_AVAILABLE),
    either(POD_GROUP_GROUPS),
    either(POD_GROUP_MATCH_POLICY),
];

/// Pod label: order among gangs and pods of one priority, an integer; higher goes first.
pub const SUB_PRIORITY: &str = "koordinator.sh/priority";
/// Label of PodGroups that the scheduler made.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_BATON: &str = "baton-scheduler";
/// PodGroup condition: all gangs of the group were satisfied once.
pub const CONDITION_SATISFIED: &str = "GangSatisfied";
/// PodGroup condition: the members have their nodes, or why not.
pub const CONDITION_SCHEDULED: &str = "GangScheduled";
/// PodGroup condition: the wait for the rest was over before the gang was satisfied.
pub const CONDITION_TIMEOUT: &str = "GangTimeout";
/// PodGroup condition: enough members succeeded.
pub const CONDITION_FINISHED: &str = "GangFinished";
