//! Profile of a step on a GPU, kernel by kernel, compared with the roofline of the step's ops. For
//! machines without a profiler.

use crate::shapes::Shape;
use gptrain::device::Tally;
use gptrain::device::cuda::Profiled;
use gptrain::estimate::hardware::{Hardware, Shares};
use std::collections::BTreeMap;

/// Groups of kernels: prefixes of their names, and the ops that they compute.
const GROUPS: [(&str, &[&str], &[&str]); 9] = [
    ("products", &["product ", "bias_rows"], &["gemm", "head gemm", "fp8 gemm"]),
    ("attention", &["attention"], &["attention", "attention backward"]),
    ("8-bit codes", &["fp8_", "line_maxima"], &["quantize"]),
    ("cross-entropy", &["cross_entropy"], &["cross entropy"]),
    (
        "norms, residuals",
        &["layernorm", "norm_residual", "residual", "column", "dropout"],
        &[
            "layernorm",
            "layernorm backward",
            "residual",
            "residual backward",
            "residual and layernorm",
            "layernorm and residual backward",
            "column sums",
            "dropout",
        ],
    ),
    ("activations", &["gelu", "swiglu"], &["gelu", "swiglu", "swiglu backward"]),
    ("queries and keys", &["query_key"], &["queries and keys", "queries and keys backward"]),
    ("embedding", &["embed"], &["embed", "embed backward"]),
    (
        "update",
        &["adamw", "sum_", "clip", "adam_scalars"],
        &["adamw", "square sums", "clip", "adam scalars"],
    ),
];

/// Prints the kernels, the longest first, then each group and its roofline.
pub fn print(shape: &Shape, kernels: &BTreeMap<String, Profiled>, ops: &Tally, gpu: &Hardware) {
    let whole: f64 = kernels.values().map(|row| row.seconds).sum();
    println!("{}: {:.3} ms of kernels in a step without graphs", shape.name, 1e3 * whole);
    println!(
        "{:64} {:>6} {:>9} {:>6} {:>8}",
        "kernel or product", "calls", "ms", "share", "TFLOP/s"
    );
    let mut rows: Vec<_> = kernels.iter().collect();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    for (name, Profiled { calls, seconds, flops }) in rows {
        let rate =
            if *flops > 0.0 { format!("{:.0}", flops / seconds / 1e12) } else { String::new() };
        let share = 100.0 * seconds / whole;
        println!("{name:64.64} {calls:>6} {:>9.3} {share:>5.1}% {rate:>8}", 1e3 * seconds);
    }
    println!(
        "\n{:18} {:>9} {:>9} {:>9}   least: by the data sheet, {}",
        "group", "ms", "least ms", "reached", gpu.about
    );
    let (mut kernels, mut ops): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (kernels.iter().collect(), ops.iter().collect());
    let of_kernel =
        |name: &str, starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    for (group, starts, names) in GROUPS.into_iter().chain([("the rest", &[""][..], &[][..])]) {
        let last = names.is_empty();
        let seconds: f64 = kernels
            .extract_if(.., |name, _| of_kernel(name, starts))
            .map(|(_, row)| row.seconds)
            .sum();
        let least: f64 = ops
            .extract_if(.., |name, _| last || names.contains(name))
            .map(|(name, work)| gpu.seconds(name, work, Shares::ALL))
            .fold(0.0, |sum, seconds| sum + seconds); // a sum of nothing is -0
        if seconds == 0.0 && least == 0.0 {
            continue;
        }
        let reached =
            if seconds > 0.0 { format!("{:.0} %", 100.0 * least / seconds) } else { "-".into() };
        println!("{group:18} {:>9.3} {:>9.3} {reached:>9}", 1e3 * seconds, 1e3 * least);
    }
}
