//! What a terminal shows, which has a width and colours, and what a pipe does that closes.

use std::io::Read;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::prelude::*;

/// What `command` prints on a terminal of so many columns, and what it says beside it.
fn on_terminal(mut command: Command, columns: u16) -> (String, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let path = std::path::PathBuf::from(name.to_str().unwrap());
    let terminal = std::fs::File::options().read(true).write(true).open(path).unwrap();
    tcsetwinsize(&master, Winsize { ws_col: columns, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let mut child = command.stdout(terminal).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut shown = Vec::new();
        // The end of the last writer is an error of the reader.
        let _ = std::fs::File::from(master).read_to_end(&mut shown);
        String::from_utf8(shown).unwrap()
    });
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    (reader.join().unwrap().replace("\r\n", "\n"), said)
}

async fn printed(command: Command, columns: u16) -> (String, String) {
    tokio::task::spawn_blocking(move || on_terminal(command, columns)).await.unwrap()
}

async fn cluster() -> TestServer {
    let server = TestServer::start().await;
    server.install(&Values::default()).await;
    let lock = json!({"scheduling.koordinator.sh/node-lock": "2026-11-21T02:35:12.000000001Z,a-namespace,a-pod-with-a-long-name,u1"});
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let node = json!({"metadata": {"name": "gpu-node-1.example.com", "annotations": lock}, "status": ready});
    server.create_object::<Node>(node).await;
    let gpu = json!({"type": "gpu", "id": "GPU-1", "minor": 0, "health": false, "resources": {"koordinator.sh/gpu-core": "100"}});
    let device = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": "gpu-node-1.example.com"}, "spec": {"devices": [gpu]}});
    server.create_object::<Device>(device).await;
    server
}

fn baton(server: &TestServer, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(args).env("KUBECONFIG", &server.kubeconfig).env_remove("NO_COLOR").env("TERM", "xterm");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_a_terminal_of_sixty_columns_and_name_what_they_leave_out() {
    let server = cluster().await;
    for resource in ["nodes", "devices", "locks", "pods"] {
        let (shown, said) = printed(baton(&server, &["get", resource]), 60).await;
        let plain = strip(&shown);
        let longest = plain.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= 60, "{resource}: {longest} columns\n{plain}");
        if resource == "nodes" {
            assert!(said.starts_with("not shown on 60 columns: STATUS (all Ready), PARTLY FREE (all 0)"), "{said}");
            assert!(plain.contains("GPUS FREE") && plain.contains("DAEMON"), "what matters stays:\n{plain}");
            let (_, said) = printed(baton(&server, &["get", resource]), 36).await;
            tells(said, ["not shown on 36 columns:", "-o wide shows all"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn states_have_colours_on_a_terminal_only_and_not_where_they_are_not_wanted() {
    let server = cluster().await;
    let coloured = |text: &str| text.contains('\u{1b}');
    let (shown, _) = printed(baton(&server, &["get", "devices"]), 200).await;
    assert!(coloured(&shown) && strip(&shown).contains("unhealthy"), "{shown:?}");
    let mut command = baton(&server, &["get", "devices"]);
    command.env("NO_COLOR", "1");
    let (shown, _) = printed(command, 200).await;
    assert!(!coloured(&shown), "{shown:?}");
    let (_, piped, _) = server.baton(&["get", "devices"]).await;
    assert!(!coloured(&piped) && piped.starts_with("NODE "), "{piped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_closes_ends_a_command_quietly_also_while_it_watches() {
    let server = cluster().await;
    for args in [&["get", "nodes"][..], &["get", "devices", "-o", "json"], &["get", "nodes", "--watch"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = baton(&server, args);
        let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = tokio::task::spawn_blocking(move || output.wait_with_output().unwrap()).await.unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{args:?}");
    }
}

/// Without the sequences that colour.
fn strip(text: &str) -> String {
    let mut rest = text.split('\u{1b}');
    let first = rest.next().unwrap_or_default().to_owned();
    rest.fold(first, |all, part| all + part.split_once('m').map_or("", |(_, text)| text))
}
