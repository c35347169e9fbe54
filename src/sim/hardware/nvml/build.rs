//! Builds the C files beside it as one shared object with NVML's C ABI, `$OUT_DIR/libnvidia-ml.so.1`: the daemons `dlopen` it
//! exactly as they do the driver's. Compiles the API objects of `proto/`, `$OUT_DIR/objects.bin`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../proto/objects.proto";
    println!("cargo::rerun-if-changed={proto}");
    let objects = protox::Compiler::new(["../../proto"])?.open_file(proto)?.encode_file_descriptor_set();
    std::fs::write(std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("objects.bin"), objects)?;
    let sources = "hardware/nvml";
    println!("cargo::rerun-if-changed={sources}");
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("libnvidia-ml.so.1");
    // Optimised in every profile: the library is part of no measurement and is loaded by all of them.
    let compiler = cc::Build::new().opt_level(2).pic(true).warnings(true).try_get_compiler()?;
    let mut command = compiler.to_command();
    command.args(["-shared", "-fvisibility=hidden", "-pthread", "-o"]).arg(&out);
    for file in ["state.c", "device.c", "mig.c", "event.c"] {
        command.arg(format!("{sources}/{file}"));
    }
    let status = command.arg("-ldl").status()?;
    if !status.success() {
        return Err(format!("the virtual NVML library did not compile: {status}").into());
    }
    Ok(())
}
