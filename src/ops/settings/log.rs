//! The settings that every daemon has, those of its log, and the table form of all settings.

use crate::config::Setting;
use baton_contract::LockFormat;
use baton_runtime::telemetry::{LogFilter, LogFormat};

/// How a daemon logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Text for people or JSON lines for collectors.
    pub format: LogFormat,
    /// Which lines.
    pub filter: LogFilter,
}

/// The options of a daemon and how it logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaemonSettings<O> {
    pub options: O,
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
pub(crate) use settings;

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

by_from_str!(LogFormat, LogFilter, LockFormat);

/// The settings of [`LogOptions`].
pub(super) fn log<O: 'static>() -> Vec<Setting<DaemonSettings<O>>> {
    settings! {
        "log-format" "text|json" log.format "Log lines for people, or JSON objects for collectors";
        "log" "FILTER" log.filter
            "Which log lines, for example debug or info,baton_agent=debug: info = something was changed, warn = it will be retried, error = a human is needed, debug = why";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    #[test]
    fn a_filter_that_would_silence_everything_is_refused_where_it_stands() {
        let read = |text: &str| load_text(&log::<()>(), &[], "baton.yaml".as_ref(), text, "baton t");
        for (text, place) in
            [("log: nonsense\n", "baton.yaml:1:6"), ("log-format: json\nlog: baton=loud\n", "baton.yaml:2:6")]
        {
            let error = read(text).map(drop).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains("log filter"), "{error}");
        }
        assert!(read("log: info,baton_agent=debug\n").is_ok());
    }
}
