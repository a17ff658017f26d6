//! One chart of a path: a quantity over size, both axes logarithmic.

use maud::{Markup, html};

use super::letter;
use crate::bench::{
    format::{number, path, seconds, size},
    paths::{Change, Curve, Path, Timing},
};

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 236.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 26.0;
/// Width of a label of a size.
const LABEL: f64 = 52.0;
/// Width of the name of an upright line.
const NAME: f64 = 32.0;
const RADIUS: f64 = 6.5;
/// Letters of a method, about: the lines between them say where it goes on.
const LETTERS: usize = 10;
const DASHES: [&str; 3] = ["7 4", "2 3", "7 3 2 3"];

/// What is drawn over size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Bandwidth,
    Time,
}

impl Axis {
    pub(super) const BOTH: [Self; 2] = [Self::Bandwidth, Self::Time];

    fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "Bandwidth, GB/s",
            Self::Time => "Time of one copy",
        }
    }

    fn value(self, bytes: u64, seconds: f64) -> f64 {
        match self {
            Self::Bandwidth => bytes as f64 / seconds / 1e9,
            Self::Time => seconds,
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Bandwidth if value >= 1.0 => format!("{}", (value * 10.0).round() / 10.0),
            Self::Bandwidth => number(value),
            Self::Time => seconds(value),
        }
    }
}

/// The area of a chart: logarithms of the smallest and largest size and value.
struct Area {
    axis: Axis,
    sizes: (f64, f64),
    values: (f64, f64),
}

/// A point of a method.
struct Mark<'a> {
    method: &'a str,
    x: f64,
    y: f64,
    has_letter: bool,
}

/// Draws a path; nothing if there are fewer than two sizes.
pub(super) fn svg(index: usize, of: &Path, axis: Axis) -> Option<Markup> {
    let timings: Vec<&Timing> = of.methods.values().chain(of.references.values()).flatten().collect();
    let logs = |of: &dyn Fn(&Timing) -> [f64; 2]| {
        let all = timings.iter().flat_map(|timing| of(timing)).map(f64::log10);
        all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    };
    let sizes = logs(&|timing| [timing.bytes as f64; 2]);
    let (low, high) = logs(&|timing| [timing.low, timing.high].map(|time| axis.value(timing.bytes, time)));
    if !(sizes.1 > sizes.0 && low.is_finite() && high.is_finite()) {
        return None;
    }
    let area = Area { axis, sizes, values: (low - 0.05, (high + 0.05).max(low + 0.3)) };
    let id = format!("chart-{index}-{}", if axis == Axis::Time { "time" } else { "rate" });
    Some(html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) role="img"
            aria-labelledby={ (id) "-title " (id) "-desc" } {
            title id={ (id) "-title" } { (axis.name()) " over size, " (path(&of.name)) }
            desc id={ (id) "-desc" } { (describe(of, axis)) }
            text x="4" y="13" { (axis.name()) }
            (area.grid(&timings))
            (area.breaks(&of.planned, "plan", 12.0))
            (area.breaks(&of.measured, "best", 26.0))
            (area.chosen(of))
            @for (curve, dash) in of.references.values().zip(DASHES) {
                polyline.ref stroke-dasharray=(dash) points=(area.points(curve, |timing| timing.median)) {}
            }
            @for (method, curve) in &of.methods { (area.curve(method, curve)) }
            @for mark in area.marks(of) {
                @let (short, class) = letter(mark.method);
                circle.f.(class) cx=(round(mark.x)) cy=(round(mark.y)) r=(if mark.has_letter { RADIUS } else { 3.0 }) {}
                @if mark.has_letter {
                    text.mark x=(round(mark.x)) y=(round(mark.y + 3.6)) { (short) }
                }
            }
        }
    })
}

