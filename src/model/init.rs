//! Initial weights. Each value is a function of the seed, the weight's name and its index in the
//! whole tensor, so every split of the model starts from the same values.

use super::layout::{Layout, Param};
use super::weights::Init;
use base::{rng, threads};
use device::cpu::normals;
use manifest::Model;
use std::sync::Mutex;

impl Layout {
    /// Fills rows of this rank's share of a weight, starting at row `first`, on all host threads.
    pub fn init_rows(
        &self,
        param: &Param,
        first: usize,
        model: &Model,
        seed: u64,
        out: &mut [f32],
    ) {
        let residual =
            if model.init.scale_residual { (2.0 * model.layers as f32).sqrt() } else { 1.0 };
        let std = model.init.std * param.spec.init_factor(model);
        match param.spec.init {
            Init::Zero => out.fill(0.0),
            Init::One => out.fill(1.0),
            Init::Normal => self.normal(param, first, std, seed, out),
            Init::Residual => self.normal(param, first, std / residual, seed, out),
        }
    }

    fn normal(&self, param: &Param, first: usize, std: f32, seed: u64, out: &mut [f32]) {
        let key = rng::key(seed, &param.name);
        let [row, col] = self.tp_offset(param);
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let share = (out.len() / param.cols).div_ceil(processors);
        let parts: Vec<_> = out.chunks_mut(share * param.cols).map(Mutex::new).collect();
        let fill = |i: usize| {
            let mut part = parts[i].lock().expect("each part is locked once");
            for (r, values) in part.chunks_mut(param.cols).enumerate() {
                let first = (row + first + i * share + r) * param.spec.cols + col;
                normals(key, first as u64, values);
                values.iter_mut().for_each(|v| *v *= std);
            }
        };
        let fill = &fill;
        std::thread::scope(|scope| {
            for i in 0..parts.len() {
                if threads::spawn_scoped(scope, "initial values", move || fill(i)).is_err() {
                    fill(i); // the system has no more threads
                }
            }
        });
    }
}
