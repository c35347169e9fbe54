//! Which resources are served: the built-in table and what CustomResourceDefinitions add while the server runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::builtin;
use super::resource::Resource;

/// All served resources, by (group, version, plural). Cloned and swapped when a definition changes.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
    order: Vec<(String, Vec<String>)>,
}

impl Registry {
    /// The resources that are there without any CustomResourceDefinition.
    pub fn built_in() -> Self {
        let mut registry = Self { order: builtin::groups(), ..Self::default() };
        for resource in builtin::resources() {
            registry.insert(resource);
        }
        registry
    }

    fn insert(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.resources.insert(key, Arc::new(resource));
    }

    /// No longer serves the resources of a group, as a server that does not know them.
    pub fn remove_group(&mut self, group: &str) {
        self.resources.retain(|(of, _, _), _| of != group);
    }

    /// Adds or replaces a custom resource; its group becomes known.
    pub fn add_custom(&mut self, resource: Resource) {
        match self.order.iter_mut().find(|(g, _)| *g == resource.group) {
            Some((_, versions)) if versions.contains(&resource.version) => {}
            Some((_, versions)) => versions.push(resource.version.clone()),
            None => self.order.push((resource.group.clone(), vec![resource.version.clone()])),
        }
        self.insert(resource);
    }

    /// Removes what the definition named `definition` had added.
    pub fn remove_custom(&mut self, definition: &str) {
        self.resources.retain(|_, r| r.custom.as_ref().is_none_or(|c| c.definition != definition));
        let built_in: Vec<String> = builtin::groups().into_iter().map(|(g, _)| g).collect();
        let resources = &self.resources;
        self.order.retain(|(g, _)| built_in.contains(g) || resources.keys().any(|(group, _, _)| group == g));
        for (group, versions) in &mut self.order {
            if !built_in.contains(group) {
                versions.retain(|v| resources.keys().any(|(g, version, _)| g == group && version == v));
            }
        }
    }

    /// The resource at a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// Groups beside core with their versions, preferred first, in serving order.
    pub fn groups(&self) -> &[(String, Vec<String>)] {
        &self.order
    }

    /// Resources of one group and version, by plural.
    pub fn of(&self, group: &str, version: &str) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter().filter(move |((g, v, _), _)| g == group && v == version).map(|(_, r)| r)
    }

    /// Every resource, one per storage collection.
    pub fn stored(&self) -> Vec<Arc<Resource>> {
        let mut seen: Vec<&str> = Vec::new();
        let mut all = Vec::new();
        for resource in self.resources.values() {
            if !resource.storage.is_empty() && !seen.contains(&resource.storage.as_str()) {
                seen.push(&resource.storage);
                all.push(Arc::clone(resource));
            }
        }
        all
    }
}
