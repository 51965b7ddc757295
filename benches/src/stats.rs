//! Medians, quartiles and ranges.

/// Returns the quantile `q`, between 0 and 1, interpolated linearly between the two neighbouring figures. Returns NaN
/// if there are no figures.
#[must_use]
pub fn quantile(figures: &[f64], q: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = last as f64 * q;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    // Without this comparison, two equal infinities would become NaN.
    if below == above { below } else { below + (above - below) * at.fract() }
}

/// Returns the median: the mean of the two middle values if the number of figures is even, or NaN if there are no
/// figures.
#[must_use]
pub fn median(figures: &[f64]) -> f64 {
    quantile(figures, 0.5)
}

/// Returns the lower quartile, the median and the upper quartile. All are NaN if there are no figures.
#[must_use]
pub fn quartiles(figures: &[f64]) -> [f64; 3] {
    [0.25, 0.5, 0.75].map(|q| quantile(figures, q))
}

/// Returns whether two interquartile ranges overlap, or `false` if a quartile is NaN, as for an empty row.
#[must_use]
pub fn overlap(a: [f64; 3], b: [f64; 3]) -> bool {
    a[0] <= b[2] && b[0] <= a[2]
}

/// Returns the smallest and the largest value.
#[must_use]
pub fn range(figures: &[f64]) -> (f64, f64) {
    figures.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated_whatever_the_order_of_the_figures() {
        assert_eq!(quartiles(&[5.0, 1.0, 4.0, 2.0, 3.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(&[4.0, 2.0, 1.0, 3.0]), [1.75, 2.5, 3.25]);
        assert_eq!(quartiles(&[7.0]), [7.0; 3]);
        assert!(quartiles(&[]).iter().all(|figure| figure.is_nan()));
    }

    #[test]
    fn one_outlier_does_not_move_the_quartiles() {
        let mut figures: Vec<f64> = (0..12).map(|i| 60.0 + f64::from(i)).collect();
        let before = quartiles(&figures);
        figures[11] = 1e9;
        assert_eq!(quartiles(&figures), before);
    }

    #[test]
    fn quartiles_overlap_if_they_share_a_value() {
        assert!(overlap([1.0, 2.0, 3.0], [3.0, 4.0, 5.0]));
        assert!(overlap([1.0, 5.0, 9.0], [4.0, 5.0, 6.0]));
        assert!(!overlap([1.0, 2.0, 3.0], [3.1, 4.0, 5.0]));
        assert!(!overlap([3.1, 4.0, 5.0], [1.0, 2.0, 3.0]));
        assert!(!overlap([f64::NAN; 3], [1.0, 2.0, 3.0]));
    }
}
