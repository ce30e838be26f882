//! A machine that the table does not have: a YAML file with the table's columns, or columns given one by
//! one (`hardware.COLUMN=VALUE`). Both replace columns of a row.

use super::hardware::{self, CPU, Hardware};
use super::mixture;
use base::number::{self, whole};
use base::{Problems, input};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Kind of a column's value, with its limits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Real(f64, f64),
    Whole(f64, f64),
    Truth,
}

use Kind::{Real, Truth, Whole};

/// Columns that a machine may have of its own.
const COLUMNS: &[(&str, Kind)] = &[
    ("peak_tflops", Real(1e-3, 1e6)),
    ("fp8_tflops", Real(0.0, 1e6)),
    ("fp4_tflops", Real(0.0, 1e6)),
    ("bf16", Truth),
    ("hbm_gb_s", Real(1e-3, 1e6)),
    ("memory_gib", Real(1e-3, 1e5)),
    ("context_mib", Real(0.0, 1e5)),
    ("units", Whole(1.0, 1e5)),
    ("product_share", Real(1e-3, 1.0)),
    ("product_half_side", Real(0.0, 1e5)),
    ("memory_share", Real(1e-3, 1.0)),
    ("launch_us", Real(0.0, 1e5)),
    ("per_node", Whole(1.0, 1024.0)),
    ("host_gb_s", Real(1e-3, 1e6)),
    ("host_gib", Real(1e-3, 1e6)),
    ("link_gb_s", Real(1e-3, 1e6)),
    ("bus_gb_s", Real(1e-3, 1e6)),
    ("link_domain", Whole(0.0, 1e5)),
    ("network_gb_s", Real(1e-3, 1e6)),
    ("ring_share", Real(1e-3, 1.0)),
    ("price", Real(0.0, 1e6)),
    ("scatter", Real(0.0, 1.0)),
    ("blocking", Truth),
];

/// Columns without which a file needs `like`.
const NEEDED: [&str; 9] = [
    "peak_tflops",
    "hbm_gb_s",
    "memory_gib",
    "per_node",
    "host_gb_s",
    "host_gib",
    "link_gb_s",
    "bus_gb_s",
    "network_gb_s",
];

/// Row whose other columns a file without `like` has.
const DEFAULT: &str = "a100-80g";

/// Prefix of a column given as a setting.
const PREFIX: &str = "hardware.";

/// Size of a file above which it is not one of hardware.
const LARGEST: u64 = 1 << 20;

/// Row of the table, or machine of a YAML file. `place` names the option or setting that gave it.
pub fn find(name: &str, place: &str) -> Result<&'static Hardware, Problems> {
    if manifest::is_hardware_file(name) {
        return read(Path::new(name), place);
    }
    hardware::find(name, place)
}

/// Separates the settings of a plan only, `hardware.COLUMN=VALUE` and degrees, from the manifest's.
pub fn split_settings(sets: &[String]) -> (Vec<String>, Vec<String>) {
    sets.iter()
        .cloned()
        .partition(|set| !(set.trim_start().starts_with(PREFIX) || mixture::is_setting(set)))
}

/// Machine of a file.
fn read(path: &Path, place: &str) -> Result<&'static Hardware, Problems> {
    let name = path.display().to_string();
    let failed = |error: std::io::Error| {
        Problems::one(
            place,
            format!("cannot read {name}: {error}"),
            "give a row of --list-hardware, or a YAML file (docs/estimate.md)",
        )
    };
    let bytes = input::read_named(path, LARGEST).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    let stem = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().to_string());
    Ok(parse(&text, &name, &stem.unwrap_or_default())?.leak())
}

