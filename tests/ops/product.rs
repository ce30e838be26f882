//! Matrix products with their epilogues, and rows of a table.

use crate::bench::{Bench, Known};
use crate::reference::{column_sums, dot, gelu, plus, slopes};
use crate::{Case, case};
use gptrain::base::DType;
use gptrain::device::{Epilogue, Gelu, Gemm, op};

pub fn table() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Gemm::NT, Gemm::NN, Gemm::TN] {
        for (m, n, k) in
            [(1, 1, 1), (17, 33, 5), (1, 40, 33), (33, 1, 64), (2, 3, 1), (65, 70, 129)]
        {
            cases.push(case(format!("gemm {kind:?} {m}x{n}x{k}"), move |b| gemm(b, kind, m, n, k)));
        }
    }
    cases.push(case("gemm, deep", |b| gemm(b, Gemm::NN, 5, 50, 4200)));
    cases.push(case("embed 17 ids, 33 columns", |b| embed(b, 17, 9, 33, 2)));
    cases.push(case("embed 1 id, 1 column", |b| embed(b, 1, 5, 1, 0)));
    cases.push(case("embed 600 ids, 600 columns", |b| embed(b, 60, 3, 600, 1)));
    cases
}

pub fn gemm(bench: &Bench, kind: Gemm, m: usize, n: usize, k: usize) {
    let a = if kind == Gemm::TN { bench.normal(k, m) } else { bench.normal(m, k) };
    let b = if kind == Gemm::NT { bench.normal(n, k) } else { bench.normal(k, n) };
    let bias = bench.normal(1, n);
    let ab = || product(kind, &a, &b, m, n, k);
    let biased = || {
        let ab = ab();
        ab.chunks(n)
            .flat_map(|row| plus(row, &bias.x))
            .collect::<Vec<_>>()
    };
    let run = |c, then| bench.run(op::Gemm { kind, a: a.on, b: b.on, c, then });
    let blank = |dtype| bench.blank(m, n, dtype);

    let c = blank(bench.dtype);
    run(c.set(), Epilogue::Nothing);
    bench.expect("C", c, ab);
    for dtype in [bench.dtype, DType::F32] {
        let mut old = bench.normal_f32(m, n);
        old = bench.known(m, n, dtype, &old.x);
        run(old.on.add(), Epilogue::Nothing);
        bench.expect("C +=", old.on, || plus(&ab(), &old.x));
    }
    let c = blank(bench.dtype);
    run(c.set(), Epilogue::Bias(bias.on));
    bench.expect("C with bias", c, biased);

    if kind == Gemm::TN {
        let sums = || column_sums(&a.x, m);
        let (old, db) = (bench.normal_f32(m, n), bench.normal_f32(1, m));
        run(old.on.add(), Epilogue::BiasBackward(db.on.add()));
        bench.expect("dw +=", old.on, || plus(&ab(), &old.x));
        bench.expect("db +=", db.on, || plus(&sums(), &db.x));
        let (dw, db) = (blank(DType::F32), bench.blank(1, m, DType::F32));
        run(dw.set(), Epilogue::BiasBackward(db.set()));
        bench.expect("dw =", dw, ab);
        bench.expect("db =", db, sums);
    }

    for kind in [Gelu::Tanh, Gelu::Exact] {
        let (c, pre) = (blank(bench.dtype), blank(bench.dtype));
        run(c.set(), Epilogue::BiasGelu { bias: None, pre, gelu: kind });
        bench.expect("pre without bias", pre, ab);
        bench.expect_activation("gelu(pre) without bias", c, || {
            ab().iter().map(|x| gelu(kind, *x)).collect()
        });
        run(c.set(), Epilogue::BiasGelu { bias: Some(bias.on), pre, gelu: kind });
        bench.expect("pre", pre, biased);
        bench.expect_activation("gelu(pre)", c, || {
            biased().into_iter().map(|x| gelu(kind, x)).collect()
        });
        let rebuilt = blank(bench.dtype);
        bench.run(op::Gelu { x: pre, gelu: kind, y: rebuilt.set() });
        bench.rebuilt("gelu rebuilt", c, rebuilt);

        let pre = bench.normal(m, n);
        run(c.set(), Epilogue::GeluBackward { pre: pre.on, gelu: kind });
        bench.expect_activation("dpre", c, || {
            let slope = |x: &f64| slopes(&[*x], |x| gelu(kind, x[0]))[0];
            ab().iter()
                .zip(&pre.x)
                .map(|(dy, x)| dy * slope(x))
                .collect()
        });
    }
}

fn product(kind: Gemm, a: &Known, b: &Known, m: usize, n: usize, k: usize) -> Vec<f64> {
    let row =
        |i: usize| (0..k).map(move |l| a.x[if kind == Gemm::TN { l * m + i } else { i * k + l }]);
    let col =
        |j: usize| (0..k).map(move |l| b.x[if kind == Gemm::NT { j * k + l } else { l * n + j }]);
    let places = (0..m).flat_map(|i| (0..n).map(move |j| (i, j)));
    places
        .map(|(i, j)| row(i).zip(col(j)).map(|(a, b)| a * b).sum())
        .collect()
}

/// `count` ids, many of them equal, of a table of which this share has `rows` rows from `first` on.
pub fn embed(b: &Bench, count: usize, rows: usize, cols: usize, first: usize) {
    let table = b.normal(rows, cols);
    let ids: Vec<i32> = (0..count)
        .map(|i| ((i * i) % (rows + first + 2)) as i32)
        .collect();
    let on = b.integers(count, 1, &ids);
    let chosen = |table: &[f64]| -> Vec<f64> {
        let row = |id: &i32| match (*id as usize).checked_sub(first).filter(|row| *row < rows) {
            Some(row) => table[row * cols..(row + 1) * cols].to_vec(),
            None => vec![0.0; cols],
        };
        ids.iter().flat_map(row).collect()
    };
    let y = b.blank(count, cols, b.dtype);
    b.run(op::Embed { ids: on, table: table.on, first, y: y.set() });
    b.expect("y", y, || chosen(&table.x));
    let sum = b.normal(count, cols);
    b.run(op::Embed { ids: on, table: table.on, first, y: sum.on.add() });
    b.expect("y +=", sum.on, || plus(&sum.x, &chosen(&table.x)));

    let (dy, dtable) = (b.normal(count, cols), b.normal_f32(rows, cols));
    b.run(op::EmbedBackward { dy: dy.on, ids: on, first, dtable: dtable.on.add() });
    b.expect("dtable", dtable.on, || {
        plus(&dtable.x, &slopes(&table.x, |table| dot(&chosen(table), &dy.x)))
    });
}
