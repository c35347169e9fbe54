//! Single values: numbers, mode, match policy.

use serde_json::Value;

use crate::word::word_enum;

/// A value of a gang key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{key}: {value:?} {rule}")]
pub struct BadValue {
    /// Annotation, label or field.
    pub key: &'static str,
    /// As written, at most 80 characters.
    pub value: Box<str>,
    /// What is wrong and what was expected.
    pub rule: Box<str>,
}

impl BadValue {
    /// A refusal of `value`.
    pub fn new(key: &'static str, value: &str, rule: impl Into<Box<str>>) -> Self {
        Self { key, value: value.chars().take(80).collect::<String>().into(), rule: rule.into() }
    }
}

/// The field has content: an empty one asks for nothing.
pub(super) fn asks(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => list.iter().any(asks),
        Value::Object(fields) => fields.values().any(asks),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

word_enum! {
    /// What a failure of one member means for the others.
    #[derive(Default)]
    Mode {
        /// All members of an attempt are released.
        #[default]
        Strict = "Strict",
        /// The others keep their reservations until the gang is satisfied or its wait is over.
        NonStrict = "NonStrict",
    }
}

impl Mode {
    /// Reads the word, in exact case.
    pub fn parse(key: &'static str, text: &str) -> Result<Self, BadValue> {
        text.parse().map_err(|_| BadValue::new(key, text, "is no mode; expected Strict or NonStrict"))
    }
}

word_enum! {
    /// Which members count for the minimum.
    #[derive(Default)]
    MatchPolicy {
        /// Reserved ones.
        OnlyWaiting = "only-waiting",
        /// Reserved and bound ones.
        WaitingAndRunning = "waiting-and-running",
        /// Reserved, bound and succeeded ones.
        WaitingRunningSucceed = "waiting-running-succeed",
        /// Reserved ones, once; after that there is no rule any more.
        #[default]
        OnceSatisfied = "once-satisfied",
    }
}

impl MatchPolicy {
    /// Reads the word, in exact case.
    pub fn parse(key: &'static str, text: &str) -> Result<Self, BadValue> {
        let words = "only-waiting, waiting-and-running, waiting-running-succeed or once-satisfied";
        text.parse().map_err(|_| BadValue::new(key, text, format!("is no match policy; expected {words}")))
    }
}

word_enum! {
    /// When a group's waiting time begins.
    #[derive(Default, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    TimeoutClock {
        /// With the first member that is reserved and waits for others.
        #[default]
        Holding = "holding",
        /// With the first failed attempt of a complete group.
        Pending = "pending",
    }
}

impl TimeoutClock {
    /// Reads the word, in exact case.
    pub fn parse(key: &'static str, text: &str) -> Result<Self, BadValue> {
        text.parse().map_err(|_| BadValue::new(key, text, "is no clock; expected holding or pending"))
    }
}

/// Reads a number of members, a minimum or a total: 0 to 2147483647, blanks around it allowed. A minimum of 0 means no gang
/// rule; the caller checks that a total is not below the minimum.
pub fn parse_members(key: &'static str, text: &str) -> Result<u32, BadValue> {
    match text.trim().parse::<i32>() {
        Ok(number) => u32::try_from(number).map_err(|_| BadValue::new(key, text, "is negative; expected 0 or more")),
        Err(_) => Err(BadValue::new(key, text, "is no whole number from 0 to 2147483647")),
    }
}

/// A higher sub-priority counts as this: its author may put a pod before others of its priority, but the order stays one that people read.
pub const MAX_SUB_PRIORITY: i64 = 1000;

/// Reads a sub-priority; an empty one is 0.
pub fn parse_sub_priority(text: Option<&str>) -> Result<i64, BadValue> {
    match text.map(str::trim) {
        None | Some("") => Ok(0),
        Some(number) => {
            number.parse().map_err(|_| BadValue::new(super::key::SUB_PRIORITY, number, "is no whole number"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::key;
    use super::*;

    #[test]
    fn numbers_may_carry_blanks_and_stay_within_int32() {
        for (text, expected) in
            [("5", Some(5)), (" 5 ", Some(5)), ("+5", Some(5)), ("0", Some(0)), ("2147483647", Some(2_147_483_647))]
        {
            assert_eq!(parse_members(key::MIN_AVAILABLE, text).ok(), expected, "{text:?}");
        }
        for text in ["", " ", "-1", "2147483648", "1.5", "5 5", "five", "0x5", "٣"] {
            let error = parse_members(key::MIN_AVAILABLE, text).unwrap_err().to_string();
            assert!(error.contains(key::MIN_AVAILABLE) && error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn words_are_read_in_exact_case_and_print_as_read() {
        for mode in [Mode::Strict, Mode::NonStrict] {
            assert_eq!(Mode::parse(key::MODE, mode.word()), Ok(mode));
        }
        for policy in MatchPolicy::ALL.iter().copied() {
            assert_eq!(MatchPolicy::parse(key::MATCH_POLICY, policy.word()), Ok(policy));
        }
        for text in ["strict", "STRICT", "", " Strict", "nonstrict"] {
            assert!(Mode::parse(key::MODE, text).unwrap_err().to_string().contains("NonStrict"), "{text:?}");
        }
        for text in ["Only-Waiting", "", "once"] {
            assert!(MatchPolicy::parse(key::MATCH_POLICY, text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_sub_priority_is_a_number_or_empty() {
        let read = [Some("7"), Some(" -7 "), Some("9999999999"), Some(""), None].map(parse_sub_priority);
        assert_eq!(read, [7, -7, 9_999_999_999, 0, 0].map(Ok));
        for text in ["high", "1.5", "NaN", "99999999999999999999"] {
            assert!(parse_sub_priority(Some(text)).unwrap_err().to_string().contains(text));
        }
    }
}
