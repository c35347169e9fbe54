//! CustomResourceDefinitions: serving, validation, defaults, pruning, status, removal.

use serde_json::{Value, json};

use crate::server::{HttpApi, JSON, MERGE, message, until};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GANGS: &str = "/apis/x.io/v1/namespaces/default/gangs";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gangs.x.io"},
        "spec": {
            "group": "x.io", "scope": "Namespaced",
            "names": {"plural": "gangs", "singular": "gang", "kind": "Gang", "shortNames": ["gg"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Min", "type": "integer", "jsonPath": ".spec.min"}],
                "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                    "spec": {"type": "object", "required": ["min"], "properties": {
                        "min": {"type": "integer", "minimum": 1, "maximum": 100},
                        "mode": {"type": "string", "enum": ["Strict", "Loose"], "default": "Strict"},
                        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                        "hosts": {"type": "array", "maxItems": 2, "items": {"type": "string"}},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    }},
                    "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                }}},
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_is_served_validated_and_taken_away_with_its_objects() {
    let c = HttpApi::new().await;
    assert_eq!(c.get(GANGS).await.0, 404);
    c.create(CRDS, definition()).await;
    let crd = c.read(&format!("{CRDS}/gangs.x.io")).await;
    let kinds: Vec<&Value> = crd["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(kinds, [&json!("NamesAccepted"), &json!("Established")]);
    for (spec, field, text) in [
        (json!({}), "spec.min", "Required value"),
        (json!({"min": 0}), "spec.min", "should be greater than or equal to 1"),
        (json!({"min": 101}), "spec.min", "should be less than or equal to 100"),
        (json!({"min": "1"}), "spec.min", "must be of type integer: \"string\""),
        (json!({"min": 1, "mode": "Odd"}), "spec.mode", "supported values: \"Strict\", \"Loose\""),
        (json!({"min": 1, "name": "A"}), "spec.name", "should match '^[a-z]+$'"),
        (json!({"min": 1, "name": "abcdef"}), "spec.name", "Too long"),
        (json!({"min": 1, "hosts": ["a", "b", "c"]}), "spec.hosts", "must have at most 2 items"),
    ] {
        let (status, body) = c.post(GANGS, json!({"metadata": {"name": "g"}, "spec": spec})).await;
        assert_eq!(status, 422, "{spec}: {body}");
        assert_eq!(body["details"]["causes"][0]["field"], field, "{body}");
        assert!(message(&body).contains(text), "{body}");
    }
    let spec = json!({"min": 2, "odd": 1, "free": {"any": {"thing": true}}});
    let made = c.create(GANGS, json!({"metadata": {"name": "g"}, "spec": spec, "status": {"phase": "Forged"}})).await;
    assert_eq!(made["spec"], json!({"min": 2, "mode": "Strict", "free": {"any": {"thing": true}}}));
    assert_eq!(made.get("status"), None);
    assert_eq!((&made["kind"], &made["apiVersion"]), (&json!("Gang"), &json!("x.io/v1")));
    let (status, body) =
        c.patch(&format!("{GANGS}/g/status"), MERGE, json!({"status": {"phase": "Ready"}, "spec": {"min": 9}})).await;
    assert_eq!((status, &body["status"]["phase"], &body["spec"]["min"]), (200, &json!("Ready"), &json!(2)));
    assert_eq!(body["metadata"]["generation"], 1);
    let (_, body) = c.patch(&format!("{GANGS}/g"), MERGE, json!({"spec": {"min": 3}})).await;
    assert_eq!(body["metadata"]["generation"], 2);
    assert_eq!(c.delete(&format!("{CRDS}/gangs.x.io")).await.0, 200);
    assert_eq!(c.get(GANGS).await.0, 404);
    c.create(CRDS, definition()).await;
    until("objects of a removed definition go", async || c.read(GANGS).await["items"] == json!([])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replace_of_a_custom_object_needs_its_version() {
    let c = HttpApi::new().await;
    c.create(CRDS, definition()).await;
    let made = c.create(GANGS, json!({"metadata": {"name": "g"}, "spec": {"min": 2}})).await;
    let path = format!("{GANGS}/g");
    let bare = json!({"apiVersion": "x.io/v1", "kind": "Gang", "metadata": {"name": "g"}, "spec": {"min": 3}});
    assert_eq!(c.send("PUT", &path, JSON, bare).await.0, 422);
    let mut next = made.clone();
    next["spec"]["min"] = json!(3);
    assert_eq!(c.send("PUT", &path, JSON, next.clone()).await.0, 200);
    assert_eq!(c.send("PUT", &path, JSON, next).await.0, 409);
}
