//! Initial weights: each value is a function of the seed, the weight's name and its index in the
//! whole tensor, so that every way of cutting the model starts from the same values.

use super::layout::{Layout, Slot};
use super::weights::Init;
use crate::base::rng;
use crate::manifest::Model;

impl Layout {
    /// Fills this rank's share of a weight, on all the host's threads.
    pub fn init(&self, slot: &Slot, model: &Model, seed: u64, out: &mut [f32]) {
        assert_eq!(out.len(), slot.numel());
        self.init_rows(slot, 0, model, seed, out);
    }

    /// The same of some of its rows, from row `first` on.
    pub fn init_rows(&self, slot: &Slot, first: usize, model: &Model, seed: u64, out: &mut [f32]) {
        let residual = match model.init_scale_residual {
            true => (2.0 * model.layers as f32).sqrt(),
            false => 1.0,
        };
        match slot.spec.init {
            Init::Zero => out.fill(0.0),
            Init::One => out.fill(1.0),
            Init::Normal => self.normal(slot, first, model.init_std, seed, out),
            Init::Residual => self.normal(slot, first, model.init_std / residual, seed, out),
        }
    }

    fn normal(&self, slot: &Slot, first: usize, std: f32, seed: u64, out: &mut [f32]) {
        let key = rng::key(seed, &slot.name);
        let [row, col] = self.corner(slot);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let share = (out.len() / slot.cols).div_ceil(threads);
        std::thread::scope(|scope| {
            for (i, rows) in out.chunks_mut(share * slot.cols).enumerate() {
                scope.spawn(move || {
                    for (r, values) in rows.chunks_mut(slot.cols).enumerate() {
                        let first = (row + first + i * share + r) * slot.spec.cols + col;
                        rng::normals(key, first as u64, values);
                        values.iter_mut().for_each(|v| *v *= std);
                    }
                });
            }
        });
    }
}
