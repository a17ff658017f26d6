//! Kernel parameters passed by value: numbers of 1 to 8 bytes.

use std::os::raw::c_void;

use smallvec::SmallVec;

/// A value that a kernel takes as a parameter: an integer or a float of 1 to 8 bytes. Pointers go through the launch's
/// [`reads`](crate::Launch::reads), [`writes`](crate::Launch::writes) and [`address`](crate::Launch::address).
pub trait KernelArg: Copy + sealed::Word {}

mod sealed {
    pub trait Word {
        /// Returns the value's bytes, at the start of a word, and their number.
        fn word(self) -> (u64, usize);
    }
}

macro_rules! arguments {
    ($($type:ty),*) => { $(
        impl sealed::Word for $type {
            fn word(self) -> (u64, usize) {
                let mut word = [0; 8];
                word[..size_of::<Self>()].copy_from_slice(&self.to_ne_bytes());
                (u64::from_ne_bytes(word), size_of::<Self>())
            }
        }
        impl KernelArg for $type {}
    )* };
}
arguments!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// The parameters of a launch in order. Each word starts with the parameter's bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    words: SmallVec<[u64; 8]>,
    sizes: SmallVec<[usize; 8]>,
}

impl Arguments {
    pub(crate) fn push(&mut self, value: impl KernelArg) {
        let (word, size) = value.word();
        self.words.push(word);
        self.sizes.push(size);
    }

    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the address of each parameter, for the driver. Valid while `self` is neither changed nor moved.
    pub(crate) fn pointers(&self) -> SmallVec<[*mut c_void; 8]> {
        self.words.iter().map(|word| (&raw const *word).cast_mut().cast()).collect()
    }
}
