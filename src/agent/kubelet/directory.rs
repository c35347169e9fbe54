//! Watches the kubelet's directory: by inotify for speed, and by looking every few seconds because inotify can miss what
//! happens behind a symlink, a bind mount or a directory that was created again.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::directory_watch::{DirectoryWatch, is_removed};
use baton_runtime::{clock, vital};

/// File name of the kubelet's registration socket.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// How often an absent directory is looked for.
const ABSENT: Duration = Duration::from_secs(1);

/// Which socket the kubelet has: another value means another kubelet, the same one started again, or only another mode or label of its
/// file. The time of that cannot be left out: a socket that is made again may have the number of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The directory as of the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryState {
    /// The kubelet's socket; links are followed.
    pub kubelet: Option<SocketIdentity>,
    /// The directory was removed under its mount: no kubelet comes to it any more.
    pub removed: bool,
    /// Counts what happened in the directory, so that owners of other files look after them.
    pub happenings: u64,
}

/// Identity of the socket at `path`, through links.
pub fn identity(path: &Path) -> Option<SocketIdentity> {
    let meta = std::fs::metadata(path).ok()?;
    Some(SocketIdentity { device: meta.dev(), inode: meta.ino(), changed: (meta.ctime(), meta.ctime_nsec()) })
}

/// Looks at least every `period` until `stop`. The receiver's value changes when something happened in the directory.
pub fn watch(directory: PathBuf, period: Duration, stop: CancellationToken) -> watch::Receiver<DirectoryState> {
    let (sender, receiver) = watch::channel(look(&directory, 0));
    vital::spawn("device-plugins directory", async move {
        tokio::select! {
            () = run(&directory, period, &sender) => {}
            () = stop.cancelled() => {}
        }
    });
    receiver
}

async fn run(directory: &Path, period: Duration, sender: &watch::Sender<DirectoryState>) {
    let mut watcher = DirectoryWatch::new(vec![directory.to_owned()]);
    let mut noticed = false;
    loop {
        // Attached first, looked at second: nothing falls between.
        let present = watcher.attach();
        sender.send_if_modified(|seen| {
            let now = look(directory, seen.happenings + u64::from(noticed));
            let changed = now != *seen;
            *seen = now;
            changed
        });
        let again = if present { period } else { ABSENT.min(period) };
        noticed = tokio::select! {
            () = watcher.happening(|_| true) => true,
            () = tokio::time::sleep(clock::until_tick(again)) => false,
        };
    }
}

fn look(directory: &Path, happenings: u64) -> DirectoryState {
    DirectoryState { kubelet: identity(&directory.join(KUBELET_SOCKET)), removed: is_removed(directory), happenings }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn changed(
        seen: &mut watch::Receiver<DirectoryState>,
        wanted: impl Fn(&DirectoryState) -> bool,
    ) -> DirectoryState {
        let found = tokio::time::timeout(Duration::from_secs(5), seen.wait_for(|s| wanted(s)));
        *found.await.expect("the change is noticed in time").unwrap()
    }

    #[tokio::test]
    async fn a_socket_that_comes_goes_or_is_replaced_behind_a_link_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("device-plugins");
        let stop = CancellationToken::new();
        let mut seen = watch(dir.clone(), Duration::from_millis(50), stop.clone());
        assert_eq!(seen.borrow().kubelet, None);
        std::fs::create_dir(&dir).unwrap();
        let real = root.path().join("real.sock");
        std::fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, dir.join(KUBELET_SOCKET)).unwrap();
        let first = changed(&mut seen, |s| s.kubelet.is_some()).await;
        std::fs::rename(&real, root.path().join("old.sock")).unwrap();
        std::fs::write(&real, "").unwrap();
        changed(&mut seen, |s| s.kubelet.is_some() && s.kubelet != first.kubelet).await;
        std::fs::remove_file(dir.join(KUBELET_SOCKET)).unwrap();
        changed(&mut seen, |s| s.kubelet.is_none()).await;
        stop.cancel();
    }

    #[tokio::test]
    async fn a_directory_removed_under_its_mount_and_made_again_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("device-plugins");
        std::fs::create_dir(&directory).unwrap();
        // As a mount in a container does, this names the directory and not its path.
        let held = std::fs::File::open(&directory).unwrap();
        let mounted = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held)));
        let stop = CancellationToken::new();
        let mut seen = watch(mounted, Duration::from_millis(50), stop.clone());
        assert!(!seen.borrow().removed);
        std::fs::remove_dir(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        changed(&mut seen, |s| s.removed).await;
        stop.cancel();
    }

    #[tokio::test]
    async fn what_happens_to_other_files_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let mut seen = watch(dir.path().to_owned(), Duration::from_secs(3600), stop.clone());
        tokio::task::yield_now().await;
        std::fs::write(dir.path().join("baton-1.sock"), "").unwrap();
        changed(&mut seen, |s| s.happenings > 0).await;
        stop.cancel();
    }
}
