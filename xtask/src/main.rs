//! The workspace's own chores. `cargo xtask help` lists them.

mod codegen;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xshell::Shell;

#[derive(Parser)]
#[command(name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate the list of driver functions beneath cust from cust_raw's source.
    Codegen {
        /// Change nothing; fail where the committed file is not current.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    let sh = Shell::new()?;
    if let Some(root) = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent() {
        sh.change_dir(root);
    }
    match Cli::parse().command {
        Command::Codegen { check } => codegen::run(&sh, check),
    }
}
