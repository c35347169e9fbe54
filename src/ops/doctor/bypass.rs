//! Whether a pod reaches GPUs past every ledger: NVIDIA's container runtime gives a container the GPUs that its environment names, unless
//! its configuration says otherwise.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;
use toml::{Table, Value};

use super::report::Finding;
use super::runtime_files::{self, Handler, RuntimeFiles, plain};
use baton_agent::AgentOptions;
use baton_agent::options::DeviceListStrategy;

const CHECK: &str = "runtime-bypass";
/// The toolkit's configuration, where a package installs it, and where the GPU operator does, beside its programs.
const CONFIG: &str = "etc/nvidia-container-runtime/config.toml";
const BESIDE: &str = ".config/nvidia-container-runtime/config.toml";
const BY_ENVIRONMENT: &str = "accept-nvidia-visible-devices-envvar-when-unprivileged";
const BY_MOUNTS: &str = "accept-nvidia-visible-devices-as-volume-mounts";

/// `is_host`: what lies below `host_root` is known to be the host's, and not this container's own.
pub fn look(options: &AgentOptions, (host_root, is_host): (&Path, bool), node: Option<&Node>) -> Finding {
    let version = node.and_then(|node| node.status.as_ref()?.node_info.as_ref());
    let version = version.map(|info| info.container_runtime_version.as_str()).filter(|version| !version.is_empty());
    let Some(files) = runtime_files::read(host_root, version) else {
        // Without a file each runtime runs runc or crun; but then the host's files can be seen.
        return if is_host && host_root.join("etc").is_dir() {
            Finding::ok(CHECK, "no configuration of a container runtime: NVIDIA's runtime is not used")
        } else {
            let advice = "run it on the node itself, or give --host-root: the runtime's and the NVIDIA toolkit's configuration are read there";
            Finding::warn(
                CHECK,
                "whether pods reach GPUs past the ledger cannot be seen: no configuration of a container runtime",
                advice,
            )
        };
    };
    judge(&files, host_root, &options.device_list_strategy)
}

fn judge(files: &RuntimeFiles, host_root: &Path, served_by: &[DeviceListStrategy]) -> Finding {
    if !files.unread.is_empty() {
        let advice = "the runtime may read it otherwise, or not start again: correct it, and look again";
        let found = format!("whether pods reach GPUs past the ledger cannot be seen: {}", files.unread.join("; "));
        return Finding::warn(CHECK, found, advice);
    }
    let Some(NvidiaUsers { who, program, is_default }) = NvidiaUsers::of(files) else {
        let found = format!(
            "{}, {}: no container runs with NVIDIA's runtime, which alone reads NVIDIA_VISIBLE_DEVICES",
            files.runtime,
            files.path.display()
        );
        return Finding::ok(CHECK, found);
    };
    let toolkit = Toolkit::read(host_root, program.as_deref());
    let (environment, mounts) = match (toolkit.says(BY_ENVIRONMENT, true), toolkit.says(BY_MOUNTS, false)) {
        (Ok(environment), Ok(mounts)) => (environment, mounts),
        (Err(why), _) | (_, Err(why)) => {
            let found = format!("whether {who} reaches all GPUs past the ledger cannot be seen: {why}");
            return Finding::warn(CHECK, found, format!("correct {}, and look again", toolkit.shown()));
        }
    };
    let (mut ways, mut closed) = (Vec::new(), Vec::new());
    if environment.0 {
        ways.push(format!("by NVIDIA_VISIBLE_DEVICES in its environment{}: {}", toolkit.also(), environment.1));
        closed.push(format!(
            "set {BY_ENVIRONMENT} = false in {}, above its first [table]{}",
            toolkit.shown(),
            toolkit.writer()
        ));
        if served_by.contains(&DeviceListStrategy::Envvar) {
            closed.push("first leave --device-list-strategy=envvar, which needs it true".to_owned());
        }
    }
    if mounts.0 {
        ways.push(format!("by a hostPath volume of /dev/null below /var/run/nvidia-container-devices: {}", mounts.1));
        closed.push(if served_by.contains(&DeviceListStrategy::VolumeMounts) {
            "refuse hostPath volumes by Pod Security, because --device-list-strategy=volume-mounts needs them"
                .to_owned()
        } else {
            format!("set {BY_MOUNTS} = false there")
        });
    }
    if ways.is_empty() {
        let found = format!("{who} gets no GPU by its environment: {}; a privileged one still does", environment.1);
        return Finding::ok(CHECK, found);
    }
    let found = format!("{who} reaches all GPUs past the ledger {}", ways.join(", and "));
    if is_default {
        closed.push(format!(
            "or let {} name another runtime; until then the chart's visibleDevices.deny=true refuses such pods",
            files.default_setting
        ));
    } else {
        closed.push("until then the chart's visibleDevices.deny=true refuses such pods".to_owned());
    }
    Finding::warn(CHECK, found, closed.join("; "))
}

