//! Roles of a buffer on a device, and the advice for each.

use std::ops::Range;

use transload_core::{
    Access, DeviceId, ErrorKind, MemoryAdvice, MemoryKind, Operation, Queue, RawBuffer, Result, Timing,
    events::report, submit,
};

use super::{inner::Inner, state::Placement};
use crate::advise;

/// What a device uses unified memory for. The advice for a role moves pages, never changes content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Only read: the host and each reading device may keep a copy (ReadMostly).
    Input,
    /// Used repeatedly, read or written: stays on the device (PreferredLocation).
    Resident,
    /// A result that the host reads next: both have it mapped (AccessedBy).
    Output,
    /// Read and written in place by both sides in turn: it moves back and forth, and no advice would help.
    InOut,
}

impl Role {
    const ALL: [Self; 4] = [Self::Input, Self::Resident, Self::Output, Self::InOut];

    /// Returns the device's access: an input is only read, the others count as written.
    #[must_use]
    pub fn access(self) -> Access {
        match self {
            Self::Input => Access::Read,
            Self::Resident | Self::Output | Self::InOut => Access::Write,
        }
    }

    /// Returns the advice for this role on the device.
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

    /// Returns the advice that undoes [`advice`](Self::advice).
    #[must_use]
    pub fn undo_advice(self, device: DeviceId) -> Vec<MemoryAdvice> {
        self.advice(device).into_iter().map(undo_advice).collect()
    }

    /// Returns whether its advice depends on the device.
    fn names_device(self) -> bool {
        matches!(self, Self::Resident | Self::Output)
    }

    /// Gives the advice for a buffer or slice, and removes that of the other roles on the device. Does nothing for
    /// memory that does not migrate.
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

/// Returns the advice that undoes `advice`.
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
    /// State of memory with earlier users, such as a pool's block, whose pages keep their advice. The first role
    /// removes it.
    pub(crate) fn inherited(device: DeviceId) -> Self {
        Self { roles: Role::ALL.map(|role| (role, device)).to_vec(), ..Self::default() }
    }

    /// Returns the advice to give for a role, or `None` if it was given last.
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
        // Advice never given needs no undoing. Advice given again must not be undone first, as that would drop copies
        // and mappings.
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
    /// Gives the advice for a role, and prefetches the range to the queue's device unless it is known to be there.
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
            // The host is reading it. The device then migrates pages on access.
            Err(error) if error.kind() == ErrorKind::Busy => {
                report::hint_declined("prefetch for a role", device, part.len(), &error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
