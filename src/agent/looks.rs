//! Which look at the GPUs comes next.

use std::collections::BTreeSet;

/// Looks at the GPUs that are wanted. One at a time is under way: they wait for each other in NVML anyway, and a thread each
/// is more than the daemon may have.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// A look is under way.
    pub under_way: bool,
    /// Everything is to be looked at.
    pub scan: bool,
    /// GPUs that are to be probed.
    pub probe: BTreeSet<String>,
    /// The last look was a scan: waiting probes come next, so that neither keeps the other out.
    scanned_last: bool,
}

impl Looks {
    /// The look to take now, if there is one and none is under way.
    pub fn next(&mut self) -> Option<Look> {
        if self.under_way {
            return None;
        }
        let probe_first = !self.probe.is_empty() && (self.scanned_last || !self.scan);
        let look = if probe_first {
            Look::Probe(std::mem::take(&mut self.probe).into_iter().collect())
        } else if std::mem::take(&mut self.scan) {
            Look::Scan
        } else {
            return None;
        };
        (self.under_way, self.scanned_last) = (true, !probe_first);
        Some(look)
    }
}

/// A look at the GPUs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The whole machine.
    Scan,
    /// These GPUs.
    Probe(Vec<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_at_a_time_is_taken_and_neither_kind_keeps_the_other_out() {
        let mut looks = Looks::default();
        let want = |looks: &mut Looks| {
            looks.scan = true;
            looks.probe.extend(["GPU-b".to_owned(), "GPU-a".to_owned(), "GPU-a".to_owned()]);
        };
        assert_eq!(looks.next(), None);
        want(&mut looks);
        let mut taken = Vec::new();
        for _ in 0..6 {
            taken.push(looks.next().unwrap());
            assert_eq!(looks.next(), None, "one is under way");
            want(&mut looks);
            looks.under_way = false;
        }
        let probe = || Look::Probe(vec!["GPU-a".to_owned(), "GPU-b".to_owned()]);
        assert_eq!(taken, [Look::Scan, probe(), Look::Scan, probe(), Look::Scan, probe()]);
    }
}
