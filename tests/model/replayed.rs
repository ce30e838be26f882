//! Every op of a step in its context: two steps and an evaluation on the CPU are recorded op by op,
//! with the contents of all tensors, and replayed on a GPU (the software stand-in, or a real one).
//! Each op of the replay begins from the recorded contents, so a difference is that op's own.

use crate::common::{self, softgpu};
use crate::grids_cuda::train;
use gptrain::base::{DType, Moment};
use gptrain::comm::host_staged::HostStaged;
use gptrain::comm::{Solo, World, threads};
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::Cuda;
use gptrain::device::{Access, Backend, Fp8Scaling, Op, OutOfMemory, Section, Tensor, Transfer};
use gptrain::engine::{Groups, Outcome};
use gptrain::manifest::Manifest;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// One op that ran, and the contents of its tensors before and after it.
struct Recorded {
    kind: &'static str,
    tensors: Vec<(Tensor, Access)>,
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
}

/// Largest difference of an op's outputs, relative to the tolerance of their type.
type Worst = BTreeMap<&'static str, (f64, String)>;

/// Whether the ops of a device are recorded, or compared with a record.
enum Role<'r> {
    Record(RefCell<Vec<Recorded>>),
    Replay { record: &'r [Recorded], next: Cell<usize>, worst: RefCell<Worst> },
}

/// A device whose ops are recorded or replayed. It captures no graph and times nothing.
struct Observed<'r> {
    be: &'r dyn Backend,
    role: Role<'r>,
}

impl Observed<'_> {
    fn contents(&self, tensors: &[(Tensor, Access)]) -> Vec<Vec<u8>> {
        let read = |(x, _): &(Tensor, Access)| {
            let mut bytes = vec![0; x.bytes()];
            self.be.download(*x, &mut bytes);
            bytes
        };
        tensors.iter().map(read).collect()
    }

    fn store(&self, tensors: &[(Tensor, Access)], contents: &[Vec<u8>]) {
        tensors
            .iter()
            .zip(contents)
            .for_each(|((x, _), bytes)| self.be.upload(bytes, *x));
    }
}

impl Backend for Observed<'_> {
    fn enqueue(&self, op: &Op) {
        let (kind, tensors) = (op.kind(), op.tensors().0);
        match &self.role {
            Role::Record(all) => {
                let before = self.contents(&tensors);
                self.be.enqueue(op);
                let after = self.contents(&tensors);
                all.borrow_mut()
                    .push(Recorded { kind, tensors, before, after });
            }
            Role::Replay { record, next, worst } => {
                let number = next.replace(next.get() + 1);
                let then = &record[number];
                let shape = |(x, access): &(Tensor, Access)| (x.rows, x.cols, x.dtype, *access);
                let shapes = |all: &[(Tensor, Access)]| all.iter().map(shape).collect::<Vec<_>>();
                assert_eq!(
                    (kind, shapes(&tensors)),
                    (then.kind, shapes(&then.tensors)),
                    "op {number}"
                );
                self.store(&tensors, &then.before);
                self.be.enqueue(op);
                let after = self.contents(&tensors);
                let outputs = tensors.iter().zip(after.iter().zip(&then.after));
                for (i, ((x, access), (ours, theirs))) in outputs.enumerate() {
                    if *access != Access::Read {
                        let apart = difference(x.dtype, ours, theirs);
                        let mut worst = worst.borrow_mut();
                        let entry = worst.entry(kind).or_default();
                        if apart > entry.0 || apart.is_nan() {
                            *entry = (apart, format!("op {number}, {kind}, tensor {i} {x:?}"));
                        }
                    } else {
                        let in_place = |(y, access): &(Tensor, Access)| {
                            *access != Access::Read && y.overlaps(*x)
                        };
                        let unchanged = ours == &then.before[i] || tensors.iter().any(in_place);
                        assert!(unchanged, "op {number}, {kind}, writes its input {i}, {x:?}");
                    }
                }
                self.store(&tensors, &then.after);
            }
        }
    }
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.be.reserve(bytes)
    }
    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.be.reserve_host(bytes)
    }
    fn host(&self) -> &dyn Backend {
        self.be.host()
    }
    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer {
        self.be.transfer(from, to)
    }
    fn join_transfer(&self, transfer: Transfer) {
        self.be.join_transfer(transfer);
    }
    fn finish_transfer(&self, transfer: Transfer) {
        self.be.finish_transfer(transfer);
    }
    fn enter(&self, section: Section) {
        self.be.enter(section);
    }
    fn sync(&self) -> anyhow::Result<()> {
        self.be.sync()
    }
    fn upload(&self, from: &[u8], to: Tensor) {
        self.be.upload(from, to);
    }
    fn download(&self, from: Tensor, to: &mut [u8]) {
        self.be.download(from, to);
    }
    fn download_async(&self, from: Tensor) {
        self.be.download_async(from);
    }
    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Moment> {
        self.be.finish_download(to)
    }
    /// Scales of the stand-in, on both devices.
    fn fp8_scaling(&self) -> Fp8Scaling {
        Fp8Scaling::RowWise
    }
}

