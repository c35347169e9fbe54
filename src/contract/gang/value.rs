//! Single values: numbers, mode, match policy.

use std::fmt;

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

/// What a failure of one member means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mode {
    /// All members of an attempt are released.
    #[default]
    Strict,
    /// The others keep their reservations until the gang is satisfied or its wait is over.
    NonStrict,
}

impl Mode {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "Strict",
            Self::NonStrict => "NonStrict",
        }
    }

    /// Reads the word, in exact case.
    pub fn parse(key: &'static str, text: &str) -> Result<Self, BadValue> {
        match text {
            "Strict" => Ok(Self::Strict),
            "NonStrict" => Ok(Self::NonStrict),
            _ => Err(BadValue::new(key, text, "is no mode; expected Strict or NonStrict")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which members count for the minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum MatchPolicy {
    /// Reserved ones.
    OnlyWaiting,
    /// Reserved and bound ones.
    WaitingAndRunning,
    /// Reserved, bound and succeeded ones.
    WaitingRunningSucceed,
    /// Reserved ones, once; after that there is no rule any more.
    #[default]
    OnceSatisfied,
}

impl MatchPolicy {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::OnlyWaiting, Self::WaitingAndRunning, Self::WaitingRunningSucceed, Self::OnceSatisfied];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OnlyWaiting => "only-waiting",
            Self::WaitingAndRunning => "waiting-and-running",
            Self::WaitingRunningSucceed => "waiting-running-succeed",
            Self::OnceSatisfied => "once-satisfied",
        }
    }

    /// Reads the word, in exact case.
    pub fn parse(key: &'static str, text: &str) -> Result<Self, BadValue> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str() == text);
        known.ok_or_else(|| {
            BadValue::new(
                key,
                text,
                "is no match policy; expected only-waiting, waiting-and-running, waiting-running-succeed or once-satisfied",
            )
        })
    }
}

impl fmt::Display for MatchPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reads a minimum: 0 to 2147483647, blanks around it allowed. 0 means no gang rule.
pub fn parse_min(key: &'static str, text: &str) -> Result<u32, BadValue> {
    match text.trim().parse::<i32>() {
        Ok(number) => u32::try_from(number).map_err(|_| BadValue::new(key, text, "is negative; expected 0 or more")),
        Err(_) => Err(BadValue::new(key, text, "is no whole number from 0 to 2147483647")),
    }
}

/// Reads a total: 0 to 2147483647, blanks around it allowed. That it is not below the minimum is checked by who knows that.
pub fn parse_total(key: &'static str, text: &str) -> Result<u32, BadValue> {
    parse_min(key, text)
}

/// Reads a sub-priority; what is no integer counts as 0.
pub fn parse_sub_priority(text: Option<&str>) -> i64 {
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
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
            assert_eq!(parse_min(key::MIN_AVAILABLE, text).ok(), expected, "{text:?}");
        }
        for text in ["", " ", "-1", "2147483648", "1.5", "5 5", "five", "0x5", "٣"] {
            let error = parse_min(key::MIN_AVAILABLE, text).unwrap_err().to_string();
            assert!(error.contains(key::MIN_AVAILABLE) && error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn words_are_read_in_exact_case_and_print_as_read() {
        for mode in [Mode::Strict, Mode::NonStrict] {
            assert_eq!(Mode::parse(key::MODE, mode.as_str()), Ok(mode));
        }
        for policy in MatchPolicy::ALL {
            assert_eq!(MatchPolicy::parse(key::MATCH_POLICY, policy.as_str()), Ok(policy));
        }
        for text in ["strict", "STRICT", "", " Strict", "nonstrict"] {
            assert!(Mode::parse(key::MODE, text).unwrap_err().to_string().contains("NonStrict"), "{text:?}");
        }
        for text in ["Only-Waiting", "", "once"] {
            assert!(MatchPolicy::parse(key::MATCH_POLICY, text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_sub_priority_that_is_no_number_counts_as_zero() {
        let read = [Some("7"), Some(" -7 "), Some("9999999999"), Some("high"), Some(""), None].map(parse_sub_priority);
        assert_eq!(read, [7, -7, 9_999_999_999, 0, 0, 0]);
    }
}
