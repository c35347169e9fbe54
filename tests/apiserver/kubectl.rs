//! A real kubectl against the simulated API server: get, describe, apply, watch, delete.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use baton::sim::apiserver::{ApiServer, Options};

use crate::program::kubectl;

struct Kubectl {
    program: PathBuf,
    home: tempfile::TempDir,
}

impl Kubectl {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", self.home.path().join("config"))
            .env("HOME", self.home.path())
            .current_dir(self.home.path());
        command
    }

    fn output(&self, arguments: &str) -> (Output, String) {
        let output = self.command(arguments).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output, text)
    }

    /// Runs a command that must succeed; answers what it printed.
    fn run(&self, arguments: &str) -> String {
        let (output, text) = self.output(arguments);
        assert!(output.status.success(), "kubectl {arguments}: {text}");
        text
    }

    /// Runs a command that must fail; answers what it printed.
    fn refused(&self, arguments: &str) -> String {
        let (output, text) = self.output(arguments);
        assert!(!output.status.success(), "kubectl {arguments}: {text}");
        text
    }
}

fn write(home: &Path, name: &str, text: &str) {
    std::fs::write(home.join(name), text).unwrap();
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {app: demo}}\nspec:\n  containers:\n  - name: main\n    \
    image: busybox\n    resources: {limits: {nvidia.com/gpu: \"1\"}}\n";
const TYPO: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: m, image: x, imagee: y}]}\n";
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";
const CRD: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: devices.x.io}\nspec:\n  \
    group: x.io\n  scope: Cluster\n  names: {plural: devices, singular: device, kind: Device, shortNames: [dv]}\n  versions:\n  \
    - name: v1\n    served: true\n    storage: true\n    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: \
    object, properties: {size: {type: integer}}}}}}\n";
const DEVICE: &str = "apiVersion: x.io/v1\nkind: Device\nmetadata: {name: d1}\nspec: {size: 1}\n";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_gets_describes_applies_watches_and_deletes() {
    let Some(program) = kubectl() else { return };
    let server = ApiServer::start(Options::default()).await.unwrap();
    let k = Kubectl { program, home: tempfile::tempdir().unwrap() };
    let home = k.home.path();
    write(home, "config", &server.kubeconfig("admin"));
    for (name, text) in [("pod", POD), ("typo", TYPO), ("node", NODE), ("crd", CRD), ("device", DEVICE)] {
        write(home, name, text);
    }
    tokio::task::spawn_blocking(move || session(&k)).await.unwrap();
}

fn session(k: &Kubectl) {
    assert!(k.run("api-resources").contains("customresourcedefinitions"));
    k.run("apply -f node");
    assert!(k.run("get nodes").contains("n1     Unknown"));
    assert!(k.run("describe node n1").contains("node.kubernetes.io/not-ready:NoSchedule"));

    let mut watch = k.command("get pods -w").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut heard = std::io::BufReader::new(watch.stdout.take().unwrap());
    assert_eq!(k.run("apply -f pod").trim(), "pod/a created");
    assert_eq!(k.run("apply -f pod").trim(), "pod/a unchanged");
    let mut line = String::new();
    while !line.contains("Pending") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut heard, &mut line).unwrap() > 0, "the watch ended");
    }
    assert!(line.starts_with("a "), "{line}");
    assert!(k.run("get pods -o wide").contains("NOMINATED NODE"));
    assert!(k.run("get pod a -o yaml").contains("qosClass: BestEffort"));
    assert!(k.run("describe pod a").contains("nvidia.com/gpu:  1"));
    k.run("label pod a x=y");
    k.run("annotate pod a x/y=z");
    assert!(k.run("get pods -l x=y -o name").contains("pod/a"));
    assert!(k.refused("apply -f typo").contains("strict decoding error: unknown field \"spec.containers[0].imagee\""));
    assert!(k.run("explain pod.spec.nodeName").contains("FIELD: nodeName <string>"));

    // These send protobuf.
    for create in [
        "namespace team",
        "serviceaccount bot -n team",
        "quota limit -n team --hard=pods=3",
        "deployment web -n team --image=busybox --replicas=0 --port=80",
        "job once -n team --image=busybox",
        "pdb half -n team --selector=a=b --min-available=50%",
        "role see -n team --verb=get --resource=pods",
        "rolebinding see -n team --role=see --serviceaccount=team:bot",
    ] {
        assert!(k.run(&format!("create {create}")).contains("created"), "{create}");
    }
    assert!(k.run("get deployment web -n team -o yaml").contains("containerPort: 80"));
    assert!(k.run("get quota limit -n team -o jsonpath={.spec.hard.pods}").ends_with('3'));
    assert_eq!(k.run("create token bot -n team").trim().split('.').count(), 3);
    assert_eq!(k.run("auth can-i get pods -n team --as=system:serviceaccount:team:bot").trim(), "yes");
    assert!(k.refused("auth can-i delete pods -n team --as=system:serviceaccount:team:bot").contains("no"));
    k.run("delete namespace team");

    k.run("apply --server-side -f crd");
    k.run("apply -f device");
    assert!(k.run("apply -f device").contains("unchanged"));
    k.run("apply --server-side -f device --force-conflicts");
    assert!(k.run("get dv").contains("d1"));
    k.run("patch device d1 --type=merge -p {\"spec\":{\"size\":2}}");
    let device = k.run("get device d1 -o json");
    assert!(device.contains("\"size\": 2"), "{device}");
    assert!(
        k.refused("patch device d1 --type=merge -p {\"spec\":{\"size\":\"x\"}}").contains("must be of type integer")
    );

    assert!(k.refused("get pods --as=somebody").contains("User \"somebody\" cannot list resource \"pods\""));
    k.run("delete pod a");
    k.run("delete -f device -f node");
    assert!(k.run("get pods,nodes,devices").contains("No resources found"));
    let _ = watch.kill();
    let _ = watch.wait();
}
