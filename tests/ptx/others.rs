//! Kernels without tensor cores, against their definitions: norms, cross-entropy, embedding, optimizer, fp8.

use crate::machine::{Launch, Order, launch};
use crate::memory::{Arguments, Fault, Global};
use crate::modules::Modules;
use crate::random::Random;
use half::bf16;

/// Runs a kernel with arguments whose layout is that of its struct in kernels/args.cuh.
fn run(
    modules: &Modules,
    (file, name): (&str, &str),
    global: &mut Global,
    arguments: Arguments,
    (grid, block, shared): ([usize; 3], [usize; 2], usize),
    order: Order,
) -> Result<(), Fault> {
    let program = modules.program(file, name)?;
    let parameters = arguments.bytes(program.kernel.parameters, 8);
    launch(&program, global, &Launch { grid, block, shared, parameters: &parameters, order })?;
    Ok(())
}

const ORDERS: [Order; 2] = [Order::Lowest, Order::Random(7)];

fn narrow(x: &[f64]) -> Vec<bf16> {
    x.iter().map(|x| bf16::from_f64(*x)).collect()
}

fn widen(x: &[bf16]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

/// Random numbers of bf16, and as f64.
fn draw(random: &mut Random, count: usize) -> (Vec<bf16>, Vec<f64>) {
    let narrow = narrow(&random.normals(count));
    let wide = widen(&narrow);
    (narrow, wide)
}

/// Panics if a number differs by more than `bound` of the largest.
fn assert_near(what: &str, got: &[f64], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0f64, |most, x| most.max(x.abs()));
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        // Not `>`: NaN must fail.
        let near = (got - want).abs() <= bound * largest;
        assert!(near, "{what}[{at}]: {got} instead of {want}, the largest is {largest}");
    }
}

fn doubled(x: Vec<f32>) -> Vec<f64> {
    x.into_iter().map(f64::from).collect()
}

/// Half a unit in bf16's last place, of the largest number, and what f32 adds.
const BF16: f64 = 1.0 / 256.0;

#[test]
fn gelu_and_swiglu() {
    let Some(modules) = Modules::compiled() else { return };
    let (x, wide) = draw(&mut Random(1), 4096);
    for order in ORDERS {
        let mut global = Global::default();
        let [from, to] = [global.add("x", &x), global.add("y", &vec![bf16::NAN; 4096])];
        let arguments = Arguments::default()
            .with(&[from, to, 4096])
            .with(&[0u32, 1]);
        let grid = ([2, 1, 1], [256, 1], 0);
        run(&modules, ("gelu.80", "gelu_tanh_bf16"), &mut global, arguments, grid, order).unwrap();
        let gelu = |x: &f64| {
            0.5 * x
                * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        };
        let want: Vec<f64> = wide.iter().map(gelu).collect();
        assert_near("gelu", &widen(&global.read(to)), &want, BF16);

        let to = global.add("y", &vec![bf16::NAN; 2048]);
        let arguments = Arguments::default()
            .with(&[from, to, 0, 2048])
            .with(&[1u32]);
        let grid = ([1, 1, 1], [256, 1], 0);
        run(&modules, ("swiglu.80", "swiglu_bf16"), &mut global, arguments, grid, order).unwrap();
        let want: Vec<f64> = wide
            .chunks(2)
            .map(|pair| pair[0] / (1.0 + (-pair[0]).exp()) * pair[1])
            .collect();
        assert_near("swiglu", &widen(&global.read(to)), &want, BF16);
    }
}

/// Tensors in one launch of the optimizer's kernels.
const TENSORS: usize = 64;

