//! Results as tables: one value, printed as text, as JSON and on a page.

use super::escape_control;
use super::svg::escape;
use super::wrap::{self, columns};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Display;

/// Cell of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Value in JSON, where a cell without one has no key. A number is aligned to the right.
    pub value: Option<Value>,
    pub text: String,
}

impl Cell {
    pub fn new(value: impl Into<Value>, text: impl Into<String>) -> Cell {
        Cell { value: Some(value.into()), text: text.into() }
    }

    /// Cell without a value.
    pub fn without_value(text: impl Into<String>) -> Cell {
        Cell { value: None, text: text.into() }
    }

    /// Number with so many digits after the point.
    pub fn fixed(number: f64, digits: usize) -> Cell {
        Cell::new(number, format!("{number:.digits$}"))
    }

    /// Share in percent.
    pub fn percent(share: f64) -> Cell {
        Cell::new(share, format!("{:.1} %", 100.0 * share))
    }

    /// Cell of an optional value; a dash without one.
    pub fn optional(value: Option<impl Into<Cell>>) -> Cell {
        value.map_or(Cell::new(Value::Null, "–"), Into::into)
    }
}

impl<T: Display + Into<Value>> From<T> for Cell {
    fn from(value: T) -> Cell {
        let text = value.to_string();
        Cell::new(value, text)
    }
}

/// Table of values of one type, a row each, to which columns are added.
pub struct Rows<'r, R> {
    rows: Vec<&'r R>,
    columns: Vec<Column>,
}

impl<'r, R> Rows<'r, R> {
    pub fn new(rows: impl IntoIterator<Item = &'r R>) -> Rows<'r, R> {
        Rows { rows: rows.into_iter().collect(), columns: Vec::new() }
    }

    fn push<C: Into<Cell>>(
        mut self,
        place: Place,
        title: impl Into<String>,
        key: Option<String>,
        cell: impl Fn(&R) -> C,
    ) -> Self {
        let cells = self.rows.iter().map(|row| cell(row).into()).collect();
        self.columns
            .push(Column { title: title.into(), key, place, cells });
        self
    }

    /// Adds a column of text and JSON. The key `a.b` is the key `b` of the object `a`.
    pub fn column<C: Into<Cell>>(
        self,
        title: impl Into<String>,
        key: impl Into<String>,
        cell: impl Fn(&R) -> C,
    ) -> Self {
        self.push(Place::Column, title, Some(key.into()), cell)
    }

    /// Adds a column of text only.
    pub fn text<C: Into<Cell>>(self, title: impl Into<String>, cell: impl Fn(&R) -> C) -> Self {
        self.push(Place::Column, title, None, cell)
    }

    /// Adds a column of JSON only.
    pub fn json<C: Into<Cell>>(self, key: impl Into<String>, cell: impl Fn(&R) -> C) -> Self {
        self.push(Place::JsonOnly, "", Some(key.into()), cell)
    }

    /// Adds a column whose text is in lines below its row.
    pub fn line_below<C: Into<Cell>>(self, key: impl Into<String>, cell: impl Fn(&R) -> C) -> Self {
        self.push(Place::Below, "", Some(key.into()), cell)
    }

    pub fn table(self) -> Table {
        Table { title: String::new(), rows: self.rows.len(), columns: self.columns }
    }

    /// Table with a line above it.
    pub fn titled(self, title: impl Into<String>) -> Table {
        self.table().titled(title)
    }
}

#[derive(Clone, Debug)]
struct Column {
    title: String,
    key: Option<String>,
    place: Place,
    cells: Vec<Cell>,
}

/// Place of a column in text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Column,
    Below,
    JsonOnly,
}

/// Columns of cells.
#[derive(Clone, Debug)]
pub struct Table {
    /// Line above the table, whose rows are then indented.
    title: String,
    rows: usize,
    columns: Vec<Column>,
}

impl Table {
    /// Table of text alone, with these titles.
    pub fn from_cells<const N: usize>(titles: [&str; N], rows: Vec<[Cell; N]>) -> Table {
        let mut table = Rows::new(&rows);
        for (column, title) in titles.into_iter().enumerate() {
            table = table.text(title, |row| row[column].clone());
        }
        table.table()
    }

