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

/// Column of a table: its title in text, its key in JSON, and its cell of a row.
pub struct Column<'a, R> {
    head: Head,
    cell: Box<dyn Fn(&R) -> Cell + 'a>,
}

#[derive(Clone, Debug)]
struct Head {
    title: String,
    /// Key in JSON; `a.b` is the key `b` of the object `a`.
    key: Option<String>,
    place: Place,
}

/// Place of a column in text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Column,
    /// Lines below the row.
    Below,
    JsonOnly,
}

impl<'a, R: 'a> Column<'a, R> {
    /// Column of text and JSON.
    pub fn new<C: Into<Cell>>(
        title: impl Into<String>,
        key: impl Into<String>,
        cell: impl Fn(&R) -> C + 'a,
    ) -> Column<'a, R> {
        let head = Head { title: title.into(), key: Some(key.into()), place: Place::Column };
        Column { head, cell: Box::new(move |row| cell(row).into()) }
    }

    /// Column of text only.
    pub fn text<C: Into<Cell>>(
        title: impl Into<String>,
        cell: impl Fn(&R) -> C + 'a,
    ) -> Column<'a, R> {
        let head = Head { title: title.into(), key: None, place: Place::Column };
        Column { head, cell: Box::new(move |row| cell(row).into()) }
    }

    /// Column of JSON only.
    pub fn json<C: Into<Cell>>(
        key: impl Into<String>,
        cell: impl Fn(&R) -> C + 'a,
    ) -> Column<'a, R> {
        let head = Head { title: String::new(), key: Some(key.into()), place: Place::JsonOnly };
        Column { head, cell: Box::new(move |row| cell(row).into()) }
    }

    /// The column's text stands in lines below its row.
    pub fn below(mut self) -> Column<'a, R> {
        self.head.place = Place::Below;
        self
    }

    /// Column of rows that have a part with this column.
    pub fn of<S: 'a>(self, part: fn(&S) -> &R) -> Column<'a, S> {
        Column { head: self.head, cell: Box::new(move |row| (self.cell)(part(row))) }
    }
}

/// Rows of cells.
#[derive(Clone, Debug)]
pub struct Table {
    /// Line above the table, whose rows are then indented.
    title: String,
    heads: Vec<Head>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new<'r, R: 'r>(columns: &[Column<R>], rows: impl IntoIterator<Item = &'r R>) -> Table {
        let cells = |row| columns.iter().map(|column| (column.cell)(row)).collect();
        Table {
            title: String::new(),
            heads: columns.iter().map(|column| column.head.clone()).collect(),
            rows: rows.into_iter().map(cells).collect(),
        }
    }

    /// Table of text alone, with these titles.
    pub fn from_cells(titles: &[&str], rows: Vec<Vec<Cell>>) -> Table {
        let head =
            |title: &&str| Head { title: title.to_string(), key: None, place: Place::Column };
        Table { title: String::new(), heads: titles.iter().map(head).collect(), rows }
    }