/// Largest difference of two contents, relative to the largest number and to the tolerance of the
/// type: a few roundings. 8-bit codes may be neighbours, where a number is between two.
fn difference(dtype: DType, ours: &[u8], theirs: &[u8]) -> f64 {
    let tolerance = match dtype {
        _ if ours == theirs => return 0.0,
        DType::F32 => 1e-5,
        DType::BF16 => 8e-3,
        DType::F16 => 1e-3,
        DType::U8 => {
            let apart = ours
                .iter()
                .zip(theirs)
                .map(|(x, y)| x.abs_diff(*y))
                .max()
                .unwrap();
            return f64::from(apart);
        }
        _ => return f64::INFINITY,
    };
    let [ours, theirs] = [ours, theirs].map(|bytes| dtype.widen(bytes));
    let largest = theirs.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let apart = |(x, y): (&f32, &f32)| if x.to_bits() == y.to_bits() { 0.0 } else { (x - y).abs() };
    let apart = ours
        .iter()
        .zip(&theirs)
        .map(apart)
        .fold(0.0f32, |most, x| if x <= most { most } else { x });
    f64::from(apart / largest) / tolerance
}

/// Trains on every rank of a grid, each in a thread of its own, and returns what each has.
fn ranks<T: Send>(m: &Manifest, work: impl Fn(&World) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let worlds = threads::world(m.topology.ranks()).into_iter();
        let ranks: Vec<_> = worlds
            .map(|world| scope.spawn(move || work(&world)))
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .collect()
    })
}

const STEPS: usize = 3;

/// Replays the steps of all ranks, and returns the kinds of their ops.
fn replay(sets: &[&str]) -> BTreeSet<&'static str> {
    let m = common::manifest(&[&["batch.micro=2", "batch.global=4"], sets].concat());
    let recorded = ranks(&m, |world| {
        let cpu = Cpu::new(Some(1));
        let recorder = Observed { be: &cpu, role: Role::Record(RefCell::default()) };
        let groups = Groups::new(world, &m.topology);
        let outcomes = train(&recorder, groups, &m, STEPS, |_| ());
        let Role::Record(record) = recorder.role else { unreachable!() };
        (outcomes, record.into_inner())
    });
    let wrong = ranks(&m, |world| {
        let (outcomes, record) = &recorded[world.rank()];
        let cuda = Cuda::open(&softgpu::gpu(0)).unwrap_or_else(|problems| panic!("{problems}"));
        let (next, worst) = (Cell::new(0), RefCell::default());
        let player = Observed { be: &cuda, role: Role::Replay { record, next, worst } };
        let groups = Groups::for_rank(world.rank(), &m.topology, |name, ranks| match ranks.len() {
            1 => Box::new(Solo),
            _ => Box::new(HostStaged::new(&cuda, world.group(name, ranks))),
        });
        let replayed = train(&player, groups, &m, STEPS, |_| ());
        let Role::Replay { next, worst, .. } = player.role else { unreachable!() };
        assert_eq!(next.get(), record.len(), "{sets:?}");
        let losses = |all: &[Outcome]| all.iter().map(|outcome| outcome.loss).collect::<Vec<_>>();
        assert_eq!(losses(&replayed), losses(outcomes), "{sets:?}");
        let worst = worst.into_inner().into_values();
        worst
            .filter(|(apart, _)| *apart > 1.0 || apart.is_nan())
            .collect::<Vec<_>>()
    });
    let wrong = wrong.concat();
    assert!(wrong.is_empty(), "{sets:?}: times the tolerance\n{wrong:#?}");
    recorded
        .iter()
        .flat_map(|(_, record)| record.iter().map(|op| op.kind))
        .collect()
}

const QWEN3: [&str; 4] =
    ["model.family=qwen3", "model.kv_heads=2", "model.ffn_hidden=48", "model.window=9"];

const ADAFACTOR: &str = "optimizer={adafactor: {scale_parameter: true}}";

/// Ops that no step of these runs has, with the tests that have them.
const ELSEWHERE: [(&str, &str); 2] =
    [("Digests", "checks of replicas: tests/ops/update.rs"), ("SkipAbove", "spikes.rs")];

#[test]
fn every_op_of_a_step_in_context() {
    let fp16 = ["precision=fp16", "loss_scale=1024", "model.family=bloom"];
    let powersgd = "topology.compression={powersgd: {rank: 2, start_step: 1, min_rate: 1}}";
    let runs: [&[&str]; 7] = [
        &["precision=f32", "topology.recompute=selective", "log.zeros=true"],
        &["precision=bf16", "model.dropout=0.1", "optimizer=adam8bit"],
        &[&fp16[..], &["topology.recompute=full", "topology.tensor=2"]].concat(),
        &[&QWEN3[..], &["precision=bf16", ADAFACTOR, "train.z_loss=0.1"]].concat(),
        &["precision=f32", "optimizer=muon"],
        &["precision=fp8"],
        &["precision=f32", "topology.data=2", powersgd],
    ];
    let mut seen: BTreeSet<_> = runs.into_iter().flat_map(replay).collect();
    seen.extend(ELSEWHERE.iter().map(|(kind, _)| *kind));
    let missing: Vec<_> = Op::KINDS
        .iter()
        .filter(|kind| !seen.contains(**kind))
        .collect();
    assert_eq!(missing, Vec::<&&str>::new());
}

#[test]
fn a_difference_above_the_tolerance_is_seen() {
    let bytes = |x: [f32; 2]| x.map(f32::to_le_bytes).concat();
    let apart = |y: f32| difference(DType::F32, &bytes([1.0, y]), &bytes([1.0, 2.0]));
    assert!(apart(2.0) == 0.0 && apart(2.00001) < 1.0 && apart(2.0001) > 1.0);
    assert!(apart(f32::NAN).is_nan());
    assert_eq!(difference(DType::U8, &[7, 9], &[7, 11]), 2.0);
    assert!(difference(DType::I64, &[1; 8], &[0; 8]).is_infinite());
}
