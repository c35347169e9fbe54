//! Options from flags, environment and a YAML file: the same keys everywhere, flag over environment over file over default.
//!
//! A daemon's options are described once, as a table of [`Setting`]s over its plain options struct. Flags, their help, the names
//! of environment variables and the keys of the file come from the table, and so does the source of each value.

mod load;
mod nearest;
mod removed;
mod setting;
mod tree;
mod yaml;

pub(super) use load::{ConfigError, Loaded, Source, load_text};
pub use load::{arguments, load};
pub(super) use nearest::nearest;
pub(super) use removed::removed;
pub(super) use setting::{Section, Value, print};
pub use setting::{Setting, THEIRS};
pub(super) use tree::{Fields, Misplaced, YamlNode};
#[cfg(feature = "simulate")]
pub(super) use yaml::documents as read_documents;
pub use yaml::{print as print_yaml, value as read_yaml_value};
