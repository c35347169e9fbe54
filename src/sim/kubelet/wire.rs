//! gRPC over Unix sockets as a kubelet speaks it, and gRPC errors as Go prints them.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::error::{KubeletError, check_socket_path};

/// Dials a plugin's socket. `:authority` is `localhost`, as the kubelet's.
pub async fn dial(socket: PathBuf, timeout: Duration) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_timeout(timeout).connect_with_connector(connector).await
}

/// Binds a socket, replacing what lies at its path.
pub fn listen(path: &Path) -> Result<UnixListener, KubeletError> {
    check_socket_path(path)?;
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(KubeletError::io("remove", path)(error));
    }
    UnixListener::bind(path).map_err(KubeletError::io("listen on", path))
}

/// Removes every socket in a directory, as a kubelet does when it starts, except the one named `keep`. Returns their names.
pub fn remove_sockets(dir: &Path, keep: Option<&str>) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_socket() && keep != Some(name.as_str()) {
            std::fs::remove_file(entry.path())?;
            removed.push(name);
        }
    }
    removed.sort();
    Ok(removed)
}

/// A status as Go's gRPC prints it. A connection that broke is `Unavailable` there, whatever its cause.
pub fn go_status(status: &Status) -> String {
    use std::error::Error as _;
    let broken =
        status.source().is_some() && matches!(status.code(), Code::Unknown | Code::Unavailable | Code::Cancelled);
    if broken {
        return "rpc error: code = Unavailable desc = error reading from server: EOF".to_owned();
    }
    let code = match status.code() {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_error_reads_as_in_go() {
        let status = Status::failed_precondition("recorder: no assignment for this pod");
        assert_eq!(
            go_status(&status),
            "rpc error: code = FailedPrecondition desc = recorder: no assignment for this pod"
        );
        assert_eq!(go_status(&Status::cancelled("x")), "rpc error: code = Canceled desc = x");
    }

    #[test]
    fn only_sockets_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = std::os::unix::net::UnixListener::bind(dir.path().join("a.sock")).unwrap();
        std::fs::write(dir.path().join("kubelet_internal_checkpoint"), "{}").unwrap();
        assert_eq!(remove_sockets(dir.path(), Some("a.sock")).unwrap(), [""; 0]);
        assert_eq!(remove_sockets(dir.path(), None).unwrap(), ["a.sock"]);
        assert!(dir.path().join("kubelet_internal_checkpoint").exists());
        drop(socket);
    }
}
