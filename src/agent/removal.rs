//! Removes a directory that a tenant has filled: however deep and wide it is, it costs two descriptors and no stack, and no link is followed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// What lies in directories of `directory` is lifted into `directory` itself until nothing is left.
pub fn remove(directory: &Path) -> io::Result<()> {
    let top = match open(fs::CWD, directory) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut lifted = 0;
    loop {
        let mut is_empty = true;
        each(&top, |name| {
            is_empty = false;
            if is_directory(top.as_fd(), name)? {
                let inner = open(&top, name)?;
                each(&inner, |name| {
                    if is_directory(inner.as_fd(), name)? { lift((&inner, name), &top, &mut lifted) } else { Ok(()) }
                })?;
                return match fs::unlinkat(&top, name, AtFlags::REMOVEDIR) {
                    // A listing may leave out what is there while others go: the next round has it.
                    Err(Errno::NOTEMPTY) => Ok(()),
                    done => done,
                };
            }
            Ok(())
        })?;
        if is_empty {
            return std::fs::remove_dir(directory);
        }
    }
}

fn open(at: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    fs::openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn each(of: &OwnedFd, mut see: impl FnMut(&CStr) -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    for entry in Dir::read_from(of)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            see(entry.file_name())?;
        }
    }
    Ok(())
}

/// Removes what is none.
fn is_directory(at: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
    match fs::unlinkat(at, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => Ok(true),
        done => done.map(|()| false),
    }
}

/// Under a name that is free there.
fn lift((from, name): (&OwnedFd, &CStr), to: &OwnedFd, lifted: &mut u64) -> rustix::io::Result<()> {
    loop {
        *lifted += 1;
        match fs::renameat_with(from, name, to, lifted.to_string(), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tenant_left_goes_however_deep_it_is_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join("left");
        std::fs::create_dir_all(left.join("a/b")).unwrap();
        let kept = dir.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "").unwrap();
        for link in ["link", "a/b/link"] {
            std::os::unix::fs::symlink(&kept, left.join(link)).unwrap();
        }
        // The names that directories are lifted to.
        for name in ["1", "2", "a/3"] {
            std::fs::create_dir(left.join(name)).unwrap();
        }
        let mut at = open(fs::CWD, left.as_path()).unwrap();
        for depth in 0..20_000 {
            fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open(&at, "d").unwrap();
            if depth % 1000 == 0 {
                fs::openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            }
        }
        drop(at);
        // As small as the stacks of the daemon's threads.
        let small = std::thread::Builder::new().stack_size(512 << 10);
        let gone = left.clone();
        small.spawn(move || remove(&gone)).unwrap().join().unwrap().unwrap();
        assert!(!left.exists() && kept.join("file").exists());
        remove(&left).expect("nothing is there to remove");
    }
}
