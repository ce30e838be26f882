//! The CUDA backend on the software stand-in: the same table of cases, against the definitions
//! where they are small, and larger ones against what `Cpu` gives. On a GPU: `make test-gpu`.

use crate::attention::{Mask, Shape, attention};
use crate::bench::{Bench, Seen};
use crate::query_key::{self, query_key};
use crate::update;
use crate::{
    Case, adafactor, case, elementwise, fp8, loss, muon, normalise, product, softgpu, table,
};
use gptrain::base::DType;
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::{Cuda, Kernels, Options};
use gptrain::device::{
    Arena, Backend, Fp8Scaling, Gemm, HEAD_PRODUCT, OpTimes, Section, Tensor, op,
};
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

fn open() -> Cuda {
    open_for(false)
}

/// The stand-in has eight: tests at once need not share the memory of one.
fn open_for(tf32: bool) -> Cuda {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let ordinal = match std::env::var_os("GPTRAIN_TEST_GPU") {
        Some(_) => 0,
        None => OPENED.fetch_add(1, Ordering::Relaxed) % 8,
    };
    let options = Options { tf32, ..softgpu::gpu(ordinal) };
    Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"))
}

fn against_definitions(dtype: DType) {
    let mut wrong = Vec::new();
    // As many as its memory holds.
    for cases in table().chunks(64) {
        let cuda = open();
        for case in cases {
            let bench = Bench::new(&cuda, dtype, true).with_fused_epilogues();
            (case.check)(&bench);
            wrong.extend(
                bench
                    .wrong()
                    .into_iter()
                    .map(|what| format!("{}: {what}", case.name)),
            );
        }
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

#[test]
fn cuda_agrees_with_the_definitions_in_f16() {
    against_definitions(DType::F16);
}

/// Products of f32 operands of 10 bits of fraction: 2^-11 for each of the two. Bits of the rest are
/// lost: without TF32 there are none to lose. A GPU's cuBLASLt may take TF32 and need not.
#[test]
fn tf32_rounds_the_operands_of_products() {
    let loss = |tf32| {
        let (cuda, cpu) = (open_for(tf32), Cpu::new(Some(1)));
        let (ours, theirs) = [&cuda as &dyn Backend, &cpu]
            .map(|b| Bench::new(b, DType::F32, false))
            .into();
        for bench in [&ours, &theirs] {
            product::gemm(bench, Gemm::NT, 24, 40, 64);
        }
        let apart = |(x, y): (Seen, Seen)| {
            let (x, y) = (x.numbers(), y.numbers());
            let largest = y.iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let off = x.iter().zip(&y).map(|(x, y)| (x - y).abs());
            off.fold(0.0, f64::max) / largest
        };
        // An activation has an error of its own.
        let products = ours
            .seen()
            .into_iter()
            .zip(theirs.seen())
            .filter(|(x, _)| x.name.starts_with('C'));
        products.map(apart).fold(0.0, f64::max)
    };
    let (with, without) = (loss(true), loss(false));
    let least = if softgpu::is_real() { 0.0 } else { 1e-5 };
    assert!((least..1e-3).contains(&with) && without < 2e-6, "{with:e} and {without:e}");
}

/// The stand-in is a Hopper with cuBLASLt 13.
#[test]
fn rows_have_scales_on_hopper() {
    let cuda = open();
    let backend: &dyn Backend = &cuda;
    assert!(softgpu::is_real() || backend.fp8_scaling() == Fp8Scaling::RowWise);
}

/// Each launch is in the profile once, in what is passed as a graph too, and none after it.
#[test]
fn a_profile_has_every_kernel_and_product() {
    let cuda = open();
    let backend: &dyn Backend = &cuda;
    let arena = Arena::new(backend, 1 << 20).expect("1 MiB");
    let [a, b, c] = [0; 3].map(|_| arena.matrix(48, 48, DType::F32));
    [a, b]
        .into_iter()
        .for_each(|x| backend.run(op::Zero { x: x.set() }));
    let mut graph = backend.graph(0);
    let mut work = || {
        backend.run(op::Gemm::plain(Gemm::NT, a, b, c.set()));
        backend.run(op::Copy { x: a, y: b.set() });
    };
    graph.run(&mut work);
    let seen = cuda.profile(&mut || (0..3).for_each(|_| assert!(graph.run(&mut work))));
    let rows: Vec<_> = seen
        .iter()
        .map(|(name, row)| (&name[..4], row.calls, row.flops))
        .collect();
    assert_eq!(rows, [("copy", 3, 0.0), ("prod", 3, 6.0 * 48f64.powi(3))], "{seen:?}");
    assert!(seen.values().all(|row| row.seconds > 0.0), "{seen:?}");
    work();
    assert!(cuda.profile(&mut || ()).is_empty());
}

/// A run times its ops so: by section of the step, and waits for other ranks by group.
#[test]
fn ops_are_timed_by_section() {
    let cuda = open();
    let backend: &dyn Backend = &cuda;
    let arena = Arena::new(backend, 1 << 20).expect("1 MiB");
    let [a, b, c] = [0; 3].map(|_| arena.matrix(48, 48, DType::F32));
    [a, b]
        .into_iter()
        .for_each(|x| backend.run(op::Zero { x: x.set() }));
    let gemm = || backend.run(op::Gemm::plain(Gemm::NT, a, b, c.set()));
    assert!(backend.time_ops());
    gemm();
    backend.run(op::Copy { x: a, y: b.set() });
    backend.enter(Section::Head);
    gemm();
    cuda.device().note_wait("data");
    cuda.device().note_wait("");
    backend.enter(Section::Once);
    gemm();
    let times = backend.take_times();
    assert_eq!(times.waits.keys().collect::<Vec<_>>(), ["data"]);
    let names: Vec<_> = times
        .passes
        .keys()
        .chain(times.once.keys())
        .copied()
        .collect();
    assert_eq!(names, ["gemm", HEAD_PRODUCT, "other kernels", "gemm"]);
    assert!(
        times
            .passes
            .values()
            .chain(times.once.values())
            .all(|seconds| *seconds > 0.0)
    );
    assert_eq!(backend.take_times(), OpTimes::default());
}

/// Every f16, and f32 of all sizes: ties, what is smaller than any f16, what is larger.
#[test]
fn cuda_rounds_as_the_cpu_does() {
    let (cuda, cpu) = (open(), Cpu::new(Some(1)));
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let near = |half: &u16| {
        // Odd and even neighbours of ties at 13 bits, and the ties.
        let tie = ((*half as u32) << 13 | 0x1000).wrapping_add(112 << 23);
        [tie - 1, tie, tie + 1, (*half as u32) << 16 | 0x8000, (*half as u32) << 16 | 0x7abc]
    };
    let singles: Vec<u32> = halves.iter().flat_map(near).collect();
    let through = |b: &dyn Backend| {
        let arena = Arena::new(b, 8 << 20).expect("8 MiB");
        let [x, y] = [halves.len(), singles.len()];
        let (x, y) = (arena.matrix(1, x, DType::F16), arena.matrix(1, y, DType::F32));
        b.upload(bytemuck::cast_slice(&halves), x);
        b.upload(bytemuck::cast_slice(&singles), y);
        [(x, DType::F32), (x, DType::BF16), (y, DType::F16), (y, DType::BF16)].map(|(from, to)| {
            let to = arena.matrix(1, from.cols, to);
            b.run(op::Copy { x: from, y: to.set() });
            let mut bytes = vec![0; to.bytes()];
            b.download(to, &mut bytes);
            let seen = Seen { name: String::new(), dtype: to.dtype, bytes };
            seen.numbers()
        })
    };
    for (ours, theirs) in through(&cuda).iter().zip(&through(&cpu)) {
        let same = |(x, y): (&f64, &f64)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
        let wrong = ours.iter().zip(theirs).position(|pair| !same(pair));
        assert_eq!(wrong, None, "{:?}", wrong.map(|i| (ours[i], theirs[i])));
    }
}

/// Rows of whole 16 bytes and rows that are not, of several blocks each.
fn larger() -> Vec<Case> {
    vec![
        case("embed", |b| product::embed(b, 300, 20, 264, 3)),
        case("embed, rows of two digits, six tiles", |b| product::embed(b, 1500, 700, 8, 40)),
        case("gemm NT", |b| product::gemm(b, Gemm::NT, 70, 136, 72)),
        case("gemm NN", |b| product::gemm(b, Gemm::NN, 129, 72, 200)),
        case("gemm TN", |b| product::gemm(b, Gemm::TN, 65, 264, 130)),
        case("elementwise", |b| elementwise::all(b, 70, 264, 0.1)),
        case("elementwise, odd", |b| elementwise::all(b, 131, 77, 0.1)),
        case("layernorm", |b| normalise::layernorm(b, 40, 264)),
        case("layernorm, wide", |b| normalise::layernorm(b, 3, 4104)),
        case("residual and layernorm", |b| normalise::residual_norm(b, 37, 264, 0.1)),
        case("attention", |b| attention(b, Shape::new(2, 70, 2, 40))),
        case("attention, groups and window", |b| {
            attention(
                b,
                Shape::new(2, 70, 6, 40)
                    .grouped(3)
                    .within(33)
                    .masked(Mask::Documents(50)),
            )
        }),
        case("queries and keys", |b| query_key(b, query_key::Shape::new(70, 6, 3, 128))),
        case("queries and keys, widest", |b| query_key(b, query_key::Shape::new(9, 2, 1, 256))),
        case("cross-entropy", |b| loss::cross_entropy(b, 20, 1999, 2048, 2)),
        case("optimizer", |b| update::all(b, 70_001)),
        case("muon", |b| muon::all(b, 70_001)),
        case("muon, vectors", |b| muon::all(b, 70_008)),
        case("adafactor", adafactor::large),
        case("fp8", |b| fp8::quantized(b, 272, 528)),
        case("fp8, odd", |b| fp8::quantized(b, 700, 77)),
        case("fp8, wider than a block's memory", |b| fp8::quantized(b, 2, 60_008)),
        case("fp8 product", |b| fp8::products(b, 80, 48, 208)),
    ]
}

/// Shapes that tensor cores take.
pub fn heads() -> Vec<Case> {
    let all = |d| {
        Shape::new(1, 70, 2, d)
            .masked(Mask::Ragged)
            .with_alibi()
            .dropping(0.1)
    };
    let shapes = [
        ("causal, head of 32", Shape::new(1, 150, 1, 32)),
        ("head of 64", Shape::new(2, 65, 1, 64)),
        ("all, head of 64", all(64)),
        ("all, head of 72", all(72)),
        ("documents, head of 104", Shape::new(1, 90, 1, 104).masked(Mask::Documents(37))),
        ("all, head of 80", all(80)),
        ("prefix, head of 96", Shape::new(1, 100, 1, 96).masked(Mask::Prefix(40))),
        ("all, head of 128", all(128)),
        ("documents, head of 160", Shape::new(1, 130, 1, 160).masked(Mask::Documents(37))),
        ("all, head of 160", all(160)),
        ("groups, head of 64", all(64).grouped(2).within(29)),
        ("groups of two, head of 128", Shape::new(1, 150, 4, 128).grouped(2)),
        ("window and groups of three, head of 64", Shape::new(2, 150, 3, 64).grouped(3).within(29)),
        ("window, head of 128", Shape::new(1, 150, 2, 128).within(40)),
    ];
    let case = |(name, shape)| case(format!("attention, {name}"), move |b| attention(b, shape));
    shapes.into_iter().map(case).collect()
}

#[test]
fn cuda_agrees_with_the_cpu_on_larger_shapes() {
    let (cuda, cpu) = (open(), Cpu::new(Some(2)));
    let all = |dtype| against_cpu(&cuda, &cpu, dtype, larger().into_iter().chain(heads()));
    let wrong: Vec<String> = [DType::F32, DType::BF16, DType::F16]
        .into_iter()
        .flat_map(all)
        .collect();
    assert!(wrong.is_empty(), "{} disagree:\n{}", wrong.len(), wrong.join("\n"));
}

/// Hidden sizes of 112B and more, BLOOM-176B's 14,336 and Llama 3 405B's 16,384 among them: rows that
/// threads hold, rows that they read twice, and rows whose sums do not fit in one block. The stand-in
/// refuses more threads a block than a kernel is bound to, as a GPU does.
#[test]
fn norms_have_a_kernel_at_every_width() {
    let (cuda, cpu) = (open(), Cpu::new(Some(2)));
    let fused = |cols: usize| {
        case(format!("norms of {cols}"), move |b| normalise::residual_norm(b, 2, cols, 0.0))
    };
    let alone = |cols: usize| {
        case(format!("layernorm of {cols}"), move |b| normalise::layernorm(b, 2, cols))
    };
    let widths = [13_824, 14_336, 16_384, 18_432, 20_480, 20_477];
    let mut wrong = against_cpu(&cuda, &cpu, DType::F32, widths.map(fused));
    wrong.extend(against_cpu(&cuda, &cpu, DType::BF16, [14_336, 16_384].map(fused)));
    wrong.extend(against_cpu(&cuda, &cpu, DType::BF16, [18_432, 20_480, 20_477].map(alone)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Differences between the backends.
pub fn against_cpu(
    cuda: &Cuda,
    cpu: &Cpu,
    dtype: DType,
    cases: impl IntoIterator<Item = Case>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for case in cases {
        let (ours, theirs) = (Bench::new(cuda, dtype, false), Bench::new(cpu, dtype, false));
        let ours = ours.with_fused_epilogues();
        (case.check)(&ours);
        (case.check)(&theirs);
        for (ours, theirs) in ours.seen().iter().zip(theirs.seen()) {
            if let Some(what) = difference(ours, &theirs, dtype) {
                wrong.push(format!("{} in {dtype}: {what}", case.name));
            }
        }
    }
    wrong
}

/// f16 on a V100: the stand-in runs no kernel there that is for tensor cores, and no bf16. What the
/// stand-in is comes from the environment, so that this runs itself as another process.
#[test]
fn a_v100_trains_in_f16_where_the_build_has_kernels_for_it() {
    const CAPABILITY: &str = "SOFTGPU_CAPABILITY";
    if std::env::var_os("GPTRAIN_TEST_GPU").is_some() {
        return;
    }
    let without = softgpu::options();
    if std::env::var_os(CAPABILITY).is_none() {
        let name = "cuda::a_v100_trains_in_f16_where_the_build_has_kernels_for_it";
        return alone(name, (CAPABILITY, "70"));
    }
    let volta = Kernels::from_folder(&softgpu::folder()).ok();
    let with = |dtype, tf32| Options { dtype, tf32, volta, ..without.clone() };
    let refused = |options: &Options| Cuda::open(options).err().expect("a refusal").to_string();
    let says = refused(&without);
    assert!(says.contains("without kernels for sm_70") && says.contains("SM70=1"), "{says}");
    let says = refused(&with(DType::BF16, false));
    assert!(says.contains("7.0: no bf16") && says.contains("precision=fp16"), "{says}");
    let says = refused(&with(DType::F32, true));
    assert!(says.contains("7.0: no TF32") && says.contains("precision=f32"), "{says}");

    let says = refused(&Options { fp8: true, ..with(DType::F16, false) });
    assert!(says.contains("7.0: no 8-bit floats") && says.contains("precision=bf16"), "{says}");

    let cuda = Cuda::open(&with(DType::F16, false)).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(cuda.description().contains("libcublasLt.so.12"), "{}", cuda.description());
    let cpu = Cpu::new(Some(2));
    let shape = Shape::new(1, 70, 2, 64).masked(Mask::Ragged).dropping(0.1);
    let wide = Shape::new(1, 40, 1, 160);
    let heads = [shape, wide].map(|shape| case("attention", move |b| attention(b, shape)));
    let wrong = against_cpu(&cuda, &cpu, DType::F16, heads);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Products into scratch, if cuBLASLt cannot add a product with row scales to C; with timed algorithms and
/// with proposed ones, which it may refuse later.
#[test]
fn fp8_products_are_added_without_the_library() {
    const ADDS: &str = "SOFTGPU_FP8_ADD";
    if softgpu::is_real() {
        return;
    }
    if std::env::var_os(ADDS).is_none() {
        for status in ["15", "7"] {
            alone("cuda::fp8_products_are_added_without_the_library", (ADDS, status));
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for tuned in [None, Some(folder.path().to_path_buf())] {
        let options = Options { tuned, ..softgpu::options() };
        let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let bench = Bench::new(&cuda, DType::F32, true).with_fused_epilogues();
        fp8::products(&bench, 32, 48, 80);
        fp8::added(&bench, 32, 1 << 17, 16);
        assert_eq!(bench.wrong(), [""; 0]);
    }
}

/// Runs a test of this program in a process of its own, with a variable.
fn alone(name: &str, variable: (&str, &str)) {
    let own = std::env::current_exe().expect("this program");
    let mut child = std::process::Command::new(own);
    let done = child
        .args(["--exact", name])
        .envs([variable])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

/// A fresh f32 row.
fn on(cuda: &Cuda) -> &dyn Backend {
    cuda
}

fn row(cuda: &Cuda, cols: usize) -> Tensor {
    Tensor::at(cuda.reserve(4 * cols).unwrap(), 1, cols, DType::F32)
}

fn read(cuda: &Cuda, x: Tensor) -> Vec<f32> {
    let mut values = vec![0.0; x.numel()];
    cuda.download(x, bytemuck::cast_slice_mut(&mut values));
    values
}

/// Ops see what was fed before them, and nothing fed after; each time more than lands at once.
#[test]
fn what_is_fed_is_in_order_with_the_ops() {
    const WORDS: usize = 700_000;
    let cuda = open();
    let x = row(&cuda, WORDS);
    let seen: Vec<Tensor> = (0..6).map(|_| row(&cuda, WORDS)).collect();
    for (i, y) in seen.iter().enumerate() {
        cuda.upload_async(bytemuck::cast_slice(&vec![i as f32; WORDS]), x);
        on(&cuda).run(op::Copy { x, y: y.set() });
    }
    for (i, y) in seen.iter().enumerate() {
        assert!(read(&cuda, *y).iter().all(|value| *value == i as f32), "fed {i}");
    }
}

/// Work that cannot be captured is done op by op, as without the attempt; in a group it fails.
#[test]
fn what_cannot_be_captured_is_done_op_by_op() {
    let cuda = open();
    let (one, sum) = (row(&cuda, 8), row(&cuda, 8));
    cuda.upload(bytemuck::cast_slice(&[1.0f32; 8]), one);
    let add = || on(&cuda).run(op::Copy { x: one, y: sum.add() });
    let mut legal = cuda.graph(0);
    let asked: Vec<bool> = (0..4).map(|_| legal.run(&mut || add())).collect();
    assert_eq!((asked, read(&cuda, sum)[0]), (vec![true, true, false, false], 4.0));

    let waits = &mut || {
        add();
        let _ = cuda.sync();
        add();
    };
    let mut illegal = cuda.graph(0);
    let messages = messages_of(|| assert!((0..3).all(|_| illegal.run(waits))));
    assert_eq!(read(&cuda, sum)[0], 10.0);
    let one = matches!(&messages[..], [one] if one.contains("CAPTURE_UNSUPPORTED"));
    assert!(one, "{messages:?}");
    // The earlier result is kept.
    assert!(!legal.run(&mut || unreachable!("it was captured")));
    assert_eq!(read(&cuda, sum)[0], 11.0);
    drop(legal);

    let other = open();
    let mut together = other.graph(1);
    (0..2).for_each(|_| assert!(together.run(&mut || drop(other.reserve(8)))));
    let why = other
        .sync()
        .expect_err("a group cannot continue")
        .to_string();
    assert!(why.contains("set GPTRAIN_CUDA_GRAPHS=0"), "{why}");
}

/// The messages of this thread while it does some work.
fn messages_of(work: impl FnOnce()) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Messages(Arc<Mutex<Vec<String>>>);
    impl<S: Subscriber> Layer<S> for Messages {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut messages = self.0.lock().unwrap();
            event.record(&mut |_: &Field, text: &dyn Debug| messages.push(format!("{text:?}")));
        }
    }
    let messages = Messages::default();
    let layers = tracing_subscriber::registry().with(messages.clone());
    tracing::subscriber::with_default(layers, work);
    messages.0.lock().unwrap().clone()
}

/// A point is reached after the ops before it; what is captured has none.
#[test]
fn a_timeline_is_in_order_with_the_ops() {
    let cuda = open();
    let (x, sum) = (row(&cuda, 1 << 16), row(&cuda, 1 << 16));
    let timeline = cuda.timeline().unwrap();
    let (mut pass, mut inside) = (cuda.graph(0), Vec::new());
    let mut outside = Vec::new();
    for _ in 0..3 {
        outside.push(timeline.mark());
        pass.run(&mut || {
            on(&cuda).run(op::Copy { x, y: sum.add() });
            inside.push(timeline.mark());
        });
        outside.push(timeline.mark());
    }
    assert_eq!(inside, [Some(2), None], "run, captured, replayed");
    assert_eq!(outside, [1, 3, 4, 5, 6, 7].map(Some));
    let points = timeline.read();
    assert_eq!((points.len(), points[0]), (8, 0));
    assert!(points.is_sorted() && points[7] > 0, "{points:?}");
}

/// Describes where two outputs of an op on `dtype` differ by more than their rounding. In f32: 2e-5
/// of the largest number (sums of a thousand terms in another order), or a term that was rounded to
/// 16 bits in the other direction. In bf16 and f16: two of their roundings.
fn difference(ours: &Seen, theirs: &Seen, dtype: DType) -> Option<String> {
    let tolerance = match (ours.dtype, dtype) {
        (DType::U8, _) => 0.0,
        (DType::F32, DType::F16) => 2e-4,
        (DType::F32, DType::BF16) => 8e-4,
        (DType::F32, _) => 2e-5,
        (DType::F16, _) => 1.0 / 512.0,
        _ => 1.0 / 64.0,
    };
    let (x, y) = (ours.numbers(), theirs.numbers());
    let largest = y.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    let close = |(x, y): (&f64, &f64)| x == y || (x - y).abs() <= tolerance * largest;
    let at = (0..y.len()).find(|i| !close((&x[*i], &y[*i])))?;
    Some(format!("{}[{at}] = {} for {} (largest {largest})", ours.name, x[at], y[at]))
}
