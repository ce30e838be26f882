//! Adafactor: sums by row, column and fused matrix, the second moment, the update.

use crate::bench::{Bench, Known};
use crate::reference::plus;
use crate::{Case, case};
use gptrain::base::{DType, Fused};
use gptrain::device::{Adafactor, InPlace, MatrixPart, SecondMoment, op};

const RULE: Adafactor = Adafactor {
    lr: 3e-2,
    relative_step: true,
    beta2_decay: -0.8,
    eps: 1e-15,
    scale_eps: 0.5,
    clip_threshold: 1.5,
    weight_decay: 0.1,
    lr_scale: 0.5,
};

pub fn table() -> Vec<Case> {
    let all = |whole: [usize; 2], fused| MatrixPart {
        whole,
        rows: whole[0],
        cols: whole[1],
        first: 0,
        len: whole[0] * whole[1],
        fused,
    };
    let qkv = Fused::new([8, 4, 4]);
    let by_rows = MatrixPart { rows: 16, len: 16 * 70, ..all([48, 70], qkv) };
    let by_cols = MatrixPart { cols: 35, len: 24 * 35, ..all([24, 70], Fused::ONE) };
    let biases = all([1, 64], qkv);
    let gates = Fused::new([1, 1, 0]);
    vec![
        case("adafactor, a matrix", move |b| part(b, all([33, 41], Fused::ONE))),
        case("adafactor, q, k and v", move |b| part(b, all([48, 70], qkv))),
        case("adafactor, rows of q, k and v", move |b| part(b, by_rows)),
        case("adafactor, columns of a matrix", move |b| part(b, by_cols)),
        case("adafactor, the end of a row, rows, the start of one", move |b| {
            part(b, MatrixPart { first: 3 * 70 + 61, len: 500, ..by_rows });
        }),
        case("adafactor, a piece of a row", move |b| {
            part(b, MatrixPart { first: 70 + 3, len: 9, ..by_rows });
        }),
        case("adafactor, nothing", move |b| part(b, MatrixPart { first: 70, len: 0, ..by_rows })),
        case("adafactor, a vector", move |b| part(b, all([1, 777], Fused::ONE))),
        case("adafactor, biases of q, k and v", move |b| part(b, biases)),
        case("adafactor, some of these", move |b| {
            part(b, MatrixPart { first: 5, len: 30, ..biases });
        }),
        case("adafactor, gates and values", move |b| part(b, all([26, 40], gates))),
        case("adafactor, some of these, rows of which one is cut", move |b| {
            part(b, MatrixPart { rows: 12, first: 30, len: 200, ..all([24, 40], gates) });
        }),
        case("adafactor, biases of gates and values", move |b| part(b, all([1, 50], gates))),
        case("adafactor, many rows", move |b| part(b, all([1700, 9], Fused::ONE))),
        case("adafactor scalars", scalars),
    ]
}

/// A part cut into many tasks, and blocks.
pub fn large(b: &Bench) {
    let whole = [600, 1100];
    let (rows, first) = (300, 777);
    let fused = Fused::new([20, 20, 20]);
    part(b, MatrixPart { whole, rows, cols: 1100, first, len: 299 * 1100, fused });
}

/// Row, column and fused matrix of each element of a part.
fn places(part: &MatrixPart) -> Vec<[usize; 3]> {
    let place = |at: usize| {
        let (row, col) = (at / part.cols, at % part.cols);
        [
            row,
            col,
            part.fused
                .matrix_of(if part.is_vector() { col } else { row }),
        ]
    };
    (part.first..part.first + part.len).map(place).collect()
}

/// The numbers of a second moment.
struct Moment {
    on: SecondMoment,
    row: Option<Known>,
    col: Known,
    mean: Known,
}

