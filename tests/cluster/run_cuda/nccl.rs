//! Groups of GPUs: how many operations may be under way, the order of launches, how threads wait.

use crate::common::softgpu;
use gptrain::base::DType;
use gptrain::comm::nccl::Nccl;
use gptrain::comm::{Collective, World, threads as worlds};
use gptrain::device::cuda::Cuda;
use gptrain::device::{Backend, Tensor};
use std::sync::Barrier;

/// The first of many sums is awaited while the other rank has begun no other one.
#[test]
fn an_operation_is_awaited_without_those_begun_after_it() {
    const SUMS: usize = 100;
    let first_is_done = Barrier::new(2);
    let rank = |world: World| {
        let options = softgpu::gpu(world.rank());
        let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let group = Nccl::open(&cuda, &options).unwrap().group(&world, "pair", &[0, 1]);
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
