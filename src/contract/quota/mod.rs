//! What a namespace may use, as the API server's admission counts it: ResourceQuotas, LimitRanges, and the amounts of a pod.

mod limit_range;
mod pod_ask;
mod resource_quota;

pub use limit_range::LimitRangeRules;
pub use pod_ask::{Amounts, PodAsk};
pub use resource_quota::QuotaRules;
