//! What an expression sees: the objects, the request, and the variables of its policy, each made when it is first named.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, ExecutionError};
use serde_json::{Map, Value, json};

use super::asked::Asked;
use super::authorizer::Authorizer;
use super::compile::{ENV, Expression, Variable};
use crate::apiserver::auth::Users;
use crate::apiserver::request::Target;
use crate::apiserver::store::Store;

type Lazy = OnceLock<Box<dyn Val>>;

/// What all expressions see of one request.
pub(super) struct Input<'a> {
    users: &'a Arc<Users>,
    store: &'a Arc<Store>,
    asked: &'a Asked<'a>,
    object: Lazy,
    old: Lazy,
    request: Lazy,
    namespace: Lazy,
    authorizer: OnceLock<Authorizer>,
}

impl<'a> Input<'a> {
    pub(super) fn new(users: &'a Arc<Users>, store: &'a Arc<Store>, asked: &'a Asked<'a>) -> Self {
        Self {
            users,
            store,
            asked,
            object: Lazy::new(),
            old: Lazy::new(),
            request: Lazy::new(),
            namespace: Lazy::new(),
            authorizer: OnceLock::new(),
        }
    }

    fn present(&self, object: Option<&Value>) -> Box<dyn Val> {
        let Some(Value::Object(fields)) = object else { return Box::new(CelNull) };
        let (group, version, kind) = self.asked.kind;
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let typed = [("kind", kind.to_owned()), ("apiVersion", api_version)];
        let typed = typed.map(|(key, text)| (CelMapKey::from(key), Box::new(CelString::from(text)) as Box<dyn Val>));
        let fields = fields.iter().map(|(key, field)| {
            let field = match field {
                Value::Object(metadata) if key == "metadata" => map(metadata.iter().filter(|(_, v)| !is_empty(v))),
                other => value(other),
            };
            (CelMapKey::from(key.clone()), field)
        });
        Box::new(CelMap::from(fields.chain(typed).collect::<HashMap<_, _>>()))
    }

    fn request(&self) -> Value {
        let asked = self.asked;
        let resource = json!({
            "group": asked.resource.group, "version": asked.resource.version, "resource": asked.resource.plural,
        });
        let (group, version, kind) = asked.kind;
        let kind = json!({"group": group, "version": version, "kind": kind});
        let options = match asked.operation {
            "CREATE" => "CreateOptions",
            "DELETE" => "DeleteOptions",
            _ => "UpdateOptions",
        };
        let mut request = json!({
            "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "operation": asked.operation, "userInfo": asked.user.info(), "dryRun": asked.dry,
            "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
        });
        for (key, text) in [
            ("name", asked.name),
            ("namespace", asked.namespace),
            ("subResource", asked.subresource),
            ("requestSubResource", asked.subresource),
        ] {
            if !text.is_empty() {
                request[key] = json!(text);
            }
        }
        request
    }

    /// The namespace of the object; none of what lives in no namespace, and of a namespace.
    fn namespace(&self) -> Value {
        if self.asked.namespace.is_empty() || self.asked.resource.is("", "namespaces") {
            return Value::Null;
        }
        let found = self.store.get("/namespaces", &format!("/{}", self.asked.namespace));
        let mut namespace = found.map_or(Value::Null, |found| found.value.clone());
        if let Some(metadata) = namespace["metadata"].as_object_mut() {
            metadata
                .retain(|key, value| !matches!(key.as_str(), "managedFields" | "ownerReferences") && !is_empty(value));
        }
        namespace
    }

    fn authorizer(&self) -> &Authorizer {
        self.authorizer.get_or_init(|| Authorizer::new(self.users, self.store, self.asked.user))
    }

    fn requested(&self) -> Target {
        let asked = self.asked;
        Target {
            group: asked.resource.group.clone(),
            version: asked.resource.version.clone(),
            resource: asked.resource.plural.clone(),
            subresource: asked.subresource.to_owned(),
            namespace: asked.namespace.to_owned(),
            name: asked.name.to_owned(),
            ..Target::default()
        }
    }
}

/// What the expressions of one policy see.
pub(super) struct Scope<'a> {
    input: &'a Input<'a>,
    variables: &'a [Variable],
    values: Vec<OnceLock<Result<Box<dyn Val>, String>>>,
    /// Match conditions do not see the namespace.
    condition: bool,
}

