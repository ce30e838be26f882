//! Figures as tables, and the sentences about slow units.

use super::outliers::Findings;
use base::table::{Cell, Printout, Rows, Table};
use base::{Bytes, Count, Seconds};
use estimate::measured::{
    GroupSpeed, LATENCY_BYTES, Measured, PairSpeed, Product, RankSpeeds, Slow, SoakSpeed,
};
use plan::robust::median;
use std::collections::BTreeSet;

/// Fraction of a link's data sheet that messages usually reach. The network is slow below half of
/// it.
const USUAL_SHARE: f64 = 0.8;

/// Maximum number of units with a line each.
const LISTED: usize = 16;

/// Renders the figures.
pub fn printout(m: &Measured) -> Printout {
    let nodes: BTreeSet<&str> = m.ranks.iter().map(|rank| rank.node.as_str()).collect();
    let mut out = Printout::new(m);
    out.line(format!(
        "{} in {}: {}, {}; measured in {:.1} s\nrank 0: {}",
        m.manifest,
        m.precision.name(),
        Count(m.ranks.len() as u64).with_noun("rank"),
        Count(nodes.len() as u64).with_noun("node"),
        m.seconds,
        m.ranks[0].device
    ));
    out.table(compute(&m.ranks));
    out.table(groups(&m.groups));
    pairs(m, &mut out);
    if !m.soak.is_empty() {
        out.table(soak(&m.soak));
    }
    out.line("");
    for note in &m.notes {
        out.line(format!("note: {note}"));
    }
    for slow in &m.slow {
        out.line(format!("SLOW: {}: {}", slow.what, slow.text));
    }
    if m.slow.is_empty() {
        out.line("nothing is slow");
    }
    out
}

/// Speeds of each rank alone: a row per measurement, with its spread over the ranks.
fn compute(ranks: &[RankSpeeds]) -> Table {
    let mut rows = Vec::new();
    let mut row = |name: String, unit: &str, figure: &dyn Fn(&RankSpeeds) -> Option<f64>| {
        let figures: Vec<f64> = ranks.iter().filter_map(figure).collect();
        if !figures.is_empty() {
            let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
            let most = figures.iter().copied().fold(0.0, f64::max);
            let [least, middle, most] = [least, median(figures), most].map(cell);
            rows.push([name.into(), least, middle, most, unit.into()]);
        }
    };
    let first = &ranks[0];
    for (at, one) in first.products.iter().enumerate() {
        row(shape(one), "TFLOP/s", &|rank| rank.products.get(at).map(|one| one.tflops));
    }
    row(shape(&first.cube), "TFLOP/s", &|rank| Some(rank.cube.tflops));
    row("copy within the device".into(), "GB/s", &|rank| Some(rank.device_copy_gb_s));
    row("copy within the host".into(), "GB/s", &|rank| Some(rank.host_copy_gb_s));
    row("host to device".into(), "GB/s", &|rank| rank.upload_gb_s);
    row("device to host".into(), "GB/s", &|rank| rank.download_gb_s);
    let write = format!("file write ({})", first.file_access);
    row(write, "GB/s", &|rank| Some(rank.file_write_gb_s));
    row("file read".into(), "GB/s", &|rank| Some(rank.file_read_gb_s));
    let table = Table::from_cells(["", "slowest", "median", "fastest", ""], rows);
    table.titled("Speeds of a rank, at once on every rank")
}

/// For example "product qkv 2048 × 768 × 256".
fn shape(one: &Product) -> String {
    format!("product {} {} × {} × {}", one.name, one.m, one.n, one.k)
}

