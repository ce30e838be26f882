//! Deterministic greedy assignment of work to ranks: longest first, each to the least loaded rank
//! (longest processing time first: Graham 1969). Takes at most 4/3 of the optimal time.

/// Index of a piece of work, and the rank that executes it.
pub type Owned = (usize, usize);

/// Rounds of at most one piece per rank: every rank's longest, then its next.
pub fn rounds(costs: &[u64], ranks: usize) -> Vec<Vec<Owned>> {
    let mut longest_first: Vec<usize> = (0..costs.len()).collect();
    longest_first.sort_by_key(|piece| std::cmp::Reverse(costs[*piece]));
    let mut busy = vec![(0u64, 0usize); ranks];
    let mut rounds: Vec<Vec<Owned>> = Vec::new();
    for piece in longest_first {
        let least = (0..ranks).min_by_key(|rank| busy[*rank].0).expect("a rank");
        let (cost, pieces) = &mut busy[least];
        if *pieces == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[*pieces].push((piece, least));
        *cost += costs[piece];
        *pieces += 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_shared_evenly() {
        // Twelve GPT blocks: qkv, projection, and the two matrices of the feed-forward layer.
        let costs: Vec<u64> = (0..12).flat_map(|_| [30, 10, 22, 22]).collect();
        for ranks in [1, 2, 3, 4, 8, 16] {
            let rounds = rounds(&costs, ranks);
            let mut busy = vec![0; ranks];
            let mut seen = vec![0; costs.len()];
            for round in &rounds {
                let mut owners: Vec<usize> = round.iter().map(|(_, owner)| *owner).collect();
                owners.sort_unstable();
                owners.dedup();
                assert_eq!(owners.len(), round.len(), "one piece for each rank of a round");
                for (piece, owner) in round {
                    busy[*owner] += costs[*piece];
                    seen[*piece] += 1;
                }
            }
            assert_eq!(seen, vec![1; costs.len()], "each piece once");
            let most = busy.iter().max().unwrap();
            let mean = 1008 / ranks as u64;
            assert!(*most <= mean + 30, "{ranks} ranks: {busy:?}");
        }
    }

    #[test]
    fn more_ranks_than_work_leave_some_idle() {
        assert_eq!(rounds(&[1, 3], 4), [[(1, 0), (0, 1)]]);
        assert_eq!(rounds(&[], 2), Vec::<Vec<Owned>>::new());
    }
}
