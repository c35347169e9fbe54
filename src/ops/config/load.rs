//! Reads default, file, environment and flags in this order, and remembers which one each value came from.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use heck::ToKebabCase;

use super::nearest::meant;
use super::removed::{all_removed, removed};
use super::setting::{Section, Setting, variables};
use super::tree::{Misplaced, Spot};
use super::yaml;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The value was not set.
    Default,
    /// The configuration file.
    File {
        path: PathBuf,
        /// Line, from 1.
        line: u64,
    },
    Environment(String),
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "env {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// A configuration that cannot be used: where, what is wrong, and what was expected. Ends the process with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// Values that can be read and cannot work.
    pub fn unusable(command: &str, problem: impl fmt::Display) -> Self {
        Self(format!("{problem}; see `baton {command} --help`"))
    }

    fn of_variable(variable: &str, problem: &str) -> Self {
        Self(format!("environment variable {variable}: {problem}"))
    }
}

/// The options and where each value came from.
#[derive(Debug)]
pub struct Loaded<O> {
    pub options: O,
    /// By key.
    pub sources: BTreeMap<&'static str, Source>,
}

const CONFIG_FILE: &str = "config-file";

/// Adds one flag for each setting to `command`, and `--config-file`.
pub fn arguments<O: Default>(command: Command, settings: &[Setting<O>]) -> Command {
    let defaults = O::default();
    let file = Arg::new(CONFIG_FILE)
        .long(CONFIG_FILE)
        .value_name("FILE")
        .help("YAML file with the same keys as the flags below; flags and environment win over it [env: BATON_CONFIG_FILE, CONFIG_FILE]");
    command.arg(file).args(settings.iter().map(|setting| {
        let variables: Vec<String> = setting.variables().collect();
        let default = (setting.show)(&defaults);
        let default = if default.is_empty() { "unset".to_owned() } else { default };
        let help = format!("{} [env: {}] [default: {default}]", setting.help, variables.join(", "));
        let arg = Arg::new(setting.name)
            .long(setting.name)
            .visible_aliases(setting.aliases.iter().copied())
            .value_name(setting.value)
            .action(if setting.is_list() { ArgAction::Append } else { ArgAction::Set })
            .allow_hyphen_values(true)
            .help(help);
        if setting.is_switch() {
            // `--rdma` and `--rdma=false`, never `--rdma false`: a bare flag must not take the next word as its value.
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else {
            arg
        }
    }))
}

/// Default, then file, then environment, then flags. `environment` answers by variable name; an empty variable is unset.
pub fn load<O: Default>(
    settings: &[Setting<O>],
    sections: &[Section<O>],
    matches: &ArgMatches,
    environment: &dyn Fn(&str) -> Option<String>,
    command: &str,
) -> Result<Loaded<O>, ConfigError> {
    let environment = |name: &str| environment(name).filter(|value| !value.is_empty());
    let mut loaded = defaults(settings);
    let set = |variable: String| environment(&variable).map(|value| (value, variable));

    let by_flag = matches.get_one::<String>(CONFIG_FILE).map(|path| (path.clone(), Source::Flag));
    let by_variable = || variables(CONFIG_FILE).find_map(set).map(|(path, name)| (path, Source::Environment(name)));
    if let Some((path, by)) = by_flag.or_else(by_variable) {
        let path = PathBuf::from(path);
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|error| {
            let given = if by == Source::Flag { "--config-file".to_owned() } else { by.to_string() };
            ConfigError(format!("configuration file {}: {error}; check the path given by {given}", path.display()))
        })?;
        apply_file(settings, sections, &mut loaded, &path, &text, command)?;
    }
    let gone = all_removed().map(|(name, _)| name).filter(|name| !settings.iter().any(|known| known.name == *name));
    for (name, variable) in gone.flat_map(|name| variables(name).map(move |variable| (name, variable))) {
        if let Some(problem) = environment(&variable).and_then(|_| removed(name)) {
            return Err(ConfigError::of_variable(&variable, &problem));
        }
    }
    for setting in settings {
        if let Some((value, variable)) = setting.variables().find_map(set) {
            (setting.set)(&mut loaded.options, &value)
                .map_err(|problem| ConfigError::of_variable(&variable, &problem))?;
            loaded.sources.insert(setting.name, Source::Environment(variable));
        }
        if matches.value_source(setting.name) == Some(ValueSource::CommandLine)
            && let Some(values) = matches.get_many::<String>(setting.name)
        {
            let value = values.map(String::as_str).collect::<Vec<_>>().join(",");
            (setting.set)(&mut loaded.options, &value)
                .map_err(|problem| ConfigError(format!("--{}: {problem}", setting.name)))?;
            loaded.sources.insert(setting.name, Source::Flag);
        }
    }
    Ok(loaded)
}

