//! The rules of the format that make a runtime refuse a whole spec file, and that its JSON schema cannot say.

use std::collections::BTreeSet;

use super::spec::{Edits, Spec, VERSION};

/// What a runtime would refuse `spec` for; empty when it would take it.
pub fn problems(spec: &Spec) -> Vec<String> {
    let mut found = Vec::new();
    if spec.cdi_version != VERSION {
        found.push(format!("cdiVersion is {:?}, this version writes {VERSION:?}", spec.cdi_version));
    }
    match spec.kind.split_once('/') {
        Some((vendor, class)) if is_class(vendor) && is_class(class) => {}
        _ => found.push(format!("kind {:?} is not vendor/class", spec.kind)),
    }
    if spec.devices.is_empty() {
        found.push("it has no device, and a file needs one".to_owned());
    }
    edits("the file", &spec.container_edits, &mut found);
    let mut seen = BTreeSet::new();
    for device in &spec.devices {
        let what = format!("device {:?}", device.name);
        if !is_name(&device.name) {
            found.push(format!("{what}: a name begins and ends with a letter or digit, with - _ . : between"));
        }
        if !seen.insert(&device.name) {
            found.push(format!("{what} is there twice"));
        }
        if device.container_edits.is_empty() {
            found.push(format!("{what} edits nothing"));
        }
        edits(&what, &device.container_edits, &mut found);
    }
    found
}

fn edits(of: &str, edits: &Edits, found: &mut Vec<String>) {
    for variable in &edits.env {
        if variable.find('=').is_none_or(|at| at == 0) {
            found.push(format!("{of}: {variable:?} is not NAME=value"));
        }
    }
    for node in &edits.device_nodes {
        if !node.path.is_absolute() || node.host_path.as_ref().is_some_and(|path| !path.is_absolute()) {
            found.push(format!("{of}: device node {} is not absolute", node.path.display()));
        }
        if !node.permissions.chars().all(|c| matches!(c, 'r' | 'w' | 'm')) {
            found.push(format!(
                "{of}: permissions {:?} of {} are not of r, w, m",
                node.permissions,
                node.path.display()
            ));
        }
    }
    for mount in &edits.mounts {
        if !mount.host_path.is_absolute() || !mount.container_path.is_absolute() {
            found.push(format!("{of}: mount of {} is not absolute", mount.host_path.display()));
        }
    }
}

/// Vendor or class of a kind: begins with a letter, ends with a letter or digit, `-`, `_` and `.` between.
pub fn is_class(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && is_word(text, "-_.")
}

/// Name of a device: begins and ends with a letter or digit, `-`, `_`, `.` and `:` between.
pub fn is_name(text: &str) -> bool {
    is_word(text, "-_.:")
}

fn is_word(text: &str, between: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(edge) && text.ends_with(edge) && text.chars().all(|c| edge(c) || between.contains(c))
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Device, DeviceNode, Mount};
    use super::*;

    fn good() -> Spec {
        let node = |path: &str| DeviceNode { path: path.into(), host_path: None, permissions: "rw".into() };
        let device = |name: &str| Device {
            name: name.into(),
            container_edits: Edits { device_nodes: vec![node("/dev/nvidia0")], ..Edits::default() },
        };
        Spec {
            cdi_version: VERSION.into(),
            kind: "koordinator.sh/gpu".into(),
            container_edits: Edits { env: vec!["A=".into()], ..Edits::default() },
            devices: vec![device("GPU-1"), device("0000:3c:00.0")],
        }
    }

    #[test]
    fn a_file_that_keeps_the_rules_has_no_problem() {
        assert_eq!(problems(&good()), [""; 0]);
    }

    #[test]
    fn every_rule_is_found_broken_and_names_what_broke_it() {
        type Break = fn(&mut Spec);
        let cases: [(Break, &str); 11] = [
            (|s| s.cdi_version = "1.0".into(), "cdiVersion"),
            (|s| s.kind = "gpu".into(), "vendor/class"),
            (|s| s.kind = "0vendor/gpu".into(), "vendor/class"),
            (|s| s.devices.clear(), "no device"),
            (|s| s.devices[0].name = "GPU-".into(), "GPU-"),
            (|s| s.devices[0].name = "a/b".into(), "a/b"),
            (|s| s.devices[1].name = "GPU-1".into(), "twice"),
            (|s| s.devices[0].container_edits = Edits::default(), "edits nothing"),
            (|s| s.container_edits.env.push("=1".into()), "NAME=value"),
            (|s| s.devices[0].container_edits.device_nodes[0].permissions = "rx".into(), "rx"),
            (
                |s| {
                    let mount = Mount { host_path: "lib".into(), container_path: "/lib".into(), options: Vec::new() };
                    s.container_edits.mounts.push(mount);
                },
                "lib is not absolute",
            ),
        ];
        for (break_it, part) in cases {
            let mut spec = good();
            break_it(&mut spec);
            let found = problems(&spec);
            assert!(found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
        }
    }
}
