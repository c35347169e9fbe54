//! A cluster with Baton's rights and policies, two nodes, and those who attack it.

use std::time::Duration;

use baton::contract::inventory::Device;
use baton::contract::key;
use baton::ops::manifests::{POLICIES, VISIBLE_DEVICES, Values};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::harness::TestServer;
use crate::harness::wait::until;

/// Longest wait for what takes a moment.
pub const SOON: Duration = Duration::from_secs(30);
pub const SYSTEM: &str = "baton-system";
pub const LEASES: &str = "baton-system-nodes";

#[derive(Debug, Clone)]
pub struct Call {
    method: &'static str,
    path: String,
    content: &'static str,
    body: Value,
}

impl Call {
    pub fn create(path: impl Into<String>, body: Value) -> Self {
        Self { method: "POST", path: path.into(), content: "application/json", body }
    }

    pub fn replace(path: impl Into<String>, body: Value) -> Self {
        Self { method: "PUT", path: path.into(), content: "application/json", body }
    }

    pub fn patch(path: impl Into<String>, body: Value) -> Self {
        Self { method: "PATCH", path: path.into(), content: "application/merge-patch+json", body }
    }

    pub fn json_patch(path: impl Into<String>, body: Value) -> Self {
        Self { method: "PATCH", path: path.into(), content: "application/json-patch+json", body }
    }

    pub fn apply(path: &str, body: Value) -> Self {
        let path = format!("{path}?fieldManager=hostile&force=true");
        Self { method: "PATCH", path, content: "application/apply-patch+yaml", body }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self { method: "GET", path: path.into(), content: "application/json", body: Value::Null }
    }

    pub fn delete(path: impl Into<String>) -> Self {
        Self { method: "DELETE", path: path.into(), content: "application/json", body: Value::Null }
    }

    /// The answer, or the refusal's text.
    pub async fn send(&self, client: &Client) -> Result<Value, String> {
        let body = if self.body.is_null() { Vec::new() } else { serde_json::to_vec(&self.body).unwrap() };
        let request = http::Request::builder().method(self.method).uri(&self.path).header("content-type", self.content);
        client.request(request.body(body).unwrap()).await.map_err(|error| error.to_string())
    }
}

pub struct World {
    pub server: TestServer,
}

