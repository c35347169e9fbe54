//! Worth of the rest of a GPU: dual prices of the linear program that cuts GPUs into the sizes that are asked for.

use std::collections::BTreeMap;

use super::kind::PodKind;

/// Rounds of multiplicative weights: more change no price by a hundredth.
const ROUNDS: usize = 500;
/// Longest step of a round, for the size that its pattern serves best.
const STEP: f64 = 0.1;
/// Percent of a GPU.
const WHOLE: usize = 100;

/// Worth of a GPU of which so many percent are free; 1 for a whole one.
///
/// A size costs as much as it fills of a GPU in the best mixture of patterns. Each round prices the sizes, fills one GPU by these
/// prices and makes what it holds cheaper; the mean of the prices, each round's taken by the worth of its GPU, solves the program.
pub fn rest(parts: &BTreeMap<PodKind, f64>) -> [f64; WHOLE + 1] {
    let mut asked = [0.0; WHOLE + 1];
    for (kind, part) in parts {
        asked[usize::from(kind.share).clamp(1, WHOLE)] += part * f64::from(kind.gpus);
    }
    let sizes: Vec<usize> = (1..=WHOLE).filter(|size| asked[*size] > 0.0).collect();
    let mut costs: Vec<f64> = sizes.iter().map(|size| -(*size as f64 * asked[*size]).ln()).collect();
    let mut mean = vec![0.0; sizes.len()];
    for _ in 0..ROUNDS {
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let price = |(size, cost): (&usize, &f64)| (least - cost).exp() / asked[*size];
        let prices: Vec<f64> = sizes.iter().zip(&costs).map(price).collect();
        let best = Knapsack::of(&sizes, &prices);
        let fill = best.fill(&sizes);
        let served = |(size, count): (&usize, &u32)| f64::from(*count) / asked[*size];
        let most = sizes.iter().zip(&fill).map(served).fold(f64::MIN_POSITIVE, f64::max);
        for (at, size) in sizes.iter().enumerate() {
            costs[at] += STEP / most * f64::from(fill[at]) / asked[*size];
            mean[at] += STEP / most * prices[at] / best.worth[WHOLE];
        }
    }
    let best = Knapsack::of(&sizes, &mean);
    let whole = best.worth[WHOLE];
    if whole > 0.0 {
        return best.worth.map(|worth| worth / whole);
    }
    // No pod asks for anything: a rest is worth its size.
    std::array::from_fn(|percent| percent as f64 / WHOLE as f64)
}

/// The best sum of prices in so many percent, and the size that it ends with.
struct Knapsack {
    worth: [f64; WHOLE + 1],
    last: [Option<usize>; WHOLE + 1],
}

impl Knapsack {
    fn of(sizes: &[usize], prices: &[f64]) -> Self {
        let mut best = Self { worth: [0.0; WHOLE + 1], last: [None; WHOLE + 1] };
        for room in 1..=WHOLE {
            best.worth[room] = best.worth[room - 1];
            for (at, size) in sizes.iter().enumerate().take_while(|(_, size)| **size <= room) {
                let worth = best.worth[room - size] + prices[at];
                if worth > best.worth[room] {
                    (best.worth[room], best.last[room]) = (worth, Some(at));
                }
            }
        }
        best
    }

    /// How many of each size fill a whole GPU best.
    fn fill(&self, sizes: &[usize]) -> Vec<u32> {
        let (mut counts, mut room) = (vec![0; sizes.len()], WHOLE);
        while room > 0 {
            match self.last[room] {
                Some(at) => {
                    counts[at] += 1;
                    room -= sizes[at];
                }
                None => room -= 1,
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rests(asked: &[(u8, f64)]) -> [f64; 101] {
        let kind = |share| PodKind { gpus: 1, share, milli_cpu: 0, memory: 0, selector: 0 };
        rest(&asked.iter().map(|(share, part)| (kind(*share), *part)).collect())
    }

    fn near(worth: f64, expected: f64) -> bool {
        (worth - expected).abs() < 0.02
    }

    #[test]
    fn a_size_costs_what_it_fills_in_the_best_mixture_of_patterns() {
        let worth = rests(&[(100, 0.5), (50, 0.5)]);
        assert!(near(worth[50], 0.5) && near(worth[99], 0.5) && worth[49] == 0.0, "{worth:?}");
        // Two thirds are asked for as often as one third: together they fill a GPU.
        let worth = rests(&[(66, 0.5), (34, 0.5)]);
        assert!(near(worth[66] + worth[34], 1.0), "{worth:?}");
        // More of the large size than small ones to fill up with: it costs nearly a whole GPU, and the small size little.
        let worth = rests(&[(60, 0.8), (40, 0.2)]);
        assert!(near(worth[60], 1.0) && near(worth[40], 0.0), "{worth:?}");
    }

    #[test]
    fn worth_never_falls_with_room_and_ends_at_one() {
        for asked in [&[][..], &[(100, 1.0)], &[(7, 0.1), (33, 0.2), (50, 0.3), (95, 1e-9), (100, 0.4)]] {
            let worth = rests(asked);
            assert!(worth.windows(2).all(|pair| pair[0] <= pair[1]), "{worth:?}");
            assert!(near(worth[100], 1.0) && worth[0] == 0.0 && worth.iter().all(|worth| worth.is_finite()));
        }
    }
}
