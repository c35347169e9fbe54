//! Checks of options that more than one daemon has, each with an error that names option and value.

use std::fmt::Display;
use std::time::Duration;

/// More requests at a time than an API server answers one client.
const MAX_CONCURRENCY: usize = 4096;

/// Why an option cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// It must not be empty.
    #[error("{0} is empty: give a value")]
    Empty(&'static str),
    /// It must be above zero.
    #[error("{0} is zero: give a value above zero")]
    Zero(&'static str),
    /// A value that cannot work.
    #[error("{option}: {problem}")]
    Value {
        /// The flag.
        option: &'static str,
        /// What is wrong, naming the value, and what to do.
        problem: String,
    },
    /// A number above what can be served.
    #[error("{option} is {value}: give at most {most}")]
    TooMany {
        /// The flag.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The most.
        most: usize,
    },
}

impl OptionError {
    /// A value that cannot work: the flag, and what is wrong, naming the value, and what to do.
    pub fn value(option: &'static str, problem: impl Into<String>) -> Self {
        Self::Value { option, problem: problem.into() }
    }
}

/// Checks that no value is empty.
pub fn filled(words: &[(&'static str, &str)]) -> Result<(), OptionError> {
    let empty = words.iter().find(|(_, word)| word.is_empty());
    empty.map_or(Ok(()), |(option, _)| Err(OptionError::Empty(option)))
}

/// The result of the check of a name, as the option's error.
pub fn named<E: Display>(option: &'static str, checked: Result<(), E>) -> Result<(), OptionError> {
    checked.map_err(|bad| OptionError::value(option, bad.to_string()))
}

/// Checks that every period is above zero.
pub fn above_zero(periods: &[(&'static str, Duration)]) -> Result<(), OptionError> {
    let zero = periods.iter().find(|(_, period)| period.is_zero());
    zero.map_or(Ok(()), |(option, _)| Err(OptionError::Zero(option)))
}

/// `--concurrency`: at least one request at a time, and no more than the API server serves one client.
pub fn concurrency(value: usize) -> Result<(), OptionError> {
    match value {
        0 => Err(OptionError::Zero("concurrency")),
        1..=MAX_CONCURRENCY => Ok(()),
        _ => Err(OptionError::TooMany { option: "--concurrency", value, most: MAX_CONCURRENCY }),
    }
}
