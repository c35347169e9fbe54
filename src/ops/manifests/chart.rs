//! The Helm chart: the files of the installation, with words where a value of the chart goes.
//!
//! The manifests are generated for values that are such words, and each word then becomes an action of Helm's templates. So an
//! object that the manifests gain, or a field of one, is in the chart without a line here.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::{Value, json};

use super::choices::{Admission, Kinds, Values};
use super::files::{CRDS, File, MONITORING, NAMESPACES, NETWORK, chosen, crds, files, indented};
use super::policies;
use crate::config::{Setting, THEIRS, print_yaml};
use crate::settings;
use baton_contract::key;

/// Namespace of the release; alone in capitals, so no text of a manifest has it by itself.
const NAMESPACE: &str = "RELEASE_NAMESPACE";
const IMAGE: &str = "VALUE_IMAGE";
const LOCK_KEY: &str = "VALUE_LOCK_KEY";
const WRITER: &str = "VALUE_WRITER";
const PINNED: &str = "VALUE_PINNED";
const ADMIN_FROM: &str = "VALUE_ADMIN_FROM";
const DOCS_URL: &str = "VALUE_DOCS_URL";
/// Before the place of a value of one daemon: `DAEMON_scheduler.resources`.
const DAEMON: &str = "DAEMON_";

/// Keys that other values of the chart decide, or the ports and names in its objects.
const FIXED: [&str; 6] = ["namespace", "node-name", "listen", "probe-listen", "node-lock-key", "unassigned-pods"];

/// One daemon's part of `values.yaml`.
#[derive(Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Defaults {
    flags: BTreeMap<String, Value>,
    resources: Value,
    node_selector: Value,
    tolerations: Value,
}

/// Every file of the chart. `values` are its defaults; the namespace is that of the release.
pub fn chart(values: &Values) -> anyhow::Result<Vec<File>> {
    let words = Values {
        image: IMAGE.to_owned(),
        namespace: NAMESPACE.to_owned(),
        crds: Kinds::None,
        admission: Admission { on: false, unassigned: true, lock_key: LOCK_KEY.to_owned(), ..Admission::default() },
        admin_from: vec![ADMIN_FROM.to_owned()],
        monitoring: true,
        docs_url: Some(DOCS_URL.to_owned()),
    };
    let mut defaults = BTreeMap::new();
    let mut chart = Vec::new();
    for File { path, text, .. } in files(&words)?.into_iter().filter(|file| file.applied) {
        let text = match path.as_str() {
            // The namespace of a release is there before its objects.
            NAMESPACES => text.split("---\n").skip(1).collect(),
            NETWORK => network(&text)?,
            // Prometheus and Grafana have names in the same brackets.
            MONITORING => {
                let text = text.replace("{{", "{{ \"{{\" }}");
                format!("{{{{- if .Values.monitoring }}}}\n{text}{{{{- end }}}}\n")
            }
            _ if text.contains("\n  template:\n") => daemons(&text, &mut defaults)?,
            _ => text,
        };
        chart.push((path, actions(&text)));
    }
    chart.push((CRDS.to_owned(), definitions()?));
    chart.push(("admission.yaml".to_owned(), actions(&admission(words)?)));
    let checks = include_str!("templates/chart/checks.yaml")
        .replace("${all_kinds}", &names(Kinds::All))
        .replace("${own_kinds}", &names(Kinds::Own));
    chart.push(("checks.yaml".to_owned(), checks));
    chart.push(("NOTES.txt".to_owned(), include_str!("templates/chart/NOTES.txt").to_owned()));
    chart.push(("_helpers.tpl".to_owned(), helpers()));
    for (path, _) in &mut chart {
        path.insert_str(0, "templates/");
    }
    chart.push(("Chart.yaml".to_owned(), head()?));
    chart.push(("values.schema.json".to_owned(), format!("{:#}\n", schema(&defaults)?)));
    chart.push(("values.yaml".to_owned(), defaults_yaml(values, &defaults)?));
    Ok(chart.into_iter().map(|(path, text)| File { path, text, applied: false }).collect())
}

