//! The processor's name, as Linux has it.

/// `AMD EPYC 7B13`; None where the system does not say.
pub fn name() -> Option<String> {
    let about = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = about
        .lines()
        .find_map(|line| line.strip_prefix("model name"))?;
    Some(plain(model.trim_start_matches(['\t', ' ', ':']))).filter(|name| !name.is_empty())
}

/// Without trade marks, clock and the number of cores.
fn plain(model: &str) -> String {
    let model = model.split(" @ ").next().unwrap_or_default();
    let words = model
        .split_whitespace()
        .take_while(|word| !word.ends_with("-Core"))
        .map(|word| word.replace("(R)", "").replace("(TM)", ""));
    words
        .filter(|word| !matches!(&**word, "" | "CPU" | "Processor"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_name_is_what_a_person_calls_the_processor() {
        for (model, name) in [
            ("AMD EPYC", "AMD EPYC"),
            ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
            ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Intel Xeon Platinum 8481C"),
        ] {
            assert_eq!(plain(model), name);
        }
    }
}
