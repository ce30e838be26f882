//! Widths of self-attention.

use super::{Fused, div_exact};

/// Attention heads, of the model or of a rank's share. The only place that computes their widths.
///
/// A row of the fused matrix qkv holds, for each key/value head, its query heads, then the key,
/// then the value (Megatron's order). A share of whole heads is a contiguous range of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub query: usize,
    /// Key/value heads; each serves `query / kv` query heads.
    pub kv: usize,
    /// Columns per head.
    pub dim: usize,
}

/// Part of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    Query,
    Key,
    Value,
}

impl Heads {
    /// Columns of all queries, and of attention's output.
    pub fn query_width(self) -> usize {
        self.query * self.dim
    }

    /// Columns of a fused row of queries, keys and values.
    pub fn qkv_width(self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }

    /// Interleaving of queries, keys and values in a fused row: all queries of one key, the key,
    /// the value.
    pub fn fused(self) -> Fused {
        Fused::new([self.query / self.kv * self.dim, self.dim, self.dim])
    }

    /// Heads of one of `ranks` tensor-parallel ranks.
    pub fn share(self, ranks: usize) -> Heads {
        let [query, kv] = [self.query, self.kv].map(|heads| div_exact(heads, ranks));
        Heads { query, kv, ..self }
    }

    /// First column, in a fused row, of query head `head`, or of its key or value.
    pub fn column(self, head: usize, which: Qkv) -> usize {
        let serves = self.query / self.kv;
        let first = head / serves * (serves + 2);
        let number = match which {
            Qkv::Query => first + head % serves,
            Qkv::Key => first + serves,
            Qkv::Value => first + serves + 1,
        };
        number * self.dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_fused_row_are_each_used_once_and_a_share_is_contiguous() {
        for (query, kv) in [(4, 4), (8, 2), (6, 1)] {
            let heads = Heads { query, kv, dim: 5 };
            let mut columns: Vec<usize> = (0..query).map(|h| heads.column(h, Qkv::Query)).collect();
            for which in [Qkv::Key, Qkv::Value] {
                columns.extend(
                    (0..query)
                        .step_by(query / kv)
                        .map(|h| heads.column(h, which)),
                );
            }
            columns.sort();
            let all: Vec<usize> = (0..heads.qkv_width()).step_by(5).collect();
            assert_eq!(columns, all, "{heads:?}");
            for head in 0..query {
                let of = |which| {
                    heads
                        .fused()
                        .matrix_of(heads.column(head, which) + heads.dim - 1)
                };
                assert_eq!([Qkv::Query, Qkv::Key, Qkv::Value].map(of), [0, 1, 2], "{heads:?}");
            }
            let share = heads.share(kv);
            let second = heads.column(share.query % query, Qkv::Query);
            assert_eq!(second, share.qkv_width() % heads.qkv_width(), "{heads:?}");
        }
    }
}