    /// Names and values, a row each.
    pub fn facts(facts: Vec<(&str, String)>) -> Table {
        let row = |(name, value): (&str, String)| vec![name.into(), value.into()];
        Table::from_cells(&["", ""], facts.into_iter().map(row).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn titled(self, title: impl Into<String>) -> Table {
        Table { title: title.into(), ..self }
    }

    /// Array with an object per row.
    pub fn json(&self) -> Value {
        self.rows.iter().map(|row| self.object(row)).collect()
    }

    /// Object of the only row.
    ///
    /// # Panics
    /// If the table does not have one row.
    pub fn json_row(&self) -> Value {
        let [row] = &self.rows[..] else { panic!("{} rows, not one", self.rows.len()) };
        self.object(row)
    }

    fn object(&self, row: &[Cell]) -> Value {
        let mut object = Map::new();
        for (head, cell) in self.heads.iter().zip(row) {
            let (Some(key), Some(value)) = (&head.key, cell.value.clone()) else { continue };
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
        let shown: Vec<TextColumn> = self.text_columns();
        let indent = if self.title.is_empty() { 0 } else { GAP };
        let lines = lines_of_columns(&shown, width.saturating_sub(indent));
        let mut text = String::new();
        if shown.iter().any(|column| !column.title.is_empty()) {
            let titles: Vec<&str> = shown.iter().map(|column| column.title).collect();
            push_lines(&mut text, &titles, &shown, &lines);
        }
        for row in &self.rows {
            let cells: Vec<&str> = shown
                .iter()
                .map(|column| &*row[column.place].text)
                .collect();
            push_lines(&mut text, &cells, &shown, &lines);
            for (head, cell) in self.heads.iter().zip(row) {
                if head.place == Place::Below {
                    text.extend(cell.text.lines().map(|line| format!("  {line}\n")));
                }
            }
        }
        if self.title.is_empty() {
            return text;
        }
        let indented = text.lines().map(|line| format!("  {line}\n"));
        format!("{}\n{}", self.title, indented.collect::<String>())
    }

    /// Columns in text, without empty ones.
    fn text_columns(&self) -> Vec<TextColumn<'_>> {
        let mut shown = Vec::new();
        for (place, head) in self.heads.iter().enumerate() {
            let cells = || self.rows.iter().map(|row| &row[place]);
            let longest = cells().map(|cell| columns(&cell.text)).max().unwrap_or(0);
            if head.place == Place::Column && (longest > 0 || !head.title.is_empty()) {
                let width = longest.max(columns(&head.title));
                let right = cells().any(|cell| cell.value.as_ref().is_some_and(Value::is_number));
                shown.push(TextColumn { place, title: &head.title, width, right });
            }
        }
        shown
    }

    /// Element `<table>`. Its style breaks values into lines only if they `may_wrap`.
    pub fn html(&self, may_wrap: bool) -> String {
        let scope = if may_wrap { "" } else { " scope=\"row\"" };
        let shown = self.text_columns();
        let mut html = String::from("<table>\n");
        if shown.iter().any(|column| !column.title.is_empty()) {
            let cell = |column: &TextColumn| format!("<th>{}</th>", escape(column.title));
            html += &format!("<tr>{}</tr>\n", shown.iter().map(cell).collect::<String>());
        }
        for row in &self.rows {
            html += "<tr>";
            for (number, column) in shown.iter().enumerate() {
                let text = escape(&row[column.place].text);
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

/// Column in text.
struct TextColumn<'a> {
    /// Number among all columns of the table.
    place: usize,
    title: &'a str,
    width: usize,
    /// Whether its cells are aligned to the right.
    right: bool,
}

/// Space between two columns, and before what follows of a row that takes several lines.
const GAP: usize = 2;
const INDENT: usize = 4;

/// Line of each column, so that no line is wider than `width` unless a single column is.
fn lines_of_columns(shown: &[TextColumn], width: usize) -> Vec<usize> {
    let mut line = 0;
    let mut used = 0;
    let mut lines = Vec::new();
    for column in shown {
        let gap = if used == 0 { 0 } else { GAP };
        if used > 0 && used + gap + column.width > width {
            line += 1;
            used = INDENT + column.width;
        } else {
            used += gap + column.width;
        }
        lines.push(line);
    }
    lines
}

/// Appends a row's lines.
fn push_lines(text: &mut String, cells: &[&str], shown: &[TextColumn], lines: &[usize]) {
    let mut line = String::new();
    for (number, (cell, column)) in cells.iter().zip(shown).enumerate() {
        if number > 0 && lines[number] > lines[number - 1] {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(INDENT);
        } else if number > 0 {
            line += &" ".repeat(GAP);
        }
        let padding = " ".repeat(column.width - columns(cell));
        line += &if column.right { padding + cell } else { cell.to_string() + &padding };
    }
    text.push_str(line.trim_end());
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
        let json = serde_json::to_value(value).expect("keys are text");
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
    pub fn indented(&mut self, text: impl AsRef<str>) {
        let lines = text
            .as_ref()
            .lines()
            .map(|line| Part::Text(format!("  {line}")));
        self.parts.extend(lines);
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
        let columns = [
            Column::new("run", "run", |run: &Run| run.name),
            Column::new("loss", "losses.last", |run: &Run| Cell::fixed(run.loss, 2)),
            Column::new("steps", "steps", |run: &Run| Cell::optional(run.steps)),
            Column::text("", |_: &Run| ""),
            Column::json("whole", |run: &Run| run.steps.map_or(Cell::default(), Cell::from)),
            Column::new("", "set", |run: &Run| Cell::new(run.flags.to_vec(), run.flags[0])).below(),
        ];
        let rows = [
            Run { name: "a", loss: 12.345, steps: Some(40), flags: ["--set x=1"] },
            Run { name: "longer", loss: 3.0, steps: None, flags: [""] },
        ];
        let table = Table::new(&columns, &rows);
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
        assert_eq!(Table::from_cells(&["a"], Vec::new()).text(9), "a\n");
    }

    #[test]
    fn a_row_that_is_too_wide_takes_several_lines() {
        let (_, text) = table(14);
        let lines = "run      loss\n    steps\na       12.35\n       40\n  --set x=1\nlonger   3.00\n        –\n";
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
    fn a_printout_separates_titled_tables_and_leaves_out_empty_ones() {
        let (table, _) = table(80);
        let mut out = Printout::default();
        out.table(Table::from_cells(&["a"], Vec::new()).titled("Nothing"));
        out.line("first");
        out.indented("second\nthird");
        out.table(table.titled("Runs"));
        let text = out.text(80);
        assert!(text.starts_with("first\n  second\n  third\n\nRuns\n  run"), "{text}");
    }
}
