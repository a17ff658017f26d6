//! The streams that are known: each by itself, and once there are many, those that are gone by device and priority.

use std::collections::BTreeMap;

use transload_core::TimelineId;

use crate::{
    inbox::{Inbox, QueueKey},
    stream::Stream,
};

/// Streams that are kept apart. Later ones are counted as lost.
const MOST: usize = 4096;
/// Streams from which on those that are gone are joined.
const JOINED_FROM: usize = 256;

#[derive(Default)]
pub(crate) struct Streams {
    apart: BTreeMap<TimelineId, Stream>,
    /// One for all of a device and priority that are gone.
    former: Vec<Stream>,
}

impl Streams {
    /// Returns the stream of a queue, which may be new; `None` if there are too many.
    pub(crate) fn entry(&mut self, key: QueueKey, inbox: &Inbox) -> Option<&mut Stream> {
        let is_new = !self.apart.contains_key(&key.id);
        if is_new && self.apart.len() >= JOINED_FROM {
            let gone: Vec<_> = self.apart.extract_if(.., |_, stream| stream.is_gone()).collect();
            gone.into_iter().for_each(|(_, stream)| self.join(stream));
        }
        if is_new && self.apart.len() >= MOST {
            inbox.lose();
            return None;
        }
        Some(self.apart.entry(key.id).or_insert_with(|| Stream::new(key)))
    }

    fn join(&mut self, stream: Stream) {
        if self.former_of(&stream.key).is_none() {
            self.former.push(Stream::joined(stream.key));
        }
        let former =
            self.former_of(&stream.key).filter(|_| !transload_core::mutant!("profiler/former-streams"));
        if let Some(former) = former {
            former.merge(stream);
        }
    }

    fn former_of(&mut self, key: &QueueKey) -> Option<&mut Stream> {
        let is_like = |one: &QueueKey| {
            (one.device, one.priority, one.simulated) == (key.device, key.priority, key.simulated)
        };
        self.former.iter_mut().find(|former| is_like(&former.key))
    }

    /// Returns the stream of a queue, or the one that it was joined to.
    pub(crate) fn of(&mut self, key: &QueueKey) -> Option<&mut Stream> {
        match self.apart.contains_key(&key.id) {
            true => self.apart.get_mut(&key.id),
            false => self.former_of(key),
        }
    }

    pub(crate) fn get(&self, id: TimelineId) -> Option<&Stream> {
        self.apart.get(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.apart.is_empty() && self.former.is_empty()
    }

    pub(crate) fn apart(&self) -> impl Iterator<Item = &Stream> {
        self.apart.values()
    }

    pub(crate) fn apart_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.apart.values_mut()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Stream> {
        self.apart.values().chain(&self.former)
    }
}
