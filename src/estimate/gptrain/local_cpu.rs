//! Measurement of the local CPU, which replaces the table's row: a matrix product and a copy, timed in
//! several short tries, and the load by other programs meanwhile.

use crate::hardware::{Hardware, MEASURED};
use crate::view::GIB;
use base::busy::{Busy, Ticks};
use base::memory::HostMemory;
use base::{Count, DType};
use device::cpu::{Cpu, processor};
use device::{Arena, Backend, Gemm, op};
use std::time::{Duration, Instant};

/// Care of the measurement: tries of each of the two, and pauses between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Over 200 ms, since a busy processor is not busy all the time.
    Full,
    /// Without pauses and the load by other programs, at the start of a run.
    Brief,
}

impl Care {
    fn tries(self) -> usize {
        match self {
            Care::Full => 8,
            Care::Brief => 3,
        }
    }

    fn pause(self) -> Duration {
        match self {
            Care::Full => Duration::from_millis(20),
            Care::Brief => Duration::ZERO,
        }
    }
}

const SECONDS: f64 = 0.003;

/// Shape of the product C [ROWS, WIDTH] = A [ROWS, WIDTH] · Bᵀ, as in a small model.
const ROWS: usize = 512;
const WIDTH: usize = 512;

/// Bytes of the copy: more than caches hold.
const COPIED: usize = 32 << 20;

/// Row `cpu` with the figures of this machine: its memory and name, and the speed of so many threads (by
/// default of all processors) in elements of `dtype`. The speed is the row's if the threads or the memory
/// for a try are not available.
pub fn measure(cpu: &Hardware, dtype: DType, threads: Option<usize>, care: Care) -> Hardware {
    let cpu = &detect_cpu(cpu);
    let Ok(device) = Cpu::open(threads) else { return cpu.clone() };
    let be: &dyn Backend = &device;
    let Ok(arena) = Arena::new(be, 2 * COPIED + (1 << 16)) else { return cpu.clone() };
    let mut product = arena.temporary(|arena| {
        let [a, c] = [0; 2].map(|_| arena.matrix(ROWS, WIDTH, dtype));
        let b = arena.matrix(WIDTH, WIDTH, dtype);
        for x in [a, b] {
            be.run(op::Zero { x: x.set() });
        }
        move || be.run(op::Gemm::plain(Gemm::NT, a, b, c.set()))
    });
    // Over the same bytes: contents do not matter.
    let mut copy = arena.temporary(|arena| {
        let [x, y] = [0; 2].map(|_| arena.matrix(1, COPIED / 4, DType::F32));
        for x in [x, y] {
            be.run(op::Zero { x: x.set() });
        }
        move || be.run(op::Copy { x, y: y.set() })
    });
    time_in_turns([&mut product, &mut copy], care).row(cpu, dtype)
}

/// Row `cpu` with the name of this machine's processor, its cores and its memory.
fn detect_cpu(cpu: &Hardware) -> Hardware {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let name = processor::name().unwrap_or_else(|| "this machine's processor".to_string());
    let memory = HostMemory::detect().map(|memory| memory.total.0 as f64 / GIB);
    Hardware {
        about: format!("{name}, {}: this machine, one process", Count(cores).with_noun("core")),
        memory_gib: memory.unwrap_or(cpu.memory_gib),
        host_gib: memory.unwrap_or(cpu.host_gib),
        ..cpu.clone()
    }
}

/// Timings of two ops.
struct Timings {
    /// Seconds of the fastest try of each.
    best: [f64; 2],
    /// The median try by the fastest one, of the op that differs most.
    spread: f64,
    busy: Busy,
}

impl Timings {
    /// From the seconds of each op's tries, and how busy other programs were in the pauses.
    fn new(mut seconds: [Vec<f64>; 2], pauses: &[Busy]) -> Timings {
        seconds
            .iter_mut()
            .for_each(|tries| tries.sort_by(f64::total_cmp));
        let spread = seconds
            .iter()
            .map(|tries| tries[tries.len() / 2] / tries[0])
            .fold(1.0, f64::max);
        let busy = pauses.iter().map(|pause| pause.busy).sum::<f64>() / pauses.len() as f64;
        let busy = Busy { busy, processors: pauses[0].processors };
        Timings { best: seconds.each_ref().map(|tries| tries[0]), spread, busy }
    }

    /// `cpu`'s row with these figures, for activations of `dtype`.
    fn row(&self, cpu: &Hardware, dtype: DType) -> Hardware {
        let ops = if dtype == DType::F32 { &cpu.ops } else { &cpu.ops_16 };
        let [product, copy] = self.best;
        let copied = round_speed(2.0 * COPIED as f64 / copy / 1e9);
        Hardware {
            peak_tflops: round_speed(2.0 * (ROWS * WIDTH * WIDTH) as f64 / product / 1e12),
            hbm_gb_s: copied,
            host_gb_s: copied,
            is_local: true,
            ops: ops.clone(),
            uncertainty: self.uncertainty(),
            busy: self.busy,
            ..cpu.clone()
        }
    }

