//! The binary's own words: exit codes, and errors that say what, why, and what to do.

use crate::prelude::*;

fn command(args: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.env_clear().envs(environment.iter().copied()).args(args);
    command
}

fn baton(args: &[&str], environment: &[(&str, &str)]) -> Output {
    command(args, environment).output().unwrap()
}

/// Runs, expects this exit code, and returns what was said on standard error.
#[track_caller]
fn fails(code: i32, args: &[&str], environment: &[(&str, &str)]) -> String {
    let output = baton(args, environment);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    // Help is wrapped.
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(said.contains(part) || words.contains(part), "{part:?} is missing in:\n{said}");
    }
}

fn kubeconfig(folder: &Path) -> String {
    let path = folder.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n\
                contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n";
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn an_unknown_flag_names_the_nearest_one_and_ends_with_2() {
    says(&fails(2, &["device-plugin", "--mig-stratgy=none"], &[]), &["--mig-stratgy", "--mig-strategy"]);
    says(&fails(2, &["devise-plugin"], &[]), &["devise-plugin", "device-plugin"]);
}

#[test]
fn an_unknown_key_and_a_bad_value_in_the_file_are_named_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("baton.yaml");
    let path = file.to_str().unwrap();
    for (command, text, parts) in [
        (
            "device-plugin",
            "node-name: a\nmig-strategie: none\n",
            ["baton.yaml:2:1", "mig-strategie", "\"mig-strategy\"?"],
        ),
        ("device-plugin", "mig-strategy: double\n", ["baton.yaml:1:15", "double", "none, single, mixed"]),
        ("device-plugin", "rdma: [\n", ["baton.yaml:", "", ""]),
        ("scheduler", "unfit-grace: 15\n", ["baton.yaml:1:14", "unfit-grace", "30s"]),
        ("scheduler", "mig-strategy: none\n", ["baton.yaml:1:1", "mig-strategy", "`baton scheduler --help`"]),
    ] {
        std::fs::write(&file, text).unwrap();
        says(&fails(2, &[command, "--config-file", path], &[]), &parts);
        says(&fails(2, &[command], &[("CONFIG_FILE", path)]), &parts);
    }
    says(&fails(2, &["scheduler", "--config-file", "/nonexistent/baton.yaml"], &[]), &["/nonexistent/baton.yaml"]);
}

#[test]
fn a_bad_value_of_environment_or_flag_is_named() {
    let bad = [("FAIL_ON_INIT_ERROR", "perhaps"), ("NODE_NAME", "a")];
    says(&fails(2, &["device-plugin"], &bad), &["FAIL_ON_INIT_ERROR", "perhaps", "true nor false"]);
    says(&fails(2, &["device-plugin", "--suspect-min=2"], &[]), &["--suspect-min", "\"2\""]);
    says(&fails(2, &["device-plugin", "--log=,,=x"], &[]), &["--log"]);
}

#[test]
fn options_that_cannot_work_end_with_2_and_say_what_to_do() {
    says(&fails(2, &["device-plugin"], &[]), &["--node-name", "NODE_NAME"]);
    let gangs = ["scheduler", "--gang-waiting-time=8days"];
    says(&fails(2, &gangs, &[]), &["gang-waiting-time", "max-waiting-time"]);
}

