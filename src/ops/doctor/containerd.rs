//! Whether the container runtime of this node understands CDI names: its version by the Node object, and containerd's
//! configuration where it can be read.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;

use super::report::Finding;
use super::runtime_files::{self, RuntimeFiles};
use baton_agent::AgentOptions;
use baton_agent::options::DeviceListStrategy;

pub fn look(options: &AgentOptions, host_root: &Path, node: Option<&Node>) -> Finding {
    if !options.by_cdi() {
        return Finding::ok("runtime", "needs no CDI under this --device-list-strategy");
    }
    let info = node.and_then(|node| node.status.as_ref()?.node_info.as_ref());
    if let Some(info) = info
        && let Some(finding) = kubelet(options, &info.kubelet_version)
    {
        return finding;
    }
    let runtime = info.map(|info| info.container_runtime_version.as_str()).filter(|version| !version.is_empty());
    let config = runtime_files::read(host_root, runtime)
        .filter(|files| files.runtime == "containerd" && files.unread.is_empty());
    judge(runtime, config.as_ref(), options)
}

/// Kubelets before 1.29 silently drop the CDI names of an answer.
fn kubelet(options: &AgentOptions, version: &str) -> Option<Finding> {
    let by_field = options.device_list_strategy.contains(&DeviceListStrategy::CdiCri);
    let old = numbers(version.trim_start_matches('v')).is_some_and(|version| version < (1, 29, 0));
    (old && by_field).then(|| {
        let advice = "use --device-list-strategy=cdi-annotations or envvar with this kubelet, or --pass-device-specs";
        Finding::fail("runtime", format!("kubelet {version} does not pass CDI names on (1.29 does)"), advice)
    })
}

/// The first versions that read the CRI field of CDI names, and the first that read the annotations.
const CONTAINERD: [(u32, u32, u32); 2] = [(1, 7, 2), (1, 7, 0)];
const CRI_O: [(u32, u32, u32); 2] = [(1, 28, 0), (1, 23, 0)];

fn judge(runtime: Option<&str>, config: Option<&RuntimeFiles>, options: &AgentOptions) -> Finding {
    let cdi_root = &options.paths.cdi_root;
    let by = usize::from(!options.device_list_strategy.contains(&DeviceListStrategy::CdiCri));
    let shown = runtime.unwrap_or("a runtime of unknown version");
    let place = config.map(|config| format!(", {}", config.path.display())).unwrap_or_default();
    let (name, version) = runtime.and_then(|text| text.split_once("://")).unwrap_or_default();
    let version = numbers(version);
    let set = config.and_then(|config| config.enable_cdi);
    let old = |first: (u32, u32, u32)| {
        let (a, b, c) = first;
        let advice = format!(
            "{name} {a}.{b}.{c} is the first that reads the CDI names of this --device-list-strategy: update it, or use another strategy \
             (cdi-annotations, or envvar with NVIDIA's runtime)"
        );
        Finding::fail(
            "runtime",
            format!("{shown} does not read CDI names: pods would run without their devices"),
            advice,
        )
    };
    match (name, version) {
        ("containerd", Some(version)) if version < CONTAINERD[by] => return old(CONTAINERD[by]),
        ("cri-o", Some(version)) if version < CRI_O[by] => return old(CRI_O[by]),
        ("cri-o", Some(_)) => return Finding::ok("runtime", format!("{shown} reads CDI specs")),
        _ => {}
    }
    let on = "set enable_cdi = true in the CRI section of containerd's configuration and restart containerd";
    let enabled = match (name, version, set) {
        (_, _, Some(enabled)) => enabled,
        // 2.0 made it the default.
        ("containerd", Some(version), None) if version >= (2, 0, 0) => true,
        ("containerd", Some(_), None) if config.is_some() => false,
        ("containerd", Some(_), None) => {
            let advice = format!(
                "it is off by default in containerd 1.7: {on}; give --host-root to have the configuration read"
            );
            return Finding::warn("runtime", format!("{shown}: whether CDI is on cannot be seen"), advice);
        }
        _ => {
            let advice = "any runtime of the last years reads CDI specs: containerd 1.7.2 with enable_cdi, containerd 2, CRI-O 1.28";
            return Finding::warn("runtime", format!("{shown}: whether it knows CDI cannot be seen"), advice);
        }
    };
    if !enabled {
        return Finding::fail("runtime", format!("{shown}{place}: CDI is off"), on);
    }
    let same = |directory: &String| plain(Path::new(directory)) == plain(cdi_root);
    match config.and_then(|config| config.cdi_spec_dirs.as_ref()) {
        Some(directories) if !directories.iter().any(same) => {
            let advice = format!("add {} to cdi_spec_dirs, or set --cdi-root to one of them", cdi_root.display());
            let found = format!("{shown}{place}: cdi_spec_dirs is {}", directories.join(", "));
            Finding::fail("runtime", found, advice)
        }
        _ => Finding::ok("runtime", format!("{shown}{place}: CDI is on")),
    }
}

