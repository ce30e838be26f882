//! Earlier measurements of a machine: kept in a file, a line each, and compared node by node.

use super::outliers::{LINKS, PRODUCTS, SHARED};
use super::print::number;
use anyhow::{Context, Result};
use base::calendar::{date_of, days_since_1970};
use base::{Problems, input, unix_time};
use estimate::measured::{Change, Measured, RankSpeeds};
use plan::robust::median;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Line of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Seconds since 1970.
    pub at: f64,
    pub bench: Measured,
}

/// Earlier measurement with which a new one is compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Since {
    /// Time in seconds since 1970, of a measurement in the history.
    Time(f64),
    /// File that `gptrain bench --json` printed.
    File(PathBuf),
}

impl Since {
    /// Reads `7d`, `36h`, `2026-11-24`, `2026-11-24T08:30` (UTC), or the name of a file.
    pub fn parse(text: &str) -> Result<Since, String> {
        if Path::new(text).is_file() {
            return Ok(Since::File(text.into()));
        }
        let now = unix_time().as_secs_f64();
        let ago = seconds(text).ok().map(|seconds| now - seconds);
        let found = ago.or_else(|| parse_date(text)).map(Since::Time);
        found.ok_or_else(|| {
            "there is no such file; a time is written as 7d, 36h, 2026-11-24 or 2026-11-24T08:30 (UTC)"
                .to_string()
        })
    }
}

/// Seconds of a duration such as `90s`, `10m`, `36h` or `7d`.
pub fn seconds(text: &str) -> Result<f64, String> {
    let units = [("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)];
    let read = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (number > 0.0 && number <= 1e6).then_some(number * seconds)
    });
    read.ok_or_else(|| "a duration is written as 90s, 10m, 36h or 7d".to_string())
}

/// Seconds since 1970 of a date, with or without a time of day, in UTC.
fn parse_date(text: &str) -> Option<f64> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time.trim_end_matches('Z')),
        None => (text, "00:00"),
    };
    let numbers = |text: &str, mark: char| -> Option<Vec<i64>> {
        text.split(mark).map(|part| part.parse().ok()).collect()
    };
    let [year, month, day] = numbers(date, '-')?.try_into().ok()?;
    let [hour, minute] = numbers(time, ':')?.try_into().ok()?;
    let days = days_since_1970(year, month, day);
    let is_date = (1970..=9999).contains(&year) && date_of(days) == (year, month, day);
    let is_time = (0..24).contains(&hour) && (0..60).contains(&minute);
    (is_date && is_time).then(|| (days * 86400 + hour * 3600 + minute * 60) as f64)
}

/// Appends a measurement of this moment to a history.
pub fn append(path: &Path, measured: &Measured) -> Result<()> {
    let kept = Kept { at: unix_time().as_secs_f64(), bench: measured.clone() };
    let mut line = serde_json::to_vec(&kept)?;
    line.push(b'\n');
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(&line).and_then(|()| file.sync_all()))
        .with_context(|| format!("cannot add the measurement to {}", path.display()))
}

/// Measurements of a history, oldest first; empty if there is no file yet. A torn last line is ignored.
pub fn read(path: &Path) -> Result<Vec<Kept>> {
    let place = path.display();
    let bytes = match input::read(path, input::LARGE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {place}"))?,
    };
    let mut kept = Vec::new();
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match serde_json::from_slice(line) {
            Ok(one) => kept.push(one),
            Err(_) if !line.ends_with(b"\n") => {}
            Err(error) => {
                return Err(Problems::one(
                    format!("{place}:{}", at + 1),
                    format!("is not a line of `gptrain bench --history`: {error}"),
                    "remove the line, or give another file",
                )
                .into());
            }
        }
    }
    Ok(kept)
}

/// Measurement of this manifest, grid and precision that was the last one at a time, or the first one after
/// it.
pub fn find(kept: Vec<Kept>, at: f64, now: &Measured) -> Option<Kept> {
    let alike = |one: &Kept| {
        let then = &one.bench;
        (&then.manifest, then.precision, then.ranks.len())
            == (&now.manifest, now.precision, now.ranks.len())
    };
    let mut alike: Vec<Kept> = kept.into_iter().filter(alike).collect();
    alike.sort_by(|a, b| a.at.total_cmp(&b.at));
    let index = alike.iter().rposition(|one| one.at <= at).unwrap_or(0);
    alike.into_iter().nth(index)
}

