//! Every op of a backend against its definition in f64.
//!
//! One table of cases (`table`), run on any `&dyn Backend`: `Cpu` here; another backend runs the
//! same table, against the definitions or against what `Cpu` gave.
//!
//! | module | tests |
//! |---|---|
//! | `adafactor`, `adam8bit`, `low_rank`, `muon`, `update` | the optimizers' ops, PowerSGD's |
//! | `attention`, `elementwise`, `fp8`, `loss`, `normalise`, `product`, `query_key` | the model's ops |
//! | `host` | tensors in the host's memory, and updates by its processor |
//! | `inner_loops` | the machine code of the CPU's products |
//! | `reference` | definitions in f64 that several cases use |
//! | `resources` | registers and memory of the compiled kernels, beside their largest launches |
//! | `machine_code` | hazards of wgmma in the compiled kernels |
//! | `functions` | what gptrain loads from NVIDIA's libraries, beside what they export |
//! | `orders` | the same bits in several orders of blocks and streams |
//! | `planted` | planted faults that the stand-in must detect |
//! | `bench` | inputs, outputs and tolerances of one case on one backend |
//! | `cuda` | the table on the software stand-in for a GPU, or on a GPU |
//! | `hopper` | attention by wgmma, and its choice by time |
//! | `tuning` | the choice of cuBLASLt algorithms, and the file that keeps it |

mod adafactor;
mod adam8bit;
mod attention;
mod bench;
mod cuda;
mod elementwise;
mod fp8;
mod functions;
mod hopper;
mod host;
mod inner_loops;
#[path = "../common/kernels.rs"]
mod kernels;
mod loss;
mod low_rank;
mod machine_code;
mod muon;
mod normalise;
mod orders;
mod planted;
mod product;
mod query_key;
mod reference;
mod resources;
#[path = "../common/softgpu.rs"]
mod softgpu;
mod tuning;
mod update;

use bench::Bench;
use gptrain::base::DType;
use gptrain::device::cpu::{CHOICE, Cpu, Instructions};
use gptrain::device::{Backend, Op};
use std::collections::BTreeSet;
use std::process::Command;

/// A named check of a few ops on one shape.
pub struct Case {
    pub name: String,
    pub check: Box<dyn Fn(&Bench)>,
}

/// A row of the table.
pub fn case(name: impl Into<String>, check: impl Fn(&Bench) + 'static) -> Case {
    Case { name: name.into(), check: Box::new(check) }
}

fn table() -> Vec<Case> {
    let families = [
        product::table(),
        elementwise::table(),
        normalise::table(),
        query_key::table(),
        attention::table(),
        loss::table(),
        low_rank::table(),
        update::table(),
        host::table(),
        adafactor::table(),
        adam8bit::table(),
        muon::table(),
        fp8::table(),
    ];
    families.into_iter().flatten().collect()
}

/// Runs the table against the definitions; all that disagrees is reported at once. Every kind of op
/// must have a case.
fn check(backend: &dyn Backend, dtype: DType) {
    let ran = check_cases(table(), backend, dtype);
    let absent: Vec<_> = Op::KINDS
        .iter()
        .filter(|kind| !ran.contains(*kind))
        .collect();
    assert!(absent.is_empty(), "no case runs {absent:?}");
}

/// Returns the kinds of ops that ran.
fn check_cases(cases: Vec<Case>, backend: &dyn Backend, dtype: DType) -> BTreeSet<&'static str> {
    let (mut wrong, mut ran) = (Vec::new(), BTreeSet::new());
    for case in cases {
        let bench = Bench::new(backend, dtype, true);
        (case.check)(&bench);
        wrong.extend(
            bench
                .wrong()
                .into_iter()
                .map(|what| format!("{}: {what}", case.name)),
        );
        ran.extend(bench.kinds());
    }
    assert!(wrong.is_empty(), "{} disagree:\n{}", wrong.len(), wrong.join("\n"));
    ran
}

#[test]
fn ops_agree_with_their_definitions_in_f32() {
    check(&Cpu::new(Some(2)), DType::F32);
}

#[test]
fn ops_agree_with_their_definitions_in_bf16() {
    check(&Cpu::new(Some(2)), DType::BF16);
}

#[test]
fn ops_agree_with_their_definitions_in_f16() {
    check(&Cpu::new(Some(2)), DType::F16);
}

/// The table's cases are small; these are cut into many tasks.
fn large() -> Vec<Case> {
    vec![
        case("embed", |b| product::embed(b, 300, 40, 520, 3)),
        case("gemm NT", |b| product::gemm(b, gptrain::device::Gemm::NT, 310, 530, 190)),
        case("gemm NN", |b| product::gemm(b, gptrain::device::Gemm::NN, 1100, 270, 1030)),
        case("gemm TN", |b| product::gemm(b, gptrain::device::Gemm::TN, 257, 300, 1111)),
        case("elementwise", |b| elementwise::all(b, 301, 777, 0.1)),
        case("layernorm", |b| normalise::layernorm(b, 301, 777)),
        case("attention", |b| attention::attention(b, attention::Shape::new(3, 150, 3, 40))),
        case("queries and keys", |b| query_key::query_key(b, query_key::Shape::new(300, 6, 3, 40))),
        case("cross-entropy", |b| loss::cross_entropy(b, 67, 1999, 2048, 2)),
        case("optimizer", |b| update::all(b, 300_001)),
        case("adafactor", adafactor::large),
        case("axpy", |b| low_rank::axpy(b, 300_001)),
        case("muon", |b| muon::all(b, 300_001)),
        case("fp8", |b| fp8::quantized(b, 301, 777)),
        case("fp8 product", |b| fp8::products(b, 272, 304, 528)),
    ]
}

/// The cases whose loops each instruction set has of its own.
#[test]
fn products_agree_with_their_definitions() {
    for dtype in [DType::F32, DType::BF16] {
        check_cases(product::table(), &Cpu::new(Some(2)), dtype);
    }
}

/// Each in a process of its own, as the choice is read once.
#[test]
fn every_instruction_set_agrees_with_the_definitions() {
    let sets = ["baseline", "avx2", "avx512", "avx512-bf16"];
    for (set, name) in Instructions::ALL.into_iter().zip(sets) {
        if set < Instructions::best() {
            let mut tests = Command::new(std::env::current_exe().unwrap());
            let tests = tests
                .args(["--exact", "products_agree_with_their_definitions"])
                .env(CHOICE, name);
            let output = tests.output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for case in large().into_iter().chain(table()) {
            let run = |threads| {
                let backend = Cpu::new(Some(threads));
                let bench = Bench::new(&backend, dtype, false);
                (case.check)(&bench);
                bench.seen()
            };
            let one = run(1);
            assert!(!one.is_empty());
            for threads in [2, 5] {
                for (ours, theirs) in one.iter().zip(run(threads)) {
                    let what = format!("{} {}: {threads} threads", case.name, ours.name);
                    assert!(*ours == theirs, "{what}, {dtype}");
                }
            }
        }
    }
}
