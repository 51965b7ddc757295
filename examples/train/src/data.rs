//! Data: a packed file of images, and batches made while earlier ones are in use.
//!
//! | here | in the engine |
//! |---|---|
//! | the order of the examples | a variable: shuffling mutates it, decoding reads it |
//! | a batch | arrays in one of a few slots; decoding and augmenting are operations that mutate them |
//! | prefetching | the operations that make a batch are pushed before the batch is requested |
//! | the bound on prefetching | a slot is refilled after all operations on its previous batch, since they use its variables |

use std::{fs, path::Path, sync::Arc};

use raddle::Var;

use crate::{
    array::Array,
    error::Error,
    random::Random,
    runtime::Runtime,
    task::{Mode, Task},
};

const WORD: &[u8] = b"DIGITS01";
const HEADER: usize = 16;

/// Small images with classes, from a packed file. `data/pack.py` describes the format.
#[derive(Debug)]
pub struct Images {
    bytes: Vec<u8>,
    count: usize,
    /// Rows and columns of an image.
    pub size: [usize; 2],
    /// The number of classes.
    pub classes: usize,
    highest: f32,
}

impl Images {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read or is not a complete packed file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bytes = fs::read(path).map_err(|error| Error::Data(format!("{}: {error}", path.display())))?;
        Self::parse(bytes).map_err(|problem| Error::Data(format!("{}: {problem}", path.display())))
    }

    /// Parses the contents of a file.
    ///
    /// # Errors
    /// The bytes are not a complete packed file.
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
        if bytes.len() != body + 8 {
            let found = bytes.len();
            return Err(format!(
                "the file has {found} bytes, but {count} images need {}: it was truncated or extended",
                body + 8
            ));
        }
        let hash = bytes[..body]
            .iter()
            .fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3));
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
    pub fn example(&self, index: usize) -> (u8, &[u8]) {
        let len = 1 + self.size[0] * self.size[1];
        let example = &self.bytes[HEADER + index * len..][..len];
        (example[0], &example[1..])
    }

    /// Writes an image's class, and its pixels scaled to the range from 0 to 1.
    fn decode(&self, index: usize, pixels: &mut [f32], class: &mut f32) {
        let (label, bytes) = self.example(index);
        *class = f32::from(label);
        pixels.iter_mut().zip(bytes).for_each(|(pixel, byte)| *pixel = f32::from(*byte) / self.highest);
    }

    /// Returns the indices of the training images and of the test images; every fifth image is a test image.
    pub fn split(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.count).partition(|index| index % 5 != 4)
    }

    /// Returns images and classes as arrays.
    ///
    /// # Errors
    /// The engine refuses a push.
    pub fn arrays(&self, runtime: &Arc<Runtime>, examples: &[usize]) -> Result<Batch, Error> {
        let [rows, columns] = self.size;
        let (mut pixels, mut classes) = (vec![0.0; examples.len() * rows * columns], vec![0.0; examples.len()]);
        let places = pixels.chunks_exact_mut(rows * columns).zip(&mut classes);
        places.zip(examples).for_each(|((pixels, class), &index)| self.decode(index, pixels, class));
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

/// The arrays for one batch.
#[derive(Debug)]
struct Slot {
    decoded: Array,
    batch: Batch,
}

/// A source of batches of images, shuffled in every epoch and slightly distorted.
#[derive(Debug)]
pub struct Loader {
    images: Arc<Images>,
    runtime: Arc<Runtime>,
    order: Var<Vec<usize>>,
    shuffler: Var<Random>,
    slots: Vec<Slot>,
    batch: usize,
    per_epoch: usize,
    total: usize,
    /// The numbers of batches taken and pushed.
    taken: usize,
    pushed: usize,
}

impl Loader {
    /// Returns a loader that makes batches of `batch` images from those with the indices `examples`, for `epochs`
    /// epochs. At most `ahead` batches are ready, in use or being made at any time. Images that do not fill a batch are
    /// omitted from the epoch.
    ///
    /// # Errors
    /// The images do not fill a batch; the engine refuses a push.
    pub fn new(
        images: &Arc<Images>,
        runtime: &Arc<Runtime>,
        examples: Vec<usize>,
        batch: usize,
        epochs: usize,
        ahead: usize,
    ) -> Result<Self, Error> {
        let per_epoch = examples.len().checked_div(batch).unwrap_or(0);
        if per_epoch == 0 || ahead == 0 {
            return Err(Error::Use(format!(
                "{ahead} batches of {batch} cannot be made from {} images",
                examples.len()
            )));
        }
        let [rows, columns] = images.size;
        let slot = |_| {
            let (pixels, classes) = ([batch, 1, rows, columns], [batch]);
            let new = Batch { images: Array::new(runtime, &pixels)?, classes: Array::new(runtime, &classes)? };
            Ok(Slot { decoded: Array::new(runtime, &pixels)?, batch: new })
        };
        let mut loader = Self {
            images: Arc::clone(images),
            runtime: Arc::clone(runtime),
            order: runtime.engine().var(examples).named("order"),
            shuffler: runtime.random(),
            slots: (0..ahead).map(slot).collect::<Result<_, Error>>()?,
            batch,
            per_epoch,
            total: per_epoch * epochs,
            taken: 0,
            pushed: 0,
        };
        for _ in 0..ahead {
            loader.push()?;
        }
        Ok(loader)
    }

    /// Returns the number of batches in an epoch.
    pub fn per_epoch(&self) -> usize {
        self.per_epoch
    }

    /// Pushes the operations that make the next batch, unless the last has been pushed.
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
        let Slot { decoded, batch } = &self.slots[self.pushed % self.slots.len()];
        let range = place * self.batch..(place + 1) * self.batch;
        let (images, [rows, columns]) = (Arc::clone(&self.images), self.images.size);
        let accesses =
            (self.order.read(), decoded.chunk().host()?.overwrite(), batch.classes.chunk().host()?.overwrite());
        engine.op("decode").push(accesses, move |(order, pixels, classes)| {
            let places = pixels.values_mut().chunks_exact_mut(rows * columns).zip(classes.values_mut());
            places.zip(&order[range]).for_each(|((pixels, class), &index)| images.decode(index, pixels, class));
        })?;
        let mut augment = Task::new("augment", vec![decoded]).out(&batch.images, Mode::Write);
        augment.random = true;
        augment.push(&self.runtime, move |mut views| {
            let images = views.outs[0].values.chunks_exact_mut(rows * columns);
            for (moved, image) in images.zip(views.ins[0].values.chunks_exact(rows * columns)) {
                shear(&mut views.random, image, moved, [rows, columns]);
            }
        })?;
        self.pushed += 1;
        Ok(())
    }

    /// Returns the next batch immediately; operations on it wait until it is made, and may be pushed until the next
    /// call. Returns `None` after the last batch.
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
        Ok(Some(self.slots[(self.taken - 1) % self.slots.len()].batch.clone()))
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
