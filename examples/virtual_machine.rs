//! The virtual hardware of `baton demo` and the tests, in a directory, for a node daemon beside a real kubelet:
//!
//! ```sh
//! cargo run --example virtual_machine -- DIR [VIRTUAL-FUNCTIONS-OF-EACH-NIC]
//! ```
//!
//! Give the daemon `DIR/sys` as its sysfs root, `DIR/proc` as its proc root, `DIR/driver` as its driver root and
//! `DIR/driver/usr/lib64/libnvidia-ml.so.1` as its NVML library. `DIR/dev` holds plain files, of which a container runtime makes no
//! devices: character devices of the same names have to stand in for them.

use std::process::ExitCode;

use baton::sim::hardware::{NodeSpec, VirtualNode};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (directory, functions) = (words.next(), words.next().map_or(Ok(0), |word| word.parse()));
    let (Some(directory), Ok(vfs_per_nic)) = (directory, functions) else {
        eprintln!("usage: virtual_machine DIR [VIRTUAL-FUNCTIONS-OF-EACH-NIC]");
        return ExitCode::FAILURE;
    };
    match VirtualNode::create(directory, NodeSpec { vfs_per_nic, ..NodeSpec::new("node") }) {
        Ok(machine) => {
            machine.gpu_uuids().iter().for_each(|uuid| println!("{uuid}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the machine cannot be built: {error}");
            ExitCode::FAILURE
        }
    }
}
