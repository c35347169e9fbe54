//! The plugin's own sockets: private from their first moment, and open to root and the daemon's own user only.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::Connected;

use super::directory::{SocketIdentity, identity};

/// Longest file name of a plugin's socket.
pub const SOCKET_NAME_MAX: usize = 31;
/// Longest path of a Unix socket that the kernel takes.
pub const SOCKET_PATH_MAX: usize = 107;
/// Connections of one socket at a time. The kubelet holds one or two; a further one waits.
pub(super) const CONNECTIONS: u32 = 16;
/// Connections that the kernel holds for us.
const BACKLOG: i32 = 64;
const PREFIX: &str = "baton-";
const SUFFIX: &str = ".sock";

/// File names of one plugin's sockets: `baton-5f1c2a90-3-0.sock` for the plugin number 3 of one start of the daemon. Another start has
/// other names, so that the kubelet's calls to a daemon that is gone never reach its successor. Each socket of a start has another last
/// number, so that the kubelet never takes a registration for one that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketNames {
    start: u32,
    index: usize,
    generation: u16,
}

impl SocketNames {
    /// Those of the plugin number `index`.
    pub fn new(start: u32, index: usize) -> Self {
        Self { start, index, generation: 0 }
    }

    /// The name of the newest socket.
    pub fn newest(&self) -> String {
        format!("{PREFIX}{:08x}-{}-{}{SUFFIX}", self.start, self.index, self.generation)
    }

    /// The next socket has the next name. They come again after so many that no kubelet has the first one any more.
    pub fn advance(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

/// A listener at `path` that only this user may open. An old file there is replaced.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // No process can connect between bind and listen: the mode is right before the first connection.
    rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}

/// Removes sockets of earlier starts, as a killed daemon leaves them. Files that are not ours are not touched.
pub fn remove_stale(directory: &Path, start: u32) {
    let own = format!("{PREFIX}{start:08x}-");
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let stale = name.to_str().is_some_and(|name| is_ours(name) && !name.starts_with(&own));
        // A socket that still answers belongs to a process that runs.
        if stale && std::os::unix::net::UnixStream::connect(entry.path()).is_err() {
            let removed = std::fs::remove_file(entry.path());
            tracing::info!(socket = %entry.path().display(), ok = removed.is_ok(), "removed a dead daemon's socket");
        }
    }
}

/// The names of this version, and those of versions that counted no generations.
fn is_ours(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)).and_then(|r| r.split_once('-'));
    parts.is_some_and(|(start, numbers)| {
        let is_number = |number: &str| number.bytes().all(|b| b.is_ascii_digit());
        start.len() == 8 && start.bytes().all(|b| b.is_ascii_hexdigit()) && numbers.split('-').all(is_number)
    })
}

/// Removes a socket file when dropped. No other socket has its name, so what lies there is this one, also when its mode or its label was
/// changed.
#[derive(Debug)]
pub struct Unlink {
    path: PathBuf,
    identity: Option<SocketIdentity>,
}

impl Unlink {
    /// For the file that is at `path` now.
    pub fn new(path: PathBuf) -> Self {
        Self { identity: identity(&path), path }
    }

    /// The file is still the one that was there, as it was.
    pub fn is_in_place(&self) -> bool {
        self.identity.is_some() && identity(&self.path) == self.identity
    }
}

impl Drop for Unlink {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Connections of peers that may call: root, or the user this daemon runs as.
pub struct Incoming {
    listener: UnixListener,
    permits: Arc<Semaphore>,
    own_uid: u32,
}

impl Incoming {
    /// Accepts from `listener`.
    pub fn new(listener: UnixListener) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        Self { listener, permits: Arc::new(Semaphore::new(CONNECTIONS as usize)), own_uid }
    }

    /// One for each connection: all of them are free while no peer is connected.
    pub fn permits(&self) -> Arc<Semaphore> {
        self.permits.clone()
    }