/// Machine of a file's text. Messages use `file`; `name` is the machine's unless the file gives one.
fn parse(text: &str, file: &str, name: &str) -> Result<Hardware, Problems> {
    let mut given: BTreeMap<String, Value> = serde_saphyr::from_str(text).map_err(|error| {
        Problems::one(
            file,
            format!("not understood: {}", error.to_string().lines().next().unwrap_or_default()),
            "write columns with values, such as `like: a100-80g` and `network_gb_s: 50`",
        )
    })?;
    let place = |column: &str| match text.lines().position(|line| line.starts_with(column)) {
        Some(line) => format!("{file}:{}", line + 1),
        None => file.to_string(),
    };
    let mut text_of = |key: &str| given.remove(key).map(|value| plain(&value));
    let [like, own, about] = ["like", "name", "about"].map(&mut text_of);
    let missing: Vec<&str> = NEEDED
        .into_iter()
        .filter(|column| !given.contains_key(*column))
        .collect();
    if like.is_none() && !missing.is_empty() {
        return Err(Problems::one(
            file,
            format!("without `like`, {} are missing", missing.join(", ")),
            "add them, or `like: a100-80g`, the row that it resembles (--list-hardware)",
        ));
    }
    let base = hardware::find(like.as_deref().unwrap_or(DEFAULT), &place("like"))?;
    let columns: Vec<(String, String, String)> = given
        .iter()
        .map(|(key, value)| (place(key), key.clone(), plain(value)))
        .collect();
    let mut row = replace(base, &columns)?;
    row.name = own.unwrap_or_else(|| name.to_string()).to_ascii_lowercase();
    row.about = about.unwrap_or_else(|| match like {
        Some(_) => format!("{file}: like {}", base.name),
        None => file.to_string(),
    });
    row.measured_as = like.is_some().then(|| base.measured_as().to_string());
    row.site = None;
    if like.is_none() {
        row.family = row.name.clone();
    }
    Ok(row)
}

/// The row with settings `hardware.COLUMN=VALUE`.
pub fn with_settings(
    base: &'static Hardware,
    sets: &[String],
) -> Result<&'static Hardware, Problems> {
    if sets.is_empty() {
        return Ok(base);
    }
    let columns: Vec<(String, String, String)> = sets
        .iter()
        .map(|set| {
            let (key, value) = set
                .trim_start()
                .split_once('=')
                .unwrap_or((set.as_str(), ""));
            let column = key.trim().trim_start_matches(PREFIX).to_string();
            (format!("--set {key}"), column, value.trim().to_string())
        })
        .collect();
    let row = replace(base, &columns)?;
    if row == *base {
        return Ok(base);
    }
    let measured_as = Some(base.measured_as().to_string());
    let name = format!("{}*", base.name.trim_end_matches('*'));
    Ok(Hardware { name, measured_as, ..row }.leak())
}

/// Columns that differ between two machines of the same row, with both values.
pub fn differences(a: &Hardware, b: &Hardware) -> Vec<(String, [String; 2])> {
    if a.measured_as() != b.measured_as() {
        return Vec::new();
    }
    let [a, b] = [a, b].map(|row| serde_json::to_value(row).unwrap_or_default());
    let columns = COLUMNS.iter().map(|(column, _)| *column);
    columns
        .filter(|column| a[*column] != b[*column])
        .map(|column| (format!("{PREFIX}{column}"), [plain(&a[column]), plain(&b[column])]))
        .collect()
}

/// The row with other columns: place, name and value of each.
fn replace(base: &Hardware, columns: &[(String, String, String)]) -> Result<Hardware, Problems> {
    let mut problems = Problems::default();
    if base.name == CPU
        && let Some((place, ..)) = columns.first()
    {
        return Err(Problems::one(
            place,
            "the local processor is measured, so its columns cannot be set",
            "name the machine to plan for: --hardware a100-80g, or `like: a100-80g` in a file",
        ));
    }
    let mut row = match serde_json::to_value(base) {
        Ok(Value::Object(row)) => row,
        _ => Map::new(),
    };
    for (place, column, text) in columns {
        let Some((_, kind)) = COLUMNS.iter().find(|(name, _)| name == column) else {
            let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
            let remedy = format!("take one of {}", names.join(", "));
            problems.add(place, format!("hardware has no column `{column}`"), remedy);
            continue;
        };
        match kind.value(text) {
            Ok(value) => {
                row.insert(column.clone(), value);
            }
            Err(remedy) => problems.add(place, format!("{column} is {text:?}"), remedy),
        }
    }
    problems.or(())?;
    Ok(serde_json::from_value(row.into()).expect("every column was checked"))
}

impl Kind {
    /// Value of a text, or what to write instead.
    fn value(self, text: &str) -> Result<Value, String> {
        match self {
            Real(least, most) => {
                let real = number::real(text).ok();
                let real = real.filter(|real| (least..=most).contains(real));
                real.map(Value::from)
                    .ok_or_else(|| format!("give a number from {least} to {most}"))
            }
            Whole(least, most) => {
                let count = whole::<u64>(text).ok();
                let count = count.filter(|count| (least..=most).contains(&(*count as f64)));
                count
                    .map(Value::from)
                    .ok_or_else(|| format!("give a whole number from {least} to {most}"))
            }
            Truth => match text {
                "true" => Ok(true.into()),
                "false" => Ok(false.into()),
                _ => Err("write true or false".to_string()),
            },
        }
    }
}

