//! What the server knows of an object's fields: which are structs, maps and lists, how lists merge, which scalars they
//! hold. One form for built-in types (read from their JSON schemas) and custom ones (read from their definitions).

mod builtin;
mod decode;
mod node;
mod structural;
mod topology;
mod zero;

pub use builtin::{builtin_schema, type_definitions, type_name};
pub use decode::{Mismatch, decode};
pub use node::{Node, Rel, Scalar, Schema, Struct, item_key};
pub use structural::custom_schema;
pub use zero::zero_object;