/// Figures of both measurements, and the smallest change that counts.
pub struct Comparison {
    pub changes: Vec<Change>,
    /// Number of figures that both have.
    pub compared: usize,
    /// Nodes that only one of them has.
    pub notes: Vec<String>,
}

/// Compares two measurements of the same shapes. A figure has changed if it differs by more than
/// `tolerance`: by default that of slow ranks and links.
pub fn compare(then: &Measured, now: &Measured, tolerance: Option<f64>) -> Comparison {
    let mut found = Comparison { changes: Vec::new(), compared: 0, notes: Vec::new() };
    let nodes = |m: &Measured| -> BTreeSet<String> {
        m.ranks.iter().map(|rank| rank.node.clone()).collect()
    };
    let (before, after) = (nodes(then), nodes(now));
    let list = |nodes: Vec<&String>| {
        let names: Vec<&str> = nodes.iter().map(|name| name.as_str()).collect();
        names.join(", ")
    };
    let new: Vec<&String> = after.difference(&before).collect();
    if !new.is_empty() {
        found
            .notes
            .push(format!("not measured then: {}", list(new)));
    }
    let gone: Vec<&String> = before.difference(&after).collect();
    if !gone.is_empty() {
        found
            .notes
            .push(format!("measured then and not now: {}", list(gone)));
    }
    let shared = now.ranks.len() > after.len() && now.ranks[0].upload_gb_s.is_none();
    let [products, links] = [PRODUCTS, LINKS].map(|usual| {
        let usual = if shared { SHARED } else { usual };
        tolerance.unwrap_or(usual)
    });
    let mut add = |who: &str, what: &str, unit: &str, limit: f64, pair: Option<(f64, f64)>| {
        let Some((then, now)) = pair.filter(|(then, now)| *then > 0.0 && *now > 0.0) else {
            return;
        };
        found.compared += 1;
        if (now / then - 1.0).abs() > limit {
            let (who, what, unit) = (who.into(), what.into(), unit.into());
            found.changes.push(Change { who, what, then, now, unit });
        }
    };
    for node in before.intersection(&after) {
        let pair = |figure: fn(&RankSpeeds) -> Option<f64>| {
            Some((figure_of(then, node, figure)?, figure_of(now, node, figure)?))
        };
        let same = |shapes: fn(&RankSpeeds) -> Vec<(usize, usize, usize)>| {
            shapes(&then.ranks[0]) == shapes(&now.ranks[0])
        };
        let block = pair(|rank| Some(rank.block_tflops())).filter(|_| same(block_shapes));
        add(node, "products of a block", "TFLOP/s", products, block);
        let cube = pair(|rank| Some(rank.cube.tflops)).filter(|_| same(cube_shape));
        add(node, "large product", "TFLOP/s", products, cube);
        let copies = pair(|rank| Some(rank.device_copy_gb_s));
        add(node, "copies within the device", "GB/s", links, copies);
        add(node, "copies to the device", "GB/s", links, pair(|rank| rank.upload_gb_s));
        add(node, "copies from the device", "GB/s", links, pair(|rank| rank.download_gb_s));
    }
    if then.units == now.units {
        let mut slow = BTreeSet::new();
        for unit in units(now) {
            let pair = best_link(then, &unit).zip(best_link(now, &unit));
            add(&unit, "links", "GB/s", links, pair);
            if pair.is_some_and(|(then, now)| (now / then - 1.0).abs() > links) {
                slow.insert(unit);
            }
        }
        for pair in &now.pairs {
            // A link of a node whose links have all changed says nothing more.
            if slow.contains(&pair.a) || slow.contains(&pair.b) {
                continue;
            }
            let same = |one: &&estimate::measured::PairSpeed| one.a == pair.a && one.b == pair.b;
            let before = then.pairs.iter().find(same).map(|before| before.gb_s);
            let who = format!("{} and {}", pair.a, pair.b);
            add(&who, "link", "GB/s", links, before.map(|before| (before, pair.gb_s)));
        }
    }
    for row in &now.groups {
        let same = |one: &&estimate::measured::GroupSpeed| {
            (&one.group, &one.op, one.bytes, one.size) == (&row.group, &row.op, row.bytes, row.size)
        };
        let before = then
            .groups
            .iter()
            .find(same)
            .map(|before| before.busbw_gb_s);
        let bytes = base::Bytes(row.bytes);
        let what = format!("{} of {bytes}", row.op);
        let who = format!("group {}", row.group);
        add(&who, &what, "GB/s", links, before.map(|before| (before, row.busbw_gb_s)));
    }
    found
}

