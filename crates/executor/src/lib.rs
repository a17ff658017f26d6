//! The host threads of Transload: tasks, waits for fences, and calls that may block.
//!
//! An [`Executor`] runs three kinds of work on threads that start when they are first needed:
//! - *Tasks* ([`spawn`](Executor::spawn)) are futures. They run on a bounded number of workers, first in, first out. A task
//!   that has more to do calls [`yield_now`] between two parts and goes to the back of the queue, so a small task does not
//!   wait for the remaining parts of an earlier large one.
//! - *Waits* ([`fence`](Executor::fence)) suspend a task until a [`Fence`](transload_core::Fence) is complete. Idle workers
//!   poll the fences that are awaited, one worker per timeline, before they sleep.
//! - *Blocking calls* ([`spawn_blocking`](Executor::spawn_blocking)) run on spare threads, at most as many at once as their
//!   [`BlockingKey`] permits. A long call that waits for others has [a thread of its own](Executor::spawn_thread).
//!   A [`DropQueue`] drops other code's values there, such as the owners of adopted memory.
//!
//! What such threads need of the processor is here, too: [`stream_copy`] copies past its caches, and [`last_level_cache`] is the size
//! of the last.
//!
//! # Invariants
//! - A worker never blocks on work of this executor, on a fence or on a blocking call. What must wait registers a waker and
//!   returns the thread.
//! - No lock is held while a driver, a waker, a closure or a destructor of the caller's runs.
//! - A panic in a task or a closure ends that task with [`ErrorKind::Interrupted`](transload_core::ErrorKind::Interrupted).
//!   A panic in a waker or a destructor is discarded. Neither ends a thread.
//!
//! ```
//! use transload_executor::{BlockingKey, Executor};
//!
//! let executor = Executor::with_threads(2)?;
//! let files = BlockingKey::new(4);
//! let length = executor.spawn_blocking(&files, || std::fs::read("Cargo.toml").map(|bytes| bytes.len()));
//! let doubled = executor.spawn(async move { length.await.map(|length| length.unwrap_or(0) * 2) });
//! assert!(doubled.wait()?? > 0);
//! executor.drain()?;
//! # Ok::<(), transload_core::Error>(())
//! ```

mod block_on;
mod blocking;
mod drop_queue;
mod executor;
mod external_storage;
mod fences;
mod group;
mod guarded;
mod idle;
mod last_level_cache;
mod shard;
mod stream_copy;
mod sync;
mod task;
mod thread_starter;
mod workers;
mod yielding;

pub use block_on::block_on;
pub use blocking::BlockingKey;
pub use drop_queue::DropQueue;
pub use executor::{Executor, processors};
pub use external_storage::{ExternalMemory, ExternalStorage};
pub use group::Helping;
pub use last_level_cache::last_level_cache;
pub use shard::{SHARDS, thread_shard};
pub use stream_copy::{stream_copy, stream_copy_from};
pub use task::{Completer, Task};
pub use yielding::yield_now;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
