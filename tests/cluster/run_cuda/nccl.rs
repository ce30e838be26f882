//! Groups of GPUs: operations in flight, order of launches, NCCL's buffers, waits of threads.

use super::ranks::{on_stand_in, threads, with};
use crate::common::binary::{Done, Lab, run_args};
use crate::common::softgpu;
use gptrain::base::DType;
use gptrain::comm::nccl::Nccl;
use gptrain::comm::{Collective, Message, PIPELINE, World, threads as worlds};
use gptrain::device::cuda::{Cuda, Options, SERIAL};
use gptrain::device::{Backend, Tensor, op};
use gptrain::launch::RANKS;
use std::sync::Barrier;

const RUN: [&str; 3] = ["train.device=cuda", "train.steps=4", "train.eval_interval=0"];

/// The first of many sums is awaited while the other rank has begun no other one.
#[test]
fn an_operation_is_awaited_without_those_begun_after_it() {
    const SUMS: usize = 100;
    let first_is_done = Barrier::new(2);
    let rank = |world: World| {
        let options = softgpu::gpu(world.rank());
        let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let group = Nccl::open(&cuda, &options)
            .unwrap()
            .group(&world, "pair", &[0, 1]);
        let x = Tensor::at(cuda.reserve(4 * SUMS).unwrap(), 1, SUMS, DType::F32);
        cuda.upload(bytemuck::cast_slice(&[1.0f32; SUMS]), x);
        let begin = |at: usize| group.begin(Collective::AllReduce(x.span(at, 1)));
        let now = if world.rank() == 0 { SUMS } else { 1 };
        let mut begun: Vec<_> = (0..now).map(begin).collect();
        group.finish(begun.remove(0));
        cuda.sync().unwrap();
        first_is_done.wait();
        begun.extend((now..SUMS).map(begin));
        begun.into_iter().for_each(|pending| group.finish(pending));
        let mut sums = [0.0f32; SUMS];
        cuda.download(x, bytemuck::cast_slice_mut(&mut sums));
        assert_eq!(sums, [2.0; SUMS]);
    };
    std::thread::scope(|scope| {
        for world in worlds::world(2) {
            scope.spawn(|| rank(world));
        }
    });
}

/// The seconds of ops have the waits of the compute stream for a group, of both kinds of operation.
#[test]
fn timed_ops_have_the_waits_of_each_group() {
    let rank = |world: World| {
        let options = softgpu::gpu(world.rank());
        let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let nccl = Nccl::open(&cuda, &options).unwrap();
        let [now, begun, idle] =
            ["now", "begun", "idle"].map(|name| nccl.group(&world, name, &[0, 1]));
        let x = Tensor::at(cuda.reserve(256).unwrap(), 1, 64, DType::F32);
        assert!(cuda.time_ops());
        now.all_reduce(x);
        begun.finish(begun.begin(Collective::AllReduce(x)));
        let waits = cuda.take_times().waits;
        assert_eq!(waits.keys().collect::<Vec<_>>(), ["begun", "now"]);
        idle.all_reduce(x);
        assert!(cuda.take_times().waits.is_empty(), "no longer timed");
    };
    std::thread::scope(|scope| {
        for world in worlds::world(2) {
            scope.spawn(|| rank(world));
        }
    });
}

/// Two ranks as threads, with this variable.
fn two(lab: &Lab, variable: (&str, &str), sets: &[&str]) -> Done {
    let mut command = on_stand_in(lab, lab.command(&run_args(&with(&RUN, sets))), 2);
    Done::of(
        command
            .env(RANKS, "threads")
            .env(variable.0, variable.1)
            .output()
            .unwrap(),
    )
}

#[test]
fn launches_without_a_common_order_are_warned_of() {
    let lab = Lab::new();
    let old = ("SOFTGPU_NCCL", "22105");
    let warning = "NCCL 2.21 does not order the launches of communicators";
    let times = |done: &Done| done.out.matches(warning).count();
    let tensor = two(&lab, old, &["topology.tensor=2", "log.folder=tensor"]);
    tensor.expect(0, &[]);
    assert_eq!(times(&tensor), 1, "{}", tensor.out);
    assert!(tensor.out.contains("GPTRAIN_NCCL_SERIAL=1"), "{}", tensor.out);
    let data = two(&lab, old, &["topology.data=2", "log.folder=data"]);
    data.expect(0, &[]);
    assert_eq!(times(&data), 0, "one communicator: {}", data.out);
    let new = threads(&lab, 2, &with(&RUN, &["topology.tensor=2", "log.folder=new"]));
    new.expect(0, &[]);
    assert!(!new.out.contains("communicators"), "{}", new.out);
    assert_eq!(lab.losses("tensor"), lab.losses("new"));
}