/// What a file with this text says, without environment and flags. `path` is its name in errors.
pub fn load_text<O: Default>(
    settings: &[Setting<O>],
    sections: &[Section<O>],
    path: &Path,
    text: &str,
    command: &str,
) -> Result<Loaded<O>, ConfigError> {
    let mut loaded = defaults(settings);
    apply_file(settings, sections, &mut loaded, path, text, command)?;
    Ok(loaded)
}

fn defaults<O: Default>(settings: &[Setting<O>]) -> Loaded<O> {
    let sources = settings.iter().map(|setting| (setting.name, Source::Default)).collect();
    Loaded { options: O::default(), sources }
}

fn apply_file<O>(
    settings: &[Setting<O>],
    sections: &[Section<O>],
    loaded: &mut Loaded<O>,
    path: &Path,
    text: &str,
    command: &str,
) -> Result<(), ConfigError> {
    let wrong =
        |(line, column): Spot, problem: String| ConfigError(format!("{}:{line}:{column}: {problem}", path.display()));
    let entries = yaml::read(text).map_err(|error| wrong(error.at, error.problem))?;
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    let misplaced = |part: Misplaced| wrong(part.at, format!("{}: {}", part.path, part.problem));
    for section in sections {
        let Some(entry) = entries.iter().find(|entry| entry.key == section.name) else { continue };
        if let Some(lacking) = section.needs.iter().find(|name| !entries.iter().any(|entry| entry.key == **name)) {
            let problem = format!("the file says {} and no {lacking}: {}", section.name, section.advice);
            return Err(misplaced(Misplaced { at: entry.at, path: entry.key.clone(), problem }));
        }
        (section.read)(&mut loaded.options, &entry.value).map_err(misplaced)?;
        loaded.sources.insert(section.name, Source::File { path: path.to_owned(), line: entry.at.0 });
    }
    for entry in entries.iter().filter(|entry| !sections.iter().any(|section| section.name == entry.key)) {
        let (key, word) = (&entry.key, kebab(&entry.key));
        let Some(setting) = settings.iter().find(|setting| setting.names().any(|name| name == word)) else {
            if let Some(problem) = removed(&word) {
                return Err(wrong(entry.at, problem));
            }
            let known = settings.iter().flat_map(Setting::names).chain(sections.iter().map(|section| section.name));
            let meant = meant(key, known);
            let help = format!("the keys are the flags of `{command} --help` without the dashes");
            return Err(wrong(entry.at, format!("unknown key {key:?}{meant}; {help}")));
        };
        if let Some(first) = seen.insert(setting.name, key.clone()) {
            return Err(wrong(entry.at, format!("{key:?} says the same as {first:?}: keep one")));
        }
        let levels = || "expected a value, a list of values or a mapping of values, not more levels".to_owned();
        let set = entry.value.flat().ok_or_else(levels).and_then(|value| (setting.set)(&mut loaded.options, &value));
        set.map_err(|problem| wrong(entry.value.at, format!("{key}: {problem}")))?;
        loaded.sources.insert(setting.name, Source::File { path: path.to_owned(), line: entry.at.0 });
    }
    Ok(())
}

