//! Data: a packed file of images, and batches made while earlier ones are in use.
//!
//! | here | in the engine |
//! |---|---|
//! | the order of the examples | a variable: shuffling mutates it, decoding reads it |
//! | a batch | arrays in one of a few slots; decoding and augmenting are operations that mutate them |
//! | prefetching | the operations that make a batch are pushed before the batch is requested |
//! | the bound on prefetching | a slot is refilled after all operations on its previous batch, since they use the same variables |

use std::{fs, path::Path, sync::Arc};

use raddle::Var;

use crate::{Array, Error, Mode, Runtime, Task, random::Random};

const WORD: &[u8] = b"DIGITS01";
const HEADER: usize = 16;

/// Small images with classes, from a packed file. `data/pack.py` describes the format.
#[derive(Debug)]
pub struct Images {
    bytes: Vec<u8>,
    count: usize,
    /// The numbers of rows and columns of an image.
    pub size: [usize; 2],
    /// The number of classes.
    pub classes: usize,
    highest: f32,
}

impl Images {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid packed file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bytes = fs::read(path).map_err(|error| Error::Data(format!("{}: {error}", path.display())))?;
        Self::parse(bytes).map_err(|problem| Error::Data(format!("{}: {problem}", path.display())))
    }

    /// Parses the contents of a file.
    ///
    /// # Errors
    /// The bytes are not a valid packed file.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        if !bytes.starts_with(WORD) {
            return Err("this is not a packed file of images, which starts with `DIGITS01`".into());
        }
        let Some(&[a, b, c, d, rows, columns, classes, highest]) = bytes.get(WORD.len()..HEADER) else {
            return Err(format!("the file ends within its header, after {} bytes", bytes.len()));
        };
        let count = u32::from_le_bytes([a, b, c, d]) as usize;
        let [rows, columns, classes] = [rows, columns, classes].map(usize::from);
        let body = HEADER + count * (1 + rows * columns);
        let (found, needed) = (bytes.len(), body + 8);
        if found != needed {
            let sizes = format!("the file has {found} bytes, but {count} images need {needed}");
            return Err(format!("{sizes}: it was truncated or extended"));
        }
        if rows * columns == 0 {
            return Err(format!("the images have no pixels: they have {rows} rows and {columns} columns"));
        }
        // The hash is FNV-1a.
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        let hash = bytes[..body].iter().fold(0xCBF2_9CE4_8422_2325, mix);
        if hash.to_le_bytes() != bytes[body..] {
            return Err("the file is damaged: its hash does not match".into());
        }
        let images = Self { count, size: [rows, columns], classes, highest: f32::from(highest), bytes };
        match (0..count).find(|&example| usize::from(images.example(example).0) >= classes) {
            Some(example) => Err(format!("image {example} has the unknown class {}", images.example(example).0)),
            None => Ok(images),
        }
    }

    /// Returns the class and the pixels of an image.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn example(&self, index: usize) -> (u8, &[u8]) {
        assert!(index < self.count, "there is no image {index} among {}", self.count);
        let len = 1 + self.size[0] * self.size[1];
        let example = &self.bytes[HEADER + index * len..][..len];
        (example[0], &example[1..])
    }

    /// Returns an error if there is no image with one of these indices.
    pub(crate) fn check(&self, mut indices: impl Iterator<Item = usize>) -> Result<(), Error> {
        match indices.find(|&index| index >= self.count) {
            Some(index) => Err(Error::Use(format!("there is no image {index} among {}", self.count))),
            None => Ok(()),
        }
    }

    /// Writes the classes of some images, and their pixels scaled to the range from 0 to 1.
    fn decode(&self, examples: &[usize], pixels: &mut [f32], classes: &mut [f32]) {
        let places = pixels.chunks_exact_mut(self.size[0] * self.size[1]).zip(classes);
        for ((pixels, class), &index) in places.zip(examples) {
            let (label, bytes) = self.example(index);
            *class = f32::from(label);
            pixels.iter_mut().zip(bytes).for_each(|(pixel, byte)| *pixel = f32::from(*byte) / self.highest);
        }
    }

    /// Returns the indices of the training images and of the test images; every fifth image is a test image.
    pub fn split(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.count).partition(|index| index % 5 != 4)
    }

    /// Returns the images with the indices `examples`, and their classes, as arrays.
    ///
    /// # Errors
    /// There is no such image; the engine refuses a push.
    pub fn arrays(&self, runtime: &Arc<Runtime>, examples: &[usize]) -> Result<Batch, Error> {
        self.check(examples.iter().copied())?;
        let [rows, columns] = self.size;
        let (mut pixels, mut classes) = (vec![0.0; examples.len() * rows * columns], vec![0.0; examples.len()]);
        self.decode(examples, &mut pixels, &mut classes);
        Ok(Batch {
            images: Array::from_vec(runtime, &[examples.len(), 1, rows, columns], pixels)?,
            classes: Array::from_vec(runtime, &[examples.len()], classes)?,
        })
    }
}

/// A batch of images and their classes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Pixels from 0 to 1: `[images, 1, rows, columns]`.
    pub images: Array,
    /// The class of each image.
    pub classes: Array,
}

/// A source of batches of images, shuffled in every epoch and slightly distorted.
#[derive(Debug)]
pub struct Loader {
    images: Arc<Images>,
    runtime: Arc<Runtime>,
    order: Var<Vec<usize>>,
    shuffler: Var<Random>,
    /// For each slot, the decoded images, and the batch made from them.
    slots: Vec<(Array, Batch)>,
    batch: usize,
    per_epoch: usize,
    total: usize,
    /// The number of batches returned.
    taken: usize,
    /// The number of batches whose operations have been pushed.
    pushed: usize,
}

