//! The chart as it is written, without Helm: every key, port, flag, name and permission in it is one of the program's.

use baton::contract::gang::PodGroupApi;
use baton::contract::gang::key::{MANAGED_BY, MANAGED_BY_BATON, POD_KEYS, TIMEOUT};
use baton::contract::{AgentStatus, LEASE_PREFIX};
use baton::ops::config::{Setting, THEIRS, print_yaml};
use baton::ops::manifests::{POLICIES, agent_permissions, crds};
use baton::ops::settings;
use baton::scheduler::SchedulerOptions;
use baton::scheduler::extender::ExtenderOptions;
use baton::tyjob::ControllerOptions;

use crate::prelude::*;

/// A file of `daemonset/`.
fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset").join(path)).unwrap()
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_str_multiple(text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

fn schema() -> Value {
    serde_json::from_str(&read("chart/values.schema.json")).unwrap()
}

/// `devicePlugin`, its template, keys that may be among its flags, and the names and ports of its addresses.
type Daemon = (&'static str, &'static str, BTreeSet<String>, Vec<(&'static str, String)>);

fn daemon<O: Default>(name: &'static str, template: &'static str, settings: &[Setting<O>]) -> Daemon {
    /// Keys that other values of the chart decide, or the ports and names in its objects.
    const FIXED: [&str; 7] =
        ["namespace", "node-name", "listen", "probe-listen", "metrics-listen", "node-lock-key", "unassigned-pods"];
    /// Paths for which the chart has a volume.
    const MOUNTED: [&str; 3] = ["driver-root", "host-driver-root", "host-net-dir"];
    let may = |setting: &&Setting<O>| {
        let path = ["DIR", "FILE"].contains(&setting.value);
        !FIXED.contains(&setting.name) && (!path || setting.names().any(|name| MOUNTED.contains(&name)))
    };
    // The name that the chart's values have, where a key has several.
    let name_of = |setting: &Setting<O>| setting.names().find(|name| MOUNTED.contains(name)).unwrap_or(setting.name);
    let flags = settings.iter().filter(may).map(|setting| name_of(setting).to_owned()).collect();
    let named = |key: &'static str| settings.iter().find(|setting| setting.name == key);
    let port = |key| (named(key).unwrap().show)(&O::default()).rsplit(':').next().unwrap().to_owned();
    let mut ports = vec![("probes", port("probe-listen")), ("metrics", port("metrics-listen"))];
    let admin = named("listen").map(|setting| setting.help.split("127.0.0.1:").nth(1).unwrap()[..4].to_owned());
    ports.extend(admin.map(|port| ("admin", port)));
    (name, template, flags, ports)
}

fn daemons() -> [Daemon; 4] {
    [
        daemon("devicePlugin", "daemonset.yaml", &settings::agent()),
        daemon("scheduler", "scheduler.yaml", &settings::scheduler()),
        daemon("scheduler", "extender.yaml", &settings::scheduler()),
        daemon("controller", "controller.yaml", &settings::controller()),
    ]
}

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap_or_else(|| panic!("{object}")).keys().cloned().collect()
}

#[test]
fn the_flags_of_a_daemon_are_its_keys_and_those_that_need_no_volume() {
    let (schema, values) = (schema(), documents(&read("chart/values.yaml")).remove(0));
    for (name, _, flags, _) in daemons() {
        let known = keys(&schema["properties"][name]["properties"]["flags"]["properties"]);
        let (gone, new): (Vec<_>, Vec<_>) = (known.difference(&flags).collect(), flags.difference(&known).collect());
        assert!(gone.is_empty() && new.is_empty(), "{name} in values.schema.json: no keys: {gone:?}; missing: {new:?}");
        assert!(keys(&values[name]["flags"]).is_subset(&flags), "{name}");
        let may = keys(&schema["properties"][name]["properties"]);
        assert_eq!(keys(&values[name]), may, "{name}");
        assert!(may.is_subset(&keys(&schema["$defs"]["daemon"]["properties"])), "{name}");
    }
    assert_eq!(keys(&values), of_ours(&schema));
    let helpers = read("chart/templates/_helpers.tpl");
    let theirs = THEIRS.map(|name| format!("{name:?}")).join(" ");
    assert!(helpers.contains(&format!("$theirs := list {theirs} }}}}")), "variables without BATON_: {theirs}");
}

/// The values that templates read. The others are what Helm and charts that contain this one set.
fn of_ours(schema: &Value) -> BTreeSet<String> {
    keys(&schema["properties"]).into_iter().filter(|key| !["global", "enabled"].contains(&key.as_str())).collect()
}

#[test]
fn every_value_that_a_template_reads_is_in_the_schema() {
    let schema = schema();
    let mut read_values = BTreeSet::new();
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/chart/templates")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for rest in text.split(".Values.").skip(1) {
            let place: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
            let mut words = place.split('.');
            let value = &schema["properties"][words.next().unwrap()];
            assert!(!value.is_null(), ".Values.{place}");
            for word in words {
                let of_daemon = &schema["$defs"]["daemon"]["properties"][word];
                assert!(!of_daemon.is_null() || !value["properties"][word].is_null(), ".Values.{place}");
            }
            read_values.insert(place.split('.').next().unwrap().to_owned());
        }
    }
    assert_eq!(read_values, of_ours(&schema), "a value that nothing reads");
}

