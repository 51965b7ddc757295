//! Whether the benchmarks run, and whether the README has the results of the last full run.

use crate::tools::{Result, cargo, empty_folder, read, require, require_files};

pub fn run() -> Result {
    // Without the comparisons that take longest to build; the stage `clippy` checks these.
    let folder = empty_folder("bench")?;
    let bench = cargo("bench --package raddle-benches --no-default-features --bench all");
    bench.env("RADDLE_BENCH_QUICK", "1").env("RADDLE_BENCH_OUT", &folder).run()?;
    require_files(&folder, ["headline.md"])?;
    for (file, row) in
        [("push_run.md", "| raddle, typed |"), ("micro.md", "| recorded/off: "), ("micro.md", "| recorded/on: ")]
    {
        let has_row = read(folder.join(file))?.lines().any(|line| line.starts_with(row));
        require(has_row, format!("{file} has no row `{row}`"))?;
    }
    cargo("test --quiet --profile bench --package raddle-benches --no-default-features --lib").run()?;

    // Each row that the README shows must be one of the last full run.
    let (readme, last) = (read("README.md")?, read("benches/results/headline.md")?);
    let shown = readme.split("<!-- The table up to the next mark").nth(1).unwrap_or_default();
    let shown = shown.split("<!-- End of the table").next().unwrap_or_default();
    let other: Vec<_> =
        shown.lines().filter(|line| line.starts_with('|') && !last.lines().any(|row| row == *line)).collect();
    require(other.is_empty(), format!("these rows of the README are not in benches/results/headline.md: {other:#?}"))
}
