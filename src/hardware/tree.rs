//! Bounded reading below one root: sysfs, procfs and `/dev` are input, so nothing in them may make us read elsewhere,
//! block, or fill memory.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Most bytes read of any one file.
pub const MAX_FILE: usize = 64 * 1024;
/// Most entries read of any one directory.
pub const MAX_ENTRIES: usize = 16_384;

/// Most links followed for one path, as the kernel has it.
const MAX_LINKS: usize = 40;

/// A directory that everything read must lie in.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

/// Why something below a root could not be read; each names the path below the root.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The system's answer.
    #[error("{path}: {1}", path = .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// A link leads out of the root, which is named too.
    #[error("{}: leads out of {}; refused", .0.display(), .1.display())]
    Escapes(PathBuf, PathBuf),
    /// More than [`MAX_FILE`] bytes.
    #[error("{}: longer than {MAX_FILE} bytes; refused", .0.display())]
    TooLong(PathBuf),
    /// Not a regular file.
    #[error("{}: not a regular file; refused", .0.display())]
    NotAFile(PathBuf),
    /// Not UTF-8.
    #[error("{}: not text", .0.display())]
    NotText(PathBuf),
}

impl TreeError {
    /// The file or directory does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io(_, source) if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Whether `name` is a name as the kernel and udev give them: no separator, no escape, nothing to quote.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':' | b'+');
    (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.')
}

/// Names of a path, the last one first.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(part)
}

impl Tree {
    /// The tree below `root`; the root itself may be a link.
    pub fn open(root: &Path) -> Result<Self, TreeError> {
        let root = root.canonicalize().map_err(|source| TreeError::Io(root.to_owned(), source))?;
        Ok(Self { root })
    }

    /// The root, without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Follows every link of `path` and returns the place relative to the root; an error when it lies elsewhere.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<PathBuf, TreeError> {
        let path = path.as_ref();
        let escapes = || TreeError::Escapes(path.to_owned(), self.root.clone());
        if path.components().any(|part| matches!(part, Component::ParentDir | Component::RootDir)) {
            return Err(escapes());
        }
        let full = self.root.join(path);
        let full = full.canonicalize().map_err(|source| TreeError::Io(path.to_owned(), source))?;
        full.strip_prefix(&self.root).map(Path::to_owned).map_err(|_| escapes())
    }

    /// Follows every link of `path` as a process would whose root is this tree: absolute links lead back into it, and nothing
    /// leads out. Returns the place relative to the root. For trees that are a root of their own, as a driver root is.
    pub fn resolve_as_root(&self, path: impl AsRef<Path>) -> Result<PathBuf, TreeError> {
        let path = path.as_ref();
        let failed = |source| TreeError::Io(path.to_owned(), source);
        let mut left: Vec<OsString> = parts(path).collect();
        let (mut place, mut links) = (PathBuf::new(), 0);
        while let Some(part) = left.pop() {
            if part == ".." {
                place.pop();
                continue;
            }
            let full = self.root.join(&place).join(&part);
            if !full.symlink_metadata().map_err(failed)?.is_symlink() {
                place.push(part);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(failed(rustix::io::Errno::LOOP.into()));
            }
            let target = full.read_link().map_err(failed)?;
            if target.is_absolute() {
                place.clear();
            }
            left.extend(parts(&target));
        }
        Ok(place)
    }

    /// Where a link points to, whether that exists or not.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<PathBuf, TreeError> {
        let path = path.as_ref();
        let place = self.root.join(self.resolve(path.parent().unwrap_or(Path::new("")))?);
        let link = path.file_name().map_or_else(|| place.clone(), |name| place.join(name));
        link.read_link().map_err(|source| TreeError::Io(path.to_owned(), source))
    }

    /// Whether `path` exists inside the root.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path).is_ok()
    }

    /// The bytes of a regular file, at most [`MAX_FILE`].
    pub fn bytes(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, TreeError> {
        let path = path.as_ref();
        let mut read = Vec::new();
        let failed = |source| TreeError::Io(path.to_owned(), source);
        self.file(path)?.take(MAX_FILE as u64 + 1).read_to_end(&mut read).map_err(failed)?;
        if read.len() > MAX_FILE {
            return Err(TreeError::TooLong(path.to_owned()));
        }
        Ok(read)
    }

    /// The text of a regular file without surrounding white space.
    pub fn text(&self, path: impl AsRef<Path>) -> Result<String, TreeError> {
        let path = path.as_ref();
        let text = String::from_utf8(self.bytes(path)?);
        let text = text.map_err(|_| TreeError::NotText(path.to_owned()))?;
        Ok(text.trim().to_owned())
    }

    /// An open regular file, for callers that bound their own reading.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<File, TreeError> {
        let path = path.as_ref();
        let full = self.root.join(self.resolve(path)?);
        let failed = |source| TreeError::Io(path.to_owned(), source);
        // Non-blocking, so that a pipe in the place of a file cannot hold the caller.
        let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NOFOLLOW).bits();
        let metadata = full.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(TreeError::NotAFile(path.to_owned()));
        }
        OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(full).map_err(failed)
    }

    /// Names in a directory, sorted; names that the kernel would not give are left out.
    pub fn names(&self, path: impl AsRef<Path>) -> Result<Vec<String>, TreeError> {
        let path = path.as_ref();
        let failed = |source| TreeError::Io(path.to_owned(), source);
        let entries = self.root.join(self.resolve(path)?).read_dir().map_err(failed)?;
        let mut names: Vec<String> = entries
            .take(MAX_ENTRIES)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| is_name(name))
            .collect();
        names.sort_unstable();
        Ok(names)
    }
}
