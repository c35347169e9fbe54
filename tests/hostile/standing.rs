//! What `baton audit` says of policies that are missing, altered, or that the API server does not have.

use baton::ops::manifests::{POLICIES, Values};
use baton::sim::apiserver::{ApiServer, Options};
use serde_json::{Value, json};

use crate::harness::TestServer;
use crate::world::{Call, World};

const PATH: &str = "/apis/admissionregistration.k8s.io/v1";

/// Exit code and all output of `baton audit`.
async fn audit(server: &TestServer) -> (Option<i32>, String) {
    let (code, out, err) = server.baton(&["audit"]).await;
    (code, out + &err)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_as_the_api_server_stores_it_is_the_one_that_was_installed() {
    let world = World::start().await;
    let (code, said) = audit(&world).await;
    let verdict = said.lines().last().unwrap();
    let without = "2 nodes, 2 Device objects, 0 pods that ask for devices: no violation, but 2 nodes take no new pods with devices";
    assert_eq!((code, verdict, said.contains("admission")), (Some(0), without, false), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_is_missing_unbound_narrowed_or_edited_is_named() {
    let world = World::start().await;
    let [nodes, devices, leases, assignments, ..] = POLICIES;
    let weak = json!([{"op": "replace", "path": "/spec/validations/0/expression", "value": "true"}]);
    for call in [
        Call::json_patch(format!("{PATH}/validatingadmissionpolicies/{nodes}"), weak),
        Call::delete(format!("{PATH}/validatingadmissionpolicybindings/{devices}")),
        Call::delete(format!("{PATH}/validatingadmissionpolicies/{leases}")),
        Call::patch(
            format!("{PATH}/validatingadmissionpolicybindings/{assignments}"),
            json!({"spec": {"validationActions": ["Audit"]}}),
        ),
    ] {
        world.admin(call).await;
    }
    let (code, said) = audit(&world).await;
    assert_eq!(code, Some(1), "{said}");
    for words in [
        format!("{nodes} was altered after it was installed"),
        format!("{devices} has no binding, so it denies nothing"),
        format!("{leases} is missing"),
        format!("{assignments} does not deny"),
        "4 violations".to_owned(),
    ] {
        assert!(said.contains(&words), "{words}: {said}");
    }
    let (_, out, _) = world.baton(&["audit", "-o", "json"]).await;
    let printed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&printed["admission"]["state"], printed["admission"]["problems"].as_array().unwrap().len()),
        (&json!("broken"), 4)
    );
    // Applied again, they hold.
    world.install(&Values::default()).await;
    assert_eq!(audit(&world).await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_protect_another_lock_than_the_daemons_is_named() {
    let world = World::start().await;
    let (code, out, _) = world.baton(&["audit", "--node-lock-key=hami.io/mutex.lock"]).await;
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("nodeLockKey=hami.io/mutex.lock"), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_without_policies_holds_and_says_what_is_believed() {
    let server = TestServer::start().await;
    server.install_without_policies(&Values::default()).await;
    let (code, said) = audit(&server).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("note: no admission policy of Baton is installed"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_too_old_for_policies_is_named() {
    let old = ApiServer::start(Options { admission_policies: false, ..Options::default() }).await.unwrap();
    let server = TestServer::around(old).await;
    server.install_without_policies(&Values::default()).await;
    let (code, said) = audit(&server).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("this API server has no ValidatingAdmissionPolicies (Kubernetes 1.30"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_at_their_maximum_length_are_served() {
    let server = TestServer::start().await;
    let namespace = "n".repeat(57);
    let values = Values { namespace: namespace.clone(), ..Values::default() };
    server.install(&values).await;
    let node = format!("{}.{}", ["a".repeat(59), "b".repeat(59), "c".repeat(59)].join("."), "d".repeat(61));
    assert_eq!(node.len(), 241);
    server.create_object::<k8s_openapi::api::core::v1::Node>(json!({"metadata": {"name": node}})).await;
    let daemon = server.client_of(&namespace, "baton-device-plugin", Some(&node)).await;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}-nodes/leases");
    let lease = json!({"metadata": {"name": format!("baton-agent-{node}")}, "spec": {"holderIdentity": "x"}});
    Call::create(&path, lease).send(&daemon).await.expect("its own Lease");
    let why = Call::create(&path, json!({"metadata": {"name": "baton-agent-other"}})).send(&daemon).await.unwrap_err();
    assert!(why.contains("writes the Lease of its own node only"), "{why}");
}