    /// The connections, as tonic wants them. A failing accept pauses and goes on; the stream never ends.
    pub fn into_stream(self) -> impl futures::Stream<Item = io::Result<PeerConnection>> + Send {
        futures::stream::unfold(self, |mut this| async move {
            let peer = this.next().await;
            Some((Ok(peer), this))
        })
    }

    async fn next(&mut self) -> PeerConnection {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if !self.is_allowed(&stream) {
                        continue;
                    }
                    // Other peers are turned away first, so that they cannot use up the permits.
                    if let Ok(permit) = self.permits.clone().acquire_owned().await {
                        return PeerConnection { stream, connection: Connection::default(), _permit: permit };
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn is_allowed(&self, stream: &UnixStream) -> bool {
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == 0 || peer.uid() == self.own_uid => true,
            Ok(peer) => {
                tracing::warn!(uid = peer.uid(), pid = peer.pid(), "a process that is not the kubelet was turned away");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "a process without credentials was turned away");
                false
            }
        }
    }
}

/// A connection of an allowed peer; its permit is free again when it ends.
pub struct PeerConnection {
    stream: UnixStream,
    connection: Connection,
    _permit: OwnedSemaphorePermit,
}

/// What is known of a connection. Every request on it carries this.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    options: Arc<AtomicBool>,
}

impl Connection {
    /// The peer asked for the plugin's options.
    pub fn asks_for_options(&self) {
        self.options.store(true, Ordering::Release);
    }

    /// It did so before.
    pub fn asked_for_options(&self) -> bool {
        self.options.load(Ordering::Acquire)
    }
}

impl Connected for PeerConnection {
    type ConnectInfo = Connection;
    fn connect_info(&self) -> Connection {
        self.connection.clone()
    }
}

impl AsyncRead for PeerConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for PeerConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_socket_has_another_name_and_none_is_too_long() {
        let mut names = SocketNames::new(0x5f1c_2a90, 3);
        assert_eq!(names.newest(), "baton-5f1c2a90-3-0.sock");
        names.advance();
        assert_eq!(names.newest(), "baton-5f1c2a90-3-1.sock");
        let longest = SocketNames { start: u32::MAX, index: 99_999, generation: u16::MAX };
        assert_eq!(longest.newest().len(), SOCKET_NAME_MAX);
    }

    #[test]
    fn a_socket_goes_with_its_server_whatever_became_of_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SocketNames::new(1, 0).newest());
        std::fs::write(&path, "").unwrap();
        let file = Unlink::new(path.clone());
        assert!(file.is_in_place());
        // A file system's clock has ticks.
        let began = baton_runtime::clock::mono();
        while file.is_in_place() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
            assert!(
                baton_runtime::clock::mono().saturating_sub(began) < std::time::Duration::from_secs(10),
                "its time stays"
            );
        }
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_is_private_and_replaces_an_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SocketNames::new(0x5f1c_2a90, 3).newest());
        std::fs::write(&path, "old").unwrap();
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let client = UnixStream::connect(&path).await.unwrap();
        let mut incoming = Incoming::new(listener);
        drop(incoming.next().await);
        drop(client);
    }

    #[tokio::test]
    async fn only_dead_sockets_of_earlier_starts_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let alive = dir.path().join(SocketNames::new(1, 0).newest());
        let _listener = listen(&alive).unwrap();
        let dead = dir.path().join(SocketNames::new(1, 1).newest());
        // As versions left it that counted no generations.
        let older = dir.path().join("baton-00000001-2.sock");
        drop(listen(&dead).unwrap());
        drop(listen(&older).unwrap());
        for other in ["kubelet.sock", "baton-x.sock", "nvidia-gpu.sock", "baton-00000002-0-0.sock"] {
            std::fs::write(dir.path().join(other), "").unwrap();
        }
        remove_stale(dir.path(), 2);
        assert!(alive.exists() && !dead.exists() && !older.exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);
    }
}
