//! Lines on standard output, above the progress bar.

use base::progress;
use base::wrap::{error_width, output_width, wrap};
use parking_lot::Mutex;
use std::io::{self, Write};
use std::sync::Arc;

/// Prints whole lines, above the progress bar while there is one.
#[derive(Clone)]
pub struct Console {
    output: Arc<Mutex<Output>>,
}

/// Form in which steps are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Megatron-DeepSpeed's lines.
    Megatron,
    /// Megatron-LM's lines.
    MegatronLm,
    /// Short lines for people.
    Short,
    /// No lines, and no bar.
    Quiet,
}

struct Output {
    out: Box<dyn Write + Send>,
    form: Form,
}

/// Standard output.
impl Default for Console {
    fn default() -> Console {
        Console::new(Box::new(io::stdout()))
    }
}

impl Console {
    pub fn new(out: Box<dyn Write + Send>) -> Console {
        Console { output: Arc::new(Mutex::new(Output { out, form: Form::Megatron })) }
    }

    /// Sets the form of steps. A quiet console remains quiet.
    pub fn set_form(&self, form: Form) {
        let mut output = self.output.lock();
        if output.form != Form::Quiet {
            output.form = form;
        }
    }

    pub fn form(&self) -> Form {
        self.output.lock().form
    }

    /// Prints a line, above the progress bar.
    pub fn print(&self, text: &str) {
        let text = wrap(text, output_width());
        let out = &mut self.output.lock().out;
        // A closed pipe (`gptrain run | head`) does not end a run: its record is on disk.
        let _ = progress::print_above_bar(|| writeln!(out, "{text}").and_then(|()| out.flush()));
    }

    /// Prints a line on standard error.
    pub fn error(&self, text: &str) {
        let text = wrap(text, error_width());
        let _lines_are_whole = self.output.lock();
        let _ = progress::print_above_bar(|| writeln!(io::stderr(), "{text}"));
    }
}