/// Three digits, or two for very small numbers.
pub fn number(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

fn cell(value: f64) -> Cell {
    Cell::new(value, number(value))
}

/// Speeds of groups: a row for each kind of group, op and size. Repeated names are left out.
fn groups(rows: &[GroupSpeed]) -> Table {
    let mut table = Vec::new();
    let mut previous = ("", "");
    for row in rows {
        let place = if row.in_node { "in a node" } else { "across nodes" };
        let size = Count(row.size as u64).with_noun("rank");
        let group = match previous.0 {
            same if same == row.group => String::new(),
            _ => format!("{}: {} of {size}, {place}", row.group, row.groups),
        };
        let op = if previous == (&*row.group, &*row.op) { "" } else { &row.op };
        let is_many = row.groups > 1 && row.bytes > LATENCY_BYTES;
        table.push([
            group.into(),
            op.into(),
            Cell::new(row.bytes, Bytes(row.bytes).to_string().replace(".0", "")),
            Cell::new(row.seconds, time(row.seconds)),
            cell(row.algbw_gb_s),
            cell(row.busbw_gb_s),
            if is_many { list_ranks(&row.slowest).into() } else { Cell::default() },
        ]);
        previous = (&row.group, &row.op);
    }
    let titles = ["", "", "size", "time", "algbw", "busbw", "slowest ranks"];
    Table::from_cells(titles, table).titled("Groups, all of a kind at once; bandwidths in GB/s")
}

/// Mean and worst window of each collective of a step.
fn soak(rows: &[SoakSpeed]) -> Table {
    let window = Seconds(rows[0].window_s);
    Rows::new(rows)
        .column("group", "group", |row| row.group.clone())
        .column("op", "op", |row| row.op.clone())
        .column("size", "bytes", |row| Cell::new(row.bytes, Bytes(row.bytes).to_string()))
        .column("mean", "busbw_gb_s", |row| cell(row.busbw_gb_s))
        .column("worst", "worst_busbw_gb_s", |row| cell(row.worst_busbw_gb_s))
        .text("of the mean", |row| Cell::percent(row.worst_busbw_gb_s / row.busbw_gb_s))
        .column("from", "worst_from_s", |row| {
            Cell::new(row.worst_from_s, Seconds(row.worst_from_s).to_string())
        })
        .text("ranks", |row| list_ranks(&row.slowest))
        .titled(format!("Soak: busbw in GB/s, the mean and the worst {window}"))
}

/// For example "17.3 µs", "2.15 ms".
fn time(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{} s", number(seconds)),
        1e-3.. => format!("{} ms", number(seconds * 1e3)),
        _ => format!("{} µs", number(seconds * 1e6)),
    }
}

