//! A change of a node's worth in words.

use super::kind::PodKind;
use super::worth::{FreeOnNode, REST, Worth, usable};

/// Differences that are not worth a word, in GPUs.
const LITTLE: f64 = 0.05;

impl Worth {
    /// What a node loses beyond the GPUs that are taken, and which usual kind of pods is hurt most: `0.3 GPU less worth to typical
    /// pods: the share of 47 % would no longer fit for CPU`.
    pub fn explain(&self, before: FreeOnNode<'_>, after: FreeOnNode<'_>) -> String {
        let percents = |free: FreeOnNode<'_>| free.gpus.iter().map(|percent| f64::from(*percent)).sum::<f64>() / 100.0;
        let taken = percents(before) - percents(after);
        let lost = (self.of(before) - self.of(after)) / REST - taken;
        let amount = match lost {
            lost if lost > LITTLE => format!("{lost:.1} GPU less worth to typical pods"),
            lost if lost < -LITTLE => format!("{:.1} GPU used that typical pods leave over", -lost),
            _ => "worth as much as before to typical pods".to_owned(),
        };
        let groups = self.tables().kinds.iter().zip(self.tables().arrivals);
        let kinds = groups.flat_map(|(kinds, arrivals)| kinds.iter().map(move |(kind, part)| (kind, part * arrivals)));
        let gone = kinds.filter(|(kind, _)| usable(kind, before) > 0.0 && usable(kind, after) <= 0.0);
        match gone.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((kind, _)) => format!("{amount}: {} would no longer fit for {}", name(kind), lacking(kind, after)),
            None => amount,
        }
    }
}

fn name(kind: &PodKind) -> String {
    match (kind.gpus, kind.share) {
        (1, 100) => "one whole GPU".to_owned(),
        (gpus, 100) => format!("{gpus} whole GPUs"),
        (1, share) => format!("the share of {share} %"),
        (gpus, share) => format!("{gpus} shares of {share} %"),
    }
}

/// What a kind that does not fit lacks first.
fn lacking(kind: &PodKind, free: FreeOnNode<'_>) -> &'static str {
    if kind.milli_cpu > free.milli_cpu {
        "CPU"
    } else if kind.memory > free.memory {
        "memory"
    } else {
        "GPUs"
    }
}

#[cfg(test)]
mod tests {
    use crate::patience::{FreeOnNode, PodKind, Sample, Worth};

    #[test]
    fn the_loss_and_the_kind_that_is_hurt_most_are_named() {
        let share = PodKind { gpus: 1, share: 47, milli_cpu: 8000, memory: 0, selector: 0 };
        let pair = PodKind { gpus: 2, share: 100, milli_cpu: 1000, memory: 0, selector: 0 };
        let sample = Sample { parts: [(share, 0.9), (pair, 0.1)].into(), classes: vec![(1, 2)] };
        let worth = Worth::new(sample.tables(), None, 0.05);
        let free = |gpus, milli_cpu| FreeOnNode { gpus, milli_cpu, memory: 0, class: 1 };
        let said = worth.explain(free(&[100, 100], 64_000), free(&[100, 100], 4000));
        assert!(
            said.ends_with("GPU less worth to typical pods: the share of 47 % would no longer fit for CPU"),
            "{said}"
        );
        let said = worth.explain(free(&[100, 100], 64_000), free(&[100, 53], 56_000));
        assert!(said.ends_with(": 2 whole GPUs would no longer fit for GPUs"), "{said}");
        let said = worth.explain(free(&[50], 64_000), free(&[3], 56_000));
        assert!(said.ends_with(": the share of 47 % would no longer fit for GPUs"), "{said}");
        assert_eq!(worth.explain(free(&[], 64_000), free(&[], 56_000)), "worth as much as before to typical pods");
    }
}