    /// Names and values, a row each.
    pub fn facts(facts: Vec<(&str, String)>) -> Table {
        let name = |(name, _): &(&str, String)| name.to_string();
        Rows::new(&facts)
            .text("", name)
            .text("", |(_, value)| value.clone())
            .table()
    }

    pub fn titled(self, title: impl Into<String>) -> Table {
        Table { title: title.into(), ..self }
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Array with an object per row.
    pub fn json(&self) -> Value {
        (0..self.rows).map(|row| self.object(row)).collect()
    }

    /// Object of a row.
    pub fn object(&self, row: usize) -> Value {
        let mut object = Map::new();
        for column in &self.columns {
            let value = column.cells[row].value.clone();
            let (Some(key), Some(value)) = (&column.key, value) else { continue };
            match key.split_once('.') {
                None => drop(object.insert(key.clone(), value)),
                Some((outer, inner)) => {
                    object.entry(outer).or_insert_with(|| Map::new().into())[inner] = value;
                }
            }
        }
        object.into()
    }

    /// Lines of columns as wide as their longest cell, two spaces apart; numbers are aligned to the
    /// right. A row wider than `width` takes several lines, in all rows with the same columns in each.
    pub fn text(&self, width: usize) -> String {
        let indent = if self.title.is_empty() { 0 } else { GAP };
        let shown = self.visible_columns(width.saturating_sub(indent));
        let mut text = String::new();
        if shown.iter().any(|shown| !shown.column.title.is_empty()) {
            push_lines(&mut text, &shown, |column| &column.title);
        }
        for row in 0..self.rows {
            push_lines(&mut text, &shown, |column| &column.cells[row].text);
            for below in self
                .columns
                .iter()
                .filter(|column| column.place == Place::Below)
            {
                text.extend(
                    below.cells[row]
                        .text
                        .lines()
                        .map(|line| format!("  {line}\n")),
                );
            }
        }
        if self.title.is_empty() {
            return text;
        }
        let indented = text.lines().map(|line| format!("  {line}\n"));
        format!("{}\n{}", self.title, indented.collect::<String>())
    }

    /// Columns in text that are not empty, in lines no wider than `width` unless a single column is.
    fn visible_columns(&self, width: usize) -> Vec<Shown<'_>> {
        let mut shown = Vec::new();
        let mut line = 0;
        let mut used = 0;
        for column in self
            .columns
            .iter()
            .filter(|column| column.place == Place::Column)
        {
            let longest = column
                .cells
                .iter()
                .map(|cell| columns(&cell.text))
                .max()
                .unwrap_or(0);
            let own = longest.max(columns(&column.title));
            if own == 0 {
                continue;
            }
            if used > 0 && used + GAP + own > width {
                line += 1;
                used = INDENT + own;
            } else {
                used += own + if used > 0 { GAP } else { 0 };
            }
            let is_number = |cell: &Cell| cell.value.as_ref().is_some_and(Value::is_number);
            let right = column.cells.iter().any(is_number);
            shown.push(Shown { column, width: own, right, line });
        }
        shown
    }

    /// Columns with a key as comma-separated values, under their keys. A list is one value, with spaces.
    pub fn csv(&self) -> String {
        let keyed = |column: &&Column| column.key.is_some();
        let columns: Vec<&Column> = self.columns.iter().filter(keyed).collect();
        let titles = columns.iter().filter_map(|column| column.key.clone());
        let mut csv = csv_line(titles);
        for row in 0..self.rows {
            csv += &csv_line(columns.iter().map(|column| plain(&column.cells[row])));
        }
        csv
    }

    /// Columns as a table of Markdown.
    pub fn markdown(&self) -> String {
        let shown = self.visible_columns(usize::MAX);
        let titles = shown.iter().map(|shown| shown.column.title.clone());
        let rules = shown
            .iter()
            .map(|shown| if shown.right { "--:" } else { "---" }.to_string());
        let mut markdown = markdown_line(titles) + &markdown_line(rules);
        for row in 0..self.rows {
            let cells = shown
                .iter()
                .map(|shown| shown.column.cells[row].text.clone());
            markdown += &markdown_line(cells);
        }
        markdown
    }

