//! A JSON document against a JSON schema, as far as the schema of CDI needs it. A keyword that is not known here fails the
//! test instead of being passed over. (The `jsonschema` crate turns on `serde_json/float_roundtrip` for the whole build: the
//! tests would run another serde_json than the daemon ships with.)

use crate::prelude::*;

/// Files of a schema by name; references go from one to another.
pub struct Schema {
    files: BTreeMap<&'static str, Value>,
}

impl Schema {
    /// The official schema of CDI.
    pub fn of_cdi() -> Self {
        let parse = |text| serde_json::from_str(text).unwrap();
        let schema = parse(include_str!("../../fixtures/cdi/schema.json"));
        let definitions = parse(include_str!("../../fixtures/cdi/defs.json"));
        Self { files: [("schema.json", schema), ("defs.json", definitions)].into() }
    }

    /// What `document` breaks; empty when it is valid.
    pub fn problems(&self, document: &Value) -> Vec<String> {
        let mut found = Vec::new();
        self.check("schema.json", &self.files["schema.json"], document, "$", &mut found);
        found
    }

    fn check(&self, file: &str, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
        let schema = schema.as_object().unwrap();
        for (keyword, rule) in schema {
            match keyword.as_str() {
                // `ref` without `$` stands in the official file and means nothing there either.
                "description" | "$schema" | "ref" => {}
                "$ref" => {
                    let (other, pointer) = rule.as_str().unwrap().split_once('#').unwrap();
                    let file = if other.is_empty() { file } else { other };
                    let target = self.files[file].pointer(pointer).unwrap();
                    self.check(file, target, value, at, found);
                }
                "type" => {
                    let is = match rule.as_str().unwrap() {
                        "object" => value.is_object(),
                        "array" => value.is_array(),
                        "string" => value.is_string(),
                        "boolean" => value.is_boolean(),
                        "integer" => value.is_i64() || value.is_u64(),
                        other => panic!("type {other:?} is not known here"),
                    };
                    if !is {
                        found.push(format!("{at}: {value} is no {rule}"));
                    }
                }
                "minimum" | "maximum" => {
                    let (number, bound) = (value.as_f64(), rule.as_f64().unwrap());
                    let beyond = number.is_some_and(|n| if keyword == "minimum" { n < bound } else { n > bound });
                    if beyond {
                        found.push(format!("{at}: {value} is beyond {keyword} {rule}"));
                    }
                }
                "required" => {
                    let names = rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                    let lacks = |name: &&str| value.is_object() && value.get(name).is_none();
                    found.extend(names.filter(lacks).map(|name| format!("{at}: {name} is missing")));
                }
                "properties" => {
                    for (name, rule) in rule.as_object().unwrap() {
                        if let Some(value) = value.get(name) {
                            self.check(file, rule, value, &format!("{at}.{name}"), found);
                        }
                    }
                }
                "patternProperties" => {
                    let rules = rule.as_object().unwrap();
                    let [(".{1,}", each)] = rules.iter().map(|(p, r)| (p.as_str(), r)).collect::<Vec<_>>()[..] else {
                        panic!("a pattern that is not known here: {rules:?}");
                    };
                    for (name, value) in value.as_object().into_iter().flatten().filter(|(name, _)| !name.is_empty()) {
                        self.check(file, each, value, &format!("{at}.{name}"), found);
                    }
                }
                "items" => {
                    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(file, rule, value, &format!("{at}[{index}]"), found);
                    }
                }
                other => panic!("keyword {other:?} is not known here"),
            }
        }
    }
}

type Break = fn(&mut Value);

#[test]
fn documents_of_the_official_tests_are_judged_as_there() {
    let schema = Schema::of_cdi();
    let good = serde_json::json!({
        "cdiVersion": "0.6.0", "kind": "vendor.com/device",
        "devices": [{"name": "myDevice", "containerEdits": {"deviceNodes": [{"path": "/dev/card1", "hostPath": "/vendorroot/dev/card1"}]}}],
        "containerEdits": {"env": ["FOO=CDI_SPEC"], "deviceNodes": [{"path": "/dev/vendorctl", "uid": 1000, "gid": 1000}],
            "mounts": [{"hostPath": "/bin/vendorBin", "containerPath": "/bin/vendorBin"}],
            "hooks": [{"hookName": "createContainer", "path": "/bin/vendor-hook"}]}
    });
    assert_eq!(schema.problems(&good), [""; 0]);
    assert_eq!(schema.problems(&serde_json::json!({})).len(), 3);
    let breaks: [(Break, &str); 6] = [
        (|s| s["cdiVersion"] = 6.into(), "$.cdiVersion"),
        (|s| s["devices"][0]["name"] = Value::Null, "$.devices[0].name"),
        (|s| drop(s["devices"][0].as_object_mut().unwrap().remove("containerEdits")), "containerEdits is missing"),
        (|s| s["containerEdits"]["deviceNodes"][0]["uid"] = (-1).into(), "beyond minimum"),
        (|s| s["containerEdits"]["mounts"][0]["options"] = serde_json::json!([1]), "mounts[0].options[0]"),
        (|s| s["annotations"] = serde_json::json!({"a": 1}), "$.annotations.a"),
    ];
    for (break_it, part) in breaks {
        let mut spec = good.clone();
        break_it(&mut spec);
        let found = schema.problems(&spec);
        assert!(found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
    }
}
