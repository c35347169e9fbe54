//! Keys of Koordinator's domains are Koordinator's: what its source does not have is Baton's own, in `baton.io`.

use std::path::Path;

const DOMAIN: &str = "koordinator.sh/";

/// What Koordinator's source has (`apis/extension` and `pkg/scheduler/plugins/deviceshare` in its repository), by file.
const KNOWN: [(&str, &[&str]); 9] = [
    (
        "device_share.go",
        &[
            "scheduling.koordinator.sh/device-allocated",
            "scheduling.koordinator.sh/device-allocate-hint",
            "scheduling.koordinator.sh/device-joint-allocate",
            "scheduling.koordinator.sh/gpu-partition-spec",
            "scheduling.koordinator.sh/gpu-partitions",
            "koordinator.sh/gpu-isolation-provider",
            "node.koordinator.sh/gpu-vendor",
            "node.koordinator.sh/gpu-model",
            "node.koordinator.sh/gpu-driver-version",
            "koordinator.sh/gpu",
            "koordinator.sh/gpu-core",
            "koordinator.sh/gpu-memory-ratio",
            "koordinator.sh/gpu-memory",
            "koordinator.sh/gpu.shared",
            "koordinator.sh/rdma",
            "koordinator.sh/fpga",
        ],
    ),
    ("device_plugin_adapter.go", &["scheduling.koordinator.sh/bind-timestamp", "scheduling.koordinator.sh/gpu-minors"]),
    (
        "coscheduling.go",
        &[
            "gang.scheduling.koordinator.sh/name",
            "gang.scheduling.koordinator.sh/min-available",
            "gang.scheduling.koordinator.sh/waiting-time",
            "gang.scheduling.koordinator.sh/total-number",
            "gang.scheduling.koordinator.sh/mode",
            "gang.scheduling.koordinator.sh/groups",
            "gang.scheduling.koordinator.sh/match-policy",
            "gang.scheduling.koordinator.sh/timeout",
            "scheduling.koordinator.sh/bind-gang-group-id",
            "scheduling.koordinator.sh/bind-gang-member-count",
        ],
    ),
    (
        "network_topology.go",
        &[
            "gang.scheduling.koordinator.sh/network-topology-spec",
            "gang.scheduling.koordinator.sh/network-topology-index",
        ],
    ),
    (
        "numa_aware.go",
        &[
            "scheduling.koordinator.sh/numa-topology-spec",
            "scheduling.koordinator.sh/resource-spec",
            "scheduling.koordinator.sh/resource-status",
        ],
    ),
    (
        "reservation.go",
        &["scheduling.koordinator.sh/reservation-allocated", "scheduling.koordinator.sh/reservation-affinity"],
    ),
    ("constants.go", &["koordinator.sh/priority", "koordinator.sh/qosClass"]),
    // In the proposal of its gangs, which its users read.
    ("docs/proposals/scheduling/20220901-gang-scheduling.md", &["gang.scheduling.koordinator.sh/gang-groups"]),
    // The kind Device; and the node lock, which is proposed to Koordinator (koordinator-sh/koordinator#2198).
    ("apis/scheduling", &["scheduling.koordinator.sh/v1alpha1", "scheduling.koordinator.sh/node-lock"]),
];

/// Keys of these domains in `text` that Koordinator does not have.
fn foreign(text: &str) -> Vec<&str> {
    let of_key = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let found = text.match_indices(DOMAIN).map(|(at, _)| {
        let start = text[..at].rfind(|c| !of_key(c)).map_or(0, |before| before + 1);
        let after = at + DOMAIN.len();
        let end = text[after..].find(|c| !of_key(c)).map_or(text.len(), |length| after + length);
        text[start..end].trim_matches(['.', '-'])
    });
    let unknown = |key: &&str| {
        // As ResourceQuotas and the CRD name them.
        let key = ["requests.", "devices."].into_iter().find_map(|before| key.strip_prefix(before)).unwrap_or(key);
        !key.ends_with('/') && !KNOWN.iter().any(|(_, keys)| keys.contains(&key))
    };
    found.filter(unknown).collect()
}

#[test]
fn every_key_in_a_domain_of_koordinators_is_one_that_koordinator_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut todo = ["src", "docs", "daemonset", "examples", "README.md", "fuzz/seeds", "tests/golden"]
        .map(|place| root.join(place))
        .to_vec();
    let (mut files, mut wrong) = (0, Vec::new());
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            files += 1;
            wrong.extend(foreign(&text).into_iter().map(|key| format!("{}: {key}", path.display())));
        }
    }
    assert!(files > 500, "read only {files} files below {}", root.display());
    assert!(
        wrong.is_empty(),
        "keys that Koordinator's source does not have; give them the domain baton.io:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_key_that_koordinator_does_not_have_is_found_wherever_it_stands() {
    assert_eq!(foreign("a: \"scheduling.koordinator.sh/parent\", b"), ["scheduling.koordinator.sh/parent"]);
    assert_eq!(foreign("`koordinator.sh/share=x`"), ["koordinator.sh/share"]);
    let theirs = "requests.koordinator.sh/gpu, node.koordinator.sh/gpu-model-\n`gang.scheduling.koordinator.sh/`";
    assert_eq!(foreign(theirs), Vec::<&str>::new());
}