fn has_nvidia(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.to_string_lossy().contains("nvidia"))
}

/// By its program, or by its name where no program is said.
fn is_nvidias(handler: &Handler) -> bool {
    handler.program.as_deref().map_or_else(|| handler.name.contains("nvidia"), has_nvidia)
}

/// The pods whose containers NVIDIA's runtime starts.
struct NvidiaUsers {
    who: String,
    /// Its file, or that of the hook, where it is said.
    program: Option<PathBuf>,
    /// It starts those of pods that name no RuntimeClass.
    is_default: bool,
}

impl NvidiaUsers {
    fn of(files: &RuntimeFiles) -> Option<Self> {
        let (name, place) = (files.default_name(), files.path.display());
        let (default, others): (Vec<&Handler>, Vec<&Handler>) =
            files.handlers.iter().filter(|handler| is_nvidias(handler)).partition(|handler| handler.name == name);
        let hook = files.hooks.iter().find(|(_, program)| has_nvidia(program));
        let (who, program) = match (default.first(), hook, others.first()) {
            (Some(handler), ..) => {
                (format!("any pod ({} = {name:?}, {place})", files.default_setting), handler.program.clone())
            }
            (None, Some((file, program)), _) => {
                (format!("any pod (the hook {})", file.display()), Some(program.clone()))
            }
            (None, None, Some(_)) => {
                let names: Vec<_> = others.iter().map(|handler| handler.name.as_str()).collect();
                let program = others[0].program.clone();
                (format!("a pod with a RuntimeClass of the handler {} ({place})", names.join(" or ")), program)
            }
            (None, None, None) => return None,
        };
        Some(Self { who, program, is_default: !default.is_empty() })
    }
}

/// The configuration of NVIDIA's container toolkit.
struct Toolkit {
    path: PathBuf,
    /// As it is written: none where there is no file.
    text: Result<Option<String>, String>,
    /// The GPU operator writes it.
    by_operator: bool,
}

impl Toolkit {
    /// That of the runtime or hook `program`.
    fn read(host_root: &Path, program: Option<&Path>) -> Self {
        let beside = program.and_then(Path::parent).map(|folder| folder.join(BESIDE));
        let beside = beside.and_then(|path| path.strip_prefix("/").map(Path::to_owned).ok());
        let beside = beside.filter(|path| host_root.join(path).try_exists().unwrap_or(true));
        let by_operator = beside.is_some();
        let path = beside.unwrap_or_else(|| CONFIG.into());
        Self { text: runtime_files::text(&host_root.join(&path)), path, by_operator }
    }

    fn shown(&self) -> String {
        format!("/{}", self.path.display())
    }

    fn writer(&self) -> &'static str {
        if self.by_operator {
            " (the GPU operator writes it: ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED in toolkit.env of its ClusterPolicy)"
        } else {
            ""
        }
    }

    fn table(&self) -> Result<Option<Table>, String> {
        let text = self.text.as_ref().map_err(|why| format!("{}: {why}", self.shown()))?;
        let table =
            text.as_ref().map(|text| text.parse().map_err(|error| format!("{}: {}", self.shown(), plain(&error))));
        table.transpose()
    }

    /// What a setting is, which is `default` where it is not written, and how that is known.
    fn says(&self, setting: &str, default: bool) -> Result<(bool, String), String> {
        let by_default = |why: &str| Ok((default, format!("{setting} is {default}, because {} {why}", self.shown())));
        let Some(table) = self.table()? else { return by_default("is not there") };
        match table.get(setting) {
            Some(Value::Boolean(value)) => Ok((*value, format!("{setting} = {value} in {}", self.shown()))),
            Some(other) => {
                let written =
                    other.as_str().map_or_else(|| format!("a {}", other.type_str()), |text| format!("{text:?}"));
                Err(format!("{setting} = {written} in {} is neither true nor false", self.shown()))
            }
            None => {
                let elsewhere = table.iter().find(|(_, of)| of.get(setting).is_some());
                if let Some((name, _)) = elsewhere {
                    return by_default(&format!("has it in the table [{name}], where it has no effect"));
                }
                let text = self.text.as_ref().ok().and_then(Option::as_deref).unwrap_or_default();
                let commented = |line: &str| line.trim_start_matches(['#', ' ', '\t']).starts_with(setting);
                by_default(if text.lines().any(commented) { "has it as a comment only" } else { "does not name it" })
            }
        }
    }

    /// Another variable that means the same.
    fn also(&self) -> String {
        let table = self.table().ok().flatten();
        let other = table.as_ref().and_then(|table| table.get("swarm-resource")).and_then(Value::as_str);
        other
            .filter(|name| !name.is_empty())
            .map(|name| format!(" (or {name}, its swarm-resource)"))
            .unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "bypass_tests.rs"]
mod tests;
