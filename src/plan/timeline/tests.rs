use super::*;
use crate::schedule::{
    PipelineRank, Round, breadth_first, forwards, gpipe, interleaved, one_f_one_b,
    with_async_messages, with_early_messages, with_messages, with_slots,
};
use std::collections::HashMap;

/// Orders of all ranks, with exchanged messages.
fn orders(
    ranks: usize,
    chunks: usize,
    order: impl Fn(PipelineRank) -> Vec<Round>,
) -> Vec<Vec<Action>> {
    let pipeline = (0..ranks).map(|rank| PipelineRank { rank, ranks, chunks });
    pipeline
        .map(|pp| with_slots(with_messages(pp, &order(pp)), chunks).0)
        .collect()
}

/// Breadth-first orders of all ranks.
fn breadth_first_orders(ranks: usize, chunks: usize, micros: usize) -> Vec<Vec<Action>> {
    let pipeline = (0..ranks).map(|rank| PipelineRank { rank, ranks, chunks });
    let early = micros.saturating_sub(ranks);
    pipeline
        .map(|pp| with_early_messages(pp, &breadth_first(pp, micros), early))
        .map(|actions| with_slots(actions, chunks).0)
        .collect()
}

/// Orders of all ranks, with asynchronous messages.
fn begun(
    ranks: usize,
    chunks: usize,
    order: impl Fn(PipelineRank) -> Vec<Round>,
) -> Vec<Vec<Action>> {
    let pipeline = (0..ranks).map(|rank| PipelineRank { rank, ranks, chunks });
    pipeline
        .map(|pp| with_slots(with_async_messages(pp, &order(pp)), chunks).0)
        .collect()
}

/// Costs with backward twice as long as forward. A rank's share of a micro-batch takes 3.
fn costs(stages: usize, chunks: usize) -> Costs {
    let each = |time: f64| vec![time / chunks as f64; stages];
    Costs { forward: each(1.0), backward: each(2.0), message: 0.0 }
}

fn run(ranks: usize, chunks: usize, order: impl Fn(PipelineRank) -> Vec<Round>) -> Timeline {
    let orders = orders(ranks, chunks, order);
    simulate(&orders, &costs(ranks * chunks, chunks)).unwrap_or_else(|stuck| panic!("{stuck}"))
}

#[test]
fn no_schedule_deadlocks() {
    for ranks in 1..6 {
        for micros in 1..12 {
            run(ranks, 1, |pp| one_f_one_b(pp, micros));
            run(ranks, 1, |_| gpipe(micros));
            for chunks in 1..4 {
                run(ranks, chunks, |pp| forwards(pp, micros));
                for message in [0.0, 0.5] {
                    let costs = Costs { message, ..costs(ranks * chunks, chunks) };
                    let orders = breadth_first_orders(ranks, chunks, micros);
                    simulate(&orders, &costs).unwrap_or_else(|stuck| panic!("{stuck}"));
                }
                if ranks > 1 {
                    run(ranks, chunks, |pp| interleaved(pp, micros * ranks));
                    let costs = Costs { message: 0.5, ..costs(ranks * chunks, chunks) };
                    let orders = begun(ranks, chunks, |pp| interleaved(pp, micros * ranks));
                    simulate(&orders, &costs).unwrap_or_else(|stuck| panic!("{stuck}"));
                }
            }
        }
    }
}

/// A GPU may run operations strictly one after the other, each blocking until its peer arrives.
/// NCCL guarantees progress only for programs that finish under this condition. Exchanged messages
/// do. Asynchronous ones need streams that progress independently, which no GPU guarantees.
#[test]
fn exchanged_messages_need_no_independent_streams() {
    for (ranks, chunks) in [(2, 2), (4, 2), (4, 3), (8, 4), (12, 2)] {
        let order = |pp: PipelineRank| interleaved(pp, 2 * ranks);
        let costs = costs(ranks * chunks, chunks);
        let finishes = |orders: Vec<Vec<Action>>| {
            let orders: Vec<_> = orders
                .into_iter()
                .map(|order| -> Vec<Action> {
                    order
                        .into_iter()
                        .flat_map(|action| match action {
                            Action::Begin(side, pass) => vec![action, Action::Await(side, pass)],
                            Action::Await(..) => vec![],
                            _ => vec![action],
                        })
                        .collect()
                })
                .collect();
            simulate(&orders, &costs).is_ok()
        };
        assert!(finishes(orders(ranks, chunks, order)), "{ranks} x {chunks}");
        assert!(!finishes(begun(ranks, chunks, order)), "{ranks} x {chunks}");
    }
}

