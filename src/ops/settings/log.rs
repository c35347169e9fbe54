//! What every daemon has beside its own options: how it logs.

use crate::contract::LockFormat;
use crate::ops::config::Setting;
use crate::runtime::telemetry::LogFormat;

/// How a daemon logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Text for people or JSON lines for collectors.
    pub format: LogFormat,
    /// Which lines, in the language of tracing-subscriber.
    pub filter: String,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// The options of a daemon and how it logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Daemon<O> {
    /// Its own options.
    pub options: O,
    /// Logging.
    pub log: LogOptions,
}

/// One setting of a field: `field!("name" | "alias", "VALUE", "help", options.path.to.field)`.
macro_rules! field {
    ($name:literal $(| $alias:literal)*, $value:literal, $help:expr, $($path:ident).+) => {
        $crate::ops::config::Setting {
            name: $name,
            aliases: &[$($alias),*],
            value: $value,
            help: $help,
            set: |daemon, text| $crate::ops::config::Value::read(text).map(|value| daemon.$($path).+ = value),
            show: |daemon| $crate::ops::config::Value::show(&daemon.$($path).+),
        }
    };
}
pub(super) use field;

/// Implements [`Value`](crate::ops::config::Value) for a type that is read by `FromStr` and written by `Display`.
macro_rules! by_from_str {
    ($($type:ty),+ $(,)?) => {$(
        impl $crate::ops::config::Value for $type {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error| format!("{error}"))
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )+};
}
pub(super) use by_from_str;

by_from_str!(LogFormat, LockFormat);

/// The settings of [`LogOptions`].
pub(super) fn log<O: 'static>() -> Vec<Setting<Daemon<O>>> {
    vec![
        field!("log-format", "text|json", "Log lines for people, or JSON objects for collectors", log.format),
        field!(
            "log",
            "FILTER",
            "Which log lines, for example debug or info,baton::agent=debug: info = something was changed, warn = it will be \
             retried, error = a human is needed, debug = why",
            log.filter
        ),
    ]
}
