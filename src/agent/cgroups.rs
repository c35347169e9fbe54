//! Whether processes of a pod run, by its cgroup: the kernel keeps it, and no client of the API server can write it.
//!
//! Where the kubelet makes the cgroups of pods depends on its driver, its root and the version of cgroups. The daemon runs in a pod
//! itself: what stands around its own uid is the pattern of all others. `cgroup.procs` is not read: it leaves out processes of other
//! pid namespaces.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use baton_contract::PodUid;
use baton_decide::handoff::CgroupLook;
use baton_runtime::clock;

/// Directories between the root and a pod's, at most: `--cgroup-root` of a kubelet, a node in a container.
const DEPTH: usize = 8;
/// A pod's directory is below `kubepods`, or in one of these below that.
const CLASSES: [&str; 3] = ["", "burstable", "besteffort"];
/// Between two searches for the daemon's own pod.
const SEARCH: Duration = Duration::from_secs(60);

/// The cgroups of this node's pods.
pub struct Cgroups {
    roots: Vec<PathBuf>,
    mountinfo: PathBuf,
    own: OnceLock<String>,
    found: Mutex<(Option<Pattern>, Option<Duration>)>,
}

/// Where pods are, and the daemon's own directory: while it is seen there, another one's absence counts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    own: PathBuf,
    base: PathBuf,
    /// With the systemd driver, the name of the slice that holds all pods, without its end.
    slice: Option<String>,
}

impl Cgroups {
    /// Cgroups as one of these directories shows them, where the daemon's own pod is found. `proc` is the root of procfs.
    pub fn new(roots: Vec<PathBuf>, proc: &Path) -> Self {
        let [given, own] = [proc, Path::new("/proc")].map(|root| root.join("self/mountinfo"));
        let mountinfo = if given.exists() { given } else { own };
        Self { roots, mountinfo, own: OnceLock::new(), found: Mutex::default() }
    }

    /// Where the daemon's own pod is seen; `Err` with the reason where it is not, so that nothing is known of other pods either.
    pub fn seen_at(&self) -> Result<PathBuf, String> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pattern) = found.0.as_ref().filter(|pattern| pattern.own.is_dir()) {
            return Ok(pattern.own.clone());
        }
        let uid = self.own.get_or_init(|| own_uid(&self.mountinfo).unwrap_or_default());
        if uid.is_empty() {
            return Err(format!(
                "this daemon does not run in a pod ({}: no /etc/hosts of a kubelet)",
                self.mountinfo.display()
            ));
        }
        let now = clock::mono();
        if found.1.is_none_or(|last| now >= last + SEARCH) {
            // In version 1 every controller has a tree of its own; this one counts.
            let trees = self.roots.iter().flat_map(|root| [root.join("pids"), root.clone()]);
            found.0 = trees.into_iter().find_map(|tree| find(&tree, uid, DEPTH));
            found.1 = found.0.is_none().then_some(now);
        }
        let tried = || self.roots.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", ");
        let unseen = || format!("the cgroup of this daemon's own pod {uid} is not below {}", tried());
        found.0.as_ref().map(|pattern| pattern.own.clone()).ok_or_else(unseen)
    }

    /// Looks at one pod.
    pub fn look(&self, uid: &PodUid) -> CgroupLook {
        if !is_uid(uid.as_str()) {
            return CgroupLook::Nameless;
        }
        if self.seen_at().is_err() {
            return CgroupLook::Unknown;
        }
        let pattern = self.found.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
        let Some(pattern) = pattern else { return CgroupLook::Unknown };
        for dir in pattern.places(uid.as_str()) {
            match is_occupied(&dir) {
                Ok(Some(occupied)) => return if occupied { CgroupLook::Occupied } else { CgroupLook::Empty },
                Ok(None) => {}
                Err(_) => return CgroupLook::Unknown,
            }
        }
        // The mount may have gone meanwhile.
        if pattern.own.is_dir() { CgroupLook::Absent } else { CgroupLook::Unknown }
    }
}

