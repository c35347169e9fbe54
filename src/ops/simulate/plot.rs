//! The plot: GPUs in use against arrived demand, a line for each policy, as SVG.

use std::path::Path;

use anyhow::Context as _;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::experiment::RunFigures;
use super::summary::SimulationSummary;

/// Colours that differ also for people who see few of them.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
];

/// The colour of a policy, by its place.
pub fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

/// A part of the picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Whether it could be drawn.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Writes the file. `runs`: by policy, as in the summary.
pub fn write(path: &Path, summary: &SimulationSummary, runs: &[Vec<RunFigures>]) -> anyhow::Result<()> {
    let mut text = String::new();
    draw(&mut text, summary, runs).map_err(|error| anyhow::anyhow!("cannot draw: {error}"))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn draw(text: &mut String, summary: &SimulationSummary, runs: &[Vec<RunFigures>]) -> Drawn {
    let area = SVGBackend::with_string(text, (800, 600)).into_drawing_area();
    area.fill(&WHITE)?;
    curves(&area, summary, runs)?;
    Ok(area.present()?)
}

/// Draws the lines.
pub fn curves(area: &Area<'_>, summary: &SimulationSummary, runs: &[Vec<RunFigures>]) -> Drawn {
    let most = runs.iter().flatten().filter_map(|run| run.curve.keys().last()).max().copied().unwrap_or(100).max(1);
    let title = format!("{}: GPUs in use by arrived demand, %", summary.trace);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(44)
        .build_cartesian_2d(0u32..most, 0.0..100.0)?;
    chart.configure_mesh().x_desc("arrived demand, % of all GPUs").y_desc("in use, %").draw()?;
    for (at, (policy, runs)) in summary.policies.iter().zip(runs).enumerate() {
        let mean = |percent: u32| {
            let values: Vec<f64> = runs.iter().filter_map(|run| run.curve.get(&percent).copied()).collect();
            (!values.is_empty()).then(|| (percent, values.iter().sum::<f64>() / values.len() as f64))
        };
        let style = colour(at).stroke_width(2);
        chart
            .draw_series(LineSeries::new((0..=most).filter_map(mean), style))?
            .label(&policy.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).background_style(WHITE).draw()?;
    Ok(())
}
