//! Permissions of each daemon in the cluster, with the reason of every rule. Nothing else is granted.

use std::fmt::Write;

use super::choices::Values;
use crate::leader::VIEWER;
use baton_contract::AgentStatus;

/// ServiceAccount of the node daemon.
pub(super) const NODE_DAEMON: &str = "baton-device-plugin";
/// ServiceAccount of the controller of TYJobs.
pub(super) const CONTROLLER_ACCOUNT: &str = "baton-controller";
/// ServiceAccount of the scheduler.
pub(super) const SCHEDULER_ACCOUNT: &str = "baton-scheduler";

/// One rule.
#[derive(Clone, Copy)]
struct Rule {
    why: &'static str,
    group: &'static str,
    resources: &'static [&'static str],
    /// Only objects of these names; all where there is none.
    names: &'static [&'static str],
    verbs: &'static [&'static str],
}

/// Rules, one entry each: `"group" ["resource" …] verbs "why";`, or with `= ["name" …]` behind the resources.
macro_rules! rules {
    ($($group:literal [$($resource:literal)+] $(= [$($name:literal)+])? $verbs:expr, $why:literal;)+) => {
        &[$(Rule { why: $why, group: $group, resources: &[$($resource),+], names: &[$($($name),+)?], verbs: $verbs }),+]
    };
}

const READ: &[&str] = &["get", "list", "watch"];

/// Of every daemon: users of its admin address are those of the cluster.
const REVIEWS: &[Rule] = rules! {
    "authentication.k8s.io" ["tokenreviews"] &["create"], "Who asks on the admin address.";
    "authorization.k8s.io" ["subjectaccessreviews"] &["create"], "Whether that user may read the path.";
};

const AGENT: &[Rule] = rules! {
    "" ["pods"] READ, "Which pods are bound here, and which devices they were given.";
    "" ["nodes"] &["get", "list", "watch", "patch"], "The node lock (an annotation) and the GPU labels.";
    "scheduling.koordinator.sh" ["devices"] &["get", "create", "patch"], "The inventory of this node.";
    "events.k8s.io" ["events"] &["create", "patch"], "Events for the pod's owner: what went wrong.";
    "resource.k8s.io" ["resourceslices"] &["list"], "`baton doctor` says whether another driver hands out this node's GPUs.";
    "admissionregistration.k8s.io" ["validatingadmissionpolicies" "validatingadmissionpolicybindings"] &["get"],
        "`baton doctor` says which policy is missing or altered.";
};

/// In the namespace of the daemons.
const AGENT_OWN: &[Rule] = rules! {
    "coordination.k8s.io" ["leases"] = ["baton-scheduler"] &["get"], "`baton doctor` compares how scheduler and daemon lock the node.";
};

/// In the namespace of the node daemons' Leases.
const AGENT_LEASES: &[Rule] = rules! {
    "coordination.k8s.io" ["leases"] &["get", "create", "update"], "The Lease of this node's daemon: baton-agent-<node>.";
};