impl std::ops::Deref for World {
    type Target = TestServer;
    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl World {
    pub async fn start() -> Self {
        let server = TestServer::start().await;
        server.install(&Values::default()).await;
        server.create_namespace("ml").await;
        for node in ["node-a", "node-b"] {
            server.create_object::<Node>(json!({"metadata": {"name": node, "labels": {"zone": "1"}}})).await;
            server.create_object::<Device>(device(node)).await;
        }
        let world = Self { server };
        // A tenant with more rights than `edit` gives, so that it is the policies which deny.
        for (resources, group) in [
            ("pods pods/status pods/binding pods/ephemeralcontainers pods/resize bindings", ""),
            ("podgroups", "scheduling.sigs.k8s.io"),
        ] {
            let resources: Vec<&str> = resources.split(' ').collect();
            let verbs = json!(["get", "create", "update", "patch", "delete"]);
            let rules = json!([{"apiGroups": [group], "resources": resources, "verbs": verbs}]);
            world.role(Some("ml"), &format!("tenant-{}", resources[0]), rules, user("tenant")).await;
        }
        world
    }

    /// Makes a role of these rules and gives it to the subject: in a namespace, or in the whole cluster.
    pub async fn role(&self, namespace: Option<&str>, name: &str, rules: Value, subject: Value) {
        let (kind, at) = match namespace {
            Some(namespace) => ("Role", format!("namespaces/{namespace}/role")),
            None => ("ClusterRole", "clusterrole".to_owned()),
        };
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{at}");
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}, "subjects": [subject]});
        self.admin(Call::create(format!("{path}s"), json!({"metadata": {"name": name}, "rules": rules}))).await;
        self.admin(Call::create(format!("{path}bindings"), binding)).await;
    }

    /// The answer to an administrator.
    pub async fn admin(&self, call: Call) -> Value {
        call.send(&self.client).await.unwrap_or_else(|why| panic!("{call:?}: {why}"))
    }

    pub async fn tenant(&self) -> Client {
        self.acting_as("tenant", &[]).await
    }

    /// The kubelet of a node. Its rights come from a role here: no node authorizer runs in these tests.
    pub async fn kubelet(&self, node: &str) -> Client {
        let rules =
            json!([{"apiGroups": [""], "resources": ["nodes", "nodes/status", "pods", "pods/status"], "verbs": ["*"]}]);
        let nodes = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"});
        self.role(None, "test-kubelets", rules, nodes).await;
        self.acting_as(&format!("system:node:{node}"), &["system:nodes"]).await
    }

    /// The daemon of a node, with the token of its pod.
    pub async fn node_daemon(&self, node: &str) -> Client {
        self.client_of(SYSTEM, "baton-device-plugin", Some(node)).await
    }

    pub async fn scheduler(&self) -> Client {
        self.client_of(SYSTEM, "baton-scheduler", None).await
    }

    /// A pod of the tenant, bound to a node with devices by the scheduler.
    pub async fn served_pod(&self, name: &str, node: &str) {
        self.admin(Call::create("/api/v1/namespaces/ml/pods", pod(name, json!({"nvidia.com/gpu": "1"})))).await;
        let binding =
            json!({"metadata": {"name": name, "annotations": assignment()}, "target": {"kind": "Node", "name": node}});
        let scheduler = self.scheduler().await;
        Call::create(format!("/api/v1/namespaces/ml/pods/{name}/binding"), binding)
            .send(&scheduler)
            .await
            .expect("bound");
    }

    /// Each call is denied by `policy` with `words`; without the policies each succeeds.
    pub async fn attack(&self, by: &Client, policy: &str, words: &str, calls: &[Call]) {
        self.attacks(by, &[(policy, words, calls)]).await;
    }

    /// The same of several policies.
    pub async fn attacks(&self, by: &Client, all: &[(&str, &str, &[Call])]) {
        for (policy, words, call) in
            all.iter().flat_map(|(policy, words, of)| of.iter().map(move |call| (*policy, *words, call)))
        {
            until(&format!("denied by {policy}: {call:?}"), SOON, async || match call.send(by).await {
                Ok(_) => panic!("not denied: {call:?}"),
                // Another policy that was just removed may deny for a moment more, and answer first.
                Err(why) => {
                    assert!(why.contains("denied request"), "{call:?}: {why}");
                    (why.contains(policy) && why.contains(words)).then_some(())
                }
            })
            .await;
        }
        self.remove_policies().await;
        for call in all.iter().flat_map(|(.., calls)| *calls) {
            until(&format!("without policies it succeeds: {call:?}"), SOON, async || match call.send(by).await {
                Ok(_) => Some(()),
                Err(why) if why.contains("denied request") => None,
                Err(why) => panic!("without policies: {call:?}: {why}"),
            })
            .await;
        }
    }

    pub async fn remove_policies(&self) {
        for policy in POLICIES.into_iter().chain([VISIBLE_DEVICES]) {
            self.remove_policy(policy).await;
        }
    }

    /// Removes the binding of a policy, if it is there.
    pub async fn remove_policy(&self, policy: &str) {
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding");
        let bindings: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::from_gvk(&gvk));
        let _ = bindings.delete(policy, &Default::default()).await;
    }

    /// Each call succeeds with the policies in force.
    pub async fn allowed(&self, by: &Client, calls: &[Call]) {
        for call in calls {
            call.send(by).await.unwrap_or_else(|why| panic!("denied: {call:?}: {why}"));
        }
    }
}

/// A user as the subject of a role.
pub fn user(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name})
}

pub fn device(node: &str) -> Value {
    let gpu = json!({"type": "gpu", "id": format!("GPU-{node}"), "minor": 0, "health": true, "resources": {"koordinator.sh/gpu-core": "100"}});
    json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": node}, "spec": {"devices": [gpu]}})
}

pub fn pod(name: &str, limits: Value) -> Value {
    let containers = json!([{"name": "main", "image": "i", "resources": {"limits": limits}}]);
    json!({"metadata": {"name": name}, "spec": {"schedulerName": "baton-scheduler", "containers": containers}})
}

/// The annotations of an assignment.
pub fn assignment() -> Value {
    let entry = json!({"minor": 0, "id": "GPU-node-a", "resources": {"koordinator.sh/gpu-core": "100"}});
    json!({
        "scheduling.koordinator.sh/device-allocated": json!({"gpu": [entry]}).to_string(),
        key::CONTAINER_DEVICES: "{}",
        "scheduling.koordinator.sh/bind-timestamp": "1795226400000000000",
        "scheduling.koordinator.sh/gpu-minors": "0",
    })
}
