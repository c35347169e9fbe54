//! What each daemon may do in the cluster, with the reason of every rule. Nothing else is granted.

use std::fmt::Write;

/// One rule.
struct Rule {
    why: &'static str,
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
}

const READ: &[&str] = &["get", "list", "watch"];

const AGENT: &[Rule] = &[
    Rule {
        why: "Which pods are bound here, and which devices they were given.",
        group: "",
        resources: &["pods"],
        verbs: READ,
    },
    Rule {
        why: "The node lock (an annotation) and the GPU labels.",
        group: "",
        resources: &["nodes"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        why: "The inventory of this node.",
        group: "scheduling.koordinator.sh",
        resources: &["devices"],
        verbs: &["get", "create", "patch"],
    },
    Rule {
        why: "What went wrong, where the pod's owner looks.",
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create", "patch"],
    },
];

const AGENT_OWN: &[Rule] = &[Rule {
    why: "The sign of life: baton-agent-<node>.",
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["get", "create", "update"],
}];

const SCHEDULER: &[Rule] = &[
    Rule {
        why: "What waits and what runs; delete is the fence around a holder that was never served, and preemption.",
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "delete"],
    },
    Rule { why: "Assignment and bind are one write.", group: "", resources: &["pods/binding"], verbs: &["create"] },
    Rule { why: "Why a pod is not scheduled.", group: "", resources: &["pods/status"], verbs: &["patch"] },
    Rule {
        why: "Capacity, labels, taints; patch sets and removes the node lock.",
        group: "",
        resources: &["nodes"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        why: "Gangs; create makes those of auto-create-pod-group; patch writes the status where the CRD has no path for it.",
        group: "scheduling.sigs.k8s.io",
        resources: &["podgroups"],
        verbs: &["get", "list", "watch", "create", "patch"],
    },
    Rule {
        why: "Gangs of the community's API; patch as above.",
        group: "scheduling.x-k8s.io",
        resources: &["podgroups"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        why: "Gangs of Kubernetes' own API, with scheduling-group.",
        group: "scheduling.k8s.io",
        resources: &["podgroups"],
        verbs: READ,
    },
    Rule {
        why: "Where a gang stands.",
        group: "scheduling.sigs.k8s.io",
        resources: &["podgroups/status"],
        verbs: &["patch"],
    },
    Rule {
        why: "The same in the community's API.",
        group: "scheduling.x-k8s.io",
        resources: &["podgroups/status"],
        verbs: &["patch"],
    },
    Rule {
        why: "The priority that pods of waiting jobs will have.",
        group: "scheduling.k8s.io",
        resources: &["priorityclasses"],
        verbs: READ,
    },
    Rule { why: "Which devices there are.", group: "scheduling.koordinator.sh", resources: &["devices"], verbs: READ },
    Rule {
        why: "What the filters look at beside the node.",
        group: "",
        resources: &["namespaces", "persistentvolumes", "persistentvolumeclaims"],
        verbs: READ,
    },
    Rule {
        why: "Budgets that preemption prefers to keep.",
        group: "policy",
        resources: &["poddisruptionbudgets"],
        verbs: READ,
    },
    Rule {
        why: "The chosen node of a claim that waits for its first consumer, or the volume that is promised to it.",
        group: "",
        resources: &["persistentvolumeclaims", "persistentvolumes"],
        verbs: &["patch"],
    },
    Rule {
        why: "When and where claims get their volumes, and how much storage is left there.",
        group: "storage.k8s.io",
        resources: &["csidrivers", "csistoragecapacities", "storageclasses"],
        verbs: READ,
    },
    Rule {
        why: "What went wrong, where the pod's owner looks.",
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create", "patch"],
    },
    Rule { why: "The jobs that are placed.", group: "arranger.taichu.io", resources: &["tyjobs"], verbs: READ },
    Rule {
        why: "Its half of their status: places.",
        group: "arranger.taichu.io",
        resources: &["tyjobs/status"],
        verbs: &["patch"],
    },
];

const SCHEDULER_OWN: &[Rule] = &[Rule {
    why: "Leadership, and the agents' signs of life.",
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["get", "list", "watch", "create", "update"],
}];

const CONTROLLER: &[Rule] = &[
    Rule {
        why: "The jobs; patch puts the clean-up finalizer on and takes it off.",
        group: "arranger.taichu.io",
        resources: &["tyjobs"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        why: "Its half of their status.",
        group: "arranger.taichu.io",
        resources: &["tyjobs/status"],
        verbs: &["patch"],
    },
    Rule {
        why: "A pod's owner reference that holds its job's deletion back.",
        group: "arranger.taichu.io",
        resources: &["tyjobs/finalizers"],
        verbs: &["update"],
    },
    Rule {
        why: "The jobs' pods; patch tells one that waits which node is reserved for it now.",
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "create", "delete", "patch"],
    },
    Rule { why: "Whether the node of a dying pod is still there.", group: "", resources: &["nodes"], verbs: READ },
    Rule {
        why: "What happened, where the job's owner looks.",
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create", "patch"],
    },
];

const CONTROLLER_OWN: &[Rule] = &[Rule {
    why: "Leadership.",
    group: "coordination.k8s.io",
    resources: &["leases"],
    verbs: &["get", "create", "update"],
}];

/// What people may do: `baton-view` and `baton-edit` are added to the cluster's roles of these names.
const VIEW: &[Rule] = &[
    Rule { why: "Where jobs stand.", group: "arranger.taichu.io", resources: &["tyjobs"], verbs: READ },
    Rule { why: "Where gangs stand.", group: "scheduling.sigs.k8s.io", resources: &["podgroups"], verbs: READ },
];

const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];

const EDIT: &[Rule] = &[
    Rule { why: "Submitting and ending jobs.", group: "arranger.taichu.io", resources: &["tyjobs"], verbs: WRITE },
    Rule { why: "Declaring gangs.", group: "scheduling.sigs.k8s.io", resources: &["podgroups"], verbs: WRITE },
];

/// One thing that the node daemon must be allowed to do.
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
    /// What it is needed for.
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

/// Every permission of the node daemon, whose Lease lies in `namespace`.
pub fn agent_permissions(namespace: &str) -> Vec<Permission> {
    let everywhere = AGENT.iter().map(|rule| (rule, None));
    let own = AGENT_OWN.iter().map(|rule| (rule, Some(namespace.to_owned())));
    let mut all = Vec::new();
    for (rule, namespace) in everywhere.chain(own) {
        for resource in rule.resources {
            let of = |verb: &&'static str| Permission {
                group: rule.group,
                resource,
                verb,
                namespace: namespace.clone(),
                why: rule.why,
            };
            all.extend(rule.verbs.iter().map(of));
        }
    }
    all
}

