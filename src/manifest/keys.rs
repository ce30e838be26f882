//! Checks the YAML tree against the table of settings through its JSON Schema: the keys, the kind
//! of each value, and its limits. Values that pass can be deserialised by serde.

use super::dialects;
use super::report::{Report, short};
use super::suggest::{self, Suggestion};
use super::tree::{Entry, Node, Value};
use base::number::{NotANumber, Number};
use serde_json::Value as Json;
use std::cmp::Ordering;

/// Kinds of value that a schema permits for one key, with its alternatives flattened.
#[derive(Default)]
struct Shape<'s> {
    truth: bool,
    whole: Option<&'s Json>,
    number: Option<&'s Json>,
    text: bool,
    choices: Vec<&'s str>,
    items: Option<&'s Json>,
    object: Option<&'s Json>,
    named: Option<&'s Json>,
}

pub struct Keys {
    schema: Json,
    /// Path of every key; `*` represents a name or a number.
    all: Vec<String>,
}

/// Settings that have one place each, as `--set` names them: `lr.peak`.
pub fn settings() -> Vec<String> {
    let keys = Keys::new().all;
    let mut settings = keys.clone();
    settings.retain(|key| {
        let section = format!("{key}.");
        !key.contains('*') && !keys.iter().any(|other| other.starts_with(&section))
    });
    settings
}

/// Suggestion for an option of the command line that does not exist, such as `--lr` or `--train-iters`.
pub fn suggest_setting(option: &str) -> Option<suggest::Suggestion> {
    suggest::option(option, &settings())
}

/// Paths of all keys and sections; `*` represents a name or a number.
#[cfg(test)]
pub fn all() -> Vec<String> {
    Keys::new().all
}

/// JSON Schema of a manifest.
pub fn schema() -> Json {
    schemars::schema_for!(super::forms::Raw).to_value()
}

/// Numbers as people write them: `1B`, `100k`, `3e9`, `1_000_000`. YAML takes some of them for text.
const NUMBER: &str = r"^[-+]?(\d[\d_]*\.?|\.\d)[\d_]*( ?[kKmMbBgGtT]|[eE][-+]?\d+)?$";

/// JSON Schema for editors, in which a number may also be text such as `1B`.
pub fn editor_schema() -> Json {
    fn permit_text(schema: &mut Json) {
        match schema {
            Json::Array(items) => items.iter_mut().for_each(permit_text),
            Json::Object(keys) => {
                let kinds = match keys.get("type") {
                    Some(Json::Array(kinds)) => kinds.clone(),
                    Some(Json::String(kind)) => vec![kind.clone().into()],
                    _ => Vec::new(),
                };
                if kinds.contains(&"integer".into()) || kinds.contains(&"number".into()) {
                    keys.insert("type".into(), [kinds, vec!["string".into()]].concat().into());
                    keys.insert("pattern".into(), NUMBER.into());
                }
                keys.values_mut().for_each(permit_text);
            }
            _ => {}
        }
    }
    let mut schema = schema();
    permit_text(&mut schema);
    schema
}

impl Keys {
    pub fn new() -> Keys {
        let schema = schema();
        let mut keys = Keys { schema, all: Vec::new() };
        let mut all = Vec::new();
        keys.list(&keys.schema, "", &mut all);
        keys.all = all;
        keys
    }

    /// Converts the manifest to JSON for serde. Wrong parts are reported and left out.
    pub fn read(&self, report: &mut Report) -> Json {
        let root = report.root();
        let path = "";
        match &root.value {
            Value::Map(entries) => self.section(entries, &self.schema, path, report),
            Value::Null => {
                let sections = required_keys(&self.schema).join(", ");
                report.add(path, "the manifest is empty", format!("it needs {sections}"));
                Json::Object(Default::default())
            }
            _ => {
                report.add(
                    path,
                    "a manifest is keys with values, such as `name: my-run`",
                    "see the files in manifests/",
                );
                Json::Object(Default::default())
            }
        }
    }