#[test]
fn a_deadlock_is_found() {
    let stuck = simulate(
        &orders(2, 1, |pp: PipelineRank| match pp.rank {
            0 => one_f_one_b(PipelineRank { rank: 1, ..pp }, 2),
            _ => gpipe(2),
        }),
        &costs(2, 1),
    )
    .unwrap_err();
    assert_eq!(stuck.waiting.len(), 2, "{stuck}");
    let mut late = begun(2, 2, |pp| interleaved(pp, 2));
    // Rank 1 sends last what rank 0 receives first.
    let is_send = |action: &&Action| matches!(action, Action::Begin(Side::SendDx, _));
    let sends: Vec<Action> = late[1].iter().filter(is_send).copied().collect();
    late[1].retain(|action| !is_send(&action));
    late[1].extend(sends);
    late[1].retain(|action| !matches!(action, Action::Await(Side::SendDx, _)));
    let stuck = simulate(&late, &costs(4, 2)).unwrap_err();
    assert_eq!(stuck.waiting.len(), 2, "{stuck}");
}

/// Narayanan et al. 2021, § 2.2: the bubble is (p − 1) / m of the time of m micro-batches on p
/// ranks; v chunks divide it by v.
#[test]
fn bubbles_are_the_published_ones() {
    for (ranks, micros) in [(2, 2), (2, 8), (4, 4), (4, 8), (4, 16), (8, 32)] {
        let p = ranks as f64;
        let m = micros as f64;
        let close = |end: f64, chunks: f64, what: &str| {
            let expected = 3.0 * (m + (p - 1.0) / chunks);
            assert!((end - expected).abs() < 1e-9, "{what} {p} × {m}: {end}, not {expected}");
        };
        close(run(ranks, 1, |pp| one_f_one_b(pp, micros)).end(), 1.0, "1f1b");
        close(run(ranks, 1, |_| gpipe(micros)).end(), 1.0, "gpipe");
        for chunks in [2, 3] {
            let end = run(ranks, chunks, |pp| interleaved(pp, micros)).end();
            close(end, chunks as f64, "interleaved");
            let orders = breadth_first_orders(ranks, chunks, micros);
            let end = simulate(&orders, &costs(ranks * chunks, chunks))
                .unwrap()
                .end();
            close(end, chunks as f64, "breadth-first");
        }
    }
}

/// With fewer micro-batches than ranks, each chunk after the first waits for the first micro-batch to come
/// around the ring: (p - m) / v of a micro-batch's time. The number of micro-batches need not be a multiple
/// of the ranks.
#[test]
fn a_breadth_first_order_takes_any_number_of_micro_batches() {
    for (ranks, micros) in [(2, 1), (4, 1), (4, 3), (4, 4), (4, 5), (4, 7), (3, 8)] {
        for chunks in [2, 3, 4] {
            let orders = breadth_first_orders(ranks, chunks, micros);
            let end = simulate(&orders, &costs(ranks * chunks, chunks))
                .unwrap()
                .end();
            let [p, v, m] = [ranks, chunks, micros].map(|n| n as f64);
            let expected = 3.0 * (m + ((p - 1.0) + (v - 1.0) * (p - m).max(0.0)) / v);
            assert!((end - expected).abs() < 1e-9, "{p} × {v}, {m}: {end}, not {expected}");
        }
    }
}

/// Messages exchanged in the order of the passes would wait for each other.
#[test]
fn breadth_first_messages_are_received_early() {
    let late = orders(2, 2, |pp| breadth_first(pp, 4));
    assert!(simulate(&late, &costs(4, 2)).is_err());
}

