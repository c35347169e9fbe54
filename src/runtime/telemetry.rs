//! Logs to standard error: text for people, JSON lines for collectors.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One readable line for each event.
    #[default]
    Text,
    /// One JSON object for each event.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Not `text` or `json`.
    #[error("log format {0:?} is not known: expected text or json")]
    Format(String),
    /// Not a filter of tracing-subscriber.
    #[error("log filter {filter:?} cannot be read: {problem}; expected for example info or info,baton_agent=debug")]
    Filter {
        /// The text.
        filter: String,
        /// The parser's words.
        problem: String,
    },
    /// A subscriber is already there.
    #[error("logging was already set up in this process")]
    Already,
}

impl FromStr for LogFormat {
    type Err = TelemetryError;
    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(TelemetryError::Format(other.chars().take(80).collect())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Libraries that log errors which their callers retry and report anyway.
const QUIET: &str = "kube_client::client::builder=off,rustls_platform_verifier=off";

/// Which lines are logged, in tracing-subscriber's language (`info,baton_agent=debug`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = TelemetryError;
    /// A bare word is a target to tracing-subscriber: then everything of that target is logged and nothing else, so a misspelt level
    /// would silence the process.
    fn from_str(filter: &str) -> Result<Self, TelemetryError> {
        let unreadable = |problem| TelemetryError::Filter { filter: filter.chars().take(200).collect(), problem };
        if filter.trim().is_empty() {
            return Err(unreadable("it is empty".to_owned()));
        }
        let is_level = |text: &str| text.parse::<tracing::level_filters::LevelFilter>().is_ok();
        let words = || filter.split(',').map(str::trim).filter(|part| !part.is_empty() && !part.contains(['=', '[']));
        if let Some(part) = words().find(|part| !is_level(part)) {
            return Err(unreadable(format!("{part:?} is no level: error, warn, info, debug, trace or off")));
        }
        EnvFilter::try_new(filter).map_err(|error| unreadable(error.to_string()))?;
        Ok(Self(filter.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Starts logging for the whole process.
pub fn init(format: LogFormat, filter: &LogFilter) -> Result<(), TelemetryError> {
    let filter = EnvFilter::builder().parse_lossy(format!("{QUIET},{filter}"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let done = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).try_init(),
    };
    done.map_err(|_| TelemetryError::Already)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused_instead_of_silencing_everything() {
        for bad in ["warning", "inf", "info,baton", "nonsense"] {
            let error = bad.parse::<LogFilter>().unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("is no level"), "{error}");
        }
        assert!(" ".parse::<LogFilter>().unwrap_err().to_string().contains("it is empty"));
        for good in ["info", "WARN", "off", "info,baton_agent=debug", "baton=trace", "debug,kube=warn"] {
            assert_eq!(good.parse::<LogFilter>().unwrap().to_string(), good);
        }
    }

    #[test]
    fn unknown_formats_and_broken_filters_are_named() {
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("\"xml\""));
        assert_eq!("json".parse::<LogFormat>().unwrap().to_string(), "json");
        let error = "baton=loud".parse::<LogFilter>().unwrap_err().to_string();
        assert!(error.contains("baton=loud"), "{error}");
    }
}
