//! What is wrong with a declaration without keeping its pods from running.

use std::fmt;

use crate::contract::gang::BadValue;

/// One thing to tell the owner of a gang, once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Warning {
    /// A value that cannot be used; the next level, another member or the default holds.
    Value(BadValue),
    /// A pod names two gangs; the first counts.
    TwoNames {
        /// Key and name that count.
        used: (&'static str, Box<str>),
        /// Key and name that do not.
        ignored: (&'static str, Box<str>),
    },
    /// Members disagree; the oldest one's value counts.
    Disagreement {
        /// Key.
        key: &'static str,
        /// The value that counts, as text.
        used: Box<str>,
    },
    /// The total is below the minimum; the minimum counts.
    TotalBelowMin {
        /// `total-number`.
        total: u32,
        /// `min-available`.
        min: u32,
    },
    /// Several APIs have a PodGroup of this name; the first counts.
    TwoPodGroups {
        /// API whose object counts.
        used: &'static str,
        /// API whose object does not.
        ignored: &'static str,
    },
}

impl Warning {
    /// Reason of the event.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Value(_) | Self::TotalBelowMin { .. } => "GangInvalidValue",
            Self::TwoNames { .. } => "GangNameConflict",
            Self::Disagreement { .. } | Self::TwoPodGroups { .. } => "GangConfigConflict",
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(bad) => write!(f, "{bad}; the value is ignored"),
            Self::TwoNames { used, ignored } => write!(
                f,
                "the pod names two gangs: {} says {:?} and {} says {:?}; the first counts, remove one",
                used.0, used.1, ignored.0, ignored.1
            ),
            Self::Disagreement { key, used } => {
                write!(f, "members disagree about {key}: {used} of the oldest member with a valid value counts")
            }
            Self::TotalBelowMin { total, min } => {
                write!(f, "total-number {total} is below min-available {min}: {min} counts")
            }
            Self::TwoPodGroups { used, ignored } => {
                write!(f, "{used} and {ignored} both have a PodGroup of this name: that of {used} counts")
            }
        }
    }
}
