//! Layer normalisation.

use crate::bench::Bench;
use crate::reference::{dot, moments, plus, slopes};
use crate::{Case, case, reference};
use gptrain::base::DType;

const EPS: f32 = 1e-5;

pub fn table() -> Vec<Case> {
    let sizes = [(1, 1), (1, 33), (17, 33), (33, 3), (3, 520), (50, 7)];
    sizes
        .into_iter()
        .map(|(rows, cols)| {
            case(format!("layernorm {rows}x{cols}"), move |b| layernorm(b, rows, cols))
        })
        .collect()
}

pub fn layernorm(b: &Bench, rows: usize, cols: usize) {
    let (x, scale, shift) = (b.normal(rows, cols), b.normal(1, cols), b.normal(1, cols));
    let of = |x: &[f64], scale: &[f64], shift: &[f64]| {
        reference::layernorm(x, cols, scale, shift, EPS as f64)
    };
    let (y, stats) = (b.blank(rows, cols, b.dtype), b.blank(rows, 2, DType::F32));
    b.backend.layernorm(x.on, scale.on, shift.on, EPS, y.set(), stats.set());
    b.expect("y", y, || of(&x.x, &scale.x, &shift.x));
    b.expect("stats", stats, || {
        x.x.chunks(cols).map(|x| moments(x, EPS as f64)).flat_map(|(m, r)| [m, r]).collect()
    });

    let dy = b.normal(rows, cols);
    let (dscale, dshift) = (b.normal_f32(1, cols), b.normal_f32(1, cols));
    let dx = b.blank(rows, cols, b.dtype);
    let backward = |dy, dx, dscale, dshift| {
        b.backend.layernorm_backward(dy, x.on, stats, scale.on, dx, dscale, dshift);
    };
    backward(dy.on, dx.set(), dscale.on.add(), dshift.on.add());
    let want = || {
        // Of a row, since no other moves with it.
        let row = |(x, dy): (&[f64], &[f64])| slopes(x, |x| dot(&of(x, &scale.x, &shift.x), dy));
        x.x.chunks(cols).zip(dy.x.chunks(cols)).flat_map(row).collect::<Vec<_>>()
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
