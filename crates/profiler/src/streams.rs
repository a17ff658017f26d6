//! The streams that are known: each by itself up to a number, and those beyond it and those that are gone by device and priority.

use std::collections::BTreeMap;

use transload_core::TimelineId;

use crate::{
    inbox::{Inbox, QueueKey},
    statistics::Room,
    stream::{Reported, Stream},
};

/// Streams that are known. Later ones are counted as lost.
const MOST: usize = 4096;
/// Streams that have times of their own: see [`ProfilerOptions`](crate::ProfilerOptions).
const APART: usize = 256;

#[derive(Default)]
pub(crate) struct Streams {
    queues: BTreeMap<TimelineId, Stream>,
    /// One for all of a device and priority that are gone or beyond those that have times of their own.
    others: Vec<Stream>,
    /// For their distributions.
    room: Room,
}

impl Streams {
    pub(crate) fn new(room: Room) -> Self {
        Self { room, ..Self::default() }
    }

    /// Returns the stream of a queue, which may be new; `None` if there are too many. Its times are those of [`of`](Self::of).
    pub(crate) fn entry(&mut self, key: QueueKey, inbox: &Inbox) -> Option<&mut Stream> {
        let is_new = !self.queues.contains_key(&key.id);
        let mut reported = Reported::Apart;
        if is_new && self.queues.len() >= APART {
            let gone: Vec<_> = self.queues.extract_if(.., |_, stream| stream.is_gone()).collect();
            gone.into_iter().for_each(|(_, stream)| self.join(stream));
            let apart = self.queues.values().filter(|stream| stream.reported == Reported::Apart).count();
            if apart >= APART && !transload_core::mutant!("profiler/streams-apart-are-limited") {
                reported = Reported::WithOthers;
            }
        }
        if is_new && self.queues.len() >= MOST {
            inbox.lose();
            return None;
        }
        Some(self.queues.entry(key.id).or_insert_with(|| Stream::new(key, reported)))
    }

    fn join(&mut self, mut stream: Stream) {
        if transload_core::mutant!("profiler/former-streams") {
            return;
        }
        let others = others_of(&mut self.others, &stream.key);
        match stream.reported {
            Reported::Apart => others.merge(stream, &self.room),
            _ => others.look_at(&mut stream),
        }
    }

    /// Takes what the queues counted since.
    pub(crate) fn look(&mut self) {
        for stream in self.queues.values_mut() {
            match stream.reported {
                Reported::Apart => stream.look(),
                _ => others_of(&mut self.others, &stream.key).look_at(stream),
            }
        }
    }

    /// Returns the stream that has the times of a queue, which is that of others if it is gone or has none of its own.
    pub(crate) fn of(&mut self, key: &QueueKey) -> Option<&mut Stream> {
        match self.queues.get_mut(&key.id) {
            Some(stream) if stream.reported == Reported::Apart => Some(stream),
            Some(_) => Some(others_of(&mut self.others, key)),
            None => self.others.iter_mut().find(|others| is_like(&others.key, key)),
        }
    }

    /// Returns the stream by which a queue is reported.
    pub(crate) fn get(&self, id: TimelineId) -> Option<&Stream> {
        let stream = self.queues.get(&id)?;
        match stream.reported {
            Reported::Apart => Some(stream),
            _ => self.others.iter().find(|others| is_like(&others.key, &stream.key)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.others.is_empty()
    }

    /// Returns the streams with their pending operations.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Stream> {
        self.queues.values()
    }

    pub(crate) fn queues_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.queues.values_mut()
    }

    /// Returns the streams that are reported.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Stream> {
        self.queues.values().filter(|stream| stream.reported == Reported::Apart).chain(&self.others)
    }
}

/// Returns the stream that stands for others like a queue's.
fn others_of<'a>(others: &'a mut Vec<Stream>, key: &QueueKey) -> &'a mut Stream {
    let index = others.iter().position(|stream| is_like(&stream.key, key)).unwrap_or_else(|| {
        others.push(Stream::new(*key, Reported::ForOthers));
        others.len() - 1
    });
    &mut others[index]
}

fn is_like(one: &QueueKey, other: &QueueKey) -> bool {
    (one.device, one.priority, one.simulated) == (other.device, other.priority, other.simulated)
}