#[test]
fn a_removed_key_is_refused_with_what_to_do_instead() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("baton.yaml");
    let path = file.to_str().unwrap();
    for (command, key, value, instead) in [
        ("device-plugin", "rescan-period", "2s", "leave it out: this time is fixed"),
        ("scheduler", "lock-sweep", "2s", "leave it out: this time is fixed"),
        ("scheduler", "more-scheduler-names", "a", "give all names to scheduler-name"),
        ("scheduler", "job-weights", "cpu=2", "in jobWeights"),
        ("controller", "lease-name", "a", "leave it out: the Lease has the name that the daemon's Role names"),
        ("controller", "concurrency", "4", "leave it out: the controller reconciles 16 jobs at once"),
        ("controller", "listen", "127.0.0.1:9414", "set metrics-listen"),
        ("device-plugin", "admin-auth", "none", "the commands reach it by a port-forward"),
        ("scheduler", "admin-tls-cert", "/a.crt", "the commands reach it by a port-forward"),
        ("controller", "admin-tls-key", "/a.key", "the commands reach it by a port-forward"),
    ] {
        let parts = [&*format!("{key} was removed: "), instead];
        says(&fails(2, &[command, &format!("--{key}={value}")], &[]), &parts);
        let variable = format!("BATON_{}", key.to_uppercase().replace('-', "_"));
        says(&fails(2, &[command], &[(&variable, value)]), &[&[&*variable], &parts[..]].concat());
        std::fs::write(&file, format!("{key}: {value}\n")).unwrap();
        says(&fails(2, &[command, "--config-file", path], &[]), &[&["baton.yaml:1:1"], &parts[..]].concat());
    }
    // What the controller no longer has is a key of the scheduler.
    says(&fails(2, &["scheduler"], &[("BATON_CONCURRENCY", "0")]), &["concurrency is zero"]);
    let outside = fails(2, &["scheduler"], &[("BATON_LISTEN", "[::]:9413")]);
    says(&outside, &["--listen: [::]:9413", "127.0.0.1:9413", "--metrics-listen"]);
}

#[test]
fn fixed_times_are_shortened_only_for_an_api_server_of_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let (file, local) = (folder.path().join("baton.yaml"), kubeconfig(folder.path()));
    let path = file.to_str().unwrap();
    let remote = folder.path().join("remote").display().to_string();
    for (command, time) in [("device-plugin", "rescan"), ("scheduler", "lock_sweep"), ("controller", "lease_retry")] {
        std::fs::write(&file, format!("timings: {{{time}: 1s}}\n")).unwrap();
        let start = |kubeconfig: &str| {
            // The last one ends every start, but what is wrong with the file comes first.
            let args = [command, "--config-file", path, "--kubeconfig", kubeconfig, "--namespace=A_b"];
            fails(2, &args, &[("NODE_NAME", "a")])
        };
        says(&start(&local), &["--namespace", "A_b"]);
        for server in ["https://10.0.0.1:6443", "https://localhost.example:6443", "https://[2001:db8::1]:6443"] {
            let text = std::fs::read_to_string(&local).unwrap().replace("http://127.0.0.1:1", server);
            std::fs::write(&remote, text).unwrap();
            let host = server.trim_start_matches("https://");
            let parts = ["timings (", "baton.yaml:1)", "for tests", "remove it", host, "not on a loopback address"];
            says(&start(&remote), &parts);
        }
        for server in ["https://localhost:6443", "https://[::1]:6443"] {
            let text = std::fs::read_to_string(&local).unwrap().replace("http://127.0.0.1:1", server);
            std::fs::write(&remote, text).unwrap();
            says(&start(&remote), &["--namespace", "A_b"]);
        }
        let nowhere = fails(2, &[command, "--config-file", path], &[("NODE_NAME", "a")]);
        says(&nowhere, &["timings (", "no API server to talk to"]);
    }
}

#[test]
fn a_missing_nvml_library_lists_every_path_tried() {
    let folder = tempfile::tempdir().unwrap();
    let (config, state) = (kubeconfig(folder.path()), folder.path().join("state"));
    let root = folder.path().display().to_string();
    let state = format!("--state-dir={}", state.display());
    let (driver, sysfs) = (format!("--driver-root={root}"), format!("--sysfs-root={root}"));
    let library = "--nvml-library=/nonexistent/libnvidia-ml.so.1";
    let silent = ["--listen=none", "--probe-listen=none", "--metrics-listen=none"];
    let own = ["device-plugin", "--node-name=a", "--kubeconfig", &config, &state, &driver, &sysfs, library];
    let said = fails(1, &[&own[..], &silent].concat(), &[]);
    says(&said, &["/nonexistent/libnvidia-ml.so.1", "--fail-on-init-error=false", "--nvml-library"]);
}

