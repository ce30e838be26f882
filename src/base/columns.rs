//! Tables of text.

/// Lines of cells in columns as wide as their longest cell, two spaces apart. The first `left` columns
/// are left-aligned, the others right-aligned. Rows may be shorter than the first.
pub fn columns(rows: &[Vec<String>], left: usize) -> String {
    let length = |text: &str| text.chars().count();
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column: usize| cells(column).map(|cell| length(cell)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    rows.iter()
        .map(|row| {
            let padded = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, width))| {
                    let padding = " ".repeat(width.saturating_sub(length(cell)));
                    if column < left {
                        format!("{cell}{padding}")
                    } else {
                        format!("{padding}{cell}")
                    }
                });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let row = |cells: [&str; 3]| cells.map(str::to_string).to_vec();
        let rows =
            [row(["run", "loss", "–"]), row(["a", "12.5", "per second"]), row(["b", "", ""])];
        assert_eq!(columns(&rows, 1), "run  loss           –\na    12.5  per second\nb");
        assert_eq!(columns(&[], 1), "");
    }
}