impl Pattern {
    /// Where `own`, the directory of the pod `uid`, stands; `None` where its name is another pod's.
    fn of(own: &Path, uid: &str) -> Option<Self> {
        let name = own.file_name()?.to_str()?;
        let above = |dir: &Path, class: &str| -> Option<PathBuf> {
            (if class.is_empty() { Some(dir) } else { dir.parent() }).map(Path::to_owned)
        };
        let parent = own.parent()?;
        if name == format!("pod{uid}") {
            let class = parent.file_name()?.to_str()?;
            let class = CLASSES.into_iter().find(|known| *known == class).unwrap_or_default();
            return Some(Self { own: own.to_owned(), base: above(parent, class)?, slice: None });
        }
        let slice = name.strip_suffix(&format!("-pod{}.slice", uid.replace('-', "_")))?;
        let of_class = |class: &&str| !class.is_empty() && slice.ends_with(&format!("-{class}"));
        let class = CLASSES.into_iter().find(of_class).unwrap_or_default();
        let slice = if class.is_empty() { slice } else { slice.strip_suffix(class)?.strip_suffix('-')? };
        Some(Self { own: own.to_owned(), base: above(parent, class)?, slice: Some(slice.to_owned()) })
    }

    /// The directories that the pod `uid` may have.
    fn places(&self, uid: &str) -> impl Iterator<Item = PathBuf> {
        let of_class = move |class: &str| match &self.slice {
            None => self.base.join(class).join(format!("pod{uid}")),
            Some(slice) => {
                let (uid, all) = (uid.replace('-', "_"), if class.is_empty() { "" } else { "-" });
                let dir =
                    if class.is_empty() { self.base.clone() } else { self.base.join(format!("{slice}-{class}.slice")) };
                dir.join(format!("{slice}{all}{class}-pod{uid}.slice"))
            }
        };
        CLASSES.into_iter().map(of_class)
    }
}

/// The pod of this process: the kubelet gives each container a file of its pod's as `/etc/hosts`.
fn own_uid(mountinfo: &Path) -> Option<String> {
    let text = fs::read_to_string(mountinfo).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // Where a file system is mounted at the pods' directory, the path begins below it.
        let uid = root.strip_suffix("/etc-hosts")?.rsplit_once('/')?.1;
        (at == "/etc/hosts" && is_uid(uid)).then(|| uid.to_owned())
    })
}

