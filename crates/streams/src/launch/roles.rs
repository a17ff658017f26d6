//! The roles that a launch gives its buffers, and which advice was given already.

use std::collections::HashMap;

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Access, BufferId, DeviceId, Error, ErrorKind, RawBuffer, Result};
use transload_memory::Role;

use super::uses::{self, Uses};

/// Buffers with the roles that were declared for them.
pub(crate) type Roles<'a> = SmallVec<[(&'a RawBuffer, Role); 2]>;

/// The role of the buffer that was declared last.
///
/// # Errors
/// `InvalidArgument` where there is none, or where an input is written.
pub(crate) fn of_the_last<'a>(declared: &Uses<'a>, role: Role) -> Result<(&'a RawBuffer, Role)> {
    let text = match declared.last() {
        Some((_, Access::Write)) if role == Role::Input => {
            "an input is not written; valid roles for what is written are Resident, Output and InOut"
        }
        Some((buffer, _)) => return Ok((buffer, role)),
        None => "a role is that of the buffer declared before it; declare one first",
    };
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// How many ranges are remembered; beyond that all are forgotten, which costs some advice given twice.
const MOST: usize = 1024;

/// Which role each range was last advised for by this executor.
#[derive(Debug, Default)]
pub(crate) struct Advised {
    known: Mutex<HashMap<(BufferId, usize, usize), Role>>,
}

impl Advised {
    /// Gives the advice for a role, unless it was given last.
    pub(crate) fn apply(&self, buffer: &RawBuffer, role: Role, device: DeviceId) -> Result<()> {
        let range = uses::range(buffer);
        let key = (buffer.id(), range.start, range.end);
        if self.known.lock().get(&key) == Some(&role) {
            return Ok(());
        }
        role.apply(buffer, device)?;
        let mut known = self.known.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, role);
        Ok(())
    }
}
