//! Why a simulated kubelet cannot start.

use std::path::{Path, PathBuf};

/// Longest path of a Unix socket, without the final NUL.
const LONGEST_SOCKET_PATH: usize = 107;

/// Why a simulated kubelet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The directory lies too deep for a Unix socket.
    #[error("socket path {} has {} bytes, Unix sockets allow {LONGEST_SOCKET_PATH}: choose a shorter root directory", .0.display(), .0.as_os_str().len())]
    SocketPath(PathBuf),
    /// A file or socket could not be made.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried, e.g. `listen on`.
        doing: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

impl KubeletError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

/// Checks a socket path before anything is bound to it.
pub(super) fn check_socket_path(path: &Path) -> Result<(), KubeletError> {
    if path.as_os_str().len() > LONGEST_SOCKET_PATH { Err(KubeletError::SocketPath(path.to_owned())) } else { Ok(()) }
}
