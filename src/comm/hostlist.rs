//! Parser of Slurm's host lists: `n[01-03,7],login`, `rack[1-2]-n[1-4]`.

/// Limit far above any cluster's hosts. A longer list is damaged.
const MOST: usize = 1 << 16;

/// Expands a list to its hosts in order. The error describes what is wrong.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for item in split_items(list)? {
        let mut names = vec![String::new()];
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, behind) = after
                .split_once(']')
                .ok_or(format!("{item}: [ without ]"))?;
            let numbers = expand_numbers(inside).map_err(|what| format!("{item}: {what}"))?;
            if names.len() * numbers.len() > MOST {
                return Err(format!("{item}: more than {MOST} hosts"));
            }
            names = names
                .iter()
                .flat_map(|name| {
                    let prefix = format!("{name}{before}");
                    numbers
                        .iter()
                        .map(|number| format!("{prefix}{number}"))
                        .collect::<Vec<_>>()
                })
                .collect();
            rest = behind;
        }
        if rest.contains(']') || item.is_empty() {
            return Err(if item.is_empty() {
                "an empty name".into()
            } else {
                format!("{item}: ] without [")
            });
        }
        hosts.extend(names.iter().map(|name| format!("{name}{rest}")));
        if hosts.len() > MOST {
            return Err(format!("more than {MOST} hosts"));
        }
    }
    Ok(hosts)
}

/// Splits at commas outside of brackets.
fn split_items(list: &str) -> Result<Vec<&str>, String> {
    let mut items = Vec::new();
    let mut first = 0;
    let mut depth = 0;
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[first..at]);
                first = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(format!("{list}: brackets do not match"));
        }
    }
    items.push(&list[first..]);
    Ok(items)
}

/// Expands `01-03,7` and keeps leading zeros.
fn expand_numbers(inside: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for range in inside.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(low) || !digits(high) {
            return Err(format!("{range:?} is not a range of numbers"));
        }
        let parse = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("{text} is too large"))
        };
        let first = parse(low)?;
        let last = parse(high)?;
        if first > last || last - first >= MOST {
            return Err(format!("{range:?} is not a range of at most {MOST} numbers"));
        }
        all.extend((first..=last).map(|number| format!("{number:0width$}", width = low.len())));
        if all.len() > MOST {
            return Err(format!("more than {MOST} numbers"));
        }
    }
    Ok(all)
}

/// Expands counts per node: `3,1`, `2(x4)`. The error describes what is wrong.
pub fn expand_counts(list: &str) -> Result<Vec<usize>, String> {
    let mut all = Vec::new();
    for item in list.split(',') {
        let wrong = || format!("{item:?} is not a count such as 2 or 2(x4)");
        let (count, times) = match item.strip_suffix(')').map(|item| item.split_once("(x")) {
            Some(Some((count, times))) => (count, times),
            Some(None) => return Err(wrong()),
            None => (item, "1"),
        };
        let count = count.parse().map_err(|_| wrong())?;
        let times: usize = times.parse().map_err(|_| wrong())?;
        if all.len() + times > MOST {
            return Err(format!("more than {MOST} nodes"));
        }
        all.resize(all.len() + times, count);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_expand_as_slurm_expands_them() {
        let expanded = |list| expand(list).unwrap().join(" ");
        assert_eq!(expanded("n1"), "n1");
        assert_eq!(expanded("n[01-03,7],login"), "n01 n02 n03 n7 login");
        assert_eq!(expanded("r[1-2]-n[8-10]x"), "r1-n8x r1-n9x r1-n10x r2-n8x r2-n9x r2-n10x");
        assert_eq!(expanded("n[098-101]"), "n098 n099 n100 n101");
        assert_eq!(expanded("gpu-a100-[1,3].site"), "gpu-a100-1.site gpu-a100-3.site");
    }

    #[test]
    fn damaged_lists_are_refused() {
        let bad = ["", "a,,b", "n[1", "n1]", "n[]", "n[a]", "n[3-1]", "n[1-99999999999999999999]"];
        let more = ["n[[1]]", "n[1-]", "n[0-65535],m", "a[1-9999][1-9999]", "n]1["];
        for list in bad.into_iter().chain(more) {
            assert!(expand(list).is_err(), "{list:?}");
        }
    }

    #[test]
    fn counts_per_node_expand() {
        assert_eq!(expand_counts("3,1"), Ok(vec![3, 1]));
        assert_eq!(expand_counts("2(x3),1"), Ok(vec![2, 2, 2, 1]));
        for bad in ["", "x", "2(x", "2x4)", "2(x99999999999)", "-1", "2(y4)"] {
            assert!(expand_counts(bad).is_err(), "{bad:?}");
        }
    }
}