#[test]
fn adamw() {
    let Some(modules) = Modules::compiled() else { return };
    let count = 5000;
    let mut random = Random(2);
    let (grad, wide) = draw(&mut random, count);
    let mut state = |factor: f64, shift: f64| -> Vec<f32> {
        random
            .normals(count)
            .iter()
            .map(|x| (factor * (x.abs() * shift + x * (1.0 - shift))) as f32)
            .collect()
    };
    let [weights, m, v] = [state(1.0, 0.0), state(0.1, 0.0), state(0.1, 1.0)];
    let (scale, lr, correction, keep) = (0.5, 1e-3, 1.02, 0.9999);
    for order in ORDERS {
        let mut global = Global::default();
        let tensors = [
            global.add("grad", &grad),
            global.add("w", &weights),
            global.add("m", &m),
            global.add("v", &v),
        ];
        let out = global.add("weight", &vec![bf16::NAN; count]);
        let scalars = global.add("scalars", &[scale as f32, lr as f32, correction as f32]);
        let mut arguments = Arguments::default();
        for address in tensors.into_iter().chain([out, count as u64]) {
            arguments = arguments.padded(&[address], TENSORS);
        }
        let mut first = vec![1u32; TENSORS + 1];
        first[0] = 0;
        let arguments = arguments
            .padded(&[keep as f32], TENSORS)
            .padded(&[1f32], TENSORS)
            .with(&first)
            .with(&[scalars])
            .with(&[0.9f32, 0.95, 1e-8])
            .with(&[1u32, 1]);
        let grid = ([1, 1, 1], [256, 1], 0);
        run(&modules, ("optimizer.80", "adamw_bf16_bf16"), &mut global, arguments, grid, order)
            .unwrap();
        let [got_w, got_m, got_v] = [1, 2, 3].map(|at| doubled(global.read::<f32>(tensors[at])));
        let mut want = [Vec::new(), Vec::new(), Vec::new()];
        for at in 0..count {
            let g = wide[at] * scale;
            let m = f64::from(m[at]) * 0.9 + 0.1 * g;
            let v = f64::from(v[at]) * 0.95 + 0.05 * g * g;
            let w = f64::from(weights[at]) * keep - lr * m / (v.sqrt() * correction + 1e-8);
            [w, m, v]
                .into_iter()
                .zip(&mut want)
                .for_each(|(x, all)| all.push(x));
        }
        assert_near("weights", &got_w, &want[0], 1e-6);
        assert_near("first moments", &got_m, &want[1], 1e-6);
        assert_near("second moments", &got_v, &want[2], 1e-6);
        assert_eq!(global.read::<bf16>(out), narrow(&got_w), "weights in bf16");
    }
}

#[test]
fn sums_of_squares() {
    let Some(modules) = Modules::compiled() else { return };
    let mut random = Random(3);
    let tensors = [70_008, 3000].map(|count| -> Vec<f32> {
        random
            .normals(count)
            .into_iter()
            .map(|x| x as f32)
            .collect()
    });
    let want = tensors
        .each_ref()
        .map(|x| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>());
    for order in ORDERS {
        let mut global = Global::default();
        let places = tensors.each_ref().map(|x| global.add("x", x));
        let parts = global.add("parts", &vec![f64::NAN; 2 * 1057]);
        let out = global.add("out", &[f32::NAN; 2]);
        let blocks = tensors.each_ref().map(|x| x.len().div_ceil(4096));
        let numel = tensors.each_ref().map(|x| x.len() as u64);
        let mut first = vec![(blocks[0] + blocks[1]) as u32; TENSORS + 1];
        (first[0], first[1]) = (0, blocks[0] as u32);
        let arguments = Arguments::default()
            .padded(&places, TENSORS)
            .padded(&numel, TENSORS)
            .with(&first)
            .padded(&[0u32, 1], TENSORS)
            .with(&[parts])
            .with(&[2u32, 1, 1]);
        let grid = ([blocks[0] + blocks[1], 1, 1], [256, 1], 0);
        run(&modules, ("optimizer.80", "sum_parts_f32"), &mut global, arguments, grid, order)
            .unwrap();
        let arguments = Arguments::default().with(&[parts, out]).with(&[0u32]);
        let grid = ([2, 1, 1], [256, 1], 0);
        run(&modules, ("optimizer.80", "sum_finish"), &mut global, arguments, grid, order).unwrap();
        assert_near("sums", &doubled(global.read::<f32>(out)), &want, 1e-7);
    }
}

