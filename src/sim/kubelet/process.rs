//! How long a virtual process runs and how it ends, read from the pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};

/// Annotation: seconds that app containers without a `sleep` run.
pub const RUN_SECONDS: &str = "sim.baton.io/run-seconds";
/// Annotation: exit code of app containers.
pub const EXIT_CODE: &str = "sim.baton.io/exit-code";
/// Annotation: seconds that a container takes to end, with code 0, after it is asked to.
pub const STOP_SECONDS: &str = "sim.baton.io/stop-seconds";

/// A virtual process: what the container's command would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// How long it runs; `None`: until it is stopped.
    pub runs: Option<Duration>,
    /// How it ends then.
    pub exit_code: i32,
    /// How long it takes to stop; `None`: as the kubelet's options say.
    pub stops: Option<Duration>,
}

impl Process {
    /// Reads `sleep N` and `exit N` out of command and arguments, then the pod's annotations. An init container that says
    /// nothing ends at once, any other container runs until it is stopped.
    pub fn of(pod: &Pod, container: &Container, plain_init: bool) -> Self {
        let text: Vec<String> =
            [&container.command, &container.args].into_iter().flatten().flatten().cloned().collect();
        let text = text.join(" ");
        let words: Vec<&str> = text.split([' ', ';', '&', '\n', '\t']).filter(|word| !word.is_empty()).collect();
        let after = |name: &str| {
            let at = words.iter().position(|word| word.rsplit('/').next() == Some(name))?;
            words.get(at + 1).copied()
        };
        let annotation = |key: &str| {
            let annotations = pod.metadata.annotations.as_ref().filter(|_| !plain_init)?;
            annotations.get(key).map(String::as_str)
        };
        let length = |seconds: &str| {
            let seconds: f64 = seconds.trim_end_matches('s').parse().ok()?;
            Duration::try_from_secs_f64(seconds).ok()
        };
        let sleep = after("sleep").or_else(|| annotation(RUN_SECONDS));
        let exits = after("exit").or_else(|| annotation(EXIT_CODE)).and_then(|code| code.parse().ok());
        let named = words.first().and_then(|word| word.rsplit('/').next());
        let runs = match sleep {
            Some(seconds) => length(seconds),
            None if plain_init || exits.is_some() || matches!(named, Some("true" | "false")) => Some(Duration::ZERO),
            None => None,
        };
        let stops = annotation(STOP_SECONDS).and_then(length);
        Self { runs, exit_code: exits.unwrap_or(i32::from(named == Some("false"))), stops }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(command: &[&str], plain_init: bool) -> Process {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let container = Container { command: Some(command), ..Container::default() };
        Process::of(&Pod::default(), &container, plain_init)
    }

    #[test]
    fn a_sleep_tells_how_long() {
        let expected = Process { runs: Some(Duration::from_secs(300)), exit_code: 0, stops: None };
        assert_eq!(process(&["/bin/sleep", "300"], false), expected);
        assert_eq!(process(&["sleep", "infinity"], false), Process { runs: None, exit_code: 0, stops: None });
    }

    #[test]
    fn a_shell_line_tells_how_it_ends() {
        let expected = Process { runs: Some(Duration::from_millis(1500)), exit_code: 3, stops: None };
        assert_eq!(process(&["sh", "-c", "sleep 1.5; exit 3"], false), expected);
    }

    #[test]
    fn a_silent_container_runs_on_and_a_silent_init_container_ends() {
        assert_eq!(process(&[], false), Process { runs: None, exit_code: 0, stops: None });
        assert_eq!(process(&[], true), Process { runs: Some(Duration::ZERO), exit_code: 0, stops: None });
    }

    #[test]
    fn annotations_speak_for_app_containers() {
        let mut pod = Pod::default();
        let annotations =
            [(RUN_SECONDS, "2"), (EXIT_CODE, "1"), (STOP_SECONDS, "12")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        pod.metadata.annotations = Some(annotations.into());
        let expected =
            Process { runs: Some(Duration::from_secs(2)), exit_code: 1, stops: Some(Duration::from_secs(12)) };
        assert_eq!(Process::of(&pod, &Container::default(), false), expected);
    }
}
