//! Scores of public runs from which nothing is learned: of clusters as they are found, and after some of
//! their rows were measured.

use super::{Named, Scored, memory_errors, predict_others, score_all, time_errors};
use crate::predictor::Predictor;
use crate::rows::{self, Row};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Numbers of a cluster's own rows that are added before its others are predicted.
const OWN: [usize; 2] = [2, 5];

/// Program of which a constant, the time of hops between nodes, was set by the rows here.
const ZERO3: &str = "deepspeed-zero3";

/// Errors of time, without own rows and after some, and of memory.
pub fn errors() -> Vec<Named> {
    let scored = score_all(Predictor::shipped(), rows::held());
    let clusters: Vec<(Cluster<'_>, Vec<&Row>)> = clusters(rows::held()).into_iter().collect();
    let time = |what: &str, pick: &dyn Fn(&Row) -> bool| {
        (format!("time, {what}"), time_errors(&scored, pick))
    };
    let memory = |what: &str, pick: &dyn Fn(&Row) -> bool| {
        (format!("memory, {what}"), memory_errors(&scored, pick))
    };
    let sets_hops = |row: &Row| cluster(row).is_some_and(|(_, program, _)| program == ZERO3);
    let mut named = vec![
        time("no own row", &|_| true),
        time(&format!("no own row, without {ZERO3}"), &|row| !sets_hops(row)),
    ];
    base::threads::init_rayon();
    for count in OWN {
        let after: Vec<Scored> = clusters
            .par_iter()
            .filter(|(_, rows)| rows.len() > count)
            .flat_map_iter(|(_, rows)| predict_others(Predictor::shipped(), rows, count))
            .collect();
        named.push((format!("time, after {count} own rows"), time_errors(&after, &|_| true)));
    }
    let names = clusters.iter().map(|(of_rows, _)| {
        let (source, program, machine) = of_rows;
        (*of_rows, format!("{source}: {program}, {machine}"))
    });
    let names: Vec<(Cluster<'_>, String)> = names.collect();
    let each = names.iter();
    named.extend(each.map(|(of_rows, name)| time(name, &|row| cluster(row) == Some(*of_rows))));
    named.push(memory("all", &|_| true));
    let each = names.iter();
    named.extend(each.map(|(of_rows, name)| memory(name, &|row| cluster(row) == Some(*of_rows))));
    named.retain(|(_, errors)| errors.rows > 0);
    named
}

/// Source, program and machine.
type Cluster<'a> = (&'a str, &'static str, &'static str);

fn cluster(row: &Row) -> Option<Cluster<'_>> {
    let setup = row.setup.as_ref().ok()?;
    Some((&row.source, setup.program.name(), &setup.hardware.name))
}

fn clusters(rows: &[Row]) -> BTreeMap<Cluster<'_>, Vec<&Row>> {
    let mut clusters: BTreeMap<Cluster<'_>, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        if let Some(cluster) = cluster(row) {
            clusters.entry(cluster).or_default().push(row);
        }
    }
    clusters
}

/// A held row that is learned from too would be scored by itself.
#[test]
fn held_rows_are_not_learned_from() {
    let configuration = |row: &Row| {
        let setup = row
            .setup
            .as_ref()
            .unwrap_or_else(|why| panic!("{}: {why}", row.id));
        let (_, program, machine) = cluster(row).expect("a setup");
        let (m, t) = (&setup.model, &setup.topology);
        let shape = [m.layers, m.hidden, m.seq_len, m.vocab, setup.micro, setup.global];
        let cut = [t.tensor, t.pipeline, t.data, t.chunks, t.zero.into(), t.recompute as usize];
        (program, machine, shape, cut, format!("{:?}", setup.numbers))
    };
    let learned = rows::shipped();
    for row in rows::held() {
        let twin = learned
            .iter()
            .find(|other| other.id == row.id || configuration(other) == configuration(row));
        assert!(twin.is_none(), "{} is learned from as {twin:?}", row.id);
        assert!(row.problems().is_empty(), "{}: {:?}", row.id, row.problems());
    }
    assert_eq!(rows::held().len(), 19);
}
