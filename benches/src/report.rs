//! Tables, as Markdown for people and as CSV for programs.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    machine::{self, Conditions, CpuTime},
    state::State,
    stats::quartiles,
};

/// A cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    value: Option<f64>,
    /// The lower quartile, the upper quartile and the number of samples, if the value is a median.
    spread: Option<[f64; 3]>,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: text.into(), value: None, spread: None }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, value: None, spread: None }
    }
}

/// Formats a number with commas between thousands.
#[must_use]
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 && !out.ends_with('-') {
            out.push(',');
        }
        out.push(c);
    }
    out + rest
}

/// Returns a number as a cell, or a dash if it is NaN.
#[must_use]
pub fn number(value: f64) -> Cell {
    if value.is_nan() {
        return "–".into();
    }
    let decimals = if value.abs() < 10.0 { 2 } else { 0 };
    Cell { text: grouped(value, decimals), value: Some(value), spread: None }
}

/// Returns the median as a cell, followed by the quartiles if there are several figures.
#[must_use]
pub fn spread(figures: &[f64]) -> Cell {
    let [lower, median, upper] = quartiles(figures);
    let mut cell = number(median);
    if cell.value.is_some() {
        cell.spread = Some([lower, upper, figures.len() as f64]);
    }
    if figures.len() > 1 {
        _ = write!(cell.text, " ({}–{})", number(lower).text, number(upper).text);
    }
    cell
}

/// A table.
#[derive(Debug)]
pub struct Table {
    key: String,
    title: String,
    note: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<Cell>)>,
}

impl Table {
    /// Creates a table with the heading `title` and the text `note` above it. `key` names it in the CSV file.
    #[must_use]
    pub fn new(key: &str, title: &str, note: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { key: key.into(), title: title.into(), note: note.into(), columns, rows: vec![] }
    }

    /// Creates a table of the timings in one state. The state is appended to the heading and to `key`.
    #[must_use]
    pub fn of_state(key: &str, state: State, title: &str, note: &str, columns: &[&str]) -> Self {
        Self::new(&self::key(key, state), &format!("{title}: {}", state.name()), note, columns)
    }

    /// Adds a row. Missing cells are empty.
    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push((name.into(), cells.into_iter().collect()));
    }

    /// Returns the table as Markdown, without its heading.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("| {} |\n|---{}|\n", self.columns.join(" | "), "|--:".repeat(self.columns.len() - 1));
        for (name, cells) in &self.rows {
            let mut texts: Vec<&str> = cells.iter().map(|cell| cell.text.as_str()).collect();
            texts.resize(self.columns.len() - 1, "");
            _ = writeln!(text, "| {name} | {} |", texts.join(" | "));
        }
        text
    }
}

/// The results of one benchmark.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    head: String,
    body: String,
    csv: String,
    begin: Option<CpuTime>,
}

impl Report {
    /// Creates a report that becomes `NAME.md` and `NAME.csv`.
    #[must_use]
    pub fn new(name: &'static str, title: &str, note: &str) -> Self {
        let head = format!("# {title}\n\n{note}\n");
        println!("\n{head}");
        let csv = "table,row,column,value,lower quartile,upper quartile,samples\n".into();
        Self { name, head, body: String::new(), csv, begin: CpuTime::now() }
    }

    /// Adds a table and prints it, unless it has no rows.
    pub fn add(&mut self, table: &Table) {
        if table.rows.is_empty() {
            return;
        }
        let note = if table.note.is_empty() { String::new() } else { format!("{}\n\n", table.note) };
        let text = format!("\n## {}\n\n{note}{}", table.title, table.markdown());
        println!("{text}");
        self.body += &text;
        let plain = |text: &str| text.replace(['"', '*', '`'], "");
        for (name, cells) in &table.rows {
            for (cell, column) in cells.iter().zip(&table.columns[1..]) {
                if let Some(value) = cell.value {
                    let (row, column) = (plain(name), plain(column));
                    let spread = cell.spread.map_or_else(|| ",,".into(), |[low, high, n]| format!("{low},{high},{n}"));
                    _ = writeln!(self.csv, "{},\"{row}\",\"{column}\",{value},{spread}", table.key);
                }
            }
        }
    }

    /// Writes a plot as `NAME-KEY.svg` and shows it in the report.
    ///
    /// # Panics
    /// If the plot cannot be written.
    pub fn plot(&mut self, key: &str, title: &str, svg: &str) {
        let file = format!("{}-{key}.svg", self.name);
        fs::write(folder().join(&file), svg).expect("the plot should be written");
        _ = write!(self.body, "\n![{title}]({file})\n");
    }