/// What Baton is: the description of the package at the top, and of the chart.
const DESCRIPTION: &str =
    "Hands every GPU and RDMA NIC of a Kubernetes cluster to exactly the pod that the scheduler chose it for";

fn head() -> anyhow::Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let chart = json!({
        "apiVersion": "v2", "name": "baton", "type": "application", "version": version, "appVersion": version,
        "description": DESCRIPTION,
    });
    Ok(print_yaml(&chart)?)
}

/// Puts words of [`actions`] into the objects that run daemons, and takes what stood there into the defaults.
fn daemons(text: &str, defaults: &mut BTreeMap<String, Defaults>) -> anyhow::Result<String> {
    let mut documents: Vec<Value> = serde_saphyr::from_str_multiple(text).context("a template of a daemon")?;
    for pod in documents.iter_mut().filter_map(|document| document.pointer_mut("/spec/template/spec")) {
        let name = camel(pod["containers"][0]["name"].as_str().context("a container has a name")?);
        let default = defaults.entry(name.clone()).or_default();
        let word = |field: &str| Value::from(format!("{DAEMON}{name}.{field}"));
        default.node_selector = pod.get("nodeSelector").cloned().unwrap_or_else(|| json!({}));
        default.tolerations = pod.get("tolerations").cloned().unwrap_or_else(|| json!([]));
        pod["nodeSelector"] = word("nodeSelector");
        pod["tolerations"] = word("tolerations");
        pod["imagePullSecrets"] = word("imagePullSecrets");
        let container = &mut pod["containers"][0];
        default.resources = container["resources"].take();
        container["resources"] = word("resources");
        let env = container["env"].as_array_mut().context("a container has variables")?;
        for variable in env.extract_if(.., |variable| variable.get("value").is_some()) {
            let flag = variable["name"].as_str().unwrap_or_default().trim_start_matches("BATON_");
            default.flags.insert(flag.to_lowercase().replace('_', "-"), variable["value"].clone());
        }
        env.insert(0, word("flags"));
        let volumes = pod.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten();
        for volume in volumes.filter(|volume| volume["name"] == "driver") {
            volume["hostPath"]["path"] = word("driver");
        }
    }
    let documents: Result<Vec<String>, _> = documents.iter().map(print_yaml).collect();
    Ok(documents?.join("---\n"))
}

/// `device-plugin` as a key of values.
fn camel(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &word[..1].to_uppercase() + &word[1..])
}

/// The block that a value turns into many, or into none.
fn network(text: &str) -> anyhow::Result<String> {
    let block = format!("    from:\n    - ipBlock:\n        cidr: {ADMIN_FROM}\n");
    let many = "    {{- with .Values.adminFrom }}\n    from:\n    {{- range . }}\n    - ipBlock:\n        cidr: {{ toJson . }}\n    \
                {{- end }}\n    {{- end }}\n";
    anyhow::ensure!(text.contains(&block), "the NetworkPolicy has no addresses");
    Ok(text.replace(&block, many))
}

/// The CustomResourceDefinitions that a value brings, as words of a template.
fn names(kinds: Kinds) -> String {
    let names = chosen(kinds).into_iter().map(|crd| format!("{:?}", crd.metadata.name.unwrap_or_default()));
    names.collect::<Vec<_>>().join(" ")
}

