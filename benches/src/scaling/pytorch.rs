//! Copies of pageable memory next to PyTorch's, which runs in a process of its own and copies in turns with this one.

use std::{
    cell::RefCell,
    env,
    ffi::OsString,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::{Library, large::wait_for_idle_threads, staging::Pairs};
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    row::{Goal, Row, Summary},
    rows::is_verified,
};

const SIZES: [usize; 2] = [48 << 20, 256 << 20];
/// Goal: rate over PyTorch's.
const LEAST: f64 = 5.0;
/// Names the interpreter that has PyTorch, instead of [`PYTHON`].
const VARIABLE: &str = "TRANSLOAD_PYTHON";
const PYTHON: &str = "python3";
const PROGRAM: &str = include_str!("../../pytorch_pageable.py");

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let pytorch = if fixture.is_simulated() {
        Err(anyhow!("the software driver is not PyTorch's"))
    } else {
        let python = env::var_os(VARIABLE).unwrap_or_else(|| PYTHON.into());
        PyTorch::start(python, PROGRAM, fixture.device.ordinal())
    };
    if let Err(reason) = &pytorch {
        eprintln!("no goals next to PyTorch: {reason:#}");
    }
    let pytorch = pytorch.map(RefCell::new);
    let library = Library::new(fixture)?;
    let mut rows = Vec::new();
    for (up, bytes) in [true, false].into_iter().flat_map(|up| SIZES.map(|bytes| (up, bytes))) {
        rows.extend(of_size(fixture, &library, pytorch.as_ref(), (up, fixture.bytes(bytes)))?);
    }
    library.finish()?;
    Ok(rows)
}

fn of_size(
    fixture: &Fixture<'_>,
    library: &Library,
    pytorch: Result<&RefCell<PyTorch>, &anyhow::Error>,
    (up, bytes): (bool, usize),
) -> Result<Vec<Row>> {
    let pairs = Pairs::on(library, library.device, up, 1, bytes)?;
    let (src, dst) = pairs.list.first().context("no pair")?;
    let gigabytes = bytes as f64 / 1e9;
    let way = if up { "up" } else { "down" };
    let copy = || {
        let begun = Instant::now();
        library.manager.copy(src, dst).wait()?;
        Ok(gigabytes / begun.elapsed().as_secs_f64())
    };
    let (id, what) = (format!("pytorch/{way}/{bytes}"), format!("{bytes} bytes of pageable memory {way}"));
    let repetitions = fixture.repetitions(30);
    let pytorch = match pytorch {
        Ok(pytorch) => pytorch,
        // A row without a reference says why it has no goal.
        Err(reason) => {
            let values = (0..repetitions).map(|_| copy()).collect::<Result<Vec<f64>>>()?;
            pairs.poison()?;
            let _rate: f64 = copy()?;
            let (id, what) = (format!("{id}/copy"), format!("{what}; no PyTorch: {reason:#}"));
            let mut row = fixture.row(&id, &what, "copy().wait()", "GB/s", Summary::of(&values));
            row.bytes = bytes as u64;
            return Ok(vec![row.obtained(fixture.is_simulated(), is_verified(pairs.check()))]);
        }
    };
    let theirs = Theirs { pytorch, pair: format!("{way} {bytes}") };
    let name = pytorch.borrow().name.clone();
    let variants = vec![
        Variant::new("pytorch", &format!("{name}, copy_"), || {
            // Else our threads, which look for more work, take processors from its copy.
            let _mostly = wait_for_idle_threads()?;
            Ok(gigabytes / theirs.ask("copy")?.parse::<f64>().context("no seconds")?)
        })
        .verified_by(&theirs),
        Variant::new("copy", "copy().wait()", copy).goal(Goal::RatioAtLeast(LEAST)).verified_by(&pairs),
    ];
    Comparison { id, what, unit: "GB/s", bytes: bytes as u64, repetitions }.rows(fixture, variants)
}

/// A pair of PyTorch's.
struct Theirs<'a> {
    pytorch: &'a RefCell<PyTorch>,
    /// Direction and bytes.
    pair: String,
}

