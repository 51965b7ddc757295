//! The source of the frames: a simulated camera that pans over a photograph.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use image::RgbImage;
use image::imageops;
use imageproc::noise;

/// The standard deviation of the sensor noise, in levels of an 8-bit channel.
const NOISE: f64 = 6.0;

/// A frame's width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl Size {
    /// The smallest width and height that a frame may have.
    const MIN: u32 = 16;
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.width, self.height))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (width, height) = text.split_once(['x', 'X', '×']).ok_or("expected WIDTHxHEIGHT, for example 320x240")?;
        let number = |part: &str| match part.parse::<u32>() {
            Ok(n) if n >= Size::MIN => Ok(n),
            Ok(_) => Err(format!("a frame is at least {0}x{0} pixels", Size::MIN)),
            Err(e) => Err(format!("`{part}`: {e}")),
        };
        Ok(Size { width: number(width)?, height: number(height)? })
    }
}

/// The error for a frame that does not fit into the photograph.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLarge {
    frame: Size,
    photo: Size,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a frame of {} pixels does not fit into the photograph of {}", self.frame, self.photo)
    }
}

impl Error for TooLarge {}

/// The error for a frame that the camera did not deliver.
#[derive(Debug, PartialEq, Eq)]
pub struct FrameLost(pub u64);

impl fmt::Display for FrameLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the camera lost frame {}", self.0)
    }
}

impl Error for FrameLost {}

/// A camera that pans over a photograph.
///
/// A captured frame depends only on its number, so frames may be captured in any order or concurrently.
#[derive(Debug)]
pub struct Camera {
    photo: RgbImage,
    size: Size,
    lose_every: u64,
}

impl Camera {
    /// Creates a camera that has a view of `size` pixels and loses every `lose_every`-th frame, or no frame if
    /// `lose_every` is 0.
    pub fn new(photo: RgbImage, size: Size, lose_every: u64) -> Result<Camera, TooLarge> {
        let whole = Size { width: photo.width(), height: photo.height() };
        if size.width > whole.width || size.height > whole.height {
            return Err(TooLarge { frame: size, photo: whole });
        }
        Ok(Camera { photo, size, lose_every })
    }

    /// Captures one frame, with noise typical of a small sensor.
    pub fn capture(&self, frame: u64) -> Result<RgbImage, FrameLost> {
        if self.lose_every > 0 && (frame + 1) % self.lose_every == 0 {
            return Err(FrameLost(frame));
        }
        let Size { width, height } = self.size;
        let x = swing(frame, self.photo.width() - width);
        let y = swing(frame, self.photo.height() - height);
        let mut view = imageops::crop_imm(&self.photo, x, y, width, height).to_image();
        noise::gaussian_noise_mut(&mut view, 0.0, NOISE, frame);
        Ok(view)
    }
}

/// Returns the position, after `time` steps, of a point that moves back and forth between 0 and `end`, one unit per
/// step.
fn swing(time: u64, end: u32) -> u32 {
    let end = u64::from(end);
    if end == 0 {
        return 0;
    }
    let phase = time % (2 * end);
    u32::try_from(phase.min(2 * end - phase)).expect("at most `end`, which is a u32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    fn camera(width: u32, height: u32, lose_every: u64) -> Result<Camera, TooLarge> {
        let photo = RgbImage::from_fn(40, 30, |x, y| Rgb([x as u8 * 4, y as u8 * 4, 128]));
        Camera::new(photo, Size { width, height }, lose_every)
    }

    #[test]
    fn sizes_are_parsed_and_checked() {
        let size = Size { width: 320, height: 240 };
        assert_eq!("320x240".parse(), Ok(size));
        assert_eq!(size.to_string(), "320x240");
        for wrong in ["", "320", "x", "0x240", "8x8", "-1x240", "320x240x3", "axb"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn a_frame_as_large_as_the_photograph_fits_and_a_larger_one_does_not() {
        assert!(camera(40, 30, 0).is_ok());
        assert!(camera(41, 30, 0).is_err());
        assert!(camera(40, 31, 0).is_err());
    }

    #[test]
    fn a_frame_depends_on_its_number_only() {
        let camera = camera(16, 16, 0).unwrap();
        let first = camera.capture(5).unwrap();
        assert_eq!(first.dimensions(), (16, 16));
        assert_ne!(first, camera.capture(6).unwrap());
        assert_eq!(first, camera.capture(5).unwrap());
    }

    #[test]
    fn every_nth_frame_is_lost() {
        let camera = camera(16, 16, 3).unwrap();
        let lost: Vec<u64> = (0..9).filter(|&n| camera.capture(n).is_err()).collect();
        assert_eq!(lost, [2, 5, 8]);
        assert_eq!(camera.capture(2), Err(FrameLost(2)));
    }

    #[test]
    fn the_view_swings_from_one_side_to_the_other_and_back() {
        let positions: Vec<u32> = (0..9).map(|t| swing(t, 3)).collect();
        assert_eq!(positions, [0, 1, 2, 3, 2, 1, 0, 1, 2]);
        assert_eq!(swing(7, 0), 0);
        assert!(swing(u64::MAX, u32::MAX) > 0);
    }
}