/// ServiceAccounts, roles and bindings of the daemons.
pub(super) fn yaml(namespace: &str) -> String {
    let mut text = String::new();
    for (name, cluster, own) in [
        ("baton-device-plugin", AGENT, AGENT_OWN),
        ("baton-scheduler", SCHEDULER, SCHEDULER_OWN),
        ("baton-controller", CONTROLLER, CONTROLLER_OWN),
    ] {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        let _ = write!(
            text,
            "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  labels:\n    \
             app.kubernetes.io/part-of: baton\n"
        );
        role(&mut text, "ClusterRole", name, None, cluster);
        role(&mut text, "Role", name, Some(namespace), own);
        binding(&mut text, "ClusterRole", name, namespace);
        binding(&mut text, "Role", name, namespace);
    }
    // Whoever may edit may read: `edit` and `admin` take in what `view` has, by the cluster's own rules.
    for (name, into, rules) in [("baton-view", &["view"][..], VIEW), ("baton-edit", &["edit", "admin"], EDIT)] {
        head(&mut text, "ClusterRole", name, None);
        for role in into {
            let _ = writeln!(text, "    rbac.authorization.k8s.io/aggregate-to-{role}: \"true\"");
        }
        grants(&mut text, rules);
    }
    text
}

fn head(text: &mut String, kind: &str, name: &str, namespace: Option<&str>) {
    let _ = write!(text, "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n");
    if let Some(namespace) = namespace {
        let _ = writeln!(text, "  namespace: {namespace}");
    }
    text.push_str("  labels:\n    app.kubernetes.io/part-of: baton\n");
}

fn role(text: &mut String, kind: &str, name: &str, namespace: Option<&str>, rules: &[Rule]) {
    head(text, kind, name, namespace);
    grants(text, rules);
}

fn grants(text: &mut String, rules: &[Rule]) {
    text.push_str("rules:\n");
    for Rule { why, group, resources, verbs } in rules {
        let (resources, verbs) = (resources.join(", "), verbs.join(", "));
        let _ = write!(text, "# {why}\n- apiGroups: [\"{group}\"]\n  resources: [{resources}]\n  verbs: [{verbs}]\n");
    }
}

fn binding(text: &mut String, kind: &str, name: &str, namespace: &str) {
    let own = (kind == "Role").then_some(namespace);
    head(text, &format!("{kind}Binding"), name, own);
    let _ = write!(
        text,
        "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {name}\nsubjects:\n- kind: \
         ServiceAccount\n  name: {name}\n  namespace: {namespace}\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_grants_everything_and_none_reads_secrets() {
        for rule in [AGENT, AGENT_OWN, SCHEDULER, SCHEDULER_OWN, CONTROLLER, CONTROLLER_OWN].into_iter().flatten() {
            assert!(!rule.resources.contains(&"*") && !rule.verbs.contains(&"*") && rule.group != "*", "{}", rule.why);
            assert!(!rule.resources.contains(&"secrets") && !rule.verbs.contains(&"deletecollection"), "{}", rule.why);
        }
        // Places and positions are the daemons' to write, and what others declare is not ours to grant.
        for rule in [VIEW, EDIT].into_iter().flatten() {
            assert!(rule.resources.iter().all(|resource| ["tyjobs", "podgroups"].contains(resource)), "{}", rule.why);
        }
        // The node daemon runs on every node: it can delete nothing and change no pod.
        for rule in [AGENT, AGENT_OWN].into_iter().flatten() {
            assert!(!rule.verbs.contains(&"delete"), "{}", rule.why);
            assert!(!rule.resources.contains(&"pods") || rule.verbs == READ, "{}", rule.why);
        }
    }
}
