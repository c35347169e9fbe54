//! The commit that each member's Binding names, so that a half-done commit is recognised after a crash.

use std::fmt;

use jiff::Timestamp;

use super::value::BadValue;
use crate::key::GANG_COMMITTED;

/// One commit of a group: `<attempt>.<group>/<members>`, the attempt being the wall time of its decision in decimal Unix nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Committed {
    /// When the commit was decided; different for any two commits of a group.
    pub attempt: Timestamp,
    /// Number of the group, of three digits.
    pub group: u16,
    /// Pods that it binds, over all gangs of the group, with those of an earlier commit whose Bindings were still to come; ≥ 1.
    pub members: u32,
}

impl Committed {
    /// Reads the annotation.
    pub fn parse(text: &str) -> Result<Self, BadValue> {
        let read = || {
            let (attempt, members) = text.split_once('/')?;
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let (attempt, group) = attempt.split_once('.').filter(|(_, group)| group.len() == 3 && digits(group))?;
            let attempt = digits(attempt).then(|| attempt.parse().ok())??;
            let members = digits(members).then(|| members.parse::<u32>().ok())?.filter(|members| *members > 0)?;
            Some(Self { attempt: Timestamp::from_nanosecond(attempt).ok()?, group: group.parse().ok()?, members })
        };
        read().ok_or_else(|| {
            BadValue::new(GANG_COMMITTED, text, "is not <Unix nanoseconds>.<three digits>/<number of members>")
        })
    }
}

impl fmt::Display for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}/{}", self.attempt.as_nanosecond(), self.group, self.members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "/",
            "1/2",
            "1.000/",
            "/1",
            "1.000/0",
            "-1.000/2",
            "1.000/-2",
            "1.000/2/3",
            "a.000/1",
            "+1.000/1",
            "99999999999999999999999.000/1",
            "1./2",
            "1.12/2",
            "1.1234/2",
            "1.-12/2",
            ".123/2",
        ] {
            assert!(Committed::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(
            nanos in 0i128..4_000_000_000_000_000_000,
            group in 0u16..1000,
            members in 1u32..,
        ) {
            let committed = Committed { attempt: Timestamp::from_nanosecond(nanos).unwrap(), group, members };
            prop_assert_eq!(Committed::parse(&committed.to_string()), Ok(committed));
        }
    }
}
