//! Taking a mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a mutex, also after a panic elsewhere: every state here is valid between two statements.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