impl Loader {
    /// Returns a loader that makes batches of `batch` images from those with the indices `examples`, for `epochs`
    /// epochs. At most `ahead` batches are ready, in use or being made at any time. Images that do not fill a batch are
    /// omitted from the epoch.
    ///
    /// # Errors
    /// There is no such image; the images do not fill a batch, or `ahead` is 0; the runtime is not one of the host; the
    /// engine refuses a push.
    pub fn new(
        images: &Arc<Images>,
        runtime: &Arc<Runtime>,
        examples: Vec<usize>,
        batch: usize,
        epochs: usize,
        ahead: usize,
    ) -> Result<Self, Error> {
        images.check(examples.iter().copied())?;
        let count = examples.len();
        let per_epoch = count.checked_div(batch).unwrap_or(0);
        if per_epoch == 0 || ahead == 0 {
            return Err(Error::Use(format!("{ahead} batches of {batch} cannot be made from {count} images")));
        }
        let [rows, columns] = images.size;
        let slot = |_| {
            let (pixels, classes) = ([batch, 1, rows, columns], [batch]);
            let batch = Batch { images: Array::new(runtime, &pixels)?, classes: Array::new(runtime, &classes)? };
            Ok((Array::new(runtime, &pixels)?, batch))
        };
        let mut loader = Self {
            images: Arc::clone(images),
            runtime: Arc::clone(runtime),
            order: runtime.engine().var(examples).named("order"),
            shuffler: runtime.random(),
            slots: (0..ahead).map(slot).collect::<Result<_, Error>>()?,
            batch,
            per_epoch,
            total: per_epoch.saturating_mul(epochs),
            taken: 0,
            pushed: 0,
        };
        (0..ahead).try_for_each(|_| loader.push())?;
        Ok(loader)
    }

    /// Returns the number of batches in an epoch.
    pub fn per_epoch(&self) -> usize {
        self.per_epoch
    }

    /// Pushes the operations that make the next batch, unless those of the last batch have been pushed.
    fn push(&mut self) -> Result<(), Error> {
        if self.pushed == self.total {
            return Ok(());
        }
        let engine = self.runtime.engine();
        let place = self.pushed % self.per_epoch;
        if place == 0 {
            engine.op("shuffle").push((self.shuffler.write(), self.order.write()), |(random, order)| {
                (1..order.len()).for_each(|i| order.swap(i, random.below(i + 1)));
            })?;
        }
        let (decoded, batch) = &self.slots[self.pushed % self.slots.len()];
        let range = place * self.batch..(place + 1) * self.batch;
        let (images, [rows, columns]) = (Arc::clone(&self.images), self.images.size);
        let (pixels, classes) = (decoded.chunk().host()?, batch.classes.chunk().host()?);
        let accesses = (self.order.read(), pixels.overwrite(), classes.overwrite());
        engine.op("decode").push(accesses, move |(order, pixels, classes)| {
            images.decode(&order[range], pixels.values_mut(), classes.values_mut());
        })?;
        let augment = Task { random: true, ..Task::new("augment", vec![decoded]) }.out(&batch.images, Mode::Write);
        augment.push(&self.runtime, move |mut views| {
            let images = views.outs[0].values.chunks_exact_mut(rows * columns);
            for (moved, image) in images.zip(views.ins[0].values.chunks_exact(rows * columns)) {
                shear(&mut views.random, image, moved, [rows, columns]);
            }
        })?;
        self.pushed += 1;
        Ok(())
    }

    /// Returns the next batch without waiting for it: operations on the batch run once it is made. They must be pushed
    /// before the next call. Returns `None` after the last batch.
    ///
    /// # Errors
    /// The engine refuses a push.
    #[allow(clippy::should_implement_trait, reason = "a batch is valid until the next call")]
    pub fn next(&mut self) -> Result<Option<Batch>, Error> {
        if self.taken > 0 {
            // All operations on the previous batch were pushed, so its slot may be refilled after them.
            self.push()?;
        }
        if self.taken == self.total {
            return Ok(None);
        }
        self.taken += 1;
        Ok(Some(self.slots[(self.taken - 1) % self.slots.len()].1.clone()))
    }
}

/// Rotates, shears, stretches and shifts an image slightly and at random.
fn shear(random: &mut Random, image: &[f32], out: &mut [f32], [rows, columns]: [usize; 2]) {
    let mut about = |spread: f32| (2.0 * random.uniform() - 1.0) * spread;
    let (turn, slant, tall, wide) = (about(0.15), about(0.15), 1.0 + about(0.1), 1.0 + about(0.1));
    let [middle_y, middle_x] = [rows, columns].map(|size| (size as f32 - 1.0) / 2.0);
    let (move_y, move_x) = (middle_y + about(0.6), middle_x + about(0.6));
    let at = |y: f32, x: f32| {
        let inside = y >= 0.0 && x >= 0.0 && y < rows as f32 && x < columns as f32;
        if inside { image[y as usize * columns + x as usize] } else { 0.0 }
    };
    for (place, out) in out.iter_mut().enumerate() {
        let (y, x) = ((place / columns) as f32 - middle_y, (place % columns) as f32 - middle_x);
        let (y, x) = (tall * y - turn * x + move_y, wide * x + (turn + slant) * y + move_x);
        let (top, left) = (y.floor(), x.floor());
        let (down, right) = (y - top, x - left);
        let upper = at(top, left) * (1.0 - right) + at(top, left + 1.0) * right;
        let lower = at(top + 1.0, left) * (1.0 - right) + at(top + 1.0, left + 1.0) * right;
        *out = upper * (1.0 - down) + lower * down;
    }
}