#[test]
fn a_drawing_shows_all() {
    let drawn = draw(&run(2, 1, |pp| one_f_one_b(pp, 3)), 48);
    let expected = [
        "  0 │0   1   ········[0     ]2   [1     ]····[2     ]│",
        "  1 │····0   [0     ]1   [1     ]2   [2     ]········│",
        "bubble 25.0 %",
    ];
    assert!(drawn.lines().eq(expected), "\n{drawn}");
}

/// A search over grids of hundreds of ranks simulates thousands of these.
#[test]
fn a_long_play_has_all_its_spans() {
    let timeline = run(16, 2, |pp| interleaved(pp, 256));
    assert!(
        timeline
            .ranks
            .iter()
            .all(|intervals| intervals.len() == 4 * 256)
    );
    assert!(
        timeline
            .ranks
            .iter()
            .flatten()
            .all(|interval| interval.end > interval.start)
    );
}

/// Seconds that messages of 0.1 add to a step of 12 ranks: exchanged between passes, asynchronous,
/// and ideal. Ideal messages leave as soon as their pass ends, are received at any time, and delay
/// no others. In 1F1B the next pass waits for a returning micro-batch: its way to the last stage
/// and back is equally long either way, except for one message of 2 · 12. An interleaved order has
/// twice as many micro-batches in flight, and its asynchronous messages are as good as ideal.
#[test]
fn only_interleaved_messages_have_anything_to_hide_behind() {
    let seconds = |chunks: usize, order: &dyn Fn(PipelineRank) -> Vec<Round>| {
        let exchanged = orders(12, chunks, order);
        let free = costs(12 * chunks, chunks);
        let costs = Costs { message: 0.1, ..free.clone() };
        let without = simulate(&exchanged, &free).unwrap().end();
        let begun = begun(12, chunks, order);
        assert_eq!(simulate(&begun, &free).unwrap().end(), without);
        let ends = [&exchanged, &begun].map(|orders| simulate(orders, &costs).unwrap().end());
        [ends[0], ends[1], ends_beside(&exchanged, &costs)].map(|end| end - without)
    };
    let of_1f1b = seconds(1, &|pp| one_f_one_b(pp, 132));
    let of_chunks = seconds(2, &|pp| interleaved(pp, 132));
    for (seconds, expected) in [(of_1f1b, [28.3, 26.2, 26.2]), (of_chunks, [29.7, 4.6, 4.6])] {
        for (seconds, expected) in seconds.into_iter().zip(expected) {
            assert!((seconds - expected).abs() < 0.05, "{seconds}, not {expected}");
        }
    }
}

/// End time of the last rank with ideal messages.
fn ends_beside(orders: &[Vec<Action>], costs: &Costs) -> f64 {
    let ranks = orders.len();
    let stages = costs.forward.len();
    let mut at = vec![(0, 0.0f64); ranks];
    // Indexed by direction, micro-batch and virtual stage.
    let mut ends: HashMap<(bool, usize, usize), f64> = HashMap::new();
    while at
        .iter()
        .zip(orders)
        .any(|((next, _), order)| *next < order.len())
    {
        for (rank, order) in orders.iter().enumerate() {
            while let Some(action) = order.get(at[rank].0) {
                let Pass { micro, chunk, .. } = action.pass();
                let stage = chunk * ranks + rank;
                let (forward, needs, cost) = match action {
                    Action::Forward(_) => (true, stage.checked_sub(1), costs.forward[stage]),
                    Action::Backward(_) => {
                        (false, Some(stage + 1).filter(|s| *s < stages), costs.backward[stage])
                    }
                    _ => {
                        at[rank].0 += 1;
                        continue;
                    }
                };
                let there = needs.map_or(Some(0.0), |from| {
                    ends.get(&(forward, micro, from))
                        .map(|end| end + costs.message)
                });
                let Some(there) = there else { break };
                let end = at[rank].1.max(there) + cost;
                ends.insert((forward, micro, stage), end);
                at[rank] = (at[rank].0 + 1, end);
            }
        }
    }
    at.iter().map(|(_, clock)| *clock).fold(0.0, f64::max)
}