#[test]
fn what_differs_from_the_default_is_logged_with_its_sources() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path());
    let file = folder.path().join("baton.yaml");
    std::fs::write(&file, "rdma: false\n").unwrap();
    let root = folder.path().display().to_string();
    let state = format!("--state-dir={root}/state");
    let args =
        ["device-plugin", "--kubeconfig", &config, &state, "--config-file", file.to_str().unwrap(), "--listen=none"];
    // NVML is not there: the daemon ends by itself after it has said how it is configured.
    let library =
        ["--nvml-library=/nonexistent.so", "--log-format=json", "--probe-listen=none", "--metrics-listen=none"];
    let args: Vec<&str> = args.into_iter().chain(library).collect();
    let said = fails(1, &args, &[("NODE_NAME", "node-a")]);
    let line = said.lines().find(|line| line.contains("differs from the default")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let effective = line["config"].as_str().unwrap();
    says(effective, &["node-name=\"node-a\" (env NODE_NAME)", "baton.yaml:1)"]);
    says(effective, &["nvml-library=\"/nonexistent.so\" (flag)"]);
    assert!(!effective.contains("(default)"), "{effective}");
}

#[test]
fn an_api_server_that_is_not_there_is_an_error_of_get() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path());
    says(&fails(2, &["audit", "--kubeconfig", &config], &[]), &["no verdict: "]);
    let said = fails(1, &["get", "nodes", "--kubeconfig", &config], &[]);
    says(&said, &["cannot list nodes", "reachable"]);
    says(&fails(1, &["get", "nodes"], &[("KUBECONFIG", "/nonexistent/config")]), &["/nonexistent/config"]);
}

#[test]
fn the_help_teaches_exit_codes_and_layers() {
    let help = |args: &[&str]| String::from_utf8(baton(args, &[]).stdout).unwrap();
    says(&help(&["--help"]), &["Exit codes", "device-plugin", "scheduler", "get", "manifests", "crds"]);
    let text = help(&["device-plugin", "--help"]);
    says(&text, &["MIG_STRATEGY", "[default: none]", "--nvidia-driver-root", "flag wins over environment"]);
}

