//! Image processing: functions on images, independent of the engine.

use image::codecs::jpeg::JpegEncoder;
use image::{GrayImage, ImageBuffer, ImageResult, Luma, Rgb, RgbImage, imageops};
use imageproc::corners::corners_fast9;
use imageproc::drawing::draw_hollow_circle_mut;
use imageproc::filter::{box_filter, gaussian_blur_f32};
use imageproc::gradients::sobel_gradients;
use imageproc::pixelops::interpolate;
use imageproc::stats::{percentile, root_mean_squared_error};
use imageproc::suppress::suppress_non_maximum;

/// The strength of edges in a frame.
pub type Gradient = ImageBuffer<Luma<u16>, Vec<u16>>;

/// A position in a frame, as column and row.
pub type Position = (u32, u32);

const EDGE_COLOUR: Rgb<u8> = Rgb([0, 255, 255]);
const CORNER_COLOUR: Rgb<u8> = Rgb([255, 64, 0]);

/// Reduces the sensor noise.
pub fn denoise(raw: &RgbImage) -> RgbImage {
    gaussian_blur_f32(raw, 0.9)
}

/// Returns the brightness of every pixel.
pub fn luma(frame: &RgbImage) -> GrayImage {
    imageops::grayscale(frame)
}

/// Returns the magnitude of the brightness's gradient at every pixel.
pub fn gradient(luma: &GrayImage) -> Gradient {
    sobel_gradients(luma)
}

/// Returns a frame's corners; among nearby corners, only the one with the highest score.
pub fn corners(luma: &GrayImage) -> Vec<Position> {
    const THRESHOLD: u8 = 24;
    const DISTANCE: u32 = 5;

    let mut scores = GrayImage::new(luma.width(), luma.height());
    for corner in corners_fast9(luma, THRESHOLD) {
        // A score is a threshold for differences in brightness, so it fits in a `u8`.
        scores.put_pixel(corner.x, corner.y, Luma([corner.score as u8]));
    }
    suppress_non_maximum(&scores, DISTANCE)
        .enumerate_pixels()
        .filter(|(_, _, score)| score[0] > 0)
        .map(|(x, y, _)| (x, y))
        .collect()
}

/// Returns a copy of a frame with edges and corners drawn on top.
pub fn annotate(frame: &RgbImage, gradient: &Gradient, corners: &[Position]) -> RgbImage {
    /// The minimum gradient for which an edge is drawn in full colour.
    const FULL: f32 = 800.0;

    let mut picture = frame.clone();
    for (pixel, strength) in picture.pixels_mut().zip(gradient.pixels()) {
        let weight = (f32::from(strength[0]) / FULL).min(1.0);
        *pixel = interpolate(EDGE_COLOUR, *pixel, weight);
    }
    for &(x, y) in corners {
        draw_hollow_circle_mut(&mut picture, (x as i32, y as i32), 3, CORNER_COLOUR);
    }
    picture
}

/// Replaces the contents of `bytes` with the picture as a JPEG file.
pub fn encode(picture: &RgbImage, bytes: &mut Vec<u8>) -> ImageResult<()> {
    bytes.clear();
    JpegEncoder::new_with_quality(bytes, 90).encode_image(picture)
}

/// Returns the amount of detail up to `radius` pixels: the root-mean-square difference between the frame and a blurred
/// copy.
pub fn detail(luma: &GrayImage, radius: u32) -> f64 {
    root_mean_squared_error(luma, &box_filter(luma, radius, radius))
}

/// Figures about one frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// The change made to the frame by denoising, in levels (root mean square).
    pub denoised: f64,
    /// The 5th and 95th percentiles of the brightness.
    pub range: (u8, u8),
    /// The [`detail`] at the radii 1, 2, 3 and so on.
    pub detail: Vec<f64>,
}