    /// Element `<table>`. Its style breaks values into lines only if they `may_wrap`.
    pub fn html(&self, may_wrap: bool) -> String {
        let scope = if may_wrap { "" } else { " scope=\"row\"" };
        let shown = self.visible_columns(usize::MAX);
        let mut html = String::from("<table>\n");
        if shown.iter().any(|shown| !shown.column.title.is_empty()) {
            let cell = |shown: &Shown| format!("<th>{}</th>", escape(&shown.column.title));
            html += &format!("<tr>{}</tr>\n", shown.iter().map(cell).collect::<String>());
        }
        for row in 0..self.rows {
            html += "<tr>";
            for (number, shown) in shown.iter().enumerate() {
                let text = escape(&shown.column.cells[row].text);
                html += &match number {
                    0 => format!("<th{scope}>{text}</th>"),
                    _ => format!("<td>{text}</td>"),
                };
            }
            html += "</tr>\n";
        }
        html + "</table>"
    }
}

/// Value of a cell alone; empty without one.
fn plain(cell: &Cell) -> String {
    match &cell.value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(list)) => {
            let texts: Vec<String> = list
                .iter()
                .filter_map(Value::as_str)
                .map(String::from)
                .collect();
            texts.join(" ")
        }
        Some(value) => value.to_string(),
    }
}

/// Line of comma-separated values, quoted where a value needs it.
fn csv_line(values: impl Iterator<Item = String>) -> String {
    let mut texts = Vec::new();
    for value in values {
        if value.contains(['"', ',', '\n', '\r']) {
            texts.push(format!("\"{}\"", value.replace('"', "\"\"")));
        } else {
            texts.push(value);
        }
    }
    texts.join(",") + "\n"
}

fn markdown_line(cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<String> = cells
        .map(|cell| cell.replace('|', "\\|").replace('\n', " "))
        .collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Column in text.
struct Shown<'a> {
    column: &'a Column,
    width: usize,
    /// Whether its cells are aligned to the right.
    right: bool,
    /// Number of the line of a row in which it is.
    line: usize,
}

/// Space between two columns, and before what follows of a row that takes several lines.
const GAP: usize = 2;
const INDENT: usize = 4;

/// Appends the lines of a row, or of the titles.
fn push_lines<'a>(text: &mut String, shown: &[Shown<'a>], cell: impl Fn(&'a Column) -> &'a str) {
    let mut row = String::new();
    for (number, shown_column) in shown.iter().enumerate() {
        if number > 0 && shown_column.line > shown[number - 1].line {
            row.truncate(row.trim_end().len());
            row += "\n";
            row += &" ".repeat(INDENT);
        } else if number > 0 {
            row += &" ".repeat(GAP);
        }
        let cell = cell(shown_column.column);
        let padding = " ".repeat(shown_column.width - columns(cell));
        row += &if shown_column.right { padding + cell } else { cell.to_string() + &padding };
    }
    text.push_str(row.trim_end());
    text.push('\n');
}

/// Result of a command: lines and tables as text, and a value as JSON.
#[derive(Debug, Default)]
pub struct Printout {
    parts: Vec<Part>,
    pub json: Value,
}

#[derive(Debug)]
enum Part {
    Text(String),
    Table(Table),
}

impl Printout {
    pub fn new(value: impl Serialize) -> Printout {
        // As text, an f32 has its own digits; as a value, those of the f64 next to it.
        let text = serde_json::to_string(&value).expect("keys are text");
        let json = serde_json::from_str(&text).expect("serde reads what it wrote");
        Printout { parts: Vec::new(), json }
    }

    /// A table, and its rows in JSON.
    pub fn from_table(table: Table) -> Printout {
        Printout { json: table.json(), parts: vec![Part::Table(table)] }
    }

