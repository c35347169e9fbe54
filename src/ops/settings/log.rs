//! The settings that every daemon has, those of its log, and the table form of all settings.

use crate::config::Setting;
use baton_contract::LockFormat;
use baton_runtime::telemetry::LogFormat;

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
pub struct DaemonSettings<O> {
    /// Its own options.
    pub options: O,
    /// Logging.
    pub log: LogOptions,
}

/// Settings of fields, one entry each: `"name" | "alias" "VALUE" options.path.to.field "help";`.
macro_rules! settings {
    ($($name:literal $(| $alias:literal)* $value:literal $($path:ident).+ $help:expr;)+) => {
        vec![$($crate::config::Setting {
            name: $name,
            aliases: &[$($alias),*],
            value: $value,
            help: $help,
            set: |daemon, text| $crate::config::Value::read(text).map(|value| daemon.$($path).+ = value),
            show: |daemon| $crate::config::Value::show(&daemon.$($path).+),
        }),+]
    };
}
pub(super) use settings;

/// Implements [`Value`](crate::config::Value) for a type that is read by `FromStr` and written by `Display`.
macro_rules! by_from_str {
    ($($type:ty),+ $(,)?) => {$(
        impl $crate::config::Value for $type {
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
pub(super) fn log<O: 'static>() -> Vec<Setting<DaemonSettings<O>>> {
    settings! {
        "log-format" "text|json" log.format "Log lines for people, or JSON objects for collectors";
        "log" "FILTER" log.filter
            "Which log lines, for example debug or info,baton_agent=debug: info = something was changed, warn = it will be retried, error = a human is needed, debug = why";
    }
}