/// The order of ids by a stable sort, and the sums of their gradients.
#[test]
fn embedding_backward() {
    let Some(modules) = Modules::compiled() else { return };
    let (table, cols, count) = (700usize, 40usize, 1500usize);
    let mut random = Random(4);
    // Many of one id, some outside.
    let ids: Vec<i32> = (0..count)
        .map(|_| if random.below(5) == 0 { 7 } else { random.below(table + 23) as i32 - 3 })
        .collect();
    let rows: Vec<i32> = ids
        .iter()
        .map(|id| if (0..table as i32).contains(id) { *id } else { table as i32 })
        .collect();
    let (dy, wide) = draw(&mut random, count * cols);
    let start: Vec<f32> = random
        .normals(table * cols)
        .into_iter()
        .map(|x| x as f32)
        .collect();
    let mut want: Vec<f64> = doubled(start.clone());
    for (at, row) in rows
        .iter()
        .enumerate()
        .filter(|(_, row)| **row < table as i32)
    {
        for c in 0..cols {
            want[*row as usize * cols + c] += wide[at * cols + c];
        }
    }
    let mut sorted: Vec<i32> = (0..count as i32).collect();
    sorted.sort_by_key(|at| rows[*at as usize]);
    for order in ORDERS {
        let mut global = Global::default();
        let tiles = count.div_ceil(256);
        let starts = global.add("starts", &vec![u32::MAX; 256 * tiles]);
        let id_place = global.add("ids", &ids);
        let places =
            ["order", "rows", "order", "rows"].map(|name| global.add(name, &vec![-1i32; count]));
        let mut from = [0, 0];
        for digit in 0..2 {
            let to = [places[2 * digit], places[2 * digit + 1]];
            for (name, blocks, threads) in
                [("embed_count", tiles, 256), ("embed_start", 1, 1024), ("embed_place", tiles, 256)]
            {
                let arguments = Arguments::default()
                    .with(&[id_place, from[0], from[1], to[0], to[1], starts])
                    .with(&[0, table as i64])
                    .with(&[count as u32, 8 * digit as u32]);
                let grid = ([blocks, 1, 1], [threads, 1], 0);
                run(&modules, ("embed.80", name), &mut global, arguments, grid, order).unwrap();
            }
            from = to;
        }
        assert_eq!(global.read::<i32>(from[0]), sorted);
        let in_order: Vec<i32> = sorted.iter().map(|at| rows[*at as usize]).collect();
        assert_eq!(global.read::<i32>(from[1]), in_order);
        let [dy, to] = [global.add("dy", &dy), global.add("table", &start)];
        let arguments = Arguments::default()
            .with(&[dy, from[0], from[1], to, count as u64])
            .with(&[table as i64])
            .with(&[cols as u32, 1]);
        let grid = ([1, count.div_ceil(8), 1], [32, 8], 0);
        run(&modules, ("embed.80", "embed_backward_bf16"), &mut global, arguments, grid, order)
            .unwrap();
        assert_near("table", &doubled(global.read::<f32>(to)), &want, 1e-6);
    }
}

#[test]
fn cross_entropy() {
    let Some(modules) = Modules::compiled() else { return };
    let (rows, cols, own) = (3usize, 5008usize, 5003usize);
    let mut random = Random(5);
    let logits = narrow(
        &random
            .normals(rows * cols)
            .iter()
            .map(|x| 3.0 * x)
            .collect::<Vec<_>>(),
    );
    let targets: Vec<i32> = (0..rows).map(|_| random.below(own) as i32).collect();
    let (weights, scale) = ([0.5f32, 1.0, 0.0], 2.0);
    for order in ORDERS {
        let mut global = Global::default();
        let place = global.add("logits", &logits);
        let tensors = [global.add("targets", &targets), global.add("weights", &weights)];
        let stats = global.add("stats", &[f32::NAN; 9]);
        let losses = global.add("losses", &[f32::NAN; 3]);
        let factor = global.add("scale", &[scale as f32]);
        let arguments = Arguments::default()
            .with(&[place, tensors[0], tensors[1], stats, losses, 0, factor])
            .with(&[0i64])
            .with(&[rows as u64])
            .with(&[cols as u32, own as u32, 1, 1])
            .with(&[0f32, 0.0]);
        let (name, grid) = ("cross_entropy_unsplit_bf16", ([rows, 1, 1], [512, 1], 0));
        run(&modules, ("cross_entropy.80", name), &mut global, arguments, grid, order).unwrap();
        let (gradient, losses) = (widen(&global.read(place)), doubled(global.read::<f32>(losses)));
        for row in 0..rows {
            let x = widen(&logits[row * cols..][..own]);
            let (target, weight) = (targets[row] as usize, f64::from(weights[row]));
            let z = x.iter().map(|x| x.exp()).sum::<f64>().ln();
            let loss = weight * (z - x[target]);
            assert!((losses[row] - loss).abs() <= 1e-5, "{} instead of {loss}", losses[row]);
            let one = |c: usize| if c == target { 1.0 } else { 0.0 };
            let want = x
                .iter()
                .enumerate()
                .map(|(c, x)| ((x - z).exp() - one(c)) * weight * scale);
            let got = &gradient[row * cols..][..cols];
            assert_near("gradient", &got[..own], &want.collect::<Vec<_>>(), BF16);
            assert!(got[own..].iter().all(|x| *x == 0.0), "padding has a gradient");
        }
    }
}