    fn section(&self, entries: &[Entry], schema: &Json, path: &str, report: &mut Report) -> Json {
        let empty = serde_json::Map::new();
        let known = schema["properties"].as_object().unwrap_or(&empty);
        let mut values = serde_json::Map::new();
        for entry in entries {
            let below = suggest::join(path, &entry.key);
            match known.get(&entry.key) {
                None => self.report_unknown(path, entry, known, report),
                Some(schema) => {
                    if let Some(value) = self.value(&entry.node, schema, &below, report) {
                        values.insert(entry.key.clone(), value);
                    }
                }
            }
        }
        for key in required_keys(schema) {
            let below = suggest::join(path, key);
            if !values.contains_key(key) && report.are_valid(&[&below]) {
                let about = sentence(&known[key]);
                let needs = self
                    .shape(&known[key])
                    .object
                    .map(required_keys)
                    .unwrap_or_default();
                let remedy = if needs.is_empty() {
                    format!("add `{key}:` ({about})")
                } else {
                    format!("add `{key}:` with {} ({about})", needs.join(", "))
                };
                report.add(&below, format!("{below} is missing"), remedy);
            }
        }
        Json::Object(values)
    }

    /// Reports a key that does not exist, or the keys of a section that does not exist, if another
    /// trainer has it.
    fn report_unknown(
        &self,
        path: &str,
        entry: &Entry,
        known: &serde_json::Map<String, Json>,
        report: &mut Report,
    ) {
        let below = suggest::join(path, &entry.key);
        if report.is_full() {
            return;
        }
        let siblings = known.keys().map(String::as_str);
        // A key of one item of a list is not one of another section.
        let is_item = path.split('.').any(|step| step.parse::<usize>().is_ok());
        let meant = if is_item {
            suggest::word(&entry.key, siblings).map(|key| Suggestion::Key(suggest::join(path, key)))
        } else {
            suggest::key(path, &entry.key, siblings, &self.all)
        };
        if let (None, Value::Map(inside)) = (&meant, &entry.node.value)
            && inside.iter().any(|inner| is_elsewhere(&below, inner))
        {
            for inner in inside {
                self.report_unknown(&below, inner, &serde_json::Map::new(), report);
            }
            return;
        }
        let remedy = match meant {
            Some(meant) => {
                if let Some(key) = meant.key() {
                    report.mark_invalid(key);
                }
                meant.remedy()
            }
            None if known.is_empty() => "remove it".to_string(),
            None => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let section = if path.is_empty() { "a manifest" } else { path };
                format!("{section} has the keys {}", names.join(", "))
            }
        };
        report.add(&below, format!("unknown key {below}"), remedy);
    }

    /// Converts a value for serde; `None` if it is empty or wrong (and reported).
    fn value(&self, node: &Node, schema: &Json, path: &str, report: &mut Report) -> Option<Json> {
        let shape = self.shape(schema);
        match &node.value {
            // `adamw:` without content is a section with defaults only.
            Value::Null => {
                let section = shape
                    .object
                    .filter(|object| required_keys(object).is_empty())
                    .filter(|_| shape.choices.is_empty());
                section.map(|_| Json::Object(Default::default()))
            }
            Value::Map(entries) => match (shape.object, shape.named) {
                (Some(object), _) => Some(self.section(entries, object, path, report)),
                (None, Some(named)) => Some(self.names(entries, named, path, report)),
                _ => self.wrong(&shape, path, "a section", report),
            },
            Value::List(items) => match shape.items {
                Some(schema) => Some(self.items(items, schema, path, report)),
                None => self.wrong(&shape, path, "a list", report),
            },
            Value::Scalar { text, quoted } => match scalar(&shape, text, *quoted) {
                Ok(value) => Some(value),
                Err(Wrong::Kind) => {
                    self.wrong(&shape, path, &format!("\"{}\"", short(text)), report)
                }
                Err(Wrong::Value(what, remedy)) => {
                    report.add(path, format!("{path} {what}"), remedy);
                    None
                }
            },
        }
    }

    fn names(&self, entries: &[Entry], schema: &Json, path: &str, report: &mut Report) -> Json {
        let mut values = serde_json::Map::new();
        for entry in entries {
            let below = suggest::join(path, &entry.key);
            if entry.node.value == Value::Null {
                report.add(&below, format!("{below} has no value"), "give it one or remove it");
            } else if let Some(value) = self.value(&entry.node, schema, &below, report) {
                values.insert(entry.key.clone(), value);
            }
        }
        Json::Object(values)
    }

    fn items(&self, items: &[Node], schema: &Json, path: &str, report: &mut Report) -> Json {
        let mut values = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let below = format!("{path}.{i}");
            if item.value == Value::Null {
                report.add(&below, format!("{below} is empty"), "give it a value or remove it");
            }
            values.extend(self.value(item, schema, &below, report));
        }
        Json::Array(values)
    }

    fn wrong(&self, shape: &Shape, path: &str, found: &str, report: &mut Report) -> Option<Json> {
        let wanted = describe_wanted(shape);
        let near = suggest::choice(found.trim_matches('"'), shape.choices.iter().copied());
        let remedy = match near {
            Some(choice) => format!("did you mean {choice}? It takes {wanted}"),
            None => format!("it takes {wanted}"),
        };
        report.add(path, format!("{path} is {found}"), remedy);
        None
    }

    fn shape<'s>(&'s self, schema: &'s Json) -> Shape<'s> {
        let mut shape = Shape::default();
        self.gather(schema, &mut shape);
        shape
    }

    fn gather<'s>(&'s self, schema: &'s Json, shape: &mut Shape<'s>) {
        if let Some(name) = schema["$ref"].as_str() {
            let pointer = name.trim_start_matches('#');
            return self.gather(self.schema.pointer(pointer).unwrap_or(&Json::Null), shape);
        }
        for key in ["anyOf", "oneOf"] {
            for alternative in schema[key].as_array().into_iter().flatten() {
                self.gather(alternative, shape);
            }
        }
        if let Some(choice) = schema["const"].as_str() {
            return shape.choices.push(choice);
        }
        let list = std::slice::from_ref(&schema["type"]);
        for kind in schema["type"].as_array().map(Vec::as_slice).unwrap_or(list) {
            match kind.as_str().unwrap_or_default() {
                "boolean" => shape.truth = true,
                "integer" => shape.whole = Some(schema),
                "number" => shape.number = Some(schema),
                "string" => shape.text = true,
                "array" => shape.items = Some(&schema["items"]),
                "object" if schema["additionalProperties"].is_object() => {
                    shape.named = Some(&schema["additionalProperties"]);
                }
                "object" => shape.object = Some(schema),
                _ => {}
            }
        }
    }

    fn list(&self, schema: &Json, path: &str, all: &mut Vec<String>) {
        let shape = self.shape(schema);
        for (key, below) in shape
            .object
            .iter()
            .flat_map(|o| o["properties"].as_object())
            .flatten()
        {
            let path = suggest::join(path, key);
            self.list(below, &path, all);
            all.push(path);
        }
        for below in [shape.named, shape.items].into_iter().flatten() {
            self.list(below, &suggest::join(path, "*"), all);
        }
    }
}

