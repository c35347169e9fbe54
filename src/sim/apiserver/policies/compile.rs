//! Expressions: compiled, and checked for names that they cannot mean.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use cel::{Env, Program};
use serde_json::Value;

/// CEL with the libraries that an expression of a policy may use.
pub(super) static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for library in [cel::extensions::strings, cel::extensions::lists, super::authorizer::library] {
        env.add_extension(library).expect("the libraries' names are their own");
    }
    Arc::new(env)
});

/// What runs, or why nothing does.
type CompiledPolicy = Result<Arc<Program>, String>;

/// Each text is compiled once: the servers of one process have the same policies.
static COMPILED: LazyLock<Mutex<HashMap<String, CompiledPolicy>>> = LazyLock::new(Mutex::default);

/// An expression that can be run, or why it is none.
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) program: CompiledPolicy,
}

impl Expression {
    pub(super) fn read(value: &Value, key: &str, names: Names<'_>) -> Self {
        let text = value[key].as_str().unwrap_or_default().to_owned();
        let program = compile(&text, names);
        Self { text, program }
    }
}

/// A named expression that others build on.
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) expression: Expression,
}

/// Functions that are known: of the language, of the libraries for strings and lists, of the authorizer. Operators have
/// names that are no words.
const FUNCTIONS: &[&str] = &[
    "bool",
    "bytes",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "has",
    "int",
    "matches",
    "size",
    "startsWith",
    "string",
    "type",
    "uint",
    "charAt",
    "format",
    "indexOf",
    "join",
    "lastIndexOf",
    "lowerAscii",
    "replace",
    "reverse",
    "split",
    "strings.quote",
    "substring",
    "trim",
    "upperAscii",
    "distinct",
    "flatten",
    "lists.range",
    "slice",
    "sort",
    "sortBy",
    "hasValue",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "or",
    "orValue",
    "value",
    "allowed",
    "check",
    "error",
    "errored",
    "group",
    "name",
    "namespace",
    "path",
    "reason",
    "resource",
    "subresource",
];

/// Names of types, which are values too.
const TYPES: &[&str] = &["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

const KIND: &[&str] = &["group", "version", "kind"];
const RESOURCE: &[&str] = &["group", "version", "resource"];

/// Fields of what has declared types.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "request",
        &[
            "kind",
            "resource",
            "subResource",
            "requestKind",
            "requestResource",
            "requestSubResource",
            "name",
            "namespace",
            "operation",
            "userInfo",
            "dryRun",
            "options",
        ],
    ),
    ("request.userInfo", &["username", "uid", "groups", "extra"]),
    ("request.kind", KIND),
    ("request.requestKind", KIND),
    ("request.resource", RESOURCE),
    ("request.requestResource", RESOURCE),
];

/// What an expression may name.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    /// `variables.…`; `None` where there is no `variables` at all.
    pub(super) variables: Option<&'a [String]>,
    /// Whether there is an `authorizer`.
    pub(super) authorizer: bool,
}

impl Names<'_> {
    fn has(&self, name: &str) -> bool {
        match name {
            "object" | "oldObject" | "request" | "namespaceObject" => true,
            "variables" => self.variables.is_some(),
            "authorizer" => self.authorizer,
            other => TYPES.contains(&other),
        }
    }
}

/// Compiles an expression, or says why it is none.
pub(super) fn compile(text: &str, names: Names<'_>) -> CompiledPolicy {
    let mut known = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let new = || ENV.compile(text).map(Arc::new).map_err(|error| error.to_string());
    let program = known.entry(text.to_owned()).or_insert_with(new).clone()?;
    drop(known);
    check(program.expression(), names, &mut Vec::new())?;
    Ok(program)
}

/// `bound` are the names that a macro has bound around an expression.
fn check<'e>(expression: &'e IdedExpr, names: Names<'_>, bound: &mut Vec<&'e str>) -> Result<(), String> {
    let undeclared = |name: &str| Err(format!("undeclared reference to '{name}' (in container '')"));
    match &expression.expr {
        Expr::Unspecified | Expr::Literal(_) => Ok(()),
        Expr::Ident(name) => {
            let plain = name.trim_start_matches('.');
            if bound.contains(&plain) || plain.starts_with('@') || names.has(plain) {
                Ok(())
            } else {
                undeclared(plain)
            }
        }
        Expr::Select(select) => {
            check(&select.operand, names, bound)?;
            let of = path(&select.operand, bound).unwrap_or_default();
            let field = select.field.as_str();
            let known = match FIELDS.iter().find(|(path, _)| *path == of) {
                Some((_, fields)) => fields.contains(&field),
                None => of != "variables" || names.variables.is_none_or(|known| known.iter().any(|name| name == field)),
            };
            if known { Ok(()) } else { Err(format!("undefined field '{field}'")) }
        }
        Expr::Call(call) => {
            // Of a function with a qualified name, the namespace stands in the place of the target.
            let space = match call.target.as_ref().map(|target| &target.expr) {
                Some(Expr::Ident(name)) if !bound.contains(&name.as_str()) => format!("{name}.{}", call.func_name),
                _ => String::new(),
            };
            let qualified = FUNCTIONS.contains(&space.as_str());
            let word = call.func_name.starts_with(|c: char| c.is_ascii_alphabetic());
            if word && !qualified && !FUNCTIONS.contains(&call.func_name.as_str()) {
                return undeclared(&call.func_name);
            }
            for part in call.target.iter().map(AsRef::as_ref).filter(|_| !qualified).chain(&call.args) {
                check(part, names, bound)?;
            }
            Ok(())
        }
        Expr::List(list) => list.elements.iter().try_for_each(|element| check(element, names, bound)),
        Expr::Map(map) => entries(map.entries.iter().map(|entry| &entry.expr), names, bound),
        Expr::Struct(fields) => entries(fields.entries.iter().map(|entry| &entry.expr), names, bound),
        Expr::Comprehension(all) => {
            check(&all.iter_range, names, bound)?;
            check(&all.accu_init, names, bound)?;
            let outside = bound.len();
            bound.extend([all.iter_var.as_str(), all.accu_var.as_str()]);
            bound.extend(all.iter_var2.as_deref());
            let inside = [&all.loop_cond, &all.loop_step, &all.result];
            let checked = inside.into_iter().try_for_each(|part| check(part, names, bound));
            bound.truncate(outside);
            checked
        }
    }
}

/// The path of fields that an expression spells, from a name that no macro has bound.
fn path(expression: &IdedExpr, bound: &[&str]) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) => (!bound.contains(&name.as_str())).then(|| name.clone()),
        Expr::Select(select) => Some(format!("{}.{}", path(&select.operand, bound)?, select.field)),
        _ => None,
    }
}

fn entries<'e>(
    mut entries: impl Iterator<Item = &'e EntryExpr>,
    names: Names<'_>,
    bound: &mut Vec<&'e str>,
) -> Result<(), String> {
    entries.try_for_each(|entry| match entry {
        EntryExpr::StructField(field) => check(&field.value, names, bound),
        EntryExpr::MapEntry(entry) => {
            check(&entry.key, names, bound)?;
            check(&entry.value, names, bound)
        }
    })
}
