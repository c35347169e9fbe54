//! What holds GPU shares to their limits.

use std::path::Path;

use super::report::Finding;
use baton_agent::AgentOptions;
use baton_agent::shares::{mps_answers, works};
use baton_contract::ShareIsolation;

const CHECK: &str = "share-isolation";

pub fn look(options: &AgentOptions) -> Finding {
    let advice = "no pod with a GPU share is served here until this works again (docs/share.md)";
    let works = match options.share_isolation {
        ShareIsolation::None => Ok("shares are counted and not limited".to_owned()),
        ShareIsolation::HamiCore => hami_core(options),
        ShareIsolation::Mps => mps_answers(options).map(|()| {
            let at = options.mps_root.join("nvidia.com/gpu/pipe");
            format!("the MPS control daemon listens in {}", at.display())
        }),
    };
    works.map_or_else(|why| Finding::fail(CHECK, why, advice), |found| Finding::ok(CHECK, found))
}

fn hami_core(options: &AgentOptions) -> Result<String, String> {
    let library = works(options)?;
    let (path, bytes, sha256) = (library.path.display(), library.bytes, &library.sha256);
    Ok(format!("{path}: {}, {bytes} bytes, SHA-256 {sha256}", version(&library.path)))
}

/// HAMi installs the library as a link to a file that has the version in its name.
fn version(path: &Path) -> String {
    let target = std::fs::canonicalize(path).ok();
    let name = target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let version = name.and_then(|name| Some(name.strip_prefix("libvgpu.so.")?.to_owned()));
    version.map_or_else(|| "its name says no version".to_owned(), |version| format!("version {version}"))
}
