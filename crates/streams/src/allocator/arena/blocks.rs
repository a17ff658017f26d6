//! The blocks of one stream: live ranges, and a best-fit search among free ones.
//!
//! A freed block first goes unmerged to the quick lists. If those do not serve a request, they are merged with their
//! free neighbours, and the smallest fitting block is split.

use std::collections::{BTreeMap, BTreeSet};

use super::{quick::Quick, size::AllocParams, size_class_counts::SizeClassCounts};

/// What other users of a free block must wait for on its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// Number of its stream-ordered free, or 0 if none is outstanding.
    pub(crate) freed: u64,
    /// Last known point of the stream that uses it, or 0.
    pub(crate) point: u64,
}

impl Order {
    pub(crate) fn and(self, other: Self) -> Self {
        Self { freed: self.freed.max(other.freed), point: self.point.max(other.point) }
    }
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Unused node.
    Vacant,
    /// Allocated.
    Live,
    /// Free, in a quick list.
    Quick,
    /// Free, merged with its neighbours.
    Free,
    /// Freed, but other streams still use it.
    PendingFree,
}

/// Owner of a live block, which may free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The caller of the plain interface.
    Caller,
    /// The caller, with other streams recorded as users.
    CallerAndUsers,
    /// A buffer, which frees it when dropped.
    Buffer,
}

/// One block.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Requested bytes of a live block.
    pub(crate) requested: u64,
    /// Serial number of its allocation.
    pub(crate) serial: u64,
    pub(crate) order: Order,
    pub(crate) segment: u32,
    pub(crate) state: State,
    /// Whether its segment is for small blocks.
    pub(crate) small: bool,
    /// Owner of a live block.
    pub(crate) holder: Holder,
}

impl Node {
    /// Returns whether it is allocated, but not by a buffer.
    pub(crate) fn is_plain_and_live(&self) -> bool {
        self.state == State::Live && self.holder != Holder::Buffer
    }
}

/// A range removed from or inserted into an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) segment: u32,
    pub(crate) small: bool,
    pub(crate) order: Order,
}