/// Every CustomResourceDefinition by the value that brings it. Helm never removes one: the objects of its kind would go with it.
fn definitions() -> anyhow::Result<String> {
    let own: Vec<_> = chosen(Kinds::Own).iter().map(|crd| crd.metadata.name.clone()).collect();
    let mut text = String::new();
    for mut crd in crds() {
        let when =
            if own.contains(&crd.metadata.name) { r#"ne .Values.crds "none""# } else { r#"eq .Values.crds "all""# };
        crd.metadata
            .annotations
            .get_or_insert_default()
            .insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
        text.extend(["{{- if ", when, " }}\n---\n", &print_yaml(&crd)?, "{{- end }}\n"]);
    }
    Ok(text)
}

/// The policies, whose digest is that of their spec with the values in it.
fn admission(words: Values) -> anyhow::Result<String> {
    let admission = Admission {
        on: true,
        more_writers: vec![WRITER.to_owned()],
        pinned_namespaces: vec![PINNED.to_owned()],
        unassigned: false,
        ..words.admission
    };
    let text = policies::yaml(&Values { admission, ..words })?;
    let text = text
        .replace(&format!(", '{WRITER}'"), "{{ range .Values.assignmentWriters }}, '{{ . }}'{{ end }}")
        .replace(&format!(" or {WRITER}"), "{{ range .Values.assignmentWriters }} or {{ . }}{{ end }}")
        .replace(
            &format!("'{PINNED}'"),
            "{{ range $at, $name := .Values.pinnedNamespaces }}{{ if $at }}, {{ end }}'{{ $name }}'{{ end }}",
        );
    Ok(include_str!("templates/chart/admission.yaml")
        .replace("${policies}", &text)
        .replace("${pinned_pods}", policies::PINNED_PODS)
        .replace("${digest}", policies::DIGEST))
}

/// Replaces each word by the action that puts the value there.
fn actions(text: &str) -> String {
    let mut filled = String::new();
    for line in text.lines() {
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        let line = match rest.split_once(DAEMON) {
            Some(("- ", name)) => {
                let name = name.trim_end_matches(".flags");
                format!(
                    "{indent}{{{{- range $flag, $value := .Values.{name}.flags }}}}\n{indent}- name: {{{{ include \"baton.variable\" \
                     $flag }}}}\n{indent}  value: {{{{ include \"baton.value\" $value | quote }}}}\n{indent}{{{{- end }}}}"
                )
            }
            Some((_, "devicePlugin.driver")) => {
                format!("{indent}path: {{{{ index .Values.devicePlugin.flags \"host-driver-root\" | toJson }}}}")
            }
            // A field that is empty is left out.
            Some((field, place)) => {
                let place = if field.starts_with("imagePullSecrets") { "imagePullSecrets" } else { place };
                format!(
                    "{indent}{{{{- with .Values.{place} }}}}\n{indent}{field}{{{{ toJson . }}}}\n{indent}{{{{- end }}}}"
                )
            }
            None if rest == format!("- --node-lock-key={LOCK_KEY}") => format!(
                "{indent}{{{{- if ne .Values.nodeLockKey {:?} }}}}\n{indent}- --node-lock-key={{{{ .Values.nodeLockKey }}}}\n{indent}\
                 {{{{- end }}}}",
                key::NODE_LOCK
            ),
            None if rest == "- --unassigned-pods=serve" => {
                format!("{indent}{{{{- if eq .Values.unassignedPods \"serve\" }}}}\n{line}\n{indent}{{{{- end }}}}")
            }
            None if rest.contains(DOCS_URL) => {
                let line = line.replace(DOCS_URL, "{{ trimSuffix \"/\" . }}");
                format!("{indent}{{{{- with $.Values.docsUrl }}}}\n{line}\n{indent}{{{{- end }}}}")
            }
            None => line
                .replace(IMAGE, "{{ toJson .Values.image }}")
                .replace(LOCK_KEY, "{{ .Values.nodeLockKey }}")
                .replace(&format!("-{NAMESPACE}"), "{{ include \"baton.suffix\" . }}")
                .replace(NAMESPACE, "{{ .Release.Namespace }}"),
        };
        filled += &line;
        filled.push('\n');
    }
    filled
}

fn helpers() -> String {
    let theirs: Vec<String> = THEIRS.iter().map(|name| format!("{name:?}")).collect();
    include_str!("templates/chart/_helpers.tpl")
        .replace("${theirs}", &theirs.join(" "))
        .replace("${usual_namespace}", &Values::default().namespace)
}

/// Keys of a daemon that may be among its flags. A path needs a volume, and the chart has those of the manifests only.
fn flags<O>(settings: &[Setting<O>], set: &Defaults) -> Vec<&'static str> {
    let names = settings.iter().filter_map(|setting| {
        let set = setting.names().find(|name| set.flags.contains_key(*name));
        let path = ["DIR", "FILE"].contains(&setting.value);
        set.or((!path && !FIXED.contains(&setting.name)).then_some(setting.name))
    });
    names.collect()
}

