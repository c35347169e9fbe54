//! `baton manifests --helm` by a real Helm: the chart renders the manifests, and says which value is wrong.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use baton::ops::demo::apply_all;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::harness::pods::pod;
use crate::harness::{TestCluster, TestServer};
use crate::helm::helm;
use crate::program::kubectl;

/// Objects by kind, namespace and name.
type Objects = BTreeMap<[String; 3], Value>;

fn objects(text: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_str_multiple(text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let key = |object: &Value| {
        ["/kind", "/metadata/namespace", "/metadata/name"]
            .map(|place| object.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned())
    };
    let mut found = Objects::new();
    for mut object in documents.into_iter().filter(|document| !document.is_null()) {
        // The API server keys variables by their name, and no value refers to another.
        if let Some(env) = object.pointer_mut("/spec/template/spec/containers/0/env").and_then(Value::as_array_mut) {
            env.sort_by_key(|variable| variable["name"].to_string());
        }
        let key = key(&object);
        assert!(found.insert(key.clone(), object).is_none(), "twice: {key:?}");
    }
    found
}

struct Chart {
    helm: PathBuf,
    dir: tempfile::TempDir,
}

impl Chart {
    /// The chart with these options of `baton manifests` as its defaults.
    fn new(options: &[&str]) -> Option<Self> {
        let chart = Self { helm: helm()?, dir: tempfile::tempdir().unwrap() };
        let dir = chart.dir.path().join("baton").display().to_string();
        manifests(&[&["--helm", &dir], options].concat());
        Some(chart)
    }

    /// A command, the chart, and what follows.
    fn run(&self, command: &[&str], more: &[&str]) -> Output {
        let chart = self.dir.path().join("baton").display().to_string();
        self.helm(&[command, &[&chart], more].concat())
    }

    fn helm(&self, arguments: &[&str]) -> Output {
        Command::new(&self.helm).args(arguments).env("HOME", self.dir.path()).output().unwrap()
    }

    fn template(&self, namespace: &str, values: &[&str]) -> Objects {
        let output = self.run(&["template", "baton"], &[&["-n", namespace], values].concat());
        assert!(output.status.success(), "{values:?}: {}", text(&output.stderr));
        objects(&text(&output.stdout))
    }

    /// The error of a command that must fail.
    fn refused(&self, command: &[&str], more: &[&str]) -> String {
        let output = self.run(command, more);
        assert!(!output.status.success(), "{more:?} was accepted");
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn manifests(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_baton")).arg("manifests").args(options).output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The manifests as a chart has them: its release brings the namespace, and Helm keeps the kinds.
fn as_in_a_chart(mut objects: Objects, namespace: &str) -> Objects {
    objects.remove(&["Namespace".to_owned(), String::new(), namespace.to_owned()]).expect("a namespace");
    for ([kind, ..], object) in &mut objects {
        if kind == "CustomResourceDefinition" {
            object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
        }
    }
    objects
}

fn assert_same(chart: &Objects, manifests: &Objects, what: &str) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(chart), names(manifests), "{what}");
    for (name, object) in manifests {
        assert_eq!(chart[name], *object, "{what}: {name:?}");
    }
}

#[test]
fn the_chart_passes_lint() {
    let Some(chart) = Chart::new(&[]) else { return };
    let output = chart.run(&["lint", "--strict"], &["-n", "baton-system"]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_chart_is_the_manifests_with_five_sets_of_values() {
    /// Namespace, options, the same as values.
    const SETS: [(&str, &[&str], &[&str]); 5] = [
        ("baton-system", &[], &[]),
        ("gpu-system", &["--image=r:5/b@sha256:0a", "--crds=own"], &["--set=image=r:5/b@sha256:0a,crds=own"]),
        (
            "baton-system",
            &["--admission=off", "--admin-from=10.0.0.0/24,fd00::/64", "--monitoring"],
            &["--set=admission=false,adminFrom={10.0.0.0/24,fd00::/64},monitoring=true"],
        ),
        (
            "ml",
            &[
                "--assignment-writers=ann,system:serviceaccount:koordinator-system:koord-scheduler",
                "--pinned-namespaces=gpu-operator,monitoring",
                "--node-lock-key=hami.io/mutex.lock",
            ],
            &[
                "--set=assignmentWriters={ann,system:serviceaccount:koordinator-system:koord-scheduler}",
                "--set=pinnedNamespaces={gpu-operator,monitoring}",
                "--set=nodeLockKey=hami.io/mutex.lock",
            ],
        ),
        (
            "ml-2",
            &["--unassigned-pods=serve", "--crds=none", "--monitoring", "--docs-url=https://a.b/c/"],
            &["--set=unassignedPods=serve,crds=none,monitoring=true,docsUrl=https://a.b/c/"],
        ),
    ];
    let Some(chart) = Chart::new(&[]) else { return };
    for (namespace, options, values) in SETS {
        let printed = objects(&manifests(&[options, &["--namespace", namespace]].concat()));
        let printed = as_in_a_chart(printed, namespace);
        let what = format!("{namespace} {options:?}");
        assert_same(&chart.template(namespace, values), &printed, &what);
        let of_options = Chart::new(options).expect("it was there before");
        assert_same(&of_options.template(namespace, &[]), &printed, &format!("{what} as defaults"));
    }
}

#[test]
fn what_daemons_are_given_is_what_an_overlay_does() {
    let (Some(chart), Some(kubectl)) = (Chart::new(&[]), kubectl()) else { return };
    let dir = tempfile::tempdir().unwrap();
    manifests(&["--dir", dir.path().join("base").to_str().unwrap()]);
    let values = json!({
        "imagePullSecrets": [{"name": "registry"}],
        "devicePlugin": {
            "flags": {"mig-strategy": "mixed", "verify-period": "1m", "rdma": false, "device-list-strategy": ["cdi-cri", "envvar"]},
            "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
            "nodeSelector": {"example.com/gpus": "true"},
        },
        "scheduler": {"flags": {"concurrency": 1_000_000}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        "controller": {"nodeSelector": {"example.com/system": "true"}},
    });
    let patch = |kind: &str, name: &str, spec: Value| {
        let patch = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": format!("baton-{name}")}, "spec": {"template": {"spec": spec}}});
        json!({"target": {"kind": kind, "name": format!("baton-{name}")}, "patch": patch.to_string()})
    };
    let secrets = &values["imagePullSecrets"];
    let overlay = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["base"],
        "patches": [
            patch("DaemonSet", "device-plugin", json!({
                "imagePullSecrets": secrets,
                "nodeSelector": values["devicePlugin"]["nodeSelector"],
                "containers": [{"name": "device-plugin", "resources": values["devicePlugin"]["resources"], "env": [
                    {"name": "MIG_STRATEGY", "value": "mixed"}, {"name": "BATON_VERIFY_PERIOD", "value": "1m"},
                    {"name": "BATON_RDMA", "value": "false"}, {"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri,envvar"},
                ]}],
            })),
            patch("Deployment", "scheduler", json!({
                "imagePullSecrets": secrets,
                "tolerations": values["scheduler"]["tolerations"],
                "containers": [{"name": "scheduler", "env": [{"name": "BATON_CONCURRENCY", "value": "1000000"}]}],
            })),
            patch("Deployment", "controller", json!({
                "imagePullSecrets": secrets,
                "nodeSelector": values["controller"]["nodeSelector"],
            })),
        ],
    });
    std::fs::write(dir.path().join("kustomization.yaml"), overlay.to_string()).unwrap();
    let output = Command::new(kubectl).arg("kustomize").arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let file = dir.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let mut rendered = chart.template("baton-system", &["-f", file.to_str().unwrap()]);
    let mut overlaid = as_in_a_chart(objects(&text(&output.stdout)), "baton-system");
    // kubectl writes the bounds in the schemas of kinds as other numbers.
    for objects in [&mut rendered, &mut overlaid] {
        objects.retain(|[kind, ..], _| kind != "CustomResourceDefinition");
    }
    assert_same(&rendered, &overlaid, "overlay");

    let containers = ["--set=devicePlugin.flags.host-driver-root=/run/nvidia/driver"];
    let rendered = chart.template("baton-system", &containers).into_values().find(|of| of["kind"] == "DaemonSet");
    let volumes = rendered.unwrap()["spec"]["template"]["spec"]["volumes"].clone();
    let driver = volumes.as_array().unwrap().iter().find(|volume| volume["name"] == "driver").unwrap();
    assert_eq!(driver["hostPath"]["path"], "/run/nvidia/driver", "the driver's root is mounted where it is");
}

#[test]
fn a_wrong_value_is_refused_by_its_name() {
    let Some(chart) = Chart::new(&[]) else { return };
    for (values, names) in [
        (&["--set=imagee=x"][..], &["imagee"][..]),
        (&["--set=image=a b"], &["image", "a b"]),
        (&["--set=crds=some"], &["crds"]),
        (&["--set=admission=maybe"], &["admission"]),
        (&["--set=adminFrom={everywhere}"], &["adminFrom", "everywhere"]),
        (&["--set=assignmentWriters={a b}"], &["assignmentWriters", "a b"]),
        (&["--set=devicePlugin.flags.mig-strategie=mixed"], &["devicePlugin", "flags", "mig-strategie"]),
        // Another value has it, or a volume that the chart lacks.
        (&["--set=scheduler.flags.node-lock-key=a/b"], &["scheduler", "flags", "node-lock-key"]),
        (&["--set=devicePlugin.flags.kubelet-dir=/k"], &["devicePlugin", "flags", "kubelet-dir"]),
        (&["--set=admission=false,assignmentWriters={ann}"], &["assignmentWriters=[\"ann\"]", "admission=false"]),
        (&["--set=admission=false,pinnedNamespaces={ml}"], &["pinnedNamespaces=[\"ml\"]", "admission=false"]),
        (&["--set=unassignedPods=serve,pinnedNamespaces={ml}"], &["pinnedNamespaces=[\"ml\"]", "unassignedPods=serve"]),
        (&["--kube-version=1.29.3"], &["admission=true", "1.30", "v1.29.3", "admission=false"]),
        (&["--namespace=default"], &["\"default\"", "-n baton-system"]),
        (&["--namespace=kube-system"], &["\"kube-system\""]),
        (&["--namespace=a123456789-123456789-123456789-123456789-123456789-1234567"], &["longer than 57", "-nodes"]),
    ] {
        let namespace = if values[0].starts_with("--namespace") { &[][..] } else { &["--namespace=baton-system"] };
        let error = chart.refused(&["template", "baton"], &[namespace, values].concat());
        for name in names {
            assert!(error.contains(name), "{values:?}: {name:?} is not in: {error}");
        }
    }
    let off = ["--kube-version=1.29.3", "--set=admission=false"];
    assert!(!chart.template("baton-system", &off).is_empty());
}

#[test]
fn the_manifests_refuse_the_same_contradictions() {
    for (options, names) in [
        (&["--admission=off", "--assignment-writers=ann"][..], &["--assignment-writers=ann", "--admission=off"][..]),
        (&["--admission=off", "--pinned-namespaces=ml"], &["--pinned-namespaces=ml", "--admission=off"]),
        (
            &["--unassigned-pods=serve", "--pinned-namespaces=ml"],
            &["--pinned-namespaces=ml", "--unassigned-pods=serve"],
        ),
        (&["--namespace=kube-system"], &["kube-system", "belongs to the cluster"]),
        (&["--helm=d", "--namespace=ml"], &["--helm", "--namespace"]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_baton")).arg("manifests").args(options).output().unwrap();
        let error = text(&output.stderr);
        assert!(!output.status.success() && names.iter().all(|name| error.contains(name)), "{options:?}: {error}");
    }
}

/// What Helm finds in the cluster, and the way from one command to a running pod. Helm writes Secrets in protobuf, which the
/// simulated server does not read: there it only renders, with what it finds in the cluster, and the test applies that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_installs_and_what_stands_in_the_way_is_named() {
    let Some(chart) = Chart::new(&[]) else { return };
    let mut server = TestServer::start().await;
    server.namespace = "baton-system";
    let real = server.control_plane.simulated().is_none();
    let config = server.kubeconfig.display().to_string();
    let how = if real { "--create-namespace" } else { "--dry-run=server" };
    let install = |release: &str, more: &[&str]| {
        let output = chart.run(&["install", release], &[more, &["--kubeconfig", &config, how]].concat());
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        println!(
            "$ helm install {release} baton {} {how}\n{}",
            more.join(" "),
            printed.lines().next().unwrap_or_default()
        );
        (output.status.success(), printed)
    };
    let refused = |release: &str, more: &[&str], names: &[&str]| {
        let (done, printed) = install(release, more);
        assert!(!done && names.iter().all(|name| printed.contains(name)), "{names:?}: {printed}");
    };

    // A namespace that demands more than the node daemon can give.
    let strict = json!({"name": "strict", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}});
    server.create_object::<Namespace>(json!({"metadata": strict})).await;
    refused("baton", &["-n", "strict"], &["\"strict\"", "\"baseline\"", "kubectl label --overwrite namespace strict"]);
    // Koordinator's kind.
    let crds = text(&Command::new(env!("CARGO_BIN_EXE_baton")).arg("crds").output().unwrap().stdout);
    let theirs = crds.split("---\n").find(|text| text.contains("name: devices.scheduling.koordinator.sh\n")).unwrap();
    apply_all(&server.client, theirs).await.unwrap();
    refused("baton", &["-n", "baton-system"], &["crds=all", "devices.scheduling.koordinator.sh", "crds=own"]);

    let values = ["-n", "baton-system", "--set=crds=own"];
    let (done, printed) = install("baton", &values);
    assert!(done, "{printed}");
    assert!(printed.contains("baton get nodes") && printed.contains("pod-security.kubernetes.io/enforce=privileged"));
    if !real {
        let rendered = printed.split("MANIFEST:\n").nth(1).unwrap().split("\nNOTES:").next().unwrap();
        server.create_namespace("baton-system").await;
        apply_all(&server.client, rendered).await.unwrap();
        let mut daemon = objects(rendered).into_values().find(|object| object["kind"] == "DaemonSet").unwrap();
        daemon["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "baton"}); // as Helm writes it
        let daemons: Api<DaemonSet> = Api::namespaced(server.client.clone(), "baton-system");
        daemons.create(&PostParams::default(), &serde_json::from_value(daemon).unwrap()).await.unwrap();
    }
    refused("second", &values, &["\"baton-system\" has Baton already", "helm upgrade baton"]);
    let elsewhere = ["-n", "gpu-system", "--set=crds=none"];
    let known = "otherInstallations={baton-system}";
    refused("baton", &["-n", "gpu-system", "--set=crds=own", "--set", known], &["tyjobs", "crds=none"]);
    refused("baton", &elsewhere, &["\"baton-system\" has an installation", known]);
    assert!(real || install("baton", &[&elsewhere[..], &["--set", known]].concat()).0);

    // The third kind, which the chart left to Koordinator's side, and the daemons that its objects describe.
    apply_all(&server.client, &crds).await.unwrap();
    let cluster = TestCluster::on(server, 1, &[], &[]).await;
    cluster.create(&pod("first").app("main", &[("nvidia.com/gpu", "1")])).await;
    cluster.until_running("first").await;
    let (_, devices, _) = cluster.baton(&["get", "pods"]).await;
    println!("$ baton get pods\n{devices}");
    // The digests of the policies, which Helm computed, are those of their specs.
    let (code, findings, errors) = cluster.baton(&["audit"]).await;
    assert_eq!(code, Some(0), "{findings}{errors}");
    println!("$ baton audit\n{findings}");

    if !real {
        return;
    }
    // Values that contradict each other change nothing; an upgrade does, and a rollback takes it back. The pod runs on.
    let daemons: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), "baton-system");
    let strategy = async || {
        let daemon = daemons.get("baton-device-plugin").await.unwrap().spec.unwrap().template.spec.unwrap();
        let env = daemon.containers[0].env.clone().unwrap_or_default();
        env.into_iter().find(|variable| variable.name == "MIG_STRATEGY").and_then(|variable| variable.value)
    };
    let helm = |arguments: &[&str]| {
        let output = chart.helm(&[arguments, &["-n", "baton-system", "--kubeconfig", &config]].concat());
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        let arguments = arguments.join(" ").replace(chart.dir.path().to_str().unwrap(), "");
        println!("$ helm {arguments}\n{}", printed.lines().next().unwrap_or_default());
        (output.status.success(), printed)
    };
    let dir = chart.dir.path().join("baton").display().to_string();
    let upgrade = ["upgrade", "baton", &dir, "--set=crds=own,devicePlugin.flags.mig-strategy=mixed"];
    let (done, printed) = helm(&[&upgrade[..], &["--set=admission=false,assignmentWriters={ann}"]].concat());
    assert!(!done && printed.contains("assignmentWriters=[\"ann\"]"), "{printed}");
    assert_eq!(strategy().await, None, "nothing was changed");
    let (done, printed) = helm(&upgrade);
    assert!(done, "{printed}");
    assert_eq!(strategy().await.as_deref(), Some("mixed"));
    let (done, printed) = helm(&["rollback", "baton", "1"]);
    assert!(done, "{printed}");
    assert_eq!(strategy().await, None, "as it was installed");
    cluster.until_running("first").await;
    let (code, findings, errors) = cluster.baton(&["audit"]).await;
    assert_eq!(code, Some(0), "after upgrade and rollback: {findings}{errors}");

    let (done, printed) = helm(&["uninstall", "baton"]);
    assert!(done && printed.contains("tyjobs.arranger.taichu.io"), "the kind is kept: {printed}");
    assert!(daemons.get_opt("baton-device-plugin").await.unwrap().is_none(), "the daemons are gone");
    cluster.until_running("first").await;
}
