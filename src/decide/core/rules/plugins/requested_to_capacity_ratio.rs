//! `RequestedToCapacityRatio`: rates a node by how full it would be, by a user-defined shape.

use crate::core::rules::{Plugin, Reads, Score, Slots, View};
use crate::world::{Node, NodeId, Pod};

use super::usage::{CountedRequests, ResourceUsage, WeightError, Weights};

/// Why a shape or the weights mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RatioError {
    /// No points.
    #[error("RequestedToCapacityRatio: the shape has no points, expected at least one")]
    NoPoints,
    /// A point outside its range.
    #[error(
        "RequestedToCapacityRatio: point ({0}, {1}) is out of range, expected utilization 0 to 100 and score 0 to 10"
    )]
    Range(i64, i64),
    /// Not ascending.
    #[error("RequestedToCapacityRatio: utilization {1} does not come after {0}, expected ascending points")]
    Order(i64, i64),
    /// A weight that means nothing.
    #[error("RequestedToCapacityRatio: {0}")]
    Weight(#[from] WeightError),
}

/// Shape and weights, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RatioConfig {
    shape: Vec<(i64, i64)>,
    weights: Weights,
}

impl Default for RatioConfig {
    /// Binpack: GPUs weigh 4, CPU and memory 1.
    fn default() -> Self {
        Self { shape: vec![(0, 0), (100, 10)], weights: Weights::gpus_first() }
    }
}

impl RatioConfig {
    /// Points (utilization 0..=100, score 0..=10), ascending, and weights by resource name.
    pub fn new(shape: Vec<(i64, i64)>, weights: Vec<(String, i64)>) -> Result<Self, RatioError> {
        if shape.is_empty() {
            return Err(RatioError::NoPoints);
        }
        if let Some((u, s)) = shape.iter().find(|(u, s)| !(0..=100).contains(u) || !(0..=10).contains(s)) {
            return Err(RatioError::Range(*u, *s));
        }
        if let Some(pair) = shape.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(RatioError::Order(pair[0].0, pair[1].0));
        }
        Ok(Self { shape, weights: Weights::new(weights)? })
    }

    /// The points.
    pub fn shape(&self) -> &[(i64, i64)] {
        &self.shape
    }

    /// The weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// How full the node would be, by the line: 0..=100. A resource that the node does not have is left out.
    pub fn rate(&self, pod: &Pod, node: &Node) -> i64 {
        let (mut sum, mut weights) = (0.0, 0);
        for (resource, weight) in self.weights.iter() {
            let ResourceUsage { wanted, used, total } =
                ResourceUsage::of(resource, CountedRequests::Requests, pod, node);
            if total > 0 {
                sum += self.line((wanted + used) as f64 / total as f64) * weight as f64;
                weights += weight;
            }
        }
        if weights == 0 { 0 } else { (sum / weights as f64 * 10.0).round() as i64 }
    }

    /// The line through the points, in tenths of a thousandth: utilization 0.0..=1.0 to score 0.0..=10.0.
    fn line(&self, utilization: f64) -> f64 {
        let u = utilization.clamp(0.0, 1.0) * 100.0;
        let (first, last) = (self.shape[0], self.shape[self.shape.len() - 1]);
        if u <= first.0 as f64 {
            return first.1 as f64;
        }
        for pair in self.shape.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            if u <= x1 as f64 {
                return y0 as f64 + (y1 - y0) as f64 * (u - x0 as f64) / (x1 - x0) as f64;
            }
        }
        last.1 as f64
    }
}

/// The rule.
pub struct RequestedToCapacityRatio(pub RatioConfig);

impl Plugin for RequestedToCapacityRatio {
    fn name(&self) -> &'static str {
        "RequestedToCapacityRatio"
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl Score for RequestedToCapacityRatio {
    fn score(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> i64 {
        self.0.rate(pod, node)
    }

    fn is_absolute(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_runs_through_every_point_and_is_flat_outside() {
        let config = RatioConfig::new(vec![(20, 2), (50, 10), (80, 0)], vec![]).unwrap();
        for (u, score) in [(0.0, 2.0), (0.2, 2.0), (0.35, 6.0), (0.5, 10.0), (0.65, 5.0), (0.8, 0.0), (2.0, 0.0)] {
            assert!((config.line(u) - score).abs() < 1e-9, "{u}");
        }
    }

    #[test]
    fn a_meaningless_shape_is_refused() {
        let new = |shape: &[(i64, i64)]| RatioConfig::new(shape.to_vec(), vec![]);
        assert_eq!(new(&[]), Err(RatioError::NoPoints));
        assert_eq!(new(&[(0, 0), (101, 10)]), Err(RatioError::Range(101, 10)));
        assert_eq!(new(&[(50, 0), (50, 10)]), Err(RatioError::Order(50, 50)));
        assert!(RatioConfig::new(vec![(0, 0)], vec![("cpu".into(), 0)]).is_err());
    }
}
