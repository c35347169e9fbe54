//! What holds GPU shares to their limits on this node: whether it works, and what a container gets of it.
//!
//! HAMi-core is a library that the loader puts into every process of the container. Below `--hami-core-dir`, beside the library and the
//! loader's list, stand a directory for each container that has a share, and one lock for all of them:
//!
//! ```text
//! libvgpu.so                    → /usr/local/vgpu/libvgpu.so    read-only
//! ld.so.preload                 → /etc/ld.so.preload            read-only
//! baton/containers/<uid>_<name> → /usr/local/vgpu/cache         what the container's processes have of the GPUs
//! baton/vgpulock                → /tmp/vgpulock                 taken while a process starts, as HAMi's own plugin has it; HAMi-core
//!                                                               before 2026 makes a file there, and removes one that another left
//! ```

use std::fmt::Write as _;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::cdi::{Device, Edits, Mount};
use super::options::AgentOptions;
use baton_contract::ShareIsolation;
use baton_contract::deviceplugin::{self, ContainerAllocateResponse};
use baton_decide::shares::{ShareOffer, place};

/// CDI kind of what a share needs beside its GPU.
pub const SHARE_KIND: &str = "baton.io/share";
/// Its only name.
const HAMI_CORE: &str = "hami-core";
/// The file that the container's processes count in.
const CACHE_FILE: &str = "vgpu.cache";
/// A container's file has about a megabyte: with less room than this, the next one may have none.
const ROOM: u64 = 16 << 20;
/// Largest list of the loader that is read, and largest library.
const MAX_LIST: u64 = 4096;
const MAX_LIBRARY: u64 = 64 << 20;
/// Where NVIDIA's control daemon listens, below the MPS root.
const MPS_CONTROL: &str = "nvidia.com/gpu/pipe/control";

/// Looks again and again whether limits can be enforced.
pub struct ShareGuard {
    options: Arc<AgentOptions>,
    /// The library that was judged last, and the judgement: it is read again when it is another file.
    judged: Option<(Stamp, Result<Library, String>)>,
}

type Stamp = (u64, u64, u64, i64, i64);

/// What is known of the library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Where it is.
    pub path: PathBuf,
    /// Its checksum.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

impl ShareGuard {
    /// By `options`.
    pub fn new(options: Arc<AgentOptions>) -> Self {
        Self { options, judged: None }
    }

    /// What is offered now.
    pub fn look(&mut self) -> ShareOffer {
        let isolation = self.options.share_isolation;
        let works = match isolation {
            ShareIsolation::None => Ok(()),
            ShareIsolation::HamiCore => self.hami_core(),
            ShareIsolation::Mps => mps_answers(&self.options),
        };
        ShareOffer { isolation, unavailable: works.err().map(Into::into) }
    }

    fn hami_core(&mut self) -> Result<(), String> {
        let path = self.options.hami_core_dir.join("libvgpu.so");
        let meta = readable(&self.options, &path)?;
        // Not that of the content's last change, which a copy may keep.
        let stamp = (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec());
        if self.judged.as_ref().is_none_or(|(of, _)| *of != stamp) {
            let library = library(&self.options);
            if let Ok(Library { sha256, .. }) = &library {
                tracing::info!(library = %path.display(), sha256, "HAMi-core limits GPU shares");
            }
            self.judged = Some((stamp, library));
        }
        if let Some((_, Err(why))) = &self.judged {
            return Err(why.clone());
        }
        list(&self.options)?;
        let unmade = |error| format!("{} cannot be made: {error}", containers(&self.options).display());
        make(&self.options).map_err(unmade)?;
        has_room(&self.options)
    }
}

/// How a container with a share starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareStart {
    /// None of its processes runs.
    Anew,
    /// Some may run, and what they count is theirs.
    Beside,
}

