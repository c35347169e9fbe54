//! Choices that were made before: nodes of one make on which the same is taken give the same answer to the same request.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decide::alloc::{PodDeviceRequest, PoolState};

use super::devices::{DeviceChoice, NoChoice, Stock};

/// A choice, or why there is none.
pub type Chosen = Result<Arc<DeviceChoice>, NoChoice>;

/// Choices for **one** shape of request; whoever keeps them keeps them apart by shape.
#[derive(Debug, Default)]
pub struct KnownChoices {
    by_fingerprint: BTreeMap<u64, Vec<(PoolState, Chosen)>>,
    count: usize,
}

impl KnownChoices {
    /// Most choices that are kept; then all are made afresh.
    pub const MOST: usize = 1024;

    /// [`Stock::choose`], looked up where it was asked before.
    pub fn choose(&mut self, stock: &Stock, request: &PodDeviceRequest) -> Chosen {
        let pool = stock.pool();
        let fingerprint = pool.fingerprint();
        let known = self.by_fingerprint.get(&fingerprint).into_iter().flatten().find(|(state, _)| state.is_of(pool));
        if let Some((_, chosen)) = known {
            debug_assert!(
                *chosen == stock.choose(request).map(Arc::new),
                "equal nodes give equal choices: {chosen:?}, {:?}",
                stock.choose(request)
            );
            return chosen.clone();
        }
        if self.count >= Self::MOST {
            *self = Self::default();
        }
        let chosen = stock.choose(request).map(Arc::new);
        self.count += 1;
        self.by_fingerprint.entry(fingerprint).or_default().push((PoolState::of(pool), chosen.clone()));
        chosen
    }
}
