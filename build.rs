//! Compiles the kubelet's protobuf interfaces (`proto/`) without protoc, for `src/contract`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());
    let files = protox::compile(["deviceplugin.proto", "podresources.proto"], [proto])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
