//! MIG profiles as NVIDIA publishes them: kube-scheduler calls an extender only for pods with a resource that its configuration
//! names, so this table names every profile that a pod may request.

use std::collections::BTreeSet;

use baton_agent::offer::mig_name;

/// GPUs and the profiles that they can be cut into, spelt as `nvidia-smi` spells them. The whole GPU comes last.
///
/// From NVIDIA's MIG User Guide, "Supported MIG Profiles"
/// (<https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html>); what that lacks (GH200 144GB, GB200,
/// B300, GB300) from the default configuration of NVIDIA's mig-parted (`deployments/systemd/config-default.yaml`), and H100 64GB from
/// NVIDIA's reference of vGPU types. Not the last word: new models bring new ones.
#[rustfmt::skip]
const PUBLISHED: &[(&str, &[&str])] = &[
    ("A30 24GB", &["1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"]),
    ("A100 40GB", &["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
    ("A100 80GB, H100 80GB", &["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
    ("H100 64GB", &["1g.8gb", "1g.8gb+me", "1g.16gb", "2g.16gb", "3g.32gb", "4g.32gb", "7g.64gb"]),
    ("H100 94GB", &["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"]),
    ("GH200 96GB, H20 96GB", &["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"]),
    ("H200 141GB", &["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]),
    ("GH200 144GB", &["1g.18gb", "1g.18gb+me", "1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb"]),
    ("B200 180GB", &["1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"]),
    ("GB200 186GB", &["1g.23gb", "1g.23gb+me", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"]),
    ("GB200 189GB", &["1g.47gb", "2g.47gb", "3g.95gb", "4g.95gb", "7g.189gb"]),
    ("B300 269GB", &["1g.34gb", "1g.34gb+me", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"]),
    ("GB300 278GB", &["1g.35gb", "1g.35gb+me", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb"]),
    ("RTX PRO 4500 Blackwell 32GB", &["1g.16gb", "1g.16gb+gfx", "1g.16gb+me.all", "1g.16gb-me", "2g.32gb+gfx", "2g.32gb"]),
    ("RTX PRO 5000 Blackwell 48GB", &["1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me", "2g.48gb+gfx", "2g.48gb"]),
    ("RTX PRO 6000 Blackwell 96GB", &["1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me", "2g.48gb", "2g.48gb+gfx", "2g.48gb+me.all", "2g.48gb-me", "4g.96gb+gfx", "4g.96gb"]),
    ("Thor iGPU", &["1g.0gb+me", "1g.0gb", "1g.0gb+gfx", "2g.0gb", "2g.0gb+gfx", "3g.0gb+gfx", "3g.0gb"]),
];

/// Slices, gigabytes and what follows.
fn parts(profile: &str) -> Option<(u32, u32, &str)> {
    let (slices, rest) = profile.split_once("g.")?;
    let (gigabytes, more) = rest.split_once("gb")?;
    Some((slices.parse().ok()?, gigabytes.parse().ok()?, more))
}

/// The resource names of all published profiles, each once, the smallest first.
pub(super) fn resources() -> Vec<String> {
    let all: BTreeSet<_> =
        PUBLISHED.iter().flat_map(|(_, profiles)| *profiles).map(|name| (parts(name), *name)).collect();
    all.into_iter().map(|(_, name)| mig_name(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::key;

    #[test]
    fn every_profile_is_a_fraction_of_its_gpu_that_mig_knows() {
        for (gpu, profiles) in PUBLISHED {
            let (most, whole, more) = parts(profiles[profiles.len() - 1]).expect("a profile");
            assert!(matches!(most, 2 | 3 | 4 | 7) && more.is_empty(), "{gpu}: the whole GPU comes last");
            if let Some(named) = gpu.rsplit(' ').next().and_then(|last| last.strip_suffix("GB")) {
                assert_eq!(named.parse::<u32>().ok(), Some(whole), "{gpu}");
            }
            for profile in *profiles {
                let (slices, gigabytes, more) = parts(profile).unwrap_or_else(|| panic!("{gpu}: {profile}"));
                assert!(matches!(slices, 1..=4 | 7) && slices <= most, "{gpu}: {profile}");
                assert!(["", "+me", "+me.all", "-me", "+gfx"].contains(&more), "{gpu}: {profile}");
                let near = |part: u32| (i64::from(gigabytes * part) - i64::from(whole)).abs() <= i64::from(part);
                assert!(
                    [1, 2, 4, 8].into_iter().any(near),
                    "{gpu}: {profile} has no eighth, quarter or half of {whole} GB"
                );
                assert!(slices < most || gigabytes == whole, "{gpu}: {profile} has all slices, but not all memory");
            }
            let names: BTreeSet<_> = profiles.iter().collect();
            assert_eq!(names.len(), profiles.len(), "{gpu} names a profile twice");
        }
    }

    #[test]
    fn the_names_are_those_that_the_node_daemon_registers_and_that_kubernetes_takes() {
        let names = resources();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "each once");
        for (profile, name) in [
            ("1g.5gb", "nvidia.com/mig-1g.5gb"),
            ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
            ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
            ("2g.48gb-me", "nvidia.com/mig-2g.48gb-me"),
            ("4g.96gb+gfx", "nvidia.com/mig-4g.96gb.gfx"),
        ] {
            assert_eq!(mig_name(profile), name);
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        for name in &names {
            let word = name.strip_prefix("nvidia.com/").expect("NVIDIA's prefix");
            let letters = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'));
            assert!(letters && word.len() <= 63 && name.starts_with(key::MIG_PREFIX), "{name}");
        }
        let at = |name: &str| names.iter().position(|known| known == name);
        assert!(at("nvidia.com/mig-1g.5gb") < at("nvidia.com/mig-1g.10gb") && at("nvidia.com/mig-1g.278gb").is_none());
    }
}
