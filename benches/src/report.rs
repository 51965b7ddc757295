//! Tables, as Markdown for people and as CSV for programs.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::machine;

/// A cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    value: Option<f64>,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: text.into(), value: None }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, value: None }
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
        return Cell { text: "–".into(), value: None };
    }
    let decimals = if value.abs() < 10.0 { 2 } else { 0 };
    Cell { text: grouped(value, decimals), value: Some(value) }
}

/// Returns the median as a cell, followed by the smallest and the largest value.
#[must_use]
pub fn spread(figures: &[f64]) -> Cell {
    let mut cell = number(crate::stats::median(figures));
    if figures.len() > 1 && cell.value.is_some() {
        let (low, high) = crate::stats::range(figures);
        _ = write!(cell.text, " ({}–{})", number(low).text, number(high).text);
    }
    cell
}

/// A table.
#[derive(Debug)]
pub struct Table {
    key: &'static str,
    title: String,
    note: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<Cell>)>,
}

impl Table {
    /// Creates a table under the heading `title`, with the text `note` above it. `key` names it in the CSV file.
    #[must_use]
    pub fn new(key: &'static str, title: &str, note: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { key, title: title.into(), note: note.into(), columns, rows: vec![] }
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

/// The columns of the row `round trip` in the table `machine`.
pub const TRIPS: [&str; 3] = ["median", "least", "largest"];

/// The results of one benchmark.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    head: String,
    body: String,
    csv: String,
}

impl Report {
    /// Creates a report that becomes `NAME.md` and `NAME.csv`.
    #[must_use]
    pub fn new(name: &'static str, title: &str, note: &str) -> Self {
        let head = format!("# {title}\n\n{note}\n");
        println!("\n{head}");
        Self { name, head, body: String::new(), csv: "table,row,column,value\n".into() }
    }

    /// Adds a table, and prints it.
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
                    _ = writeln!(self.csv, "{},\"{row}\",\"{column}\",{value}", table.key);
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
        fs::write(folder().join(&file), svg).expect("the plot can be written");
        _ = write!(self.body, "\n![{title}]({file})\n");
    }

    /// Writes the files.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn save(self) {
        let Self { name, head, body, mut csv } = self;
        let trips = machine::round_trips();
        for (column, ns) in TRIPS.iter().zip(trips.into_iter().flatten()) {
            _ = writeln!(csv, "machine,\"round trip\",\"{column}\",{ns}");
        }
        let origin = format!("{}.{}", machine::provenance(), machine::distance(trips));
        println!("\n{origin}");
        let folder = folder();
        fs::write(folder.join(format!("{name}.md")), format!("{head}\n{origin}\n{body}"))
            .expect("the report can be written");
        fs::write(folder.join(format!("{name}.csv")), csv).expect("the figures can be written");
    }
}

fn folder() -> PathBuf {
    let folder = machine::out();
    fs::create_dir_all(&folder).expect("the folder for results can be made");
    folder
}

/// The figures of a CSV file: table, row, column, value.
pub type Figures = Vec<(String, String, String, f64)>;

/// Returns the figures that a benchmark has written to a folder, or `None` if there are none.
#[must_use]
pub fn read(folder: &Path, name: &str) -> Option<Figures> {
    let text = fs::read_to_string(folder.join(format!("{name}.csv"))).ok()?;
    let line = |line: &str| {
        let (table, rest) = line.split_once(",\"")?;
        let (row, rest) = rest.split_once("\",\"")?;
        let (column, value) = rest.rsplit_once("\",")?;
        Some((table.to_owned(), row.to_owned(), column.to_owned(), value.parse().ok()?))
    };
    Some(text.lines().skip(1).filter_map(line).collect())
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
}
