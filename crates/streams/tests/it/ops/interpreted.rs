//! The kernels that copy, as their PTX says, by an interpreter of the few instructions that they use: the software driver runs functions of
//! Rust instead, and a device shows no load beyond a range.

use std::collections::HashMap;

use crate::support::setup::noise;

const COPY: &str = include_str!("../../../src/submit/kernels/copy.ptx");
const COPY_LIST: &str = include_str!("../../../src/submit/kernels/copy_list.ptx");
const WARP: usize = 32;
const POISON: u8 = 0xEE;

#[derive(Clone, Copy)]
enum Operand {
    Register(usize),
    Number(u64),
    /// An instruction.
    Label(usize),
}

struct Instruction {
    /// Runs only where this register holds.
    guard: Option<usize>,
    /// The name and its suffixes.
    name: Vec<&'static str>,
    operands: Vec<Operand>,
}

impl Instruction {
    /// Returns a mask of the bits of its type.
    fn mask(&self) -> u64 {
        if self.name.iter().any(|part| part.ends_with("64")) { u64::MAX } else { u64::from(u32::MAX) }
    }
}

struct Program {
    instructions: Vec<Instruction>,
    registers: HashMap<&'static str, usize>,
    /// Whether its launches may overlap.
    overlaps: bool,
}

impl Program {
    fn parse(text: &'static str) -> Self {
        let body = text.split_once("\n{\n").unwrap().1;
        let lines: Vec<&str> = (body.lines())
            .map(|line| line.split("//").next().unwrap_or_default().trim())
            .filter(|line| !line.is_empty() && !line.starts_with(".reg") && *line != "}")
            .collect();
        let (mut labels, mut count) = (HashMap::new(), 0);
        for line in &lines {
            match line.strip_suffix(':') {
                Some(label) => drop(labels.insert(label, count)),
                None => count += 1,
            }
        }
        let mut program = Self {
            instructions: Vec::new(),
            registers: HashMap::new(),
            overlaps: text.lines().any(|line| line.trim_start().starts_with("griddepcontrol.wait")),
        };
        for line in lines.into_iter().filter(|line| !line.ends_with(':')) {
            let mut words = line.trim_end_matches(';').split([' ', ',', '{', '}', '[', ']', '+', '@']);
            let mut words = words.by_ref().filter(|word| !word.is_empty());
            let mut first = words.next().unwrap();
            let guard = first.starts_with('%').then(|| {
                let guard = program.register(first);
                first = words.next().unwrap();
                guard
            });
            let operands = words.map(|word| match (word.parse(), labels.get(word)) {
                (Ok(number), _) => Operand::Number(number),
                (_, Some(label)) => Operand::Label(*label),
                _ if word == "0xffffffff" => Operand::Number(u64::from(u32::MAX)),
                // Parameters, too.
                _ => Operand::Register(program.register(word)),
            });
            let operands = operands.collect();
            program.instructions.push(Instruction { guard, name: first.split('.').collect(), operands });
        }
        program
    }

    fn register(&mut self, name: &'static str) -> usize {
        let next = self.registers.len();
        *self.registers.entry(name).or_insert(next)
    }

    /// Runs all threads of a grid of one dimension, a warp after the other.
    fn launch(&self, memory: &mut Memory, (blocks, threads): (u64, u64), parameters: &[(&str, u64)]) {
        for (block, first) in
            (0..blocks).flat_map(|block| (0..threads).step_by(WARP).map(move |t| (block, t)))
        {
            let lanes = (first..threads.min(first + WARP as u64)).map(|thread| {
                let mut lane = Lane {
                    registers: vec![0xDEAD; self.registers.len()],
                    next: 0,
                    lets_begin: false,
                    may_end: false,
                    is_fenced: false,
                };
                let special =
                    [("%ctaid.x", block), ("%nctaid.x", blocks), ("%tid.x", thread), ("%ntid.x", threads)];
                for (name, value) in special.iter().chain(parameters) {
                    if let Some(register) = self.registers.get(name) {
                        lane.registers[*register] = *value;
                    }
                }
                lane
            });
            let mut lanes: Vec<_> = lanes.collect();
            self.run_warp(memory, &mut lanes);
            let more = parameters.iter().any(|(name, value)| name.ends_with("_more") && *value != 0);
            assert!(lanes.iter().all(|lane| lane.lets_begin == (more && self.overlaps)));
        }
    }