impl Theirs<'_> {
    fn ask(&self, action: &str) -> Result<String> {
        self.pytorch.borrow_mut().ask(&format!("{action} {}", self.pair))
    }
}

impl Verify for Theirs<'_> {
    fn poison(&self) -> Result<()> {
        self.ask("clear").map(drop)
    }

    fn check(&self) -> Result<()> {
        let said = self.ask("check")?;
        ensure!(said == "right", "PyTorch's copy {} is {said}", self.pair);
        Ok(())
    }
}

/// The other process. It ends when its input does.
struct PyTorch {
    child: Child,
    /// None at the end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// With its version.
    name: String,
}

impl PyTorch {
    /// # Errors
    /// What the program said if there is no PyTorch.
    fn start(python: OsString, program: &str, ordinal: u32) -> Result<Self> {
        let mut command = Command::new(&python);
        command.args(["-c", program, &format!("cuda:{ordinal}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("starting {}", python.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a child without its output")?);
        let mut started = Self { child, input, output, name: String::new() };
        started.name = started.line()?;
        Ok(started)
    }

    fn ask(&mut self, what: &str) -> Result<String> {
        let input = self.input.as_mut().context("the program has ended")?;
        writeln!(input, "{what}").context("writing to PyTorch's program")?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? > 0 {
            return Ok(line.trim().to_owned());
        }
        // Its last words say why it ended.
        let mut words = String::new();
        if let Some(errors) = &mut self.child.stderr {
            errors.read_to_string(&mut words)?;
        }
        bail!("{}", words.lines().last().unwrap_or("the program ended without a word"))
    }
}

impl Drop for PyTorch {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ended = self.child.wait();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// As much of PyTorch as the program uses, without a device.
    const STAND_IN: &str = r#"
import sys, types
class Tensor(list):
    def copy_(self, other): self[:] = other
    def zero_(self): self[:] = [0] * len(self)
    def cpu(self): return self
torch = types.ModuleType("torch")
torch.__version__ = "0.0"
torch.uint8, torch.device, torch.manual_seed = None, str, lambda seed: None
torch.cuda = types.SimpleNamespace(synchronize=lambda: None)
torch.zeros = lambda size, **_: Tensor([0] * size)
torch.randint = lambda low, high, size, **_: Tensor([low + 7] * size[0])
torch.equal = lambda a, b: a == b
sys.modules["torch"] = torch
"#;

    fn start(program: &str) -> Result<PyTorch> {
        PyTorch::start(PYTHON.into(), program, 0)
    }

    /// Returns whether there is an interpreter, or prints that there is none.
    fn has_python() -> bool {
        let found = Command::new(PYTHON).arg("--version").output();
        found.inspect_err(|error| println!("skipped: {PYTHON}: {error}")).is_ok()
    }

    #[test]
    fn program_copies_and_checks_both_ways() {
        if !has_python() {
            return;
        }
        let pytorch = RefCell::new(start(&format!("{STAND_IN}{PROGRAM}")).unwrap());
        assert_eq!(pytorch.borrow().name, "PyTorch 0.0");
        for pair in ["up 64", "down 64", "up 128"] {
            let theirs = Theirs { pytorch: &pytorch, pair: pair.to_owned() };
            theirs.poison().unwrap();
            assert!(theirs.check().unwrap_err().to_string().contains("wrong"), "{pair}");
            assert!(theirs.ask("copy").unwrap().parse::<f64>().unwrap() >= 0.0);
            theirs.check().unwrap();
        }
    }

    #[test]
    fn absent_pytorch_is_told_by_its_own_words() {
        let reason = |program: &str| start(program).err().unwrap().to_string();
        if has_python() {
            assert!(reason("import no_such_module").contains("No module named"));
            assert!(reason("").contains("without a word"));
        }
        let missing = PyTorch::start("/no/such/python".into(), PROGRAM, 0).err().unwrap();
        assert!(missing.to_string().contains("/no/such/python"), "{missing}");
    }
}
