//! A part of kube-scheduler's file that knows its path, so that notes and errors name it.

use std::fmt;

use anyhow::{Context, bail};
use serde_json::Value;

/// A value of the file and where it stands: `profiles[0].schedulerName`.
#[derive(Debug, Clone)]
pub struct FilePart<'a> {
    pub path: String,
    pub value: &'a Value,
}

impl<'a> FilePart<'a> {
    pub fn at(path: impl Into<String>, value: &'a Value) -> Self {
        Self { path: path.into(), value }
    }

    pub fn fields(&self) -> anyhow::Result<Vec<(&'a str, Self)>> {
        let Some(fields) = self.value.as_object() else {
            bail!("{}: expected a mapping, found {}", self.path, self.value)
        };
        let dot = if self.path.is_empty() { "" } else { "." };
        Ok(fields.iter().map(|(key, value)| (&**key, Self::at(format!("{}{dot}{key}", self.path), value))).collect())
    }

    pub fn items(&self) -> anyhow::Result<Vec<Self>> {
        let Some(items) = self.value.as_array() else { bail!("{}: expected a list, found {}", self.path, self.value) };
        Ok(items.iter().enumerate().map(|(at, item)| Self::at(format!("{}[{at}]", self.path), item)).collect())
    }

    pub fn text(&self) -> anyhow::Result<&'a str> {
        self.value.as_str().with_context(|| format!("{}: expected a text, found {}", self.path, self.value))
    }

    pub fn number(&self) -> anyhow::Result<i64> {
        self.value.as_i64().with_context(|| format!("{}: expected a whole number, found {}", self.path, self.value))
    }

    /// The items `{name, weight}` of a list. As in kube-scheduler, a weight that is 0 or left out is 1.
    pub fn weights(&self) -> anyhow::Result<Vec<(&'a str, i64)>> {
        let weight = |item: &Self| -> anyhow::Result<(&'a str, i64)> {
            let (mut name, mut weight) = (None, 1);
            for (key, part) in item.fields()? {
                match key {
                    "name" => name = Some(part.text()?),
                    "weight" => weight = Some(part.number()?).filter(|weight| *weight != 0).unwrap_or(1),
                    _ => bail!("{part}: expected name and weight"),
                }
            }
            Ok((name.with_context(|| format!("{}: name is missing", item.path))?, weight))
        };
        self.items()?.iter().map(weight).collect()
    }
}

impl fmt::Display for FilePart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Value::Object(_) | Value::Array(_) => f.write_str(&self.path),
            Value::String(text) => write!(f, "{} = {text}", self.path),
            plain => write!(f, "{} = {plain}", self.path),
        }
    }
}

/// Takes out fields that are null or empty: to kube-scheduler they are as if left out.
pub fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(drop_empty);
            fields.retain(|_, value| match value {
                Value::Null => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}
