//! Plots: bars and lines, on linear or logarithmic scales.

use std::fmt::Write as _;

const COLOURS: [&str; 12] = [
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0",
    "#22262e", "#c3cc1f",
];
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 310.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic, with a tick per decade.
    Log,
}

/// An axis of a plot.
#[derive(Clone, Debug)]
pub struct Axis<'a> {
    /// The label.
    pub label: &'a str,
    /// The scale.
    pub scale: Scale,
    /// The positions and names of the ticks, or `None` for numeric ticks.
    pub ticks: Option<Vec<(f64, String)>>,
}

impl<'a> Axis<'a> {
    /// Creates an axis with numeric ticks.
    #[must_use]
    pub fn new(label: &'a str, scale: Scale) -> Self {
        Self { label, scale, ticks: None }
    }
}

/// A line, or bars of one colour: a name and points.
pub type Series = (String, Vec<(f64, f64)>);

struct Mapping {
    low: f64,
    high: f64,
    scale: Scale,
    from: f64,
    to: f64,
}

impl Mapping {
    fn new(values: impl Iterator<Item = f64>, scale: Scale, from: f64, to: f64) -> Self {
        let (mut low, mut high) = values
            .filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => low = low.min(0.0),
            Scale::Log => {
                low = 10f64.powf(low.log10().floor());
                high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
            }
        }
        Self { low, high: if high > low { high } else { low + 1.0 }, scale, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        self.from + part * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Log => {
                let first = self.low.log10().round() as i32;
                let last = self.high.log10().round() as i32;
                (first..=last).map(|exponent| (10f64.powi(exponent), short(10f64.powi(exponent)))).collect()
            }
            Scale::Linear => {
                let raw = (self.high - self.low) / 5.0;
                let unit = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|k| k * unit).into_iter().find(|&s| s >= raw).unwrap_or(raw);
                let count = ((self.high - self.low) / step + 1e-9) as u32;
                (0..=count).map(|i| self.low + f64::from(i) * step).map(|value| (value, short(value))).collect()
            }
        }
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", value / 1e6),
        v if v >= 1e3 => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('`', "")
}

fn frame(title: &str, x: &Axis<'_>, y: &Axis<'_>, xs: &Mapping, ys: &Mapping, names: &[&str]) -> String {
    let mut out = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='sans-serif' \
         font-size='12'>\n<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>\n<text x='{LEFT}' y='22' \
         font-size='15'>{}</text>\n",
        escape(title)
    );
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (value, label) in y.ticks.clone().unwrap_or_else(|| ys.ticks()) {
        let at = ys.at(value);
        _ = writeln!(out, "<path d='M{LEFT} {at:.1}H{right}' stroke='#ddd'/>");
        _ = writeln!(out, "<text x='{}' y='{:.1}' text-anchor='end'>{}</text>", LEFT - 6.0, at + 4.0, escape(&label));
    }
    for (value, label) in x.ticks.clone().unwrap_or_else(|| xs.ticks()) {
        let at = xs.at(value);
        let place = format!("x='{at:.1}' y='{}' text-anchor='middle'", bottom + 18.0);
        _ = writeln!(out, "<text {place}>{}</text>", escape(&label));
    }
    let middle = f64::midpoint(LEFT, right);
    _ = writeln!(out, "<text x='{middle}' y='{}' text-anchor='middle'>{}</text>", HEIGHT - 14.0, escape(x.label));
    let middle = f64::midpoint(TOP, bottom);
    let place = format!("x='16' y='{middle}' text-anchor='middle' transform='rotate(-90 16 {middle})'");
    _ = writeln!(out, "<text {place}>{}</text>", escape(y.label));
    for (i, name) in names.iter().enumerate() {
        let (at, colour) = (TOP + 18.0 * i as f64, COLOURS[i % COLOURS.len()]);
        _ = writeln!(out, "<rect x='{}' y='{at}' width='12' height='12' fill='{colour}'/>", right + 14.0);
        _ = writeln!(out, "<text x='{}' y='{}'>{}</text>", right + 32.0, at + 11.0, escape(name));
    }
    out
}

/// Draws one line per series, through its points.
#[must_use]
pub fn lines(title: &str, x: &Axis<'_>, y: &Axis<'_>, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|(_, points)| points);
    let xs = Mapping::new(points().map(|point| point.0), x.scale, LEFT, WIDTH - RIGHT);
    let ys = Mapping::new(points().map(|point| point.1), y.scale, HEIGHT - BOTTOM, TOP);
    let names: Vec<_> = series.iter().map(|(name, _)| name.as_str()).collect();
    let mut out = frame(title, x, y, &xs, &ys, &names);
    for (i, (_, points)) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path: Vec<_> = points.iter().map(|&(x, y)| format!("{:.1},{:.1}", xs.at(x), ys.at(y))).collect();
        _ = writeln!(out, "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.8'/>", path.join(" "));
        for &(x, y) in points {
            _ = writeln!(out, "<circle cx='{:.1}' cy='{:.1}' r='2.4' fill='{colour}'/>", xs.at(x), ys.at(y));
        }
    }
    out + "</svg>\n"
}

/// Draws groups of adjacent bars: in each group, one bar per series that has a point whose x is the group's index.
#[must_use]
pub fn bars(title: &str, groups: &[&str], y: &Axis<'_>, series: &[Series]) -> String {
    let ticks = groups.iter().enumerate().map(|(i, group)| (i as f64 + 0.5, (*group).to_owned())).collect();
    let x = Axis { label: "", scale: Scale::Linear, ticks: Some(ticks) };
    let xs = Mapping::new([0.0, groups.len() as f64].into_iter(), Scale::Linear, LEFT, WIDTH - RIGHT);
    let heights = series.iter().flat_map(|(_, points)| points.iter().map(|point| point.1));
    let ys = Mapping::new(heights, y.scale, HEIGHT - BOTTOM, TOP);
    let names: Vec<_> = series.iter().map(|(name, _)| name.as_str()).collect();
    let mut out = frame(title, &x, y, &xs, &ys, &names);
    let width = (xs.at(1.0) - xs.at(0.0)) * 0.86 / series.len() as f64;
    for (i, (_, points)) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        for &(group, value) in points {
            let (left, top) = (xs.at(group + 0.07) + i as f64 * width, ys.at(value));
            let height = HEIGHT - BOTTOM - top;
            let place = format!("x='{left:.1}' y='{top:.1}' width='{:.1}' height='{height:.1}'", width * 0.92);
            _ = writeln!(out, "<rect {place} fill='{colour}'><title>{value:.0}</title></rect>");
        }
    }
    out + "</svg>\n"
}
