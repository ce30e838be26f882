//! Explains the difference between two tensors: one is the other in another order, transposed or rounded,
//! or its values are others.

use super::orders::{Order, orders};
use base::{DType, Heads};
use model::Weight;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// Form of both tensors, in gptrain's order of rows. A vector is a matrix of one column.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub weight: Weight,
    pub heads: Heads,
    /// Whether gates and values alternate in the first matrix of the feed-forward layer.
    pub gated: bool,
    pub cols: usize,
}

/// Tensor A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Side {
    A,
    B,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Difference between two tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    #[serde(flatten)]
    pub kind: Kind,
    /// Side whose values are those of the other one in 16 bits, and the type.
    pub rounded: Option<(Side, &'static str)>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// Equal but for the rounding.
    Rounding,
    /// The rows are in another order, which is a known one.
    KnownOrder {
        order: &'static str,
    },
    /// The rows are in another order; row `row` of A is row `found` of B.
    OtherOrder {
        row: usize,
        found: usize,
    },
    Transposed,
    /// Only one side has these rows, which pad the vocabulary.
    Padding {
        only_in: Side,
        first: usize,
        last: usize,
    },
    Values(Values),
}

/// Differences of values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Values {
    /// ‖B − A‖ / ‖A‖.
    pub relative: f64,
    /// Largest |b − a|, its place, and the two values.
    pub largest: f64,
    pub row: usize,
    pub col: usize,
    pub a: f32,
    pub b: f32,
    /// Largest |b − a| / max(|a|, |b|).
    pub largest_relative: f64,
    /// First and last row that differ, how many do, and of how many.
    pub rows: [usize; 2],
    pub differing_rows: usize,
    pub all_rows: usize,
}

