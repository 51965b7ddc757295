//! Bands: groups of priorities that the scheduler treats as equal.

/// The band of priority 0.
pub const DEFAULT_BAND: u8 = 32;

/// The number of bands; band 0 is not used.
pub(super) const BANDS: usize = 64;

/// The highest band.
pub(super) const HIGHEST_BAND: u8 = BANDS as u8 - 1;

/// Returns a priority's band. A higher priority never has a lower band.
///
/// Priorities from -7 to 7 each have their own band. Beyond these, on both sides of zero, each range of magnitudes from
/// one power of two up to, but not including, the next is one band (8 to 15, 16 to 31, ...), and all magnitudes from
/// 2²⁶ upwards share the last band on their side.
#[inline]
pub fn band_of(priority: i32) -> u8 {
    let magnitude = priority.unsigned_abs();
    let level = if magnitude < 8 { magnitude } else { (magnitude.ilog2() + 5).min(31) } as u8;
    if priority < 0 { DEFAULT_BAND - level } else { DEFAULT_BAND + level }
}

/// Returns the priority closest to 0 in a band.
pub fn priority_of(band: u8) -> i32 {
    let level = i32::from(band) - i32::from(DEFAULT_BAND);
    let magnitude = if level.abs() < 8 { level.abs() } else { 1 << (level.abs() - 5) };
    magnitude * level.signum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_rise_with_priorities_and_never_mix_signs() {
        let priorities = [
            i32::MIN,
            -(1 << 27),
            -(1 << 26),
            -100,
            -16,
            -15,
            -8,
            -7,
            -1,
            0,
            1,
            7,
            8,
            15,
            16,
            100,
            1 << 26,
            1 << 27,
            i32::MAX,
        ];
        for pair in priorities.windows(2) {
            assert!(band_of(pair[0]) <= band_of(pair[1]), "{pair:?}");
        }
        for priority in priorities {
            let band = usize::from(band_of(priority));
            assert!((1..BANDS).contains(&band), "{priority} has band {band}");
            assert_eq!(priority.signum(), (i32::from(band_of(priority)) - i32::from(DEFAULT_BAND)).signum());
        }
        assert!((-7..7).all(|p| band_of(p) < band_of(p + 1)));
        assert_eq!((band_of(8), band_of(15), band_of(16)), (40, 40, 41));
        assert_eq!((band_of(1 << 26), band_of(i32::MAX)), (63, 63));
    }

    #[test]
    fn the_priority_of_a_band_is_in_that_band() {
        for priority in [0, 1, -1, 7, 8, -8, 9, 100, 1 << 26, i32::MAX, i32::MIN] {
            let band = band_of(priority);
            assert_eq!(band_of(priority_of(band)), band, "{priority}");
            assert!(priority_of(band).unsigned_abs() <= priority.unsigned_abs());
        }
    }
}
