//! Text of PTX to kernels: registers, labels, places in shared memory, and statements with their operands.

use crate::memory::PARAMETERS;
use std::collections::HashMap;

/// Operand of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    Register(usize),
    Immediate(u64),
    /// Thread and block, by its name without the `%`: `tid.x`, `nctaid.y`, `laneid`.
    Special(String),
    /// The `_` of a result that is not needed.
    Sink,
    Vector(Vec<Operand>),
    /// An address and a displacement; further operands are coordinates of a tensor map.
    Memory(Box<Operand>, i64, Vec<Operand>),
    /// Two results, `a|b`.
    Both(Box<Operand>, Box<Operand>),
    Label(usize),
}

/// One instruction.
pub struct Statement {
    pub text: String,
    /// Register of the predicate, and whether it is negated.
    pub predicate: Option<(usize, bool)>,
    /// Parts of the name between dots.
    pub parts: Vec<String>,
    pub operands: Vec<Operand>,
}

/// A kernel as text has it.
pub struct Kernel {
    pub name: String,
    /// Bytes of the parameters.
    pub parameters: usize,
    /// Bits of each register; 1 of a predicate.
    pub registers: Vec<u32>,
    pub statements: Vec<Statement>,
    /// Bytes of static shared memory. Dynamic memory begins there.
    pub shared: usize,
    /// Most threads of a block.
    pub threads: usize,
}

/// Bits of a type.
pub fn bits(ty: &str) -> u32 {
    match ty {
        "pred" => 1,
        "b8" | "u8" | "s8" => 8,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 16,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        _ => panic!("no type is called {ty}"),
    }
}

/// Text of one kernel of a module: its header and its body, with the module's own declarations before.
pub fn entry<'a>(module: &'a str, name: &str) -> (&'a str, &'a str) {
    let start = module
        .match_indices(".entry ")
        .map(|(at, word)| at + word.len())
        .find(|at| module[*at..].starts_with(&format!("{name}(")));
    let start = start.unwrap_or_else(|| panic!("no kernel is called {name}"));
    let body = start + module[start..].find("\n{").expect("a body") + 2;
    let mut depth = 1;
    let end = module[body..].find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    let end = body + end.expect("an end");
    (&module[start..body], &module[body..end])
}

/// Parses one kernel of a module.
pub fn kernel(module: &str, name: &str) -> Kernel {
    let (header, body) = entry(module, name);
    let mut parser = Parser::default();
    let parameter = words_after(header, ".param").expect("a parameter");
    let (symbol, size) = array(parameter.last().unwrap());
    parser
        .symbols
        .insert(symbol.to_string(), Operand::Immediate(PARAMETERS));
    let threads = words_after(header, ".maxntid").map_or(1024, |words| {
        let counts = words.iter().filter_map(|word| {
            word.trim_matches(|c: char| !c.is_ascii_digit())
                .parse::<usize>()
                .ok()
        });
        counts.product()
    });
    let statements = split_statements(&without_comments(body));
    for line in module
        .lines()
        .filter(|line| line.starts_with(".shared") && used(body, line))
    {
        parser.declare(line.trim_end_matches(';'), &[0]);
    }
    for (text, scopes) in &statements {
        if text.starts_with('.') {
            parser.declare(text, scopes);
        }
    }
    parser.shared = parser.shared.next_multiple_of(128);
    for line in module
        .lines()
        .filter(|line| line.starts_with(".extern .shared"))
    {
        let (symbol, _) = array(line.split_whitespace().last().unwrap());
        let place = Operand::Immediate(parser.shared as u64);
        parser.symbols.insert(symbol.to_string(), place);
    }
    parser.label(&statements);
    let kept = statements
        .iter()
        .filter(|(text, _)| is_instruction(text))
        .map(|(text, scopes)| parser.statement(text, scopes));
    Kernel {
        name: name.to_string(),
        parameters: size.expect("a struct"),
        statements: kept.collect(),
        registers: parser.registers,
        shared: parser.shared,
        threads,
    }
}

/// Words of the first line that has this one, after it.
fn words_after<'a>(text: &'a str, word: &str) -> Option<Vec<&'a str>> {
    let at = text.find(word)? + word.len();
    Some(text[at..].lines().next()?.split_whitespace().collect())
}

/// `NAME[BYTES]`.
fn array(text: &str) -> (&str, Option<usize>) {
    let text = text.trim_end_matches([';', ',']);
    match text.split_once('[') {
        Some((name, size)) => (name, size.trim_end_matches(']').parse().ok()),
        None => (text, None),
    }
}

fn used(body: &str, declaration: &str) -> bool {
    body.contains(array(declaration.split_whitespace().last().unwrap()).0)
}

fn without_comments(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

fn is_instruction(text: &str) -> bool {
    !text.ends_with(':') && !text.starts_with('.')
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || "_$".contains(c))
}

/// Statements and labels, each with the blocks that it is in: 0 is the kernel.
fn split_statements(body: &str) -> Vec<(String, Vec<usize>)> {
    let (mut found, mut scopes, mut blocks) = (Vec::new(), vec![0], 0);
    let mut text = String::new();
    for c in body.chars() {
        let begun = text.trim();
        match c {
            '{' if begun.is_empty() => {
                blocks += 1;
                scopes.push(blocks);
            }
            '}' if begun.is_empty() => {
                scopes.pop();
            }
            ';' => {
                let words: Vec<&str> = begun.split_whitespace().collect();
                found.push((words.join(" "), scopes.clone()));
                text.clear();
            }
            ':' if is_name(begun) => {
                found.push((format!("{begun}:"), scopes.clone()));
                text.clear();
            }
            c => text.push(c),
        }
    }
    found.retain(|(text, _)| !text.is_empty());
    found
}

