//! Tables and lists of named values.

use super::*;

#[test]
fn table_aligns_multibyte_characters() {
    let rows = [["µ".to_owned(), "1".to_owned()], ["abc".to_owned(), "22".to_owned()]];
    assert_eq!(table(["A", "B"], 1, &rows), "A     B\nµ     1\nabc  22\n");
    assert_eq!(facts(&[("a", "1".to_owned()), ("bcd", "2".to_owned())]), "a    1\nbcd  2\n");
}
