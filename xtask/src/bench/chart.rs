//! An SVG chart of rate over size with one line for each series. Labels are plain text.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
/// Margins for labels: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 16.0, 16.0, 44.0);
const COLOURS: [&str; 6] = ["#1b6ca8", "#c2571a", "#2e7d32", "#7b3fa0", "#a8901b", "#444444"];

/// Sizes in bytes with rates, ascending in size.
pub(crate) type Points = Vec<(u64, f64)>;

/// A line of the chart.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Points,
    /// Whether it is the reference, which is drawn dashed.
    pub(crate) is_reference: bool,
}

/// Returns the chart of one path, empty without points.
pub(crate) fn svg(title: &str, unit: &str, series: &[Series]) -> String {
    let sizes: Vec<u64> = {
        let mut all: Vec<u64> =
            series.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (Some(&smallest), Some(&largest)) = (sizes.first(), sizes.last()) else { return String::new() };
    let top = series.iter().flat_map(|line| line.points.iter().map(|point| point.1)).fold(0.0, f64::max);
    let scale = Scale { smallest: log2(smallest), largest: log2(largest), top: ceiling(top) };

    let mut out = String::new();
    let legend_height = 18.0 * series.len() as f64;
    let _infallible = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\" \
         font-family=\"sans-serif\" font-size=\"12\">",
        HEIGHT + legend_height,
        escape(title)
    );
    grid(&mut out, &scale, &sizes, unit);
    for (index, line) in series.iter().enumerate() {
        let colour = COLOURS.get(index % COLOURS.len()).copied().unwrap_or("#444444");
        draw_line(&mut out, &scale, line, colour);
        legend(&mut out, line, colour, HEIGHT + 18.0 * index as f64);
    }
    out.push_str("</svg>\n");
    out
}

struct Scale {
    smallest: f64,
    largest: f64,
    top: f64,
}

impl Scale {
    fn x(&self, bytes: u64) -> f64 {
        let (left, right, ..) = MARGIN;
        let span = (self.largest - self.smallest).max(1.0);
        left + (log2(bytes) - self.smallest) / span * (WIDTH - left - right)
    }

    fn y(&self, value: f64) -> f64 {
        let (.., top, bottom) = MARGIN;
        HEIGHT - bottom - value / self.top * (HEIGHT - top - bottom)
    }
}

fn grid(out: &mut String, scale: &Scale, sizes: &[u64], unit: &str) {
    let (left, right, ..) = MARGIN;
    for step in 0..=4_u8 {
        let value = scale.top * f64::from(step) / 4.0;
        let y = scale.y(value);
        let _infallible = write!(
            out,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - right,
            left - 6.0,
            y + 4.0,
            number(value)
        );
    }
    let _infallible = write!(out, "<text x=\"4\" y=\"12\">{}</text>", escape(unit));
    let mut free_from = f64::NEG_INFINITY;
    for &bytes in sizes {
        let x = scale.x(bytes);
        // Omit a label that would overlap its neighbour; the point is still drawn.
        if x < free_from {
            continue;
        }
        free_from = x + 58.0;
        let _infallible = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 24.0,
            size(bytes)
        );
    }
}

fn draw_line(out: &mut String, scale: &Scale, line: &Series, colour: &str) {
    let points: Vec<String> = line
        .points
        .iter()
        .map(|(bytes, value)| format!("{:.1},{:.1}", scale.x(*bytes), scale.y(*value)))
        .collect();
    let dash = if line.is_reference { " stroke-dasharray=\"5 4\"" } else { "" };
    let _infallible = write!(
        out,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} points=\"{}\"/>",
        points.join(" ")
    );
    for (bytes, value) in &line.points {
        let _infallible = write!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {} at {}</title></circle>",
            scale.x(*bytes),
            scale.y(*value),
            escape(&line.label),
            number(*value),
            size(*bytes)
        );
    }
}

fn legend(out: &mut String, line: &Series, colour: &str, y: f64) {
    let (left, ..) = MARGIN;
    let dash = if line.is_reference { " stroke-dasharray=\"5 4\"" } else { "" };
    let _infallible = write!(
        out,
        "<line x1=\"{left}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
         <text x=\"{}\" y=\"{}\">{}</text>",
        left + 28.0,
        left + 36.0,
        y + 4.0,
        escape(&line.label)
    );
}

fn log2(bytes: u64) -> f64 {
    (bytes.max(1) as f64).log2()
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn ceiling(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

/// Formats a number with about three digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// Formats a size in the largest unit of which it is a multiple.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// Escapes text for HTML and SVG, including attribute values.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_has_a_line_per_series_and_a_point_per_measurement() {
        let line = |label: &str, is_reference| Series {
            label: label.to_owned(),
            points: vec![(4096, 0.5), (1 << 20, 38.0)],
            is_reference,
        };
        let chart = svg("a \"path\"", "GB/s", &[line("ours <simulated>", false), line("raw", true)]);
        assert_eq!(chart.matches("<polyline").count(), 2);
        assert_eq!(chart.matches("<circle").count(), 4);
        assert!(chart.contains("ours &lt;simulated&gt;") && chart.contains("a &quot;path&quot;"));
        assert!(chart.contains("1 MiB"));
    }

    #[test]
    fn chart_of_one_size_or_none_contains_no_nan() {
        assert_eq!(svg("t", "GB/s", &[]), "");
        let only = Series { label: "x".to_owned(), points: vec![(4096, 0.0)], is_reference: false };
        assert!(!svg("t", "GB/s", &[only]).contains("NaN"));
    }

    #[test]
    fn sizes_are_not_rounded() {
        assert_eq!(size(3 << 20), "3 MiB");
        assert_eq!(size(4097), "4097 B");
        assert_eq!(size(1 << 30), "1 GiB");
    }

    #[test]
    fn axis_ends_at_a_round_number() {
        assert_eq!(ceiling(38.0), 50.0);
        assert_eq!(ceiling(0.0), 1.0);
        // Some platforms do not round powers of ten to the last bit.
        assert!((ceiling(0.07) - 0.1).abs() < 1e-12);
    }
}
