//! `gptrain bench --set-env`: the groups of the grid under several values of variables of the environment,
//! such as NCCL's, which a process reads only once. Every value has processes of its own.

use crate::sweep::variants::split_values;
use anyhow::{Context, Result, bail};
use base::table::{Cell, Printout, Table};
use base::{Bytes, Problems};
use comm::LauncherEnv;
use estimate::measured::{GroupSpeed, Measured};
use launch::exit;
use serde_json::json;
use std::ffi::OsString;
use std::process::{Command, Output, Stdio};

/// Combinations that are measured at most.
const MOST: usize = 64;

/// Variables with their values; None if the variable is not set.
type Variant = Vec<(String, Option<String>)>;

/// Result of one variant; the error of one that failed.
struct Measurement {
    name: String,
    variant: Variant,
    bench: Result<Measured, String>,
}

/// Every combination of the values: `NCCL_ALGO=Ring,Tree`, several times.
pub fn parse(options: &[String]) -> Result<Vec<Variant>, Problems> {
    let mut variants: Vec<Variant> = vec![Vec::new()];
    for option in options {
        let named = option.split_once('=').filter(|(name, _)| is_variable(name));
        let Some((name, values)) = named else {
            return Err(Problems::one(
                format!("--set-env {option}"),
                "is not a variable with values",
                "write NAME=VALUE,VALUE, such as NCCL_ALGO=Ring,Tree; an empty value leaves it unset",
            ));
        };
        if variants[0].iter().any(|(other, _)| other == name) {
            return Err(Problems::one(
                format!("--set-env {option}"),
                format!("gives {name} a second time"),
                "give all values of a variable at once, with commas between them",
            ));
        }
        let values = split_values(values);
        let count = variants.len() * values.len();
        if count > MOST {
            return Err(Problems::one(
                "--set-env",
                format!("gives {count} combinations; at most {MOST} are measured"),
                "give fewer values",
            ));
        }
        let with = |variant: &Variant, value: &str| {
            let value = unquote(value);
            let value = Some(value.to_string()).filter(|value| !value.is_empty());
            [variant.as_slice(), &[(name.to_string(), value)]].concat()
        };
        variants = variants
            .iter()
            .flat_map(|variant| values.iter().map(move |value| with(variant, value)))
            .collect();
    }
    Ok(variants)
}

fn is_variable(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(letters)
}

/// Value without the quotes around it, which keep its commas.
fn unquote(value: &str) -> &str {
    let inner = |mark: char| value.strip_prefix(mark)?.strip_suffix(mark);
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}