fn part(b: &Bench, part: MatrixPart) {
    let counted = part.fused.count();
    let positive = |rows, cols| {
        let x: Vec<f64> = b
            .normal_f32(rows, cols)
            .x
            .iter()
            .map(|x| 0.5 + x * x)
            .collect();
        b.known(rows, cols, DType::F32, &x)
    };
    let grad = b.normal_f32(1, part.len);
    for factor in [0.75, f64::NAN] {
        let scalars = b.known(1, 3, DType::F32, &[factor, 0.3, 2e-2]);
        let rows = (!part.is_vector()).then(|| positive(part.rows, 1));
        let cols = positive(part.col_rows(), part.cols);
        if factor.is_finite() {
            sums(b, &part, &grad, &scalars, rows.as_ref(), &cols);
        }
        let row = (!part.is_vector()).then(|| positive(part.rows, 1));
        let (col, mean) = (positive(part.col_rows(), part.cols), positive(1, counted));
        let on = match &row {
            None => SecondMoment::Full(col.on),
            Some(row) => SecondMoment::Factored { row: row.on, col: col.on, mean: mean.on },
        };
        let moment = Moment { on, row, col, mean };
        moved(b, &part, &scalars, [rows.as_ref(), Some(&cols)], &moment);
        let squares = positive(1, counted);
        b.run(op::AdafactorSquareSums {
            rule: RULE,
            scalars: scalars.on,
            grad: grad.on,
            part,
            v: moment.on,
            y: squares.on.add(),
        });
        if factor.is_finite() {
            b.expect("Σ U²", squares.on, || {
                let u = directions(b, &part, factor, &grad, &moment);
                plus(&squares.x, &by_fused(&part, &u))
            });
        }
        update(b, &part, &scalars, &grad, &moment);
    }
}

/// Σ x² of each fused matrix.
fn by_fused(part: &MatrixPart, x: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; part.fused.count()];
    places(part)
        .iter()
        .zip(x)
        .for_each(|([_, _, number], x)| sums[*number] += x * x);
    sums
}

fn sums(
    b: &Bench,
    part: &MatrixPart,
    x: &Known,
    factor: &Known,
    rows: Option<&Known>,
    cols: &Known,
) {
    let (onto, cols_onto) = (rows.map(|rows| b.again(rows)), b.again(cols));
    let factor_on = factor.on.span(0, 1);
    let rows_on = onto.as_ref().map(|rows| rows.on.add());
    b.run(op::FactorSums {
        x: x.on,
        factor: factor_on,
        part: *part,
        rows: rows_on,
        cols: cols_onto.on.add(),
    });
    let (mut by_row, mut by_col) = (vec![0.0; part.rows], vec![0.0; cols.x.len()]);
    for ([row, col, number], x) in places(part).iter().zip(&x.x) {
        let square = (x * factor.x[0]).powi(2);
        by_row[*row] += square;
        by_col[if part.is_vector() { *col } else { number * part.cols + col }] += square;
    }
    if let (Some(rows), Some(onto)) = (rows, onto) {
        b.expect("sums by row", onto.on, || plus(&rows.x, &by_row));
    }
    b.expect("sums by column", cols_onto.on, || plus(&cols.x, &by_col));
    let fused = b.known(1, part.fused.count(), DType::F32, &vec![2.0; part.fused.count()]);
    b.run(op::FusedSquareSums { x: x.on, part: *part, y: fused.on.add() });
    b.expect("sums by fused matrix", fused.on, || plus(&fused.x, &by_fused(part, &x.x)));
}

/// The moments move by 0.3 of the way, or not at all.
fn moved(
    b: &Bench,
    part: &MatrixPart,
    scalars: &Known,
    [rows, cols]: [Option<&Known>; 2],
    v: &Moment,
) {
    let cols = cols.expect("sums by column");
    let rows_on = rows.map(|rows| rows.on);
    b.run(op::MoveSecondMoment {
        scalars: scalars.on,
        part: *part,
        rows: rows_on,
        cols: cols.on,
        v: InPlace(v.on),
    });
    let to = if scalars.x[0].is_nan() { 0.0 } else { scalars.x[1] };
    let lerp = |v: f64, sum: f64, of: usize| v + to * (sum / of as f64 - v);
    let along = |number| if part.is_vector() { 1 } else { part.fused.rows(number, part.whole[0]) };
    let of = |at: usize| along(at / part.cols);
    let new_col: Vec<f64> = (0..cols.x.len())
        .map(|at| lerp(v.col.x[at], cols.x[at], of(at)))
        .collect();
    b.expect("means by column", v.col.on, || new_col.clone());
    let (Some(rows), Some(row)) = (rows, &v.row) else { return };
    let new_row: Vec<f64> = row
        .x
        .iter()
        .zip(&rows.x)
        .map(|(v, sum)| lerp(*v, *sum, part.whole[1]))
        .collect();
    b.expect("means by row", row.on, || new_row.clone());
    let mean = |number: usize| {
        if part.cols == part.whole[1] {
            let own = &new_col[number * part.cols..(number + 1) * part.cols];
            own.iter().sum::<f64>() / part.cols as f64
        } else {
            let own = (0..part.rows).filter(|row| part.fused.matrix_of(*row) == number);
            own.map(|row| new_row[row]).sum::<f64>() / along(number) as f64
        }
    };
    let means = (0..part.fused.count()).map(mean).collect();
    b.expect("means", v.mean.on, || if to == 0.0 { v.mean.x.clone() } else { means });
}