/// The blocks of one stream.
pub(crate) struct Blocks {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    by_address: BTreeMap<u64, u32>,
    /// Free blocks of large and small segments, by size, then address.
    free: [BTreeSet<(u64, u64, u32)>; 2],
    quick: Quick,
    serial: u64,
    pub(crate) counts: SizeClassCounts,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            vacant: Vec::new(),
            by_address: BTreeMap::new(),
            free: Default::default(),
            quick: Quick::new(),
            serial: 0,
            counts: SizeClassCounts::default(),
        }
    }

    /// Returns the block at a valid index.
    pub(crate) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    pub(crate) fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    /// Returns the number of allocations so far.
    pub(crate) fn allocated(&self) -> u64 {
        self.serial
    }

    /// Returns the block at an untrusted index.
    pub(crate) fn get(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    /// Returns the block that starts at an address.
    pub(crate) fn at(&self, address: u64) -> Option<u32> {
        self.by_address.get(&address).copied()
    }

    /// Returns whether an address is within a block that is not live.
    pub(crate) fn is_in_free_block(&self, address: u64) -> bool {
        self.by_address.range(..=address).next_back().is_some_and(|(start, index)| {
            let node = self.node(*index);
            node.state != State::Live && address - start < node.size
        })
    }

    /// Iterates over all blocks by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.by_address.values().map(|index| (*index, self.node(*index)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Marks an unlisted block as live.
    pub(crate) fn mark_live(&mut self, index: u32, params: AllocParams) -> u32 {
        self.serial += 1;
        let serial = self.serial;
        let node = &mut self.nodes[index as usize];
        node.state = State::Live;
        node.requested = params.requested;
        node.serial = serial;
        node.holder = if params.buffer { Holder::Buffer } else { Holder::Caller };
        self.counts.count_allocation(node.size, params.requested);
        index
    }

    /// Allocates a recently freed block of exactly this size.
    pub(crate) fn take_quick(&mut self, params: AllocParams) -> Option<u32> {
        let index = self.quick.pop(params.size)?;
        Some(self.mark_live(index, params))
    }

    /// Allocates the best fit among merged blocks, split to size.
    pub(crate) fn take_fitting(&mut self, params: AllocParams) -> Option<u32> {
        let index = self.find(params, |_| true)?;
        self.split(index, params.size);
        Some(self.mark_live(index, params))
    }

    /// Returns the smallest merged block of sufficient size that `fits`, within the first few.
    pub(crate) fn find(&self, params: AllocParams, fits: impl Fn(&Node) -> bool) -> Option<u32> {
        const SEARCH_LIMIT: usize = 16;
        let sizes = (params.size, 0, 0)..=(params.most, u64::MAX, u32::MAX);
        let candidates = self.free[usize::from(params.small)].range(sizes).take(SEARCH_LIMIT);
        candidates.map(|(.., index)| *index).find(|index| fits(self.node(*index)))
    }

    /// Unlists a merged block and shortens it to `size` bytes; the rest becomes a free block.
    fn split(&mut self, index: u32, size: u64) {
        self.unlist(index);
        let node = &mut self.nodes[index as usize];
        let rest = node.size - size;
        if rest == 0 {
            return;
        }
        node.size = size;
        let piece = Piece {
            address: node.address + size,
            size: rest,
            segment: node.segment,
            small: node.small,
            order: node.order,
        };
        let rest = self.insert(piece, State::Free);
        self.list(rest);
    }

    fn list(&mut self, index: u32) {
        let node = &self.nodes[index as usize];
        self.free[usize::from(node.small)].insert((node.size, node.address, index));
    }

    fn unlist(&mut self, index: u32) {
        let node = &self.nodes[index as usize];
        self.free[usize::from(node.small)].remove(&(node.size, node.address, index));
    }

    fn insert(&mut self, piece: Piece, state: State) -> u32 {
        let Piece { address, size, segment, small, order } = piece;
        let node = Node {
            address,
            size,
            requested: 0,
            serial: 0,
            order,
            segment,
            state,
            small,
            holder: Holder::Caller,
        };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                // 2^32 blocks of 512 bytes are 2 TiB on one stream; nodes beyond that would need as much host memory.
                let index = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
                self.nodes.push(node);
                index
            }
        };
        self.by_address.insert(address, index);
        index
    }

    fn remove(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Vacant;
        let address = node.address;
        self.by_address.remove(&address);
        self.vacant.push(index);
    }

    /// Frees a live block in stream order.
    pub(crate) fn free(&mut self, index: u32, order: Order) {
        let node = &mut self.nodes[index as usize];
        self.counts.count_free(node.size, node.requested);
        node.order = order;
        self.push_quick(index);
    }

    /// Puts a free block into the quick lists, since its size is likely to be requested again.
    pub(crate) fn push_quick(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Quick;
        for evicted in self.quick.push(node.size, index) {
            self.merge(evicted);
        }
    }

    /// Marks a live block as freed but still used by other streams.
    pub(crate) fn free_deferred(&mut self, index: u32, order: Order) {
        let node = &mut self.nodes[index as usize];
        self.counts.count_free(node.size, node.requested);
        node.order = order;
        node.state = State::PendingFree;
    }

    /// Reverts [`free_deferred`](Self::free_deferred).
    pub(crate) fn undo_free(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Live;
        self.counts.undo_free(node.size, node.requested);
    }

    /// Merges the quick lists' blocks with their neighbours. Returns whether there were any.
    pub(crate) fn merge_quick(&mut self) -> bool {
        let blocks = self.quick.take_all();
        blocks.iter().for_each(|index| self.merge(*index));
        !blocks.is_empty()
    }

    /// Frees a block and merges it with its neighbours.
    pub(crate) fn merge(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Free;
        let (start, end) = (node.address, node.address + node.size);
        let after = self.by_address.get(&end).copied();
        if let Some(after) = after.filter(|after| self.can_merge(*after, index)) {
            self.unlist(after);
            self.join(index, after);
        }
        let before = self.by_address.range(..start).next_back().map(|(_, before)| *before);
        let before = before.filter(|before| {
            let node = self.node(*before);
            node.address + node.size == start && self.can_merge(*before, index)
        });
        if let Some(before) = before {
            self.unlist(before);
            self.join(before, index);
        }
        self.list(before.unwrap_or(index));
    }

    fn can_merge(&self, other: u32, index: u32) -> bool {
        let (other, node) = (self.node(other), self.node(index));
        other.state == State::Free && other.segment == node.segment
    }

    /// Joins two unlisted neighbours.
    fn join(&mut self, index: u32, after: u32) {
        let (size, order) = (self.node(after).size, self.node(after).order);
        let node = &mut self.nodes[index as usize];
        node.size += size;
        node.order = node.order.and(order);
        self.remove(after);
    }

    /// Removes a merged or pending block; of a merged one only its first `size` bytes.
    pub(crate) fn extract(&mut self, index: u32, size: u64) -> Piece {
        if self.node(index).state == State::Free {
            self.split(index, size);
        }
        let Node { address, size, segment, small, order, .. } = *self.node(index);
        self.remove(index);
        Piece { address, size, segment, small, order }
    }

    /// Inserts a range as a live block.
    pub(crate) fn insert_live(&mut self, piece: Piece, params: AllocParams) -> u32 {
        let index = self.insert(piece, State::Live);
        self.mark_live(index, params)
    }

    /// Inserts a free range.
    pub(crate) fn insert_free(&mut self, piece: Piece) {
        let index = self.insert(piece, State::Free);
        self.merge(index);
    }

    /// Inserts a range that other streams still use.
    pub(crate) fn insert_deferred(&mut self, piece: Piece) -> u32 {
        self.insert(piece, State::PendingFree)
    }
}