    /// Writes the files.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn save(self) {
        let Self { name, head, body, mut csv, begin } = self;
        let conditions = Conditions::since(begin);
        for (column, figure) in Conditions::COLUMNS.iter().zip(conditions.figures()).filter(|(_, f)| !f.is_nan()) {
            _ = writeln!(csv, "machine,\"run\",\"{column}\",{figure},,,");
        }
        let origin = format!("{}. {conditions}", machine::provenance());
        let origin = origin.trim_end();
        _ = writeln!(csv, "{PROVENANCE}{}", machine::provenance());
        println!("\n{origin}");
        let folder = folder();
        fs::write(folder.join(format!("{name}.md")), format!("{head}\n{origin}\n{body}"))
            .expect("the report should be written");
        fs::write(folder.join(format!("{name}.csv")), csv).expect("the figures should be written");
    }
}

fn folder() -> PathBuf {
    let folder = machine::out();
    fs::create_dir_all(&folder).expect("the folder for results should be made");
    folder
}

/// The prefix of a CSV file's line with the provenance of its figures.
const PROVENANCE: &str = "# ";

/// A figure in a CSV file.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name of the table.
    pub table: String,
    /// The name of the row.
    pub row: String,
    /// The heading of the column.
    pub column: String,
    /// The figure itself.
    pub value: f64,
    /// The number of samples if the value is their median, or 0 otherwise.
    pub samples: usize,
}

/// A CSV file's figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The figures, in file order.
    pub all: Vec<Figure>,
    /// Their provenance, as returned by [`machine::provenance`].
    pub provenance: String,
}

impl Figures {
    /// Returns the figures written to a folder by a benchmark, or `None` if there are none.
    #[must_use]
    pub fn read(folder: &Path, name: &str) -> Option<Self> {
        Some(Self::parse(&fs::read_to_string(folder.join(format!("{name}.csv"))).ok()?))
    }

    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (table, rest) = line.split_once(",\"")?;
            let (row, rest) = rest.split_once("\",\"")?;
            let (column, rest) = rest.rsplit_once("\",")?;
            let mut fields = rest.split(',');
            let value = fields.next()?.parse().ok()?;
            let samples = fields.nth(2).and_then(|field| field.parse().ok()).unwrap_or(0);
            Some(Figure { table: table.into(), row: row.into(), column: column.into(), value, samples })
        };
        let provenance = text.lines().find_map(|line| line.strip_prefix(PROVENANCE)).unwrap_or_default().to_owned();
        Self { all: text.lines().skip(1).filter_map(line).collect(), provenance }
    }

    /// Returns the value with this table, row and column, or NaN.
    #[must_use]
    pub fn find(&self, table: &str, row: &str, column: &str) -> f64 {
        let same = |figure: &&Figure| figure.table == table && figure.row == row && figure.column == column;
        self.all.iter().find(same).map_or(f64::NAN, |figure| figure.value)
    }

    /// Returns the state to show first for a table that exists per state, or `None` if there is no such table.
    #[must_use]
    pub fn preferred(&self, table: &str) -> Option<State> {
        State::preferred(|state| {
            let key = key(table, state);
            self.all.iter().filter(|figure| figure.table == key).map(|figure| figure.samples).sum()
        })
    }
}

/// Returns the name in CSV files for a table of the timings in one state.
#[must_use]
pub fn key(table: &str, state: State) -> String {
    format!("{table}_{}", state.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!(grouped(1_234_567.0, 0), "1,234,567");
        assert_eq!(grouped(123.456, 1), "123.5");
        assert_eq!(grouped(-1234.0, 0), "-1,234");
        assert_eq!(grouped(-123.0, 0), "-123");
    }

    #[test]
    fn a_median_has_its_quartiles_beside_it() {
        let cell = spread(&[3.0, 1.0, 2.0, 5.0, 4.0]);
        assert_eq!((cell.text.as_str(), cell.value), ("3.00 (2.00–4.00)", Some(3.0)));
        assert_eq!(cell.spread, Some([2.0, 4.0, 5.0]));
        assert_eq!(spread(&[7.0]).text, "7.00");
        assert_eq!(spread(&[]).text, "–");
    }

    #[test]
    fn figures_with_and_without_quartiles_are_read() {
        let figures = Figures::parse(
            "table,row,column,value,lower quartile,upper quartile,samples\n\
             ns_near,\"raddle\",\"independent, 4,096 variables\",98.5,90,101,11\n\
             ns_far,\"raddle\",\"chain\",135,130,140,12\n\
             ns,\"raddle\",\"chain\",55\n\
             machine,\"run\",\"timings dropped\",3,,,\n\
             # AMD EPYC; 2 cores\n",
        );
        assert_eq!(figures.find("ns_near", "raddle", "independent, 4,096 variables"), 98.5);
        assert_eq!(figures.find("ns", "raddle", "chain"), 55.0);
        assert!(figures.find("ns_near", "raddle", "chain").is_nan());
        assert_eq!(figures.preferred("ns"), Some(State::Near));
        assert_eq!(figures.preferred("idle"), None);
        assert_eq!(figures.find("machine", "run", "timings dropped"), 3.0);
        assert_eq!((figures.all.len(), figures.provenance.as_str()), (4, "AMD EPYC; 2 cores"));
    }
}
