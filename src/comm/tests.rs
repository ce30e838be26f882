//! Every op, on every size of group, compared with a loop that sums in rank order.

pub mod exercise;
mod failures;
mod hangs;

use super::{Op, World, threads};
use base::DType;
use base::testing::{run_to_end, until};
use exercise::{Numbers, check_ops, check_reduce};
use std::sync::Barrier;

/// Runs `rank` on a thread per handle. Returns the results in rank order.
pub fn on_threads<T: Send>(worlds: Vec<World>, rank: impl Fn(World) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|world| scope.spawn(move || rank(world)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank ends well"))
            .collect()
    })
}

#[test]
fn every_op_equals_a_loop_in_rank_order() {
    for size in [1, 2, 3, 4, 8] {
        on_threads(threads::world(size), |world| check_ops(&world, &[1, 7, 64, 1001]));
    }
}

/// Several pieces per slice: 4.4 MB over 3 ranks, in pieces of 1.4 MB.
#[test]
fn a_tensor_of_many_pieces_is_summed_alike() {
    on_threads(threads::world(3), |world| {
        let group = world.group("all", &[0, 1, 2]);
        check_reduce(&*group, DType::F32, 1_100_007);
    });
}

#[test]
fn a_group_of_some_ranks_numbers_them_in_its_own_order() {
    on_threads(threads::world(4), |world| {
        let odd = world.rank() % 2;
        let group = world.group("strided", &[odd + 2, odd]);
        let x = Numbers::f32(vec![world.rank() as f32; 5]);
        group.all_reduce(x.tensor());
        assert_eq!(x.to_f32(), vec![(2 + 2 * odd) as f32; 5]);
        assert_eq!(group.rank(), if world.rank() >= 2 { 0 } else { 1 });
    });
}

#[test]
fn crossing_messages_arrive_in_order() {
    on_threads(threads::world(3), |world| {
        let group = world.group("pipe", &[0, 1, 2]);
        let next = (group.rank() + 1) % 3;
        let before = (group.rank() + 2) % 3;
        for round in 0..10 {
            let sent: Vec<Numbers> = (0..2)
                .map(|i| Numbers::f32(vec![(group.rank() * 100 + round * 2 + i) as f32; 3]))
                .collect();
            let got: Vec<Numbers> = (0..2).map(|_| Numbers::f32(vec![0.0; 3])).collect();
            use super::Message::{Recv, Send};
            group.exchange(&[
                Recv { from: before, x: got[0].tensor() },
                Send { to: next, x: sent[0].tensor() },
                Send { to: next, x: sent[1].tensor() },
                Recv { from: before, x: got[1].tensor() },
            ]);
            for (i, got) in got.iter().enumerate() {
                assert_eq!(got.to_f32(), vec![(before * 100 + round * 2 + i) as f32; 3]);
            }
        }
    });
}

/// Tensors of a group may be freed as soon as the group is dropped, even if it has failed.
#[test]
fn a_group_that_goes_waits_for_what_it_began() {
    let through = Barrier::new(2);
    let rank = move |world: World| {
        let sum = Numbers::f32(vec![1.0; 100_000]);
        let group = world.group("all", &[0, 1]);
        drop(group.begin(super::Collective::AllReduce(sum.tensor())));
        drop(group);
        assert!(sum.to_f32().iter().all(|x| *x == 2.0));
        // The failure would interrupt operations that another rank still waits for.
        through.wait();
        let alone = Numbers::f32(vec![1.0; 10]);
        let rank = world.rank();
        let failed = super::catch(move || {
            let group = world.group("all", &[0, 1]);
            match rank {
                0 => drop(group.begin(super::Collective::AllReduce(alone.tensor()))),
                _ => drop(world.fail("given up")),
            }
            world.failed().map_or(String::new(), |failed| failed.line)
        });
        assert!(failed.is_ok_and(|line| rank == 0 || line.contains("given up")));
    };
    run_to_end("every rank", move || on_threads(threads::world(2), rank));
}

/// Rank 1 joins only after ranks 0 and 2, which have started, have completed something else.
#[test]
fn a_collective_begun_does_not_hold_up_the_next() {
    let (through, meanwhile) = std::sync::mpsc::channel();
    let meanwhile = parking_lot::Mutex::new(meanwhile);
    on_threads(threads::world(3), |world| {
        let everyone = world.group("all", &[0, 1, 2]);
        let x = Numbers::f32(vec![1.0; 1000]);
        let y = Numbers::f32(vec![2.0; 10]);
        if world.rank() == 1 {
            for _ in 0..2 {
                until("the others are not delayed", || meanwhile.lock().try_recv().is_ok());
            }
        }
        let pending = everyone.begin(super::Collective::AllReduce(x.tensor()));
        if world.rank() != 1 {
            world.group("pair", &[0, 2]).all_reduce(y.tensor());
            assert_eq!(y.to_f32(), vec![4.0; 10]);
            through.send(()).unwrap();
        }
        everyone.finish(pending);
        assert_eq!(x.to_f32(), vec![3.0; 1000]);
        everyone.all_reduce(x.tensor());
        assert_eq!(x.to_f32(), vec![9.0; 1000]);
    });
}

#[test]
fn sixty_four_ranks_on_few_cores_finish() {
    run_to_end("a world of 64 ranks", move || {
        on_threads(threads::world(64), |world: World| {
            let all: Vec<usize> = (0..64).collect();
            let group = world.group("all", &all);
            let x = Numbers::f32(vec![1.0; 1000]);
            for _ in 0..5 {
                group.all_reduce(x.tensor());
            }
            assert_eq!(x.to_f32()[999], 64f32.powi(5));
        })
    });
}

#[test]
fn bytes_sent_are_the_textbook_volume() {
    for size in [2, 3, 4, 8] {
        let sent = on_threads(threads::world(size), |world| {
            let ranks: Vec<usize> = (0..size).collect();
            let group = world.group("g", &ranks);
            let whole = Numbers::f32(vec![1.0; 24 * size]);
            let part = Numbers::f32(vec![1.0; 24]);
            group.all_reduce(whole.tensor());
            group.all_gather(part.tensor(), whole.tensor());
            group.reduce_scatter(whole.tensor(), part.tensor());
            let uneven = world.group("uneven", &ranks);
            uneven.all_reduce(Numbers::f32(vec![1.0; 101]).tensor());
            world.traffic()
        });
        let bytes = (24 * size * 4) as u64;
        let share = (size as u64 - 1) * bytes / size as u64;
        for traffic in &sent {
            let of = |op| traffic[&("g".into(), op)];
            assert_eq!(of(Op::AllReduce), 2 * share);
            assert_eq!(of(Op::AllGather), share);
            assert_eq!(of(Op::ReduceScatter), share);
        }
        let uneven = sent
            .iter()
            .map(|t| t[&("uneven".into(), Op::AllReduce)])
            .sum::<u64>();
        assert_eq!(uneven, 2 * (size as u64 - 1) * 101 * 4);
    }
}
