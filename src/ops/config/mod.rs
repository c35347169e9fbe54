//! Options from flags, environment and a YAML file: the same keys everywhere, flag over environment over file over default.
//!
//! A daemon's options are described once, as a table of [`Setting`]s over its plain options struct. The table makes the
//! flags, their help, the names of the environment variables and the keys of the file, and says where each value came from.

mod load;
mod nearest;
mod section;
mod setting;
mod tree;
mod yaml;

pub use load::{ConfigError, Loaded, Source, arguments, load};
pub use nearest::nearest;
pub use section::Section;
pub use setting::{Setting, Value};
pub use tree::{Fields, Misplaced, Spot, YamlNode, YamlValue};
pub use yaml::{YamlEntry, YamlError, print as print_yaml, read as read_yaml, value as read_yaml_value};
