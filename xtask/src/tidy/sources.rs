//! Rules about source files.

use super::{
    Finding, Source,
    scan::{self, SourceLine},
};

/// Most lines of a file.
const LONGEST: usize = 500;

/// Longer files, each with the reason.
const LONG_FILES: [(&str, &str); 0] = [];

/// Generated files.
const GENERATED: [&str; 1] = ["crates/cuda-sys/src/driver/generated.rs"];

/// Crates that may use core's traits only.
const NEUTRAL: [&str; 2] = ["crates/transfer/", "crates/profiler/"];

/// Checks every rule on one file.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    let Source { path, text } = source;
    let lines = scan::lines(text);
    let mut findings = Vec::new();
    let is_generated = GENERATED.contains(&path.as_str());
    if !is_generated && !text.starts_with("//!") {
        findings.push(Finding::new(
            path,
            Some(1),
            "begins without a `//!` line that says what the file is for",
        ));
    }
    let length = lines.len();
    if length > LONGEST && !LONG_FILES.iter().any(|(long, _)| long == path) {
        let text = format!("{length} lines; split it, or list it in xtask/src/tidy/sources.rs with a reason");
        findings.push(Finding::new(path, None, text));
    }
    for (index, line) in lines.iter().enumerate() {
        let mut report = |text: &str| findings.push(Finding::new(path, Some(index + 1), text));
        if is_test_file(path) || line.in_test {
            continue;
        }
        if declares_unsafe_fn(&line.bare)
            && !line.in_trait_impl
            && !is_generated
            && !has_safety_section(&lines, index)
        {
            report("an unsafe fn without a `# Safety` section");
        }
        if sleeps(path, line) {
            report("a sleep in library code: wait for an event, a condition or a fence");
        }
        if NEUTRAL.iter().any(|folder| path.starts_with(folder)) && line.code.to_lowercase().contains("cuda")
        {
            report("this crate may use core's traits only: name CUDA in documentation and tests at most");
        }
        if opens_driver(path, line) {
            report("the CUDA driver is opened in cuda-sys only");
        }
    }
    findings
}

/// Reports listed exceptions that are not needed.
pub(super) fn check_exceptions(sources: &[Source]) -> Vec<Finding> {
    let is_long = |path: &str| {
        sources.iter().any(|source| source.path == path && source.text.lines().count() > LONGEST)
    };
    LONG_FILES
        .iter()
        .filter(|(path, _)| !is_long(path))
        .map(|(path, _)| Finding::new(path, None, "is listed as a long file in xtask but is not long"))
        .collect()
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// Matches `unsafe fn name` and `unsafe extern "C" fn name`, but not function types.
fn declares_unsafe_fn(bare: &str) -> bool {
    let words: Vec<&str> = bare.split_whitespace().collect();
    let Some(at) = words.iter().position(|word| *word == "unsafe") else { return false };
    let mut after = words.iter().skip(at + 1).skip_while(|word| **word == "extern" || word.starts_with('"'));
    after.next() == Some(&"fn") && after.next().is_some()
}

/// Returns whether the attributes and comments above a line contain `# Safety`.
fn has_safety_section(lines: &[SourceLine], index: usize) -> bool {
    lines
        .iter()
        .take(index)
        .rev()
        .map(|line| line.raw.trim())
        .take_while(|line| line.starts_with("//") || line.starts_with('#') || *line == ")]")
        .any(|line| line.contains("# Safety"))
}

fn sleeps(path: &str, line: &SourceLine) -> bool {
    let is_library =
        path.starts_with("crates/") && path.contains("/src/") && !path.starts_with("crates/cuda-sim/");
    is_library && line.bare.contains("sleep(")
}

fn opens_driver(path: &str, line: &SourceLine) -> bool {
    let is_exempt =
        ["crates/cuda-sys/", "crates/cuda-sim/", "xtask/"].iter().any(|folder| path.starts_with(folder));
    !is_exempt && (line.code.contains("libcuda") || line.code.contains("nvcuda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Source { path: path.to_owned(), text: text.to_owned() })
            .into_iter()
            .map(|finding| format!("{:?}: {}", finding.line, finding.text))
            .collect()
    }

    #[test]
    fn file_without_a_header_is_reported() {
        assert_eq!(findings("crates/core/src/a.rs", "//! An idea.\n"), Vec::<String>::new());
        assert_eq!(findings("crates/core/src/a.rs", "use a;\n//! Late.\n").len(), 1);
        assert_eq!(findings(GENERATED[0], "// Generated.\n"), Vec::<String>::new());
    }

    #[test]
    fn long_file_is_reported() {
        let line = "fn a() {}\n";
        assert!(findings("benches/src/a.rs", &format!("//! A.\n{}", line.repeat(499))).is_empty());
        assert_eq!(findings("benches/src/a.rs", &format!("//! A.\n{}", line.repeat(500))).len(), 1);
    }

    #[test]
    fn unsafe_fn_without_safety_section_is_reported() {
        let good =
            "//! A.\n/// B.\n///\n/// # Safety\n/// * C.\n#[inline]\npub unsafe extern \"C\" fn d() {}\n";
        assert!(findings("crates/core/src/a.rs", good).is_empty());
        let bad = good.replace("# Safety", "Unsafe");
        assert_eq!(findings("crates/core/src/a.rs", &bad).len(), 1);
        for allowed in [
            "//! A.\ntype F = unsafe extern \"C\" fn(u32) -> u32;\n",
            "//! A.\nunsafe impl B for C {\n    unsafe fn d() {}\n}\n",
            "//! A.\n#[cfg(test)]\nmod tests {\n    unsafe fn d() {}\n}\n",
            "//! A.\n// unsafe fn d() {}\nconst B: &str = \"unsafe fn d() {}\";\n",
        ] {
            assert!(findings("crates/core/src/a.rs", allowed).is_empty(), "{allowed}");
        }
    }

    #[test]
    fn sleep_in_library_code_is_reported() {
        let text = "//! A.\nfn b() { std::thread::sleep(c) }\n";
        assert_eq!(findings("crates/transfer/src/a.rs", text).len(), 1);
        assert!(findings("crates/cuda-sim/src/a.rs", text).is_empty());
        assert!(findings("crates/transfer/tests/it/a.rs", text).is_empty());
        assert!(findings("crates/transfer/src/a.rs", "//! sleep(a)\n// sleep(b)\n").is_empty());
    }

    #[test]
    fn cuda_in_code_of_neutral_crates_is_reported() {
        let code = "//! CUDA may be named here.\nfn a() { b(\"cuda\") } // CUDA\n";
        assert_eq!(findings("crates/transfer/src/a.rs", code).len(), 1);
        assert_eq!(findings("crates/profiler/src/a.rs", "//! A.\nuse b::Cuda;\n").len(), 1);
        assert!(findings("crates/streams/src/a.rs", code).is_empty());
        let test = "//! A.\n#[cfg(test)]\nmod tests {\n    fn on_cuda() {}\n}\n";
        assert!(findings("crates/transfer/src/a.rs", test).is_empty());
    }

    #[test]
    fn driver_name_outside_cuda_sys_is_reported() {
        let code = "//! Not libcuda.\nconst A: &str = \"libcuda.so.1\";\n";
        assert_eq!(findings("crates/memory/src/a.rs", code).len(), 1);
        assert!(findings("crates/cuda-sys/src/a.rs", code).is_empty());
        assert!(findings("crates/memory/src/a.rs", "//! libcuda\n/// libcuda\nfn a() {}\n").is_empty());
    }
}