const SCHEDULER: &[Rule] = rules! {
    "" ["pods"] &["get", "list", "watch", "delete"],
        "Pods that wait and run; delete preempts, and ends the gang of a member that cannot be bound (on-bind-failure).";
    "" ["pods/binding"] &["create"], "Assignment and bind are one write.";
    "" ["pods/status"] &["patch"], "Why a pod is not scheduled.";
    "" ["nodes"] &["get", "list", "watch", "patch"], "Capacity, labels, taints; patch sets and removes the node lock.";
    "scheduling.sigs.k8s.io" ["podgroups"] &["get", "list", "watch", "create", "patch", "delete"],
        "Gangs; create and delete are for auto-create-pod-group; patch writes the status where the CRD has no path for it.";
    "scheduling.x-k8s.io" ["podgroups"] &["get", "list", "watch", "patch"],
        "Gangs of the community's API; patch as above.";
    "scheduling.k8s.io" ["podgroups"] READ, "Gangs of Kubernetes' own API, where it is served.";
    "scheduling.sigs.k8s.io" ["podgroups/status"] &["patch"], "The status of gangs.";
    "scheduling.x-k8s.io" ["podgroups/status"] &["patch"], "The same in the community's API.";
    "scheduling.k8s.io" ["priorityclasses"] READ, "The priority that pods of waiting TYJobs will have.";
    "scheduling.koordinator.sh" ["devices"] READ, "Which devices there are.";
    "" ["namespaces" "persistentvolumes" "persistentvolumeclaims"] READ, "What filters read besides the node.";
    "resource.k8s.io" ["resourceslices"] READ, "Nodes whose GPUs another driver hands out, where they are served.";
    "" ["resourcequotas" "limitranges"] READ, "What namespaces may use: TYJobs get no places beyond it.";
    "policy" ["poddisruptionbudgets"] READ, "Budgets that preemption prefers to keep.";
    "" ["persistentvolumeclaims" "persistentvolumes"] &["patch"],
        "The chosen node of a claim that waits for its first consumer, or the volume that is bound to it.";
    "storage.k8s.io" ["csidrivers" "csistoragecapacities" "storageclasses"] READ,
        "When and where claims get their volumes, and how much storage is left there.";
    "events.k8s.io" ["events"] &["create", "patch"], "Events for the pod's owner: what went wrong.";
    "arranger.taichu.io" ["tyjobs"] READ, "The TYJobs that are placed.";
    "arranger.taichu.io" ["tyjobs/status"] &["patch"], "Its half of their status: places.";
};

const SCHEDULER_OWN: &[Rule] = rules! {
    "coordination.k8s.io" ["leases"] &["create"], "Leadership: its Lease, which has no name yet when this is judged.";
    "coordination.k8s.io" ["leases"] = ["baton-scheduler"] &["get", "update"], "Leadership.";
};

/// In the namespace of the node daemons' Leases.
const SCHEDULER_LEASES: &[Rule] = rules! {
    "coordination.k8s.io" ["leases"] &["list", "watch"], "Which node daemons are alive, and what they serve.";
};

const CONTROLLER: &[Rule] = rules! {
    "arranger.taichu.io" ["tyjobs"] &["get", "list", "watch", "patch"],
        "The TYJobs; patch adds and removes the clean-up finalizer.";
    "arranger.taichu.io" ["tyjobs/status"] &["patch"], "Its half of their status.";
    "arranger.taichu.io" ["tyjobs/finalizers"] &["update"],
        "A pod's owner reference that blocks the deletion of its TYJob.";
    "" ["pods"] &["get", "list", "watch", "create", "delete", "patch"],
        "The pods of TYJobs; patch writes the node that is reserved for a waiting pod.";
    "" ["nodes"] READ, "Whether the node of a terminating pod still exists.";
    "events.k8s.io" ["events"] &["create", "patch"], "Events for the TYJob's owner: what happened.";
};

const CONTROLLER_OWN: &[Rule] = rules! {
    "coordination.k8s.io" ["leases"] &["create"], "Leadership: its Lease, which has no name yet when this is judged.";
    "coordination.k8s.io" ["leases"] = ["baton-controller"] &["get", "update"], "Leadership.";
};

/// Permissions of users: `baton-view` and `baton-edit` are aggregated to the cluster's roles of these names, `baton-operator` to none.
const VIEW: &[Rule] = rules! {
    "arranger.taichu.io" ["tyjobs"] READ, "The status of TYJobs.";
    "scheduling.sigs.k8s.io" ["podgroups"] READ, "The status of gangs.";
};

const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];

const EDIT: &[Rule] = rules! {
    "arranger.taichu.io" ["tyjobs"] WRITE, "Submitting and ending TYJobs.";
    "scheduling.sigs.k8s.io" ["podgroups"] WRITE, "Declaring gangs.";
};

