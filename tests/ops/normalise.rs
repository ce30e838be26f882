//! Layer and RMS normalisation.

use crate::bench::Bench;
use crate::reference::{dot, moments, plus, slopes};
use crate::{Case, case, reference};
use gptrain::base::DType;
use gptrain::device::{Norm, Tensor, op};

const EPS: f32 = 1e-5;

pub fn table() -> Vec<Case> {
    let sizes = [(1, 1), (1, 33), (17, 33), (33, 3), (3, 520), (50, 7)];
    let norms = sizes.into_iter().map(|(rows, cols)| {
        case(format!("layernorm {rows}x{cols}"), move |b| layernorm(b, rows, cols))
    });
    let rms = [(1, 3), (17, 33), (3, 520), (50, 8)].into_iter();
    let rms = rms.map(|(rows, cols)| {
        case(format!("RMS norm {rows}x{cols}"), move |b| rms_norm(b, rows, cols))
    });
    let fused = [(1, 1, 0.0), (17, 33, 0.1), (33, 40, 0.1), (9, 520, 0.0), (3, 4100, 0.1)];
    let fused = fused.into_iter().map(|(rows, cols, rate)| {
        case(format!("residual and layernorm {rows}x{cols}, dropout {rate}"), move |b| {
            residual_norm(b, rows, cols, rate)
        })
    });
    norms.chain(rms).chain(fused).collect()
}

/// The fused ops against the two they stand for, of either norm, with and without a bias.
pub fn residual_norm(b: &Bench, rows: usize, cols: usize, rate: f32) {
    for (biased, rms) in [(true, false), (false, false), (true, true), (false, true)] {
        both_ways(b, rows, cols, rate, biased, rms);
    }
}

/// Bits where nothing is added up in another order.
fn both_ways(b: &Bench, rows: usize, cols: usize, rate: f32, biased: bool, rms: bool) {
    let [x, branch] = [0, 1].map(|_| b.normal(rows, cols));
    let [bias, scale, shift] = [0, 1, 2].map(|_| b.normal(1, cols));
    let norm = if rms {
        Norm::Rms { scale: scale.on, eps: EPS }
    } else {
        Norm::Layer { scale: scale.on, shift: shift.on, eps: EPS }
    };
    let drop = b.dropout(rate, 5, 8, 3);
    let (y, h) = (b.blank(rows, cols, b.dtype), b.blank(rows, cols, b.dtype));
    let stats = b.blank(rows, 2, DType::F32);
    let (x_on, branch_on, bias_on) = (x.on, branch.on, biased.then_some(bias.on));
    b.run(op::Residual { x: x_on, branch: branch_on, bias: bias_on, drop, y: y.set() });
    b.run(op::LayerNorm { x: y, norm, y: h.set(), stats: stats.set() });
    let fused = |x: Tensor, branch: Tensor, y: Tensor| {
        let (h, stats) = (b.blank(rows, cols, b.dtype), b.blank(rows, 2, DType::F32));
        let (h_out, stats_out) = (h.set(), stats.set());
        let residual = op::Residual { x, branch, bias: bias_on, drop, y: y.set() };
        let norm = op::LayerNorm { x: y, norm, y: h_out, stats: stats_out };
        b.run(op::ResidualNorm { residual, norm });
        (y, h, stats)
    };
    let onto = b.again(&branch);
    for (ours, theirs, ours_h) in [
        (fused(x_on, branch_on, b.blank(rows, cols, b.dtype)), y, h),
        (fused(x_on, onto.on, onto.on), y, h),
    ] {
        b.same("residual of both", theirs, ours.0);
        b.same("norm of both", ours_h, ours.1);
        b.same("stats of both", stats, ours.2);
    }
    b.expect("h of both", h, || b.numbers(h));

    let dy = b.normal(rows, cols);
    let back = |fused: bool, own: bool| {
        let sums = [0, 1, 2].map(|_| b.known(1, cols, DType::F32, &vec![0.5; cols]).on);
        let dx = b.again(&x).on;
        let dbranch = if own { b.blank(rows, cols, b.dtype) } else { dx };
        let [dscale, dshift, dbias] = sums.map(Tensor::add);
        let (dshift, dbias) = ((!rms).then_some(dshift), biased.then_some(dbias));
        let (dy, scale, to) = (dy.on, scale.on, dx.add());
        let norm = op::LayerNormBackward { dy, x: y, stats, scale, dx: to, dscale, dshift };
        let residual =
            op::ResidualBackward { dy: dx, drop, dbranch: drop.output(dx, dbranch), dbias };
        if fused {
            b.run(op::NormResidualBackward { norm, residual });
        } else {
            b.run(norm);
            b.run(residual);
        }
        (dx, dbranch, sums)
    };
    for own in [true, false] {
        let (apart, both) = (back(false, own), back(true, own));
        b.same("dx of both", apart.0, both.0);
        b.same("dbranch of both", apart.1, both.1);
        for (name, (apart, both)) in ["dscale of both", "dshift of both", "dbias of both"]
            .into_iter()
            .zip(apart.2.into_iter().zip(both.2))
        {
            b.expect(name, both, || b.numbers(apart));
        }
    }
}