/// `/var/run` is a link to `/run` everywhere.
fn plain(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run").map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

/// The numbers of `1.7.13` or `1.29.4+k3s1`; a third that is missing is 0.
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    let mut next = || parts.next()?.parse().ok();
    Some((next()?, next()?, next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckLevel;
    use super::*;

    fn judged(runtime: Option<&str>, files: &[(&str, &str)]) -> (CheckLevel, String) {
        let root = runtime_files::host(files);
        let config = runtime_files::read(root.path(), runtime);
        let finding = judge(runtime, config.as_ref(), &AgentOptions::default());
        assert_eq!(finding.level == CheckLevel::Ok, finding.advice.is_none());
        (finding.level, finding.found)
    }

    const CONFIG: &str = "etc/containerd/config.toml";
    const V2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n";
    const V3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n";

    #[test]
    fn cdi_is_on_by_version_or_by_configuration() {
        let on = format!("{V2}enable_cdi = true\n");
        let off = format!("{V3}enable_cdi = false\n");
        for (runtime, file, level) in [
            (Some("containerd://1.7.13"), Some(on.as_str()), CheckLevel::Ok),
            (Some("containerd://1.7.13"), Some(V2), CheckLevel::Fail),
            (Some("containerd://1.7.13"), None, CheckLevel::Warn),
            (Some("containerd://1.6.31"), Some(on.as_str()), CheckLevel::Fail),
            (Some("containerd://1.7.1"), Some(on.as_str()), CheckLevel::Fail),
            (Some("containerd://1.7.2"), Some(on.as_str()), CheckLevel::Ok),
            (Some("cri-o://1.27.0"), None, CheckLevel::Fail),
            (Some("cri-o://1.28.0"), None, CheckLevel::Ok),
            (Some("containerd://2.0.1"), None, CheckLevel::Ok),
            (Some("containerd://2.0.1-k3s2"), Some(off.as_str()), CheckLevel::Fail),
            (Some("cri-o://1.30.0"), None, CheckLevel::Ok),
            (None, Some(on.as_str()), CheckLevel::Ok),
            (None, None, CheckLevel::Warn),
            (Some("docker://24.0"), None, CheckLevel::Warn),
        ] {
            let files: Vec<_> = file.iter().map(|text| (CONFIG, *text)).collect();
            let (found, text) = judged(runtime, &files);
            assert_eq!(found, level, "{runtime:?} {file:?}: {text}");
        }
    }

    #[test]
    fn imported_files_win_and_other_distributions_are_found() {
        let main = format!("imports = [\"/etc/containerd/conf.d/*.toml\"]\n{V2}enable_cdi = false\n");
        let import = format!("{V2}enable_cdi = true\n");
        let files = [(CONFIG, main.as_str()), ("etc/containerd/conf.d/99-cdi.toml", import.as_str())];
        assert_eq!(judged(Some("containerd://1.7.2"), &files).0, CheckLevel::Ok);
        let k3s = [("var/lib/rancher/k3s/agent/etc/containerd/config.toml", import.as_str())];
        assert!(judged(Some("containerd://1.7.2"), &k3s).1.contains("/var/lib/rancher/k3s"));
    }

    #[test]
    fn the_directory_must_be_one_that_the_runtime_reads() {
        let dirs = |dirs: &str| format!("{V3}cdi_spec_dirs = [{dirs}]\n");
        let run = dirs("\"/etc/cdi\", \"/run/cdi\"");
        assert_eq!(judged(Some("containerd://2.1.0"), &[(CONFIG, &run)]).0, CheckLevel::Ok, "/var/run is /run");
        let (level, text) = judged(Some("containerd://2.1.0"), &[(CONFIG, &dirs("\"/etc/cdi\""))]);
        assert!(level == CheckLevel::Fail && text.contains("/etc/cdi"), "{text}");
    }

    #[test]
    fn a_kubelet_that_drops_cdi_names_is_found() {
        let options = AgentOptions::default();
        assert!(kubelet(&options, "v1.28.9+k3s1").is_some());
        assert!(kubelet(&options, "v1.29.0").is_none());
        let by_annotation = AgentOptions { device_list_strategy: vec![DeviceListStrategy::CdiAnnotations], ..options };
        assert!(kubelet(&by_annotation, "v1.28.9").is_none());
    }
}