/// Parts between commas that are in no bracket.
fn split_operands(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => (),
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

#[derive(Default)]
struct Parser {
    registers: Vec<u32>,
    /// Names of the kernel, and of a block as `NAME@BLOCK`.
    symbols: HashMap<String, Operand>,
    shared: usize,
}

impl Parser {
    fn declare(&mut self, text: &str, scopes: &[usize]) {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[0] {
            ".reg" => {
                let width = bits(words[1].trim_start_matches('.'));
                for name in words[2..].iter().map(|name| name.trim_end_matches(',')) {
                    match name.split_once('<') {
                        Some((name, count)) => {
                            let count: usize = count.trim_end_matches('>').parse().unwrap();
                            for number in 0..count {
                                self.register(format!("{name}{number}"), width);
                            }
                        }
                        None => self.register(scoped(name, scopes[scopes.len() - 1]), width),
                    }
                }
            }
            ".shared" => {
                let align: usize = words[2].parse().unwrap();
                let width = bits(words[3].trim_start_matches('.')) as usize / 8;
                let (name, count) = array(words[4]);
                let at = self.shared.next_multiple_of(align);
                self.symbols
                    .insert(name.to_string(), Operand::Immediate(at as u64));
                self.shared = at + width * count.unwrap_or(1);
            }
            ".pragma" => (),
            _ => panic!("not known here: {text}"),
        }
    }

    fn register(&mut self, name: String, width: u32) {
        self.symbols
            .insert(name, Operand::Register(self.registers.len()));
        self.registers.push(width);
    }

    fn label(&mut self, statements: &[(String, Vec<usize>)]) {
        let mut at = 0;
        for (text, scopes) in statements {
            if let Some(name) = text.strip_suffix(':') {
                let name = scoped(name, scopes[scopes.len() - 1]);
                self.symbols.insert(name, Operand::Label(at));
            } else if is_instruction(text) {
                at += 1;
            }
        }
    }

    fn statement(&self, text: &str, scopes: &[usize]) -> Statement {
        let (predicate, rest) = match text.strip_prefix('@') {
            Some(guarded) => {
                let (name, rest) = guarded.split_once(' ').unwrap();
                let negated = name.starts_with('!');
                let name = name.trim_start_matches('!');
                match self.operand(name, scopes) {
                    Operand::Register(number) => (Some((number, negated)), rest),
                    other => panic!("{other:?} is not a predicate: {text}"),
                }
            }
            None => (None, text),
        };
        let (name, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        let operands = split_operands(operands).into_iter();
        Statement {
            text: text.to_string(),
            predicate,
            parts: name.split('.').map(str::to_string).collect(),
            operands: operands.map(|one| self.operand(one, scopes)).collect(),
        }
    }

    fn operand(&self, text: &str, scopes: &[usize]) -> Operand {
        let all = |text: &str| {
            let parts = split_operands(text).into_iter();
            parts.map(|one| self.operand(one, scopes)).collect()
        };
        if let Some(inside) = text.strip_prefix('{') {
            return Operand::Vector(all(inside.trim_end_matches('}')));
        }
        if let Some(inside) = text.strip_prefix('[') {
            let parts = split_operands(inside.strip_suffix(']').unwrap());
            let (base, offset) = match parts[0].split_once('+') {
                Some((base, offset)) => (base, offset.parse().unwrap()),
                None => (parts[0], 0),
            };
            let more = parts[1..].iter();
            let more = more.flat_map(|one| match self.operand(one, scopes) {
                Operand::Vector(coordinates) => coordinates,
                other => vec![other],
            });
            return Operand::Memory(Box::new(self.operand(base, scopes)), offset, more.collect());
        }
        if let Some((first, second)) = text.split_once('|') {
            let one = |text| Box::new(self.operand(text, scopes));
            return Operand::Both(one(first), one(second));
        }
        if text == "_" {
            return Operand::Sink;
        }
        if let Some(number) = number(text) {
            return Operand::Immediate(number);
        }
        let known = scopes
            .iter()
            .rev()
            .find_map(|scope| self.symbols.get(&scoped(text, *scope)));
        match (known, text.strip_prefix('%')) {
            (Some(known), _) => known.clone(),
            (None, Some(name)) => Operand::Special(name.to_string()),
            (None, None) => panic!("not declared: {text}"),
        }
    }
}

fn scoped(name: &str, block: usize) -> String {
    if block == 0 { name.to_string() } else { format!("{name}@{block}") }
}

/// An integer, or the bits of a float.
fn number(text: &str) -> Option<u64> {
    for prefix in ["0f", "0F", "0d", "0D", "0x"] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return u64::from_str_radix(digits.trim_end_matches('U'), 16).ok();
        }
    }
    match text.trim_end_matches('U') {
        text if text.starts_with('-') => text.parse::<i64>().ok().map(|number| number as u64),
        text => text.parse().ok(),
    }
}