/// The width of a small model, and BLOOM's, of which the norm needs 896 threads.
#[test]
fn norm_and_residual_backward() {
    let Some(modules) = Modules::compiled() else { return };
    for (cols, which, threads) in [(768usize, "wide1", 96), (14_336, "wide16", 896)] {
        let rows = 5;
        let mut random = Random(cols as u64);
        let [(x, wide_x), (dy, wide_dy), (before, wide_before)] =
            [0, 1, 2].map(|_| draw(&mut random, rows * cols));
        let (scale, wide_scale) = draw(&mut random, cols);
        let (mut stats, mut want_dx, mut sums) =
            (Vec::new(), Vec::new(), [vec![0.0; cols], vec![0.0; cols]]);
        for row in 0..rows {
            let of = |tensor: &[f64]| tensor[row * cols..][..cols].to_vec();
            let (x, dy, before) = (of(&wide_x), of(&wide_dy), of(&wide_before));
            let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / cols as f64;
            let mu = mean(&mut x.iter().copied());
            let root = 1.0 / (mean(&mut x.iter().map(|x| (x - mu).powi(2))) + 1e-5).sqrt();
            stats.extend([mu as f32, root as f32]);
            let normal: Vec<f64> = x.iter().map(|x| (x - mu) * root).collect();
            let g: Vec<f64> = dy
                .iter()
                .zip(&wide_scale)
                .map(|(dy, scale)| dy * scale)
                .collect();
            let [flat, along] = [
                mean(&mut g.iter().copied()),
                mean(&mut g.iter().zip(&normal).map(|(g, x)| g * x)),
            ];
            for c in 0..cols {
                want_dx.push(root * (g[c] - flat - normal[c] * along) + before[c]);
                sums[0][c] += dy[c] * normal[c];
                sums[1][c] += dy[c];
            }
        }
        for order in ORDERS {
            let mut global = Global::default();
            let tensors = [global.add("dy", &dy), global.add("x", &x), global.add("stats", &stats)];
            let rest = [global.add("scale", &scale), global.add("dx", &before)];
            let parts = global.add("parts", &vec![f32::NAN; 3 * cols]);
            let arguments = Arguments::default()
                .with(&tensors)
                .with(&rest)
                .with(&[parts, rows as u64])
                .with(&[cols as u32, rows as u32, 1, 0])
                .with(&[0u64; 5])
                .with(&[0u32])
                .with(&[1f32]);
            let name = format!("norm_residual_backward_{which}_bf16");
            let grid = ([1, 1, 1], [threads, 1], 12 * cols);
            run(&modules, ("layernorm.80", &name), &mut global, arguments, grid, order).unwrap();
            let dx = widen(&global.read(rest[1]));
            assert_near("dx", &dx, &want_dx, BF16);
            let parts = doubled(global.read::<f32>(parts));
            let bias: Vec<f64> = (0..cols)
                .map(|c| (0..rows).map(|row| dx[row * cols + c]).sum())
                .collect();
            for (got, want) in parts.chunks(cols).zip([&sums[0], &sums[1], &bias]) {
                assert_near("parts", got, want, 1e-5);
            }
        }
    }
}

/// Three sums of one launch, of which nothing asks for the second and the third is added to.
#[test]
fn column_sums() {
    let Some(modules) = Modules::compiled() else { return };
    let (count, cols) = (300usize, 50usize);
    let mut random = Random(9);
    let parts: Vec<f32> = random
        .normals(3 * count * cols)
        .iter()
        .map(|x| *x as f32)
        .collect();
    let old: Vec<f32> = random.normals(cols).iter().map(|x| *x as f32).collect();
    let sum = |which: usize, c: usize| -> f64 {
        (0..count)
            .map(|i| f64::from(parts[(3 * i + which) * cols + c]))
            .sum()
    };
    for order in ORDERS {
        let mut global = Global::default();
        let from = global.add("parts", &parts);
        let [first, third] =
            [global.add("first", &vec![f32::NAN; cols]), global.add("third", &old)];
        let arguments = Arguments::default()
            .with(&[from, first, 0, third, 3 * cols as u64])
            .with(&[count as u32, cols as u32, 0, 0, 1]);
        let grid = ([cols.div_ceil(32), 3, 1], [32, 8], 0);
        run(&modules, ("elementwise.80", "column_sums"), &mut global, arguments, grid, order)
            .unwrap();
        let want: Vec<f64> = (0..cols).map(|c| sum(0, c)).collect();
        assert_near("first", &doubled(global.read::<f32>(first)), &want, 1e-6);
        let want: Vec<f64> = (0..cols).map(|c| f64::from(old[c]) + sum(2, c)).collect();
        assert_near("third", &doubled(global.read::<f32>(third)), &want, 1e-6);
    }
}

