//! The compiled kernels: `kernels/build.sh` leaves their PTX beside them.

use crate::actions::Program;
use crate::kernels;
use crate::memory::Fault;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Texts by file, and programs by file and kernel, as they are asked for.
#[derive(Default)]
pub struct Modules {
    texts: RefCell<HashMap<String, Rc<str>>>,
    programs: RefCell<HashMap<(String, String), Rc<Program>>>,
}

impl Modules {
    /// None, and a line that says so, where the kernels were not compiled.
    pub fn compiled() -> Option<Modules> {
        if kernels::folder().join("gelu.80.ptx").exists() {
            return Some(Modules::default());
        }
        eprintln!("skipped: no PTX in target/kernels (`make kernels`)");
        None
    }

    /// Kernel of a file, for example `gelu.80`.
    pub fn program(&self, file: &str, name: &str) -> Result<Rc<Program>, Fault> {
        let key = (file.to_string(), name.to_string());
        if let Some(known) = self.programs.borrow().get(&key) {
            return Ok(known.clone());
        }
        let program = Rc::new(Program::new(&self.text(file), name)?);
        self.programs.borrow_mut().insert(key, program.clone());
        Ok(program)
    }

    fn text(&self, file: &str) -> Rc<str> {
        let read = || -> Rc<str> {
            let path = kernels::folder().join(format!("{file}.ptx"));
            let text = std::fs::read_to_string(&path);
            text.unwrap_or_else(|error| panic!("{}: {error}: run `make kernels`", path.display()))
                .into()
        };
        self.texts
            .borrow_mut()
            .entry(file.to_string())
            .or_insert_with(read)
            .clone()
    }

    /// Modules in which the text of one kernel is changed; panics if nothing changes.
    pub fn changed(&self, file: &str, name: &str, change: impl Fn(&str) -> String) -> Modules {
        let text = self.text(file);
        let (_, body) = crate::parse::entry(&text, name);
        let new = change(body);
        assert_ne!(new, body, "the fault is not planted in {name}");
        let at = body.as_ptr() as usize - text.as_ptr() as usize;
        let new: Rc<str> = format!("{}{new}{}", &text[..at], &text[at + body.len()..]).into();
        let texts = RefCell::new(HashMap::from([(file.to_string(), new)]));
        Modules { texts, programs: RefCell::default() }
    }
}

/// Whether all cases are to run. Otherwise a test takes every fifth of its list.
pub fn every_case() -> bool {
    std::env::var_os("GPTRAIN_EVERY_PTX").is_some()
}

/// The cases that run: all, or those with numbers 0, 5, 10, …
pub fn chosen<T>(cases: Vec<T>) -> Vec<T> {
    let step = if every_case() { 1 } else { 5 };
    cases.into_iter().step_by(step).collect()
}

/// Version of the compiler.
pub fn release() -> String {
    std::fs::read_to_string(kernels::folder().join("release"))
        .expect("build.sh writes it")
        .trim()
        .to_string()
}
