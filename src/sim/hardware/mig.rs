//! MIG profiles of an H100 with 80 GB, with the instance ids that the driver gives them.

use std::io;

use super::layout::{MAX_MIG, device};
use super::library::Library;

/// One instance to be.
// NVML's own terms.
#[allow(clippy::struct_field_names)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigInstance {
    pub uuid: String,
    pub profile: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub gpu_slices: u32,
    pub compute_slices: u32,
    pub memory_mb: u64,
}

/// First and last GPU instance id per slice count.
const GPU_INSTANCES: [(u32, u32, u32); 5] = [(7, 0, 0), (4, 1, 1), (3, 1, 2), (2, 3, 5), (1, 7, 13)];
/// Memory per slice count, in MiB.
const MEMORY: [(u32, u64); 5] = [(7, 81_152), (4, 40_448), (3, 40_448), (2, 20_096), (1, 9_984)];

/// Instances for a list of profiles (`1g.10gb`, `1c.3g.40gb`); several compute slices of one GPU instance share it. An
/// error when a profile is none, or they do not fit on one GPU.
pub fn partition(profiles: &[&str], mut uuid: impl FnMut() -> String) -> io::Result<Vec<MigInstance>> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let mut instances: Vec<MigInstance> = Vec::new();
    for profile in profiles {
        let (compute, gpu) = slices(profile).ok_or_else(|| bad(format!("{profile:?} is not a MIG profile")))?;
        let ids = GPU_INSTANCES.iter().find(|(slices, ..)| *slices == gpu);
        let (_, first, last) = ids.ok_or_else(|| bad(format!("{profile:?}: no GPU instance has {gpu} slices")))?;
        let used = |id: u32| instances.iter().filter(move |i| i.gpu_instance == id).cloned().collect::<Vec<_>>();
        // A compute instance joins a GPU instance of its size that has slices left.
        let room = |id: &u32| {
            let there = used(*id);
            let taken: u32 = there.iter().map(|i| i.compute_slices).sum();
            there.iter().all(|i| i.gpu_slices == gpu) && taken + compute <= gpu
        };
        let id = (*first..=*last).find(room).ok_or_else(|| bad(format!("{profile:?}: no room left on the GPU")))?;
        let compute_instance = used(id).len() as u32;
        instances.push(MigInstance {
            uuid: uuid(),
            profile: (*profile).to_owned(),
            gpu_instance: id,
            compute_instance,
            gpu_slices: gpu,
            compute_slices: compute,
            memory_mb: MEMORY.iter().find(|(slices, _)| *slices == gpu).map_or(0, |(_, mb)| *mb),
        });
    }
    let mut slices: Vec<(u32, u32)> = instances.iter().map(|i| (i.gpu_instance, i.gpu_slices)).collect();
    slices.dedup();
    let total: u32 = slices.iter().map(|(_, slices)| slices).sum();
    if total > 7 || instances.len() > MAX_MIG - 1 {
        return Err(bad(format!("{total} GPU slices asked for; a GPU has 7")));
    }
    Ok(instances)
}

/// Compute and GPU slices of a profile name.
fn slices(profile: &str) -> Option<(u32, u32)> {
    let parts: Vec<&str> = profile.split('.').collect();
    let count = |text: &str, unit: char| text.strip_suffix(unit)?.parse::<u32>().ok();
    match parts.as_slice() {
        [gpu, _] => count(gpu, 'g').map(|gpu| (gpu, gpu)),
        [compute, gpu, _] => count(compute, 'c').zip(count(gpu, 'g')),
        _ => None,
    }
}

/// Writes the instances of one device; the mode is on with an empty list too.
pub fn write(library: &Library, slot: usize, instances: &[MigInstance]) -> io::Result<()> {
    // Hidden while the table changes.
    library.u32(Library::field(slot, device::MIG_COUNT), 0)?;
    for (at, instance) in instances.iter().enumerate() {
        let base = Library::field(slot, device::MIG + at as u64 * device::MIG_SIZE);
        library.text(base, 96, &instance.uuid)?;
        library.u32(base + 96, instance.gpu_instance)?;
        library.u32(base + 100, instance.compute_instance)?;
        library.u32(base + 104, instance.gpu_slices)?;
        library.u32(base + 108, instance.compute_slices)?;
        library.u64(base + 112, instance.memory_mb)?;
        library.text(base + 120, 40, &instance.profile)?;
    }
    library.u32(Library::field(slot, device::MIG_MODE), 2)?;
    library.u32(Library::field(slot, device::MIG_COUNT), instances.len() as u32)
}

/// Takes one instance away; its number stays free.
pub fn destroy(library: &Library, slot: usize, at: usize) -> io::Result<()> {
    library.text(Library::field(slot, device::MIG + at as u64 * device::MIG_SIZE), 96, "")
}