/// For example "links of n07 −9.0 % since 2026-11-24 08:30 UTC: 21.2 → 19.3 GB/s".
pub fn sentence(change: &Change, since: &str) -> String {
    let Change { who, what, then, now, unit } = change;
    let percent = 100.0 * (now / then - 1.0);
    let sign = if percent < 0.0 { "−" } else { "+" };
    let [then, now] = [*then, *now].map(number);
    format!("{what} of {who} {sign}{:.1} % since {since}: {then} → {now} {unit}", percent.abs())
}

fn block_shapes(rank: &RankSpeeds) -> Vec<(usize, usize, usize)> {
    rank.products
        .iter()
        .map(|one| (one.m, one.n, one.k))
        .collect()
}

fn cube_shape(rank: &RankSpeeds) -> Vec<(usize, usize, usize)> {
    vec![(rank.cube.m, rank.cube.n, rank.cube.k)]
}

/// Median of a figure over the ranks of a node.
fn figure_of(m: &Measured, node: &str, figure: fn(&RankSpeeds) -> Option<f64>) -> Option<f64> {
    let on_node = m.ranks.iter().filter(|rank| rank.node == *node);
    let figures: Vec<f64> = on_node.filter_map(figure).collect();
    (!figures.is_empty()).then(|| median(figures))
}

/// Nodes, or ranks, that were paired.
fn units(m: &Measured) -> BTreeSet<String> {
    let pairs = m.pairs.iter();
    pairs
        .flat_map(|pair| [pair.a.clone(), pair.b.clone()])
        .collect()
}

