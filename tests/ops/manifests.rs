//! The binary carries the checked-in `daemonset/` and prints it.

use crate::prelude::*;

fn baton(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_checked_in_file_but_those_of_the_chart_is_written() {
    let fresh = tempfile::tempdir().unwrap();
    let written = baton(&["manifests", "--dir", fresh.path().to_str().unwrap()]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset");
    let (there, mut named) = (names(fresh.path()), names(&checked_in));
    named.retain(|name| !name.starts_with("chart/"));
    assert_eq!(there, named);
    for name in there {
        let read = |folder: &Path| std::fs::read_to_string(folder.join(&name)).unwrap();
        assert!(read(fresh.path()) == read(&checked_in), "{name}");
    }
}

#[test]
fn what_needs_helm_is_refused_with_the_value_that_has_it() {
    for (options, says) in [
        (
            &["--crds=own"][..],
            "manifests --crds was removed: set crds in the chart daemonset/chart, or use the kustomize component keep-kinds",
        ),
        (&["--admission", "off"], "set admission in the chart"),
        (&["--assignment-writers=ann"], "set assignmentWriters in the chart"),
        (&["--pinned-namespaces=ml"], "set pinnedNamespaces in the chart"),
        (&["--admin-from=10.0.0.0/24"], "set monitoring.from in the chart"),
        (&["--node-lock-key=a/b"], "set nodeLockKey in the chart"),
        (&["--unassigned-pods=serve"], "set unassignedPods in the chart"),
        (&["--monitoring"], "set monitoring.enabled in the chart"),
        (&["--docs-url=https://a.b"], "set docsUrl in the chart"),
        (&["--helm", "d"], "the chart is daemonset/chart"),
        (&["--dir=d", "--check"], "the manifests are checked in"),
        (&["--namespace=kube-system"], "belongs to the cluster"),
    ] {
        let output = baton(&[&["manifests"], options].concat());
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(says), "{options:?}: {error}");
    }
}

#[test]
fn what_is_printed_is_the_whole_installation_with_the_crd() {
    let all = text(&baton(&["manifests"]).stdout);
    let crds = text(&baton(&["crds"]).stdout);
    assert!(all.contains(&crds) && crds.contains("devices.scheduling.koordinator.sh"));
    assert!(crds.contains("name: podgroups.scheduling.sigs.k8s.io"), "{crds}");
    for kind in ["Namespace", "DaemonSet", "Deployment", "ClusterRole", "PodDisruptionBudget"] {
        assert!(
            all.contains(&format!("\nkind: {kind}\n")) || all.starts_with(&format!("apiVersion: v1\nkind: {kind}\n")),
            "{kind}"
        );
    }
    let json: serde_json::Value = serde_json::from_slice(&baton(&["crds", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["items"][0]["kind"], "CustomResourceDefinition");
}

#[test]
fn an_installation_beside_kube_scheduler_can_be_applied_as_it_is_printed() {
    let own = text(&baton(&["manifests"]).stdout);
    let beside = text(&baton(&["manifests", "--extender"]).stdout);
    assert!(
        !beside.contains("KubeSchedulerConfiguration")
            && !beside.contains("kind: PodDisruptionBudget\nmetadata:\n  name: baton-scheduler")
    );
    let deployments = |text: &str| {
        let named = text.split("\nkind: Deployment\nmetadata:\n  name: ").skip(1);
        named.map(|rest| rest.lines().next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(deployments(&own), ["baton-scheduler", "baton-controller"]);
    assert_eq!(deployments(&beside), ["baton-controller", "baton-extender"]);
    for kind in ["Namespace", "CustomResourceDefinition", "ClusterRole", "DaemonSet", "Service"] {
        assert!(beside.contains(&format!("kind: {kind}\n")), "{kind}");
    }
    let config = text(&baton(&["manifests", "--extender=scheduler-config"]).stdout);
    assert_eq!(config.matches("\nkind: ").count(), 1, "one document");
    assert!(config.contains("\nkind: KubeSchedulerConfiguration\n"), "{config}");
    for profile in ["1g.5gb", "1g.10gb", "1g.10gb.me", "3g.40gb", "7g.141gb", "2g.48gb-me", "7g.278gb"] {
        let managed = format!("\n  - name: nvidia.com/mig-{profile}\n    ignoredByScheduler: true\n");
        assert!(config.contains(&managed), "a MIG pod passes the extender by: {profile}");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(path) = todo.pop() {
        for entry in std::fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}
