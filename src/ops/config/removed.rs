//! What was taken out of the configuration, and what to do instead.

/// A key of the file, which is the flag without its dashes, `key=value` where only that value is gone, or `plugins.NAME`; and what to do
/// instead.
pub const REMOVED: &[(&str, &str)] = &[
    ("admin-auth=metrics-open", "give collectors of /metrics a token (docs/metrics.md#collecting)"),
    (
        "expired-holder",
        "leave it out: no pod is deleted for its lock, which the next bind takes over (docs/lock.md#when-the-holder-does-not-come)",
    ),
    ("finish-upgrade", "leave it out: there is no earlier version to clean up after"),
    ("mps", "set share-isolation=mps"),
    ("plugins.GpuFragmentation", "enable GpuPatience"),
];

/// That `name` was removed, and what to do instead; `None` where it was not.
pub fn removed(name: &str) -> Option<String> {
    let (_, instead) = REMOVED.iter().find(|(key, _)| *key == name)?;
    Some(format!("{name} was removed: {instead}"))
}
