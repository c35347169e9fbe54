//! ValidatingAdmissionPolicies: which writes they judge, what their expressions see, and what a refusal says. All but the
//! last test ask by HTTP alone, and wait where a real server is slow to take a policy up.

use serde_json::{Value, json};

use crate::server::{APPLY, HttpApi, JSON, JSON_PATCH, MERGE, PODS, STRATEGIC, message, pod, until};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NODES: &str = "/api/v1/nodes";

fn rule(group: &str, resources: &str, operations: &str) -> Value {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    json!({
        "apiGroups": [group], "apiVersions": ["*"], "resources": words(resources), "operations": words(operations),
    })
}

/// A policy; `rest` is what its spec holds beside the rules.
fn policy(name: &str, rules: &[Value], rest: &Value) -> Value {
    let mut spec = rest.clone();
    spec["matchConstraints"]["resourceRules"] = json!(rules);
    json!({"metadata": {"name": name}, "spec": spec})
}

fn binding(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}})
}

async fn until_answered(c: &HttpApi, method: &str, path: &str, body: &Value, wanted: u16) {
    let what = format!("{method} {path} answers {wanted}");
    until(&what, async || c.send(method, path, JSON, body.clone()).await.0 == wanted).await;
}

/// Waits until the policies that are there judge: those made later do not judge earlier.
async fn settle(c: &HttpApi, name: &str) {
    let marker = format!("marker-{name}");
    let validations = json!([{"expression": format!("object.metadata.name != '{marker}'")}]);
    let rules = [rule("", "configmaps", "CREATE")];
    c.create(POLICIES, policy(&marker, &rules, &json!({ "validations": validations }))).await;
    c.create(BINDINGS, binding(&marker)).await;
    until_answered(c, "POST", &format!("{MAPS}?dryRun=All"), &json!({"metadata": {"name": marker}}), 422).await;
}

/// Puts a policy in force.
async fn enforce(c: &HttpApi, name: &str, rules: &[Value], rest: Value) {
    c.create(POLICIES, policy(name, rules, &rest)).await;
    c.create(BINDINGS, binding(name)).await;
    settle(c, name).await;
}

/// Puts a policy with one validation in force.
async fn enforce_one(c: &HttpApi, rules: &[Value], expression: &str) {
    let validations = json!([{"expression": expression, "message": "no"}]);
    enforce(c, "p", rules, json!({ "validations": validations })).await;
}

const DENIED: &str = "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: ";

