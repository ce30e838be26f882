//! Two levels of replicas: a shard group of neighbours, which hold the parts of one copy of the weights,
//! and the copies, one rank of each shard group, which hold the same part.
//!
//! Shard groups of s ranks divide d replicas into d / s copies. Replica k has shard k mod s of copy k / s;
//! k / s is rounded down. A bucket is divided into s shards, and each shard into d / s pieces, one for each
//! replica to update. With one level, s is d, and a piece is a whole shard.
//!
//! The copies may also have equal states (classic HSDP: Zhao et al. 2023, section 3.2.2). Every replica then
//! updates its whole shard.

/// Place of a rank among the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Ranks of a shard group, and this rank's number in it.
    pub shards: usize,
    pub shard: usize,
    /// Copies of a shard, and this rank's number among them.
    pub copies: usize,
    pub copy: usize,
    /// Whether the copies have equal states. False with one copy.
    equal_states: bool,
}

impl Levels {
    /// Place of replica `rank` of `replicas`, in shard groups of `shards` ranks, which must divide them.
    pub fn new(replicas: usize, shards: usize, rank: usize) -> Levels {
        assert!(rank < replicas, "replica {rank} of {replicas}");
        let copies = base::div_exact(replicas, shards);
        let (shard, copy) = (rank % shards, rank / shards);
        Levels { shards, shard, copies, copy, equal_states: false }
    }

    /// The same place, where the copies have equal states or divide them.
    pub fn with_equal_states(self, equal: bool) -> Levels {
        Levels { equal_states: equal && self.copies > 1, ..self }
    }

    /// Place of replica `rank` with one level.
    pub fn one(replicas: usize, rank: usize) -> Levels {
        Levels::new(replicas, replicas, rank)
    }

    /// Place of another replica of the same levels.
    pub fn for_replica(self, rank: usize) -> Levels {
        Levels::new(self.replicas(), self.shards, rank).with_equal_states(self.equal_states)
    }

    /// Number of replicas.
    pub fn replicas(self) -> usize {
        self.shards * self.copies
    }

    /// Number of pieces of a bucket.
    pub fn pieces(self) -> usize {
        if self.equal_states { self.shards } else { self.replicas() }
    }

    /// Number of the piece that this rank updates, in the order of the bucket.
    pub fn piece(self) -> usize {
        if self.equal_states { self.shard } else { self.shard * self.copies + self.copy }
    }

    /// Whether the copies update different pieces of their shard.
    pub fn copies_divide_shard(self) -> bool {
        self.copies > 1 && !self.equal_states
    }

    /// Number of this rank's states among those that are equal; 0 if no others are.
    pub fn states_copy(self) -> usize {
        if self.equal_states { self.copy } else { 0 }
    }

    /// Members of this rank's shard group, out of the ranks of all replicas in order.
    pub fn shard_group(self, replicas: &[usize]) -> Vec<usize> {
        replicas[self.copy * self.shards..][..self.shards].to_vec()
    }

    /// Members that hold the same shard as this rank.
    pub fn copy_group(self, replicas: &[usize]) -> Vec<usize> {
        replicas
            .iter()
            .copied()
            .skip(self.shard)
            .step_by(self.shards)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_replica_has_one_piece_and_is_in_its_groups() {
        let ranks: Vec<usize> = (10..22).collect();
        for shards in [1, 2, 3, 4, 6, 12] {
            let mut pieces = vec![0; 12];
            let mut whole_shards = vec![0; shards];
            for rank in 0..12 {
                let levels = Levels::new(12, shards, rank);
                pieces[levels.piece()] += 1;
                assert_eq!(levels.piece() / levels.copies, levels.shard, "a piece of its shard");
                let equal = levels.with_equal_states(true);
                assert_eq!(equal.pieces(), shards);
                whole_shards[equal.piece()] += 1;
                assert_eq!(equal.for_replica(0).with_equal_states(true), equal.for_replica(0));
                assert_eq!(levels.shard_group(&ranks)[levels.shard], ranks[rank]);
                assert_eq!(levels.copy_group(&ranks)[levels.copy], ranks[rank]);
                assert_eq!(Levels::one(12, 3).for_replica(rank), Levels::one(12, rank));
            }
            assert_eq!(pieces, [1; 12], "{shards} ranks per shard group");
            assert_eq!(whole_shards, vec![12 / shards; shards], "each copy updates every shard");
        }
        assert_eq!(Levels::one(4, 3).with_equal_states(true), Levels::one(4, 3));
        assert_eq!(Levels::one(4, 3).piece(), 3);
        assert_eq!(Levels::new(4, 2, 1).shard_group(&[0, 2, 4, 6]), [0, 2]);
        assert_eq!(Levels::new(4, 2, 1).copy_group(&[0, 2, 4, 6]), [2, 6]);
    }
}
