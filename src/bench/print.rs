//! Figures as a table of at most 100 columns, and the sentences about slow units.

use super::outliers::Findings;
use base::Bytes;
use estimate::measured::{
    GroupSpeed, LATENCY_BYTES, Measured, PairSpeed, Product, RankSpeeds, Slow,
};
use plan::robust::median;
use std::fmt::Write;

/// Fraction of a link's data sheet that messages usually reach. The network is slow below half of
/// it.
const USUAL_SHARE: f64 = 0.8;

/// Maximum number of units with a line each.
const LISTED: usize = 16;

/// Renders the whole table.
pub fn text(m: &Measured) -> String {
    let nodes: std::collections::BTreeSet<&str> = m.ranks.iter().map(|r| r.node.as_str()).collect();
    let mut out = format!(
        "{} in {}: {}, {}; measured in {:.1} s\nrank 0: {}\n",
        m.manifest,
        m.precision.name(),
        counted(m.ranks.len(), "rank"),
        counted(nodes.len(), "node"),
        m.seconds,
        m.ranks[0].device
    );
    out += &compute(&m.ranks);
    out += &groups(&m.groups);
    out += &pairs(m);
    out.push('\n');
    for note in &m.notes {
        let _ = writeln!(out, "note: {note}");
    }
    for slow in &m.slow {
        let _ = writeln!(out, "SLOW: {}: {}", slow.what, slow.text);
    }
    if m.slow.is_empty() {
        out += "nothing is slow\n";
    }
    out
}

/// For example "1 rank", "8 ranks".
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Speeds of each rank alone: a line per measurement, with its spread over the ranks.
fn compute(ranks: &[RankSpeeds]) -> String {
    let mut out = format!(
        "\n{:<44}{:>9} {:>9} {:>9}  at once on every rank\n",
        "Of a rank", "slowest", "median", "fastest"
    );
    let mut line = |name: &str, unit: &str, figure: &dyn Fn(&RankSpeeds) -> Option<f64>| {
        let figures: Vec<f64> = ranks.iter().filter_map(figure).collect();
        if !figures.is_empty() {
            let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
            let most = figures.iter().copied().fold(0.0, f64::max);
            let figures = [least, median(figures), most].map(number);
            let [least, middle, most] = figures;
            let _ = writeln!(out, "{name:<44}{least:>9} {middle:>9} {most:>9}  {unit}");
        }
    };
    for (at, one) in ranks[0].products.iter().enumerate() {
        let name = shape(one);
        line(&name, "TFLOP/s", &|rank| rank.products.get(at).map(|one| one.tflops));
    }
    line(&shape(&ranks[0].cube), "TFLOP/s", &|rank| Some(rank.cube.tflops));
    line("copy within the device", "GB/s", &|rank| Some(rank.device_copy_gb_s));
    line("copy within the host", "GB/s", &|rank| Some(rank.host_copy_gb_s));
    line("host to device", "GB/s", &|rank| rank.upload_gb_s);
    line("device to host", "GB/s", &|rank| rank.download_gb_s);
    let access = &ranks[0].file_access;
    line(&format!("file write ({access})"), "GB/s", &|rank| Some(rank.file_write_gb_s));
    line("file read", "GB/s", &|rank| Some(rank.file_read_gb_s));
    out
}

/// For example "product qkv 2048 × 768 × 256".
fn shape(one: &Product) -> String {
    format!("product {} {} × {} × {}", one.name, one.m, one.n, one.k)
}

/// Three digits, or two for very small numbers.
fn number(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// One line for each kind of group, followed by one for each op and size.
fn groups(rows: &[GroupSpeed]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\n{:<34}{:>9} {:>10} {:>9} {:>9}  slowest\n{:>64} {:>9}  ranks\n",
        "Groups, all of a kind at once", "size", "time", "algbw", "busbw", "GB/s", "GB/s"
    );
    let mut previous = ("", "");
    for row in rows {
        if previous.0 != row.group {
            let place = if row.in_node { "in a node" } else { "across nodes" };
            let size = counted(row.size, "rank");
            let _ = writeln!(out, "{}: {} of {size}, {place}", row.group, row.groups);
        }
        let op = if previous == (&*row.group, &*row.op) { "" } else { &row.op };
        let many = row.groups > 1 && row.bytes > LATENCY_BYTES;
        let line = format!(
            "  {op:<32}{:>9} {:>10} {:>9} {:>9}  {}",
            Bytes(row.bytes).to_string().replace(".0", ""),
            time(row.seconds),
            number(row.algbw_gb_s),
            number(row.busbw_gb_s),
            if many { some(&row.slowest) } else { String::new() }
        );
        let _ = writeln!(out, "{}", line.trim_end());
        previous = (&row.group, &row.op);
    }
    out
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
fn some(ranks: &[usize]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(usize::to_string).collect();
    let more = if ranks.len() > SHOWN { " …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Gb/s, the unit of networks.
fn gbits(gb_s: f64) -> f64 {
    8.0 * gb_s
}

/// All pairs together; and the best and worst pair of each unit if there are few units.
fn pairs(m: &Measured) -> String {
    let by_rate = |a: &&PairSpeed, b: &&PairSpeed| a.gb_s.total_cmp(&b.gb_s);
    let (Some(worst), Some(best)) =
        (m.pairs.iter().min_by(by_rate), m.pairs.iter().max_by(by_rate))
    else {
        return String::new();
    };
    let usual = median(m.pairs.iter().map(|pair| pair.gb_s));
    let [least, usual, most] = [worst.gb_s, usual, best.gb_s].map(|rate| number(gbits(rate)));
    let mut out = format!(
        "\nPairs of {}, Gb/s both ways at once: slowest {least}, median {usual}, fastest {most}\n",
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
        return out;
    }
    for unit in units {
        let own = || {
            m.pairs
                .iter()
                .filter(|pair| pair.a == unit || pair.b == unit)
        };
        let text = |pair: Option<&PairSpeed>| {
            let pair = pair.expect("it was in this pair");
            let with = if pair.a == unit { &pair.b } else { &pair.a };
            format!("{:>8} with {with}", number(gbits(pair.gb_s)))
        };
        let best = text(own().max_by(by_rate));
        let worst = text(own().min_by(by_rate));
        let _ = writeln!(out, "  {unit:<16} best {best:<24} worst {worst}");
    }
    out
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
