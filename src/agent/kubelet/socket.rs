//! Names of the plugin's sockets in the kubelet's directory.

/// Longest file name of a plugin's socket.
pub const SOCKET_NAME_MAX: usize = 32;
/// Longest path of a Unix socket that the kernel takes.
pub const SOCKET_PATH_MAX: usize = 107;