impl<'a> Scope<'a> {
    /// What match conditions see.
    pub(super) fn of_conditions(input: &'a Input<'a>) -> Self {
        Self { input, variables: &[], values: Vec::new(), condition: true }
    }

    /// What validations and their messages see.
    pub(super) fn of_validations(input: &'a Input<'a>, variables: &'a [Variable]) -> Self {
        let values = variables.iter().map(|_| OnceLock::new()).collect();
        Self { input, variables, values, condition: false }
    }

    /// The value of an expression, or why it has none.
    pub(super) fn evaluate(&self, expression: &Expression) -> Result<cel::Value, String> {
        let program = expression.program.as_ref().map_err(|why| format!("compilation error: {why}"))?;
        let failed = |why: String| format!("expression '{}' resulted in error: {why}", expression.text);
        self.execute(program).map_err(failed)
    }

    fn execute(&self, program: &cel::Program) -> Result<cel::Value, String> {
        let mut context = Context::with_env(ENV.clone());
        context.set_variable_resolver(self);
        program.execute(&context).map_err(|error| self.why(&error))
    }

    /// The error as a real server words it.
    fn why(&self, error: &ExecutionError) -> String {
        match error {
            ExecutionError::NoSuchKey(key) => {
                self.failed(key).map_or_else(|| format!("no such key: {key}"), str::to_owned)
            }
            ExecutionError::NoSuchOverload(_) => "no such overload".to_owned(),
            other => other.to_string(),
        }
    }

    /// Why a variable has no value.
    fn failed(&self, name: &str) -> Option<&str> {
        let index = self.variables.iter().position(|variable| variable.name == name)?;
        self.values.get(index)?.get()?.as_ref().err().map(String::as_str)
    }

    fn variable(&self, name: &str) -> Option<&dyn Val> {
        let index = self.variables.iter().position(|variable| variable.name == name)?;
        let value = self.values.get(index)?.get_or_init(|| {
            let failed = |why: String| format!("composited variable \"{name}\" fails to evaluate: {why}");
            let program = self.variables[index].expression.program.as_ref().map_err(|why| failed(why.clone()))?;
            let value = self.execute(program).map_err(failed)?;
            value.try_into().map_err(|error: ExecutionError| failed(error.to_string()))
        });
        value.as_ref().ok().map(AsRef::as_ref)
    }
}

impl VariableResolver for Scope<'_> {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        let input = self.input;
        let lazy =
            |slot: &'b Lazy, make: &dyn Fn() -> Box<dyn Val>| Some(CowVal::Borrowed(slot.get_or_init(make).as_ref()));
        match name {
            "object" => lazy(&input.object, &|| input.present(input.asked.object)),
            "oldObject" => lazy(&input.old, &|| input.present(input.asked.old)),
            "request" => lazy(&input.request, &|| value(&input.request())),
            "namespaceObject" if self.condition => Some(CowVal::owned(CelNull)),
            "namespaceObject" => lazy(&input.namespace, &|| value(&input.namespace())),
            "authorizer" => Some(CowVal::Borrowed(input.authorizer())),
            "authorizer.requestResource" => Some(CowVal::owned(input.authorizer().of_resource(input.requested()))),
            // Only named whole where something is asked about it or where a variable of it has failed.
            "variables" => {
                let there = self.variables.iter().filter(|variable| self.failed(&variable.name).is_none());
                let there = there.map(|variable| (variable.name.clone(), Value::Bool(true)));
                Some(CowVal::Owned(value(&Value::Object(there.collect()))))
            }
            other => self.variable(other.strip_prefix("variables.")?).map(CowVal::Borrowed),
        }
    }
}

/// What a real server leaves out of metadata.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn map<'j>(fields: impl Iterator<Item = (&'j String, &'j Value)>) -> Box<dyn Val> {
    let fields = fields.map(|(key, field)| (CelMapKey::from(key.clone()), value(field)));
    Box::new(CelMap::from(fields.collect::<HashMap<_, _>>()))
}

fn value(json: &Value) -> Box<dyn Val> {
    match json {
        Value::Null => Box::new(CelNull),
        Value::Bool(flag) => Box::new(CelBool::from(*flag)),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Box::new(CelInt::from(number)),
            None => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(text) => Box::new(CelString::from(text.clone())),
        Value::Array(items) => Box::new(CelList::from(items.iter().map(value).collect::<Vec<_>>())),
        Value::Object(fields) => map(Map::iter(fields)),
    }
}