/// Whether a container with a share may start now. What its answer mounts has to be there: where a runtime makes a directory of a
/// source that is missing, as containerd does, the loader skips that, and the container would run without limits. What its processes
/// counted when it ran before goes, where it begins anew.
pub fn may_start(options: &AgentOptions, uid: &str, container: &str, start: ShareStart) -> Result<(), String> {
    match options.share_isolation {
        ShareIsolation::None => Ok(()),
        ShareIsolation::Mps => mps_answers(options),
        ShareIsolation::HamiCore => {
            readable(options, &options.hami_core_dir.join("libvgpu.so"))?;
            list(options)?;
            let own = make_own(options, uid, container)?;
            match start {
                ShareStart::Anew => forget_count(&own),
                ShareStart::Beside => Ok(()),
            }
        }
    }
}

/// The library, if a container can load it and it is the wanted one.
fn library(options: &AgentOptions) -> Result<Library, String> {
    let path = options.hami_core_dir.join("libvgpu.so");
    let shown = path.display();
    let bytes = readable(options, &path)?.len();
    if bytes > MAX_LIBRARY {
        return Err(format!("{shown} has {bytes} bytes, which no HAMi-core has"));
    }
    let content = std::fs::read(&path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    if !is_of_this_machine(&content) {
        let why = "is no 64-bit library for this machine's processor, so no process would load it";
        return Err(format!("{shown} {why}; put HAMi-core's libvgpu.so for {} there", std::env::consts::ARCH));
    }
    let hash = digest(&SHA256, &content);
    let sha256: String = hash.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let wanted = &options.hami_core_sha256;
    if !wanted.is_empty() && !wanted.eq_ignore_ascii_case(&sha256) {
        return Err(format!("{shown} is another version: its SHA-256 is {sha256}, --hami-core-sha256 says {wanted}"));
    }
    Ok(Library { path, sha256, bytes })
}

/// ELF, 64 bits, of the processor that this program was built for.
fn is_of_this_machine(content: &[u8]) -> bool {
    let own: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let machine = content.get(18..20).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    content.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]) && machine == Some(own)
}

/// The loader skips what the process may not read, and the process runs without limits.
fn readable(options: &AgentOptions, path: &Path) -> Result<Metadata, String> {
    let shown = path.display();
    let meta = std::fs::metadata(path)
        .map_err(|error| format!("{shown} cannot be found: {error}; install HAMi-core there"))?;
    if !meta.is_file() || meta.permissions().mode() & 0o444 != 0o444 {
        return Err(format!(
            "{shown} is no file that every user can read, so processes would run without it: chmod a+r {shown}"
        ));
    }
    labelled(options, path, &["container_file_t", "container_ro_file_t"])?;
    Ok(meta)
}

/// Where SELinux enforces its rules, containers reach a file of such a type alone; the runtime gives a mounted file none.
fn labelled(options: &AgentOptions, path: &Path, types: &[&str]) -> Result<(), String> {
    let enforces = std::fs::read_to_string(options.paths.sysfs_root.join("fs/selinux/enforce"));
    if enforces.is_ok_and(|text| text.trim() == "1") {
        let mut label = [0; 256];
        let length = rustix::fs::getxattr(path, "security.selinux", &mut label).unwrap_or(0);
        let label = String::from_utf8_lossy(&label[..length]);
        let own = label.split(':').nth(2).unwrap_or("none");
        if !types.contains(&own) {
            let (shown, dir) = (path.display(), options.hami_core_dir.display());
            return Err(format!(
                "{shown} has the SELinux type {own}, which containers may not reach, so processes would run without limits: \
                 chcon -R -t container_file_t {dir}"
            ));
        }
    }
    Ok(())
}

fn list(options: &AgentOptions) -> Result<(), String> {
    let path = &options.hami_core_dir.join("ld.so.preload");
    let shown = path.display();
    let long = readable(options, path)?.len() > MAX_LIST;
    let text = if long { String::new() } else { std::fs::read_to_string(path).unwrap_or_default() };
    let libraries: Vec<&str> = text.split([' ', '\t', '\n', ':']).filter(|word| !word.is_empty()).collect();
    if libraries != [place::LIBRARY] {
        return Err(format!(
            "{shown} must name {} and nothing else: it is every process's /etc/ld.so.preload",
            place::LIBRARY
        ));
    }
    Ok(())
}