pub fn layernorm(b: &Bench, rows: usize, cols: usize) {
    let (x, scale, shift) = (b.normal(rows, cols), b.normal(1, cols), b.normal(1, cols));
    let of = |x: &[f64], scale: &[f64], shift: &[f64]| {
        reference::layernorm(x, cols, scale, shift, EPS as f64)
    };
    let (y, stats) = (b.blank(rows, cols, b.dtype), b.blank(rows, 2, DType::F32));
    let norm = Norm::Layer { scale: scale.on, shift: shift.on, eps: EPS };
    b.run(op::LayerNorm { x: x.on, norm, y: y.set(), stats: stats.set() });
    b.expect("y", y, || of(&x.x, &scale.x, &shift.x));
    b.expect("stats", stats, || {
        x.x.chunks(cols)
            .map(|x| moments(x, EPS as f64))
            .flat_map(|(m, r)| [m, r])
            .collect()
    });

    let dy = b.normal(rows, cols);
    let (dscale, dshift) = (b.normal_f32(1, cols), b.normal_f32(1, cols));
    let dx = b.blank(rows, cols, b.dtype);
    let backward = |dy, dx, dscale, dshift| {
        b.run(op::LayerNormBackward {
            dy,
            x: x.on,
            stats,
            scale: scale.on,
            dx,
            dscale,
            dshift: Some(dshift),
        });
    };
    backward(dy.on, dx.set(), dscale.on.add(), dshift.on.add());
    let want = || {
        // Each row separately: a row's gradient depends on no other row.
        let row = |(x, dy): (&[f64], &[f64])| slopes(x, |x| dot(&of(x, &scale.x, &shift.x), dy));
        x.x.chunks(cols)
            .zip(dy.x.chunks(cols))
            .flat_map(row)
            .collect::<Vec<_>>()
    };
    b.expect("dx", dx, want);
    b.expect("dscale", dscale.on, || {
        plus(&dscale.x, &slopes(&scale.x, |s| dot(&of(&x.x, s, &shift.x), &dy.x)))
    });
    b.expect("dshift", dshift.on, || {
        plus(&dshift.x, &slopes(&shift.x, |s| dot(&of(&x.x, &scale.x, s), &dy.x)))
    });

    let (sums, more) = (b.again(&dscale), b.again(&dshift));
    let old = b.normal(rows, cols);
    backward(dy.on, old.on.add(), sums.on.add(), more.on.add());
    b.expect("dx +=", old.on, || plus(&old.x, &want()));
    let (onto, sums) = (b.again(&dy), b.again(&dscale));
    backward(onto.on, onto.on.set(), sums.on.add(), more.on.add());
    b.same("in place: dx", dx, onto.on);
    b.same("in place: dscale", dscale.on, sums.on);
}

fn rms_norm(b: &Bench, rows: usize, cols: usize) {
    let (x, scale) = (b.normal(rows, cols), b.normal(1, cols));
    let of = |x: &[f64], scale: &[f64]| reference::rms_norm(x, scale, EPS as f64);
    let (y, stats) = (b.blank(rows, cols, b.dtype), b.blank(rows, 2, DType::F32));
    let norm = Norm::Rms { scale: scale.on, eps: EPS };
    b.run(op::LayerNorm { x: x.on, norm, y: y.set(), stats: stats.set() });
    // Rounded before the weight as well.
    let twice = if b.dtype == DType::F32 { 4e-6 } else { 1.0 / 128.0 };
    b.expect_within(twice, "y", y, || of(&x.x, &scale.x));
    b.expect("stats", stats, || {
        x.x.chunks(cols)
            .flat_map(|x| [0.0, reference::root(x, EPS as f64)])
            .collect()
    });
    if b.dtype == DType::F32 {
        b.expect_within(2e-7, "y to the last bits", y, || of(&x.x, &scale.x));
    }

    let (dy, dscale) = (b.normal(rows, cols), b.normal_f32(1, cols));
    let old = b.normal(rows, cols);
    let sum = b.again(&old);
    let (dx, again) = (b.blank(rows, cols, b.dtype), b.again(&dscale));
    let backward = |dx, dscale| {
        b.run(op::LayerNormBackward {
            dy: dy.on,
            x: x.on,
            stats,
            scale: scale.on,
            dx,
            dscale,
            dshift: None,
        });
    };
    backward(dx.set(), dscale.on.add());
    backward(sum.on.add(), again.on.add());
    let want = || {
        let row = |(x, dy): (&[f64], &[f64])| slopes(x, |x| dot(&of(x, &scale.x), dy));
        x.x.chunks(cols)
            .zip(dy.x.chunks(cols))
            .flat_map(row)
            .collect::<Vec<_>>()
    };
    b.expect("dx", dx, want);
    b.expect("dx +=", sum.on, || plus(&old.x, &want()));
    b.expect("dscale", dscale.on, || {
        plus(&dscale.x, &slopes(&scale.x, |s| dot(&of(&x.x, s), &dy.x)))
    });
    b.same("dscale again", dscale.on, again.on);
}
