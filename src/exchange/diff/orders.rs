//! Orders that programs give to the rows of a weight.

use crate::tensor_part::{Fused, Pairs, TensorPart, gates_values, queries_keys_values};
use base::Heads;
use model::Weight;

/// Rows of gptrain's weight in another order, with its description.
pub struct Order {
    pub name: &'static str,
    pub rows: Vec<usize>,
}

const PAIRS: &str = "RoPE pairs: neighbours in one, halves of a head in the other";
const KINDS: &str =
    "queries, keys and values: one kind after the other in one, by head in the other";
const KINDS_AND_PAIRS: &str = "queries, keys and values: one kind after the other in one, by head in \
     the other, and RoPE pairs";
const COLUMNS: &str = "queries, keys and values: column by column in one, by head in the other";
const EXCHANGED: &str = "queries, keys and values are exchanged";
const KEYS_VALUES: &str = "keys and values are exchanged";
const GATES: &str = "gates and values are exchanged";
const HALVES: &str = "gates and values: one after the other in one, in turns in the other";

/// Orders that a weight of so many rows may have in another program's files.
pub fn orders(weight: Weight, rows: usize, heads: Heads, gated: bool) -> Vec<Order> {
    match weight {
        Weight::QkvW | Weight::QkvB if rows == heads.qkv_width() => orders_of_heads(heads),
        Weight::QNorm | Weight::KNorm if rows == heads.dim && rows.is_multiple_of(2) => {
            vec![Order { name: PAIRS, rows: (0..rows).map(|row| neighbour(row, rows)).collect() }]
        }
        Weight::Fc1W | Weight::Fc1B if gated && rows.is_multiple_of(2) => vec![
            Order { name: GATES, rows: (0..rows).map(|row| row ^ 1).collect() },
            Order { name: HALVES, rows: gates_values(0..rows).concat() },
        ],
        _ => Vec::new(),
    }
}

fn orders_of_heads(heads: Heads) -> Vec<Order> {
    let fused = |order| {
        TensorPart::for_fused(heads, 1, [0, 1], order)
            .rows()
            .to_vec()
    };
    let serves = heads.query / heads.kv;
    let mut orders = vec![
        Order { name: PAIRS, rows: fused(Fused::Heads(Pairs::Neighbours)) },
        Order { name: KINDS, rows: queries_keys_values(heads, Pairs::Halves).concat() },
        Order {
            name: KINDS_AND_PAIRS,
            rows: queries_keys_values(heads, Pairs::Neighbours).concat(),
        },
    ];
    if serves == 1 {
        orders.push(Order { name: COLUMNS, rows: fused(Fused::Columns) });
    }
    // By the places of queries, key and value in a group of heads: its last two are key and value.
    let group = serves + 2;
    let mut exchange = |name, places: Vec<usize>| {
        let rows = (0..heads.qkv_width()).map(|row| {
            let head = row / heads.dim;
            (head / group * group + places[head % group]) * heads.dim + row % heads.dim
        });
        orders.push(Order { name, rows: rows.collect() });
    };
    let mut places: Vec<usize> = (0..group).collect();
    places.swap(group - 2, group - 1);
    exchange(KEYS_VALUES, places);
    if serves == 1 {
        for places in [[1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            exchange(EXCHANGED, places.to_vec());
        }
    }
    orders
}

/// Row of a head in halves, of a row among neighbours.
fn neighbour(row: usize, dim: usize) -> usize {
    row % 2 * (dim / 2) + row / 2
}