/// Of people who operate the cluster's devices; the manifests bind it to no subject.
const OPERATOR: &[Rule] = rules! {
    "" ["nodes" "pods"] READ, "What `baton get`, `audit`, `drain` and `ui` read.";
    "" ["events"] READ, "What `baton ui` shows of a node.";
    "scheduling.koordinator.sh" ["devices"] &["get", "list", "watch", "patch"],
        "Devices; patch writes which of them are cordoned.";
    "coordination.k8s.io" ["leases"] &["get", "list", "watch"], "Which node daemons are alive, and what pods hold in truth.";
    "arranger.taichu.io" ["tyjobs"] READ, "TYJobs.";
    "" ["pods/eviction"] &["create"], "`baton drain`.";
    "events.k8s.io" ["events"] &["create", "patch"], "Who has cordoned a device, on its node.";
    "admissionregistration.k8s.io" ["validatingadmissionpolicies" "validatingadmissionpolicybindings"] &["get"],
        "`baton audit` says which policy is missing or altered.";
    "" ["pods/proxy"] &["get", "create"], "Asking it through the API server; create is for a manifest (what-if).";
    "" ["serviceaccounts/token"] = ["baton-viewer"] &["create"], "The token that the daemons are shown: that of the viewer, never the user's own.";
};

/// Paths that the commands read as the viewer. `/metrics` and `/` are not among them: the API server has paths of these names, too.
const PATHS: &[&str] = &["/explain", "/queue", "/gangs", "/gangs/*", "/jobs/*", "/nodes/*", "/ledger", "/kubelet"];

/// One permission of the node daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// API group, empty for core.
    pub group: &'static str,
    /// `devices` or `pods/status`.
    pub resource: &'static str,
    /// `patch`.
    pub verb: &'static str,
    /// Everywhere when `None`.
    pub namespace: Option<String>,
    /// Only the object of this name; all when `None`.
    pub name: Option<&'static str>,
    /// Its reason.
    pub why: &'static str,
}

impl Permission {
    /// `leases.coordination.k8s.io in baton-system`.
    pub fn title(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let scope = self.namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        format!("{}{dot}{}{scope}", self.resource, self.group)
    }
}

/// Every permission of the node daemon, for daemons in `namespace`.
pub fn agent_permissions(namespace: &str) -> Vec<Permission> {
    let everywhere = AGENT.iter().chain(REVIEWS).map(|rule| (rule, None));
    let leases = AGENT_LEASES.iter().map(|rule| (rule, Some(AgentStatus::lease_namespace(namespace))));
    let own = AGENT_OWN.iter().map(|rule| (rule, Some(namespace.to_owned())));
    let mut all = Vec::new();
    for (rule, namespace) in everywhere.chain(leases).chain(own) {
        for resource in rule.resources {
            let of = |verb: &&'static str| Permission {
                group: rule.group,
                resource,
                verb,
                namespace: namespace.clone(),
                name: rule.names.first().copied(),
                why: rule.why,
            };
            all.extend(rule.verbs.iter().map(of));
        }
    }
    all
}

/// ServiceAccounts, roles and bindings of the daemons.
pub(super) fn yaml(values: &Values) -> String {
    let (namespace, leases) = (values.namespace.as_str(), AgentStatus::lease_namespace(&values.namespace));
    let mut text = String::new();
    for (name, cluster, own, in_leases) in [
        (NODE_DAEMON, AGENT, AGENT_OWN, AGENT_LEASES),
        (SCHEDULER_ACCOUNT, SCHEDULER, SCHEDULER_OWN, SCHEDULER_LEASES),
        (CONTROLLER_ACCOUNT, CONTROLLER, CONTROLLER_OWN, &[]),
    ] {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        account(&mut text, name, namespace);
        let cluster = [cluster, REVIEWS].concat();
        grant(&mut text, &values.cluster_name(name), name, None, namespace, &cluster);
        grant(&mut text, name, name, Some(namespace), namespace, own);
        grant(&mut text, name, name, Some(&leases), namespace, in_leases);
    }
    text.push_str("---\n");
    account(&mut text, VIEWER, namespace);
    let viewer = values.cluster_name(VIEWER);
    head(&mut text, "ClusterRole", &viewer, None);
    let paths = PATHS.iter().map(|path| format!("\"{path}\"")).collect::<Vec<_>>().join(", ");
    let _ = write!(
        text,
        "rules:\n# What the commands ask. Prometheus needs a role of its own, with the path /metrics alone.\n- nonResourceURLs: [{paths}]\n  \
         verbs: [get]\n# A manifest is judged: `baton explain --what-if`.\n- nonResourceURLs: [\"/explain\"]\n  verbs: [post]\n"
    );
    bind(&mut text, "ClusterRole", &viewer, VIEWER, None, namespace);
    // An editor may read too: the cluster's own rules aggregate `view` to `edit` and `admin`.
    for (name, into, rules) in USERS {
        head(&mut text, "ClusterRole", &values.cluster_name(name), None);
        for role in into {
            let _ = writeln!(text, "    rbac.authorization.k8s.io/aggregate-to-{role}: \"true\"");
        }
        rules_of(&mut text, rules);
    }
    text
}

