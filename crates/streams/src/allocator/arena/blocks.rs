//! The blocks of one stream: which ranges of which segments are live, and the best fit among those that are free.
//!
//! A freed block first goes to the quick lists, as it is. When those do not serve a request, all of them are merged with
//! their free neighbours, and the smallest free block that is large enough is split.

use std::collections::{BTreeMap, BTreeSet};

use super::{quick::Quick, size::AllocParams, size_class_counts::SizeClassCounts};

/// After what of its own stream a free block may be used by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// The number of the free that gave it back in stream order; 0 where no such free is outstanding.
    pub(crate) freed: u64,
    /// The last point of the stream's timeline that is known to use it; 0 where there is none.
    pub(crate) point: u64,
}

impl Order {
    pub(crate) fn and(self, other: Self) -> Self {
        Self { freed: self.freed.max(other.freed), point: self.point.max(other.point) }
    }
}

/// What a block is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The entry stands for no block.
    Vacant,
    /// Allocated.
    Live,
    /// Free, in a quick list.
    Quick,
    /// Free, merged with its neighbours.
    Free,
    /// Free once fences of other streams are over.
    PendingFree,
}

/// Who has a live block, and so may free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The caller of the raw layer.
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
    /// What was asked for, of a live block.
    pub(crate) requested: u64,
    /// The number of its allocation.
    pub(crate) serial: u64,
    pub(crate) order: Order,
    pub(crate) segment: u32,
    pub(crate) state: State,
    /// Whether its segment is for small blocks.
    pub(crate) small: bool,
    /// Who has it, of a live block.
    pub(crate) holder: Holder,
}

/// A range on its way from one stream to another.
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
    /// Free blocks of large and of small segments by size, then address.
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

    /// The block at an index that these blocks gave out.
    pub(crate) fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    pub(crate) fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    /// The block at an index that may be anybody's.
    pub(crate) fn get(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    /// The block that begins at an address.
    pub(crate) fn at(&self, address: u64) -> Option<u32> {
        self.by_address.get(&address).copied()
    }

    /// Whether an address lies within a block that is not live.
    pub(crate) fn is_in_free_block(&self, address: u64) -> bool {
        self.by_address.range(..=address).next_back().is_some_and(|(start, index)| {
            let node = self.node(*index);
            node.state != State::Live && address - start < node.size
        })
    }

    /// Every block by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.by_address.values().map(|index| (*index, self.node(*index)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Makes a block live that is in no list.
    pub(crate) fn mark_live(&mut self, index: u32, want: AllocParams) -> u32 {
        self.serial += 1;
        let serial = self.serial;
        let node = &mut self.nodes[index as usize];
        node.state = State::Live;
        node.requested = want.requested;
        node.serial = serial;
        node.holder = if want.buffer { Holder::Buffer } else { Holder::Caller };
        self.counts.count_allocation(node.size, want.requested);
        index
    }

    /// A block of exactly this size freed a moment ago.
    pub(crate) fn take_quick(&mut self, want: AllocParams) -> Option<u32> {
        let index = self.quick.pop(want.size)?;
        Some(self.mark_live(index, want))
    }

    /// The best fit among merged blocks of small or large segments, split to size.
    pub(crate) fn take_fitting(&mut self, want: AllocParams) -> Option<u32> {
        let index = self.find(want, |_| true)?;
        self.split(index, want.size);
        Some(self.mark_live(index, want))
    }

    /// The smallest merged block of a size for the request that `fits`, within the first few.
    pub(crate) fn find(&self, want: AllocParams, fits: impl Fn(&Node) -> bool) -> Option<u32> {
        const SEARCH_LIMIT: usize = 16;
        let sizes = (want.size, 0, 0)..=(want.most, u64::MAX, u32::MAX);
        let candidates = self.free[usize::from(want.small)].range(sizes).take(SEARCH_LIMIT);
        candidates.map(|(.., index)| *index).find(|index| fits(self.node(*index)))
    }

    /// Takes a merged block out of the fitting ones and leaves its first `size` bytes; the rest is a free block of its own.
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

    /// Frees a live block in the order of the stream.
    pub(crate) fn free(&mut self, index: u32, order: Order) {
        let node = &mut self.nodes[index as usize];
        self.counts.count_free(node.size, node.requested);
        node.order = order;
        self.push_quick(index);
    }

    /// A block that waited is free now, and likely to be asked for again at this size.
    pub(crate) fn push_quick(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Quick;
        for evicted in self.quick.push(node.size, index) {
            self.merge(evicted);
        }
    }

    /// Frees a live block that other streams still use.
    pub(crate) fn free_deferred(&mut self, index: u32, order: Order) {
        let node = &mut self.nodes[index as usize];
        self.counts.count_free(node.size, node.requested);
        node.order = order;
        node.state = State::PendingFree;
    }

    /// Takes [`free_deferred`](Self::free_deferred) back.
    pub(crate) fn undo_free(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Live;
        self.counts.undo_free(node.size, node.requested);
    }

    /// Merges what is in the quick lists with its neighbours. Answers whether there was anything.
    pub(crate) fn merge_quick(&mut self) -> bool {
        let blocks = self.quick.take_all();
        blocks.iter().for_each(|index| self.merge(*index));
        !blocks.is_empty()
    }

    /// Makes a block free, merged with its neighbours.
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

    /// Makes one block of two neighbours that are in no list.
    fn join(&mut self, index: u32, after: u32) {
        let (size, order) = (self.node(after).size, self.node(after).order);
        let node = &mut self.nodes[index as usize];
        node.size += size;
        node.order = node.order.and(order);
        self.remove(after);
    }

    /// Takes a merged or waiting block out altogether; of a merged one its first `size` bytes.
    pub(crate) fn extract(&mut self, index: u32, size: u64) -> Piece {
        if self.node(index).state == State::Free {
            self.split(index, size);
        }
        let Node { address, size, segment, small, order, .. } = *self.node(index);
        self.remove(index);
        Piece { address, size, segment, small, order }
    }

    /// Takes a range in, allocated.
    pub(crate) fn insert_live(&mut self, piece: Piece, want: AllocParams) -> u32 {
        let index = self.insert(piece, State::Live);
        self.mark_live(index, want)
    }

    /// Takes a range in, free.
    pub(crate) fn insert_free(&mut self, piece: Piece) {
        let index = self.insert(piece, State::Free);
        self.merge(index);
    }

    /// Takes a range in that other streams still use.
    pub(crate) fn insert_deferred(&mut self, piece: Piece) -> u32 {
        self.insert(piece, State::PendingFree)
    }
}