/// Whether another trainer has a key, or a section with one, under this name.
fn is_elsewhere(path: &str, entry: &Entry) -> bool {
    let below = suggest::join(path, &entry.key);
    match &entry.node.value {
        Value::Map(inside) => inside.iter().any(|inner| is_elsewhere(&below, inner)),
        _ => dialects::find(&below).is_some(),
    }
}

enum Wrong {
    /// The value has another kind.
    Kind,
    /// The value has the right kind but is wrong: the problem, and the remedy.
    Value(String, String),
}

fn scalar(shape: &Shape, text: &str, quoted: bool) -> Result<Json, Wrong> {
    if let Some(choice) = shape.choices.iter().find(|choice| **choice == text) {
        return Ok((*choice).into());
    }
    if shape.text {
        return Ok(text.into());
    }
    if shape.truth {
        return truth(text, quoted);
    }
    let Some(limits) = shape.whole.or(shape.number) else { return Err(Wrong::Kind) };
    let number = number(text)?;
    if quoted {
        return Err(Wrong::Value(
            format!("is the text \"{}\"", short(text)),
            "remove the quotes".to_string(),
        ));
    }
    within(&number, limits, text)?;
    match number {
        Number::Whole(whole) => Ok(whole.into()),
        Number::Real(real) if shape.whole.is_none() => Ok(real.into()),
        Number::Real(_) => number.whole().map(Json::from).ok_or_else(|| {
            Wrong::Value(
                format!("is {text}, not a whole number"),
                "write it without a fraction".to_string(),
            )
        }),
    }
}

