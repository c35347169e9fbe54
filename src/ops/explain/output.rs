//! What all subjects of `baton explain` share: common arguments, and the names of objects.

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::leader::{LeaderArgs, LeaderClient};
use crate::live::Access;
use crate::say::{Format, UsageError};
use baton_contract::name::{check_label_name, check_subdomain};

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExplainOutput {
    /// Text with every node and device, or every member.
    Wide,
    /// The answer as one JSON object.
    Json,
    /// The same as YAML.
    Yaml,
}

/// What all subjects share.
#[derive(Debug, Args)]
pub struct Common {
    /// Another format than text.
    #[arg(short, long, value_enum, global = true)]
    pub output: Option<ExplainOutput>,
    /// Which cluster.
    #[command(flatten)]
    pub access: Access,
    /// Where the scheduler is.
    #[command(flatten)]
    pub scheduler: LeaderArgs,
}

impl Common {
    /// The leading scheduler.
    pub async fn leader(&self) -> anyhow::Result<LeaderClient> {
        LeaderClient::find(&self.scheduler, &self.access).await
    }

    /// The namespace of what is named without one: `given`, else that of the kubeconfig's context, as kubectl has it.
    pub async fn namespace(&self, given: Option<&str>) -> String {
        match given {
            Some(given) => given.to_owned(),
            None => self.access.namespace().await,
        }
    }

    /// The answer, which is of this kind, in the requested format; `text` gets whether that is the wide one.
    pub fn print<T: Serialize>(
        &self,
        kind: &'static str,
        answer: &T,
        text: impl FnOnce(&T, bool) -> String,
    ) -> anyhow::Result<String> {
        Ok(match self.output {
            Some(ExplainOutput::Json) => Format::Json.print_as(kind, answer)?,
            Some(ExplainOutput::Yaml) => Format::Yaml.print_as(kind, answer)?,
            wide => text(answer, wide == Some(ExplainOutput::Wide)),
        })
    }
}

/// An object that is named.
#[derive(Debug, Args)]
pub struct NamedObject {
    /// `namespace/name`, or a name in --namespace.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub object: String,
    /// Namespace of what is given by its name alone; else that of the kubeconfig's context.
    #[arg(short, long)]
    pub namespace: Option<String>,
}

impl Common {
    /// The scheduler's answer about an object below `path`, printed.
    pub(super) async fn answer<T: Serialize + DeserializeOwned>(
        &self,
        (kind, printed): (&str, &'static str),
        of: &NamedObject,
        path: &str,
        text: impl FnOnce(&T, bool) -> String,
    ) -> anyhow::Result<String> {
        let namespace = self.namespace(of.namespace.as_deref()).await;
        let (namespace, name) = named(kind, &of.object, &namespace)?;
        let answer: T = self.leader().await?.get(&format!("{path}/{namespace}/{name}")).await?;
        self.print(printed, &answer, text)
    }
}

/// Namespace and name of an object that is given as `namespace/name`, or by its name in `namespace`. `kind` (`pod`) is for
/// messages.
pub(super) fn named<'a>(kind: &str, given: &'a str, namespace: &'a str) -> Result<(&'a str, &'a str), UsageError> {
    let (namespace, name) = given.split_once('/').unwrap_or((namespace, given));
    let checked = check_label_name("namespace", namespace).and_then(|()| check_subdomain("name", name));
    checked.map(|()| (namespace, name)).map_err(|bad| {
        UsageError(format!("{given:?} is no {kind}: {bad}; expected namespace/name, or a name with --namespace"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_alone_or_behind_its_namespace() {
        assert_eq!(named("pod", "ml/a.b", "default").unwrap(), ("ml", "a.b"));
        assert_eq!(named("pod", "a", "ml").unwrap(), ("ml", "a"));
        for bad in ["", "/", "ml/", "/a", "A", "a/b/c", "a b", "a?x=1", "-", "..", "ml/a/../b"] {
            let said = named("job", bad, "ml").unwrap_err().to_string();
            assert!(said.contains(&format!("{bad:?} is no job")) && said.contains("namespace/name"), "{said}");
        }
    }
}
