//! `x-kubernetes-validations`: the CEL rules of a custom type, as a real server evaluates them. A rule sees what the schema
//! declares and nothing else; of the metadata, the name and its prefix. On an update, what did not change is not refused.
//!
//! Not here: the cost of rules. A real server estimates it when the definition is written and counts it when a rule runs.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cel::extractors::This;
use cel::objects::{Key, Map};
use cel::{Context, Env, ExecutionError, Program};
use serde_json::Value;

use crate::apiserver::failure::Cause;

/// CEL with the libraries of strings and lists that a rule may use.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for library in [cel::extensions::strings, cel::extensions::lists] {
        env.add_extension(library).expect("the libraries' names are their own");
    }
    Arc::new(env)
});

/// A rule that can be run, or why it is none.
type Compiled = Result<Arc<Program>, String>;

/// Rules are compiled once.
static COMPILED: LazyLock<Mutex<HashMap<String, Compiled>>> = LazyLock::new(Mutex::default);

/// Kubernetes' own `sum` of a list of integers.
fn sum(This(list): This<Arc<Vec<cel::Value>>>) -> Result<i64, ExecutionError> {
    let wrong = |what: &str| ExecutionError::function_error("sum", what);
    list.iter().try_fold(0i64, |sum, item| match item {
        cel::Value::Int(number) => sum.checked_add(*number).ok_or_else(|| wrong("integer overflow")),
        _ => Err(wrong("no such overload")),
    })
}

fn compiled(rule: &str) -> Compiled {
    let mut known = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compile = || ENV.compile(rule).map(Arc::new).map_err(|error| error.to_string());
    known.entry(rule.to_owned()).or_insert_with(compile).clone()
}

/// Rules of a schema that are no CEL; causes name them as a real server does when the definition is written.
pub fn check_rules(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (number, rule) in rules_of(schema).enumerate() {
        let text = rule["rule"].as_str().unwrap_or_default();
        if let Err(error) = compiled(text) {
            let at = format!("{at}.x-kubernetes-validations[{number}].rule");
            causes.push(Cause::invalid(at, &rule["rule"], &format!("compilation failed: {error}")));
        }
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        check_rules(inner, &format!("{at}.properties[{name}]"), causes);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            check_rules(&schema[key], &format!("{at}.{key}"), causes);
        }
    }
}

/// Evaluates every rule on a custom object; `old` is the object before an update.
pub fn rules(schema: &Value, value: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    if !has_rules(schema) {
        return;
    }
    // These make a real server leave the rules alone.
    let blocking = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if causes.iter().any(|cause| blocking.contains(&cause.reason)) {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to \
                   complete validation";
        causes.push(Cause::invalid("<nil>", &Value::Null, why));
        return;
    }
    evaluate(schema, value, Before { old, parent_same: false }, "", causes);
}

fn rules_of(schema: &Value) -> impl Iterator<Item = &Value> {
    schema["x-kubernetes-validations"].as_array().into_iter().flatten()
}

fn has_rules(schema: &Value) -> bool {
    let inner = || schema["properties"].as_object().into_iter().flat_map(|properties| properties.values());
    rules_of(schema).next().is_some()
        || inner().any(has_rules)
        || ["items", "additionalProperties"].iter().any(|key| schema[*key].is_object() && has_rules(&schema[*key]))
}

/// What stood in the place of a value before an update.
#[derive(Clone, Copy)]
struct Before<'a> {
    /// The value itself; `None` where there was none, or none that is known to be the same.
    old: Option<&'a Value>,
    /// The nearest value around it that is known not to have changed.
    parent_same: bool,
}

impl<'a> Before<'a> {
    fn is_same(self, value: &Value) -> bool {
        self.old.map_or(self.parent_same, |old| old == value)
    }

    fn inside(self, value: &Value, find: impl FnOnce(&'a Value) -> Option<&'a Value>) -> Self {
        match self.old {
            Some(old) => Self { old: find(old), parent_same: old == value },
            None => self,
        }
    }
}

fn evaluate(schema: &Value, value: &Value, before: Before<'_>, at: &str, causes: &mut Vec<Cause>) {
    if value.is_null() {
        return;
    }
    let texts: Vec<&str> = rules_of(schema).filter_map(|rule| rule["rule"].as_str()).collect();
    if !texts.is_empty() {
        let own = spelled(schema, value, at.is_empty(), &texts);
        for rule in rules_of(schema) {
            one(schema, rule, (&own, value), before, at, causes);
        }
    }
    match value {
        Value::Array(items) if schema["items"].is_object() => {
            for (index, item) in items.iter().enumerate() {
                let before = before.inside(value, |old| same_item(schema, old, item));
                evaluate(&schema["items"], item, before, &format!("{at}[{index}]"), causes);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let declared = schema["properties"].get(name);
                let inner = declared.or_else(|| schema.get("additionalProperties").filter(|inner| inner.is_object()));
                let Some(inner) = inner else { continue };
                let before = before.inside(value, |old| old.get(name));
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                evaluate(inner, field, before, &path, causes);
            }
        }
        _ => {}
    }
}

/// The item of a list before that is this one now: by its keys, where the list is a map.
fn same_item<'a>(schema: &Value, old: &'a Value, item: &Value) -> Option<&'a Value> {
    if schema["x-kubernetes-list-type"] != "map" {
        return None;
    }
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"].as_array()?.iter().filter_map(Value::as_str).collect();
    old.as_array()?.iter().find(|old| keys.iter().all(|key| old.get(key) == item.get(key)))
}

