//! One rank fails: the others end at once, with a line that names it.

use super::exercise::Numbers;
use super::on_threads;
use crate::{Failed, Group, World, catch, threads};
use base::testing::run_to_end;

/// Failure line of each of three ranks. Rank 2 ends as `last` does.
fn lines(last: fn(&World, &dyn Group)) -> Vec<String> {
    let rank = move |world: World| {
        catch(move || {
            let group = world.group("all", &[0, 1, 2]);
            let x = Numbers::f32(vec![1.0; 100]);
            group.all_reduce(x.tensor());
            if world.rank() == 2 {
                last(&world, &*group);
            } else {
                group.all_reduce(x.tensor());
                group.all_reduce(x.tensor());
            }
        })
    };
    let ended = run_to_end("every rank", move || on_threads(threads::world(3), rank));
    ended
        .into_iter()
        .map(|end| end.err().map_or("well".into(), |failed| failed.line))
        .collect()
}

#[test]
fn a_rank_that_ends_early_is_named() {
    let lines = lines(|_, _| ());
    let waits = "waits for it in all_reduce of 100 f32 (#2 of group all)";
    assert!(
        lines[..2].contains(&format!("rank 2 has ended; rank 0 {waits}"))
            || lines[..2].contains(&format!("rank 2 has ended; rank 1 {waits}")),
        "{lines:?}"
    );
    assert_eq!(lines[0], lines[1], "all report the same");
}

#[test]
fn a_rank_in_another_collective_is_named() {
    let lines = lines(|_, group| {
        let part = Numbers::f32(vec![0.0; 4]);
        let whole = Numbers::f32(vec![0.0; 12]);
        group.all_gather(part.tensor(), whole.tensor());
    });
    let line = "#2 of group all is all_reduce of 100 f32 on rank N but all_gather of 12 f32 on \
                rank 2: the ranks are out of step";
    assert_eq!(
        lines[0]
            .replace("on rank 0", "on rank N")
            .replace("on rank 1", "on rank N"),
        line
    );
    assert_eq!(lines, [lines[0].clone(), lines[0].clone(), lines[0].clone()]);
}

#[test]
fn a_rank_with_another_size_is_named() {
    let lines = lines(|_, group| group.all_reduce(Numbers::f32(vec![0.0; 101]).tensor()));
    assert_eq!(lines[0], lines[1]);
    assert!(lines[0].contains("all_reduce of 101 f32"), "{lines:?}");
    assert!(lines[0].contains("all_reduce of 100 f32"), "{lines:?}");
}

#[test]
fn a_rank_that_gives_up_says_why() {
    let lines = lines(|world, _| drop(world.fail("reading data: no such file")));
    assert_eq!(
        lines,
        ["rank 2 failed: reading data: no such file"; 2]
            .map(String::from)
            .into_iter()
            .chain(["well".to_string()])
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_panic_of_a_rank_fails_the_others() {
    let lines = lines(|world, _| {
        world.recorder().set_phase("forward");
        Failed::new("a panic, silently").raise();
    });
    assert_eq!(lines[0], "rank 2 panicked, while: forward");
    assert_eq!(lines[1], lines[0]);
}

/// A rank that unwinds with a collective on its queue does not wait for it.
#[test]
fn a_begun_collective_does_not_hold_a_failing_rank() {
    run_to_end("every rank", move || {
        on_threads(threads::world(2), |world: World| {
            let rank = world.rank();
            let end = catch(move || {
                let group = world.group("all", &[0, 1]);
                let x = Numbers::f32(vec![1.0; 100]);
                if rank == 0 {
                    let _pending = group.begin(crate::Collective::AllReduce(x.tensor()));
                    Failed::new("given up").raise();
                }
                let y = Numbers::f32(vec![1.0; 100]);
                group.recv(0, y.tensor());
            });
            assert!(end.is_err());
        })
    });
}
