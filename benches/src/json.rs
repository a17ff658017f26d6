//! The results file, which `xtask` draws and records.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::{machine::Machine, methods::Methods, row::Row};

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    schema: u32,
    /// Whether any row comes from the software driver.
    simulated: bool,
    /// The machine.
    #[serde(flatten)]
    machine: Machine,
    /// The rows.
    rows: Vec<Row>,
    /// Choices and rejections of methods.
    #[serde(flatten)]
    methods: Methods,
}

impl Results {
    /// Creates the results of a run.
    #[must_use]
    pub fn new(machine: Machine, rows: Vec<Row>, methods: Methods) -> Self {
        Self { schema: 1, simulated: rows.iter().any(|row| row.simulated), machine, rows, methods }
    }

    /// Returns choices and rejections of methods.
    #[must_use]
    pub fn methods(&self) -> &Methods {
        &self.methods
    }

    /// Returns the machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the rows.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns whether any row comes from the software driver.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Summary;

    #[test]
    fn file_has_the_fields_of_its_schema() {
        let row = Row::new("a/1".to_owned(), "a".to_owned(), "m", 1, "us", Summary::single(1.0));
        let results = Results::new(
            Machine::here("none".to_owned(), None, None),
            vec![row.obtained(true, true)],
            Methods::default(),
        );
        let value = serde_json::to_value(&results).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        for key in [
            "schema",
            "simulated",
            "hardware",
            "driver",
            "cuda",
            "cpu",
            "date",
            "commit",
            "command",
            "rows",
            "rejections",
            "choices",
            "break_points",
            "failures",
        ] {
            assert!(keys.contains(&key), "{key} is missing of {keys:?}");
        }
        assert_eq!(value["simulated"], true);
        assert!(value["rows"][0]["goal"].is_null());
    }
}
