//! Cross-entropy, over one or several shares of a padded vocabulary.

use crate::bench::Bench;
use crate::reference::slopes;
use crate::{Case, case};
use gptrain::base::{DType, div_exact};
use gptrain::device::{Logits, LossLogits, Tensor, ZLoss, op};

pub fn table() -> Vec<Case> {
    let sizes = [(1, 1, 1, 1), (1, 50, 50, 1), (17, 33, 40, 1), (9, 33, 40, 4), (5, 30, 48, 3)];
    let mut cases: Vec<Case> = sizes
        .into_iter()
        .map(|(rows, vocab, padded, shares)| {
            let name = format!("cross-entropy {rows}x{vocab} of {padded}, {shares} shares");
            case(name, move |b| cross_entropy(b, rows, vocab, padded, shares))
        })
        .collect();
    for (rows, vocab, padded, shares) in [(17, 33, 40, 1), (9, 33, 40, 4)] {
        let name = format!("cross-entropy {rows}x{vocab} of {padded}, {shares} shares");
        let extra = |cap, z| Extra { cap, z };
        let all = [("capped", extra(Some(5.0), None)), ("z-loss", extra(None, Some(1e-2)))];
        for (what, extra) in all
            .into_iter()
            .chain([("capped, z-loss", extra(Some(3.0), Some(0.1)))])
        {
            let run = move |b: &Bench| cross_entropy_of(b, rows, vocab, padded, shares, extra);
            cases.push(case(format!("{name}, {what}"), run));
        }
    }
    cases.push(case("cross-entropy of infinite logits", infinite));
    cases
}

/// Columns `share` of `shares` of a matrix.
fn columns(x: &[f64], cols: usize, share: usize, shares: usize) -> Vec<f64> {
    let own = div_exact(cols, shares);
    x.chunks(cols)
        .flat_map(|row| row[share * own..(share + 1) * own].to_vec())
        .collect()
}

/// A cap of the logits, and the coefficient of the second loss.
#[derive(Clone, Copy, Default)]
struct Extra {
    cap: Option<f32>,
    z: Option<f32>,
}

impl Extra {
    fn capped(&self, x: f64) -> f64 {
        self.cap
            .map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
    }
}

pub fn cross_entropy(b: &Bench, rows: usize, vocab: usize, padded: usize, shares: usize) {
    cross_entropy_of(b, rows, vocab, padded, shares, Extra::default());
}

fn cross_entropy_of(
    b: &Bench,
    rows: usize,
    vocab: usize,
    padded: usize,
    shares: usize,
    extra: Extra,
) {
    let logits = b
        .normal(rows, padded)
        .x
        .iter()
        .map(|x| 4.0 * x)
        .collect::<Vec<_>>();
    let targets: Vec<i32> = (0..rows).map(|row| (row * 7 % vocab) as i32).collect();
    let weights: Vec<f64> = (0..rows).map(|row| (row % 4) as f64 / 2.0 + 0.25).collect();
    let weights = [&weights[1..], &[0.0]].concat();
    compare(b, [vocab, padded, shares], extra, &logits, &targets, &weights);
}

