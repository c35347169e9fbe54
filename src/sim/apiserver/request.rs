//! A request as the API understands it: verb, resource, names, options.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, Uri};

use super::user::User;

/// What a path and method ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural; empty for paths that are no resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Object name, or empty.
    pub name: String,
}

/// A request, decoded as far as every handler needs it.
#[derive(Debug, Clone)]
pub struct Request {
    /// What it asks for.
    pub target: Target,
    /// Query parameters.
    pub query: Query,
    /// Path without the query.
    pub path: String,
    /// Who asks.
    pub user: User,
    /// `User-Agent`, empty when absent.
    pub agent: String,
    /// `Accept`, empty when absent.
    pub accept: String,
    /// `Content-Type` without parameters.
    pub content_type: String,
}

impl Request {
    /// Reads the head of an HTTP request.
    pub fn read(method: &Method, uri: &Uri, headers: &HeaderMap, user: User) -> Self {
        let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let query = Query::parse(uri.query().unwrap_or_default());
        let content_type = header("content-type").split(';').next().unwrap_or_default().trim().to_owned();
        let path = uri.path().to_owned();
        let target = Target::read(method, &path, &query);
        Self { target, query, path, user, agent: header("user-agent"), accept: header("accept"), content_type }
    }

    /// What the user must be allowed: as asked for, and of a list or watch that a field selector narrows to one name, this
    /// name too.
    pub fn to_authorize(&self) -> Cow<'_, Target> {
        let listing = matches!(self.target.verb.as_str(), "list" | "watch") && self.target.name.is_empty();
        let fields = self.query.text("fieldSelector").split(',');
        let mut named = fields.filter_map(|term| {
            let (field, name) = term.split_once('=')?;
            (field == "metadata.name").then_some(name.trim_start_matches('='))
        });
        match named.next_back().filter(|name| listing && !name.is_empty()) {
            Some(name) => Cow::Owned(Target { name: name.to_owned(), ..self.target.clone() }),
            None => Cow::Borrowed(&self.target),
        }
    }

    /// The field manager of a write: as given, or the program name of the user agent.
    pub fn manager(&self) -> String {
        if let Some(given) = self.query.get("fieldManager").filter(|m| !m.is_empty()) {
            return given.to_owned();
        }
        let program = self.agent.split('/').next().unwrap_or_default();
        if program.is_empty() { "unknown".to_owned() } else { program.chars().take(128).collect() }
    }
}

impl Target {
    fn read(method: &Method, path: &str, query: &Query) -> Self {
        let parts: Vec<String> = path.split('/').filter(|p| !p.is_empty()).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, mut rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Self { verb: method.as_str().to_lowercase(), ..Self::default() },
        };
        let mut watch_path = false;
        if let ["watch", tail @ ..] = rest {
            watch_path = true;
            rest = tail;
        }
        let mut target = Self { group: group.to_owned(), version: version.to_owned(), ..Self::default() };
        let owned = |s: &str| s.to_owned();
        match rest {
            ["namespaces", name] => (target.resource, target.name) = (owned("namespaces"), owned(name)),
            ["namespaces", name, sub @ ("status" | "finalize")] => {
                (target.resource, target.name, target.subresource) = (owned("namespaces"), owned(name), owned(sub));
            }
            ["namespaces", namespace, resource, tail @ ..] => {
                (target.namespace, target.resource) = (owned(namespace), owned(resource));
                target.name = tail.first().map(|s| owned(s)).unwrap_or_default();
                target.subresource = tail.get(1).map(|s| owned(s)).unwrap_or_default();
            }
            [resource, tail @ ..] => {
                target.resource = owned(resource);
                target.name = tail.first().map(|s| owned(s)).unwrap_or_default();
                target.subresource = tail.get(1).map(|s| owned(s)).unwrap_or_default();
            }
            [] => {}
        }
        let single = !target.name.is_empty();
        let watch = watch_path || query.flag("watch");
        let verb = match *method {
            Method::GET | Method::HEAD if watch => "watch",
            Method::GET | Method::HEAD if single => "get",
            Method::GET | Method::HEAD => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if single => "delete",
            Method::DELETE => "deletecollection",
            _ => "unknown",
        };
        verb.clone_into(&mut target.verb);
        target
    }
}

/// Query parameters; the first value of each counts.
#[derive(Debug, Clone, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// Parses `a=b&c=d`.
    pub fn parse(text: &str) -> Self {
        let mut map = BTreeMap::new();
        for part in text.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            map.entry(decode_parameter(key)).or_insert_with(|| decode_parameter(value));
        }
        Self(map)
    }

    /// A parameter.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// A parameter, empty when absent.
    pub fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    /// A boolean parameter: present and not `0` or `false`.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|v| !matches!(v, "0" | "false" | "False" | "F" | "f"))
    }

    /// A number; `None` when absent or no number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(|v| v.parse().ok())
    }
}

/// Undoes percent-encoding.
pub fn decode(text: &str) -> String {
    decode_by(text, |byte| byte)
}

/// The same of a part of a query, where `+` is a blank.
fn decode_parameter(text: &str) -> String {
    decode_by(text, |byte| if byte == b'+' { b' ' } else { byte })
}

/// `plain` reads what is not encoded.
fn decode_by(text: &str, plain: fn(u8) -> u8) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let hex = bytes.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
                if let Some(byte) = hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                    out.push(byte);
                    at += 2;
                } else {
                    out.push(b'%');
                }
            }
            byte => out.push(plain(byte)),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}
