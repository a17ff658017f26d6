//! The summary of a workflow's run on GitHub: a file of Markdown, to which each step appends. It needs no token.

use std::{
    env,
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Returns the file of the workflow in which this runs, if it does.
pub(crate) fn of_workflow() -> Option<PathBuf> {
    env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Appends to a summary.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn append(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{text}"));
    written.with_context(|| format!("writing {}", path.display()))
}
