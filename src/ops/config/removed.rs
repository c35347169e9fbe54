//! What was taken out of the configuration, and what to do instead.

/// A key of the file, which is the flag without its dashes, `key=value` where only that value is gone, `plugins.NAME`, or a flag of a
/// command, `COMMAND --flag`; and what to do instead.
pub const REMOVED: &[(&str, &str)] = &[
    ("admin-auth=metrics-open", "give collectors of /metrics a token (docs/metrics.md#collecting)"),
    (
        "expired-holder",
        "leave it out: no pod is deleted for its lock, which the next bind takes over (docs/lock.md#when-the-holder-does-not-come)",
    ),
    ("finish-upgrade", "leave it out: there is no earlier version to clean up after"),
    ("manifests --admin-from", "set adminFrom in the chart daemonset/chart"),
    (
        "manifests --admission",
        "set admission in the chart daemonset/chart, or use the kustomize component without-policies",
    ),
    ("manifests --assignment-writers", "set assignmentWriters in the chart daemonset/chart"),
    ("manifests --check", "leave it out: the manifests are checked in, and git says what was changed"),
    ("manifests --crds", "set crds in the chart daemonset/chart, or use the kustomize component keep-kinds"),
    ("manifests --docs-url", "set docsUrl in the chart daemonset/chart"),
    ("manifests --helm", "the chart is daemonset/chart (docs/operate.md#with-helm)"),
    (
        "manifests --monitoring",
        "set monitoring in the chart daemonset/chart, or use the kustomize component monitoring",
    ),
    ("manifests --node-lock-key", "set nodeLockKey in the chart daemonset/chart"),
    ("manifests --pinned-namespaces", "set pinnedNamespaces in the chart daemonset/chart"),
    ("manifests --unassigned-pods", "set unassignedPods in the chart daemonset/chart"),
    ("mps", "set share-isolation=mps"),
    ("plugins.GpuFragmentation", "enable GpuPatience"),
];

/// That `name` was removed, and what to do instead; `None` where it was not.
pub fn removed(name: &str) -> Option<String> {
    let (_, instead) = REMOVED.iter().find(|(key, _)| *key == name)?;
    Some(format!("{name} was removed: {instead}"))
}
