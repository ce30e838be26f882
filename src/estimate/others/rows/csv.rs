//! Comma-separated values (RFC 4180): quoted fields, doubled quotes, line breaks inside quotes.

/// Records with the line each begins at.
pub fn records(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut all = Vec::new();
    let (mut record, mut field) = (Vec::new(), String::new());
    let (mut quoted, mut line, mut first) = (false, 1, 1);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\n' {
            line += 1;
        }
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                record.push(std::mem::take(&mut field));
                all.push((first, std::mem::take(&mut record)));
                first = line;
            }
            '\r' if !quoted => {}
            c => field.push(c),
        }
    }
    if !field.is_empty() || !record.is_empty() {
        record.push(field);
        all.push((first, record));
    }
    all.retain(|(_, record)| record.iter().any(|field| !field.trim().is_empty()));
    all
}