/// Whether two tensors are bit-identical.
pub fn is_same(a: &[f32], b: &[f32]) -> bool {
    let pairs = a.iter().zip(b);
    a.len() == b.len() && pairs.into_iter().all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Values of a tensor in a type of 16 bits.
pub fn rounded(values: &[f32], dtype: DType) -> Option<Vec<f32>> {
    let bits = dtype.halves(values)?;
    Some(dtype.widen(bytemuck::cast_slice(&bits)))
}

/// Explains the difference between two tensors of one size.
pub fn explain(a: &[f32], b: &[f32], form: Form) -> Difference {
    let orders = orders(form.weight, a.len() / form.cols, form.heads, form.gated);
    if let Some(kind) = explain_order(a, b, form.cols, &orders) {
        return Difference { kind, rounded: None };
    }
    for dtype in [DType::BF16, DType::F16] {
        for side in [Side::A, Side::B] {
            let (from, to) = if side == Side::A { (b, a) } else { (a, b) };
            // Only values that the type has can be rounded ones.
            let fits = rounded(to, dtype).is_some_and(|again| is_same(&again, to));
            let Some(from) = rounded(from, dtype).filter(|_| fits) else { continue };
            let found = if is_same(&from, to) {
                Some(Kind::Rounding)
            } else if side == Side::A {
                explain_order(to, &from, form.cols, &orders)
            } else {
                explain_order(&from, to, form.cols, &orders)
            };
            if let Some(kind) = found {
                let name = if dtype == DType::BF16 { "bf16" } else { "f16" };
                return Difference { kind, rounded: Some((side, name)) };
            }
        }
    }
    Difference { kind: Kind::Values(Values::new(a, b, form.cols)), rounded: None }
}

/// Explains B as A in another order.
fn explain_order(a: &[f32], b: &[f32], cols: usize, orders: &[Order]) -> Option<Kind> {
    for Order { name, rows } in orders {
        if is_in_order(a, b, cols, rows) || is_in_order(b, a, cols, rows) {
            return Some(Kind::KnownOrder { order: name });
        }
    }
    let rows = a.len() / cols;
    if is_transposed(a, b, rows, cols) || is_transposed(b, a, rows, cols) {
        return Some(Kind::Transposed);
    }
    other_order(a, b, cols)
}

/// Whether row i of B is row `rows[i]` of A.
fn is_in_order(a: &[f32], b: &[f32], cols: usize, rows: &[usize]) -> bool {
    rows.iter()
        .zip(b.chunks_exact(cols))
        .all(|(row, b)| is_same(&a[row * cols..(row + 1) * cols], b))
}

/// Whether the numbers of B are those of the transpose of A, row by row.
fn is_transposed(a: &[f32], b: &[f32], rows: usize, cols: usize) -> bool {
    rows > 1
        && cols > 1
        && b.iter().enumerate().all(|(number, b)| {
            let a = a[number % rows * cols + number / rows];
            a.to_bits() == b.to_bits()
        })
}

/// Whether B has the rows of A in any other order, each as often.
fn other_order(a: &[f32], b: &[f32], cols: usize) -> Option<Kind> {
    let bits = |row: &[f32]| {
        row.iter()
            .map(|value| value.to_bits())
            .collect::<Vec<u32>>()
    };
    let mut places: HashMap<Vec<u32>, Vec<usize>> = HashMap::new();
    for (place, row) in b.chunks_exact(cols).enumerate() {
        places.entry(bits(row)).or_default().push(place);
    }
    let mut moved = None;
    for (row, values) in a.chunks_exact(cols).enumerate() {
        let found = places.get_mut(&bits(values))?;
        // A row that did not move is that row's own.
        let own = found.iter().position(|place| *place == row);
        let found = found.swap_remove(own.unwrap_or(found.len().checked_sub(1)?));
        if found != row {
            moved = moved.or(Some(Kind::OtherOrder { row, found }));
        }
    }
    moved
}

impl Values {
    fn new(a: &[f32], b: &[f32], cols: usize) -> Values {
        let mut squares = 0.0;
        let mut changes = 0.0;
        let mut largest = (0.0, 0);
        let mut largest_relative = 0.0f64;
        let mut rows = Vec::new();
        for (number, (a, b)) in a.iter().zip(b).enumerate() {
            if a.to_bits() == b.to_bits() {
                squares += f64::from(*a) * f64::from(*a);
                continue;
            }
            let row = number / cols;
            if rows.last() != Some(&row) {
                rows.push(row);
            }
            let change = (f64::from(*b) - f64::from(*a)).abs();
            let size = f64::from(a.abs().max(b.abs()));
            squares += f64::from(*a) * f64::from(*a);
            changes += change * change;
            largest_relative = largest_relative.max(if size > 0.0 { change / size } else { 0.0 });
            // A difference from NaN is the largest one.
            if change > largest.0 || change.is_nan() && !f64::is_nan(largest.0) {
                largest = (change, number);
            }
        }
        let (most, number) = largest;
        Values {
            relative: if changes == 0.0 { 0.0 } else { f64::sqrt(changes / squares) },
            largest: most,
            row: number / cols,
            col: number % cols,
            a: a[number],
            b: b[number],
            largest_relative,
            rows: [rows.first(), rows.last()].map(|row| row.copied().unwrap_or_default()),
            differing_rows: rows.len(),
            all_rows: a.len() / cols,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.rounded) {
            (Kind::Rounding, Some((side, dtype))) => {
                return write!(f, "{side:?} is {:?} rounded to {dtype}", side.other());
            }
            (Kind::Rounding, None) => f.write_str("a rounding")?,
            (Kind::KnownOrder { order }, _) => {
                write!(f, "the rows are in another order ({order})")?
            }
            (Kind::OtherOrder { row, found }, _) => {
                write!(f, "the rows are in another order: row {row} of A is row {found} of B")?;
            }
            (Kind::Transposed, _) => f.write_str("one is the transpose of the other")?,
            (Kind::Padding { only_in, first, last }, _) => {
                write!(f, "only {only_in:?} has rows {first} to {last}, which pad the vocabulary")?;
            }
            (Kind::Values(values), _) => write!(f, "{values}")?,
        }
        match &self.rounded {
            Some((side, dtype)) => write!(f, ", and {side:?} is rounded to {dtype}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Values { row, col, a, b, rows: [first, last], differing_rows, all_rows, .. } = self;
        write!(
            f,
            "{differing_rows} of {all_rows} rows differ ({first} to {last}), by up to {:.1e} of the larger \
             value; most at row {row}, column {col}: {a:e} in A, {b:e} in B",
            self.largest_relative
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { query: 4, kv: 2, dim: 4 };

    fn form(weight: Weight, cols: usize) -> Form {
        Form { weight, heads: HEADS, gated: true, cols }
    }

    /// Values without a repetition, which 16 bits do not have.
    fn values(count: usize) -> Vec<f32> {
        (0..count)
            .map(|number| (number as f32 + 1.0) / 7.0 + 1e-5)
            .collect()
    }

    fn reordered(a: &[f32], cols: usize, rows: &[usize]) -> Vec<f32> {
        let row = |row: &usize| a[row * cols..(row + 1) * cols].to_vec();
        rows.iter().flat_map(row).collect()
    }

    /// Every order of queries, keys and values, and of gates and values, is named, in both directions and
    /// after a rounding.
    #[test]
    fn known_orders_are_named() {
        let single = Heads { kv: 4, ..HEADS };
        let mut count = 0;
        for (weight, rows, heads) in [
            (Weight::QkvW, HEADS.qkv_width(), HEADS),
            (Weight::QkvB, single.qkv_width(), single),
            (Weight::QNorm, 4, HEADS),
            (Weight::Fc1W, 6, HEADS),
        ] {
            let cols = if weight == Weight::QkvB { 1 } else { 3 };
            let form = Form { weight, heads, gated: true, cols };
            let a = values(rows * cols);
            for Order { name, rows } in orders(weight, rows, heads, true) {
                let b = reordered(&a, cols, &rows);
                let expected =
                    |rounded| Difference { kind: Kind::KnownOrder { order: name }, rounded };
                assert_eq!(explain(&a, &b, form), expected(None), "{weight:?}");
                assert_eq!(explain(&b, &a, form), expected(None), "{weight:?}");
                let half = rounded(&b, DType::BF16).unwrap();
                assert_eq!(explain(&a, &half, form), expected(Some((Side::B, "bf16"))));
                assert_eq!(explain(&half, &a, form), expected(Some((Side::A, "bf16"))));
                count += 1;
            }
        }
        assert_eq!(count, 4 + 9 + 1 + 2);
    }

    #[test]
    fn roundings_transposes_and_other_orders_are_found() {
        let a = values(12);
        let form = form(Weight::ProjW, 3);
        let explain = |a: &[f32], b: &[f32]| explain(a, b, form).to_string();
        for (dtype, name) in [(DType::BF16, "bf16"), (DType::F16, "f16")] {
            let half = rounded(&a, dtype).unwrap();
            assert_eq!(explain(&a, &half), format!("B is A rounded to {name}"));
            assert_eq!(explain(&half, &a), format!("A is B rounded to {name}"));
        }
        let transposed: Vec<f32> = (0..12)
            .map(|number| a[number % 4 * 3 + number / 4])
            .collect();
        assert_eq!(explain(&a, &transposed), "one is the transpose of the other");
        assert_eq!(explain(&transposed, &a), "one is the transpose of the other");
        let swapped = reordered(&a, 3, &[0, 3, 2, 1]);
        let words = "the rows are in another order: row 1 of A is row 3 of B";
        assert_eq!(explain(&a, &swapped), words);
        let half = rounded(&swapped, DType::F16).unwrap();
        assert_eq!(explain(&a, &half), format!("{words}, and B is rounded to f16"));
    }

    #[test]
    fn values_that_differ_are_measured() {
        let a = values(12);
        let mut b = a.clone();
        b[4] *= 1.5;
        b[10] *= 1.001;
        let found = explain(&a, &b, form(Weight::ProjW, 3));
        let Kind::Values(values) = found.kind else { panic!("{found:?}") };
        assert_eq!((values.row, values.col, values.rows, values.differing_rows), (1, 1, [1, 3], 2));
        assert_eq!((values.a, values.b), (a[4], b[4]));
        assert!((values.largest_relative - 1.0 / 3.0).abs() < 1e-6);
        let norm = a.iter().map(|a| f64::from(a * a)).sum::<f64>().sqrt();
        let change = f64::from(b[4] - a[4]).hypot(f64::from(b[10] - a[10]));
        assert!((values.relative - change / norm).abs() < 1e-6);
        // A repeated row is not another order.
        let mut doubled = a.clone();
        doubled.copy_within(0..3, 3);
        assert!(matches!(explain(&a, &doubled, form(Weight::ProjW, 3)).kind, Kind::Values(_)));
        b[7] = f32::NAN;
        let Kind::Values(values) = explain(&a, &b, form(Weight::ProjW, 3)).kind else { panic!() };
        assert_eq!((values.row, values.col), (2, 1));
    }

    #[test]
    fn rows_of_zeros_with_another_sign_differ() {
        let found = explain(&[0.0, 1.0], &[-0.0, 1.0], form(Weight::Ln1Scale, 1));
        assert!(matches!(found.kind, Kind::Values(Values { differing_rows: 1, .. })), "{found}");
    }
}
