//! Reports on a training run: losses, a confusion matrix, a picture of the mistakes, and the overlap shown by a trace.

use std::{fmt::Write as _, fs, fs::File, io::BufWriter, path::Path};

use raddle::trace::{Trace, TracedOp};

use crate::{data::Images, error::Error};

/// Returns a bar that shows `value` as a fraction of `most`.
pub fn bar(value: f32, most: f32) -> String {
    "█".repeat((30.0 * (value / most).clamp(0.0, 1.0)).round() as usize)
}

/// Returns the fraction of correct answers. Each answer is the number of an image, its true class, and its predicted
/// class.
pub fn accuracy(answers: &[(usize, usize, usize)]) -> f32 {
    answers.iter().filter(|(_, truth, found)| truth == found).count() as f32 / answers.len() as f32
}

/// Returns a table with a row for each true class and a column for each predicted class.
pub fn confusion(answers: &[(usize, usize, usize)], classes: usize) -> String {
    let mut table = String::from("true\\found");
    (0..classes).for_each(|class| _ = write!(table, "{class:>5}"));
    for truth in 0..classes {
        _ = write!(table, "\n{truth:>10}");
        for found in 0..classes {
            match answers.iter().filter(|answer| (answer.1, answer.2) == (truth, found)).count() {
                0 => table.push_str("    ·"),
                count => _ = write!(table, "{count:>5}"),
            }
        }
    }
    table
}

/// Creates a file, and the folder for it.
fn create(path: &Path) -> Result<BufWriter<File>, Error> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(BufWriter::new(File::create(path)?))
}

/// The digits from 0 to 9, each with five rows of three pixels.
const GLYPHS: [u16; 10] = [31599, 11415, 29671, 29647, 23497, 31183, 31215, 29257, 31727, 31695];

/// Writes a picture of the misclassified images, each above its true and predicted class.
///
/// # Errors
/// The file cannot be written; a number in `wrong` is not that of an image.
pub fn picture(path: &Path, images: &Images, wrong: &[(usize, usize, usize)]) -> Result<(), Error> {
    const SCALE: usize = 8;
    const COLUMNS: usize = 8;
    images.check(wrong.iter().map(|answer| answer.0))?;
    let [rows, columns] = images.size;
    let (tile_width, tile_height) = (columns * SCALE + 8, rows * SCALE + 24);
    let across = wrong.len().clamp(1, COLUMNS);
    let (width, height) = (across * tile_width, wrong.len().div_ceil(COLUMNS).max(1) * tile_height);
    let mut pixels = vec![255u8; 3 * width * height];
    let mut paint = |x: usize, y: usize, color: [u8; 3]| pixels[3 * (y * width + x)..][..3].copy_from_slice(&color);
    for (place, &(number, truth, found)) in wrong.iter().enumerate() {
        let (left, top) = (place % COLUMNS * tile_width + 4, place / COLUMNS * tile_height + 4);
        let (_, image) = images.example(number);
        let darkest = image.iter().copied().max().unwrap_or(1).max(1);
        for y in 0..rows * SCALE {
            for x in 0..columns * SCALE {
                let value = image[y / SCALE * columns + x / SCALE];
                let shade = 255 - (u16::from(value) * 255 / u16::from(darkest)) as u8;
                paint(left + x, top + y, [shade; 3]);
            }
        }
        for (digit, x, color) in [(truth, 0, [0, 130, 60]), (found, 20, [200, 30, 30])] {
            for bit in (0..15).filter(|bit| GLYPHS[digit % 10] >> (14 - bit) & 1 == 1) {
                for dot in 0..9 {
                    let (dx, dy) = (bit % 3 * 3 + dot % 3, bit / 3 * 3 + dot / 3);
                    paint(left + x + dx, top + rows * SCALE + 3 + dy, color);
                }
            }
        }
    }
    let mut encoder = png::Encoder::new(create(path)?, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    written.map_err(|error| Error::Data(format!("{}: {error}", path.display())))
}

/// The overlap of operations with the backward pass in a trace.
#[derive(Clone, Debug, Default)]
pub struct Overlap {
    /// The number of operations examined.
    pub count: usize,
    /// How many of these operations ran or were in flight while an operation of a backward pass ran.
    pub overlapping: usize,
    /// The names of one pair of overlapping operations.
    pub example: Option<(String, String)>,
}

impl Overlap {
    /// Describes the overlap: `what` follows the numbers.
    pub fn sentence(&self, what: &str) -> String {
        let example = self.example.as_ref().map_or(String::new(), |(a, b)| format!(", such as `{a}` beside `{b}`"));
        format!("{} of {} {what}{example}", self.overlapping, self.count)
    }
}

/// Writes a trace for ui.perfetto.dev, and returns the [`overlap`] of the operations that `is_counted` selects.
///
/// # Errors
/// The file cannot be written.
pub fn write_trace(trace: &Trace, path: &Path, is_counted: impl Fn(&str) -> bool) -> Result<Overlap, Error> {
    trace.write_perfetto(&mut create(path)?)?;
    Ok(overlap(trace, is_counted))
}

/// Counts the operations whose names `is_counted` selects, and how many of them ran or were in flight while an
/// operation of a backward pass ran. A future counts as in flight during its waits, in which it occupies no thread. Two
/// functions that run at the same time run on different threads.
pub fn overlap(trace: &Trace, is_counted: impl Fn(&str) -> bool) -> Overlap {
    let backward: Vec<_> = trace.ops().iter().filter(|op| op.label().ends_with(" backward")).collect();
    let meet = |op: &TracedOp, other: &TracedOp| {
        let (Some(from), Some(to)) = (op.started, op.ended) else { return false };
        other.runs.iter().any(|run| run.from < to && from < run.to)
    };
    let mut overlap = Overlap::default();
    for op in trace.ops().iter().filter(|op| is_counted(&op.label())) {
        overlap.count += 1;
        if let Some(other) = backward.iter().find(|other| meet(op, other)) {
            overlap.overlapping += 1;
            overlap.example.get_or_insert_with(|| (op.label(), other.label()));
        }
    }
    overlap
}