/// There is room for one more container's file.
fn has_room(options: &AgentOptions) -> Result<(), String> {
    let (root, dir) = (root(options), &options.hami_core_dir);
    let below = if root.exists() { &root } else { dir };
    let refused = |error: &dyn std::fmt::Display| format!("{} cannot be written: {error}", below.display());
    labelled(options, below, &["container_file_t"])?;
    rustix::fs::access(below, rustix::fs::Access::WRITE_OK).map_err(|error| refused(&error))?;
    let disk = rustix::fs::statvfs(below).map_err(|error| refused(&error))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    // A filesystem without a fixed number of files says that it has none.
    if free < ROOM || (disk.f_files > 0 && disk.f_ffree == 0) {
        // Without what is free: the text would be another one at each look, and be written each time.
        return Err(refused(&format!("less than {} MiB are free, or no file; free some", ROOM >> 20)));
    }
    Ok(())
}

/// The library, where it limits shares, for people; changes nothing.
pub fn works(options: &AgentOptions) -> Result<Library, String> {
    let library = library(options)?;
    list(options)?;
    has_room(options)?;
    Ok(library)
}

fn root(options: &AgentOptions) -> PathBuf {
    options.hami_core_dir.join("baton")
}

fn containers(options: &AgentOptions) -> PathBuf {
    root(options).join("containers")
}

fn lock(options: &AgentOptions) -> PathBuf {
    root(options).join("vgpulock")
}

/// Containers run as any user: what is theirs, every user can write. On the node only root comes there, so that no file which a
/// container's root has made set-uid is in anybody's reach.
fn make(options: &AgentOptions) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(containers(options))?;
    std::fs::set_permissions(root(options), Permissions::from_mode(0o700))?;
    open_to_all(&lock(options))
}

fn open_to_all(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Whatever the umask is.
    std::fs::set_permissions(directory, Permissions::from_mode(0o777))
}

/// Somebody listens on the control daemon's address. It is not asked anything: its protocol is NVIDIA's own.
pub fn mps_answers(options: &AgentOptions) -> Result<(), String> {
    let shown = options.mps_root.join(MPS_CONTROL);
    let path = options.paths.of_host(&shown);
    let listens = match std::fs::metadata(&path) {
        Err(error) => Err(error),
        Ok(meta) if meta.file_type().is_fifo() => {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, Mode::empty()).map(drop).map_err(io::Error::from)
        }
        Ok(_) => reach(&path, SocketType::STREAM).or_else(|_| reach(&path, SocketType::SEQPACKET)),
    };
    listens.map_err(|error| {
        format!(
            "the MPS control daemon does not answer at {}: {error}; start it for nvidia.com/gpu, or look at its log",
            shown.display()
        )
    })?;
    passable(&shown, options)
}

/// The server of a pod's user, and its processes, come to `pipe` as that user.
fn passable(pipe: &Path, options: &AgentOptions) -> Result<(), String> {
    let is_closed = |directory: &&Path| {
        let seen = std::fs::metadata(options.paths.of_host(directory));
        seen.is_ok_and(|seen| seen.permissions().mode() & 0o001 == 0)
    };
    pipe.ancestors().skip(1).find(is_closed).map_or(Ok(()), |directory| {
        let shown = directory.display();
        Err(format!("{shown} lets no other user pass, so MPS serves only root's processes: chmod o+x {shown}"))
    })
}

/// Without waiting: a daemon that takes nobody in has a full queue.
fn reach(path: &Path, of: SocketType) -> io::Result<()> {
    let socket = socket_with(AddressFamily::UNIX, of, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?)?)
}

