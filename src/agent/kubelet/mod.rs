//! The kubelet's side of the daemon: sockets, the five calls, registration and its renewal.

pub mod socket;

pub use socket::{SOCKET_NAME_MAX, SOCKET_PATH_MAX};
