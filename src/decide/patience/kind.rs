//! Kinds of pods, by what they ask of a node.

/// Groups of kinds: up to one GPU, 2, 3 and 4, more. Each keeps a weight of its own, so that the many small pods do not decide
/// alone what is kept for the few large ones.
pub const GROUPS: usize = 4;

/// What pods of one kind ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKind {
    /// Number of GPUs, at least one.
    pub gpus: u32,
    /// Percent of each, 1 to 100.
    pub share: u8,
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes of the node's memory.
    pub memory: i64,
    /// Which nodes: the number of a selector, 0 for every node.
    pub selector: u16,
}

impl PodKind {
    /// GPUs in all.
    pub fn demand(&self) -> f64 {
        f64::from(self.gpus) * f64::from(self.share) / 100.0
    }

    /// Its place among [`GROUPS`].
    pub fn group(&self) -> usize {
        match self.gpus.saturating_mul(self.share.into()) {
            0..=100 => 0,
            101..=200 => 1,
            201..=400 => 2,
            _ => 3,
        }
    }
}