/// What of HAMi-core is the same for every container: as CDI names it.
pub fn cdi_device(options: &AgentOptions) -> Option<Device> {
    let mount = |(container_path, host_path, access): (&str, PathBuf, &str)| Mount {
        host_path,
        container_path: container_path.into(),
        options: [access, "nosuid", "nodev", "bind"].map(str::to_owned).into(),
    };
    let mounts =
        common(options).into_iter().map(|(at, from, read_only)| (at, from, if read_only { "ro" } else { "rw" }));
    let container_edits = Edits { mounts: mounts.map(mount).collect(), ..Edits::default() };
    (options.share_isolation == ShareIsolation::HamiCore)
        .then(|| Device { name: HAMI_CORE.to_owned(), container_edits })
}

/// In the container, on the host, read-only.
fn common(options: &AgentOptions) -> [(&'static str, PathBuf, bool); 3] {
    let below = |name: &str| options.hami_core_dir.join(name);
    [
        (place::LIBRARY, below("libvgpu.so"), true),
        (place::PRELOAD, below("ld.so.preload"), true),
        (place::LOCK, lock(options), false),
    ]
}

/// The CDI name of what is the same for every container.
pub fn cdi_name() -> String {
    format!("{SHARE_KIND}={HAMI_CORE}")
}

/// Mounts what is the same for every container, for runtimes without CDI.
pub fn mount_common(answer: &mut ContainerAllocateResponse, options: &AgentOptions) {
    for (container_path, host_path, read_only) in common(options) {
        answer.mounts.push(deviceplugin::Mount { read_only, ..writable_mount(container_path, &host_path) });
    }
}

fn writable_mount(container_path: &str, host_path: &Path) -> deviceplugin::Mount {
    let (container_path, host_path) = (container_path.to_owned(), host_path.to_string_lossy().into_owned());
    deviceplugin::Mount { container_path, host_path, read_only: false }
}

/// Gives a container the directory that its processes count in. It stays for the pod's life: the kubelet says the same answer again
/// when the container starts anew.
pub fn mount_own(
    answer: &mut ContainerAllocateResponse,
    options: &AgentOptions,
    uid: &str,
    container: &str,
) -> Result<(), String> {
    let directory = make_own(options, uid, container)?;
    let file = Path::new(place::CACHE).join(CACHE_FILE).to_string_lossy().into_owned();
    answer.envs.insert("CUDA_DEVICE_MEMORY_SHARED_CACHE".to_owned(), file);
    answer.mounts.push(writable_mount(place::CACHE, &directory));
    Ok(())
}

fn make_own(options: &AgentOptions, uid: &str, container: &str) -> Result<PathBuf, String> {
    let own = name(uid, container).ok_or_else(|| format!("pod uid {uid:?} is no name of a directory"))?;
    let directory = containers(options).join(own);
    let made = make(options).and_then(|()| open_to_all(&directory));
    made.map_err(|error| format!("{} cannot be made: {error}; free space in --hami-core-dir", directory.display()))?;
    Ok(directory)
}

/// HAMi-core's lock lies in the file: a process that was killed with it holds it for ever, and the container's next processes would wait
/// for that. The tenant writes there: no link is followed, and a directory in the place of the file becomes one that [`left_behind`] finds,
/// for its removal takes as long as the tenant likes.
fn forget_count(own: &Path) -> Result<(), String> {
    let file = own.join(CACHE_FILE);
    let gone = match std::fs::remove_file(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => std::fs::rename(&file, own.with_extension("old")),
        removed => removed,
    };
    gone.map_err(|error| format!("{} cannot be removed: {error}", file.display()))
}

/// The API server has validated both; a static pod's uid may be anything.
fn name(uid: &str, container: &str) -> Option<String> {
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (plain(uid) && plain(container)).then(|| format!("{uid}_{container}"))
}

/// The directories of containers that `holds` does not know, by pod uid and name.
pub fn left_behind(options: &AgentOptions, holds: impl Fn(&str, &str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(containers(options)).into_iter().flatten().flatten();
    let left = entries.filter(|entry| {
        entry
            .file_name()
            .to_str()
            .and_then(|name| name.split_once('_'))
            .is_some_and(|(uid, container)| !holds(uid, container))
    });
    left.map(|entry| entry.path()).collect()
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
