//! Errors of modules that the driver rejects.

use super::*;

#[test]
fn compiler_log_is_part_of_the_error() {
    let refused = || DriverError::Call { call: "cuModuleLoadDataEx", code: 218, name: "PTX".to_owned() };
    let error = explain(refused(), "this module", b"ptxas: line 3\n\0\0");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("(ptxas: line 3)"), "{error}");
    assert!(!explain(refused(), "this module", &[0; 8]).to_string().contains("()"));
}
