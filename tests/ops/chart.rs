//! The chart by a real Helm: it gives the checked-in manifests, and says which value is wrong.

use baton::ops::demo::apply_all;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Namespace;

use crate::helm::{CHART, Helm};
use crate::prelude::*;
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
        // The API server keys both by their names, and no variable's value refers to another.
        for list in ["/spec/template/spec/containers/0/env", "/spec/template/spec/volumes"] {
            if let Some(list) = object.pointer_mut(list).and_then(Value::as_array_mut) {
                list.sort_by_key(|entry| entry["name"].to_string());
            }
        }
        let key = key(&object);
        assert!(found.insert(key.clone(), object).is_none(), "twice: {key:?}");
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn manifests(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_baton")).arg("manifests").args(options).output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The objects of manifests without the namespace, which a release has before its objects.
fn but_the_namespace(text: &str, namespace: &str) -> Objects {
    let mut objects = objects(text);
    objects.remove(&["Namespace".to_owned(), String::new(), namespace.to_owned()]).expect("a namespace");
    objects
}

fn kustomize(kubectl: &Path, folder: &Path) -> Objects {
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    but_the_namespace(&text(&output.stdout), "baton-system")
}

/// What the chart gives with these values.
fn with_values(helm: &Helm, namespace: &str, values: &Value) -> Objects {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(&file, values.to_string()).unwrap();
    objects(&helm.template(namespace, &["-f", file.path().to_str().unwrap()]))
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
    let Some(helm) = Helm::find() else { return };
    let output = helm.run(&["lint", "--strict", CHART, "-n", "baton-system"]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// Texts of the files of the chart's templates, comments included.
fn rendered(helm: &Helm, values: &[&str]) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for document in
        format!("\n{}", helm.template("baton-system", values)).split("\n---\n# Source: baton/templates/").skip(1)
    {
        let (file, content) = document.split_once('\n').unwrap();
        files.entry(file.to_owned()).or_default().push(format!("{}\n", content.trim()));
    }
    files.into_iter().map(|(file, documents)| (file, documents.join("---\n"))).collect()
}

/// With `UPDATE_MANIFESTS`, writes them.
#[test]
fn the_checked_in_manifests_are_what_the_chart_gives() {
    let Some(helm) = Helm::find() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset");
    let mut files = rendered(&helm, &[]);
    assert_eq!(files.len(), 8, "{:?}", files.keys());
    let mut chosen = rendered(&helm, &["--set=monitoring.enabled=true,extender=true,visibleDevices.deny=true"]);
    assert!(!chosen.contains_key("scheduler.yaml"), "the extender is the scheduler then");
    for (folder, file) in [
        ("components/monitoring", "monitoring.yaml"),
        ("components/visible-devices", "visible-devices.yaml"),
        ("extender", "extender.yaml"),
        ("extender", "gangs.yaml"),
    ] {
        files.insert(format!("{folder}/{file}"), chosen.remove(file).unwrap());
    }
    for (file, mut given) in files {
        let path = folder.join(&file);
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        if file == "namespace.yaml" {
            // The first is the release's own, which Helm makes.
            given = format!("{}---\n{given}", there.split("---\n").next().unwrap());
        }
        if std::env::var_os("UPDATE_MANIFESTS").is_some() {
            std::fs::write(&path, given).unwrap();
        } else {
            assert!(there == given, "{file} is another: UPDATE_MANIFESTS=1 cargo test --test ops chart");
        }
    }
}

#[test]
fn another_image_and_namespace_are_the_same_without_helm() {
    let Some(helm) = Helm::find() else { return };
    for namespace in ["gpu-system", "my-baton-system", "baton-system"] {
        for (option, value) in [(None, "extender=false"), (Some("--extender"), "extender=true")] {
            let options = ["--namespace", namespace, "--image=r:5/b@sha256:0a"].into_iter().chain(option);
            let printed = manifests(&options.collect::<Vec<_>>());
            let chart = objects(&helm.template(namespace, &["--set=image=r:5/b@sha256:0a", "--set", value]));
            assert_same(&chart, &but_the_namespace(&printed, namespace), &format!("{namespace} {value}"));
        }
    }
}

#[test]
fn a_value_reaches_every_place_that_it_is_for() {
    let Some(helm) = Helm::find() else { return };
    let places = |values: &[&str], texts: &[(&str, usize)]| {
        let rendered = helm.template("ml", values);
        for (text, count) in texts {
            assert_eq!(rendered.matches(text).count(), *count, "{values:?}: {text:?}");
        }
    };
    let koordinator = "system:serviceaccount:koordinator-system:koord-scheduler";
    places(
        &[&format!("--set=assignmentWriters={{ann,{koordinator}}}")],
        &[
            (&format!("in ['system:serviceaccount:ml:baton-scheduler', 'ann', '{koordinator}'])"), 2),
            (&format!("system:serviceaccount:ml:baton-scheduler or ann or {koordinator}"), 2),
        ],
    );
    places(&["--set=pinnedNamespaces={gpu-operator,monitoring}"], &[("in ['gpu-operator', 'monitoring'])", 1)]);
    places(
        &["--set=visibleDevices.deny=true,visibleDevices.namespaces={gpu-operator}"],
        &[
            ("in ['gpu-operator'])", 1),
            ("name: baton-visible-devices-ml\n", 2),
            ("kind: ValidatingAdmissionPolicy\n", 9),
        ],
    );
    let from = "--set-json=monitoring.from=[{\"ipBlock\":{\"cidr\":\"10.0.0.0/24\"}},{\"namespaceSelector\":{\"matchLabels\":{\"a\":\"b\"}}}]";
    places(
        &[from],
        &[
            ("- port: metrics\n    from:\n    - ipBlock:\n        cidr: 10.0.0.0/24\n    - namespaceSelector:\n", 1),
            ("PodMonitor", 0),
        ],
    );
    let admits = "from:\n    - namespaceSelector:\n        matchLabels:\n          kubernetes.io/metadata.name: mon\n";
    places(&["--set=monitoring.namespace=mon"], &[(admits, 1)]);
    places(&["--set=monitoring.namespace=mon", from], &[(admits, 0), ("- ipBlock:\n", 1)]);
    places(
        &["--set=nodeLockKey=hami.io/mutex.lock"],
        &[("- --node-lock-key=hami.io/mutex.lock\n", 2), ("scheduling.koordinator.sh/node-lock", 0)],
    );
    places(&["--set=unassignedPods=serve"], &[("- --unassigned-pods=serve\n", 1), ("baton-pinned-pods", 0)]);
    places(&[], &[("- --", 0), ("runbook_url", 0), ("kind: ValidatingAdmissionPolicy\n", 8), ("from:", 0)]);
    let monitored = ["--set=monitoring.enabled=true,docsUrl=https://a.b/c/"];
    places(&monitored, &[("runbook_url: https://a.b/c/runbooks.md#baton", 13), ("grafana_dashboard: \"1\"", 2)]);
}

#[test]
fn what_platform_teams_add_to_pods_and_images_reaches_them() {
    let Some(helm) = Helm::find() else { return };
    let digest = format!("sha256:{}", "0a".repeat(32));
    let values = json!({
        "image": {"registry": "r:5", "repository": "a/baton", "digest": digest, "pullPolicy": "Always"},
        "monitoring": {"enabled": true, "labels": {"release": "kps"}, "namespace": "mon", "interval": "15s"},
        "devicePlugin": {"nodesWith": ["nvidia.com/gpu.present=true", "example.com/nic"], "podLabels": {"team": "gpu"},
            "extraVolumes": [{"name": "x", "emptyDir": {}}], "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}]},
        "scheduler": {"replicas": 3, "affinity": {"nodeAffinity": {}}, "priorityClassName": "high",
            "topologySpreadConstraints": [{"maxSkew": 1}], "podAnnotations": {"a": "b"}},
        "controller": {"extraEnv": [{"name": "HTTPS_PROXY", "value": "p"}], "serviceAccountAnnotations": {"role": "r"}},
    });
    let found = with_values(&helm, "ml", &values);
    let get = |kind: &str, name: &str| {
        &found[&[kind, if name == "baton-ml" { "mon" } else { "ml" }, name].map(str::to_owned)]
    };
    let pod = |kind: &str, name: &str| get(kind, name)["spec"]["template"].clone();
    let (plugin, scheduler) = (pod("DaemonSet", "baton-device-plugin"), pod("Deployment", "baton-scheduler"));
    let controller = pod("Deployment", "baton-controller");
    for of in [&plugin, &scheduler, &controller] {
        let container = &of["spec"]["containers"][0];
        assert_eq!(container["image"], format!("r:5/a/baton@{digest}"));
        assert_eq!(container["imagePullPolicy"], "Always");
    }
    let terms = &plugin["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(
        terms[0]["matchExpressions"][3],
        json!({"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]})
    );
    assert_eq!(terms[1]["matchExpressions"][3], json!({"key": "example.com/nic", "operator": "Exists"}));
    assert!([0, 1].iter().all(|at| terms[at]["matchExpressions"][0]["key"] == "baton.io/device-plugin"), "{terms}");
    assert_eq!(
        (&plugin["metadata"]["labels"]["team"], &plugin["spec"]["volumes"].as_array().unwrap().len()),
        (&json!("gpu"), &10)
    );
    assert_eq!(get("Deployment", "baton-scheduler")["spec"]["replicas"], 3);
    assert_eq!(scheduler["spec"]["affinity"], json!({"nodeAffinity": {}}));
    assert_eq!(
        (&scheduler["spec"]["priorityClassName"], &scheduler["metadata"]["annotations"]["a"]),
        (&json!("high"), &json!("b"))
    );
    assert_eq!(scheduler["spec"]["topologySpreadConstraints"], json!([{"maxSkew": 1}]));
    assert!(
        controller["spec"]["containers"][0]["env"]
            .as_array()
            .unwrap()
            .contains(&json!({"name": "HTTPS_PROXY", "value": "p"}))
    );
    assert_eq!(get("ServiceAccount", "baton-controller")["metadata"]["annotations"]["role"], "r");
    for kind in ["PodMonitor", "PrometheusRule"] {
        assert_eq!(
            get(kind, "baton-ml")["metadata"]["labels"]["release"],
            "kps",
            "the label that a collector selects by"
        );
    }
    let monitor = &get("PodMonitor", "baton-ml")["spec"];
    assert_eq!(monitor["namespaceSelector"]["matchNames"], json!(["ml"]));
    assert_eq!(monitor["podMetricsEndpoints"][0]["interval"], "15s");
    for (name, object) in &found {
        if name[0] != "CustomResourceDefinition" {
            assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/version"], "0.1.0", "{name:?}");
        }
    }
}

#[test]
fn the_scheduler_may_evict_only_with_its_option() {
    let Some(helm) = Helm::find() else { return };
    let evicts = |arguments: &[&str]| {
        let found = objects(&helm.template("baton-system", arguments));
        let bound = |kind: &str| found.keys().any(|[of, .., name]| of == kind && name == "baton-scheduler-evicts");
        bound("ClusterRole") && bound("ClusterRoleBinding")
    };
    let with = |value: &str| evicts(&["--set", &format!("scheduler.flags.evict-on-fault={value}")]);
    assert!(with("true") && with("on") && !with("false") && !with("0") && !evicts(&[]));
}

/// What a cluster often needs is there without Helm too.
#[test]
fn each_component_of_the_kustomization_is_a_value_of_the_chart() {
    let (Some(helm), Some(kubectl)) = (Helm::find(), kubectl()) else { return };
    let dir = tempfile::tempdir().unwrap();
    manifests(&["--dir", dir.path().join("base").to_str().unwrap()]);
    let values = BTreeMap::from([
        ("driver-container", "devicePlugin.flags.host-driver-root=/run/nvidia/driver"),
        ("gpu-taint", "TOLERATION"),
        ("keep-kinds", "crds=own"),
        ("monitoring", "monitoring.enabled=true"),
        ("visible-devices", "visibleDevices.deny=true"),
        ("without-policies", "admission=false"),
    ]);
    let folders = std::fs::read_dir(dir.path().join("base/components")).unwrap();
    let folders: BTreeMap<_, _> = folders.map(|of| (of.unwrap().file_name().into_string().unwrap(), ())).collect();
    assert!(folders.keys().eq(values.keys()), "{folders:?}");
    for (component, value) in values {
        let overlay = json!({"resources": ["base"], "components": [format!("base/components/{component}")]});
        std::fs::write(dir.path().join("kustomization.yaml"), overlay.to_string()).unwrap();
        let toleration =
            |daemon| format!("{daemon}.tolerations[0].key=nvidia.com/gpu,{daemon}.tolerations[0].operator=Exists");
        let value = value.replace("TOLERATION", &["scheduler", "controller"].map(toleration).join(","));
        let mut given = objects(&helm.template("baton-system", &["--set", &value]));
        let mut overlaid = kustomize(&kubectl, dir.path());
        let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&given), names(&overlaid), "{component}");
        without_schemas(&mut given, &mut overlaid);
        assert_same(&given, &overlaid, component);
    }
}

/// kubectl writes the bounds in the schemas of kinds as other numbers.
fn without_schemas(one: &mut Objects, other: &mut Objects) {
    for objects in [one, other] {
        objects.retain(|[kind, ..], _| kind != "CustomResourceDefinition");
    }
}

#[test]
fn what_daemons_are_given_is_what_an_overlay_does() {
    let (Some(helm), Some(kubectl)) = (Helm::find(), kubectl()) else { return };
    let dir = tempfile::tempdir().unwrap();
    manifests(&["--dir", dir.path().join("base").to_str().unwrap()]);
    let values = json!({
        "imagePullSecrets": [{"name": "registry"}],
        "devicePlugin": {
            "flags": {"mig-strategy": "mixed", "suspect-min": "1m", "rdma": false, "device-list-strategy": ["cdi-cri", "envvar"]},
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
                    {"name": "MIG_STRATEGY", "value": "mixed"}, {"name": "BATON_SUSPECT_MIN", "value": "1m"},
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
    let mut rendered = with_values(&helm, "baton-system", &values);
    let mut overlaid = kustomize(&kubectl, dir.path());
    without_schemas(&mut rendered, &mut overlaid);
    assert_same(&rendered, &overlaid, "overlay");
}

#[test]
fn a_wrong_value_is_refused_by_its_name() {
    let Some(helm) = Helm::find() else { return };
    for (values, names) in [
        (&["--set=imagee=x"][..], &["imagee"][..]),
        (&["--set=image=a b"], &["image", "a b"]),
        (&["--set=image.tagg=2"], &["image", "tagg"]),
        (&["--set=image.digest=0a"], &["image", "digest"]),
        (&["--set=devicePlugin.replicas=1"], &["devicePlugin", "replicas"]),
        (&["--set=devicePlugin.nodesWith={a b}"], &["devicePlugin", "nodesWith", "a b"]),
        (&["--set=scheduler.replicas=two"], &["scheduler", "replicas"]),
        (&["--set=controller.extraEnv[0].value=a"], &["controller", "extraEnv", "name"]),
        (&["--set=monitoring.interval=often"], &["monitoring", "interval"]),
        (&["--set=crds=some"], &["crds"]),
        (&["--set=admission=maybe"], &["admission"]),
        (&["--set=adminFrom={10.0.0.0/24}"], &["adminFrom"]),
        (&["--set=monitoring=true"], &["monitoring", "object"]),
        (&["--set=monitoring.from={10.0.0.0/24}"], &["monitoring", "from"]),
        (&["--set=monitoring.from[0].cidr=10.0.0.0/24"], &["monitoring", "cidr"]),
        (&["--set=scheduler.flags.admin-auth=none"], &["scheduler", "flags", "admin-auth"]),
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
        let output = helm.run(&[&["template", "baton", CHART], namespace, values].concat());
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{values:?} was accepted");
        for name in names {
            assert!(error.contains(name), "{values:?}: {name:?} is not in: {error}");
        }
    }
    let off = ["--kube-version=1.29.3", "--set=admission=false"];
    assert!(!helm.template("baton-system", &off).is_empty());
}

/// What Helm finds in the cluster, and the way from one command to a running pod. Helm writes Secrets in protobuf, which the
/// simulated server does not read: there it only renders, with what it finds in the cluster, and the test applies that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_installs_and_what_stands_in_the_way_is_named() {
    let Some(helm) = Helm::find() else { return };
    let mut server = TestServer::start().await;
    server.namespace = "baton-system";
    let real = server.control_plane.simulated().is_none();
    let config = server.kubeconfig.display().to_string();
    let how = if real { "--create-namespace" } else { "--dry-run=server" };
    let install = |release: &str, more: &[&str]| {
        let output = helm.run(&[&["install", release, CHART], more, &["--kubeconfig", &config, how]].concat());
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
    let (done, printed) = install("baton", &[&elsewhere[..], &["--set", known]].concat());
    assert!(real || done, "{printed}");

    // The third kind, which the chart left to Koordinator's side, and the daemons that its objects describe.
    apply_all(&server.client, &crds).await.unwrap();
    let cluster = TestCluster::on(server, 1, &[], &[]).await;
    cluster.runs(&pod("first").app("main", &[("nvidia.com/gpu", "1")])).await;
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
        let output = helm.run(&[arguments, &["-n", "baton-system", "--kubeconfig", &config]].concat());
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        println!("$ helm {}\n{}", arguments.join(" "), printed.lines().next().unwrap_or_default());
        (output.status.success(), printed)
    };
    let upgrade = ["upgrade", "baton", CHART, "--set=crds=own,devicePlugin.flags.mig-strategy=mixed"];
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