/// RMS norm of heads, then RoPE.
#[test]
fn query_key() {
    let Some(modules) = Modules::compiled() else { return };
    let (rows, heads, kv, d) = (6usize, 4usize, 2usize, 128usize);
    let mut random = Random(6);
    let parts = heads + 2 * kv;
    let (qkv, wide) = draw(&mut random, rows * parts * d);
    let [(query_scale, wide_query), (key_scale, wide_key)] = [0, 1].map(|_| draw(&mut random, d));
    let positions: Vec<i32> = (0..rows).map(|_| random.below(50) as i32).collect();
    let angle =
        |position: usize, c: usize| position as f64 * 10_000f64.powf(-(c as f64) / (d / 2) as f64);
    let table: Vec<f32> = (0..50)
        .flat_map(|position| (0..d).map(move |c| (position, c)))
        .map(|(position, c)| {
            if c < d / 2 {
                angle(position, c).cos() as f32
            } else {
                angle(position, c - d / 2).sin() as f32
            }
        })
        .collect();
    let rounded = |x: f64| bf16::from_f64(x).to_f64();
    let mut want = wide.clone();
    for (number, head) in want.chunks_mut(d).enumerate() {
        let (row, within) = (number / parts, number % parts % (heads / kv + 2));
        if within == heads / kv + 1 {
            continue; // a value
        }
        let scale = if within == heads / kv { &wide_key } else { &wide_query };
        let root = 1.0 / (head.iter().map(|x| x * x).sum::<f64>() / d as f64 + 1e-6).sqrt();
        let normal: Vec<f64> = head
            .iter()
            .zip(scale)
            .map(|(x, scale)| rounded(rounded(x * root) * scale))
            .collect();
        for c in 0..d / 2 {
            let (sin, cos) = angle(positions[row] as usize, c).sin_cos();
            head[c] = normal[c] * cos - normal[c + d / 2] * sin;
            head[c + d / 2] = normal[c + d / 2] * cos + normal[c] * sin;
        }
    }
    for order in ORDERS {
        let mut global = Global::default();
        let [from, to] = [global.add("qkv", &qkv), global.add("y", &vec![bf16::NAN; qkv.len()])];
        let scales = [global.add("scale", &query_scale), global.add("scale", &key_scale)];
        let tables = [global.add("positions", &positions), global.add("table", &table)];
        let arguments = Arguments::default()
            .with(&[from, 0, to])
            .with(&scales)
            .with(&tables)
            .with(&[0, rows as u64])
            .with(&[heads, kv, d, 0].map(|number| number as u32))
            .with(&[1e-6f32])
            .with(&[1u32]);
        let grid = ([(rows * parts).div_ceil(8), 1, 1], [256, 1], 0);
        run(&modules, ("query_key.80", "query_key_bf16"), &mut global, arguments, grid, order)
            .unwrap();
        assert_near("heads", &widen(&global.read(to)), &want, BF16);
    }
}

/// Numbers of an 8-bit format by their codes without a sign (Micikevicius et al., 2022).
fn numbers(mantissa: i32) -> Vec<f32> {
    let bias = (1 << (6 - mantissa)) - 1;
    let number = |code: i32| {
        let (exponent, fraction) = (code >> mantissa, code & ((1 << mantissa) - 1));
        let one = if exponent == 0 { 0 } else { 1 << mantissa };
        ((one + fraction) as f32) * 2f32.powi(exponent.max(1) - bias - mantissa)
    };
    // The highest codes are infinite or NaN.
    let finite = if mantissa == 3 { 127 } else { 124 };
    (0..finite).map(number).collect()
}