/// Safe as part of a path.
fn is_uid(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The directory of the pod `uid` below `dir`, where its processes are counted.
fn find(dir: &Path, uid: &str, depth: usize) -> Option<Pattern> {
    let names = fs::read_dir(dir).ok()?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut below: Vec<PathBuf> = names.map(|entry| entry.path()).collect();
    below.sort();
    let own = below
        .iter()
        .filter_map(|dir| Pattern::of(dir, uid))
        .find(|found| matches!(is_occupied(&found.own), Ok(Some(true))));
    own.or_else(|| below.iter().filter(|_| depth > 1).find_map(|dir| find(dir, uid, depth - 1)))
}

/// Whether a process is in the cgroup or below; `None` where there is no such cgroup.
fn is_occupied(dir: &Path) -> io::Result<Option<bool>> {
    let read = |name: &str| match fs::read_to_string(dir.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    };
    let strange = |text: &str| io::Error::new(ErrorKind::InvalidData, format!("{}: {text}", dir.display()));
    if let Some(events) = read("cgroup.events")? {
        let populated = events.lines().find_map(|line| line.strip_prefix("populated "));
        return populated.map(|value| Some(value.trim() != "0")).ok_or_else(|| strange(&events));
    }
    if let Some(count) = read("pids.current")? {
        return count.trim().parse::<u64>().map(|count| Some(count > 0)).map_err(|_| strange(&count));
    }
    if dir.is_dir() { Err(strange("it does not count its processes")) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const OWN: &str = "11111111-2222-3333-4444-555555555555";
    const POD: &str = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee";

    /// A node whose daemon is the pod [`OWN`], with these files of cgroups.
    struct Node(TempDir);

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let line = |root: &str, at: &str| format!("1047 1012 254:0 {root} {at} rw,relatime - ext4 /dev/vda rw\n");
            let of = |uid: &str| format!("/var/lib/kubelet/pods/{uid}/etc-hosts");
            // With the host's file system as a volume, mounts of other pods are in the list too.
            let lines = line(&of(POD), "/host/etc/hosts") + &line(&of(OWN), "/etc/hosts");
            fs::create_dir_all(dir.path().join("proc/self")).unwrap();
            fs::write(dir.path().join("proc/self/mountinfo"), lines).unwrap();
            Self(dir)
        }

        fn has(&self, file: &str, text: &str) {
            let path = self.0.path().join("cgroup").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn remove(&self, dir: &str) {
            fs::remove_dir_all(self.0.path().join("cgroup").join(dir)).unwrap();
        }

        fn cgroups(&self) -> Cgroups {
            Cgroups::new(vec![self.0.path().join("no"), self.0.path().join("cgroup")], &self.0.path().join("proc"))
        }
    }

    fn look(cgroups: &Cgroups, uid: &str) -> CgroupLook {
        cgroups.look(&PodUid::new(uid))
    }

    #[test]
    fn the_daemon_knows_its_pod_where_a_file_system_is_mounted_at_the_pods_directory() {
        let node = Node::new();
        let line = format!("1047 1012 254:0 /{OWN}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/vda rw\n");
        let file = node.0.path().join("proc/self/mountinfo");
        fs::write(&file, line).unwrap();
        assert_eq!(own_uid(&file).as_deref(), Some(OWN));
    }

    #[test]
    fn every_layout_is_known_by_the_daemons_own_pod() {
        let under = |uid: &str| uid.replace('-', "_");
        let (own, pod) = (under(OWN), under(POD));
        let (events, pids) = ("cgroup.events", "pids.current");
        let rows = [
            // Own pod, another pod, file, occupied, empty.
            (format!("kubepods/besteffort/pod{OWN}"), format!("kubepods/pod{POD}"), events),
            (format!("kubepods/pod{OWN}"), format!("kubepods/burstable/pod{POD}"), events),
            (format!("pids/kubepods/burstable/pod{OWN}"), format!("pids/kubepods/besteffort/pod{POD}"), pids),
            (format!("pids/nested/kubepods/pod{OWN}"), format!("pids/nested/kubepods/pod{POD}"), pids),
            (
                format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{own}.slice"),
                format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice"),
                events,
            ),
            (
                format!("kubepods.slice/kubepods-pod{own}.slice"),
                format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{pod}.slice"),
                events,
            ),
            (
                format!(
                    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{own}.slice"
                ),
                format!("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{pod}.slice"),
                events,
            ),
        ];
        for (own, pod, file) in rows {
            let node = Node::new();
            let text = |occupied: bool| match (file == events, occupied) {
                (true, true) => "populated 1\nfrozen 0\n",
                (true, false) => "populated 0\nfrozen 0\n",
                (false, true) => "3\n",
                (false, false) => "0\n",
            };
            node.has(&format!("cpu/{own}/cpu.shares"), "2");
            node.has(&format!("{own}/{file}"), text(true));
            node.has(&format!("{pod}/{file}"), text(true));
            let cgroups = node.cgroups();
            assert!(cgroups.seen_at().unwrap().ends_with(&own));
            assert_eq!(look(&cgroups, POD), CgroupLook::Occupied, "{own}");
            node.has(&format!("{pod}/{file}"), text(false));
            assert_eq!(look(&cgroups, POD), CgroupLook::Empty, "{own}");
            node.remove(&pod);
            assert_eq!(look(&cgroups, POD), CgroupLook::Absent, "{own}");
            node.remove(&own);
            assert_eq!(look(&cgroups, POD), CgroupLook::Unknown, "without the own pod absence says nothing: {own}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let node = Node::new();
        node.has(&format!("kubepods/pod{OWN}/cgroup.events"), "populated 1\n");
        let cgroups = node.cgroups();
        assert_eq!(look(&cgroups, POD), CgroupLook::Absent);
        for strange in ["../kubepods", "", "unknown:ml/a"] {
            assert_eq!(look(&cgroups, strange), CgroupLook::Nameless, "{strange:?}");
        }
        node.has(&format!("kubepods/pod{POD}/cgroup.procs"), "");
        assert_eq!(look(&cgroups, POD), CgroupLook::Unknown, "it counts nothing");
        let emptied = Node::new();
        emptied.has(&format!("kubepods/pod{OWN}/cgroup.events"), "populated 0\n");
        assert_eq!(look(&emptied.cgroups(), POD), CgroupLook::Unknown, "pods are where this daemon runs");
        node.has(&format!("kubepods/pod{POD}/cgroup.events"), "frozen 0\n");
        assert_eq!(look(&cgroups, POD), CgroupLook::Unknown);
    }

    #[test]
    fn outside_of_a_pod_nothing_is_known() {
        let node = Node::new();
        fs::write(node.0.path().join("proc/self/mountinfo"), "1 2 254:0 / / rw - ext4 /dev/vda rw\n").unwrap();
        let cgroups = node.cgroups();
        assert!(cgroups.seen_at().unwrap_err().contains("does not run in a pod"));
        assert_eq!(look(&cgroups, POD), CgroupLook::Unknown);
        let unseen = Node::new().cgroups().seen_at().unwrap_err();
        assert!(unseen.contains(OWN), "{unseen}");
    }
}
