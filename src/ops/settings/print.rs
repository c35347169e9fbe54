//! The effective configuration as a file that reads back as itself.

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::ops::config::{Setting, print_yaml};

/// Keys and values in their order.
struct Document(Vec<(&'static str, Value)>);

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// `head`, then every setting with its present value.
pub fn print<O>(head: Vec<(&'static str, Value)>, settings: &[Setting<O>], options: &O) -> anyhow::Result<String> {
    let flat = settings.iter().map(|setting| (setting.name, plain(&(setting.show)(options))));
    Ok(print_yaml(&Document(head.into_iter().chain(flat).collect()))?)
}

/// A value as YAML would have it plainly: switches and whole numbers without quotes.
fn plain(text: &str) -> Value {
    match (text.parse::<bool>(), text.parse::<i64>()) {
        (Ok(switch), _) => switch.into(),
        (_, Ok(number)) if number.to_string() == text => number.into(),
        _ => text.into(),
    }
}