/// Collectives on the stream of the ops need no other stream: with one hardware queue and one collective
/// in flight on the whole GPU, they give the same bits.
#[test]
fn collectives_run_on_the_stream_of_the_ops() {
    let lab = Lab::new();
    let zero = ["topology.data=2", "topology.zero=1"];
    two(&lab, (SERIAL, "0"), &with(&zero, &["log.folder=beside"])).well();
    two(&lab, (SERIAL, "1"), &with(&zero, &["log.folder=serial"])).well();
    assert_eq!(lab.losses("serial"), lab.losses("beside"));
    two(&lab, (SERIAL, "yes"), &zero).expect(2, &["GPTRAIN_NCCL_SERIAL is \"yes\"", "0 or 1"]);
    let pipeline = "topology={pipeline: 2, schedule: interleaved, overlap_p2p: true}";
    let begun = ["model.layers=4", pipeline];
    let words = ["topology.overlap_p2p: ", "GPTRAIN_NCCL_SERIAL=1", "topology.overlap_p2p=false"];
    two(&lab, (SERIAL, "1"), &begun).expect(2, &words);
}

/// Messages that overlap with computation, and the same ones exchanged: equal bits. The stand-in ends a
/// process that loads a kernel while a receive is in flight.
#[test]
fn no_kernel_is_loaded_beside_a_receive() {
    let lab = Lab::new();
    let run = |overlap: bool| {
        let pipeline = "pipeline: 2, schedule: interleaved, chunks: 2, overlap_p2p";
        let sets = [
            format!("topology={{{pipeline}: {overlap}}}"),
            format!("log.folder={overlap}"),
            "model.layers=4".to_string(),
            "train.steps=6".to_string(),
        ];
        let done = two(&lab, ("SOFTGPU_LOADS", "apart"), &sets.each_ref().map(|set| &**set));
        done.well();
    };
    run(true);
    run(false);
    assert_eq!(lab.losses("true"), lab.losses("false"));
}

#[test]
fn threads_sleep_while_they_wait_where_cores_are_few() {
    let waits = |blocking: bool| {
        let cuda = Cuda::open(&Options { blocking, ..softgpu::options() });
        let cuda = cuda.unwrap_or_else(|problems| panic!("{problems}"));
        let x = Tensor::at(cuda.reserve(64).unwrap(), 1, 16, DType::F32);
        let be: &dyn Backend = &cuda;
        be.run(op::Zero { x: x.set() });
        cuda.sync().unwrap();
        cuda.description().contains("threads sleep while they wait")
    };
    assert_eq!([waits(true), waits(false)], [true, false]);
}

/// Its buffers come with the first operation of each kind, size and dtype: all of them with the group.
#[test]
fn nccl_has_its_buffers_before_memory_is_measured() {
    const BYTES: usize = 1 << 20;
    let rank = |world: World| {
        let options = Options { dtype: DType::BF16, ..softgpu::gpu(world.rank()) };
        let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let (rank, peer) = (world.rank(), 1 - world.rank());
        let memory = cuda.reserve(2 * BYTES).unwrap();
        let alone = cuda.free_memory().0;
        let group = Nccl::open(&cuda, &options)
            .unwrap()
            .group(&world, PIPELINE, &[0, 1]);
        let measured = cuda.free_memory().0;
        assert!(measured < alone, "the stand-in counts buffers");
        for (dtype, bytes) in [DType::F32, DType::BF16]
            .into_iter()
            .flat_map(|dtype| [64 << 10, BYTES].map(|bytes| (dtype, bytes)))
        {
            let half = bytes / dtype.size() / 2;
            let whole = Tensor::at(memory, 1, 2 * half, dtype);
            let part = whole.span(rank * half, half);
            group.all_reduce(whole);
            group.reduce_scatter(whole, part);
            group.all_gather(part, whole);
            let arrived = Tensor::at(memory + BYTES, 1, 2 * half, dtype);
            let messages =
                [Message::Send { to: peer, x: whole }, Message::Recv { from: peer, x: arrived }];
            group.exchange(&messages);
        }
        cuda.sync().unwrap();
        assert_eq!(cuda.free_memory().0, measured, "no operation allocates");
    };
    std::thread::scope(|scope| {
        for world in worlds::world(2) {
            scope.spawn(|| rank(world));
        }
    });
}