/// U, of the moments as they are on the device.
fn directions(b: &Bench, part: &MatrixPart, factor: f64, grad: &Known, v: &Moment) -> Vec<f64> {
    let [col, mean] = [&v.col, &v.mean].map(|known| b.numbers(known.on));
    let row = v.row.as_ref().map(|row| b.numbers(row.on));
    let direction = |([r, c, number], g): (&[usize; 3], &f64)| {
        let second = match &row {
            None => col[*c],
            Some(row) => row[*r] * col[number * part.cols + c] / mean[*number].max(RULE.eps.into()),
        };
        g * factor / second.max(f64::from(RULE.eps).powi(2)).sqrt()
    };
    places(part).iter().zip(&grad.x).map(direction).collect()
}

fn update(b: &Bench, part: &MatrixPart, scalars: &Known, grad: &Known, v: &Moment) {
    let counted = part.fused.count();
    // Root mean squares of U: 1, 2, 3, of which the first is below the threshold; of θ: 0.3, 0.6,
    // 0.9, of which the first is below the least.
    let squares = |each: f64| {
        let square = |i: usize| ((i + 1) as f64 * each).powi(2) * part.numels()[i] as f64;
        b.known(1, counted, DType::F32, &(0..counted).map(square).collect::<Vec<f64>>())
    };
    let (of_u, of_weight) = (squares(1.0), squares(0.3));
    for scaled in [false, true] {
        let (master, rounded) = (b.normal_f32(1, part.len), b.blank(1, part.len, b.dtype));
        let op = op::Adafactor {
            rule: RULE,
            scalars: scalars.on,
            grad: grad.on,
            part: *part,
            v: v.on,
            update_squares: of_u.on,
            weight_squares: scaled.then_some(of_weight.on),
            master: InPlace(master.on),
            weight: rounded.set_unless(master.on),
        };
        b.run(op);
        let skipped = scalars.x[0].is_nan();
        b.expect("master", master.on, || {
            if skipped {
                master.x.clone()
            } else {
                let u = directions(b, part, scalars.x[0], grad, v);
                let keep = 1.0 - f64::from(RULE.lr) * f64::from(RULE.weight_decay);
                let step = |number: usize| {
                    let rms = |sums: &Known| (sums.x[number] / part.numels()[number] as f64).sqrt();
                    let scale =
                        if scaled { rms(&of_weight).max(RULE.scale_eps.into()) } else { 1.0 };
                    let rho = scalars.x[2] * f64::from(RULE.lr_scale);
                    rho * scale / (rms(&of_u) / f64::from(RULE.clip_threshold)).max(1.0)
                };
                let of = places(part);
                let each = master.x.iter().zip(&u).zip(of);
                each.map(|((w, u), [_, _, number])| w * keep - step(number) * u)
                    .collect()
            }
        });
        if !skipped {
            let stored = b.numbers(master.on);
            b.expect("rounded", rounded, || stored);
            // Where the weights in use are the master's themselves.
            let onto = b.again(&master);
            b.run(op::Adafactor { master: InPlace(onto.on), weight: None, ..op });
            b.same("rounded on master", onto.on, master.on);
        }
    }
}

/// At updates of which 1/√t is above and below the learning rate, relative and not.
fn scalars(b: &Bench) {
    for (t, relative_step) in [(1, true), (4, false), (100, true), (5000, true), (5000, false)] {
        let rule = Adafactor { relative_step, ..RULE };
        let out = b.blank(1, 2, DType::F32);
        b.run(op::AdafactorScalars { rule, updates: b.longs(&[t]), y: out.set() });
        let (t, lr) = (t as f64, f64::from(rule.lr));
        let rho = if relative_step { lr.min(1.0 / t.sqrt()) } else { lr };
        b.expect("1 − β̂", out.span(0, 1), || vec![t.powf(-0.8)]);
        b.expect("ρ", out.span(1, 1), || vec![rho]);
    }
}