    /// All threads reach a shuffle before one goes on.
    fn run_warp(&self, memory: &mut Memory, lanes: &mut [Lane]) {
        loop {
            let shown: Vec<_> = lanes.iter_mut().filter_map(|lane| lane.run(self, memory)).collect();
            if shown.is_empty() {
                return;
            }
            assert_eq!(shown.len(), WARP, "a thread has left the warp");
            for (lane, (to, from, _)) in lanes.iter_mut().zip(&shown) {
                lane.registers[*to] = shown[*from as usize].2;
            }
        }
    }
}

struct Lane {
    registers: Vec<u64>,
    next: usize,
    /// Whether it has let the next launch begin, and has waited for the end of the one before.
    lets_begin: bool,
    may_end: bool,
    /// Whether it sees what was written before its launch.
    is_fenced: bool,
}

impl Lane {
    fn value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.registers[register],
            Operand::Number(number) => number,
            Operand::Label(_) => panic!("a label is no value"),
        }
    }

    /// Runs until a shuffle, of which it returns the destination, the lane to take from and what this one shows; or to the end.
    fn run(&mut self, program: &Program, memory: &mut Memory) -> Option<(usize, u64, u64)> {
        loop {
            let instruction = &program.instructions[self.next];
            self.next += 1;
            if instruction.guard.is_some_and(|guard| self.registers[guard] == 0) {
                continue;
            }
            let (name, operands) = (&instruction.name[..], &instruction.operands[..]);
            let of = |index: usize| self.value(operands[index]);
            let result = match name {
                ["ret"] => {
                    assert_eq!(self.may_end, program.overlaps, "a launch ends after the one before it");
                    return None;
                }
                ["griddepcontrol", "launch_dependents"] => {
                    self.lets_begin = true;
                    continue;
                }
                ["fence", "acq_rel", "gpu"] => {
                    self.is_fenced = true;
                    continue;
                }
                ["griddepcontrol", "wait"] => {
                    self.may_end = true;
                    continue;
                }
                ["bra"] => {
                    let Operand::Label(target) = operands[0] else { panic!("no label") };
                    self.next = target;
                    continue;
                }
                ["shfl", "sync", "idx", "b32"] => {
                    let Operand::Register(to) = operands[0] else { panic!("no register") };
                    return Some((to, of(2), of(1)));
                }
                ["ld" | "st", "global", rest @ ..] => {
                    assert_eq!(self.is_fenced, program.overlaps, "a launch may find older lines in a cache");
                    self.access(memory, name[0] == "ld", rest, operands);
                    continue;
                }
                ["ld", "param", _] | ["cvta", ..] | ["mov", _] => of(1),
                ["cvt", to, _] => of(1) & if *to == "u64" { u64::MAX } else { u64::from(u32::MAX) },
                ["mul", "wide", _] | ["mul", "lo", _] => of(1).wrapping_mul(of(2)),
                ["add", _] => of(1).wrapping_add(of(2)),
                ["sub", _] => of(1).wrapping_sub(of(2)),
                ["neg", _] => of(1).wrapping_neg(),
                ["and", _] => of(1) & of(2),
                ["min", _] => of(1).min(of(2)),
                ["shl", _] => of(1) << of(2),
                ["shr", _] => of(1) >> of(2),
                ["shf", "r", "wrap", _] => (of(2) << 32 | of(1)) >> (of(3) & 31),
                ["selp", _] => of(if of(3) != 0 { 1 } else { 2 }),
                ["setp", relation, rest @ ..] => {
                    let (left, right) = (of(1), of(2));
                    let holds = match *relation {
                        "lt" => left < right,
                        "le" => left <= right,
                        "gt" => left > right,
                        "ge" => left >= right,
                        "eq" => left == right,
                        "ne" => left != right,
                        other => panic!("{other} is not interpreted"),
                    };
                    u64::from(holds && (rest[0] != "and" || of(3) != 0))
                }
                other => panic!("{other:?} is not interpreted"),
            };
            let is_wide = matches!(name[0], "setp" | "cvt") || name[1] == "wide";
            let Operand::Register(to) = operands[0] else { panic!("no register") };
            self.registers[to] = if is_wide { result } else { result & instruction.mask() };
        }
    }

    /// Loads or stores one unit, or four.
    fn access(&mut self, memory: &mut Memory, is_load: bool, suffixes: &[&str], operands: &[Operand]) {
        let bytes = match suffixes.last() {
            Some(&"u8") => 1,
            Some(&"u32") => 4,
            Some(&"u64") => 8,
            other => panic!("{other:?} is not interpreted"),
        };
        let count = if suffixes[0] == "v4" { 4 } else { 1 };
        // The address, and an offset if there is one, come last or first.
        let (values, address) =
            if is_load { operands.split_at(count) } else { operands.split_at(operands.len() - count) };
        let (values, address) = if is_load { (values, address) } else { (address, values) };
        let address: u64 = address.iter().map(|part| self.value(*part)).sum();
        let range = memory.range(address, bytes * count);
        for (value, unit) in values.iter().zip(range.chunks_mut(bytes)) {
            let Operand::Register(register) = *value else { panic!("no register") };
            let mut all = [0; 8];
            if is_load {
                all[..bytes].copy_from_slice(unit);
                self.registers[register] = u64::from_le_bytes(all);
            } else {
                unit.copy_from_slice(&self.registers[register].to_le_bytes()[..bytes]);
            }
        }
    }
}

