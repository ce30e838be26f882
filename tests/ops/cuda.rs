//! The CUDA backend on the software stand-in: the same table of cases, against the definitions where
//! they are small, and larger ones against what `Cpu` gives. On a GPU: `make test-gpu`.

use crate::attention::{Mask, Shape, attention};
use crate::bench::{Bench, Seen};
use crate::{Case, case, elementwise, loss, normalise, product, softgpu, table, update};
use gptrain::base::DType;
use gptrain::device::Gemm;
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::{Cuda, Options};

fn open() -> Cuda {
    Cuda::open(&softgpu::gpu(0)).unwrap_or_else(|problems| panic!("{problems}"))
}

fn against_definitions(dtype: DType) {
    let cuda = open();
    let mut wrong = Vec::new();
    for case in table() {
        let bench = Bench::new(&cuda, dtype, true).with_fused_epilogues();
        (case.check)(&bench);
        wrong.extend(bench.wrong().into_iter().map(|what| format!("{}: {what}", case.name)));
    }
    assert!(wrong.is_empty(), "{} disagree:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn cuda_agrees_with_the_definitions_in_f32() {
    against_definitions(DType::F32);
}

#[test]
fn cuda_agrees_with_the_definitions_in_bf16() {
    against_definitions(DType::BF16);
}

/// Rows of whole 16 bytes and rows that are not, of several blocks each.
fn larger() -> Vec<Case> {
    vec![
        case("embed", |b| product::embed(b, 300, 20, 264, 3)),
        case("gemm NT", |b| product::gemm(b, Gemm::NT, 70, 136, 72)),
        case("gemm NN", |b| product::gemm(b, Gemm::NN, 129, 72, 200)),
        case("gemm TN", |b| product::gemm(b, Gemm::TN, 65, 264, 130)),
        case("elementwise", |b| elementwise::all(b, 70, 264, 0.1)),
        case("elementwise, odd", |b| elementwise::all(b, 131, 77, 0.1)),
        case("layernorm", |b| normalise::layernorm(b, 40, 264)),
        case("layernorm, wide", |b| normalise::layernorm(b, 3, 4104)),
        case("attention", |b| attention(b, Shape::new(2, 70, 2, 40))),
        case("cross-entropy", |b| loss::cross_entropy(b, 20, 1999, 2048, 2)),
        case("optimizer", |b| update::all(b, 70_001)),
    ]
}

/// Shapes that tensor cores take.
fn heads() -> Vec<Case> {
    let all = |d| Shape::new(1, 70, 2, d).masked(Mask::Ragged).with_alibi().dropping(0.1);
    let shapes = [
        ("causal, head of 32", Shape::new(1, 150, 1, 32)),
        ("head of 64", Shape::new(2, 65, 1, 64)),
        ("all, head of 64", all(64)),
        ("all, head of 80", all(80)),
        ("prefix, head of 96", Shape::new(1, 100, 1, 96).masked(Mask::Prefix(40))),
        ("all, head of 128", all(128)),
        ("documents, head of 160", Shape::new(1, 130, 1, 160).masked(Mask::Documents(37))),
        ("all, head of 160", all(160)),
    ];
    let case = |(name, shape)| case(format!("attention, {name}"), move |b| attention(b, shape));
    shapes.into_iter().map(case).collect()
}

#[test]
fn cuda_agrees_with_the_cpu_on_larger_shapes() {
    let cuda = open();
    let cases: Vec<Case> = larger().into_iter().chain(heads()).collect();
    against_cpu(&cuda, &cases, &[DType::F32, DType::BF16]);
}

fn against_cpu(cuda: &Cuda, cases: &[Case], dtypes: &[DType]) {
    let cpu = Cpu::new(Some(2));
    let mut wrong = Vec::new();
    for dtype in dtypes {
        for case in cases {
            let (ours, theirs) = (Bench::new(cuda, *dtype, false), Bench::new(&cpu, *dtype, false));
            let ours = ours.with_fused_epilogues();
            (case.check)(&ours);
            (case.check)(&theirs);
            for (ours, theirs) in ours.seen().iter().zip(theirs.seen()) {
                if let Some(what) = difference(ours, &theirs) {
                    wrong.push(format!("{} in {dtype}: {what}", case.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} disagree:\n{}", wrong.len(), wrong.join("\n"));
}

/// Several tiles of queries and of keys, so that every stage comes round; ends inside of tiles.
fn heads_of_hopper() -> Vec<Case> {
    let shapes = [
        ("causal, five tiles", Shape::new(1, 600, 1, 64)),
        ("documents, four tiles", Shape::new(1, 390, 1, 128).masked(Mask::Documents(150))),
        ("ragged, two samples", Shape::new(2, 260, 2, 80).masked(Mask::Ragged)),
        ("prefix, alibi", Shape::new(1, 300, 1, 96).masked(Mask::Prefix(140)).with_alibi()),
        ("dropout", Shape::new(1, 200, 2, 160).dropping(0.1)),
    ];
    let case = |(name, shape)| case(format!("attention, {name}"), move |b| attention(b, shape));
    shapes.into_iter().map(case).chain(heads()).collect()
}

#[test]
fn attention_by_wgmma_agrees_with_the_cpu() {
    let options = Options { attention: Some("wgmma".to_string()), ..softgpu::gpu(0) };
    match Cuda::open(&options) {
        Ok(cuda) => against_cpu(&cuda, &heads_of_hopper(), &[DType::BF16]),
        Err(why) if softgpu::is_real() => println!("not run on this GPU: {why}"),
        Err(why) => panic!("{why}"),
    }
}

/// Where two outputs differ by more than their rounding: in f32 by 2e-5 of the largest number (sums
/// of a thousand terms in another order), in bf16 by two of its roundings.
fn difference(ours: &Seen, theirs: &Seen) -> Option<String> {
    let tolerance = if ours.dtype == DType::F32 { 2e-5 } else { 1.0 / 64.0 };
    let (x, y) = (ours.numbers(), theirs.numbers());
    let largest = y.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    let close = |(x, y): (&f64, &f64)| x == y || (x - y).abs() <= tolerance * largest;
    let at = (0..y.len()).find(|i| !close((&x[*i], &y[*i])))?;
    Some(format!("{}[{at}] = {} for {} (largest {largest})", ours.name, x[at], y[at]))
}
