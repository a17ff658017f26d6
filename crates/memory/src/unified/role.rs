//! What a device uses a buffer for, and the advice that goes with it.

use std::ops::Range;

use transload_core::{
    Access, DeviceId, ErrorKind, MemoryAdvice, MemoryKind, Operation, Queue, RawBuffer, Result, Timing,
    submit,
};

use super::{inner::Inner, state::Placement};
use crate::advise;

/// What a device uses unified memory for. The advice that goes with it changes where pages are, never what is in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Read and not written: the host and each device that reads it may keep a copy of their own (ReadMostly).
    Input,
    /// Used again and again, read or written: it stays on the device (PreferredLocation).
    Resident,
    /// A result, which the host reads next: both have it mapped (AccessedBy).
    Output,
    /// Read and written in place, by the host before and behind: it goes there and back, and no advice would help.
    InOut,
}

impl Role {
    const ALL: [Self; 4] = [Self::Input, Self::Resident, Self::Output, Self::InOut];

    /// What the device does to the memory: an input is only read, the others count as written.
    #[must_use]
    pub fn access(self) -> Access {
        match self {
            Self::Input => Access::Read,
            Self::Resident | Self::Output | Self::InOut => Access::Write,
        }
    }

    /// The advice for memory that has this role on the device.
    #[must_use]
    pub fn advice(self, device: DeviceId) -> Vec<MemoryAdvice> {
        match self {
            Self::Input => vec![MemoryAdvice::SetReadMostly],
            Self::Resident => vec![MemoryAdvice::SetPreferredLocation(device)],
            Self::Output => {
                vec![MemoryAdvice::SetAccessedBy(DeviceId::Cpu), MemoryAdvice::SetAccessedBy(device)]
            }
            Self::InOut => Vec::new(),
        }
    }

    /// What takes [`advice`](Self::advice) back.
    #[must_use]
    pub fn undo_advice(self, device: DeviceId) -> Vec<MemoryAdvice> {
        self.advice(device).into_iter().map(undo_advice).collect()
    }

    /// Whether its advice is another one on another device.
    fn names_device(self) -> bool {
        matches!(self, Self::Resident | Self::Output)
    }

    /// Gives the advice for a buffer, or a slice of one, and takes that of the other roles on the device back. For memory that
    /// does not move between host and device nothing is done.
    ///
    /// # Errors
    /// Those of [`advise`](crate::advise).
    pub fn apply(self, buffer: &RawBuffer, device: DeviceId) -> Result<()> {
        let moves = buffer.place().kind == MemoryKind::Unified && buffer.host_address().is_some();
        if !moves || buffer.is_empty() {
            return Ok(());
        }
        for other in Self::ALL.into_iter().filter(|other| *other != self) {
            give(buffer, other.undo_advice(device))?;
        }
        give(buffer, self.advice(device))
    }
}

/// What takes advice back.
fn undo_advice(advice: MemoryAdvice) -> MemoryAdvice {
    match advice {
        MemoryAdvice::SetReadMostly => MemoryAdvice::UnsetReadMostly,
        MemoryAdvice::SetPreferredLocation(_) => MemoryAdvice::UnsetPreferredLocation,
        MemoryAdvice::SetAccessedBy(who) => MemoryAdvice::UnsetAccessedBy(who),
        unset => unset,
    }
}

fn give(buffer: &RawBuffer, advice: Vec<MemoryAdvice>) -> Result<()> {
    advice.into_iter().try_for_each(|advice| advise(buffer, advice))
}

impl Placement {
    /// Of memory that had other users: a block of a pool, say, whose pages keep what those advised. The first role takes that
    /// back.
    pub(crate) fn inherited(device: DeviceId) -> Self {
        Self { roles: Role::ALL.map(|role| (role, device)).to_vec(), ..Self::default() }
    }

    /// The advice that is to be given for a role, or nothing where it was given last.
    fn advice_for(
        &mut self,
        role: Role,
        device: DeviceId,
        range: &Range<usize>,
    ) -> Option<Vec<MemoryAdvice>> {
        let new = (role, device, range.clone());
        let same = |(known, at, of): &(Role, DeviceId, Range<usize>)| {
            *known == role && (*at == device || !role.names_device()) && of == range
        };
        if self.advised.as_ref().is_some_and(same) {
            return None;
        }
        let given = role.advice(device);
        // What was never advised need not be taken back, and what is given again must not be: copies and mappings would go.
        let others = self.roles.iter().filter(|known| **known != (role, device));
        let mut advice: Vec<_> = others
            .flat_map(|(other, device)| other.undo_advice(*device))
            .filter(|back| !given.iter().any(|set| undo_advice(*set) == *back))
            .filter(|_| !transload_core::mutant!("memory/advice-taken-back"))
            .collect();
        advice.extend(given);
        if !self.roles.contains(&(role, device)) {
            self.roles.push((role, device));
        }
        self.advised = Some(new);
        Some(advice)
    }
}

impl Inner {
    /// Gives the advice for a role, and brings the range to the queue's device where it is not known to be there.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn apply_role(&self, queue: &dyn Queue, range: &Range<usize>, role: Role) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (device, part) = (queue.device(), self.raw.slice(range.clone())?);
        let (advice, there) = {
            let place = &mut self.state.lock().place;
            place.refresh(&self.raw);
            (place.advice_for(role, device, range), place.is_prefetched(device, range))
        };
        if let Some(advice) = advice
            && let Err(error) = give(&part, advice)
        {
            self.state.lock().place.advised = None;
            return Err(error);
        }
        if there {
            return Ok(());
        }
        match submit(queue, &Operation::Prefetch { buffer: &part, to: device }, Timing::Off) {
            Ok(_brought) => {
                self.state.lock().place.prefetched_to(&self.raw, device, range.clone());
                Ok(())
            }
            // The host reads it at the same time. The device then finds its pages by itself.
            Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
            Err(error) => Err(error),
        }
    }
}
