//! The plots of README.md as one SVG: allocation against arrived demand, a bar for each policy, idle GPUs by cause, and what is
//! left of each GPU.

use std::path::Path;

use baton::ops::simulate::experiment::{CAUSES, RunFigures};
use baton::ops::simulate::plot::{Area, Drawn, colour, curves};
use baton::ops::simulate::summary::SimulationSummary;
use baton::ops::simulate::trace::{Trace, WHOLE};
use plotters::prelude::*;

/// Writes the file. `runs`: by policy, as in the summary.
pub fn write(path: &Path, trace: &Trace, summary: &SimulationSummary, runs: &[Vec<RunFigures>]) -> Drawn {
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (1200, 900)).into_drawing_area();
    root.fill(&WHITE)?;
    let panels = root.split_evenly((2, 2));
    curves(&panels[0], summary, runs)?;
    bars(&panels[1], summary)?;
    idle(&panels[2], summary)?;
    strips(&panels[3], trace, summary, runs)?;
    root.present()?;
    drop((panels, root));
    Ok(std::fs::write(path, text)?)
}

fn bars(area: &Area<'_>, summary: &SimulationSummary) -> Drawn {
    let values: Vec<(f64, f64)> = summary
        .policies
        .iter()
        .map(|policy| {
            let spread = policy.allocation.at_load;
            (spread.mean.unwrap_or(0.0), spread.sd.unwrap_or(0.0))
        })
        .collect();
    // The differences are small: the axis begins below the lowest bar, and says so.
    let least = (values.iter().map(|(mean, _)| *mean).fold(100.0, f64::min) - 2.0).max(0.0).floor();
    let title = format!("GPUs in use at load {:.0} %, from {least:.0} % up", summary.load.unwrap_or_default() * 100.0);
    let mut chart = named(area, summary, &title, least..100.0)?;
    for (at, (mean, sd)) in values.iter().enumerate() {
        let left = at as f64;
        chart.draw_series([Rectangle::new([(left + 0.15, least), (left + 0.85, *mean)], colour(at).filled())])?;
        chart.draw_series([PathElement::new([(left + 0.5, mean - sd), (left + 0.5, mean + sd)], BLACK)])?;
        chart.draw_series([Text::new(format!("{mean:.2}"), (left + 0.2, mean + 0.4), ("sans-serif", 13))])?;
    }
    Ok(())
}

fn idle(area: &Area<'_>, summary: &SimulationSummary) -> Drawn {
    let sums = summary.policies.iter().map(|policy| policy.idle.values().sum::<f64>());
    let most = sums.fold(1.0, f64::max) * 1.3;
    let mut chart = named(area, summary, "Idle GPUs at the end by cause, %", 0.0..most)?;
    for (cause, name) in CAUSES.iter().enumerate() {
        let bars = summary.policies.iter().enumerate().map(|(at, policy)| {
            let below: f64 = CAUSES[..cause].iter().filter_map(|cause| policy.idle.get(cause)).sum();
            let own = policy.idle.get(name).copied().unwrap_or(0.0);
            Rectangle::new([(at as f64 + 0.15, below), (at as f64 + 0.85, below + own)], colour(cause).filled())
        });
        chart
            .draw_series(bars)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour(cause).filled()));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperRight).background_style(WHITE).draw()?;
    Ok(())
}

type Chart<'a, 'b> = ChartContext<
    'b,
    SVGBackend<'a>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// A chart with a place for each policy.
fn named<'a, 'b>(
    area: &'b Area<'a>,
    summary: &SimulationSummary,
    title: &str,
    range: std::ops::Range<f64>,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let count = summary.policies.len();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..count.max(1) as f64, range)?;
    let name = |at: &f64| {
        let near = (at.fract() - 0.5).abs() < 0.01;
        summary.policies.get(*at as usize).filter(|_| near).map(|policy| policy.name.clone()).unwrap_or_default()
    };
    chart.configure_mesh().disable_x_mesh().x_labels(2 * count + 1).x_label_formatter(&name).draw()?;
    Ok(chart)
}

/// A strip for each policy: machines from left to right, their GPUs from top to bottom, the darker the fuller, in quarters.
fn strips(area: &Area<'_>, trace: &Trace, summary: &SimulationSummary, runs: &[Vec<RunFigures>]) -> Drawn {
    let area = area.titled("Each GPU at the end of the first run: white is free", ("sans-serif", 18))?;
    let strips = area.split_evenly((summary.policies.len().max(1), 1));
    let columns = trace.machines.iter().filter(|machine| machine.gpus > 0).count().max(1);
    let most = trace.machines.iter().map(|machine| machine.gpus).max().unwrap_or(1).max(1);
    for ((strip, policy), runs) in strips.iter().zip(&summary.policies).zip(runs) {
        let (width, height) = strip.dim_in_pixel();
        strip.draw(&Text::new(policy.name.clone(), (12, height as i32 / 2 - 6), ("sans-serif", 13)))?;
        let (left, cell) = (100.0, (f64::from(width) - 112.0) / columns as f64);
        let row = (f64::from(height) - 6.0) / f64::from(most);
        let mut rests: Vec<_> =
            runs.first().iter().flat_map(|run| &run.rests).filter(|rest| !rest.gpus.is_empty()).collect();
        rests.sort_by_key(|rest| (std::cmp::Reverse(trace.machines[rest.machine].gpus), rest.gpus.iter().sum::<i64>()));
        let sorted = rests.iter().map(|rest| {
            let mut gpus = rest.gpus.clone();
            gpus.resize(trace.machines[rest.machine].gpus as usize, 0);
            gpus.sort_unstable();
            gpus
        });
        let machines: Vec<Vec<i64>> = sorted.collect();
        for y in 0..most as usize {
            // Neighbours of one shade are one rectangle: a large cluster stays a small file.
            let of_row: Vec<Option<u8>> =
                machines.iter().map(|gpus| gpus.get(y).map(|free| 59 + 49 * (4 * free / WHOLE) as u8)).collect();
            let mut from = 0;
            while let Some(shade) = of_row.get(from) {
                let to = from + of_row[from..].iter().take_while(|other| *other == shade).count();
                if let Some(shade) = *shade {
                    let corner = |x: usize, y: usize| ((left + x as f64 * cell) as i32, (3.0 + y as f64 * row) as i32);
                    strip.draw(&Rectangle::new(
                        [corner(from, y), corner(to, y + 1)],
                        RGBColor(shade, shade, shade).filled(),
                    ))?;
                }
                from = to;
            }
        }
    }
    Ok(())
}
