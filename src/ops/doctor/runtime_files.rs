//! How the container runtime of this node is configured: the files of containerd, CRI-O and Docker, in their published forms.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Where distributions keep containerd's configuration, below the host's root.
const CONTAINERD: [&str; 5] = [
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "etc/k0s/containerd.toml",
    "var/snap/microk8s/current/args/containerd.toml",
];
/// The section of pods by version of a file of containerd.
const SECTIONS: [(i64, &str); 3] = [(3, "io.containerd.cri.v1.runtime"), (2, "io.containerd.grpc.v1.cri"), (1, "cri")];
const CRIO: &str = "etc/crio/crio.conf";
const CRIO_MORE: &str = "etc/crio/crio.conf.d";
/// Where CRI-O looks for hooks of every container; `hooks_dir` names others.
const HOOKS: [&str; 2] = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"];
const DOCKER: &str = "etc/docker/daemon.json";
/// Largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// A program that runs containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// As a RuntimeClass names it.
    pub name: String,
    /// The file of the program, where it is said.
    pub program: Option<PathBuf>,
}

/// What the files say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeFiles {
    /// `containerd`, `cri-o` or `docker`.
    pub runtime: &'static str,
    /// The first file, as the host names it; empty where there is none.
    pub path: PathBuf,
    /// The setting that chooses the program of a container whose pod names no RuntimeClass.
    pub default_setting: &'static str,
    /// What that setting is, if it is set.
    pub default: Option<String>,
    pub handlers: Vec<Handler>,
    /// Programs that every container starts first: files of hooks, and what they run.
    pub hooks: Vec<(PathBuf, PathBuf)>,
    /// Of containerd: whether CDI is on, and where it looks for specs.
    pub enable_cdi: Option<bool>,
    /// See [`Self::enable_cdi`].
    pub cdi_spec_dirs: Option<Vec<String>>,
    /// Files that are there and say nothing, each with the reason.
    pub unread: Vec<String>,
}

/// Reads the files of the runtime of `version` (`containerd://2.1.0`), or of the first that has any; `None` where none has.
pub fn read(host_root: &Path, version: Option<&str>) -> Option<RuntimeFiles> {
    let (name, number) = version.and_then(|version| version.split_once("://")).unwrap_or_default();
    let containerd = || CONTAINERD.iter().find_map(|path| containerd(host_root, Path::new(path), number));
    match name {
        "containerd" => containerd(),
        "cri-o" => crio(host_root),
        "docker" => docker(host_root),
        _ => containerd().or_else(|| crio(host_root)).or_else(|| docker(host_root)),
    }
}

/// A file's text: none where there is no file.
pub fn text(path: &Path) -> Result<Option<String>, String> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        Ok(meta) if !meta.is_file() => return Err("it is no file".to_owned()),
        Ok(meta) if meta.len() > MAX_FILE => return Err(format!("it is larger than {MAX_FILE} bytes")),
        Ok(_) => {}
    }
    std::fs::read_to_string(path).map(Some).map_err(|error| error.to_string())
}

fn json(path: &Path) -> Result<Option<serde_json::Value>, String> {
    text(path)?.map(|text| serde_json::from_str(&text).map_err(|error| error.to_string())).transpose()
}

