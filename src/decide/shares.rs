//! Whether a pod's GPU shares may be served where the node holds shares to their limits in a certain way. Scheduler and node daemon ask
//! the same question.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use baton_contract::ShareIsolation;

/// What a pod says about the limits of its GPU shares.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ShareTerms {
    /// What must enforce them, by the label `koordinator.sh/gpu-isolation-provider`.
    pub provider: Option<Box<str>>,
    /// What of the pod would undo them, by what enforces them: one clause each.
    pub undone: Vec<(ShareIsolation, Box<str>)>,
}

/// Where HAMi-core's files are in a container. Programs are built with these places in them.
pub mod place {
    /// The library.
    pub const LIBRARY: &str = "/usr/local/vgpu/libvgpu.so";
    /// The directory of the file in which the container's processes count what they have.
    pub const CACHE: &str = "/usr/local/vgpu/cache";
    /// The list of libraries that the loader puts into every process.
    pub const PRELOAD: &str = "/etc/ld.so.preload";
    /// The directory of the lock that the node's containers start one by one under.
    pub const LOCK: &str = "/tmp/vgpulock";
    /// A file of variables that count more than those of the process. The daemon mounts none.
    pub const OVERRIDE: &str = "/overrideEnv";
}

/// The limits that an environment variable of this name undoes.
pub fn undone_by_variable(name: &str) -> Option<ShareIsolation> {
    const HAMI: [&str; 6] = [
        "CUDA_REDIRECT",
        "CUDA_DEVICE_MEMORY_LIMIT",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_DISABLE_CONTROL",
        "CUDA_OVERSUBSCRIBE",
    ];
    if HAMI.iter().any(|of| name.starts_with(of)) || name == "GPU_CORE_UTILIZATION_POLICY" {
        Some(ShareIsolation::HamiCore)
    } else {
        name.starts_with("CUDA_MPS_").then_some(ShareIsolation::Mps)
    }
}

/// The limits that a volume at this place of a container undoes.
pub fn undone_by_mount(path: &str) -> Option<ShareIsolation> {
    let path: PathBuf = Path::new(path).components().collect();
    let ours = [place::LIBRARY, place::CACHE, place::PRELOAD, place::LOCK, place::OVERRIDE];
    // What lies below a volume is mounted on top of it, so a volume above is no harm.
    let hides = ours.iter().any(|ours| path.starts_with(ours)) || path == Path::new("/usr/local/vgpu");
    (hides || path.components().any(|part| part == Component::ParentDir)).then_some(ShareIsolation::HamiCore)
}

/// How a node holds GPU shares to their limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShareOffer {
    /// By what.
    pub isolation: ShareIsolation,
    /// Why it cannot, now.
    pub unavailable: Option<Box<str>>,
}

/// Why shares are not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShareRefusal {
    /// The node cannot enforce any limit now, for this reason.
    Unavailable(Box<str>),
    /// The pod and the node do not go together: one clause.
    Terms(String),
}

impl fmt::Display for ShareRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => f.write_str(why),
            Self::Terms(why) => f.write_str(why),
        }
    }
}

impl ShareOffer {
    /// A share with so many bytes of memory can be held to that: limits are set in MiB, and one of 0 is none.
    pub fn can_limit(&self, bytes: i64) -> bool {
        self.isolation == ShareIsolation::None || bytes >= 1 << 20
    }

    /// Why shares of a pod with these terms are not served here; `None` where they are.
    pub fn refusal(&self, terms: Option<&ShareTerms>) -> Option<ShareRefusal> {
        if let Some(why) = &self.unavailable {
            return Some(ShareRefusal::Unavailable(why.clone()));
        }
        let terms = terms?;
        let own = match self.isolation {
            ShareIsolation::None => "nothing",
            enforced => enforced.provider(),
        };
        let asked = terms.provider.as_deref().filter(|asked| !asked.is_empty());
        if let Some(asked) = asked.filter(|asked| ShareIsolation::of_provider(asked) != Some(self.isolation)) {
            return Some(ShareRefusal::Terms(format!(
                "GPU shares are limited by {own} there (--share-isolation={}), the pod asks for {asked}",
                self.isolation
            )));
        }
        let (_, what) = terms.undone.iter().find(|(of, _)| *of == self.isolation)?;
        Some(ShareRefusal::Terms(format!("{what}, which undoes the limits that {own} sets")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(offer: ShareIsolation, provider: &str, undone: &[ShareIsolation]) -> Option<String> {
        let undone = undone.iter().map(|of| (*of, format!("the pod undoes {of}").into())).collect();
        let terms = ShareTerms { provider: Some(provider.into()), undone };
        match (ShareOffer { isolation: offer, unavailable: None }).refusal(Some(&terms))? {
            ShareRefusal::Terms(why) => Some(why),
            ShareRefusal::Unavailable(_) => unreachable!("it is available"),
        }
    }

    #[test]
    fn a_pod_is_served_where_what_it_asks_for_is_what_the_node_does_in_whatever_case() {
        use ShareIsolation::{HamiCore, Mps, None as Nothing};
        for (offer, provider) in
            [(Nothing, ""), (HamiCore, ""), (HamiCore, "HAMi-core"), (HamiCore, "hami-core"), (Mps, "MPS"), (Mps, "")]
        {
            assert_eq!(says(offer, provider, &[]), None, "{offer} {provider}");
        }
        for (offer, provider) in [
            (Nothing, "HAMi-core"),
            (Nothing, "x"),
            (HamiCore, "none"),
            (Mps, "HAMi-core"),
            (HamiCore, "MPS"),
            (Mps, "x"),
        ] {
            let why = says(offer, provider, &[]).unwrap();
            assert!(why.contains(&format!("asks for {provider}")) && why.contains(offer.word()), "{why}");
        }
    }

    #[test]
    fn variables_and_volumes_that_undo_a_limit_are_known_however_they_are_written() {
        for name in ["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_3", "CUDA_DISABLE_CONTROL", "CUDA_REDIRECT"]
        {
            assert_eq!(undone_by_variable(name), Some(ShareIsolation::HamiCore), "{name}");
        }
        assert_eq!(undone_by_variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some(ShareIsolation::Mps));
        assert_eq!(["CUDA_VISIBLE_DEVICES", "LD_PRELOAD", ""].map(undone_by_variable), [None; 3]);
        for path in [
            "/etc/ld.so.preload",
            "/etc//ld.so.preload/",
            "/etc/x/../ld.so.preload",
            "/usr/local/vgpu",
            "/tmp/vgpulock",
            "/overrideEnv",
        ] {
            assert_eq!(undone_by_mount(path), Some(ShareIsolation::HamiCore), "{path}");
        }
        assert_eq!(["/etc", "/tmp", "/data", "/etc/ld.so.preload.d"].map(undone_by_mount), [None; 4]);
    }

    #[test]
    fn what_undoes_a_limit_matters_where_it_is_set_and_nothing_helps_without_one() {
        use ShareIsolation::{HamiCore, Mps, None as Nothing};
        assert_eq!(says(Nothing, "", &[HamiCore, Mps]), None);
        assert_eq!(says(Mps, "", &[HamiCore]), None);
        assert!(says(HamiCore, "HAMi-core", &[Mps, HamiCore]).unwrap().contains("the pod undoes hami-core"));
        let dead = ShareOffer { isolation: Mps, unavailable: Some("MPS is dead".into()) };
        assert_eq!(dead.refusal(None), Some(ShareRefusal::Unavailable("MPS is dead".into())));
    }
}
