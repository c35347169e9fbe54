//! Pools in the same state: a choice and what it leaves are worked out once for all of them.

use std::sync::OnceLock;

use super::accounts::Accounts;
use super::grant::Grant;
use super::inventory::Layout;
use super::pool::{NodePool, PoolError};
use baton_contract::Shared;

/// All that a choice reads of a pool: the layout and what is taken.
#[derive(Debug, Clone)]
pub struct PoolState {
    layout: Shared<Layout>,
    accounts: Shared<Accounts>,
}

impl PoolState {
    /// Of this pool, now.
    pub fn of(pool: &NodePool) -> Self {
        Self { layout: pool.devices().layout().clone(), accounts: pool.accounts().clone() }
    }

    /// Every choice on `pool` is what it was on the pool that this is of. A layout that is not stored once is not recognised,
    /// which costs a choice and changes none.
    pub fn is_of(&self, pool: &NodePool) -> bool {
        self.layout.is_same(pool.devices().layout()) && self.accounts == *pool.accounts()
    }
}

/// What is taken after a grant, and the state before it; kept beside that one grant. Empty until the grant is taken for the first
/// time. Nodes of one make in one state come out alike, and share their accounts from then on.
#[derive(Debug, Clone, Default)]
pub struct AfterGrant(OnceLock<(PoolState, Shared<Accounts>)>);

/// It follows from the grant beside it and says nothing of its own.
impl PartialEq for AfterGrant {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AfterGrant {}

impl NodePool {
    /// [`NodePool::take`], looked up where `grant` was taken from a pool in this very state before.
    pub fn take_as_before(&mut self, grant: &Grant, known: &AfterGrant) -> Result<(), PoolError> {
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
