//! Lines over a doubling axis, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// A line and its name.
pub struct Line {
    /// The line's name in the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// What the axes say.
pub struct Words<'a> {
    /// The title above the plot.
    pub caption: &'a str,
    /// The label of the horizontal axis.
    pub x: &'a str,
    /// The label of the vertical axis.
    pub y: &'a str,
}

/// Draws the lines.
///
/// # Errors
/// If the file can't be written, or there is nothing to draw.
pub fn lines(path: &Path, words: &Words<'_>, lines: &[Line]) -> Result<()> {
    draw(path, words, lines).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn draw(path: &Path, words: &Words<'_>, lines: &[Line]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let (left, right) = points().fold((f64::MAX, 1.0f64), |(low, high), (x, _)| (low.min(x), high.max(x)));
    let top = points().fold(f64::MIN_POSITIVE, |high, (_, y)| high.max(y));
    if left >= right {
        return Ok(()); // one point is no line
    }
    let root = SVGBackend::new(path, (720, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(words.caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((left..right).log_scale().base(2.0), 0.0..top * 1.05)?;
    chart.configure_mesh().x_desc(words.x).y_desc(words.y).x_label_formatter(&|x| format!("{x:.0}")).draw()?;
    for (index, line) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let legend = move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2));
        let series = LineSeries::new(line.points.iter().copied(), color.stroke_width(2)).point_size(3);
        chart.draw_series(series)?.label(&line.name).legend(legend);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE)
        .draw()?;
    root.present()?;
    Ok(())
}
