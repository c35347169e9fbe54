//! What is known of one place in an object.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

/// The fields of one kind.
#[derive(Debug)]
pub struct Schema {
    pub(super) defs: Arc<BTreeMap<String, Node>>,
    pub(super) root: Node,
}

/// One place in an object.
#[derive(Debug, Clone)]
pub enum Node {
    /// A named type of the schema.
    Ref(String),
    /// Declared fields.
    Struct(Struct),
    /// Free keys with values of one type; atomic ones are one value.
    Map(Box<Node>, bool),
    /// A list.
    List(Box<Node>, Rel),
    /// A value without parts.
    Scalar(Scalar),
    /// Anything: maps merge by key, the rest is one value.
    Any,
}

/// Declared fields of an object.
#[derive(Debug, Clone, Default)]
pub struct Struct {
    /// Type name as Go prints it after the package, e.g. `PodSpec`; empty for custom types.
    pub name: String,
    /// Package-qualified name, e.g. `core.v1.PodSpec`.
    pub full: String,
    /// Fields by JSON name.
    pub fields: BTreeMap<String, Node>,
    /// The whole is one value for ownership.
    pub atomic: bool,
    /// Undeclared fields are kept.
    pub preserve: bool,
}

/// How two versions of a list relate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rel {
    /// One value.
    Atomic,
    /// A set of scalars.
    Set,
    /// Items found by these keys; `merge` is the key of strategic merge patches.
    Keys {
        /// Keys for ownership and apply.
        keys: Vec<String>,
        /// Key for strategic merge patches, where that merges at all.
        merge: Option<String>,
    },
    /// One value for ownership, merged by this key in strategic merge patches.
    AtomicMergedBy(String),
}

/// Values without parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    Text,
    /// Base64.
    Bytes,
    /// RFC 3339, seconds.
    Time,
    /// RFC 3339, microseconds.
    MicroTime,
    /// `int32`.
    Int32,
    /// `int64`.
    Int64,
    /// A number.
    Number,
    /// A boolean.
    Bool,
    /// A quantity such as `64Gi`.
    Quantity,
    /// An integer or a string.
    IntOrString,
}

impl Schema {
    /// A schema that knows nothing.
    pub fn any() -> Self {
        Self { defs: Arc::new(BTreeMap::new()), root: Node::Any }
    }

    /// The object itself.
    pub fn root(&self) -> &Node {
        self.resolve(&self.root)
    }

    /// Follows references.
    pub fn resolve<'a>(&'a self, node: &'a Node) -> &'a Node {
        let mut at = node;
        while let Node::Ref(name) = at {
            match self.defs.get(name) {
                Some(next) => at = next,
                None => return &Node::Any,
            }
        }
        at
    }

    /// The type of a field or map entry of `node`; `None` when a struct does not declare it.
    pub fn field<'a>(&'a self, node: &'a Node, name: &str) -> Option<&'a Node> {
        match self.resolve(node) {
            Node::Struct(s) => match s.fields.get(name) {
                Some(n) => Some(self.resolve(n)),
                None if s.preserve => Some(&Node::Any),
                None => None,
            },
            Node::Map(elem, _) => Some(self.resolve(elem)),
            _ => Some(&Node::Any),
        }
    }
}

/// The key of a list item as field sets write it, e.g. `k:{"name":"main"}`; `None` when a key is missing.
pub fn item_key(item: &Value, keys: &[String]) -> Option<String> {
    let mut sorted: Vec<&String> = keys.iter().collect();
    sorted.sort();
    let mut map = Map::new();
    for key in sorted {
        let value = match item.get(key.as_str()) {
            Some(v) => v.clone(),
            None if key == "protocol" => Value::String("TCP".to_owned()),
            None => return None,
        };
        map.insert(key.clone(), value);
    }
    Some(format!("k:{}", Value::Object(map)))
}
