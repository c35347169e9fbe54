//! `Aftermath`: what a grant leaves of the pool that it was chosen on. Nodes of one make in one state come out alike, so it is
//! worked out once for all of them, and they share their accounts from then on.

use std::sync::OnceLock;

use super::accounts::Accounts;
use super::grant::Grant;
use super::layout::PoolState;
use super::pool::{NodePool, PoolError};
use crate::contract::Shared;

/// What is taken after a grant, beside the state before it; kept beside that one grant. Nothing until it is taken for the first
/// time.
#[derive(Debug, Clone, Default)]
pub struct Aftermath(OnceLock<(PoolState, Shared<Accounts>)>);

/// It follows from the grant beside it and says nothing of its own.
impl PartialEq for Aftermath {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Aftermath {}

impl NodePool {
    /// [`NodePool::take`], looked up where `grant` was taken from a pool in this very state before.
    pub fn take_as_before(&mut self, grant: &Grant, known: &Aftermath) -> Result<(), PoolError> {
        if let Some((before, after)) = known.0.get()
            && before.is_of(self)
        {
            debug_assert!(
                {
                    let mut pool = self.clone();
                    let taken = pool.take(grant);
                    taken.is_ok() && pool.accounts() == after && pool.summary() == &after.summary
                },
                "a grant leaves the same of equal pools"
            );
            self.set_accounts(after.clone());
            return Ok(());
        }
        let before = PoolState::of(self);
        self.take(grant)?;
        // One state is remembered, the first one: a grant is chosen on one.
        let _ = known.0.set((before, self.accounts().clone()));
        Ok(())
    }
}
