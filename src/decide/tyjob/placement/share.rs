//! Dominant resource fairness: what part of the cluster a job asks for, of the resource of which it asks most.

use std::cmp::Ordering;
use std::fmt;

use super::folded::Folded;

/// A fraction, compared exactly.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    wanted: i64,
    /// Above zero.
    total: i64,
}

impl Share {
    /// Of nothing.
    pub const NONE: Self = Self { wanted: 0, total: 1 };

    /// As a number, for people.
    pub fn value(self) -> f64 {
        self.wanted as f64 / self.total as f64
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |a: i64, b: i64| i128::from(a) * i128::from(b);
        cross(self.wanted, other.total).cmp(&cross(other.wanted, self.total))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.value())
    }
}

/// The largest share that `demand` takes of any resource, and of which one; resources that the cluster has none of are left
/// out.
pub fn dominant_share<'a>(demand: &'a Folded, cluster: &Folded) -> (Share, Option<&'a str>) {
    let mut most = (Share::NONE, None);
    for (name, wanted) in demand.iter() {
        let total = cluster.get(name);
        let share = Share { wanted, total };
        if total > 0 && wanted > 0 && share > most.0 {
            most = (share, Some(name));
        }
    }
    most
}
