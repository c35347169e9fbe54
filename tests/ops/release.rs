//! `.ci/release` before it builds anything: what it refuses, and with which words. In a repository of its own, made of the files that it
//! reads.

use crate::prelude::*;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

struct Repository {
    dir: tempfile::TempDir,
}

impl Repository {
    fn new() -> Self {
        let repository = Self { dir: tempfile::tempdir().unwrap() };
        for file in [".ci/release", ".ci/compile.sh", "Cargo.toml", "Dockerfile", "daemonset/chart/Chart.yaml"] {
            let to = repository.dir.path().join("tree").join(file);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(Path::new(ROOT).join(file), to).unwrap();
        }
        repository.git(&["init", "-q"]);
        repository.commit();
        // Every tool of this machine but the linkers, and a Rust that is the right one.
        std::fs::create_dir(repository.dir.path().join("bin")).unwrap();
        for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap()) {
            for tool in ["sh", "bash", "cut", "dirname", "git", "head", "paste", "realpath", "sed", "tr"] {
                let to = repository.dir.path().join("bin").join(tool);
                if folder.join(tool).is_file() && !to.exists() {
                    std::os::unix::fs::symlink(folder.join(tool), to).unwrap();
                }
            }
        }
        let dockerfile = std::fs::read_to_string(Path::new(ROOT).join("Dockerfile")).unwrap();
        let rust = dockerfile.split(" rust:").nth(1).unwrap().split('-').next().unwrap();
        repository.tool(
            "rustc",
            &format!("[ \"$1\" = --print ] && echo {} || echo rustc {rust}", repository.path("sysroot")),
        );
        repository
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn tool(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(&format!("bin/{name}"));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn git(&self, words: &[&str]) {
        let mut git = Command::new("git");
        git.current_dir(self.path("tree")).args(["-c", "user.name=a", "-c", "user.email=a@example.com"]);
        assert!(git.args(words).status().unwrap().success(), "git {words:?}");
    }

    fn commit(&self) {
        self.git(&["add", "."]);
        self.git(&["commit", "-q", "--no-verify", "-m", "a"]);
    }

    /// Whether it would build, and what it says.
    fn checked(&self, version: &str, variables: &[(&str, &str)]) -> (bool, String) {
        let mut release = Command::new(self.path("tree/.ci/release"));
        release.args([version, &self.path("out")]).env("PATH", self.path("bin")).env("STEPS", "check");
        let output = release.envs(variables.iter().copied()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(!Path::new(&self.path("out")).exists(), "a check makes nothing");
        (output.status.success(), said)
    }

    #[track_caller]
    fn refuses(&self, version: &str, variables: &[(&str, &str)], words: &[&str]) {
        let (would, said) = self.checked(version, variables);
        assert!(!would && words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    }
}

#[test]
fn a_version_that_is_none_or_another_is_refused() {
    let repository = Repository::new();
    for wrong in ["v0.1.0", "0.1", "01.2.3", "latest", "0.1.0;true"] {
        repository.refuses(wrong, &[], &[&format!("no release: {wrong} is no version")]);
    }
    repository.refuses("9.9.9", &[], &["version 9.9.9: Cargo.toml has", VERSION]);
    let chart = repository.path("tree/daemonset/chart/Chart.yaml");
    let text = std::fs::read_to_string(&chart).unwrap();
    std::fs::write(&chart, text.replace(&format!("appVersion: \"{VERSION}\""), "appVersion: \"0.0.1\"")).unwrap();
    repository.commit();
    repository.refuses(VERSION, &[], &["daemonset/chart/Chart.yaml has 0.0.1"]);
}

#[test]
fn a_dirty_tree_another_rust_and_a_missing_linker_are_named() {
    let repository = Repository::new();
    let lacks = [
        "the linker for amd64 is missing: x86_64-linux-gnu-gcc",
        "apt-get install",
        "no release: amd64 cannot be built",
    ];
    repository.refuses(VERSION, &[], &lacks);
    repository.tool("x86_64-linux-gnu-gcc", "");
    repository.refuses(VERSION, &[], &["rustup target add x86_64-unknown-linux-gnu"]);
    std::fs::create_dir_all(repository.path("sysroot/lib/rustlib/x86_64-unknown-linux-gnu/lib")).unwrap();
    repository.refuses(
        VERSION,
        &[],
        &["the linker for arm64 is missing: aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"],
    );
    let amd64 = ("ARCHITECTURES", "amd64");
    let (would, said) = repository.checked(VERSION, &[amd64]);
    assert!(would && said.contains("image: without a base"), "{said}");
    repository.refuses(
        VERSION,
        &[("ARCHITECTURES", "riscv64")],
        &["no programs for riscv64: amd64 and arm64 are known"],
    );
    repository.refuses(VERSION, &[amd64, ("BASE", "debian")], &["apt-get install mmdebstrap"]);
    repository.refuses(
        VERSION,
        &[amd64, ("BASE", "registry.example/base:1")],
        &["registry.example/base:1 is no file here", "skopeo"],
    );
    std::fs::write(repository.path("tree/more"), "").unwrap();
    repository.refuses(VERSION, &[amd64], &["the tree is dirty", "?? more"]);
    std::fs::remove_file(repository.path("tree/more")).unwrap();
    repository.tool("rustc", "echo rustc 1.80.0");
    repository.refuses(VERSION, &[amd64], &["here is rustc 1.80.0", "rustup toolchain install"]);
}
