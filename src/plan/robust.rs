//! What is usual among numbers of which some are not: medians, which no outlier moves.

/// Of normal scatter, the share that the median of distances from the median is: times this, that
/// median is a standard deviation.
pub const NORMAL: f64 = 1.4826;

/// The middle value, or the mean of the two in the middle; NaN of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}