    /// Half the error bar, which grows with the load by other programs and with the spread of the tries.
    fn uncertainty(&self) -> f64 {
        let Busy { busy, processors } = self.busy;
        if !self.busy.exceeds_idle() {
            return MEASURED;
        }
        uncertainty_on_busy(busy / processors, self.spread)
    }
}

/// Half the error bar of what was measured while other programs had this share of a machine, and the
/// median try took `spread` times the fastest.
pub fn uncertainty_on_busy(share: f64, spread: f64) -> f64 {
    let free = (1.0 - share).max(1.0 / 8.0);
    MEASURED + ((1.0 / free).max(spread) - 1.0) / 2.0
}

/// Runs both ops in turns.
fn time_in_turns(mut ops: [&mut dyn FnMut(); 2], care: Care) -> Timings {
    ops.iter_mut().for_each(|op| op()); // warms up
    let mut seconds = [Vec::new(), Vec::new()];
    let mut pauses: Vec<Busy> = Vec::new();
    for _ in 0..care.tries() {
        for (op, seconds) in ops.iter_mut().zip(&mut seconds) {
            seconds.push(fastest_call(op));
        }
        let before = Ticks::now();
        std::thread::sleep(care.pause());
        pauses.push(Ticks::now().since(before));
    }
    Timings::new(seconds, &pauses)
}

/// Rounds to a thousandth; the next try differs by more.
fn round_speed(speed: f64) -> f64 {
    (speed * 1e3).ceil() / 1e3
}

/// Seconds of the fastest of several calls.
fn fastest_call(op: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while best == f64::INFINITY || start.elapsed().as_secs_f64() < SECONDS {
        let start = Instant::now();
        op();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

#[test]
fn a_busy_processor_has_a_wider_bar() {
    let bar = |busy: f64, spread: f64| {
        Timings { best: [1.0; 2], spread, busy: Busy { busy, processors: 2.0 } }.uncertainty()
    };
    assert_eq!(bar(0.1, 5.0), MEASURED, "an idle one");
    assert!((bar(1.0, 1.1) - (MEASURED + 0.5)).abs() < 1e-12, "half of it is taken");
    assert!((bar(1.0, 4.0) - (MEASURED + 1.5)).abs() < 1e-12, "tries differ four times");
    assert!((bar(2.0, 1.0) - (MEASURED + 3.5)).abs() < 1e-12, "all of it is taken");
}

/// From readings of tries and pauses to the row, its bar and its note.
#[test]
fn readings_of_a_busy_machine_widen_the_bar_and_are_noted() {
    let cpu = crate::hardware::find("cpu", "test").unwrap();
    let product = 2.0 * (ROWS * WIDTH * WIDTH) as f64 / 0.5e12;
    let copy = 2.0 * COPIED as f64 / 10e9;
    // The fastest of the tries is not the first; half of the products' tries took three times as long.
    let slow = [3.0, 1.0, 3.0, 1.2, 3.0, 1.1, 3.0, 3.0]
        .map(|times| times * product)
        .to_vec();
    let even = [1.1, 1.0, 1.0, 1.1, 1.0, 1.0, 1.1, 1.0]
        .map(|times| times * copy)
        .to_vec();
    let readings = |busy: [f64; 2]| {
        busy.repeat(4)
            .iter()
            .map(|busy| Busy { busy: *busy, processors: 4.0 })
            .collect::<Vec<Busy>>()
    };
    let row =
        |busy| Timings::new([slow.clone(), even.clone()], &readings(busy)).row(cpu, DType::BF16);
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.01, "{found}");
    let idle = row([0.0, 0.2]);
    near(idle.peak_tflops, 0.5);
    assert_eq!(idle.ops, cpu.ops_16, "in 16 bits");
    near(idle.hbm_gb_s, 10.0);
    assert_eq!((idle.uncertainty, idle.notes("gptrain", 1.0)), (MEASURED, Vec::new()));
    // 1 of 4 processors is taken on average, which explains a third more; the tries differ by three times.
    let busy = row([0.0, 2.0]);
    assert_eq!((busy.peak_tflops, busy.hbm_gb_s), (idle.peak_tflops, idle.hbm_gb_s));
    near(busy.uncertainty, MEASURED + 1.0);
    near(super::dry_run::error(&busy, 1), 2.0 * (MEASURED + 1.0));
    let notes = busy.notes("gptrain", 1.0);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("other programs keep 1.0 of its 4 processors"), "{notes:?}");
    // All of it is taken: as if an eighth were free.
    near(row([4.0, 4.0]).uncertainty, MEASURED + 3.5);
}

#[test]
fn this_processor_has_positive_speeds() {
    let row = crate::hardware::find("cpu", "test").unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let found = measure(row, dtype, None, Care::Brief);
        let speeds = [found.peak_tflops, found.hbm_gb_s, found.host_gb_s];
        assert!(found.is_local && speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0));
        let memory = HostMemory::detect().unwrap().total.0 as f64 / GIB;
        assert_eq!([found.memory_gib, found.host_gib], [memory; 2]);
        assert!(found.about.contains("core"), "{}", found.about);
    }
}
