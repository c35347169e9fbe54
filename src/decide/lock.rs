//! The node lock.
