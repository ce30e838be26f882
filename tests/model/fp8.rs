//! `precision: fp8`: it learns as bf16 does, and every grid as one rank; a layer that ranks share
//! quantizes to what one rank would.

use crate::grids::{GLOBAL, close, train};
use gptrain::base::{DType, div_exact, rng};
use gptrain::comm::{Group, Solo, World, threads};
use gptrain::device::cpu::Cpu;
use gptrain::device::{Arena, Backend, Epilogue, Tensor, op};
use gptrain::engine::Groups;
use gptrain::manifest::Manifest;
use gptrain::model::layers::{fp8, linear};
use gptrain::model::{Chunk, Cx, Layout, ModelShard, Params, TensorParallel, TpSplit, Weight};

const FP8: &str = "precision=fp8";

/// Losses within a percent of bf16's, but not the same.
#[test]
fn it_learns_as_bf16_does() {
    for family in [&[][..], &["model.family=llama", "model.ffn_hidden=48"]] {
        let [ours, bf16] = [FP8, "precision=bf16"]
            .map(|precision| train(&[family, &[precision]].concat(), &GLOBAL));
        for (ours, bf16) in ours.outcomes.iter().zip(&bf16.outcomes) {
            let off = (ours.loss / bf16.loss - 1.0).abs();
            assert!(off < 1e-2 && ours.loss != bf16.loss, "{ours:?}, bf16 {bf16:?}");
        }
    }
}

/// If tensor parallelism splits sums, activations in bf16 are rounded differently, and a number
/// between two codes may become either, an eighth apart. Other grids are as close as those of bf16.
#[test]
fn every_grid_learns_as_one_rank_does() {
    let one = train(&[FP8], &GLOBAL);
    let grids: [&[&str]; 8] = [
        &["topology.tensor=2"],
        &["topology.tensor=2", "topology.sequence_parallel=true", "topology.recompute=full"],
        &["topology.data=2"],
        &["topology.data=2", "topology.zero=3", "topology.recompute=selective"],
        &["topology.pipeline=2", "topology.schedule=interleaved"],
        &["topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1"],
        &["topology.pipeline=2", "topology.data=2", "topology.zero=2"],
        &[
            "topology={pipeline: 2, schedule: breadth_first, chunks: 3, data: 2, zero: 3}",
            "topology.layer_split=[0, 1, 1, 1, 1, 0]",
        ],
    ];
    for grid in grids {
        let sets = [&[FP8], grid].concat();
        let ours = train(&sets, &GLOBAL);
        let tolerance = if grid[0] == "topology.tensor=2" { (4e-3, 0.15) } else { (2e-3, 2e-2) };
        close(&ours, &one, tolerance, &sets);
        assert!(ours == train(&sets, &GLOBAL), "the same grid twice: {grid:?}");
    }
}

const TOKENS: usize = 48;

/// Results of a layer: y [N, out], dx [N, in], dw [out, in] of the whole.
type Given = [Vec<f32>; 3];

/// Numbers whose columns differ in size, so that a share's maximum is not the whole's.
fn numbers(stream: u64, rows: usize, cols: usize) -> Vec<f32> {
    let mut x = vec![0.0; rows * cols];
    rng::normals(stream, 0, &mut x);
    let size = |at: usize| 1.0 + (at % cols) as f32 / 8.0 + (at / cols) as f32 / 4.0;
    x.iter().enumerate().map(|(at, x)| x * size(at)).collect()
}

/// Rows and columns of a whole matrix, as a share has them.
fn share(x: &[f32], cols: usize, split: TpSplit, rank: usize, ranks: usize) -> Vec<f32> {
    let rows = x.len() / cols;
    let part = |n: usize, by: TpSplit| {
        if by != split {
            return 0..n;
        }
        rank * div_exact(n, ranks)..(rank + 1) * div_exact(n, ranks)
    };
    let (rows, within) = (part(rows, TpSplit::Rows), part(cols, TpSplit::Cols));
    rows.flat_map(|row| x[row * cols..][within.clone()].to_vec())
        .collect()
}

/// Columns of each rank side by side, or rows one after the other.
fn joined(parts: &[Vec<f32>], cols: usize, split: TpSplit) -> Vec<f32> {
    let ranks = parts.len();
    match split {
        TpSplit::Whole => {
            let sum = |at: usize| parts.iter().map(|part| part[at]).sum();
            (0..parts[0].len()).map(sum).collect()
        }
        TpSplit::Rows => parts.concat(),
        TpSplit::Cols => {
            let own = cols / ranks;
            let row = |row: usize| {
                parts
                    .iter()
                    .flat_map(move |p| p[row * own..][..own].to_vec())
            };
            (0..parts[0].len() / own).flat_map(row).collect()
        }
    }
}