/// Name of a variant: "NCCL_ALGO=Ring NCCL_PROTO=(unset)".
fn name(variant: &Variant) -> String {
    let parts = variant.iter().map(|(name, value)| {
        let value = value.as_deref().unwrap_or("(unset)");
        format!("{name}={value}")
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// Measures every variant by a process of `arguments` for each of this job's ranks, one variant after
/// another. The table is printed by the process of rank 0. Fails if all variants fail.
pub fn run(variants: Vec<Variant>, arguments: &[OsString], json: bool) -> Result<()> {
    let launcher = LauncherEnv::from_variables(&|name| std::env::var(name).ok())?;
    let is_first = launcher.is_none_or(|launch| launch.rank == 0);
    let mut measured = Vec::new();
    for variant in variants {
        let output = run_process(&variant, arguments)?;
        if !is_first {
            continue;
        }
        let code = output.status.code();
        let bench = if [Some(0), Some(i32::from(exit::SLOW))].contains(&code) {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(Measured::read(&text, "a process of --set-env")?)
        } else {
            Err(output.status.to_string())
        };
        measured.push(Measurement { name: name(&variant), variant, bench });
    }
    if !is_first {
        return Ok(());
    }
    printout(&measured).say(json);
    if measured.iter().all(|one| one.bench.is_err()) {
        bail!("every combination of --set-env failed");
    }
    Ok(())
}

/// Runs this rank's process of a variant to its end.
fn run_process(variant: &Variant, arguments: &[OsString]) -> Result<Output> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped());
    for (name, value) in variant {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let child = command.spawn().context("starting a process of --set-env")?;
    child
        .wait_with_output()
        .context("waiting for a process of --set-env")
}

/// Table of the groups: a row for each group, op and size, a column for each variant, and the fastest one.
fn printout(all: &[Measurement]) -> Printout {
    let value = json!({ "variants": all.iter().map(|one| {
        let set = one.variant.iter().map(|(name, value)| (name.clone(), json!(value)));
        let set: serde_json::Map<String, serde_json::Value> = set.collect();
        match &one.bench {
            Ok(bench) => json!({ "env": set, "bench": bench }),
            Err(failure) => json!({ "env": set, "failure": failure }),
        }
    }).collect::<Vec<_>>() });
    let mut out = Printout::new(value);
    for (number, one) in (1..).zip(all) {
        match &one.bench {
            Ok(_) => out.line(format!("{number}: {}", one.name)),
            Err(failure) => out.line(format!("{number}: {}: failed, {failure}", one.name)),
        }
    }
    out.table(groups(all));
    out
}

fn groups(all: &[Measurement]) -> Table {
    let rows = |one: &Measurement| match &one.bench {
        Ok(bench) => bench.groups.clone(),
        Err(_) => Vec::new(),
    };
    let most = all
        .iter()
        .map(rows)
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let numbered: Vec<(usize, Vec<GroupSpeed>)> = (1..).zip(all.iter().map(rows)).collect();
    let mut table = base::table::Rows::new(&most)
        .column("group", "group", |row| row.group.clone())
        .column("op", "op", |row| row.op.clone())
        .column("size", "bytes", |row| Cell::new(row.bytes, Bytes(row.bytes).to_string()));
    let busbw = |row: &GroupSpeed, rows: &[GroupSpeed]| {
        let same = rows.iter().find(|other| {
            (&other.group, &other.op, other.bytes) == (&row.group, &row.op, row.bytes)
        });
        same.map(|found| found.busbw_gb_s)
    };
    for (number, rows) in &numbered {
        let title = number.to_string();
        table = table.column(title.clone(), title, |row| {
            Cell::optional(busbw(row, rows).map(|rate| Cell::new(rate, bench::print::number(rate))))
        });
    }
    let fastest = |row: &GroupSpeed| {
        let rates = numbered
            .iter()
            .filter_map(|(number, rows)| Some((busbw(row, rows)?, *number)));
        let best = rates.max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(Cell::default(), |(_, number)| number.into())
    };
    table
        .column("fastest", "fastest", fastest)
        .titled("busbw in GB/s by combination")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[&str]) -> Result<Vec<String>, String> {
        let options: Vec<String> = options.iter().map(|option| option.to_string()).collect();
        let variants = parse(&options).map_err(|problems| problems.to_string())?;
        Ok(variants.iter().map(name).collect())
    }

    #[test]
    fn values_are_combined_and_quotes_keep_commas() {
        let one = parsed(&["NCCL_ALGO=Ring,Tree"]).unwrap();
        assert_eq!(one, ["NCCL_ALGO=Ring", "NCCL_ALGO=Tree"]);
        let two = parsed(&["NCCL_ALGO=,Tree", "NCCL_IB_HCA=\"mlx5_0,mlx5_1\",mlx5_2"]).unwrap();
        let expected = [
            "NCCL_ALGO=(unset) NCCL_IB_HCA=mlx5_0,mlx5_1",
            "NCCL_ALGO=(unset) NCCL_IB_HCA=mlx5_2",
            "NCCL_ALGO=Tree NCCL_IB_HCA=mlx5_0,mlx5_1",
            "NCCL_ALGO=Tree NCCL_IB_HCA=mlx5_2",
        ];
        assert_eq!(two, expected);
    }

    #[test]
    fn mistakes_are_named() {
        for (options, said) in [
            (vec!["NCCL_ALGO"], "is not a variable with values"),
            (vec!["=a"], "is not a variable with values"),
            (vec!["A B=a"], "is not a variable with values"),
            (vec!["A=1", "A=2"], "gives A a second time"),
            (vec!["A=1,2,3,4,5,6,7,8,9", "B=1,2,3,4,5,6,7,8"], "72 combinations; at most 64"),
        ] {
            let error = parsed(&options).unwrap_err();
            assert!(error.contains(said) && error.contains("→"), "{options:?}: {error}");
        }
    }
}
