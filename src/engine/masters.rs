//! Master weights on the host for a rule that updates on the device, because it sums over all
//! parameters and ranks. Each piece is copied to the device, updated, and copied back. The next
//! pieces are fetched and the previous one is stored meanwhile.

use super::params::Windows;
use super::states::{MASTER, MODEL, ParamStates};
use base::DType;
use device::{Arena, Backend, MemoryKind, Tensor, Transfer};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum elements of a piece: 16 MiB of f32, about 300 µs on a link. A multiple of 64, as shards
/// are, so that no block of a state is split.
pub const PIECE: usize = 4 << 20;

/// Pieces on the device at the same time.
const WINDOWS: usize = 3;

/// Device buffers for pieces.
pub struct MasterWindows {
    /// Maximum elements of a piece.
    size: usize,
    /// Buffers of the master weight, f32, and of the model weight in its dtype.
    masters: Windows,
    models: Windows,
}

/// Piece of a parameter: the parameter's index, and the range of elements.
type Piece = (usize, Range<usize>);

/// Consecutive pieces, of at most `size` elements, of this rank's part of each parameter.
fn pieces(params: &[ParamStates], size: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (i, p) in params.iter().enumerate() {
        for start in p.part.clone().step_by(size) {
            pieces.push((i, start..p.part.end.min(start + size)));
        }
    }
    pieces
}

/// View of a piece in its permanent memory.
fn piece_in_place(states: &ParamStates, range: &Range<usize>) -> ParamStates {
    let cut = |flat: Tensor| flat.span(range.start - states.part.start, range.len());
    states.piece(range.clone(), cut(states.get(MODEL)), cut(states.grad))
}

/// Calls `work` with a parameter's index and each piece of it, for all parameters in order.
pub fn for_each_piece_in_place(params: &[ParamStates], work: &mut dyn FnMut(usize, &ParamStates)) {
    for (i, range) in pieces(params, PIECE) {
        work(i, &piece_in_place(&params[i], &range));
    }
}

impl MasterWindows {
    /// Lays out the buffers for pieces of at most `size` elements.
    /// `longest` is the longest part of a parameter that a rank of the stage updates.
    pub fn plan(
        states: &[ParamStates],
        longest: usize,
        model: DType,
        size: usize,
        arena: &Arena,
    ) -> MasterWindows {
        let longest = longest.min(size);
        let on_host = states
            .iter()
            .any(|p| p.get(MODEL).memory() == MemoryKind::Host);
        let models = if on_host { longest } else { 0 };
        MasterWindows {
            size,
            masters: Windows::plan(WINDOWS, longest, DType::F32, arena),
            models: Windows::plan(WINDOWS, models, model, arena),
        }
    }

    /// Like `for_each_piece_in_place`, with the master and model weight of the piece on the device. If
    /// `changes`, both are copied back. Returns when all copies are complete.
    pub fn for_each_piece(
        &self,
        be: &dyn Backend,
        params: &[ParamStates],
        changes: bool,
        work: &mut dyn FnMut(usize, &ParamStates),
    ) {
        let pieces = pieces(params, self.size);
        let host = |k: usize| piece_in_place(&params[pieces[k].0], &pieces[k].1);
        let fetch = |k: usize| be.transfer(host(k).get(MASTER), self.master(k, pieces[k].1.len()));
        let mut fetches: VecDeque<Transfer> = (0..pieces.len().min(WINDOWS)).map(fetch).collect();
        let mut stores = Vec::new();
        for (k, (i, _)) in pieces.iter().enumerate() {
            be.join_transfer(fetches.pop_front().expect("one for each piece"));
            let on_device = self.on_device(k, host(k));
            work(*i, &on_device);
            let store = if changes { self.store(be, &host(k), &on_device) } else { Vec::new() };
            for transfer in std::mem::replace(&mut stores, store) {
                be.finish_transfer(transfer);
            }
            // The window of the previous piece is free.
            if k > 0 && k + WINDOWS - 1 < pieces.len() {
                fetches.push_back(fetch(k + WINDOWS - 1));
            }
        }
        for transfer in stores {
            be.finish_transfer(transfer);
        }
    }

    fn master(&self, k: usize, len: usize) -> Tensor {
        self.masters.view(k, len)
    }

