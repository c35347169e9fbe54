//! The verdict on each NIC of a node.

use super::selector::{NicFacts, NicSelector};

/// Why a NIC is not handed out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// A term excludes it.
    #[error("--rdma-select={0} excludes it")]
    Excluded(String),
    /// No term asks for it.
    #[error("--rdma-select={0} does not select it")]
    NotSelected(String),
    /// The host needs it.
    #[error("it carries the node's default route ({0}); select it by --rdma-select to have it served")]
    DefaultRoute(String),
}

/// The verdicts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NicChoice {
    /// One for each NIC, in their order.
    pub verdicts: Vec<Result<(), Unserved>>,
    /// There are NICs, and the selection takes none.
    pub none_selected: bool,
    /// NICs that carry the default route are served, because there are no others.
    pub last_resort: bool,
}

/// Judges the NICs of a node. Without terms that ask for NICs, one that carries the default route is left to the host, unless no
/// other NIC of those that are served has a link.
pub fn choose(selector: &NicSelector, nics: &[NicFacts]) -> NicChoice {
    let selected = |nic: &NicFacts| match (selector.excludes(nic), selector.asks_for(nic)) {
        (Some(term), _) => Err(Unserved::Excluded(term.to_string())),
        (None, Some(false)) => Err(Unserved::NotSelected(selector.to_string())),
        (None, Some(true) | None) => Ok(()),
    };
    let mut verdicts: Vec<Result<(), Unserved>> = nics.iter().map(selected).collect();
    let none_selected = !selector.is_empty() && !nics.is_empty() && verdicts.iter().all(Result::is_err);
    let is_the_hosts = |nic: &NicFacts| selector.asks_for(nic).is_none() && nic.carries.is_some();
    let left = |(nic, verdict): (&NicFacts, &Result<(), Unserved>)| verdict.is_ok() && nic.alive && !is_the_hosts(nic);
    let others = nics.iter().zip(&verdicts).any(left);
    let mut last_resort = false;
    for (nic, verdict) in nics.iter().zip(&mut verdicts).filter(|(nic, verdict)| verdict.is_ok() && is_the_hosts(nic)) {
        if others {
            *verdict = Err(Unserved::DefaultRoute(nic.carries.clone().unwrap_or_default()));
        } else {
            last_resort = true;
        }
    }
    NicChoice { verdicts, none_selected, last_resort }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By name: `~` carries the default route, `-` has no link.
    fn nics(text: &str) -> Vec<NicFacts> {
        let nic = |(at, name): (usize, &str)| NicFacts {
            name: name.trim_end_matches(['~', '-']).to_owned(),
            interfaces: Vec::new(),
            link_layers: vec!["Ethernet".to_owned()],
            vendor: Some(0x15b3),
            driver: None,
            address: format!("0000:{at:02x}:00.0"),
            carries: name.contains('~').then(|| "bond0".to_owned()),
            alive: !name.contains('-'),
        };
        text.split(' ').enumerate().map(nic).collect()
    }

    #[test]
    fn which_nics_are_served() {
        // Selector, NICs, those that are served, none selected, last resort.
        for (selector, given, served, none, last_resort) in [
            ("", "a b", "a b", false, false),
            ("", "a b~", "a", false, false),
            ("", "a- b~", "a b", false, true),
            ("", "a- b c~", "a b", false, false),
            ("", "a~ b~", "a b", false, true),
            ("", "a~", "a", false, true),
            ("!a", "a b~", "b", false, true),
            ("!a", "a b c~", "b", false, false),
            ("!c", "a b c~", "a b", false, false),
            ("b", "a b~", "b", false, false),
            ("*", "a b~", "a b", false, false),
            ("vendor=15b3", "a b~", "a b", false, false),
            ("vendor=8086", "a b~", "", true, false),
            ("a-*", "a b", "", true, false),
            ("a*,!ab", "aa ab b", "aa", false, false),
            ("!b", "b~", "", true, false),
            ("linkType=ib,a", "a b", "", true, false),
        ] {
            let (facts, selector) = (nics(given), selector.parse::<NicSelector>().unwrap());
            let choice = choose(&selector, &facts);
            let names: Vec<&str> = facts
                .iter()
                .zip(&choice.verdicts)
                .filter(|(_, verdict)| verdict.is_ok())
                .map(|(nic, _)| nic.name.as_str())
                .collect();
            let seen = (names.join(" "), choice.none_selected, choice.last_resort);
            assert_eq!(seen, (served.to_owned(), none, last_resort), "{selector} of {given}");
        }
        assert_eq!(choose(&"a".parse().unwrap(), &[]), NicChoice::default(), "a node without NICs lacks nothing");
    }

    proptest! {
        #[test]
        fn the_hosts_nic_is_served_only_when_asked_for_or_alone(
            given in proptest::collection::vec(("[a-d]", any::<bool>(), any::<bool>()), 0..6),
            selector in "(a|b|c|!a|!b|a,!b|[ab]|\\*|vendor=15b3|vendor=8086|)",
        ) {
            let selector: NicSelector = selector.parse().unwrap();
            let mut facts = nics(&vec!["x"; given.len()].join(" "));
            facts.truncate(given.len());
            for (nic, (name, carries, alive)) in facts.iter_mut().zip(&given) {
                (nic.name, nic.carries, nic.alive) = (name.clone(), carries.then(|| "eth0".to_owned()), *alive);
            }
            let choice = choose(&selector, &facts);
            prop_assert_eq!(choice.verdicts.len(), facts.len());
            let served: Vec<&NicFacts> =
                facts.iter().zip(&choice.verdicts).filter(|(_, verdict)| verdict.is_ok()).map(|(nic, _)| nic).collect();
            for nic in &served {
                prop_assert!(selector.excludes(nic).is_none() && selector.asks_for(nic) != Some(false));
                let alone = served.iter().all(|other| other.carries.is_some() || !other.alive);
                prop_assert!(nic.carries.is_none() || selector.asks_for(nic) == Some(true) || alone);
            }
            // What is not excluded and not the host's is served.
            let free = facts.iter().filter(|nic| nic.carries.is_none() && selector.excludes(nic).is_none());
            prop_assert!(free.filter(|nic| selector.asks_for(nic) != Some(false)).all(|nic| served.contains(&nic)));
            prop_assert_eq!(choice.none_selected, !selector.is_empty() && !facts.is_empty() && served.is_empty());
            // The default never leaves a node without NICs.
            prop_assert!(!selector.is_empty() || facts.is_empty() || !served.is_empty());
        }
    }
}
