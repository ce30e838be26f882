//! Hopper's tensor cores: their own sums of 8-bit floats.

use crate::bench::Bench;
use crate::fp8::product_of as fp8_product;
use crate::softgpu;
use gptrain::base::{DType, Fp8};
use gptrain::device::cuda::{Cuda, Options};

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
    let off = exact.iter().zip(&fast).fold(0.0f64, |most, (x, y)| most.max((x - y).abs()));
    // 16 sums of 32 terms, each cut to 14 bits.
    assert!(off > 1e-6 * largest && off < 16.0 * largest / 8192.0, "{off} of {largest}");
    assert_eq!(product(true, Fp8::E5M2), product(false, Fp8::E5M2), "backward");
    let wrong = Options { fast_fp8: Some("yes".to_string()), ..softgpu::options() };
    let refused = Cuda::open(&wrong).err().expect("a refusal").to_string();
    assert!(refused.contains("GPTRAIN_FP8_FAST is \"yes\""), "{refused}");
}
