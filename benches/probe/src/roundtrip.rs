//! Random bytes to a device and back.

use std::fmt;

use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, Error, ErrorKind, MemoryKind};
use transload_transfer::CrossBackendTransferManager;

/// Why it did not go well.
#[derive(Debug)]
pub(crate) enum Failure {
    Bytes(u64),
    Library(Error),
    Different { at: usize, count: usize },
    Alive(String),
}

impl Failure {
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Bytes(_) => -1,
            Self::Library(error) => match error.kind() {
                ErrorKind::NoDriver | ErrorKind::NoDevice | ErrorKind::UnknownDevice => -2,
                ErrorKind::Busy => -6,
                ErrorKind::InvalidArgument | ErrorKind::OutOfRange | ErrorKind::Unsupported => -7,
                _ => -3,
            },
            Self::Different { .. } => -4,
            Self::Alive(_) => -5,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => {
                write!(f, "{bytes} bytes were asked for; valid is 1 or more, up to what memory holds")
            }
            Self::Library(error) => error.fmt(f),
            Self::Different { at, count } => write!(f, "{count} bytes differ, the first at {at}"),
            Self::Alive(what) => write!(f, "still allocated: {what}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

pub(crate) fn roundtrip(ordinal: u32, bytes: u64, seed: u64) -> Result<(), Failure> {
    let length = usize::try_from(bytes).ok().filter(|length| *length > 0).ok_or(Failure::Bytes(bytes))?;
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    register_cuda(&manager, ordinal)?;
    there_and_back(&manager, DeviceId::Cuda(ordinal), length, seed)?;
    manager.drain()?;
    match manager.resource_counts().into_iter().find(|(_, counts)| !counts.is_empty()) {
        Some((name, counts)) => Err(Failure::Alive(format!("{counts} in the {name} backend"))),
        None => Ok(()),
    }
}

#[cfg(any(target_os = "linux", windows))]
fn register_cuda(manager: &CrossBackendTransferManager, ordinal: u32) -> Result<(), Error> {
    use transload_backend_cuda::{CudaBackend, CudaBackendConfig};

    let config = CudaBackendConfig::default().with_devices([ordinal]);
    manager.register_backend(CudaBackend::open(&config)?)
}

#[cfg(not(any(target_os = "linux", windows)))]
fn register_cuda(_: &CrossBackendTransferManager, _: u32) -> Result<(), Error> {
    Err(Error::new(ErrorKind::NoDriver, "there is no CUDA on this platform"))
}

fn there_and_back(
    manager: &CrossBackendTransferManager,
    device: DeviceId,
    length: usize,
    seed: u64,
) -> Result<(), Failure> {
    let sent = manager.allocate_for(device, MemoryKind::Pinned, length)?;
    let there = manager.allocate_for(device, MemoryKind::Device, length)?;
    let received = manager.allocate_for(device, MemoryKind::Pinned, length)?;
    let mut state = seed;
    for word in sent.write()?.chunks_mut(8) {
        let random = next(&mut state).to_ne_bytes();
        word.iter_mut().zip(random).for_each(|(byte, random)| *byte = random);
    }
    // What is not written is then different.
    received.write()?.iter_mut().zip(sent.read()?.iter()).for_each(|(byte, sent)| *byte = !*sent);
    let up = manager.copy(&sent, &there).submit();
    let down = manager.copy(&there, &received).submit();
    up.wait()?;
    down.wait()?;
    let (sent, received) = (sent.read()?, received.read()?);
    let different =
        || sent.iter().zip(received.iter()).enumerate().filter(|(_, (sent, received))| sent != received);
    match different().next() {
        Some((at, _)) => Err(Failure::Different { at, count: different().count() }),
        None => Ok(()),
    }
}

/// Splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