    /// View of a piece whose host tensors are replaced by their window.
    fn on_device(&self, k: usize, piece: ParamStates) -> ParamStates {
        let master = piece.get(MASTER);
        let model = piece.get(MODEL);
        let len = piece.part.len();
        let window = self.master(k, len);
        let model = match model.memory() {
            MemoryKind::Device => model,
            MemoryKind::Host if model.addr() == master.addr() => window,
            MemoryKind::Host => self.models.view(k, len),
        };
        piece.with_memory(MASTER, window).with_memory(MODEL, model)
    }

    fn store(&self, be: &dyn Backend, host: &ParamStates, device: &ParamStates) -> Vec<Transfer> {
        let mut pairs = [MASTER, MODEL]
            .map(|name| (device.get(name), host.get(name)))
            .to_vec();
        pairs.dedup();
        pairs.retain(|(from, to)| from.memory() != to.memory());
        pairs
            .into_iter()
            .map(|(from, to)| be.transfer(from, to))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arenas::Arenas;
    use crate::params::{self, OffloadPlan, WindowCounts};
    use crate::{groups, rule::optimizer_rule};
    use device::cpu::Cpu;
    use model::{Layout, ModelShard};
    use plan::levels::Levels;

    fn numbers(cpu: &Cpu, at: Tensor) -> Vec<f32> {
        let mut bytes = vec![0; at.bytes()];
        cpu.download(at, &mut bytes);
        at.dtype.widen(&bytes)
    }

    /// Master and model weights after every master weight was doubled in its window.
    fn doubled(sets: &[&str], size: usize) -> Vec<Vec<f32>> {
        let text = "
model: {layers: 2, hidden: 20, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 2}
lr: {peak: 1e-3}
optimizer: adafactor
train: {samples: 800}
topology: {data: 2, zero: 1}
";
        let m = manifest::for_test(text, sets);
        let cpu = Cpu::new(Some(1));
        let layout = Layout::new(&m.model, ModelShard { dp: 2, ..ModelShard::whole(&m.model) });
        let rule = optimizer_rule(&m);
        let model = groups::model_dtype(m.precision);
        let on_host = OffloadPlan::from_manifest(&m);
        let lay_out = |arenas: &Arenas| {
            let buckets = params::plan_buckets(
                1,
                Levels::one(2, 1),
                &layout,
                model,
                on_host,
                WindowCounts::by_block(false),
                arenas,
            );
            let (states, maxima) = params::plan_states(&layout, &buckets, &*rule, true, arenas);
            let longest = maxima.longest;
            let masters = MasterWindows::plan(&states, longest, model, size, &arenas.optimizer);
            (states, masters)
        };
        let measured = Arenas::measuring();
        lay_out(&measured);
        let (states, masters) = lay_out(&measured.reserve(&cpu).unwrap());
        for states in &states {
            let values: Vec<f32> = states
                .part
                .clone()
                .map(|i| (i as f32 * 0.37).sin())
                .collect();
            cpu.upload(bytemuck::cast_slice(&values), states.get(MASTER));
        }
        masters.for_each_piece(&cpu, &states, true, &mut |_, piece| {
            let master = piece.get(MASTER);
            let twice: Vec<f32> = numbers(&cpu, master).iter().map(|x| 2.0 * x).collect();
            cpu.upload(bytemuck::cast_slice(&twice), master);
            piece.cast(&cpu);
        });
        let mut seen = 0;
        masters.for_each_piece(&cpu, &states, false, &mut |i, piece| {
            assert_eq!(piece.param.name, states[i].param.name);
            seen += piece.part.len();
        });
        assert_eq!(seen, states.iter().map(|states| states.part.len()).sum::<usize>());
        states
            .iter()
            .flat_map(|states| [MASTER, MODEL].map(|name| numbers(&cpu, states.get(name))))
            .collect()
    }

    /// For every location of the model weights and any piece size, each element is fetched and
    /// stored once.
    #[test]
    fn every_master_weight_comes_to_the_device_and_goes_back() {
        for precision in ["precision=f32", "precision=bf16"] {
            let whole = doubled(&[precision, "topology.offload=optimizer"], PIECE);
            assert!(
                whole[0]
                    .iter()
                    .zip(&whole[1])
                    .all(|(a, b)| (a - b).abs() <= a.abs() / 128.0)
            );
            assert!(whole.iter().flatten().any(|x| x.abs() > 1.5), "doubled");
            for (what, size) in [("optimizer", 64), ("full", 64), ("full", 100), ("full", PIECE)] {
                let what = format!("topology.offload={what}");
                assert_eq!(doubled(&[precision, &what], size), whole, "{precision} {what} {size}");
            }
        }
    }
}