/// Allocations by address. Nothing else may be touched.
struct Memory(Vec<(u64, Vec<u8>)>);

impl Memory {
    fn range(&mut self, address: u64, bytes: usize) -> &mut [u8] {
        assert!(address.is_multiple_of(bytes as u64), "{address:#x} is not aligned to {bytes} bytes");
        let found = self.0.iter_mut().find(|(start, content)| {
            (*start..=start + content.len() as u64).contains(&address)
                && address + bytes as u64 <= start + content.len() as u64
        });
        let Some((start, content)) = found else { panic!("{bytes} bytes at {address:#x} are of nobody") };
        &mut content[(address - *start) as usize..][..bytes]
    }

    /// Adds a source of exactly these bytes, and a destination with others around it. Returns their addresses.
    fn add(&mut self, source: &[u8], (from, to): (u64, u64)) -> (u64, u64) {
        let next = (1 + self.0.len() as u64) << 20;
        self.0.push((next + from, source.to_vec()));
        self.0.push((next + (1 << 19) + to - 16, vec![POISON; source.len() + 32]));
        (next + from, next + (1 << 19) + to)
    }

    /// Asserts that each destination has its source's bytes, and nothing else changed.
    fn assert_copied(&self, what: &str) {
        for pair in self.0.chunks(2) {
            let [(from, source), (to, target)] = pair else { panic!("no pair") };
            let poison = [POISON; 16];
            assert!(target[..] == [&poison[..], source, &poison].concat(), "{what}: {from:#x} → {to:#x}");
        }
    }
}

const SIZES: [usize; 9] = [1, 15, 31, 47, 63, 511, 575, 2_075, 4_093];

#[test]
fn list_kernel_touches_its_ranges_only() {
    // As it is, and as newer devices are given it.
    let programs = [COPY_LIST, COPY_LIST.replace("//sm_90 ", "").leak()].map(Program::parse);
    assert!(!programs[0].overlaps && programs[1].overlaps);
    let bytes = noise(SIZES[8], 1);
    for (index, (from, to)) in (0..16).flat_map(|from| (0..16).map(move |to| (from, to))).enumerate() {
        let (mut memory, mut list) = (Memory(Vec::new()), Vec::new());
        // Each size with some of the distances, and all of them with some size.
        for size in SIZES.iter().skip(index % 3).step_by(3) {
            let (src, dst) = memory.add(&bytes[..*size], (from, to + 16));
            list.extend([dst, src, *size as u64].map(u64::to_le_bytes).concat());
        }
        let count = list.len() as u64 / 24;
        let pairs = memory.0.len();
        memory.0.push((4096, list));
        let more = ("transload_copy_list_more", (index / 2 % 2) as u64);
        let parameters = [("transload_copy_list_pieces", 4096), ("transload_copy_list_count", count), more];
        programs[index % 2].launch(&mut memory, [(1, 32), (2, 32), (1, 64)][index % 3], &parameters);
        memory.0.truncate(pairs);
        memory.assert_copied(&format!("{from}, {to}"));
    }
}

#[test]
fn copy_kernel_touches_its_range_only() {
    let program = Program::parse(COPY);
    let bytes = noise(SIZES[8], 2);
    for (index, (from, to)) in (0..16).flat_map(|from| (0..16).map(move |to| (from, to))).enumerate() {
        for grid in [(1, 32), (3, 64), (1, 33)] {
            let size = SIZES[index % SIZES.len()];
            let mut memory = Memory(Vec::new());
            let (src, dst) = memory.add(&bytes[..size], (from, to + 16));
            let parameters = [
                ("transload_copy_dst", dst),
                ("transload_copy_src", src),
                ("transload_copy_bytes", size as u64),
            ];
            program.launch(&mut memory, grid, &parameters);
            memory.assert_copied(&format!("{from}, {to}, {grid:?}"));
        }
    }
}