    /// Adds a line, or several.
    pub fn line(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Text(text.into()));
    }

    /// Adds lines that are indented by two columns.
    pub fn push_indented<L: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = L>) {
        for line in lines {
            self.line(format!("  {}", line.as_ref()));
        }
    }

    /// Adds a table, after an empty line if it has a title. A table without rows is left out.
    pub fn table(&mut self, table: Table) {
        if table.is_empty() {
            return;
        }
        if !table.title.is_empty() && !self.parts.is_empty() {
            self.line("");
        }
        self.parts.push(Part::Table(table));
    }

    /// Prints it on standard output, without control characters of other people's text.
    pub fn say(&self, json: bool) {
        if json {
            crate::say!("{:#}", self.json);
        } else {
            crate::say!("{}", escape_control(&self.text(wrap::output_width())));
        }
    }

    /// Text with tables of at most `width` columns.
    pub fn text(&self, width: usize) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(lines) => text += &(lines.clone() + "\n"),
                Part::Table(table) => text += &table.text(width),
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Run {
        name: &'static str,
        loss: f64,
        steps: Option<usize>,
        flags: [&'static str; 1],
    }

    fn table(width: usize) -> (Table, String) {
        let rows = [
            Run { name: "a", loss: 12.345, steps: Some(40), flags: ["--set x=1"] },
            Run { name: "longer", loss: 3.0, steps: None, flags: [""] },
        ];
        let table = Rows::new(&rows)
            .column("run", "run", |run| run.name)
            .column("loss", "losses.last", |run| Cell::fixed(run.loss, 2))
            .column("steps", "steps", |run| Cell::optional(run.steps))
            .text("", |_| "")
            .json("whole", |run| run.steps.map_or(Cell::default(), Cell::from))
            .line_below("set", |run| Cell::new(run.flags.to_vec(), run.flags[0]))
            .table();
        let text = table.text(width);
        (table, text)
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let (table, text) = table(usize::MAX);
        let lines =
            "run      loss  steps\na       12.35     40\n  --set x=1\nlonger   3.00      –\n";
        assert_eq!(text, lines);
        let titled = table.titled("Runs").text(usize::MAX);
        assert!(titled.starts_with("Runs\n  run      loss  steps\n  a  "), "{titled}");
        assert_eq!(Table::from_cells(["a"], Vec::new()).text(9), "a\n");
    }

    #[test]
    fn a_row_that_is_too_wide_takes_several_lines() {
        let (_, text) = table(14);
        let lines = "run      loss\n    steps\na       12.35\n       40\n  --set x=1\n\
                     longer   3.00\n        –\n";
        assert_eq!(text, lines);
        assert!(text.lines().all(|line| columns(line) <= 14));
    }

    #[test]
    fn a_row_is_an_object_and_a_row_of_a_page() {
        let (table, _) = table(80);
        let last = |loss: f64| json!({ "last": loss });
        let expected = json!([
            { "run": "a", "losses": last(12.345), "steps": 40, "whole": 40, "set": ["--set x=1"] },
            { "run": "longer", "losses": last(3.0), "steps": null, "set": [""] },
        ]);
        assert_eq!(table.json(), expected);
        let page = table.html(false);
        assert!(page.contains("<tr><th>run</th><th>loss</th><th>steps</th></tr>"), "{page}");
        assert!(page.contains("<th scope=\"row\">longer</th><td>3.00</td><td>–</td>"), "{page}");
    }

    #[test]
    fn a_table_is_a_file_of_csv_and_of_markdown() {
        let rows = [("a, \"b\"", vec!["x=1", "y=2"], 1.5), ("c|d", vec![], 2.0)];
        let table = Rows::new(&rows)
            .column("name", "name", |row| row.0)
            .column("s", "sec", |row| Cell::fixed(row.2, 2))
            .json("set", |row| Cell::new(row.1.clone(), ""))
            .json("none", |_| Cell::new(Value::Null, ""))
            .table();
        let csv = "name,sec,set,none\n\"a, \"\"b\"\"\",1.5,x=1 y=2,\nc|d,2.0,,\n";
        assert_eq!(table.csv(), csv);
        let markdown = "| name | s |\n| --- | --: |\n| a, \"b\" | 1.50 |\n| c\\|d | 2.00 |\n";
        assert_eq!(table.markdown(), markdown);
    }

    #[test]
    fn single_floats_keep_their_digits() {
        assert_eq!(Printout::new([0.1f32, 0.95]).json.to_string(), "[0.1,0.95]");
        assert_eq!(Printout::new(1.0 / 3.0).json, json!(1.0 / 3.0));
    }

    #[test]
    fn a_printout_separates_titled_tables_and_leaves_out_empty_ones() {
        let (table, _) = table(80);
        let mut out = Printout::default();
        out.table(Table::from_cells(["a"], Vec::new()).titled("Nothing"));
        out.line("first");
        out.push_indented(["second", "third"]);
        out.table(table.titled("Runs"));
        let text = out.text(80);
        assert!(text.starts_with("first\n  second\n  third\n\nRuns\n  run"), "{text}");
    }
}
