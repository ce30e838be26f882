//! Time of a matrix product on a device that divides tiles among its multiprocessors.

use estimate::hardware::Hardware;

/// Tile heights and widths, with the share of the best rate each reaches.
const TILES: [(usize, usize, f64); 7] = [
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.95),
    (256, 64, 0.85),
    (64, 256, 0.85),
    (128, 64, 0.75),
    (64, 64, 0.6),
];

/// Seconds of `groups` products C[m, n] = A·B over k at once, at `rate` FLOP/s when every multiprocessor
/// has a tile.
pub fn seconds(hw: &Hardware, (m, n, k): (usize, usize, usize), groups: usize, rate: f64) -> f64 {
    let per_unit = rate / hw.units as f64;
    TILES
        .iter()
        .map(|(height, width, share)| {
            let tiles = groups * m.div_ceil(*height) * n.div_ceil(*width);
            let waves = tiles.div_ceil(hw.units) as f64;
            waves * 2.0 * (height * width) as f64 * k as f64 / (per_unit * share)
        })
        .fold(f64::INFINITY, f64::min)
}

/// The share of their time that products lose to half-empty tiles and waves.
pub fn wasted_share(hw: &Hardware, (m, n, k): (usize, usize, usize), groups: usize) -> f64 {
    let work = 2.0 * (m as f64) * (n as f64) * (k as f64);
    1.0 - groups as f64 * work / seconds(hw, (m, n, k), groups, 1.0)
}