impl Statistics {
    /// Computes a frame's figures.
    pub fn new(raw: &RgbImage, clean: &RgbImage, luma: &GrayImage, detail: Vec<f64>) -> Statistics {
        Statistics {
            denoised: root_mean_squared_error(raw, clean),
            range: (percentile(luma, 5), percentile(luma, 95)),
            detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imageproc::noise::gaussian_noise;

    /// A bright square on a dark ground.
    fn square() -> GrayImage {
        GrayImage::from_fn(48, 40, |x, y| {
            let inside = (16..32).contains(&x) && (12..28).contains(&y);
            Luma([if inside { 220 } else { 30 }])
        })
    }

    fn grey(image: &GrayImage) -> RgbImage {
        RgbImage::from_fn(image.width(), image.height(), |x, y| Rgb([image.get_pixel(x, y)[0]; 3]))
    }

    #[test]
    fn denoising_brings_a_noisy_frame_nearer_to_the_clean_one() {
        let flat = RgbImage::from_pixel(48, 40, Rgb([120, 60, 200]));
        let noisy = gaussian_noise(&flat, 0.0, 6.0, 1);
        let before = root_mean_squared_error(&flat, &noisy);
        let after = root_mean_squared_error(&flat, &denoise(&noisy));
        assert!(after < before / 2.0, "{after} after, {before} before");
    }

    #[test]
    fn the_gradient_is_large_at_edges_and_zero_elsewhere() {
        let gradient = gradient(&square());
        assert_eq!(gradient.get_pixel(24, 20)[0], 0);
        assert_eq!(gradient.get_pixel(4, 4)[0], 0);
        assert!(gradient.get_pixel(16, 20)[0] > 500);
    }

    #[test]
    fn a_square_has_four_corners() {
        let corners = corners(&square());
        assert_eq!(corners.len(), 4, "{corners:?}");
        for wanted in [(16, 12), (31, 12), (16, 27), (31, 27)] {
            let near = |&(x, y): &Position| x.abs_diff(wanted.0) <= 2 && y.abs_diff(wanted.1) <= 2;
            assert!(corners.iter().any(near), "none near {wanted:?}: {corners:?}");
        }
    }

    #[test]
    fn a_flat_frame_has_no_edges_no_corners_and_no_details() {
        let flat = GrayImage::from_pixel(48, 40, Luma([77]));
        assert!(gradient(&flat).pixels().all(|p| p[0] == 0));
        assert!(corners(&flat).is_empty());
        assert_eq!(detail(&flat, 3), 0.0);
        let frame = grey(&flat);
        assert_eq!(annotate(&frame, &gradient(&flat), &[]), frame);
    }

    #[test]
    fn annotations_are_drawn_over_the_frame() {
        let luma = square();
        let picture = annotate(&grey(&luma), &gradient(&luma), &[(24, 20), (0, 0), (47, 39)]);
        assert_eq!(*picture.get_pixel(27, 20), CORNER_COLOUR);
        assert_eq!(*picture.get_pixel(24, 20), Rgb([220; 3]));
        let edge = picture.get_pixel(16, 20);
        assert!(edge[1] > edge[0], "{edge:?} is not tinted");
    }

    #[test]
    fn an_encoded_picture_can_be_decoded_and_replaces_the_previous_one() {
        let picture = grey(&square());
        let mut bytes = vec![1, 2, 3];
        encode(&picture, &mut bytes).unwrap();
        let once = bytes.clone();
        encode(&picture, &mut bytes).unwrap();
        assert_eq!(bytes, once);
        let decoded = image::load_from_memory(&bytes).unwrap().to_rgb8();
        assert_eq!(decoded.dimensions(), picture.dimensions());
        assert!(root_mean_squared_error(&decoded, &picture) < 4.0);
    }

    #[test]
    fn wider_blurs_take_more_detail_away() {
        let luma = square();
        let detail: Vec<f64> = (1..5).map(|radius| detail(&luma, radius)).collect();
        assert!(detail.is_sorted(), "{detail:?}");
        let frame = grey(&luma);
        let statistics = Statistics::new(&frame, &frame, &luma, detail.clone());
        assert_eq!(statistics.denoised, 0.0);
        assert_eq!(statistics.range, (30, 220));
        assert_eq!(statistics.detail, detail);
    }

    #[test]
    fn the_smallest_frames_and_radii_beyond_the_frame_are_fine() {
        let tiny = GrayImage::from_fn(16, 16, |x, y| Luma([(x * 13 + y * 7) as u8]));
        let frame = denoise(&grey(&tiny));
        annotate(&frame, &gradient(&tiny), &corners(&tiny));
        assert!(detail(&tiny, 64) > 0.0);
    }
}
