use super::*;
use crate::schedule::{
    PipelineRank, Round, forwards, gpipe, interleaved, one_f_one_b, with_messages, with_slots,
};

/// All ranks' orders, with messages.
fn orders(
    ranks: usize,
    chunks: usize,
    order: impl Fn(PipelineRank) -> Vec<Round>,
) -> Vec<Vec<Action>> {
    let pipeline = (0..ranks).map(|rank| PipelineRank { rank, ranks, chunks });
    pipeline.map(|pp| with_slots(with_messages(pp, &order(pp)), chunks).0).collect()
}

/// Backward twice as long as forward; a rank's share of a micro-batch takes 3.
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
                if ranks > 1 {
                    run(ranks, chunks, |pp| interleaved(pp, micros * ranks));
                }
            }
        }
    }
}

#[test]
fn a_deadlock_is_found() {
    let crossed = |pp: PipelineRank| match pp.rank {
        0 => one_f_one_b(PipelineRank { rank: 1, ..pp }, 2),
        _ => gpipe(2),
    };
    let stuck = simulate(&orders(2, 1, crossed), &costs(2, 1)).unwrap_err();
    assert_eq!(stuck.waiting.len(), 2, "{stuck}");
}

/// Narayanan et al. 2021, § 2.2: of the time, (p − 1) / m is lost beside the work of m
/// micro-batches on p ranks; v chunks divide that by v.
#[test]
fn bubbles_are_the_published_ones() {
    for (ranks, micros) in [(2, 2), (2, 8), (4, 4), (4, 8), (4, 16), (8, 32)] {
        let (p, m) = (ranks as f64, micros as f64);
        let close = |end: f64, chunks: f64, what: &str| {
            let expected = 3.0 * (m + (p - 1.0) / chunks);
            assert!((end - expected).abs() < 1e-9, "{what} {p} × {m}: {end}, not {expected}");
        };
        close(run(ranks, 1, |pp| one_f_one_b(pp, micros)).end(), 1.0, "1f1b");
        close(run(ranks, 1, |_| gpipe(micros)).end(), 1.0, "gpipe");
        for chunks in [2, 3] {
            let end = run(ranks, chunks, |pp| interleaved(pp, micros)).end();
            close(end, chunks as f64, "interleaved");
        }
    }
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

/// A search over grids of hundreds of ranks plays thousands of these.
#[test]
fn a_long_play_has_all_its_spans() {
    let timeline = run(16, 2, |pp| interleaved(pp, 256));
    assert!(timeline.ranks.iter().all(|intervals| intervals.len() == 4 * 256));
    assert!(timeline.ranks.iter().flatten().all(|interval| interval.end > interval.start));
}