fn one(
    schema: &Value,
    rule: &Value,
    (own, value): (&cel::Value, &Value),
    before: Before<'_>,
    at: &str,
    causes: &mut Vec<Cause>,
) {
    let text = rule["rule"].as_str().unwrap_or_default();
    let message = rule["message"].as_str().map(str::trim).filter(|message| !message.is_empty());
    let shown = schema["type"].clone();
    // As Go prints the path of the object itself.
    let own_path = if at.is_empty() { "<nil>" } else { at };
    let program = match compiled(text) {
        Ok(program) => program,
        Err(error) => {
            return causes.push(Cause::invalid(own_path, &shown, &format!("rule compile error: {error}")));
        }
    };
    let mut context = Context::with_env(ENV.clone());
    context.add_function("sum", sum).expect("the name is free");
    context.add_variable_from_value("self", own.clone());
    let transition = text.contains("oldSelf");
    if transition {
        // Only where there is something to compare with.
        let Some(old) = before.old else { return };
        context.add_variable_from_value("oldSelf", spelled(schema, old, at.is_empty(), &[text]));
    }
    let why = match program.execute(&context) {
        Ok(cel::Value::Bool(true)) => return,
        Ok(_) => message.map_or_else(|| format!("failed rule: {}", text.trim()), str::to_owned),
        Err(error) => {
            let error = match error {
                ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
                other => other.to_string(),
            };
            let why = format!("{error} evaluating rule: {}", message.unwrap_or(text.trim()));
            return causes.push(Cause::invalid(own_path, &shown, &why));
        }
    };
    if !transition && before.is_same(value) {
        // A real server warns.
        return;
    }
    let path = rule["fieldPath"].as_str().unwrap_or_default();
    let field = match format!("{at}{path}").trim_start_matches('.') {
        "" => own_path.to_owned(),
        field => field.to_owned(),
    };
    causes.push(match rule["reason"].as_str() {
        Some("FieldValueForbidden") => Cause::forbidden(field, &why),
        Some("FieldValueRequired") => Cause::required(field, &why),
        Some("FieldValueDuplicate") => Cause::duplicate(field, &shown),
        _ => Cause::invalid(field, &shown, &why),
    });
}

/// A value as a rule sees it: the fields that the schema declares, and of these, those whose name stands in a rule; all where a rule
/// compares the value as a whole.
fn spelled(schema: &Value, value: &Value, is_root: bool, rules: &[&str]) -> cel::Value {
    let meant = |name: &str| rules.iter().any(|rule| rule.contains(name) || rule.contains("== oldSelf"));
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) if schema["type"] != "number" => cel::Value::Int(number),
            _ => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(items) => {
            cel::Value::List(Arc::new(items.iter().map(|item| spelled(&schema["items"], item, false, rules)).collect()))
        }
        Value::Object(fields) => {
            let mut seen: HashMap<Key, cel::Value> = HashMap::new();
            for (name, field) in fields {
                if is_root && name == "metadata" {
                    let named = ["name", "generateName"].iter().filter_map(|name| Some((*name, field.get(name)?)));
                    let named = named
                        .map(|(name, text)| (Key::from((*name).to_owned()), spelled(&Value::Null, text, false, rules)));
                    let map = Arc::new(named.collect());
                    seen.insert(Key::from("metadata".to_owned()), cel::Value::Map(Map { map }));
                } else if let Some(inner) = schema["properties"].get(name) {
                    let name = escaped(name);
                    if meant(&name) {
                        seen.insert(Key::from(name), spelled(inner, field, false, rules));
                    }
                } else if schema["additionalProperties"].is_object() {
                    // Keys of a map are data.
                    seen.insert(Key::from(name.clone()), spelled(&schema["additionalProperties"], field, false, rules));
                }
            }
            cel::Value::Map(Map { map: Arc::new(seen) })
        }
    }
}

/// A property's name as CEL can spell it.
fn escaped(name: &str) -> String {
    const RESERVED: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    let pairs = [("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")];
    pairs.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}