fn truth(text: &str, quoted: bool) -> Result<Json, Wrong> {
    let plain = text.to_lowercase();
    let meant = match plain.as_str() {
        "true" if !quoted => return Ok(true.into()),
        "false" if !quoted => return Ok(false.into()),
        "true" | "yes" | "on" | "y" | "1" => true,
        "false" | "no" | "off" | "n" | "0" => false,
        _ => return Err(Wrong::Kind),
    };
    Err(Wrong::Value(format!("is \"{text}\""), format!("write {meant} (without quotes)")))
}

/// Number of a manifest; what is wrong with the text if it is not one.
fn number(text: &str) -> Result<Number, Wrong> {
    let wrong = |what: &str, remedy: &str| {
        Err(Wrong::Value(format!("is {}, {what}", short(text)), remedy.to_string()))
    };
    match Number::parse(text) {
        Ok(number) => Ok(number),
        Err(NotANumber::Text) => Err(Wrong::Kind),
        Err(NotANumber::NotFinite) => wrong("not a finite number", "give a number"),
        Err(NotANumber::TooLarge) => wrong("too large for a number", "give a smaller number"),
        Err(NotANumber::LeadingZero) => {
            wrong("which some read as octal or hexadecimal", "write a plain decimal number")
        }
    }
}

fn within(number: &Number, limits: &Json, text: &str) -> Result<(), Wrong> {
    let minimum = &limits["minimum"];
    let maximum = &limits["maximum"];
    let differs = |n: f64, limit: &Json, side: Ordering| {
        limit
            .as_f64()
            .is_some_and(|limit| n.partial_cmp(&limit) == Some(side))
    };
    let is_beyond = |limit: &Json, side: Ordering| match (number, limit.as_u64()) {
        (Number::Whole(n), Some(limit)) => n.cmp(&limit) == side,
        (Number::Whole(n), None) => differs(*n as f64, limit, side),
        (Number::Real(n), _) => differs(*n, limit, side),
    };
    let limit = |what: &str, limit: &Json| {
        let least = format!("is {}; the {what} is {limit}", short(text));
        Err(Wrong::Value(least, format!("give a number from {minimum} to {maximum}")))
    };
    if is_beyond(minimum, Ordering::Less) {
        limit("least", minimum)
    } else if is_beyond(maximum, Ordering::Greater) {
        limit("most", maximum)
    } else {
        Ok(())
    }
}

/// For example "a number, or a section with keys embedding, attention, residual".
fn describe_wanted(shape: &Shape) -> String {
    let mut ways = Vec::new();
    if !shape.choices.is_empty() {
        ways.push(shape.choices.join(", "));
    }
    let kinds = [
        (shape.truth, "true or false"),
        (shape.whole.is_some(), "a whole number"),
        (shape.number.is_some(), "a number"),
        (shape.text, "text"),
        (shape.items.is_some(), "a list"),
    ];
    let permitted = kinds.into_iter().filter(|(is_permitted, _)| *is_permitted);
    ways.extend(permitted.map(|(_, kind)| kind.to_string()));
    if let Some(keys) = shape
        .object
        .and_then(|object| object["properties"].as_object())
    {
        let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
        ways.push(format!("a section with keys {}", keys.join(", ")));
    }
    if shape.named.is_some() {
        ways.push("a section of names with values".to_string());
    }
    ways.join(", or ")
}

fn required_keys(schema: &Json) -> Vec<&str> {
    schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect()
}

/// First sentence of a key's description.
fn sentence(schema: &Json) -> String {
    let text = schema["description"]
        .as_str()
        .unwrap_or_default()
        .replace('\n', " ");
    let end = text.find(". ").map_or(text.len(), |end| end);
    text[..end].trim_end_matches('.').to_string()
}