fn compare(
    b: &Bench,
    [vocab, padded, shares]: [usize; 3],
    extra: Extra,
    logits: &[f64],
    targets: &[i32],
    weights: &[f64],
) {
    let (rows, own) = (targets.len(), padded / shares);
    let on = b.integers(rows, 1, targets);
    let weights = b.known(rows, 1, DType::F32, weights);
    let stats = b.blank(shares * rows, 3, DType::F32);
    let parts: Vec<_> = (0..shares)
        .map(|share| b.known(rows, own, b.dtype, &columns(logits, padded, share, shares)))
        .collect();
    for (share, part) in parts.iter().enumerate() {
        let to = stats.row_range(share * rows, rows);
        let logits = Logits { x: part.on, first: share * own, vocab, cap: extra.cap };
        b.run(op::CrossEntropyStats { logits, targets: on, stats: to.set() });
        let x: Vec<f64> = part.x.iter().map(|x| extra.capped(*x)).collect();
        b.expect("stats", to, || stats_of(&x, own, share * own, vocab, targets));
    }
    let logit = |row: usize, entry: usize| parts[entry / own].x[row * own + entry % own];
    let whole = |row: usize| {
        (0..vocab)
            .map(|entry| logit(row, entry))
            .collect::<Vec<_>>()
    };
    // A function of the logits before the cap, so that its slopes include the cap's.
    let log_z =
        |logits: &[f64]| log_sum_exp(&logits.iter().map(|x| extra.capped(*x)).collect::<Vec<_>>());
    let loss = |row: usize, logits: &[f64]| match weights.x[row] {
        0.0 => 0.0,
        weight => weight * (log_z(logits) - extra.capped(logits[targets[row] as usize])),
    };
    let z_loss = |row: usize, logits: &[f64]| {
        weights.x[row] * f64::from(extra.z.unwrap_or(0.0)) * log_z(logits).powi(2)
    };
    let fused = (shares == 1).then(|| {
        let x = b.known(rows, own, b.dtype, logits).on;
        let [losses, z_losses] = [(); 2].map(|()| b.blank(rows, 1, DType::F32));
        let stats = b.blank(rows, 3, DType::F32);
        let logits = Logits { x, first: 0, vocab, cap: extra.cap };
        let z = extra
            .z
            .map(|coefficient| ZLoss { coefficient, losses: z_losses.set() });
        let scale = Some(b.known(1, 1, DType::F32, &[1.5]).on);
        b.run(op::CrossEntropyUnsplit::new(op::CrossEntropy {
            targets: on,
            weights: weights.on,
            stats,
            losses: losses.set(),
            z,
            logits: LossLogits { logits, scale },
        }));
        [x, losses, z_losses, stats]
    });
    for (share, part) in parts.iter().enumerate() {
        let [losses, z_losses] = [(); 2].map(|()| b.blank(rows, 1, DType::F32));
        let run = |losses: Tensor, scale| {
            let logits = Logits { x: part.on, first: share * own, vocab, cap: extra.cap };
            let z = extra
                .z
                .map(|coefficient| ZLoss { coefficient, losses: z_losses.set() });
            b.run(op::CrossEntropy {
                targets: on,
                weights: weights.on,
                stats,
                losses: losses.set(),
                z,
                logits: LossLogits { logits, scale },
            });
        };
        let scale = b.known(1, 1, DType::F32, &[1.5]);
        run(losses, None);
        b.expect("losses", losses, || (0..rows).map(|row| loss(row, &whole(row))).collect());
        if extra.z.is_some() {
            let z_of = |row: usize| z_loss(row, &whole(row));
            b.expect("second losses", z_losses, || (0..rows).map(z_of).collect());
        }
        let again = b.blank(rows, 1, DType::F32);
        run(again, Some(scale.on));
        b.same("losses without and with dlogits", losses, again);
        b.expect("dlogits", part.on, || {
            let row = |row| {
                let both = |logits: &[f64]| 1.5 * (loss(row, logits) + z_loss(row, logits));
                let mut slopes = slopes(&whole(row), both);
                slopes.resize(padded, 0.0);
                slopes[share * own..(share + 1) * own].to_vec()
            };
            (0..rows).flat_map(row).collect()
        });
        for (fused, apart) in fused
            .iter()
            .flatten()
            .zip([part.on, losses, z_losses, stats])
        {
            b.same("fused and apart", *fused, apart);
        }
    }
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + x.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

fn stats_of(x: &[f64], cols: usize, first: usize, vocab: usize, targets: &[i32]) -> Vec<f64> {
    let row = |(row, target): (&[f64], &i32)| {
        let own = &row[..vocab.saturating_sub(first).min(cols)];
        let largest = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = own.iter().map(|x| (x - largest).exp()).sum();
        let place = (*target as usize)
            .checked_sub(first)
            .filter(|place| *place < own.len());
        [largest, sum, place.map_or(f64::NEG_INFINITY, |place| own[place])]
    };
    x.chunks(cols).zip(targets).flat_map(row).collect()
}

/// Entries of −∞ have no probability; a row of weight 0 gives 0 whatever its logits; a NaN elsewhere
/// shows in the loss.
fn infinite(b: &Bench) {
    let none = f64::NEG_INFINITY;
    let logits =
        [1.0, none, 2.0, none, none, none, f64::NAN, f64::INFINITY, none, 0.5, 1.5, f64::NAN];
    let run = |weights: &[f64]| {
        let x = b.known(3, 4, b.dtype, &logits).on;
        let targets = b.integers(3, 1, &[2, 0, 1]);
        let weights = b.known(3, 1, DType::F32, weights);
        let (stats, losses) = (b.blank(3, 3, DType::F32), b.blank(3, 1, DType::F32));
        let logits = Logits { x, first: 0, vocab: 4, cap: None };
        b.run(op::CrossEntropyStats { logits, targets, stats: stats.set() });
        let scale = Some(b.known(1, 1, DType::F32, &[1.0]).on);
        b.run(op::CrossEntropy {
            targets,
            weights: weights.on,
            stats,
            losses: losses.set(),
            z: None,
            logits: LossLogits { logits, scale },
        });
        (losses, x)
    };
    let p = 1.0 / (1.0 + 1f64.exp());
    let loss = -(1.0 - p).ln();
    let (losses, dlogits) = run(&[1.0, 0.0, 0.0]);
    b.expect("losses", losses, || vec![loss, 0.0, 0.0]);
    b.expect("dlogits", dlogits, || {
        let mut slopes = vec![0.0; 12];
        (slopes[0], slopes[2]) = (p, -p);
        slopes
    });
    let (losses, _) = run(&[1.0, 1.0, 1.0]);
    b.expect("losses of NaN", losses, || vec![loss, f64::NAN, f64::NAN]);
}
