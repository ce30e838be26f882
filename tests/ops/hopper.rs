//! Attention by Hopper's wgmma, and its tensor cores' own sums of 8-bit floats: on the software stand-in,
//! or on a GPU that has them.

use crate::attention::{Mask, Shape, attention};
use crate::bench::Bench;
use crate::cuda::{against_cpu, heads};
use crate::fp8::product_of as fp8_product;
use crate::tuning::{folder, open, the_file};
use crate::{Case, case, softgpu};
use gptrain::base::{DType, Fp8};
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::{Cuda, Options};
use std::fs;

/// Several tiles of queries and of keys, so that every stage comes round; ends inside of tiles.
fn heads_of_hopper() -> Vec<Case> {
    let shapes = [
        ("causal, five tiles", Shape::new(1, 600, 1, 64)),
        ("documents, four tiles", Shape::new(1, 390, 1, 128).masked(Mask::Documents(150))),
        ("ragged, two samples", Shape::new(2, 260, 2, 80).masked(Mask::Ragged)),
        (
            "prefix, alibi",
            Shape::new(1, 300, 1, 96)
                .masked(Mask::Prefix(140))
                .with_alibi(),
        ),
        ("dropout", Shape::new(1, 200, 2, 160).dropping(0.1)),
        ("groups of four", Shape::new(2, 200, 8, 64).grouped(4)),
        (
            "groups of two, alibi, dropout",
            Shape::new(1, 150, 4, 128)
                .grouped(2)
                .with_alibi()
                .dropping(0.1),
        ),
        (
            "one key for all, documents",
            Shape::new(1, 210, 3, 96)
                .grouped(3)
                .masked(Mask::Documents(70)),
        ),
        ("groups within a window", Shape::new(1, 300, 4, 80).grouped(2).within(90)),
    ];
    let case = |(name, shape)| case(format!("attention, {name}"), move |b| attention(b, shape));
    shapes.into_iter().map(case).chain(heads()).collect()
}

#[test]
fn attention_by_wgmma_agrees_with_the_cpu() {
    for how in ["wgmma", "wgmma-pingpong"] {
        let options = Options { attention: Some(how.to_string()), ..softgpu::gpu(0) };
        match Cuda::open(&options) {
            Ok(cuda) => {
                let cpu = Cpu::new(Some(2));
                let cases = heads_of_hopper().into_iter();
                // The turns differ by the number of tiles alone.
                let most = if how == "wgmma" { usize::MAX } else { 5 };
                let wrong =
                    against_cpu(&cuda, &cpu, DType::BF16, cases.take(most).collect::<Vec<_>>());
                assert!(wrong.is_empty(), "{how}: {} disagree:\n{}", wrong.len(), wrong.join("\n"));
            }
            Err(why) if softgpu::is_real() => println!("not run on this GPU: {why}"),
            Err(why) => panic!("{why}"),
        }
    }
}

/// Attention on Hopper: mma or wgmma, by time; what is kept is used again. The stand-in's kernels all
/// take the same time.
#[test]
fn the_fastest_attention_is_chosen_once() {
    let folder = folder("attention");
    let shapes = [Shape::new(1, 130, 2, 64), Shape::new(1, 70, 4, 128).grouped(2)];
    let on = |cuda: &Cuda| {
        let bench = Bench::new(cuda, DType::BF16, false);
        shapes
            .into_iter()
            .for_each(|shape| attention(&bench, shape));
        bench.seen()
    };
    let seen = || {
        let cuda = open(Some(&folder));
        assert!(cuda.description().contains("by mma or wgmma, as timed"), "{}", cuda.description());
        on(&cuda)
    };
    let by = |how: &str| {
        let options = Options { attention: Some(how.to_string()), ..softgpu::options() };
        on(&Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}")))
    };
    let (mma, wgmma) = (by("mma"), by("wgmma"));
    assert!(mma != wgmma, "sums of another order");
    assert!(seen() == mma, "the first of the fastest");
    let kept = fs::read_to_string(the_file(&folder)).unwrap();
    for kernel in ["attention_mma_64", "attention_kv_mma_64", "attention_q_mma_128"] {
        let lines = kept
            .lines()
            .filter(|line| line.starts_with(&format!("{kernel}_bf16 of 1 x ")));
        assert_eq!(lines.count(), 1, "{kernel}: {kept}");
    }
    assert!(kept.contains("of 1 x 70, heads 4 / 2, window 70: "), "{kept}");
    // A file of another day, on which wgmma was faster; and one with a kernel that does not exist.
    fs::write(the_file(&folder), with_choice(&kept, 1)).unwrap();
    assert!(seen() == wgmma, "what is kept decides");
    fs::write(the_file(&folder), with_choice(&kept, 3)).unwrap();
    assert!(seen() == mma, "it is timed again");
    assert_eq!(fs::read_to_string(the_file(&folder)).unwrap(), kept);
}

/// A sound file in which that kernel is chosen for all of attention.
fn with_choice(text: &str, index: u64) -> String {
    let (first, rest) = text.split_once('\n').unwrap();
    let machine = first.split_once("timed on ").unwrap().1;
    let line = |line: &str| {
        let (name, words) = line.split_once(": ").unwrap();
        let choice = format!("{name}: {index:016x}{}", &words[16..128]);
        let seal = xxhash_rust::xxh3::xxh3_64(format!("{machine}\n{choice}").as_bytes());
        format!("{choice} {seal:016x}\n")
    };
    format!("{first}\n{}", rest.lines().map(line).collect::<String>())
}

/// Fast accumulation is for forward's formats, and is less exact.
#[test]
fn fast_sums_of_8_bit_floats_are_those_of_forward() {
    let product = |fast: bool, of_a: Fp8| {
        let fast_fp8 = Some(u8::from(fast).to_string());
        let options = Options { fast_fp8, fp8: true, ..softgpu::options() };
        let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let bench = Bench::new(&cuda, DType::F32, false);
        fp8_product(&bench, of_a, [16, 32, 512])
    };
    let exact = product(false, Fp8::E4M3);
    let fast = product(true, Fp8::E4M3);
    let largest = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let off = exact
        .iter()
        .zip(&fast)
        .fold(0.0f64, |most, (x, y)| most.max((x - y).abs()));
    // 16 sums of 32 terms, each cut to 14 bits.
    assert!(off > 1e-6 * largest && off < 16.0 * largest / 8192.0, "{off} of {largest}");
    assert_eq!(product(true, Fp8::E5M2), product(false, Fp8::E5M2), "backward");
    let wrong = Options { fast_fp8: Some("yes".to_string()), ..softgpu::options() };
    let refused = Cuda::open(&wrong).err().expect("a refusal").to_string();
    assert!(refused.contains("GPTRAIN_FP8_FAST is \"yes\""), "{refused}");
}