/// A YAML value as text.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_machine_is_refused_with_the_settings_that_replace_it() {
        for (former, row, set) in hardware::FORMER {
            let refusal = hardware::find(former, "plan.hardware")
                .unwrap_err()
                .to_string();
            assert!(refusal.contains("plan.hardware") && refusal.contains(set), "{refusal}");
            let row = hardware::find(row, "test").unwrap();
            let changed = with_settings(row, &[set.to_string()]).unwrap();
            assert!(changed.name.starts_with(&row.name) && changed != row, "{row:?}");
        }
    }

    /// Each number of the table is a column; the other keys belong to measured runs.
    #[test]
    fn every_column_of_the_table_is_a_setting() {
        let row = serde_json::to_value(hardware::find("h100-80g", "test").unwrap()).unwrap();
        let own = [
            "name",
            "also",
            "about",
            "family",
            "site",
            "attention_shares",
            "periods",
            "async_periods",
            "ops",
            "ops_16",
        ];
        for key in row.as_object().unwrap().keys() {
            let is_column = COLUMNS.iter().any(|(name, _)| name == key);
            assert_ne!(is_column, own.contains(&key.as_str()), "{key}");
        }
    }

    #[test]
    fn a_file_replaces_columns_of_a_row() {
        let text = "like: a100-80g\nnetwork_gb_s: 50 # 4 x 100 Gb/s\nper_node: 4\n";
        let row = parse(text, "mine.yaml", "mine").unwrap();
        let base = hardware::find("a100-80g", "test").unwrap();
        assert_eq!((row.network_gb_s, row.per_node, row.name.as_str()), (50.0, 4, "mine"));
        assert_eq!(row.measured_as(), "a100-80g");
        let same = Hardware {
            network_gb_s: 200.0,
            per_node: 8,
            name: base.name.clone(),
            about: base.about.clone(),
            measured_as: None,
            ..row
        };
        assert_eq!(&same, base);
    }

    #[test]
    fn a_file_without_a_row_needs_its_columns() {
        let all = "peak_tflops: 100\nhbm_gb_s: 1000\nmemory_gib: 24\nper_node: 2\nhost_gb_s: 100\n\
            host_gib: 128\nlink_gb_s: 20\nbus_gb_s: 20\nnetwork_gb_s: 10\n";
        let row = parse(all, "own.yaml", "own").unwrap();
        assert_eq!((row.peak_tflops, row.measured_as()), (100.0, "own"));
        let message = |text: &str| parse(text, "own.yaml", "own").unwrap_err().to_string();
        let missing = message("peak_tflops: 100\n");
        assert!(missing.contains("hbm_gb_s, memory_gib") && missing.contains("like:"), "{missing}");
        let wrong = message("like: h100\nbus_gbs: 3\nprice: -1\nper_node: 2.5\n");
        for part in ["own.yaml:2", "no column `bus_gbs`", "own.yaml:3", "price is", "own.yaml:4"] {
            assert!(wrong.contains(part), "{part}: {wrong}");
        }
        assert!(message("like: h1000").contains("unknown hardware `h1000`"));
        assert!(message("just text").contains("not understood"));
        assert!(message("like: cpu\nprice: 1\n").contains("local processor is measured"));
    }

    #[test]
    fn settings_replace_columns_of_a_row() {
        let base = hardware::find("h100-80g", "test").unwrap();
        let set = |sets: &[&str]| {
            with_settings(base, &sets.iter().map(|set| set.to_string()).collect::<Vec<_>>())
        };
        assert!(std::ptr::eq(set(&[]).unwrap(), base));
        assert!(std::ptr::eq(set(&["hardware.bus_gb_s=450"]).unwrap(), base));
        let slow = set(&["hardware.bus_gb_s=32", "hardware.blocking=true"]).unwrap();
        assert_eq!((slow.bus_gb_s, slow.blocking, slow.name.as_str()), (32.0, true, "h100-80g*"));
        for wrong in ["hardware.bus_gb_s=0", "hardware.units=1.5", "hardware.bf16=yes"] {
            assert!(set(&[wrong]).is_err(), "{wrong}");
        }
    }
}
