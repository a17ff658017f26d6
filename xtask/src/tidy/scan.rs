//! Separates code, comments and strings of Rust source, line by line.

/// A line of source.
#[derive(Clone, Debug, Default)]
pub(super) struct SourceLine {
    /// The line as written.
    pub(super) raw: String,
    /// The line without comments.
    pub(super) code: String,
    /// The line without comments and the contents of strings.
    pub(super) bare: String,
    /// Whether it is inside an item compiled for tests only.
    pub(super) in_test: bool,
    /// Whether it is inside an implementation of a trait.
    pub(super) in_trait_impl: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Code,
    LineComment,
    BlockComment(usize),
    /// A string: ordinary, or raw with this number of `#`.
    Text(Option<usize>),
}

#[derive(Clone, Copy, Default)]
struct Block {
    is_test: bool,
    is_trait_impl: bool,
}

/// Scans a file.
pub(super) fn lines(text: &str) -> Vec<SourceLine> {
    let mut scanner = Scanner::default();
    text.lines().map(|line| scanner.line(line)).collect()
}

struct Scanner {
    state: State,
    /// Code since the last `;`, `{` or `}`: the header of a block that opens next.
    header: String,
    blocks: Vec<Block>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { state: State::Code, header: String::new(), blocks: Vec::new() }
    }
}

impl Scanner {
    fn line(&mut self, raw: &str) -> SourceLine {
        let mut line = SourceLine { raw: raw.to_owned(), ..SourceLine::default() };
        self.note_blocks(&mut line);
        if self.state == State::LineComment {
            self.state = State::Code;
        }
        let characters: Vec<char> = raw.chars().collect();
        let mut at = 0;
        while at < characters.len() {
            let rest = characters.get(at..).unwrap_or_default();
            at += self.step(rest, &mut line);
        }
        self.header.push(' ');
        // A line that opens or closes a block belongs to it.
        self.note_blocks(&mut line);
        line
    }

    fn note_blocks(&self, line: &mut SourceLine) {
        line.in_test |= self.blocks.iter().any(|block| block.is_test);
        line.in_trait_impl |= self.blocks.iter().any(|block| block.is_trait_impl);
    }

    /// Consumes the next piece of a line; returns its length in characters.
    fn step(&mut self, rest: &[char], line: &mut SourceLine) -> usize {
        let starts = |text: &str| text.chars().eq(rest.iter().copied().take(text.len()));
        let first = rest.first().copied().unwrap_or(' ');
        match self.state {
            State::Code if starts("//") => self.state = State::LineComment,
            State::Code if starts("/*") => {
                self.state = State::BlockComment(1);
                return 2;
            }
            State::Code => return self.code(rest, first, line),
            State::LineComment => {}
            State::BlockComment(depth) if starts("*/") => {
                self.state = if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                return 2;
            }
            State::BlockComment(depth) if starts("/*") => {
                self.state = State::BlockComment(depth + 1);
                return 2;
            }
            State::BlockComment(_) => {}
            State::Text(None) if first == '\\' => {
                line.code.extend(rest.iter().take(2));
                return 2;
            }
            State::Text(None) => {
                line.code.push(first);
                if first == '"' {
                    line.bare.push(first);
                    self.state = State::Code;
                }
            }
            State::Text(Some(hashes)) => {
                line.code.push(first);
                let is_end =
                    first == '"' && rest.iter().skip(1).take(hashes).filter(|c| **c == '#').count() == hashes;
                if is_end {
                    line.bare.push(first);
                    self.state = State::Code;
                    return 1 + hashes;
                }
            }
        }
        1
    }

    fn code(&mut self, rest: &[char], first: char, line: &mut SourceLine) -> usize {
        let taken = match first {
            '"' => {
                self.state = State::Text(None);
                1
            }
            // `r"`, `r#"`, also after `b` or `c`; not the end of a longer word.
            'r' if !line.bare.ends_with(|c: char| c.is_alphanumeric() && c != 'b' && c != 'c') => {
                let hashes = rest.iter().skip(1).take_while(|c| **c == '#').count();
                if rest.get(1 + hashes) == Some(&'"') {
                    self.state = State::Text(Some(hashes));
                    2 + hashes
                } else {
                    1
                }
            }
            // A character, not a lifetime.
            '\'' if rest.get(1) == Some(&'\\') => {
                let end = rest.iter().skip(3).position(|c| *c == '\'').map_or(rest.len(), |end| end + 4);
                line.code.extend(rest.iter().take(end));
                return end;
            }
            '\'' if rest.get(2) == Some(&'\'') => {
                line.code.extend(rest.iter().take(3));
                return 3;
            }
            '{' => {
                self.blocks.push(block(&self.header));
                self.header.clear();
                1
            }
            '}' => {
                self.blocks.pop();
                self.header.clear();
                1
            }
            ';' => {
                self.header.clear();
                1
            }
            _ => {
                self.header.push(first);
                1
            }
        };
        line.code.extend(rest.iter().take(taken));
        line.bare.extend(rest.iter().take(taken));
        taken
    }
}

/// Classifies a block by its header.
fn block(header: &str) -> Block {
    let is_test =
        header.contains("#[test]") || header.contains("#[cfg(test") || header.contains("#[cfg(all(test");
    let words: Vec<&str> = header.split_whitespace().filter(|word| !word.starts_with("#[")).collect();
    let is_impl = words.iter().take(2).any(|word| *word == "impl" || word.starts_with("impl<"));
    Block { is_test, is_trait_impl: is_impl && words.contains(&"for") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_separated_from_code() {
        let text = "let a = \"x // y\"; // z\n/* a\n /* b */ c */ let d = r#\"q\"w\"#;\nlet e = '\"'; let f = \"\\\"g\";";
        let lines = lines(text);
        assert_eq!(lines[0].code, "let a = \"x // y\"; ");
        assert_eq!(lines[0].bare, "let a = \"\"; ");
        assert_eq!(lines[1].code, "");
        assert_eq!(lines[2].bare, " let d = r#\"\";");
        assert_eq!(lines[3].bare, "let e = ; let f = \"\";");
    }

    #[test]
    fn multiline_string_stays_a_string() {
        let lines = lines("let a = \"b\n// c\nd\"; // e\nf();");
        assert_eq!(lines[1].code, "// c");
        assert_eq!(lines[2].bare, "\"; ");
        assert_eq!(lines[3].bare, "f();");
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(lines("fn a<'a>(b: &'a str) {} // '")[0].bare, "fn a<'a>(b: &'a str) {} ");
    }

    #[test]
    fn test_items_and_trait_impls_are_recognised() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nunsafe impl<T> C for D<T> {\n  fn e() {}\n}\nimpl D {\n  fn f() {}\n}";
        let lines = lines(text);
        assert!(!lines[0].in_test && lines[3].in_test && !lines[6].in_test);
        assert!(lines[6].in_trait_impl && !lines[9].in_trait_impl);
    }
}
