//! Robust statistics: medians, which outliers do not move.

/// Ratio of the standard deviation to the median absolute deviation of normally distributed
/// numbers.
pub const NORMAL: f64 = 1.4826;

/// Middle value, or the mean of the two middle ones. NaN for no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}
