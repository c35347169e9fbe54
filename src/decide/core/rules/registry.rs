//! Which rules run at which extension points, in which order and with which weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::points::{Filter, Permit, Plugin, PostFilter, PreBind, PreFilter, PreScore, QueueSort, Reserve, Score};

/// An extension point, in the order of the cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the traits say what each is
pub enum Point {
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
}

impl Point {
    /// All of them and their keys in the configuration file.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::QueueSort, "queueSort"),
        (Self::PreFilter, "preFilter"),
        (Self::Filter, "filter"),
        (Self::PostFilter, "postFilter"),
        (Self::PreScore, "preScore"),
        (Self::Score, "score"),
        (Self::Reserve, "reserve"),
        (Self::Permit, "permit"),
        (Self::PreBind, "preBind"),
    ];

    /// Its key in the configuration file.
    pub fn key(self) -> &'static str {
        Self::ALL.iter().find(|(point, _)| *point == self).map_or("", |(_, key)| key)
    }
}

/// Why a set of plugins cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two orders contradict each other.
    #[error("exactly one QueueSort plugin may be enabled, found {}: keep one", .0.join(" and "))]
    QueueSorts(Vec<&'static str>),
    /// No order at all.
    #[error("no QueueSort plugin is enabled: enable PrioritySort")]
    NoQueueSort,
    /// The same rule twice at one extension point.
    #[error("plugin {name} is enabled twice at {point}: keep one")]
    Twice {
        /// Plugin.
        name: &'static str,
        /// Extension point.
        point: &'static str,
    },
    /// A rule whose work at one extension point is half of it without another one.
    #[error(
        "plugin {name} is enabled at {point} and not at {other}, the other half of it: enable it at both, or at neither"
    )]
    Apart {
        /// Plugin.
        name: &'static str,
        /// Where it is enabled.
        point: &'static str,
        /// Where it is not.
        other: &'static str,
    },
    /// No rule chooses devices.
    #[error(
        "plugin DeviceFit is not enabled at filter: pods would be bound without devices; enable it (nodes-without-agent: plain counts nodes without a node daemon as kube-scheduler does)"
    )]
    NoDevices,
    /// A weight that means nothing.
    #[error("plugin {name} has the weight {weight}: a score's weight is 1 to 100")]
    Weight {
        /// Plugin.
        name: &'static str,
        /// Weight found.
        weight: i64,
    },
    /// A rule of one's own under the name of a plugin of Baton, or of another one.
    #[error("plugin {0} is there already: give the added one a name of its own")]
    Taken(&'static str),
}

/// Adds a rule at one point, with a weight.
type Add = Arc<dyn Fn(&mut Enabled, i64) + Send + Sync>;

/// A rule and the extension points at which it runs: `Extension::new(MyRule).filter().score(2)`.
pub struct Extension<R> {
    rule: Arc<R>,
    points: Points,
}

/// A rule of whatever type at its extension points, with its weight at each.
#[derive(Clone)]
pub(crate) struct Points {
    name: &'static str,
    at: Vec<(Point, i64, Add)>,
}

/// Methods that add a point without a weight.
macro_rules! points {
    ($($(#[$doc:meta])* $seen:vis $point:ident: $kind:ident,)+) => {$(
        $(#[$doc])*
        #[must_use]
        $seen fn $point(self) -> Self where R: $kind {
            self.at(Point::$kind, 1, |rule, enabled, _| enabled.$point.push(rule))
        }
    )+};
}

impl<R: Plugin + 'static> Extension<R> {
    /// The rule, at no point yet.
    pub fn new(rule: R) -> Self {
        let points = Points { name: rule.name(), at: Vec::new() };
        Self { rule: Arc::new(rule), points }
    }

    points! {
        /// Orders the queue.
        pub queue_sort: QueueSort,
        /// Judges pods and prepares for nodes.
        pub pre_filter: PreFilter,
        /// Judges nodes.
        pub filter: Filter,
        pub(crate) post_filter: PostFilter,
        /// Prepares for ratings.
        pub pre_score: PreScore,
        /// Takes what the pod needs.
        pub reserve: Reserve,
        /// Lets reserved pods go on.
        pub permit: Permit,
        pub(crate) pre_bind: PreBind,
    }

    /// Rates nodes with this weight, 1 to 100.
    #[must_use]
    pub fn score(self, weight: i64) -> Self
    where
        R: Score,
    {
        self.at(Point::Score, weight, |rule, enabled, weight| enabled.score.push((rule, weight)))
    }

    fn at(mut self, point: Point, weight: i64, add: fn(Arc<R>, &mut Enabled, i64)) -> Self {
        let rule = self.rule.clone();
        self.points.at.push((point, weight, Arc::new(move |enabled, weight| add(rule.clone(), enabled, weight))));
        self
    }
}

impl<R> From<Extension<R>> for Points {
    fn from(extension: Extension<R>) -> Self {
        extension.points
    }
}

impl Points {
    /// The rule's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The points and the rule's own weight at each.
    pub fn all(&self) -> impl Iterator<Item = (Point, i64)> {
        self.at.iter().map(|(point, weight, _)| (*point, *weight))
    }
}

/// Plugins by extension point, in the order in which they run.
#[derive(Default, Clone)]
pub struct Enabled {
    names: BTreeSet<(Point, &'static str)>,
    /// Orders of the queue; exactly one.
    pub queue_sort: Vec<Arc<dyn QueueSort>>,
    /// Before filtering.
    pub pre_filter: Vec<Arc<dyn PreFilter>>,
    /// Filters; cheap ones first.
    pub filter: Vec<Arc<dyn Filter>>,
    /// When nothing fits.
    post_filter: Vec<Arc<dyn PostFilter>>,
    /// Before scoring.
    pub pre_score: Vec<Arc<dyn PreScore>>,
    /// Scores with weights.
    pub score: Vec<(Arc<dyn Score>, i64)>,
    /// Reservations.
    pub reserve: Vec<Arc<dyn Reserve>>,
    /// Last say before the lock queue.
    pub permit: Vec<Arc<dyn Permit>>,
    /// Before the lock.
    pre_bind: Vec<Arc<dyn PreBind>>,
}

impl Enabled {
    /// Rules that look for victims when nothing fits.
    pub(crate) fn post_filter(&self) -> &[Arc<dyn PostFilter>] {
        &self.post_filter
    }

    /// Rules that prepare a bind before the lock.
    pub(crate) fn pre_bind(&self) -> &[Arc<dyn PreBind>] {
        &self.pre_bind
    }

    /// Adds a rule at `point`; nothing where it does not have it. The error names a rule that is there already, or whose weight is
    /// out of range.
    pub(crate) fn add(&mut self, rule: &Points, point: Point, weight: i64) -> Result<(), RegistryError> {
        let name = rule.name;
        for (_, _, add) in rule.at.iter().filter(|(at, ..)| *at == point) {
            add(self, weight);
            if !self.names.insert((point, name)) {
                return Err(RegistryError::Twice { name, point: point.key() });
            }
        }
        if (1..=100).contains(&weight) { Ok(()) } else { Err(RegistryError::Weight { name, weight }) }
    }
}
