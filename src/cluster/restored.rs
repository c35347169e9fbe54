//! A store that was restored from a backup. Watches from before hear nothing of it until it has caught up with the versions that they
//! have seen, which may take days: on a real API server (1.36) a pod that is made after the restore is in no watch. So a process that
//! notices it ends, and lists all objects when it is started again.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The API server's store is older than what it answered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the API server's store went back from version {before} to {now}, as after a restore from a backup: the watches would receive nothing \
     more, so this process ends, and lists all objects when it is started again"
)]
pub struct Restored {
    /// Highest version seen.
    pub before: u64,
    /// Version of the object now.
    pub now: u64,
}

/// The highest version of one object that the API server has answered. A write raises the version of an object, and nothing but a restore
/// lowers it. What counts are answers from the store itself: to a write, or to a GET without a version.
#[derive(Debug, Default)]
pub struct HighestVersion(u64);

impl HighestVersion {
    /// Takes in what the API server answered.
    pub fn see(&mut self, object: &ObjectMeta) -> Result<(), Restored> {
        let Some(now) = object.resource_version.as_ref().and_then(|version| version.parse().ok()) else {
            return Ok(());
        };
        let before = self.0;
        if now < before {
            return Err(Restored { before, now });
        }
        self.0 = now;
        Ok(())
    }
}

/// Why a Lease was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The API server is away or refuses: the next try may succeed.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// No further try helps.
    #[error(transparent)]
    Restored(#[from] Restored),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ObjectMeta {
        ObjectMeta { resource_version: Some(text.to_owned()), ..ObjectMeta::default() }
    }

    #[test]
    fn only_a_lower_version_is_a_restore() {
        let mut highest = HighestVersion::default();
        for seen in ["7", "7", "120", "not a number"] {
            assert_eq!(highest.see(&version(seen)), Ok(()), "{seen}");
        }
        assert_eq!(highest.see(&ObjectMeta::default()), Ok(()));
        assert_eq!(highest.see(&version("119")), Err(Restored { before: 120, now: 119 }));
    }
}