fn schema(defaults: &BTreeMap<String, Defaults>) -> anyhow::Result<Value> {
    let daemon = |name: &str, flags: &dyn Fn(&Defaults) -> Vec<&'static str>| -> anyhow::Result<Value> {
        let default = defaults.get(name).with_context(|| format!("no manifest runs {name}"))?;
        let value = json!({ "type": ["string", "number", "boolean", "array"], "items": { "type": "string" } });
        let flags: serde_json::Map<String, Value> =
            flags(default).into_iter().map(|flag| (flag.to_owned(), value.clone())).collect();
        Ok(json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "flags": { "type": "object", "additionalProperties": false, "properties": flags },
                "resources": { "type": "object" },
                "nodeSelector": { "type": "object", "additionalProperties": { "type": "string" } },
                "tolerations": { "type": "array", "items": { "type": "object" } },
            },
        }))
    };
    let list = |pattern: &str| json!({ "type": "array", "items": { "type": "string", "pattern": pattern } });
    // The patterns are those of `ops/values.rs`.
    Ok(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "additionalProperties": false,
        "properties": {
            "global": { "type": "object" },
            "image": { "type": "string", "pattern": r"^\S+$" },
            "imagePullSecrets": { "type": "array", "items": { "type": "object", "required": ["name"] } },
            "crds": { "enum": ["all", "own", "none"] },
            "admission": { "type": "boolean" },
            "assignmentWriters": list(r#"^[^\s'"\\$]+$"#),
            "pinnedNamespaces": list("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
            "adminFrom": list("^[0-9a-fA-F.:]+/[0-9]{1,3}$"),
            "nodeLockKey": { "type": "string", "pattern": "^([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$" },
            "monitoring": { "type": "boolean" },
            "docsUrl": { "type": "string", "pattern": r"^(https?://[^\s\x22'\\#{}]+)?$" },
            "unassignedPods": { "enum": ["deny", "serve"] },
            "otherInstallations": list("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
            "devicePlugin": daemon("devicePlugin", &|set| flags(&settings::agent(), set))?,
            "scheduler": daemon("scheduler", &|set| flags(&settings::scheduler(), set))?,
            "controller": daemon("controller", &|set| flags(&settings::controller(), set))?,
        },
    }))
}

/// `values.yaml`: the template's comments, and what was chosen or taken from the manifests.
fn defaults_yaml(values: &Values, defaults: &BTreeMap<String, Defaults>) -> anyhow::Result<String> {
    let mut text = include_str!("templates/chart/values.yaml")
        .replace("${image}", &json!(values.image).to_string())
        .replace("${crds}", json!(values.crds).as_str().unwrap_or_default())
        .replace("${admission}", &values.admission.on.to_string())
        .replace("${assignment_writers}", &json!(values.admission.more_writers).to_string())
        .replace("${pinned_namespaces}", &json!(values.admission.pinned_namespaces).to_string())
        .replace("${admin_from}", &json!(values.admin_from).to_string())
        .replace("${monitoring}", &values.monitoring.to_string())
        .replace("${docs_url}", &json!(values.docs_url.as_deref().unwrap_or_default()).to_string())
        .replace("${node_lock_key}", &values.admission.lock_key)
        .replace("${unassigned_pods}", if values.admission.unassigned { "serve" } else { "deny" });
    for (name, default) in defaults {
        text = text.replace(&format!("${{{name}}}\n"), &indented(&print_yaml(default)?, "  "));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_is_described_as_the_package_at_the_top_is() {
        let package = include_str!("../../../Cargo.toml");
        assert!(package.contains(&format!("description = \"{DESCRIPTION}\"")), "{DESCRIPTION}");
        assert!(head().unwrap().contains(DESCRIPTION));
    }
}