#[test]
fn ports_and_flags_in_templates_are_those_of_the_daemons() {
    for (name, template, _, ports) in daemons() {
        let text = read(&format!("chart/templates/{template}"));
        for (port, of) in &ports {
            assert!(text.contains(&format!("- name: {port}\n          containerPort: {of}\n")), "{name}: {port} {of}");
        }
        assert_eq!(
            text.matches("containerPort: 94").count() - text.matches("containerPort: 9443").count(),
            ports.len()
        );
        for flag in text.lines().filter_map(|line| line.trim().strip_prefix("- --")) {
            let flag = flag.split('=').next().unwrap();
            let known = match name {
                "devicePlugin" => settings::agent().iter().any(|setting| setting.name == flag),
                "scheduler" => settings::scheduler().iter().any(|setting| setting.name == flag),
                _ => settings::controller().iter().any(|setting| setting.name == flag),
            };
            assert!(known, "{name}: --{flag}");
        }
    }
}

#[test]
fn versions_names_and_kinds_are_those_of_the_program() {
    let (chart, values) =
        (documents(&read("chart/Chart.yaml")).remove(0), documents(&read("chart/values.yaml")).remove(0));
    assert_eq!((&chart["version"], &chart["appVersion"]), (&env!("CARGO_PKG_VERSION").into(), &chart["version"]));
    assert_eq!(chart["description"], env!("CARGO_PKG_DESCRIPTION"));
    assert_eq!(values["image"], Values::default().image);
    assert_eq!(values["nodeLockKey"], key::NODE_LOCK);
    let printed: Vec<String> = crds().iter().map(|crd| print_yaml(crd).unwrap()).collect();
    assert!(read("chart/crds.yaml") == printed.join("---\n"), "baton crds > daemonset/chart/crds.yaml");
    let kinds = read("chart/templates/_helpers.tpl");
    for crd in crds() {
        assert_eq!(kinds.matches(&crd.metadata.name.clone().unwrap()).count(), 1, "{:?}", crd.metadata.name);
    }
}

#[test]
fn policies_name_the_keys_and_resources_of_the_contract() {
    fn list<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
        format!("[{}]", values.into_iter().map(|value| format!("'{value}'")).collect::<Vec<_>>().join(", "))
    }
    let admission = read("chart/templates/admission.yaml");
    let groups = [PodGroupApi::Sigs, PodGroupApi::Community].map(|api| api.group()).join(", ");
    for words in [
        list(key::SCHEDULER_KEYS),
        list(key::DEVICE_NAMES),
        list([key::NODE_GPU_VENDOR, key::NODE_GPU_MODEL, key::NODE_GPU_DRIVER]),
        list([TIMEOUT]),
        format!("n.startsWith('{}')", key::MIG_PREFIX),
        format!("('{}' in variables.annotations)", key::CORDONED),
        format!("'{MANAGED_BY}' in variables.labels && variables.labels['{MANAGED_BY}'] == '{MANAGED_BY_BATON}'"),
        format!("apiGroups: [{groups}]"),
        format!("'{LEASE_PREFIX}' + variables.node"),
        format!("request.namespace == '{}'", AgentStatus::lease_namespace("{{ .Release.Namespace }}")),
    ] {
        assert!(admission.contains(&words), "no {words}");
    }
    let named = admission.matches("kind: ValidatingAdmissionPolicy\nmetadata:\n  name: ").count();
    assert_eq!(named, POLICIES.len());
    for policy in POLICIES {
        assert!(admission.contains(&format!("\n  name: {policy}{{{{ include \"baton.suffix\" . }}}}\n")), "{policy}");
    }
    let gangs = read("chart/templates/gangs.yaml");
    let names = format!("default {:?}", ExtenderOptions::default().scheduler_names.join(","));
    for words in [list(POD_KEYS.iter().map(|place| place.key)), names] {
        assert!(gangs.contains(&words), "no {words}");
    }
}

