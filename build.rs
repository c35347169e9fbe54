//! Compiles the kubelet's protobuf interfaces (`proto/`) without protoc, and, for the simulated cluster, a library with
//! NVML's C ABI that `sim::hardware` embeds.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["deviceplugin.proto", "podresources.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    layout()?;
    #[cfg(feature = "sim")]
    virtual_nvml()?;
    Ok(())
}

/// Functions that the daemons run lie side by side in an optimised binary (`benches/order.txt`, made by
/// `cargo bench --bench order`), and its relocations are packed: a node daemon then has a quarter of its pages
/// resident. Both are the linker's (LLD's, which is Rust's own on x86-64 Linux) and of glibc from 2.36; where a program linked
/// so cannot be made or does not run, and with `BATON_PLAIN_LINK=1`, the binary is linked the usual way.
fn layout() -> Result<(), Box<dyn std::error::Error>> {
    const ORDER: &str = "benches/order.txt";
    println!("cargo::rerun-if-changed={ORDER}");
    println!("cargo::rerun-if-env-changed=BATON_PLAIN_LINK");
    let word = |name: &str| std::env::var(name).unwrap_or_default();
    let order = std::path::Path::new(&word("CARGO_MANIFEST_DIR")).join(ORDER);
    let here = word("HOST") == word("TARGET") && word("TARGET").ends_with("linux-gnu");
    if word("PROFILE") != "release" || !here || !order.exists() || !word("BATON_PLAIN_LINK").is_empty() {
        return Ok(());
    }
    let flags = [
        format!("-Wl,--symbol-ordering-file={}", order.display()),
        "-Wl,--no-warn-symbol-ordering".to_owned(),
        "-Wl,-z,pack-relative-relocs".to_owned(),
    ];
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    let (source, probe) = (out.join("probe.rs"), out.join("probe"));
    std::fs::write(&source, "fn main() {}")?;
    let mut rustc = std::process::Command::new(std::env::var("RUSTC")?);
    rustc.args(["--crate-type", "bin", "--edition", "2024", "-o"]).arg(&probe).arg(&source);
    rustc.args(word("CARGO_ENCODED_RUSTFLAGS").split('\u{1f}').filter(|flag| !flag.is_empty()));
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        let mut flag = std::ffi::OsString::from("linker=");
        flag.push(linker);
        rustc.arg("-C").arg(flag);
    }
    rustc.args(flags.iter().map(|flag| format!("-Clink-arg={flag}")));
    let made = rustc.output().is_ok_and(|output| output.status.success());
    if made && std::process::Command::new(&probe).status().is_ok_and(|status| status.success()) {
        for flag in flags {
            println!("cargo::rustc-link-arg-bins={flag}");
        }
    }
    Ok(())
}

/// Builds `src/sim/hardware/nvml/*.c` as one shared object, `$OUT_DIR/libnvidia-ml.so.1`: the daemons `dlopen` it exactly
/// as they do the driver's.
#[cfg(feature = "sim")]
fn virtual_nvml() -> Result<(), Box<dyn std::error::Error>> {
    let sources = "src/sim/hardware/nvml";
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
