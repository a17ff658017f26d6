//! Deliberate slowness of this program's copies, to test that a comparison with another program finds it.

use std::{
    hint::{black_box, spin_loop},
    str::FromStr,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// What is worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Planted {
    /// Each submission takes this much longer.
    Submission(Duration),
    /// Each copy that is waited for takes longer by this share.
    Copy(f64),
    /// Each submission allocates once more.
    Allocation,
}

static PLANTED: OnceLock<Planted> = OnceLock::new();

impl FromStr for Planted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |_| format!("`{text}` is not a number of nanoseconds (300ns), a share (3%) or `allocation`");
        match (text.strip_suffix("ns"), text.strip_suffix('%')) {
            (Some(ns), _) => {
                ns.parse().map(Duration::from_nanos).map(Self::Submission).map_err(|_| wrong(()))
            }
            (_, Some(percent)) => {
                percent.parse().map(|percent: f64| Self::Copy(percent / 100.0)).map_err(|_| wrong(()))
            }
            _ if text == "allocation" => Ok(Self::Allocation),
            _ => Err(wrong(())),
        }
    }
}

/// Plants a fault for the rest of the process. The first one counts.
pub fn plant(planted: Planted) {
    let _first = PLANTED.set(planted);
}

/// A submission begins.
#[inline]
pub(crate) fn submission() {
    match PLANTED.get() {
        Some(Planted::Submission(longer)) => spin(Instant::now(), *longer),
        Some(Planted::Allocation) => drop(black_box(Box::new(black_box(0_u8)))),
        _ => {}
    }
}

/// Runs a copy that is waited for.
#[inline]
pub(crate) fn copy<T>(copy: impl FnOnce() -> T) -> T {
    let Some(Planted::Copy(share)) = PLANTED.get() else { return copy() };
    let begun = Instant::now();
    let copied = copy();
    spin(Instant::now(), begun.elapsed().mul_f64(share.max(0.0)));
    copied
}

fn spin(begun: Instant, time: Duration) {
    while begun.elapsed() < time {
        spin_loop();
    }
}
