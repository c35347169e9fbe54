//! The real library, where there is one.

use std::sync::Arc;

use baton::hardware::machine::{self, Roots};
use baton::hardware::{NullProvider, NvmlOptions, NvmlProvider, driver};

use crate::skip::skipped;

use super::bench::CleanProbe;

#[test]
fn the_files_of_the_machine_at_hand_are_read_and_printed() {
    let machine = machine::scan(&Roots::default(), &NullProvider).unwrap();
    println!("{}", serde_json::to_string_pretty(&machine).unwrap());
    assert!(machine.boot_id.is_some());
    assert!(machine.nics.is_sorted_by(|a, b| a.bdf < b.bdf));
}

#[test]
fn real_nvml_is_read_and_printed() {
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        return skipped("this machine has no NVIDIA driver");
    }
    let provider = NvmlProvider::new(NvmlOptions::default(), Arc::new(|event| println!("event: {event:?}")));
    let machine = machine::scan(&Roots::default(), &provider).unwrap();
    println!("{}", serde_json::to_string_pretty(&machine).unwrap());
    println!("listening: {:?}", provider.listening());
    for gpu in &machine.gpus.gpus {
        let probe = baton::hardware::GpuProvider::probe(&provider, &gpu.uuid).unwrap();
        println!("{}: {:?}", gpu.uuid, probe);
        assert!(probe.is_clean());
    }
    for file in driver::files(&baton::hardware::Tree::open(&Roots::default().driver).unwrap()) {
        println!("{} -> {}", file.host.display(), file.container.display());
    }
    assert!(!machine.gpus.gpus.is_empty());
    assert_eq!(machine.gpus.faults, []);
}