/// Name of a role with its namespace, and one of its rules.
fn rules() -> Vec<(String, Value)> {
    let text = read("chart/templates/rbac.yaml").replace("{{ include \"baton.suffix\" . }}", "");
    let text = text.replace("{{- include \"baton.labels\" $ | nindent 4 }}", "");
    // Accounts have values of their own, and Leases depend on what is there.
    let is_chosen = |document: &&str| {
        ["ServiceAccount", "Lease"].iter().any(|kind| document.contains(&format!("\nkind: {kind}\n")))
    };
    let text = text.split("\n---\n").filter(|of| !is_chosen(of)).collect::<Vec<_>>().join("\n---\n");
    let text = text.replace("{{ .Release.Namespace }}", &Values::default().namespace);
    assert!(!text.contains("{{"), "more than names is chosen in rbac.yaml");
    let mut rules = Vec::new();
    for role in documents(&text).iter().filter(|of| of["kind"].as_str().unwrap().ends_with("Role")) {
        let (name, namespace) = (role["metadata"]["name"].as_str().unwrap(), role["metadata"]["namespace"].as_str());
        let name = namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"));
        rules.extend(role["rules"].as_array().unwrap().iter().map(|rule| (name.clone(), rule.clone())));
    }
    rules
}

fn words<'a>(rule: &'a Value, field: &str) -> Vec<&'a str> {
    rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn no_role_grants_everything_none_reads_secrets_and_each_says_why() {
    let all = rules();
    assert!(all.len() > 50, "{}", all.len());
    for (role, rule) in &all {
        let (groups, resources, verbs) = (words(rule, "apiGroups"), words(rule, "resources"), words(rule, "verbs"));
        let known = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "post"];
        assert!(!verbs.is_empty() && verbs.iter().all(|verb| known.contains(verb)), "{role}: {rule}");
        assert!(groups.iter().chain(&resources).all(|word| *word != "*" && *word != "secrets"), "{role}: {rule}");
        // Places and positions are the daemons' to write, and what others declare is not ours to grant.
        let ours = resources.iter().all(|resource| ["tyjobs", "podgroups"].contains(resource));
        assert!(ours || !["baton-view", "baton-edit"].contains(&role.as_str()), "{role}: {rule}");
        assert!(role == "baton-edit" || !verbs.contains(&"deletecollection"), "{role}: {rule}");
        // The node daemon runs on every node: it can delete nothing and change no pod.
        if role.ends_with("baton-device-plugin") {
            assert!(!verbs.contains(&"delete"), "{rule}");
            assert!(!resources.contains(&"pods") || verbs == ["get", "list", "watch"], "{rule}");
        }
    }
    let daemon = agent_permissions("baton-system");
    assert!(daemon.len() > 15 && daemon.iter().all(|permission| permission.why.ends_with('.')), "{daemon:?}");
    let text = read("chart/templates/rbac.yaml");
    assert_eq!(text.matches("\n# ").count(), text.matches("\n- ").count() - text.matches("\n- kind:").count());
}

#[test]
fn roles_name_kinds_and_leases_that_there_are_and_reach_pods_of_the_namespace_alone() {
    let mut kinds: BTreeSet<[String; 2]> =
        crds().into_iter().map(|crd| [crd.spec.group, crd.spec.names.plural]).collect();
    // Koordinator's own, where it is installed.
    kinds.insert(["scheduling.koordinator.sh", "clusternetworktopologies"].map(str::to_owned));
    let groups: BTreeSet<&str> = kinds.iter().map(|[group, _]| group.as_str()).collect();
    let leases = [SchedulerOptions::default().leader.lease_name, ControllerOptions::default().leader.lease_name];
    for (role, rule) in rules() {
        for group in words(&rule, "apiGroups").into_iter().filter(|group| groups.contains(group)) {
            for resource in words(&rule, "resources") {
                let kind = [group.to_owned(), resource.split('/').next().unwrap().to_owned()];
                assert!(kinds.contains(&kind), "{role}: no kind {resource}.{group}");
            }
        }
        for name in words(&rule, "resourceNames").into_iter().filter(|_| words(&rule, "resources") == ["leases"]) {
            assert!(leases.iter().any(|lease| lease == name), "{role}: no Lease {name}");
        }
        assert!(
            words(&rule, "nonResourceURLs").is_empty(),
            "{role}: the daemons have no path that the API server guards"
        );
    }
    let forwards = |(role, rule): &(String, Value)| {
        let reach = ["pods/portforward", "pods/proxy", "pods/exec"];
        let reaches = words(rule, "resources").iter().any(|resource| reach.contains(resource));
        reaches.then(|| (role.clone(), rule["verbs"].clone()))
    };
    // Of the daemons' namespace alone: in the whole cluster it would reach every pod.
    let own = ("baton-system/baton-operator".to_owned(), serde_json::json!(["get", "create"]));
    assert_eq!(rules().iter().filter_map(forwards).collect::<Vec<_>>(), [own]);
}