/// Rate of a unit's fastest pair: a slow partner does not count against it.
fn best_link(m: &Measured, unit: &str) -> Option<f64> {
    let own = m.pairs.iter();
    own.filter(|pair| pair.a == unit || pair.b == unit)
        .map(|pair| pair.gb_s)
        .max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::calendar::date_and_minute;
    use estimate::measured::{FORMAT, GroupSpeed, PairSpeed, Product};
    use manifest::Precision;

    fn product(name: &str, tflops: f64) -> Product {
        Product { name: name.into(), m: 64, n: 64, k: 64, tflops }
    }

    /// Four nodes with a GPU each.
    fn measured() -> Measured {
        let rank = |rank: usize| RankSpeeds {
            rank,
            node: format!("n{rank}"),
            place: format!("TP0 PP0 DP{rank}"),
            device: "GPU".into(),
            products: vec![product("qkv", 200.0)],
            cube: product("cube", 300.0),
            device_copy_gb_s: 1500.0,
            host_copy_gb_s: 10.0,
            upload_gb_s: Some(24.0),
            download_gb_s: Some(24.0),
            file_write_gb_s: 1.0,
            file_read_gb_s: 1.0,
            file_access: "direct".into(),
            ops: Vec::new(),
        };
        let pairs = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b)));
        let pair = |(a, b)| PairSpeed { a: format!("n{a}"), b: format!("n{b}"), gb_s: 20.0 };
        Measured {
            format: FORMAT.into(),
            manifest: "m".into(),
            precision: Precision::Bf16,
            hardware: None,
            quick: false,
            seconds: 60.0,
            ranks: (0..4).map(rank).collect(),
            groups: vec![GroupSpeed {
                group: "data".into(),
                size: 4,
                groups: 1,
                in_node: false,
                op: "all_reduce".into(),
                bytes: 64 << 20,
                seconds: 0.01,
                algbw_gb_s: 6.7,
                busbw_gb_s: 10.0,
                slowest: vec![0, 1, 2, 3],
            }],
            units: "nodes".into(),
            pairs: pairs.map(pair).collect(),
            slow: Vec::new(),
            busy_share: 0.0,
            notes: Vec::new(),
            changes: Vec::new(),
            soak: Vec::new(),
        }
    }

    fn named(found: &Comparison) -> Vec<(&str, &str)> {
        let changes = found.changes.iter();
        changes
            .map(|change| (change.who.as_str(), change.what.as_str()))
            .collect()
    }

    #[test]
    fn nothing_is_named_that_is_within_the_tolerance() {
        let (then, mut now) = (measured(), measured());
        now.pairs[0].gb_s = 20.9;
        now.ranks[1].cube.tflops = 295.0;
        let found = compare(&then, &now, None);
        assert!(found.changes.is_empty(), "{:?}", found.changes);
        // Five figures and the links of each node, six links, one group.
        assert_eq!((found.compared, found.notes.len()), (4 * 6 + 6 + 1, 0));
    }

    /// A node whose links are all slower is named, and none of its partners nor its single links.
    #[test]
    fn the_node_whose_links_are_slower_is_named_with_both_figures() {
        let (then, mut now) = (measured(), measured());
        for pair in now.pairs.iter_mut().filter(|pair| pair.b == "n3") {
            pair.gb_s = 18.2;
        }
        now.groups[0].busbw_gb_s = 9.0;
        let found = compare(&then, &now, None);
        let expected = [("n3", "links"), ("group data", "all_reduce of 64.0 MiB")];
        assert_eq!(named(&found), expected);
        assert_eq!((found.changes[0].then, found.changes[0].now), (20.0, 18.2));
        let text = sentence(&found.changes[0], "Tuesday");
        assert_eq!(text, "links of n3 −9.0 % since Tuesday: 20.0 → 18.2 GB/s");
    }

    #[test]
    fn a_link_a_product_and_a_faster_node_are_named() {
        let (then, mut now) = (measured(), measured());
        now.pairs[0].gb_s = 10.0; // n0 and n1, whose other links are as before
        now.ranks[2].products[0].tflops = 190.0;
        now.ranks[3].upload_gb_s = Some(30.0);
        let found = compare(&then, &now, None);
        let expected =
            [("n2", "products of a block"), ("n3", "copies to the device"), ("n0 and n1", "link")];
        assert_eq!(named(&found), expected);
        assert!(found.changes[1].now > found.changes[1].then && found.changes[2].now == 10.0);
        assert!(compare(&then, &now, Some(0.6)).changes.is_empty());
        // Products of other shapes say nothing.
        now.ranks[0].products[0].m = 32;
        assert!(!named(&compare(&then, &now, None)).contains(&("n2", "products of a block")));
    }

    #[test]
    fn nodes_that_came_and_went_are_noted() {
        let (then, mut now) = (measured(), measured());
        now.ranks[3].node = "n9".into();
        let notes = compare(&then, &now, None).notes;
        assert_eq!(notes, ["not measured then: n9", "measured then and not now: n3"]);
    }

    #[test]
    fn a_history_gives_the_measurement_of_a_time_and_of_the_same_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        assert!(read(&path).unwrap().is_empty());
        append(&path, &measured()).unwrap();
        let one = read(&path).unwrap().remove(0);
        assert_eq!(one.bench, measured());
        let at = |at: f64| Kept { at, bench: measured() };
        let other = Measured { manifest: "other".into(), ..measured() };
        let kept = vec![at(300.0), at(100.0), Kept { at: 290.0, bench: other }];
        let found = |time| find(kept.clone(), time, &measured()).map(|kept| kept.at);
        assert_eq!([50.0, 100.0, 299.0, 301.0].map(found), [100.0, 100.0, 100.0, 300.0].map(Some));
        assert_eq!(find(Vec::new(), 0.0, &measured()), None);
        // A torn last line is ignored; another bad line is not.
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}{{\"at\": 1")).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        std::fs::write(&path, format!("nonsense\n{whole}")).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("history.jsonl:1") && error.contains("remove the line"), "{error}");
    }

    #[test]
    fn times_are_read_as_they_are_printed() {
        // 2026-11-24 08:30 UTC and 2024-02-29, a leap day, by `date -u +%s`.
        assert_eq!(parse_date("2026-11-24T08:30"), Some(1_795_509_000.0));
        assert_eq!(parse_date("2024-02-29"), Some(1_709_164_800.0));
        assert_eq!(date_and_minute(1_795_509_000.0), "2026-11-24 08:30 UTC");
        assert_eq!(date_and_minute(1_709_164_800.0 - 60.0), "2024-02-28 23:59 UTC");
        for wrong in ["2026-02-30", "2026-13-01", "2026-11-24T24:00", "yesterday", "7", "", "-3d"] {
            let said = Since::parse(wrong).unwrap_err();
            assert!(said.contains("7d, 36h, 2026-11-24"), "{wrong}: {said}");
        }
        assert_eq!(seconds("36h"), Ok(129_600.0));
        assert!(matches!(Since::parse("7d"), Ok(Since::Time(at)) if at > 1.7e9));
    }
}
