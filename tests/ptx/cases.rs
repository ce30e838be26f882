//! Cases of attention: every width of a head with every mask, and what is special.

use crate::attention::{Case, Kind, Mask, PARTS, Part, Tensors, errors};
use crate::modules::{Modules, chosen};

/// Widths of heads for mma, some narrower than their kernel.
const BY_MMA: [usize; 9] = [64, 128, 80, 96, 32, 160, 24, 72, 104];
/// For wgmma; 160 is for forward only.
const BY_WGMMA: [usize; 5] = [64, 128, 80, 96, 160];

/// Without tensor cores: any width.
const ORDINARY: [usize; 3] = [33, 120, 200];

/// Samples, positions, query heads, key heads.
const SHAPES: [[usize; 4]; 7] = [
    [1, 150, 2, 1],
    [2, 140, 1, 1],
    [1, 300, 2, 2],
    [1, 210, 3, 1],
    [2, 65, 4, 2],
    [1, 400, 1, 1],
    [3, 129, 2, 1],
];

/// For kernels that execute an instruction for each product.
const SMALL: [[usize; 4]; 3] = [[1, 75, 2, 1], [2, 33, 1, 1], [1, 50, 4, 2]];

fn masks(seq: usize) -> [Mask; 4] {
    [Mask::Causal, Mask::Documents(seq / 3), Mask::Window(seq / 4), Mask::Ragged]
}

/// Each width with each mask, and in turn the shapes, ALiBi, dropout and orders of warps.
fn with_each_mask(kind: Kind, widths: &[usize], shapes: &[[usize; 4]]) -> Vec<Case> {
    let mut cases = Vec::new();
    for d in widths {
        for mask in 0..4 {
            let number = cases.len();
            let shape = shapes[number % shapes.len()];
            let mut case = Case::new(kind, *d, shape).mask(masks(shape[1])[mask]);
            if number % 3 == 1 {
                case = case.alibi();
            }
            if number % 4 == 2 {
                case = case.dropout(0.1);
            }
            if number % 2 == 1 {
                case = case.random(number as u64);
            }
            cases.push(case);
        }
    }
    cases
}

/// Runs the chosen cases, and panics with all that are wrong.
fn check(cases: Vec<Case>) {
    let Some(modules) = Modules::compiled() else { return };
    let mut wrong = Vec::new();
    for case in chosen(cases) {
        let of = Tensors::new(&case);
        for part in PARTS {
            // Backward has no kernel by wgmma for this width, and no ping-pong.
            let backward = part != Part::Forward;
            if backward
                && (case.kind == Kind::PingPong || case.kind == Kind::Wgmma && case.d == 160)
            {
                continue;
            }
            match errors(&modules, &case, &of, part) {
                Ok(errors) if errors.iter().all(|error| *error < case.bound_of_error()) => (),
                other => wrong.push(format!("{part:?} of {case:?}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn attention_by_mma() {
    let mut cases = with_each_mask(Kind::Mma, &BY_MMA, &SHAPES);
    cases.extend([
        Case::new(Kind::MmaInF16, 104, [1, 90, 1, 1]),
        Case::new(Kind::Mma, 128, [3, 1, 2, 1]),
        Case::new(Kind::MmaInF16, 64, [2, 65, 2, 2]).random(1),
        Case::new(Kind::MmaInF16, 160, [1, 130, 1, 1]).mask(Mask::Documents(37)),
        Case::new(Kind::Mma, 128, [1, 1024, 1, 1]).random(2),
        Case::new(Kind::Mma, 96, [1, 200, 2, 2])
            .mask(Mask::Documents(37))
            .alibi()
            .dropout(0.2),
    ]);
    check(cases);
}

#[test]
fn attention_by_wgmma() {
    let mut cases = with_each_mask(Kind::Wgmma, &BY_WGMMA, &SHAPES);
    cases.extend([
        Case::new(Kind::PingPong, 128, [1, 600, 1, 1]).random(3),
        Case::new(Kind::Wgmma, 128, [1, 128, 1, 1]),
        Case::new(Kind::Wgmma, 64, [3, 1, 2, 1]),
        Case::new(Kind::PingPong, 64, [1, 257, 2, 2]),
        Case::new(Kind::Wgmma, 64, [1, 1024, 2, 1]),
        Case::new(Kind::Wgmma, 128, [1, 150, 4, 2])
            .alibi()
            .dropout(0.1),
        Case::new(Kind::PingPong, 160, [1, 300, 1, 1])
            .dropout(0.1)
            .random(4),
        Case::new(Kind::Wgmma, 128, [1, 2048, 1, 1]).random(5),
        Case::new(Kind::Wgmma, 64, [2, 200, 8, 2]),
    ]);
    check(cases);
}

#[test]
fn attention_without_tensor_cores() {
    check(with_each_mask(Kind::Ordinary, &ORDINARY, &SMALL));
}
