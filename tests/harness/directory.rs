//! Directories of tests. A virtual machine has thousands of small files: they are in memory where the machine allows it.

use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};
use tempfile::TempDir;

/// Fewer bytes than this may not be enough for the tests that run at once.
const ENOUGH: u64 = 1 << 30;

/// One with a short path, for the sockets in it, and from which libraries can be loaded.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let fits = statvfs(memory)
        .is_ok_and(|of| of.f_bavail * of.f_frsize >= ENOUGH && !of.f_flag.contains(StatVfsMountFlags::NOEXEC));
    let place = if fits { memory } else { Path::new("/tmp") };
    tempfile::Builder::new().prefix("bt").tempdir_in(place).expect("temporary directory")
}
