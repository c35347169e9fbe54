//! The central scheduler daemon.
