//! The words of choices, for flags and files.

use crate::contract::word::words;
use crate::decide::lock::ExpiredHolder;
use crate::decide::scheduler::LockMode;
use crate::decide::scheduler::rules::plugins::NodesWithoutAgent;

words!(LockMode, "always" => LockMode::Always, "auto" => LockMode::Auto);
words!(ExpiredHolder, "evict" => ExpiredHolder::Evict, "wait" => ExpiredHolder::Wait);
words!(NodesWithoutAgent, "refuse" => NodesWithoutAgent::Refuse, "plain" => NodesWithoutAgent::Plain);

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
