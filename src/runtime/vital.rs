//! Background tasks that the process cannot do without.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::task::JoinHandle;

/// Runs `task` in the background. When it panics the process ends with status 1, so that the kubelet restarts it: half a
/// daemon would look like a whole one. `name` is for the log.
pub fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(async move {
        if AssertUnwindSafe(task).catch_unwind().await.is_err() {
            tracing::error!(task = name, "a task panicked, the process ends");
            std::process::exit(1);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    const CHILD: &str = "BATON_TEST_VITAL_CHILD";

    #[test]
    fn a_panic_in_a_vital_task_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let failing = async { assert!(std::env::var_os(CHILD).is_none(), "as wanted") };
            runtime.block_on(async { super::spawn("test", failing).await.unwrap() });
            return;
        }
        let name = "vital::tests::a_panic_in_a_vital_task_ends_the_process";
        let this = std::env::current_exe().unwrap();
        let child = Command::new(this).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let output = String::from_utf8_lossy(&child.stderr).into_owned() + &String::from_utf8_lossy(&child.stdout);
        assert_eq!(child.status.code(), Some(1), "{output}");
        assert!(output.contains("as wanted") && !output.contains("test result"), "it ended at once: {output}");
    }
}
