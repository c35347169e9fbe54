//! Which plugins are enabled at each extension point, in which order and with which weights; and how a configuration changes
//! that.

use std::collections::BTreeMap;

use crate::decide::scheduler::rules::{Enabled, Plugins, RegistryError};

use super::catalogue::{PLUGINS, Point, names_at};
use super::default_set::{DEFAULTS, DefaultSet};

/// A plugin in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// As the catalogue calls it.
    pub name: &'static str,
    /// Weight of its score, 1 to 100; 1 at other extension points.
    pub weight: i64,
}

/// Which plugins a configuration takes out of a default list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disabled {
    /// All: `*`.
    All,
    /// These.
    These(Vec<&'static str>),
}

/// The enabled plugins by extension point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLists(BTreeMap<Point, Vec<Listed>>);

impl Default for PluginLists {
    /// The default set.
    fn default() -> Self {
        let listed = |(name, weight): &(&'static str, i64)| Listed { name, weight: *weight };
        Self(DEFAULTS.iter().map(|(point, names)| (*point, names.iter().map(listed).collect())).collect())
    }
}

impl PluginLists {
    /// What is enabled at `point`, in the order in which it runs.
    pub fn at(&self, point: Point) -> &[Listed] {
        self.0.get(&point).map_or(&[], Vec::as_slice)
    }

    /// Changes one extension point: takes out what is disabled, gives what is enabled again its new weight in its place, and
    /// adds the rest at the end.
    pub fn change(&mut self, point: Point, enabled: Vec<Listed>, disabled: &Disabled) {
        let list = self.0.entry(point).or_default();
        list.retain(|listed| match disabled {
            Disabled::All => false,
            Disabled::These(names) => !names.contains(&listed.name),
        });
        let kept = list.len();
        for new in enabled {
            match list[..kept].iter_mut().find(|old| old.name == new.name) {
                Some(old) => *old = new,
                None => list.push(new),
            }
        }
    }

    /// Makes the plugins, and checks that they can work together.
    pub fn build(&self, set: &DefaultSet) -> Result<Plugins, RegistryError> {
        let made: BTreeMap<&str, _> = PLUGINS.iter().map(|(name, make)| (*name, make(set))).collect();
        let mut enabled = Enabled::default();
        for (point, list) in &self.0 {
            for listed in list {
                if let Some(plugin) = made.get(listed.name) {
                    plugin.enable(*point, listed.weight, &mut enabled);
                }
            }
        }
        self.are_together(Point::Filter, Point::PreFilter)?;
        self.are_together(Point::Score, Point::PreScore)?;
        // Pods would be bound without what was chosen for them.
        self.are_together(Point::Filter, Point::Reserve)?;
        // Claims would stay without their volumes.
        self.are_together(Point::Filter, Point::PreBind)?;
        if !self.has(Point::Filter, "DeviceFit") {
            return Err(RegistryError::NoDevices);
        }
        Plugins::new(enabled)
    }

    fn has(&self, point: Point, name: &str) -> bool {
        self.at(point).iter().any(|listed| listed.name == name)
    }

    /// A rule with both points must be enabled at `other` where it is at `point`: it would do half its work.
    fn are_together(&self, point: Point, other: Point) -> Result<(), RegistryError> {
        let apart = names_at(other).find(|name| self.has(point, name) && !self.has(other, name));
        let key = |wanted| Point::ALL.iter().find(|(point, _)| *point == wanted).map_or("", |(_, key)| *key);
        apart.map_or(Ok(()), |name| Err(RegistryError::Apart { name, point: key(point), other: key(other) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plus(name: &'static str, weight: i64) -> Listed {
        Listed { name, weight }
    }
    fn these(names: &[&'static str]) -> Disabled {
        Disabled::These(names.to_vec())
    }
    fn error(lists: &PluginLists) -> String {
        lists.build(&DefaultSet::default()).err().expect("a set that cannot work").to_string()
    }

    #[test]
    fn a_list_is_changed_in_place_and_added_to_at_the_end() {
        let mut lists = PluginLists::default();
        let enabled = vec![plus("GpuFragmentation", 5), plus("NodeAffinity", 9)];
        lists.change(Point::Score, enabled, &these(&["DeviceTopology"]));
        let names: Vec<_> = lists.at(Point::Score).iter().map(|listed| (listed.name, listed.weight)).collect();
        let expected = [
            ("RequestedToCapacityRatio", 3),
            ("NodeAffinity", 9),
            ("TaintToleration", 3),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("GpuFragmentation", 5),
        ];
        assert_eq!(names, expected);
        lists.change(Point::Score, vec![plus("NodeResourcesFit", 1)], &Disabled::All);
        assert_eq!(lists.at(Point::Score), [plus("NodeResourcesFit", 1)]);
        let plugins = lists.build(&DefaultSet::default()).unwrap();
        assert_eq!(plugins.enabled().score.len(), 1);
    }

    #[test]
    fn what_cannot_work_together_is_a_start_up_error() {
        let mut lists = PluginLists::default();
        lists.change(Point::QueueSort, vec![plus("QoSSort", 1)], &these(&[]));
        assert!(error(&lists).contains("PrioritySort and QoSSort"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::PreFilter, vec![], &these(&["VolumeBinding"]));
        assert!(error(&lists).contains("VolumeBinding"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::Reserve, vec![], &these(&["DeviceFit"]));
        assert!(error(&lists).contains("DeviceFit is enabled at filter and not at reserve"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::Filter, vec![], &Disabled::All);
        assert!(error(&lists).contains("DeviceFit"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::QueueSort, vec![plus("QoSSort", 1)], &Disabled::All);
        assert_eq!(lists.build(&DefaultSet::default()).unwrap().queue_sort().name(), "QoSSort");
    }
}