#[test]
fn every_command_is_told_by_its_own_words() {
    let help = |args: &[&str]| String::from_utf8(baton(args, &[]).stdout).unwrap();
    assert!(!help(&["--help"]).contains("Arguments of"));
    for (command, words) in [
        ("get", "writes nothing"),
        ("explain", "component=scheduler"),
        ("audit", "Exit code 1 when something does not hold"),
        ("manifests", "kubectl apply --server-side -f -"),
        ("crds", "PodGroup"),
        ("doctor", "[default: the name of this machine]"),
    ] {
        says(&help(&[command, "--help"]), &[words]);
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is_one() {
    let ended = |command: &mut Command| command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    for args in [&["crds"][..], &["crds", "-o", "json"], &["manifests"], &["scheduler", "--print-config"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = ended(command(args, &[]).stdout(writer));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{args:?}");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = ended(command(args, &[]).stdout(full));
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        says(&String::from_utf8_lossy(&output.stderr), &["cannot write to standard output", "No space left"]);
    }
}

#[test]
fn a_question_about_nothing_or_about_a_name_that_cannot_be_ends_with_2() {
    says(&fails(2, &["explain"], &[]), &["nothing to explain", "baton explain pod"]);
    says(&fails(2, &["explain", "queue"], &[]), &["unrecognized subcommand 'queue'"]);
    for subject in ["pod", "gang", "job"] {
        let url = ("BATON_ADMIN_URL", "http://127.0.0.1:1");
        says(&fails(2, &["explain", subject, "a b"], &[url]), &["\"a b\"", subject, "namespace/name"]);
        says(&fails(2, &["explain", subject, "a/b/c"], &[url]), &["a/b/c"]);
    }
    says(&fails(2, &["explain", "pod", "ml/a", "--what-if", "-f", "/dev/null"], &[]), &["cannot be used with"]);
    says(&fails(2, &["explain", "--what-if", "-f", "/dev/null", "pod", "ml/a"], &[]), &["name no other object"]);
    says(&fails(2, &["get", "nodes", "--node-lock-expiry", "abc"], &[]), &["\"abc\" is no duration", "30s"]);
    says(&fails(2, &["get", "queue", "--admin-url", "foo"], &[]), &["foo", "http://127.0.0.1:9413"]);
}

#[test]
fn waiting_for_a_silent_api_server_is_said() {
    use std::io::{BufRead, BufReader};
    // It takes connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path());
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("127.0.0.1:1'", &format!("{}'", silent.local_addr().unwrap()))).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for (args, words) in [
        (&["get", "nodes", "--kubeconfig", &config][..], "reading nodes: 0 so far"),
        (&["audit", "--kubeconfig", &config], "reading nodes: 0 so far"),
        (&["explain", "pod", "a/b", "--kubeconfig", &config], "looking for the scheduler"),
        (&["explain", "pod", "a/b", "--admin-url", &url], "asking the scheduler at http://127.0.0.1:"),
    ] {
        let mut child = command(args, &[]).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        says(&line, &[words]);
    }
}

#[test]
fn what_no_api_server_takes_is_refused_by_every_daemon_at_its_start() {
    for (command, flag) in [
        ("device-plugin", "--node-lock-key=a/b/c"),
        ("scheduler", "--node-lock-key=a/b/c"),
        ("scheduler", "--node-lock-key=x y"),
        ("scheduler", "--namespace=A_b"),
        ("scheduler", "--concurrency=18446744073709551615"),
        ("controller", "--namespace=A_b"),
        ("device-plugin", "--recovery-window=500000000000y"),
    ] {
        let (name, value) = flag.split_once('=').unwrap();
        says(&fails(2, &[command, flag], &[("NODE_NAME", "a")]), &[name, value]);
    }
}

#[test]
fn a_converted_file_starts_and_the_exit_code_says_whether_pods_go_elsewhere() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/scheduler-configs");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.yaml");
    let out = out.to_str().unwrap();
    for (name, code) in [
        ("heavy.yaml", 3),
        ("profiles.yaml", 3),
        ("out-of-tree.yaml", 3),
        ("own-lease.yaml", 3),
        ("v1beta3.yaml", 0),
        ("bin-packing.yaml", 0),
    ] {
        let file = fixtures.join(name).display().to_string();
        let converted = baton(&["config", "convert", &file], &[]);
        let said = String::from_utf8_lossy(&converted.stderr);
        assert_eq!(converted.status.code(), Some(code), "{name}: {said}");
        assert_eq!(said.contains("changes where pods go"), code == 3, "{name}: {said}");
        std::fs::write(out, &converted.stdout).unwrap();
        let printed = baton(&["scheduler", "--config-file", out, "--print-config"], &[]);
        let printed = String::from_utf8_lossy(&printed.stdout);
        says(&printed, &["leader-elect: true\n", "kubeconfig: none\n"]);
        says(&fails(2, &["scheduler", "--config-file", &file], &[]), &["apiVersion", "`baton config convert FILE`"]);
    }
    let bad = fixtures.join("fields.txt").display().to_string();
    says(&fails(1, &["config", "convert", &bad], &[]), &["fields.txt"]);
    std::fs::write(out, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]\n").unwrap();
    says(&fails(1, &["config", "convert", out], &[]), &["out.yaml", "hardPodAffinityWeight", "101", "100"]);
}