fn denial(body: &Value) -> &str {
    let text = message(body);
    text.split_once(DENIED).map_or(text, |(_, why)| why)
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_and_bindings_are_stored_with_their_defaults() {
    let c = HttpApi::new().await;
    let mut excluding = policy("p", &[rule("", "pods", "*")], &json!({"validations": [{"expression": "true"}]}));
    excluding["spec"]["matchConstraints"]["excludeResourceRules"] = json!([rule("", "nodes", "*")]);
    let made = c.create(POLICIES, excluding).await;
    let spec = &made["spec"];
    assert_eq!((&spec["failurePolicy"], &made["metadata"]["generation"]), (&json!("Fail"), &json!(1)));
    let matched = &spec["matchConstraints"];
    assert_eq!(
        (&matched["matchPolicy"], &matched["namespaceSelector"], &matched["objectSelector"]),
        (&json!("Equivalent"), &json!({}), &json!({}))
    );
    assert_eq!((&matched["resourceRules"][0]["scope"]), (&json!("*")));
    assert_eq!((&matched["excludeResourceRules"][0]["scope"]), (&json!("*")));
    let bare = c.create(BINDINGS, binding("p")).await;
    assert_eq!(bare["spec"].get("matchResources"), None);
    let mut narrow = binding("q");
    narrow["spec"]["matchResources"] = json!({"resourceRules": [rule("", "pods", "*")]});
    let made = c.create(BINDINGS, narrow).await;
    assert_eq!(made["spec"]["matchResources"]["matchPolicy"], "Equivalent");
    assert_eq!(made["spec"]["matchResources"]["resourceRules"][0]["scope"], "*");
    let status = json!({"status": {"observedGeneration": 1}});
    let (code, body) = c.patch(&format!("{POLICIES}/p/status"), MERGE, status).await;
    assert_eq!((code, &body["status"]["observedGeneration"]), (200, &json!(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_write_an_object_is_judged() {
    let c = HttpApi::new().await;
    c.create(MAPS, map("m", json!({"x": "good"}))).await;
    let expression = "!has(object.data) || !('x' in object.data) || object.data.x != 'bad'";
    enforce_one(&c, &[rule("", "configmaps", "CREATE UPDATE")], expression).await;
    let bad = json!({"x": "bad"});
    let (code, body) = c.post(MAPS, map("n", bad.clone())).await;
    let why = format!("{DENIED}no");
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Invalid", "code": 422,
        "message": format!("configmaps \"n\" is forbidden: {why}"),
        "details": {"name": "n", "kind": "configmaps", "causes": [{"message": why}]},
    });
    assert_eq!((code, body), (422, status));
    assert_eq!(c.get(&format!("{MAPS}/n")).await.0, 404);
    let path = format!("{MAPS}/m");
    let applied = format!("{path}?fieldManager=a&force=true");
    for (method, path, media, body) in [
        ("PUT", &path, JSON, map("m", bad.clone())),
        ("PATCH", &path, MERGE, json!({"data": bad})),
        ("PATCH", &path, STRATEGIC, json!({"data": bad})),
        ("PATCH", &path, JSON_PATCH, json!([{"op": "replace", "path": "/data/x", "value": "bad"}])),
        ("PATCH", &applied, APPLY, map("m", bad.clone())),
        ("PATCH", &format!("{MAPS}/new?fieldManager=a"), APPLY, map("new", bad.clone())),
        ("PATCH", &format!("{path}?dryRun=All"), MERGE, json!({"data": bad})),
    ] {
        let (code, body) = c.send(method, path, media, body).await;
        assert_eq!((code, denial(&body)), (422, "no"), "{method} {path} {media}");
    }
    assert_eq!(c.read(&path).await["data"]["x"], "good");
    assert_eq!(c.patch(&path, MERGE, json!({"data": {"x": "better"}})).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_the_group_of_the_resource() {
    let c = HttpApi::new().await;
    enforce_one(&c, &[rule("coordination.k8s.io", "leases", "CREATE")], "false").await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let (_, body) = c.post(path, json!({"metadata": {"name": "l"}, "spec": {}})).await;
    assert_eq!(message(&body), format!("leases.coordination.k8s.io \"l\" is forbidden: {DENIED}no"));
    assert_eq!(body["details"]["group"], "coordination.k8s.io");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_is_compared_with_the_object_before_it() {
    let c = HttpApi::new().await;
    c.create(MAPS, map("m", json!({"x": "1", "y": "1"}))).await;
    let expression = "request.operation == 'CREATE' ? oldObject == null : object.data.x == oldObject.data.x";
    enforce_one(&c, &[rule("", "configmaps", "CREATE UPDATE")], expression).await;
    let path = format!("{MAPS}/m");
    assert_eq!(c.patch(&path, MERGE, json!({"data": {"y": "2"}})).await.0, 200);
    assert_eq!(c.patch(&path, MERGE, json!({"data": {"x": "2"}})).await.0, 422);
    assert_eq!(c.post(MAPS, map("n", json!({"x": "2"}))).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_sees_what_would_be_stored_and_a_subresource_only_by_its_name() {
    let c = HttpApi::with_pod().await;
    let expression = "object.status.phase == oldObject.status.phase && object.spec == oldObject.spec";
    let rules = [rule("", "pods", "UPDATE"), rule("", "pods/status", "UPDATE")];
    enforce_one(&c, &rules, expression).await;
    let path = format!("{PODS}/a");
    let forged = json!({"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}});
    assert_eq!(c.patch(&path, MERGE, forged).await.0, 200, "the status is put back before it is judged");
    let status = format!("{path}/status");
    assert_eq!(c.patch(&status, MERGE, json!({"spec": {"nodeName": "n"}})).await.0, 200, "and the spec");
    assert_eq!(c.patch(&status, MERGE, json!({"status": {"phase": "Running"}})).await.0, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_a_node_is_judged_where_it_is_named() {
    let c = HttpApi::new().await;
    c.create(NODES, json!({"metadata": {"name": "n"}})).await;
    enforce_one(&c, &[rule("", "nodes/status", "UPDATE")], "request.subResource != 'status'").await;
    assert_eq!(c.patch(&format!("{NODES}/n"), MERGE, json!({"metadata": {"labels": {"a": "b"}}})).await.0, 200);
    let capacity = json!({"status": {"capacity": {"x.io/gpu": "1"}}});
    assert_eq!(c.patch(&format!("{NODES}/n/status"), MERGE, capacity.clone()).await.0, 422);
    assert_eq!(c.patch(&format!("{NODES}/n/status"), STRATEGIC, capacity).await.0, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcards_match_subresources_as_they_are_written() {
    let c = HttpApi::new().await;
    c.create(NODES, json!({"metadata": {"name": "n"}})).await;
    c.pod("a").await;
    let write = |path: String| {
        let c = &c;
        async move { c.patch(&path, MERGE, json!({"metadata": {"labels": {"a": "b"}}})).await.0 }
    };
    for (resources, node, node_status, pod_status) in
        [("*", 422, 200, 200), ("nodes/*", 422, 422, 200), ("*/status", 200, 422, 422), ("*/*", 422, 422, 422)]
    {
        enforce_one(&c, &[rule("*", resources, "UPDATE")], "false").await;
        let found = [
            write(format!("{NODES}/n")).await,
            write(format!("{NODES}/n/status")).await,
            write(format!("{PODS}/a/status")).await,
        ];
        assert_eq!(found, [node, node_status, pod_status], "{resources}");
        for name in ["p", "marker-p"] {
            c.delete(&format!("{BINDINGS}/{name}")).await;
            c.delete(&format!("{POLICIES}/{name}")).await;
        }
        let labels = json!({"metadata": {"labels": {"a": null}}});
        let free = async || c.patch(&format!("{NODES}/n"), MERGE, labels.clone()).await.0 == 200;
        until("a policy that is gone judges nothing", free).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_are_judged_as_what_is_posted() {
    let c = HttpApi::new().await;
    let expression = "object.kind == 'Binding' && oldObject == null && request.kind.kind == 'Binding' \
                      && request.name == object.metadata.name && request.namespace == 'default' \
                      && (request.resource.resource == 'pods' ? request.subResource == 'binding' \
                          : request.resource.resource == 'bindings' && !has(request.subResource)) \
                      && has(object.metadata.annotations) && object.metadata.annotations['x/a'] == object.target.name";
    enforce_one(&c, &[rule("", "pods/binding bindings", "CREATE")], expression).await;
    for (name, path) in [("a", format!("{PODS}/a/binding")), ("b", "/api/v1/namespaces/default/bindings".to_owned())] {
        c.pod(name).await;
        let binding = |node: &str| json!({"metadata": {"name": name, "annotations": {"x/a": "n"}}, "target": {"kind": "Node", "name": node}});
        let (code, body) = c.post(&path, binding("other")).await;
        assert_eq!((code, denial(&body)), (422, "no"), "{path}");
        assert_eq!(c.read(&format!("{PODS}/{name}")).await["spec"].get("nodeName"), None);
        let (code, body) = c.post(&path, binding("n")).await;
        assert_eq!(code, 201, "{path}: {body}");
    }
    let (_, body) = c
        .post("/api/v1/namespaces/default/bindings", json!({"metadata": {"name": "a"}, "target": {"name": "n"}}))
        .await;
    assert!(message(&body).starts_with("bindings \"a\" is forbidden: "), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_is_judged_and_its_deletion_is_not_judged_again() {
    let c = HttpApi::with_pod().await;
    let rules = [rule("", "pods/eviction", "CREATE"), rule("", "pods", "DELETE")];
    let expression = "request.operation == 'CREATE' && has(object.metadata.annotations)";
    enforce_one(&c, &rules, expression).await;
    let evict = |annotations: Value| json!({"metadata": {"name": "a", "annotations": annotations}});
    let path = format!("{PODS}/a/eviction");
    assert_eq!(c.post(&path, evict(json!({}))).await.0, 422);
    assert_eq!(c.post(&path, evict(json!({"x/a": "b"}))).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_are_judged_by_the_object_that_goes() {
    let c = HttpApi::new().await;
    for (name, kept) in [("a", "no"), ("b", "yes"), ("c", "no")] {
        c.create(MAPS, map(name, json!({"kept": kept}))).await;
    }
    enforce_one(&c, &[rule("", "configmaps", "DELETE")], "object == null && oldObject.data.kept == 'no'").await;
    assert_eq!(c.delete(&format!("{MAPS}/b?dryRun=All")).await.0, 422);
    let (code, body) = c.delete(&format!("{MAPS}/b")).await;
    assert_eq!((code, message(&body)), (422, format!("configmaps \"b\" is forbidden: {DENIED}no").as_str()));
    assert_eq!(c.delete(&format!("{MAPS}/a")).await.0, 200);
    let (code, body) = c.delete(MAPS).await;
    assert_eq!((code, message(&body)), (422, format!("configmaps \"Unknown\" is forbidden: {DENIED}no").as_str()));
    assert_eq!(c.get(&format!("{MAPS}/b")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_of_a_collection_names_no_object() {
    let c = HttpApi::new().await;
    c.create(MAPS, map("a", json!({}))).await;
    enforce_one(&c, &[rule("", "configmaps", "DELETE")], "has(request.name)").await;
    assert_eq!(c.delete(MAPS).await.0, 422);
    assert_eq!(c.delete(&format!("{MAPS}/a")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_objects_and_their_status_are_judged() {
    let c = HttpApi::new().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "metadata": {"name": "gangs.x.io"},
        "spec": {
            "group": "x.io", "scope": "Namespaced", "names": {"plural": "gangs", "kind": "Gang"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    c.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let path = "/apis/x.io/v1/namespaces/default/gangs";
    c.until_status(path, 200).await;
    let expression =
        "has(request.subResource) ? object.status.phase != 'Bad' : object.spec.min > 1 && object.kind == 'Gang'";
    enforce_one(&c, &[rule("x.io", "gangs gangs/status", "CREATE UPDATE")], expression).await;
    let gang =
        |min: i64| json!({"apiVersion": "x.io/v1", "kind": "Gang", "metadata": {"name": "g"}, "spec": {"min": min}});
    assert_eq!(c.post(path, gang(1)).await.0, 422);
    assert_eq!(c.post(path, gang(2)).await.0, 201);
    let one = format!("{path}/g");
    assert_eq!(c.patch(&one, MERGE, json!({"spec": {"min": 0}})).await.0, 422);
    assert_eq!(c.patch(&format!("{one}/status"), MERGE, json!({"status": {"phase": "Bad"}})).await.0, 422);
    assert_eq!(c.patch(&format!("{one}/status"), MERGE, json!({"status": {"phase": "Good"}})).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn match_conditions_pick_requests_and_their_errors_deny() {
    let c = HttpApi::new().await;
    let conditions = json!([
        {"name": "who", "expression": "request.userInfo.username == 'system:serviceaccount:default:s'"},
        {"name": "what", "expression": "object.data.judged == 'yes'"},
    ]);
    let rest = json!({"matchConditions": conditions, "validations": [{"expression": "false", "message": "no"}]});
    enforce(&c, "p", &[rule("", "configmaps", "CREATE")], rest).await;
    grant(&c, "system:serviceaccount:default:s").await;
    let account = [("Impersonate-User", "system:serviceaccount:default:s")];
    let judged = |value: &str| Some(map("m", json!({ "judged": value })));
    let (code, body) = c.as_if(&account, "POST", (MAPS, JSON), judged("yes")).await;
    assert_eq!((code, denial(&body)), (422, "no"));
    assert_eq!(c.as_if(&account, "POST", (MAPS, JSON), judged("no")).await.0, 201);
    assert_eq!(c.post(MAPS, map("other", json!({"judged": "yes"}))).await.0, 201);
    // A condition that is false outweighs the error of another; without it, the error denies.
    assert_eq!(c.post(MAPS, map("third", json!({"x": "y"}))).await.0, 201);
    let (code, body) = c.as_if(&account, "POST", (MAPS, JSON), Some(map("fourth", json!({"x": "y"})))).await;
    let why = "expression 'object.data.judged == 'yes'' resulted in error: no such key: judged";
    assert_eq!((code, denial(&body)), (422, why));
}

/// Lets a user do everything.
async fn grant(c: &HttpApi, user: &str) {
    let everything =
        json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["create", "update", "patch", "delete", "get"]}]);
    let path = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "writer"}, "rules": everything});
    c.create(&format!("{path}/clusterroles"), role).await;
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writer"});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let bound = json!({"metadata": {"name": "writer"}, "roleRef": role_ref, "subjects": [subject]});
    c.create(&format!("{path}/clusterrolebindings"), bound).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_build_on_those_before_them() {
    let c = HttpApi::new().await;
    let rest = json!({
        "variables": [
            {"name": "keys", "expression": "['x.io/a', 'x.io/b']"},
            {"name": "now", "expression": "has(object.metadata.annotations) ? object.metadata.annotations : {}"},
            {"name": "old", "expression": "oldObject != null && has(oldObject.metadata.annotations) ? \
                                           oldObject.metadata.annotations : {}"},
            {"name": "changed", "expression": "variables.keys.filter(k, (k in variables.now ? variables.now[k] : '') != \
                                               (k in variables.old ? variables.old[k] : ''))"},
        ],
        "validations": [
            {
                "expression": "variables.keys.all(k, (k in variables.now ? variables.now[k] : '') == \
                               (k in variables.old ? variables.old[k] : ''))",
                "messageExpression": "'annotation ' + variables.changed[0] + ' belongs to somebody else'",
                "reason": "Forbidden",
            },
        ],
    });
    c.create(MAPS, map("m", json!({}))).await;
    enforce(&c, "p", &[rule("", "configmaps", "CREATE UPDATE")], rest).await;
    let path = format!("{MAPS}/m");
    let annotate = |key: &str| json!({"metadata": {"annotations": {key: "v"}}});
    let (code, body) = c.patch(&path, MERGE, annotate("x.io/b")).await;
    assert_eq!((code, denial(&body)), (403, "annotation x.io/b belongs to somebody else"));
    assert_eq!(body["reason"], "Forbidden");
    assert_eq!(c.patch(&path, MERGE, annotate("x.io/c")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_that_nobody_needs_is_not_evaluated() {
    let c = HttpApi::new().await;
    let rest = json!({
        "variables": [{"name": "broken", "expression": "object.data.absent"}],
        "validations": [{"expression": "object.data.x == 'ok' || variables.broken == ''"}],
    });
    enforce(&c, "p", &[rule("", "configmaps", "CREATE")], rest).await;
    assert_eq!(c.post(MAPS, map("m", json!({"x": "ok"}))).await.0, 201);
    let (code, body) = c.post(MAPS, map("n", json!({"x": "y"}))).await;
    let why = "composited variable \"broken\" fails to evaluate: no such key: absent";
    assert_eq!(code, 422);
    assert!(denial(&body).ends_with(why), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authorizer_tells_what_the_user_may() {
    let c = HttpApi::new().await;
    let rest = json!({"validations": [
        {"expression": "authorizer.group('baton.io').resource('overrides').check('use').allowed()", "message": "a"},
        {
            "expression": "authorizer.group('').resource('pods').subresource('binding').namespace('default').name('x')\
                           .check('create').allowed()",
            "message": "b",
        },
        {"expression": "authorizer.path('/metrics').check('get').allowed()", "message": "c"},
        {"expression": "authorizer.requestResource.check('watch').allowed()", "message": "d"},
    ]});
    enforce(&c, "p", &[rule("", "configmaps", "CREATE")], rest).await;
    assert_eq!(c.post(&format!("{MAPS}?dryRun=All"), map("m", json!({}))).await.0, 201, "an administrator may do all");
    grant(&c, "u").await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/writer";
    let everything = json!({"apiGroups": ["*"], "resources": ["configmaps"], "verbs": ["create"]});
    for (rule, wanted) in [
        (json!({"apiGroups": ["other.io"], "resources": ["overrides"], "verbs": ["use"]}), "a"),
        (json!({"apiGroups": ["baton.io"], "resources": ["overrides"], "verbs": ["use"]}), "b"),
        (json!({"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"], "resourceNames": ["x"]}), "c"),
        (json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}), "d"),
        (json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}), ""),
    ] {
        let role = c.read(roles).await;
        let mut rules = role["rules"].as_array().unwrap().clone();
        if wanted == "a" {
            rules = vec![everything.clone()];
        }
        rules.push(rule);
        assert_eq!(c.patch(roles, MERGE, json!({ "rules": rules })).await.0, 200);
        let user = [("Impersonate-User", "u")];
        let path = format!("{MAPS}?dryRun=All");
        until(&format!("it is denied with {wanted:?}"), async || {
            let (_, body) = c.as_if(&user, "POST", (&path, JSON), Some(map("m", json!({})))).await;
            let denied = message(&body).split_once(DENIED).map_or("", |(_, why)| why);
            denied == wanted && body["reason"] != "Forbidden"
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_tells_who_asks_for_what() {
    let c = HttpApi::new().await;
    let expression = "request.userInfo.username == 'u' && 'g' in request.userInfo.groups \
                      && request.userInfo.extra['example.org/Key'.lowerAscii()] == ['v', 'w'] \
                      && request.name == object.metadata.name && request.namespace == 'default' && !request.dryRun \
                      && [request.kind.group, request.kind.version, request.kind.kind] == ['', 'v1', 'ConfigMap'] \
                      && request.resource.group == '' && request.resource.version == 'v1' \
                      && request.resource.resource == 'configmaps' \
                      && request.operation == 'CREATE' && !has(request.subResource) \
                      && namespaceObject.metadata.name == 'default' \
                      && size(object.metadata.uid) > 0 && object.apiVersion == 'v1' \
                      && !has(object.metadata.labels) && !has(object.metadata.annotations)";
    enforce_one(&c, &[rule("", "configmaps", "CREATE")], expression).await;
    grant(&c, "u").await;
    let who = [
        ("Impersonate-User", "u"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Extra-example.org%2Fkey", "v"),
        ("Impersonate-Extra-example.org%2Fkey", "w"),
    ];
    let mut empty = map("m", json!({}));
    empty["metadata"]["labels"] = json!({});
    empty["metadata"]["annotations"] = json!({});
    let (code, body) = c.as_if(&who, "POST", (MAPS, JSON), Some(empty.clone())).await;
    assert_eq!(code, 201, "{body}");
    let mut generated = empty;
    generated["metadata"] = json!({"generateName": "m-"});
    let (code, body) = c.as_if(&who, "POST", (MAPS, JSON), Some(generated)).await;
    assert_eq!(code, 201, "{body}");
    assert_eq!(c.post(MAPS, map("n", json!({}))).await.0, 422);
    let (code, _) = c.as_if(&who[..3], "POST", (MAPS, JSON), Some(map("n", json!({})))).await;
    assert_eq!(code, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_containers_are_searched() {
    let c = HttpApi::new().await;
    let expression = "!((has(object.spec.initContainers) ? object.spec.initContainers : []) + object.spec.containers)\
                      .exists(c, has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(name, \
                      name == 'x.io/gpu' || name.startsWith('nvidia.com/mig-')))";
    enforce_one(&c, &[rule("", "pods", "CREATE")], expression).await;
    let with = |name: &str, list: &str, resource: &str| {
        let mut made = pod(name);
        made["spec"][list] = json!([{"name": "c", "image": "x", "resources": {"limits": {resource: "1"}}}]);
        made
    };
    assert_eq!(c.post(PODS, with("a", "containers", "cpu")).await.0, 201);
    assert_eq!(c.post(PODS, with("b", "containers", "nvidia.com/mig-1g.10gb")).await.0, 422);
    assert_eq!(c.post(PODS, with("b", "initContainers", "x.io/gpu")).await.0, 422);
    c.pod("c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_have_the_functions_of_the_language() {
    let c = HttpApi::new().await;
    let rest = json!({
        "variables": [{"name": "v", "expression": "object.data.list.split(',')"}],
        "validations": [
            {"expression": "has(variables.v) && size(variables.v) == 2 && variables.v.map(x, x + '!') == ['a!', 'b!']"},
            {"expression": "object.metadata.name.matches('^m[a-z]$') && object.metadata.name.endsWith('x')"},
            {"expression": "dyn(object.data) == {'list': 'a,b'} && type(object.data.list) == string"},
            {"expression": "object.data.all(request, request.startsWith('l')) && [[1], [2]].exists_one(l, 2 in l)"},
        ],
    });
    enforce(&c, "p", &[rule("", "configmaps", "CREATE")], rest).await;
    let (code, body) = c.post(MAPS, map("mx", json!({"list": "a,b"}))).await;
    assert_eq!(code, 201, "{body}");
    for (name, list, failed) in [("mx", "a,b,c", "has(variables"), ("my", "a,b", "object.metadata")] {
        let (code, body) = c.post(MAPS, map(name, json!({ "list": list }))).await;
        assert_eq!(code, 422);
        assert!(denial(&body).starts_with(&format!("failed expression: {failed}")), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_the_first_message_that_there_is() {
    let c = HttpApi::new().await;
    let of = |kind: &str| format!("object.data.kind != '{kind}'");
    let rest = json!({"validations": [
        {"expression": of("plain"), "message": " said "},
        {"expression": of("made"), "message": "said", "messageExpression": "'made for ' + object.metadata.name"},
        {"expression": of("broken"), "message": "said", "messageExpression": "object.data.absent"},
        {"expression": of("lines"), "message": "said", "messageExpression": "'a\\nb'"},
        {"expression": of("blank"), "messageExpression": "'  '"},
        {"expression": of("none")},
        {"expression": of("unauthorized"), "message": "said", "reason": "Unauthorized"},
        {"expression": of("large"), "message": "said", "reason": "RequestEntityTooLarge"},
    ]});
    enforce(&c, "p", &[rule("", "configmaps", "CREATE")], rest).await;
    for (kind, code, why) in [
        ("plain", 422, "said".to_owned()),
        ("made", 422, "made for m".to_owned()),
        ("broken", 422, "said".to_owned()),
        ("lines", 422, "said".to_owned()),
        ("blank", 422, format!("failed expression: {}", of("blank"))),
        ("none", 422, format!("failed expression: {}", of("none"))),
        ("unauthorized", 401, "said".to_owned()),
        ("large", 413, "said".to_owned()),
    ] {
        let (found, body) = c.post(MAPS, map("m", json!({ "kind": kind }))).await;
        assert_eq!((found, denial(&body)), (code, why.as_str()), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_deny_unless_the_policy_ignores_them() {
    let c = HttpApi::new().await;
    enforce_one(&c, &[rule("", "configmaps", "CREATE")], "object.data.absent == 'x'").await;
    let (code, body) = c.post(MAPS, map("m", json!({"x": "y"}))).await;
    let why = "expression 'object.data.absent == 'x'' resulted in error: no such key: absent";
    assert_eq!((code, denial(&body)), (422, why));
    let path = format!("{POLICIES}/p");
    assert_eq!(c.patch(&path, MERGE, json!({"spec": {"failurePolicy": "Ignore"}})).await.0, 200);
    until_answered(&c, "POST", &format!("{MAPS}?dryRun=All"), &map("m", json!({"x": "y"})), 201).await;
    assert_eq!(c.post(MAPS, map("m", json!({"absent": "y"}))).await.0, 422, "a denial is no error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_does_not_compile_is_refused() {
    let c = HttpApi::new().await;
    let good = json!([{"expression": "true"}]);
    let validation = |text: &str| json!({"validations": [{"expression": text}]});
    for (rest, field) in [
        (validation("object.metadata.name =="), "spec.validations[0].expression"),
        (validation("objekt.metadata.name == 'a'"), "spec.validations[0].expression"),
        (validation("object.spec.containers.all(c, d.name == 'a')"), "spec.validations[0].expression"),
        (validation("variables.absent == 1"), "spec.validations[0].expression"),
        (validation("request.usr == ''"), "spec.validations[0].expression"),
        (validation("has(request.userInfo.names)"), "spec.validations[0].expression"),
        (validation("params == null"), "spec.validations[0].expression"),
        (validation("frobnicate(object)"), "spec.validations[0].expression"),
        (validation(" "), "spec.validations[0].expression"),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "authorizer.path('/').check('get')"}]}),
            "spec.validations[0].messageExpression",
        ),
        (
            json!({"validations": good, "matchConditions": [{"name": "a", "expression": "variables.a"}]}),
            "spec.matchConditions[0].expression",
        ),
        (
            json!({"validations": good, "variables": [
                {"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"},
            ]}),
            "spec.variables[0].expression",
        ),
        (json!({}), "spec.validations"),
    ] {
        let (code, body) = c.post(POLICIES, policy("p", &[rule("", "pods", "*")], &rest)).await;
        assert_eq!((code, &body["details"]["causes"][0]["field"]), (422, &json!(field)), "{rest}: {body}");
    }
    let (code, body) = c.post(POLICIES, policy("p", &[], &json!({ "validations": good }))).await;
    assert_eq!((code, &body["details"]["causes"][0]["field"]), (422, &json!("spec.matchConstraints.resourceRules")));
    c.create(POLICIES, policy("p", &[rule("", "pods", "*")], &json!({ "validations": good }))).await;
    let worse = json!({"spec": {"validations": [{"expression": "("}]}});
    assert_eq!(c.patch(&format!("{POLICIES}/p"), MERGE, worse).await.0, 422);
    let (code, body) =
        c.post(BINDINGS, json!({"metadata": {"name": "b"}, "spec": {"validationActions": ["Deny"]}})).await;
    assert_eq!((code, &body["details"]["causes"][0]["field"]), (422, &json!("spec.policyName")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_judges_while_a_binding_says_so() {
    let c = HttpApi::new().await;
    let rules = [rule("", "configmaps", "CREATE")];
    let validations = json!({"validations": [{"expression": "object.metadata.name.startsWith('marker')"}]});
    c.create(POLICIES, policy("p", &rules, &validations)).await;
    settle(&c, "a").await;
    let path = format!("{MAPS}?dryRun=All");
    assert_eq!(c.post(&path, map("m", json!({}))).await.0, 201, "no binding");
    let mut watching = binding("p");
    watching["spec"]["validationActions"] = json!(["Audit"]);
    c.create(BINDINGS, watching).await;
    settle(&c, "b").await;
    assert_eq!(c.post(&path, map("m", json!({}))).await.0, 201, "a binding that only watches");
    let deny = json!({"spec": {"validationActions": ["Deny"]}});
    assert_eq!(c.patch(&format!("{BINDINGS}/p"), MERGE, deny).await.0, 200);
    until_answered(&c, "POST", &path, &map("m", json!({})), 422).await;
    assert_eq!(c.delete(&format!("{BINDINGS}/p")).await.0, 200);
    until_answered(&c, "POST", &path, &map("m", json!({})), 201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_scope_and_exclusions_narrow_a_policy() {
    let c = HttpApi::new().await;
    c.create("/api/v1/namespaces", json!({"metadata": {"name": "free", "labels": {"free": "yes"}}})).await;
    let deny = json!([{"expression": "false"}]);
    let mut narrow =
        policy("p", &[rule("*", "configmaps namespaces", "CREATE UPDATE")], &json!({ "validations": deny }));
    let constraints = &mut narrow["spec"]["matchConstraints"];
    constraints["objectSelector"] = json!({"matchExpressions": [{"key": "judged", "operator": "Exists"}]});
    constraints["namespaceSelector"] = json!({"matchExpressions": [{"key": "free", "operator": "DoesNotExist"}]});
    constraints["excludeResourceRules"] = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
        "resourceNames": ["spared"],
    }]);
    constraints["resourceRules"][0]["scope"] = json!("Namespaced");
    c.create(POLICIES, narrow).await;
    c.create(BINDINGS, binding("p")).await;
    settle(&c, "p").await;
    let labelled = |name: &str| json!({"metadata": {"name": name, "labels": {"judged": ""}}});
    let free = "/api/v1/namespaces/free/configmaps";
    for (path, body, wanted) in [
        (MAPS, labelled("a"), 422),
        (MAPS, map("b", json!({})), 201),
        (MAPS, labelled("spared"), 201),
        (free, labelled("a"), 201),
        ("/api/v1/namespaces", labelled("n"), 201),
    ] {
        assert_eq!(c.post(path, body.clone()).await.0, wanted, "{path} {body}");
    }
    let path = format!("{MAPS}/spared");
    assert_eq!(c.patch(&path, MERGE, json!({"metadata": {"labels": null}})).await.0, 422, "it was labelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_narrows_its_policy() {
    let c = HttpApi::new().await;
    let rest = json!({"validations": [{"expression": "false"}]});
    c.create(POLICIES, policy("p", &[rule("", "configmaps", "CREATE")], &rest)).await;
    let mut narrow = binding("p");
    narrow["spec"]["matchResources"] = json!({"objectSelector": {"matchLabels": {"judged": "yes"}}});
    c.create(BINDINGS, narrow).await;
    settle(&c, "p").await;
    let mut labelled = map("a", json!({}));
    labelled["metadata"]["labels"] = json!({"judged": "yes"});
    assert_eq!(c.post(MAPS, labelled).await.0, 422);
    assert_eq!(c.post(MAPS, map("b", json!({}))).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_do_not_judge_policies_nor_reviews() {
    let c = HttpApi::new().await;
    let rest = json!({"validations": [{"expression": "false"}]});
    c.create(POLICIES, policy("p", &[rule("*", "*", "*")], &rest)).await;
    c.create(BINDINGS, binding("p")).await;
    until_answered(&c, "POST", &format!("{MAPS}?dryRun=All"), &map("m", json!({})), 422).await;
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let asked = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    assert_eq!(c.post(review, asked).await.0, 201);
    assert_eq!(c.delete(&format!("{BINDINGS}/p")).await.0, 200);
    assert_eq!(c.delete(&format!("{POLICIES}/p")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_does_not_know_policies() {
    use baton::sim::apiserver::{ApiServer, Options};
    let options = Options { admission_policies: false, ..Options::default() };
    let c = HttpApi { server: ApiServer::start(options).await.expect("the server starts") };
    for path in [POLICIES, BINDINGS] {
        let (code, body) = c.get(path).await;
        assert_eq!((code, message(&body)), (404, "the server could not find the requested resource"));
    }
    assert_eq!(c.post(BINDINGS, binding("p")).await.0, 404);
    assert_eq!(HttpApi::new().await.get(POLICIES).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_beside_kube_scheduler_keeps_its_gangs_out() {
    use baton::ops::manifests::{Values, files};
    let c = HttpApi::new().await;
    let files = files(&Values::default());
    let text = &files.iter().find(|file| file.path == "extender/gangs.yaml").unwrap().text;
    for mut document in serde_saphyr::from_str_multiple::<Value, Vec<Value>>(text).unwrap() {
        let path = if document["kind"] == "ValidatingAdmissionPolicy" { POLICIES } else { BINDINGS };
        document.as_object_mut().unwrap().retain(|field, _| field == "metadata" || field == "spec");
        c.create(path, document).await;
    }
    settle(&c, "gangs").await;
    let gang = |map: &str, key: &str, value: &str, scheduler: Option<&str>| {
        let mut body = pod("p");
        body["metadata"][map] = json!({ key: value });
        if let Some(scheduler) = scheduler {
            body["spec"]["schedulerName"] = scheduler.into();
        }
        body
    };
    let dry = format!("{PODS}?dryRun=All");
    for (map, key, value) in [
        ("annotations", "gang.scheduling.koordinator.sh/name", "g"),
        ("annotations", "gang.scheduling.koordinator.sh/min-available", "2"),
        ("annotations", "gang.scheduling.koordinator.sh/name", ""),
        ("labels", "pod-group.scheduling.sigs.k8s.io", "g"),
        ("labels", "pod-group.scheduling.sigs.k8s.io/name", "g"),
        ("labels", "scheduling.x-k8s.io/pod-group", "g"),
    ] {
        for scheduler in [None, Some("default-scheduler")] {
            let (code, body) = c.post(&dry, gang(map, key, value, scheduler)).await;
            let why = format!("{key} declares a gang, and default-scheduler places its pods one by one");
            assert!(code == 403 && message(&body).contains(&why), "{key}: {code} {}", message(&body));
        }
        for scheduler in ["baton-scheduler", "volcano"] {
            assert_eq!(c.post(&dry, gang(map, key, value, Some(scheduler))).await.0, 201, "{key} {scheduler}");
        }
    }
    for (map, key) in [("labels", "app"), ("annotations", "gang.scheduling.koordinator.sh/timeout")] {
        assert_eq!(c.post(&dry, gang(map, key, "g", None)).await.0, 201, "{key}");
    }
    assert_eq!(c.post(&dry, pod("p")).await.0, 201);
}