/// Forward and backward of one layer on one of the ranks, in f32 but for the codes.
fn layer(m: &Manifest, weight: Weight, keeps: bool, group: &dyn Group) -> Given {
    let (cpu, ranks, rank) = (Cpu::new(Some(1)), group.size(), group.rank());
    let shard = ModelShard {
        chunks: vec![Chunk { layers: 0..1, first: true, last: true }],
        tp: ranks,
        tp_rank: rank,
        dp: 1,
    };
    let layout = Layout::new(&m.model, shard);
    let bucket = &layout.buckets[layout.block(0)];
    let arena = Arena::new(&cpu, 8 << 20).unwrap();
    let params = Params::new(bucket, arena.matrix(1, bucket.range.len(), DType::F32));
    let params = params.with_fp8(bucket, |size| fp8::plan_weight(&cpu, size, keeps, &arena));
    let cx = Cx {
        be: &cpu,
        tp: TensorParallel { group, sequence: false },
        model: &m.model,
        dtype: DType::F32,
        recompute: m.topology.recompute,
        seed: 0,
        training: true,
        z_loss: None,
        fp8: None,
        cached_tokens: 0,
    };
    let space = arena.matrix(1, fp8::bytes(&cx, TOKENS), DType::U8);
    let room = fp8::Fp8Pass { space, keeps, new_weights: false };
    let cx = Cx { fp8: Some(room), ..cx };
    let split = weight.block_split();
    let spec = gptrain::model::table(&m.model)
        .into_iter()
        .find(|s| s.weight == weight)
        .unwrap();
    let [of_x, of_y] = match split {
        TpSplit::Rows => [TpSplit::Whole, TpSplit::Cols],
        _ => [TpSplit::Cols, TpSplit::Whole],
    };
    let place = |stream, rows, cols, split| -> Tensor {
        let own = share(&numbers(stream, rows, cols), cols, split, rank, ranks);
        let rows = if split == TpSplit::Rows { rows / ranks } else { rows };
        let x = arena.matrix(rows, own.len() / rows, DType::F32);
        cpu.upload(bytemuck::cast_slice(&own), x);
        x
    };
    let (x, dy) = (place(1, TOKENS, spec.cols, of_x), place(2, TOKENS, spec.rows, of_y));
    cpu.host()
        .run(op::Copy { x: place(3, spec.rows, spec.cols, split), y: params[weight].set() });
    let [y, dx, dw] = [dy, x, params[weight]].map(|x| arena.matrix(x.rows, x.cols, DType::F32));
    let input = linear::Input::plan(&cx, x, &arena);
    let first = Cx { fp8: Some(room.for_forward(true)), ..cx };
    linear::forward(&first, input, (&params, weight), Epilogue::Nothing, y.set());
    linear::backward(&cx, dy, input, (&params, weight), Epilogue::Nothing, dx.set(), dw.set());
    [y, dx, dw].map(|x| {
        let mut values = vec![0.0f32; x.numel()];
        cpu.download(x, bytemuck::cast_slice_mut(&mut values));
        values
    })
}

/// The sums of f32 are split otherwise, and nothing else is: a maximum that a rank took of its own
/// share would be off by a hundredth.
#[test]
fn ranks_that_share_a_layer_quantize_it_as_one_rank_does() {
    let m = crate::common::manifest(&["model.layers=1"]);
    let weights = [Weight::QkvW, Weight::ProjW, Weight::Fc1W, Weight::Fc2W];
    for (weight, keeps) in weights.into_iter().flat_map(|w| [(w, false), (w, true)]) {
        let one = layer(&m, weight, false, &Solo);
        assert!(one == layer(&m, weight, keeps, &Solo), "{weight:?}: codes that are kept");
        let cut = &crate::common::manifest(&["model.layers=1", "topology.tensor=2"]);
        let parts: Vec<Given> = std::thread::scope(|scope| {
            let run = |world: World| {
                let groups = move || Groups::new(&world, &cut.topology);
                scope.spawn(move || layer(cut, weight, keeps, &*groups().tensor))
            };
            let ranks: Vec<_> = threads::world(2).into_iter().map(run).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let split = weight.block_split();
        let whole = [TpSplit::Cols, TpSplit::Whole];
        let [of_y, of_dx] = if split == TpSplit::Rows { whole } else { [whole[1], whole[0]] };
        let columns = [one[0].len() / TOKENS, one[1].len() / TOKENS, one[1].len() / TOKENS];
        for (at, split) in [of_y, of_dx, split].into_iter().enumerate() {
            let parts: Vec<Vec<f32>> = parts.iter().map(|given| given[at].clone()).collect();
            let ours = joined(&parts, columns[at], split);
            let largest = one[at].iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert_eq!(ours.len(), one[at].len());
            for (x, y) in ours.iter().zip(&one[at]) {
                assert!((x - y).abs() < 2e-6 * largest, "{weight:?}, result {at}: {x}, {y}");
            }
        }
    }
}