/// For example "0, 8, 16 …".
fn list_ranks(ranks: &[usize]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(usize::to_string).collect();
    let more = if ranks.len() > SHOWN { " …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Gb/s, the unit of networks.
fn gbits(gb_s: f64) -> f64 {
    8.0 * gb_s
}

/// Adds all pairs together; and the best and worst pair of each unit if there are few units.
fn pairs(m: &Measured, out: &mut Printout) {
    let by_rate = |a: &&PairSpeed, b: &&PairSpeed| a.gb_s.total_cmp(&b.gb_s);
    let worst = m.pairs.iter().min_by(by_rate);
    let best = m.pairs.iter().max_by(by_rate);
    let (Some(worst), Some(best)) = (worst, best) else { return };
    let usual = median(m.pairs.iter().map(|pair| pair.gb_s));
    let [least, usual, most] = [worst.gb_s, usual, best.gb_s].map(|rate| number(gbits(rate)));
    let title = format!(
        "Pairs of {}, Gb/s both ways at once: slowest {least}, median {usual}, fastest {most}",
        m.units
    );
    let mut units: Vec<&str> = Vec::new();
    for unit in m
        .pairs
        .iter()
        .flat_map(|pair| [pair.a.as_str(), pair.b.as_str()])
    {
        if !units.contains(&unit) {
            units.push(unit);
        }
    }
    if units.len() < 3 || units.len() > LISTED {
        out.line(format!("\n{title}"));
        return;
    }
    let mut rows = Vec::new();
    for unit in units {
        let own = || {
            m.pairs
                .iter()
                .filter(|pair| pair.a == unit || pair.b == unit)
        };
        let cells = |pair: Option<&PairSpeed>| {
            let pair = pair.expect("it was in this pair");
            let with = if pair.a == unit { &pair.b } else { &pair.a };
            (cell(gbits(pair.gb_s)), with.clone().into())
        };
        let (best, best_with) = cells(own().max_by(by_rate));
        let (worst, worst_with) = cells(own().min_by(by_rate));
        rows.push([unit.into(), best, best_with, worst, worst_with]);
    }
    out.table(Table::from_cells(["", "best", "with", "worst", "with"], rows).titled(title));
}

/// Sentence about a rank with slow products.
pub fn slow_rank(ranks: &[RankSpeeds], rank: usize) -> Slow {
    let usual = median(ranks.iter().map(RankSpeeds::block_tflops));
    let one = &ranks[rank];
    let rate = ranks[rank].block_tflops();
    let who = format!("rank {} (node {}, {})", one.rank, one.node, one.place);
    let share = rate / usual;
    let text = format!(
        "{who}: {} of {} TFLOP/s in a block's products, {:.0} %; the second figure is the median",
        number(rate),
        number(usual),
        100.0 * share
    );
    Slow { what: "compute".into(), who: vec![who], share, text }
}

/// Sentences about slow units and links. `sheet` is GB/s of a unit in the hardware table, if the
/// measured machine has that hardware; a network that is slow as a whole is then also reported.
pub fn slow_pairs(names: &[String], kind: &str, found: &Findings, sheet: Option<f64>) -> Vec<Slow> {
    let what = if kind == "nodes" { "node" } else { "rank" };
    let slow = |what: &str, who: Vec<String>, rate: f64, usual: f64| {
        let expected = sheet.unwrap_or(usual);
        let share = rate / expected;
        let than = match sheet {
            Some(_) => format!("{:.0} % is usual", 100.0 * USUAL_SHARE),
            None => "the second figure is the median".to_string(),
        };
        let text = format!(
            "{}: {} of {} Gb/s, {:.0} %; {than}",
            who.join("–"),
            number(gbits(rate)),
            number(gbits(expected)),
            100.0 * share
        );
        Slow { what: what.into(), who, share, text }
    };
    let mut all: Vec<Slow> = found
        .units
        .iter()
        .map(|(unit, best)| slow(what, vec![names[*unit].clone()], *best, found.usual_best))
        .collect();
    for link in &found.links {
        let ends = vec![names[link.a].clone(), names[link.b].clone()];
        all.push(slow("link", ends, link.rate, found.usual_pair));
    }
    if sheet.is_some_and(|sheet| found.usual_best < 0.5 * USUAL_SHARE * sheet) {
        let who = vec![format!("the median of {} {kind}", names.len())];
        all.push(slow("network", who, found.usual_best, found.usual_best));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::outliers::Pair;
    use super::*;

    #[test]
    fn what_is_slow_is_told_by_the_data_sheet_or_by_the_median() {
        let names: Vec<String> = (5..9).map(|n| format!("n{n:02}")).collect();
        let found = Findings {
            units: vec![(2, 135.0 / 8.0)],
            links: vec![Pair { a: 0, b: 1, rate: 10.0 }],
            usual_best: 40.0,
            usual_pair: 39.0,
            undecided: false,
        };
        let texts = |sheet| -> Vec<String> {
            let slow = slow_pairs(&names, "nodes", &found, sheet);
            slow.into_iter()
                .map(|slow| format!("{}: {}", slow.what, slow.text))
                .collect()
        };
        let sheet = [
            "node: n07: 135 of 400 Gb/s, 34 %; 80 % is usual",
            "link: n05–n06: 80.0 of 400 Gb/s, 20 %; 80 % is usual",
        ];
        assert_eq!(texts(Some(50.0)), sheet);
        let relative = [
            "node: n07: 135 of 320 Gb/s, 42 %; the second figure is the median",
            "link: n05–n06: 80.0 of 312 Gb/s, 26 %; the second figure is the median",
        ];
        assert_eq!(texts(None), relative);
        let network = "network: the median of 4 nodes: 320 of 1600 Gb/s, 20 %; 80 % is usual";
        assert_eq!(texts(Some(200.0))[2], network);
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [312.4, 31.24, 3.124, 0.03124, 0.00003124].map(number);
        assert_eq!(figures, ["312", "31.2", "3.12", "0.031", "3.1e-5"]);
        assert_eq!([2.5e-5, 2.5e-3, 2.5].map(time), ["25.0 µs", "2.50 ms", "2.50 s"]);
    }
}