/// Whether there is a file, readable or not.
fn is_there(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

impl RuntimeFiles {
    fn table(&mut self, host_root: &Path, path: &Path) -> Option<Table> {
        let parsed = text(&host_root.join(path))
            .and_then(|text| text.map(|text| text.parse().map_err(|error: toml::de::Error| plain(&error))).transpose());
        let said = format!("/{}", path.display());
        parsed.unwrap_or_else(|why| {
            self.unread.push(format!("{said}: {why}"));
            None
        })
    }

    /// The name of the program of a container whose pod names no RuntimeClass.
    pub fn default_name(&self) -> &str {
        self.default.as_deref().unwrap_or("runc")
    }
}

/// The first line of what is wrong with a file of TOML, with its place.
pub fn plain(error: &toml::de::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// containerd's file with the files that it imports, which win over it, and the imports of these.
fn containerd(host_root: &Path, first: &Path, number: &str) -> Option<RuntimeFiles> {
    if !is_there(&host_root.join(first)) {
        return None;
    }
    let mut found = RuntimeFiles {
        runtime: "containerd",
        path: Path::new("/").join(first),
        default_setting: "default_runtime_name",
        ..RuntimeFiles::default()
    };
    let (mut pending, mut seen, mut cri) = (vec![first.to_owned()], BTreeSet::new(), Table::new());
    while !pending.is_empty() {
        let path = pending.remove(0);
        if !seen.insert(path.clone()) {
            continue;
        }
        let Some(mut root) = found.table(host_root, &path) else { continue };
        for import in root.get("imports").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            let beside = path.parent().unwrap_or(Path::new(""));
            let import = import.strip_prefix('/').map_or_else(|| beside.join(import), PathBuf::from);
            pending.extend(matching(host_root, &import));
        }
        // A file of a version has the section of that version; one that says none may have any.
        let version = root.get("version").and_then(Value::as_integer);
        let Some(Value::Table(plugins)) = root.get_mut("plugins") else { continue };
        let section = SECTIONS.iter().find(|(of, name)| Some(*of) == version && plugins.contains_key(*name));
        let section = section.or_else(|| SECTIONS.iter().find(|(_, name)| plugins.contains_key(*name)));
        if let Some(Value::Table(section)) = section.and_then(|(_, name)| plugins.remove(*name)) {
            // Before 2.0 the section of a later file replaces the whole of an earlier one.
            if number.starts_with("1.") {
                cri = section;
            } else {
                merge(&mut cri, section);
            }
        }
    }
    found.enable_cdi = cri.get("enable_cdi").and_then(Value::as_bool);
    found.cdi_spec_dirs = cri.get("cdi_spec_dirs").map(words);
    let of = cri.get("containerd").and_then(Value::as_table);
    found.default = of.and_then(|of| of.get("default_runtime_name")).and_then(name);
    let program = |table: &Value| {
        let options = table.get("options");
        // `Runtime` is that of the first version.
        let of = ["BinaryName", "Runtime"].into_iter().find_map(|key| options?.get(key).and_then(name));
        of.or_else(|| table.get("runtime_path").and_then(name)).map(PathBuf::from)
    };
    found.handlers = handlers(of.and_then(|of| of.get("runtimes")), program);
    // What the first version has in the place of a name.
    if let Some(program) = of.and_then(|of| of.get("default_runtime")).and_then(program)
        && found.default.is_none()
    {
        found.default_setting = "default_runtime";
        found.default = Some("default_runtime".to_owned());
        found.handlers.push(Handler { name: "default_runtime".to_owned(), program: Some(program) });
    }
    Some(found)
}

/// CRI-O's file, and those of its folder in the order of their names, which win over it.
fn crio(host_root: &Path) -> Option<RuntimeFiles> {
    let mut found = RuntimeFiles { runtime: "cri-o", default_setting: "default_runtime", ..RuntimeFiles::default() };
    let (mut paths, mut merged) = (vec![PathBuf::from(CRIO)], Table::new());
    paths.extend(matching(host_root, &Path::new(CRIO_MORE).join("*")));
    for path in paths.into_iter().filter(|path| is_there(&host_root.join(path))) {
        if found.path.as_os_str().is_empty() {
            found.path = Path::new("/").join(&path);
        }
        found.table(host_root, &path).into_iter().for_each(|table| merge(&mut merged, table));
    }
    let of = merged.get("crio").and_then(|crio| crio.get("runtime"));
    let directories = of.and_then(|of| of.get("hooks_dir")).map(words);
    for directory in directories.unwrap_or_else(|| HOOKS.map(str::to_owned).to_vec()) {
        for path in matching(host_root, &Path::new(directory.trim_start_matches('/')).join("*.json")) {
            let shown = Path::new("/").join(&path);
            match json(&host_root.join(&path)).map(Option::unwrap_or_default) {
                // A program alone is the form of the first version.
                Ok(hook) => found.hooks.extend(
                    hook["hook"].as_str().or(hook["hook"]["path"].as_str()).map(|program| (shown, program.into())),
                ),
                Err(why) => found.unread.push(format!("{}: {why}", shown.display())),
            }
        }
    }
    if found.path.as_os_str().is_empty() {
        let (hook, _) = found.hooks.first()?;
        found.path.clone_from(hook);
    }
    found.default = of.and_then(|of| of.get("default_runtime")).and_then(name);
    found.handlers = handlers(of.and_then(|of| of.get("runtimes")), |table| {
        table.get("runtime_path").and_then(name).map(PathBuf::from)
    });
    Some(found)
}

/// Docker's file, as cri-dockerd's pods use it.
fn docker(host_root: &Path) -> Option<RuntimeFiles> {
    let mut found = RuntimeFiles {
        runtime: "docker",
        path: Path::new("/").join(DOCKER),
        default_setting: "default-runtime",
        ..RuntimeFiles::default()
    };
    match json(&host_root.join(DOCKER)).transpose()? {
        Err(why) => found.unread.push(format!("/{DOCKER}: {why}")),
        Ok(root) => {
            found.default = root["default-runtime"].as_str().map(str::to_owned);
            found.handlers = root["runtimes"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, of)| Handler { name: name.clone(), program: of["path"].as_str().map(PathBuf::from) })
                .collect();
        }
    }
    Some(found)
}

fn handlers(of: Option<&Value>, program: impl Fn(&Value) -> Option<PathBuf>) -> Vec<Handler> {
    let of = of.and_then(Value::as_table).into_iter().flatten();
    of.map(|(name, table)| Handler { name: name.clone(), program: program(table) }).collect()
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A text that is not empty: an empty one is as none.
fn name(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Keys of `more` win; tables are merged.
fn merge(into: &mut Table, more: Table) {
    for (key, value) in more {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(more)) => merge(into, more),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// Files below the host's root that fit a path with at most one `*`, in its last part, as the runtimes' own documentation writes them.
fn matching(host_root: &Path, pattern: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (pattern.parent(), pattern.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Some((head, tail)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let fits = |name: &str| name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail);
    let entries = std::fs::read_dir(host_root.join(directory)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| fits(name));
    let mut files: Vec<PathBuf> = names.map(|name| directory.join(name)).collect();
    files.retain(|file| host_root.join(file).is_file());
    files.sort();
    files
}

/// The root of a host with these files.
#[cfg(test)]
pub fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}