/// Returns the values of each method and reference, for those who do not see the chart.
fn describe(of: &Path, axis: Axis) -> String {
    let curve = |of: &str, (name, curve): (&String, &Curve)| {
        let at = |timing: &Timing| {
            let value = axis.value(timing.bytes, timing.median);
            format!("{} at {}", axis.text(value), size(timing.bytes))
        };
        format!("{of}{name}: {}", curve.iter().map(at).collect::<Vec<_>>().join(", "))
    };
    let methods = of.methods.iter().map(|it| curve("", it));
    methods.chain(of.references.iter().map(|it| curve("Reference ", it))).collect::<Vec<_>>().join(". ")
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

impl Area {
    fn x(&self, bytes: u64) -> f64 {
        let (low, high) = self.sizes;
        LEFT + RADIUS + ((bytes as f64).log10() - low) / (high - low) * (WIDTH - LEFT - RIGHT - 2.0 * RADIUS)
    }

    fn height(&self, log: f64) -> f64 {
        let (low, high) = self.values;
        HEIGHT - BOTTOM - (log - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    }

    fn y(&self, bytes: u64, seconds: f64) -> f64 {
        self.height(self.axis.value(bytes, seconds).log10())
    }

    fn points(&self, curve: &[Timing], time: fn(&Timing) -> f64) -> String {
        let point = |timing: &Timing| {
            format!("{:.1},{:.1}", self.x(timing.bytes), self.y(timing.bytes, time(timing)))
        };
        curve.iter().map(point).collect::<Vec<_>>().join(" ")
    }

    /// Powers of ten, and 2 and 5 times those if there are few; sizes as far apart as their labels need.
    fn grid(&self, timings: &[&Timing]) -> Markup {
        let (low, high) = self.values;
        let steps: &[f64] = if high - low < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = low.floor() as i32..=high.ceil() as i32;
        let ticks: Vec<f64> = powers
            .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
            .filter(|value| (low..=high).contains(&value.log10()))
            .collect();
        let mut sizes: Vec<u64> = timings.iter().map(|timing| timing.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut free_from = 0.0;
        sizes.retain(|bytes| {
            let x = self.x(*bytes);
            let is_free = x >= free_from && x + LABEL / 2.0 <= WIDTH + 6.0;
            if is_free {
                free_from = x + LABEL;
            }
            is_free
        });
        let rows = ticks.iter().map(|value| (*value, round(self.height(value.log10()))));
        let columns = sizes.iter().map(|bytes| (*bytes, round(self.x(*bytes))));
        let lines = rows.clone().map(|(_, y)| format!("M{LEFT} {y}H{}", WIDTH - RIGHT));
        let lines = lines.chain(columns.clone().map(|(_, x)| format!("M{x} {}v5", HEIGHT - BOTTOM)));
        html! {
            path.grid d=(lines.collect::<String>()) {}
            @for (value, y) in rows { text.y x=(LEFT - 5.0) y=(round(y + 4.0)) { (self.axis.text(value)) } }
            @for (bytes, x) in columns { text.x x=(x) y=(HEIGHT - 6.0) { (size(bytes)) } }
        }
    }

    fn breaks(&self, changes: &[Change], name: &str, y: f64) -> Markup {
        let (low, high) = self.sizes;
        let inside = |change: &&Change| {
            change.low == change.high && (low..=high).contains(&(change.low as f64).log10())
        };
        // One name for those that are too close for two.
        let mut free_from = 0.0;
        let places = changes.iter().filter(inside).map(|change| round(self.x(change.low)));
        let places = places.map(|x| {
            let is_free = x >= free_from;
            if is_free {
                free_from = x + NAME;
            }
            (x, is_free)
        });
        html! {
            @for (x, is_named) in places {
                line.plan[name == "plan"].meas[name != "plan"] x1=(x) x2=(x) y1=(y + 2.0) y2=(HEIGHT - BOTTOM) {}
                @if is_named { text x=(x + 3.0) y=(y) { (name) } }
            }
        }
    }

    fn chosen(&self, of: &Path) -> Markup {
        let chosen: Curve =
            of.choices.iter().filter_map(|choice| of.at(&choice.method, choice.bytes).copied()).collect();
        html! {
            @if chosen.len() > 1 { polyline.chosen points=(self.points(&chosen, |timing| timing.median)) {} }
        }
    }

    fn curve(&self, method: &str, curve: &[Timing]) -> Markup {
        let back: Curve = curve.iter().rev().copied().collect();
        let band = [self.points(curve, |timing| timing.low), self.points(&back, |timing| timing.high)];
        html! {
            polygon.band.f.(letter(method).1) points=(band.join(" ")) {}
            polyline.line.(letter(method).1) points=(self.points(curve, |timing| timing.median)) {}
        }
    }

    /// Returns the marks of each point: its place, and whether its letter has room there.
    fn marks<'a>(&self, of: &'a Path) -> Vec<Mark<'a>> {
        let mut marks: Vec<Mark<'_>> = Vec::new();
        for (method, curve) in &of.methods {
            for timing in curve.iter().step_by(curve.len().div_ceil(LETTERS)) {
                let (x, y) = (self.x(timing.bytes), self.y(timing.bytes, timing.median));
                let is_free = |x: f64| {
                    let is_far =
                        |mark: &Mark<'_>| !mark.has_letter || (mark.x - x).hypot(mark.y - y) >= 2.0 * RADIUS;
                    x + RADIUS <= WIDTH && marks.iter().all(is_far)
                };
                // Beside a letter that is there already, if not too far.
                let place = (0..=7_u8).map(|step| x + 2.0 * f64::from(step)).find(|x| is_free(*x));
                marks.push(Mark { method, x: place.unwrap_or(x), y, has_letter: place.is_some() });
            }
        }
        marks
    }
}
