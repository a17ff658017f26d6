//! Small copies work with any current context or none, and leave it unchanged.

use transload_core::RawBuffer;
use transload_cuda_sim::harness;
use transload_cuda_sys::{Context, Device, trace};
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

const BYTES: usize = 4096;

struct Copies {
    setup: Setup,
    stream: CudaStream,
    there: RawBuffer,
    back: RawBuffer,
}

impl Copies {
    fn on(setup: Setup) -> Self {
        let stream = CudaStream::new(&setup.device).unwrap();
        let (there, back) = (setup.device(BYTES), setup.pinned(&[0; BYTES]));
        Self { stream, there, back, setup }
    }

    /// Copies up and down, with new content each time. Returns the calls that name contexts.
    fn there_and_back(&self, seed: u64) -> Vec<&'static str> {
        let content = noise(BYTES, seed);
        let source = self.setup.pinned(&content);
        let trace = trace::start();
        let up = self.stream.copy_from_host_async(&source, &self.there);
        let down = self.stream.copy_to_host_async(&self.there, &self.back);
        let calls = trace.calls_of_this_thread();
        up.wait().unwrap();
        down.wait().unwrap();
        assert_eq!(*self.back.read().unwrap(), content[..]);
        calls.iter().map(|call| call.name).filter(|name| name.starts_with("cuCtx")).collect()
    }

    fn finish(self) {
        let Self { setup, stream, there, back } = self;
        drop((stream, there, back));
        setup.finish();
    }
}

#[test]
fn small_copy_leaves_the_threads_context_unchanged() {
    let copies = Copies::on(Setup::new());
    let context = Device::new(copies.setup.test.ordinal()).and_then(Context::primary).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bare = |seed| {
                let calls = copies.there_and_back(seed);
                let of = |name| calls.iter().filter(|call| **call == name).count();
                assert_eq!(of("cuCtxPushCurrent_v2"), of("cuCtxPopCurrent_v2"), "{calls:?}");
            };
            bare(1);
            bare(2);
            let bound = context.enter().unwrap();
            assert!(!bound.was_current(), "a thread that had none has none");
            copies.there_and_back(3);
            assert!(copies.there_and_back(4).is_empty());
            drop(bound);
            bare(5);
            bare(6);
            assert!(!context.enter().unwrap().was_current());
        });
    });
    drop(context);
    copies.finish();
}

#[test]
fn a_small_copy_works_in_the_context_of_another_device() {
    let Some(devices) = harness::devices(2) else { return };
    let copies = Copies::on(Setup::on(devices[0]));
    let [own, other] =
        [0, 1].map(|index| Device::new(devices[index].ordinal()).and_then(Context::primary).unwrap());
    {
        let _own = own.enter().unwrap();
        copies.there_and_back(1);
    }
    let bound = other.enter().unwrap();
    for seed in 2..6 {
        copies.there_and_back(seed);
        assert!(other.enter().unwrap().was_current(), "it is left as it was");
    }
    drop(bound);
    drop((own, other));
    copies.finish();
    devices[1].assert_no_live_objects();
}

#[test]
fn small_copy_without_a_context_writes_its_own_device() {
    let Some(devices) = harness::devices(2) else { return };
    let copies: Vec<_> = devices.into_iter().map(|device| Copies::on(Setup::on(device))).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 0..4 {
                copies.iter().for_each(|copies| drop(copies.there_and_back(seed)));
            }
        });
    });
    copies.into_iter().for_each(Copies::finish);
}
