//! Arithmetic of scripts: `$((A * B))` in whole numbers, and the numbers that scripts ask `bc`, `perl` or
//! Python for, in floating point.

/// Value of an expression; None if it is not one or a name has no value. `value` gives the text of a name.
/// `whole`: a quotient is truncated.
pub fn evaluate(text: &str, whole: bool, value: &dyn Fn(&str) -> Option<String>) -> Option<f64> {
    calculate(text, whole, value, 0)
}

/// Number as a script writes it: without a point if it is whole.
pub fn written(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        format!("{}", number as i64)
    } else {
        number.to_string()
    }
}

/// A value is an expression too, so deep at most.
const MAX_DEPTH: usize = 16;

fn calculate(
    text: &str,
    whole: bool,
    value: &dyn Fn(&str) -> Option<String>,
    depth: usize,
) -> Option<f64> {
    let chars: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let mut parser = Parser { chars, at: 0, whole, value, depth };
    let result = parser.binary(0)?;
    (parser.at == parser.chars.len() && result.is_finite()).then_some(result)
}

struct Parser<'v> {
    chars: Vec<char>,
    at: usize,
    whole: bool,
    value: &'v dyn Fn(&str) -> Option<String>,
    /// Values and parentheses around.
    depth: usize,
}

/// Operators and their binding; longer ones first.
const OPERATORS: [(&str, u8); 15] = [
    ("**", 7),
    ("||", 1),
    ("&&", 2),
    ("==", 3),
    ("!=", 3),
    ("<=", 4),
    (">=", 4),
    ("//", 6),
    ("<", 4),
    (">", 4),
    ("+", 5),
    ("-", 5),
    ("*", 6),
    ("/", 6),
    ("%", 6),
];

impl Parser<'_> {
    /// Operand, followed by operators that bind at least so.
    fn binary(&mut self, least: u8) -> Option<f64> {
        let mut left = self.operand()?;
        loop {
            let rest: String = self.chars[self.at..].iter().take(2).collect();
            let Some((operator, binding)) = OPERATORS
                .into_iter()
                .find(|(operator, _)| rest.starts_with(operator))
                .filter(|(_, binding)| *binding > least)
            else {
                return Some(left);
            };
            self.at += operator.len();
            let right = self.binary(binding)?;
            left = self.apply(operator, left, right)?;
        }
    }

    fn apply(&self, operator: &str, a: f64, b: f64) -> Option<f64> {
        let truth = |yes: bool| f64::from(u8::from(yes));
        Some(match operator {
            "+" => a + b,
            "-" => a - b,
            "*" => a * b,
            "**" => a.powf(b),
            "/" | "//" | "%" if b == 0.0 => return None,
            "/" if self.whole => (a / b).trunc(),
            "//" => (a / b).floor(),
            "/" => a / b,
            "%" => a % b,
            "==" => truth(a == b),
            "!=" => truth(a != b),
            "<" => truth(a < b),
            ">" => truth(a > b),
            "<=" => truth(a <= b),
            ">=" => truth(a >= b),
            "&&" => truth(a != 0.0 && b != 0.0),
            _ => truth(a != 0.0 || b != 0.0),
        })
    }

    fn operand(&mut self) -> Option<f64> {
        let c = *self.chars.get(self.at)?;
        if self.depth > MAX_DEPTH {
            return None;
        }
        match c {
            '-' | '+' => {
                self.at += 1;
                // A sign binds closer than all operators but the power.
                self.depth += 1;
                let operand = self.binary(6)?;
                self.depth -= 1;
                Some(if c == '-' { -operand } else { operand })
            }
            '(' => {
                self.at += 1;
                self.depth += 1;
                let value = self.binary(0)?;
                self.depth -= 1;
                (self.chars.get(self.at) == Some(&')')).then_some(())?;
                self.at += 1;
                Some(value)
            }
            '.' | '0'..='9' => self.number(),
            '$' | '{' | '_' | 'a'..='z' | 'A'..='Z' => self.name(),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<f64> {
        let start = self.at;
        while let Some(&c) = self.chars.get(self.at) {
            let sign = matches!(c, '+' | '-')
                && !self.whole
                && matches!(self.chars[self.at - 1], 'e' | 'E')
                && self.at > start;
            if !(c.is_ascii_digit() || matches!(c, '.' | '_' | 'e' | 'E') || sign) {
                break;
            }
            self.at += 1;
        }
        let text: String = self.chars[start..self.at].iter().collect();
        text.replace('_', "").parse().ok()
    }

    /// A name, also as `$NAME` or `${NAME}`.
    fn name(&mut self) -> Option<f64> {
        let is_name = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '{' | '}');
        let rest = &self.chars[self.at..];
        let length = rest.iter().take_while(|c| is_name(c)).count();
        let name: String = rest[..length].iter().collect();
        self.at += length;
        let text = (self.value)(name.trim_matches(['$', '{', '}']))?;
        calculate(&text, self.whole, self.value, self.depth + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_the_value_of_the_shell() {
        let value = |name: &str| match name {
            "NODES" => Some("128".to_string()),
            "GPUS" => Some("NODES * 4".to_string()),
            "LOOP" => Some("LOOP+1".to_string()),
            _ => None,
        };
        for (text, whole, wanted) in [
            ("NODES*4/(2*4)", true, Some(64.0)),
            ("$GPUS / ${NODES}", true, Some(4.0)),
            ("7/2", true, Some(3.0)),
            ("7/2", false, Some(3.5)),
            ("2 + 3 * 4 - 10 % 4", true, Some(12.0)),
            ("10 - 4 - 3", true, Some(3.0)),
            ("-3 + 5", true, Some(2.0)),
            ("2**10", true, Some(1024.0)),
            ("126_953_125*2048", true, Some(260_000_000_000.0)),
            ("6e-5/10", false, Some(6e-6)),
            ("(3 > 2) + (1 == 2)", true, Some(1.0)),
            ("1/0", true, None),
            ("1/0", false, None),
            ("MISSING*2", true, None),
            ("LOOP", true, None),
            ("2 +", true, None),
            ("print(2)", false, None),
        ] {
            assert_eq!(evaluate(text, whole, &value), wanted, "{text}");
        }
        assert_eq!(written(260e9), "260000000000");
        assert_eq!(written(6e-6), "0.000006");
    }

    #[test]
    fn deep_brackets_end() {
        assert_eq!(evaluate(&"(".repeat(100_000), true, &|_| None), None);
        assert_eq!(evaluate(&"-".repeat(100_000), true, &|_| None), None);
    }
}
