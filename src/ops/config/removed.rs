//! What was taken out of the configuration, and what to do instead.

/// Times that no operator can choose well.
const FIXED: &str = "leave it out: this time is fixed (docs/configuration.md#fixed-times)";
/// Their keys.
const TIMES: &str = "\
    age-limit agent-settled agent-stale backoff backoff-max backoff-min bind-limit bind-timeout condition-pause \
    gang-condition-pause health-poll-period heartbeat-period job-period kubelet-poll-period lease-duration \
    lease-renew-deadline lease-retry link-down-after lock-abandoned lock-sweep nic-deadline nvml-deadline \
    nvml-retry-period recovery-probe-period register-timeout rescan-period reservation-timeout resync rpc-budget \
    shutdown-grace start-limit suspect-max suspect-window unlock-retry-period verify-period watch-timeout";
/// The arguments of a plugin have one place.
const IN_FILE: &str = "set it in the file, in pluginConfig (docs/configuration.md#plugins-of-the-scheduler)";
/// The admin address of a daemon serves who reaches its loopback.
const LOOPBACK: &str = "leave it out: the admin address is on loopback, and the commands reach it by a port-forward (docs/operate.md#who-may-read-what)";
/// The weights of TYJobs' policies have one place.
const JOB_WEIGHTS: &str = "set it in the file, in jobWeights (docs/configuration.md#plugins-of-the-scheduler)";

/// The files of the extender's TLS have the names that they have in a Secret.
const TLS_DIR: &str =
    "set extender-tls-dir to a directory with tls.crt, tls.key and ca.crt (docs/extender.md#who-may-ask)";

/// A key of the file, which is the flag without its dashes, `plugins.NAME` or `pluginConfig.NAME`, or a flag of a command,
/// `COMMAND --flag`; and what to do instead. A key that one daemon has and another had is refused by the other alone.
const REMOVED: &[(&str, &str)] = &[
    ("admin-auth", LOOPBACK),
    ("admin-tls-cert", LOOPBACK),
    ("admin-tls-key", LOOPBACK),
    ("bind-wait", "leave it out: kube-scheduler's bind waits for 10 s; give the extender a longer httpTimeout there"),
    ("concurrency", "leave it out: the controller reconciles 16 jobs at once"),
    (
        "expired-holder",
        "leave it out: no pod is deleted for its lock, which the next bind takes over (docs/lock.md#when-the-holder-does-not-come)",
    ),
    ("extender-client-ca", TLS_DIR),
    ("extender-tls-cert", TLS_DIR),
    ("extender-tls-key", TLS_DIR),
    ("finish-upgrade", "leave it out: there is no earlier version to clean up after"),
    ("identity", "leave it out: the name is made from host and process"),
    ("job-raised-weight", JOB_WEIGHTS),
    ("job-weights", JOB_WEIGHTS),
    ("lease-name", "leave it out: the Lease has the name that the daemon's Role names"),
    ("listen", "set metrics-listen: of the controller nothing is asked but probes and /metrics"),
    (
        "manifests --admin-from",
        "leave it out: the admin address is on loopback; set monitoring.from in the chart daemonset/chart for /metrics",
    ),
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
        "set monitoring.enabled in the chart daemonset/chart, or use the kustomize component monitoring",
    ),
    ("manifests --node-lock-key", "set nodeLockKey in the chart daemonset/chart"),
    ("manifests --pinned-namespaces", "set pinnedNamespaces in the chart daemonset/chart"),
    ("manifests --unassigned-pods", "set unassignedPods in the chart daemonset/chart"),
    ("max-sub-priority", "leave it out: a higher koordinator.sh/priority than 1,000 counts as 1,000"),
    ("more-scheduler-names", "give all names to scheduler-name, separated by commas"),
    ("mps", "set share-isolation=mps"),
    ("pluginConfig.DeviceFit", "set nodes-without-agent"),
    ("plugins.GpuFragmentation", "enable GpuPatience"),
    ("ratio-shape", IN_FILE),
    ("ratio-weights", IN_FILE),
];

/// Everything that was removed: its name, and what to do instead.
pub fn all_removed() -> impl Iterator<Item = (&'static str, &'static str)> {
    TIMES.split(' ').map(|time| (time, FIXED)).chain(REMOVED.iter().copied())
}

/// That `name` was removed, and what to do instead; `None` where it was not.
pub fn removed(name: &str) -> Option<String> {
    let (_, instead) = all_removed().find(|(key, _)| *key == name)?;
    Some(format!("{name} was removed: {instead}"))
}
