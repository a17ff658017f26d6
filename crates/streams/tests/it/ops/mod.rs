//! Single operations: copies, fills, and the memory that they use.

mod batches;
mod blocking_free;
mod copies;
mod fills;
mod in_place;
mod interpreted;
mod lent_in_flight;
mod order;
mod raw_forms;
mod registered;