/// `verifyPeriod`, as Kubernetes' own files have their keys, means `verify-period`.
fn kebab(key: &str) -> Cow<'_, str> {
    let is_camel = key.starts_with(|c: char| c.is_ascii_lowercase()) && key.chars().all(|c| c.is_ascii_alphanumeric());
    // `deviceIDStrategy` is device, id, strategy.
    if is_camel { key.to_kebab_case().into() } else { key.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::table;
    use std::time::Duration;

    #[derive(Default, Debug)]
    struct Options {
        name: String,
        period: Duration,
        rdma: bool,
        words: Vec<String>,
    }

    fn settings() -> Vec<Setting<Options>> {
        table! {
            "node-name" | "host" "NAME" name "Name.";
            "verify-period" "DURATION" period "Period.";
            "rdma" "BOOL" rdma "RDMA.";
            "device-id-words" "LIST" words "Words.";
        }
    }

    fn run(flags: &[&str], environment: &[(&str, &str)], file: Option<&str>) -> Result<Loaded<Options>, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baton.yaml");
        let mut flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
            flags.extend(["--config-file".to_owned(), path.display().to_string()]);
        }
        let command = arguments(Command::new("t").no_binary_name(true), &settings());
        let matches = command.try_get_matches_from(flags).unwrap();
        let look_up =
            |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        load(&settings(), &[], &matches, &look_up, "baton t")
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let file = Some("node-name: from-file\nverify-period: 3s\nrdma: true\n");
        let loaded =
            run(&["--node-name", "from-flag"], &[("NODE_NAME", "from-env"), ("BATON_VERIFY_PERIOD", "2s")], file)
                .unwrap();
        assert_eq!(loaded.options.name, "from-flag");
        assert_eq!(loaded.options.period, Duration::from_secs(2));
        assert!(loaded.options.rdma);
        assert_eq!(loaded.sources["node-name"], Source::Flag);
        assert_eq!(loaded.sources["verify-period"].to_string(), "env BATON_VERIFY_PERIOD");
        assert!(loaded.sources["rdma"].to_string().ends_with("baton.yaml:3"));
        let untouched = run(&[], &[("BATON_RDMA", "")], None).unwrap();
        assert_eq!(untouched.sources["rdma"], Source::Default);
    }

    #[test]
    fn our_variables_have_a_prefix_and_those_of_other_programs_keep_their_names() {
        let loaded = run(&[], &[("VERIFY_PERIOD", "2s"), ("NODE_NAME", "a")], None).unwrap();
        assert_eq!((loaded.options.period, loaded.options.name.as_str()), (Duration::ZERO, "a"));
        let both = [("BATON_VERIFY_PERIOD", "3s"), ("BATON_NODE_NAME", "b"), ("NODE_NAME", "a")];
        let loaded = run(&[], &both, None).unwrap();
        assert_eq!((loaded.options.period, loaded.options.name.as_str()), (Duration::from_secs(3), "b"));
    }

    #[test]
    fn the_files_keys_may_be_written_as_those_of_kubernetes_are() {
        let loaded = run(&[], &[], Some("verifyPeriod: 3s\nnodeName: a\n")).unwrap();
        assert_eq!((loaded.options.period, loaded.options.name.as_str()), (Duration::from_secs(3), "a"));
        let twice = run(&[], &[], Some("verifyPeriod: 3s\nverify-period: 4s\n")).unwrap_err();
        assert!(twice.to_string().contains("says the same as"), "{twice}");
        assert!(run(&[], &[], Some("VerifyPeriod: 3s\n")).unwrap_err().to_string().contains("unknown key"));
    }

    #[test]
    fn a_list_may_be_given_in_several_flags_and_abbreviations_have_capitals() {
        let loaded =
            run(&["--device-id-words=a,b", "--device-id-words", "c"], &[("BATON_DEVICE_ID_WORDS", "z")], None).unwrap();
        assert_eq!(loaded.options.words, ["a", "b", "c"]);
        let loaded = run(&[], &[], Some("deviceIDWords: x\n")).unwrap();
        assert_eq!(loaded.options.words, ["x"]);
    }

    #[test]
    fn switches_stand_alone_and_aliases_mean_the_same() {
        assert!(run(&["--rdma"], &[], None).unwrap().options.rdma);
        assert!(!run(&["--rdma=false"], &[("BATON_RDMA", "true")], None).unwrap().options.rdma);
        assert_eq!(run(&["--host", "a"], &[], None).unwrap().options.name, "a");
        assert_eq!(run(&[], &[("BATON_HOST", "b")], None).unwrap().options.name, "b");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (flags, environment, file, parts) in [
            (
                &[][..],
                &[][..],
                Some("rdma: true\nnode-nam: a\n"),
                &["baton.yaml:2:1", "\"node-nam\"", "\"node-name\"?"][..],
            ),
            (&[], &[], Some("Nodename: a\n"), &["baton.yaml:1:1", "\"node-name\"?"]),
            (&[], &[], Some("something: a\n"), &["baton.yaml:1:1", "`baton t --help`"]),
            (&[], &[], Some("verify-period: 10\n"), &["baton.yaml:1:16", "verify-period", "\"10\"", "30s"]),
            (&[], &[], Some("host: a\nnode-name: a\n"), &["baton.yaml:2:1", "\"host\""]),
            (&[], &[], Some("- a\n"), &["baton.yaml:1:1"]),
            (&[], &[], Some("rdma: true\nhost: {a: {b: 1}}\n"), &["baton.yaml:2:7", "host", "levels"]),
            (&[], &[("BATON_RDMA", "maybe")], None, &["BATON_RDMA", "\"maybe\""]),
            (&[], &[], Some("finishUpgrade: true\n"), &["baton.yaml:1:1", "finish-upgrade was removed: leave it out"]),
            (&["--verify-period", "x"], &[], None, &["--verify-period", "\"x\""]),
            (&["--config-file", "/nonexistent.yaml"], &[], None, &["/nonexistent.yaml", "by --config-file"]),
        ] {
            let error = run(flags, environment, file).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{file:?}: {error} lacks {part}");
            }
        }
    }
}