/// Code of the nearest number; of two that are as near, the even code.
fn nearest(x: f32, numbers: &[f32]) -> u8 {
    let size = f64::from(x.abs());
    let distance = |code: &usize| (f64::from(numbers[*code]) - size).abs();
    let after = numbers
        .partition_point(|number| f64::from(*number) < size)
        .min(numbers.len() - 1);
    let candidates = [after.saturating_sub(1), after];
    let best = candidates.into_iter().min_by(|a, b| {
        distance(a)
            .total_cmp(&distance(b))
            .then((a % 2).cmp(&(b % 2)))
    });
    best.unwrap() as u8 | u8::from(x.is_sign_negative()) << 7
}

/// Codes and scales bit for bit: by the instructions of sm_89 and later, and without them.
#[test]
fn quantization_to_eight_bits() {
    let Some(modules) = Modules::compiled() else { return };
    let (rows, cols) = (96usize, 272usize);
    let mut random = Random(8);
    let spread: Vec<f64> = (0..rows).map(|_| (3.0 * random.normal()).exp()).collect();
    let x: Vec<f64> = (0..rows * cols)
        .map(|at| random.normal() * spread[at / cols])
        .collect();
    let x = narrow(&x);
    let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let largest =
        |values: &mut dyn Iterator<Item = &f32>| values.fold(0f32, |most, x| most.max(x.abs()));
    let of_rows: Vec<f32> = wide
        .chunks(cols)
        .map(|row| largest(&mut row.iter()))
        .collect();
    let of_columns: Vec<f32> = (0..cols)
        .map(|c| largest(&mut wide.iter().skip(c).step_by(cols)))
        .collect();
    for ((format, mantissa, top), order, file) in [
        (("e4m3", 3, 448f32), Order::Lowest, "fp8.90a"),
        (("e4m3", 3, 448f32), Order::Random(1), "fp8.80"),
        (("e5m2", 2, 57_344f32), Order::Lowest, "fp8.80"),
        (("e5m2", 2, 57_344f32), Order::Random(2), "fp8.90a"),
    ] {
        let table = numbers(mantissa);
        assert_eq!(table.last(), Some(&top));
        let [row_scales, column_scales] = [&of_rows, &of_columns]
            .map(|maxima| maxima.iter().map(|most| most / top).collect::<Vec<_>>());
        let code = |at: usize, scale: f32| nearest(wide[at] * (1.0 / scale), &table);
        let row_codes: Vec<u8> = (0..rows * cols)
            .map(|at| code(at, row_scales[at / cols]))
            .collect();
        let column_codes: Vec<u8> = (0..rows * cols)
            .map(|at| {
                let (c, row) = (at / rows, at % rows);
                code(row * cols + c, column_scales[c])
            })
            .collect();
        let mut global = Global::default();
        let place = global.add("x", &x);
        let scales = global.add("scales", &vec![f32::NAN; rows]);
        let codes = global.add("codes", &vec![0xffu8; rows * cols]);
        let maxima = global.add("maxima", &vec![0f32; cols]);
        let arguments = Arguments::default()
            .with(&[place, scales, codes, maxima, rows as u64])
            .with(&[cols as u32])
            .with(&[top])
            .with(&[1u32]);
        let name = format!("fp8_own_rows_{format}_bf16");
        let grid = ([3, 1, 1], [512, 1], 4 * cols);
        run(&modules, (file, &name), &mut global, arguments, grid, order).unwrap();
        assert_eq!(global.read::<f32>(scales), row_scales, "{name}");
        assert_eq!(global.read::<f32>(maxima), of_columns, "{name}");
        assert_eq!(global.read::<u8>(codes), row_codes, "{name}");

        let given = global.add("column scales", &column_scales);
        let transposed = global.add("column codes", &vec![0xffu8; rows * cols]);
        let codes = global.add("codes", &vec![0xffu8; rows * cols]);
        let arguments = Arguments::default()
            .with(&[place, scales, codes, given, transposed, rows as u64])
            .with(&[cols as u32, 1, 1]);
        let name = format!("fp8_columns_{format}_bf16");
        let grid = ([cols.div_ceil(64), rows.div_ceil(64), 1], [256, 1], 0);
        run(&modules, (file, &name), &mut global, arguments, grid, order).unwrap();
        assert_eq!(global.read::<u8>(transposed), column_codes, "{name}");
        assert_eq!(global.read::<u8>(codes), row_codes, "{name}");
    }
}
