//! The words of choices, for flags and files.

use std::fmt;
use std::str::FromStr;

use crate::decide::cycle::LockMode;
use crate::decide::lock::ExpiredHolder;
use crate::decide::plugins::NodesWithoutAgent;

/// A word that is not one of those expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not known; expected {expected}")]
pub struct UnknownWord {
    value: String,
    expected: &'static str,
}

macro_rules! words {
    ($type:ty, $expected:literal, $($word:literal => $value:expr),+) => {
        impl FromStr for $type {
            type Err = UnknownWord;
            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok($value),)+
                    other => Err(UnknownWord { value: other.chars().take(80).collect(), expected: $expected }),
                }
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(value if *value == $value => $word,)+
                    _ => "",
                })
            }
        }
    };
}

words!(LockMode, "always, auto", "always" => LockMode::Always, "auto" => LockMode::Auto);
words!(ExpiredHolder, "evict, wait", "evict" => ExpiredHolder::Evict, "wait" => ExpiredHolder::Wait);
words!(NodesWithoutAgent, "refuse, plain", "refuse" => NodesWithoutAgent::Refuse, "plain" => NodesWithoutAgent::Plain);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_is_printed() {
        for mode in [LockMode::Always, LockMode::Auto] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for choice in [NodesWithoutAgent::Refuse, NodesWithoutAgent::Plain] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("maybe".parse::<ExpiredHolder>().unwrap_err().to_string().contains("evict, wait"));
    }
}
