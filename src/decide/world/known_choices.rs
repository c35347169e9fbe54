//! Choices that were made before: nodes of one make on which the same is taken give the same answer to the same request.

use std::sync::Arc;

use crate::decide::devices::{PodDeviceRequest, PoolState};

use super::devices::{DeviceChoice, NoChoice, Stock};

/// A choice, or why there is none.
pub type Chosen = Result<Arc<DeviceChoice>, NoChoice>;

/// Choices for **one** shape of request; whoever keeps them keeps them apart by shape.
#[derive(Debug, Default)]
pub struct KnownChoices {
    /// On shelves by the lowest bits of the state's fingerprint. Nothing is ever read in their order.
    shelves: Vec<Vec<(PoolState, Chosen)>>,
    count: usize,
}

impl KnownChoices {
    /// Most choices that are kept; then all are made afresh.
    pub const MOST: usize = 1024;
    /// A power of two, so that few states share a shelf.
    const SHELVES: usize = 1024;

    /// [`Stock::choose`], looked up where it was asked before.
    pub fn choose(&mut self, stock: &Stock, request: &PodDeviceRequest) -> Chosen {
        let pool = stock.pool();
        if self.count >= Self::MOST {
            *self = Self::default();
        }
        if self.shelves.is_empty() {
            self.shelves.resize_with(Self::SHELVES, Vec::new);
        }
        let shelf = &mut self.shelves[pool.fingerprint() as usize % Self::SHELVES];
        if let Some((_, chosen)) = shelf.iter().find(|(state, _)| state.is_of(pool)) {
            debug_assert!(
                *chosen == stock.choose(request).map(Arc::new),
                "equal nodes give equal choices: {chosen:?}, {:?}",
                stock.choose(request)
            );
            return chosen.clone();
        }
        let chosen = stock.choose(request).map(Arc::new);
        self.count += 1;
        shelf.push((PoolState::of(pool), chosen.clone()));
        chosen
    }
}