/// A role, in a namespace or in the cluster, and its binding to the ServiceAccount `account` of namespace `of`.
fn grant(text: &mut String, name: &str, account: &str, namespace: Option<&str>, of: &str, rules: &[Rule]) {
    if rules.is_empty() {
        return;
    }
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    head(text, kind, name, namespace);
    rules_of(text, rules);
    bind(text, kind, name, account, namespace, of);
}

fn account(text: &mut String, name: &str, namespace: &str) {
    let _ = write!(
        text,
        "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  labels:\n    \
         app.kubernetes.io/part-of: baton\n"
    );
}

/// Gives the role `name` to an account.
fn bind(text: &mut String, kind: &str, name: &str, account: &str, namespace: Option<&str>, of: &str) {
    head(text, &format!("{kind}Binding"), name, namespace);
    let _ = write!(
        text,
        "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {name}\nsubjects:\n- kind: \
         ServiceAccount\n  name: {account}\n  namespace: {of}\n"
    );
}

/// Roles of users, what they add to, and what they give.
const USERS: [(&str, &[&str], &[Rule]); 3] = [
    ("baton-view", &["view"], VIEW),
    ("baton-edit", &["edit", "admin"], EDIT),
    // For a ClusterRoleBinding; for asking the scheduler alone, a RoleBinding in the daemons' namespace.
    ("baton-operator", &[], OPERATOR),
];

fn head(text: &mut String, kind: &str, name: &str, namespace: Option<&str>) {
    let _ = write!(text, "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n");
    if let Some(namespace) = namespace {
        let _ = writeln!(text, "  namespace: {namespace}");
    }
    text.push_str("  labels:\n    app.kubernetes.io/part-of: baton\n");
}

fn rules_of(text: &mut String, rules: &[Rule]) {
    text.push_str("rules:\n");
    for Rule { why, group, resources, names, verbs } in rules {
        let (resources, verbs) = (resources.join(", "), verbs.join(", "));
        let _ = write!(text, "# {why}\n- apiGroups: [\"{group}\"]\n  resources: [{resources}]\n");
        if !names.is_empty() {
            let _ = writeln!(text, "  resourceNames: [{}]", names.join(", "));
        }
        let _ = writeln!(text, "  verbs: [{verbs}]");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_grants_everything_and_none_reads_secrets() {
        for rule in [
            REVIEWS,
            AGENT,
            AGENT_OWN,
            AGENT_LEASES,
            SCHEDULER,
            SCHEDULER_OWN,
            SCHEDULER_LEASES,
            CONTROLLER,
            CONTROLLER_OWN,
        ]
        .into_iter()
        .flatten()
        {
            assert!(!rule.resources.contains(&"*") && !rule.verbs.contains(&"*") && rule.group != "*", "{}", rule.why);
            assert!(!rule.resources.contains(&"secrets") && !rule.verbs.contains(&"deletecollection"), "{}", rule.why);
        }
        // Places and positions are the daemons' to write, and what others declare is not ours to grant.
        for rule in [VIEW, EDIT].into_iter().flatten() {
            assert!(rule.resources.iter().all(|resource| ["tyjobs", "podgroups"].contains(resource)), "{}", rule.why);
        }
        // The node daemon runs on every node: it can delete nothing and change no pod.
        for rule in [AGENT, AGENT_LEASES].into_iter().flatten() {
            assert!(!rule.verbs.contains(&"delete"), "{}", rule.why);
            assert!(!rule.resources.contains(&"pods") || rule.verbs == READ, "{}", rule.why);
        }
    }
}
