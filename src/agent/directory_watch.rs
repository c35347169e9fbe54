//! An inotify watch on directories that come, go, and are made again.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};

/// Bytes for inotify events; a fuller queue comes in several reads.
const BUFFER: usize = 2048;

/// Device and inode of a directory.
type DirectoryId = (u64, u64);

/// Identity of the directory that exists now.
fn there(directory: &Path) -> Option<DirectoryId> {
    std::fs::metadata(directory).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The directory was removed on the node, and this process, in a container, has the removed one mounted: whatever is made under its
/// name, this process sees no more of it. Its next start mounts what is there then.
pub fn is_removed(directory: &Path) -> bool {
    std::fs::metadata(directory).is_ok_and(|directory| directory.nlink() == 0)
}

/// One inotify instance for all of the directories: an instance is scarce, root has 128 of them on a whole node.
pub struct DirectoryWatch {
    directories: Vec<PathBuf>,
    events: Option<EventStream<Vec<u8>>>,
    /// The directories that are watched, in the same order.
    on: Vec<Option<DirectoryId>>,
}

impl DirectoryWatch {
    /// Of nothing before [`DirectoryWatch::attach`].
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, events: None, on: Vec::new() }
    }

    /// Watches the directories that exist now; `false` while none does. Must be called on a runtime.
    pub fn attach(&mut self) -> bool {
        let on: Vec<_> = self.directories.iter().map(|directory| there(directory)).collect();
        let any = on.iter().any(Option::is_some);
        if on != self.on || self.events.is_none() {
            self.events = None;
            let there = self.directories.iter().zip(&on).filter_map(|(directory, on)| on.and(Some(directory)));
            match any.then(|| open(there)).transpose() {
                Ok(events) => self.events = events,
                Err(error) => tracing::debug!(?self.directories, %error, "no inotify; polling only"),
            }
            self.on = on;
        }
        any
    }

    /// Resolves after something happened to a directory itself, or to a file in it whose name is of interest; never without a watch.
    /// Cancel-safe.
    pub async fn happening(&mut self, is_of_interest: impl Fn(&OsStr) -> bool) {
        while let Some(events) = &mut self.events {
            match events.next().await {
                Some(Ok(event)) if event.name.as_deref().is_none_or(&is_of_interest) => return,
                Some(Ok(_)) => {}
                _ => {
                    self.events = None;
                    return;
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

fn open<'a>(directories: impl Iterator<Item = &'a PathBuf>) -> std::io::Result<EventStream<Vec<u8>>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    for directory in directories {
        inotify.watches().add(directory, mask)?;
    }
    inotify.into_event_stream(vec![0; BUFFER])
}
