//! Names of container images, compared by a hash: a node lists a hundred, and only equality matters.

/// The hash of an image's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName(u64);

impl ImageName {
    /// A name as a node lists it in `status.images[].names`.
    pub fn listed(name: &str) -> Self {
        Self(mix(START, name))
    }

    /// A name as a container or a volume of images says it: without tag and digest it means `:latest`.
    pub fn asked(name: &str) -> Self {
        let hash = mix(START, name);
        let tagged = name.rfind(':') > name.rfind('/');
        Self(if tagged { hash } else { mix(hash, ":latest") })
    }
}

/// FNV-1a.
const START: u64 = 0xcbf2_9ce4_8422_2325;

fn mix(hash: u64, text: &str) -> u64 {
    text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_tag_and_digest_means_latest() {
        let same = |asked: &str, listed: &str| ImageName::asked(asked) == ImageName::listed(listed);
        assert!(same("nvcr.io/nvidia/pytorch:25.01", "nvcr.io/nvidia/pytorch:25.01"));
        assert!(same("vllm", "vllm:latest") && same("vllm/vllm-openai", "vllm/vllm-openai:latest"));
        assert!(same("repo.local:5000/train", "repo.local:5000/train:latest"), "a port is no tag");
        assert!(same("db@sha256:aa", "db@sha256:aa") && !same("db@sha256:aa", "db@sha256:aa:latest"));
        assert!(!same("vllm", "docker.io/library/vllm:latest"), "the node lists the full name");
    }
}
