//! Typed arrays, their guards, and buffers that nothing else uses.

use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    thread::{self, ThreadId},
};

use transload::{
    Array, Buffer, DeviceId, ErrorKind, HostBuffer, MemoryKind, Runtime,
    backend::{Destination, Observer, TransferEvent},
};
use transload_core::{HostBytes, RawBuffer, Reclaimer, conformance};

use crate::elsewhere::Gate;

/// The host alone.
pub(crate) fn host_only() -> Runtime {
    crate::uncalibrated::builder().without("cuda").discover().unwrap()
}

#[test]
fn vec_becomes_an_array_without_a_copy() {
    let rt = host_only();
    let numbers: Vec<f32> = (0..1000).map(|n| n as f32).collect();
    let address = numbers.as_ptr().addr();
    let array = rt.host(numbers).unwrap();
    assert_eq!(array.raw().host_address().unwrap().as_ptr().addr(), address);
    assert_eq!((array.len(), array.device(), array.kind()), (1000, DeviceId::Cpu, MemoryKind::Pageable));
    assert_eq!(array.read().unwrap()[999], 999.0);
    drop(array);
    rt.drain().unwrap();
    assert!(rt.manager().resource_counts().iter().all(|(_, counts)| counts.is_empty()));
}

#[test]
fn vec_comes_back_from_its_array_alone() {
    let rt = host_only();
    let numbers: Vec<u32> = (0..1 << 20).collect();
    let (address, expected) = (numbers.as_ptr().addr(), numbers.clone());
    let array = rt.host(numbers).unwrap();
    let (gate, there) = (Gate::new(), rt.zeros::<u32>(1 << 20).unwrap());
    let transfer = rt.copy(&array, &there).after(&gate.fence()).submit();
    let array = array.try_into_vec().unwrap_err();
    gate.open();
    transfer.wait().unwrap();
    rt.drain().unwrap();
    let other = array.cast::<[u32; 2]>().unwrap();
    drop(array);
    let other = other.try_into_vec().unwrap_err();
    let array = other.cast::<u32>().unwrap();
    drop(other);
    array.slice(..1).unwrap().fill(7).unwrap();
    let numbers = array.try_into_vec().unwrap();
    assert_eq!((numbers.as_ptr().addr(), numbers[0]), (address, 7));
    assert!(numbers[1..] == expected[1..] && *there.read().unwrap() == expected[..]);
    let there = there.try_into_vec().unwrap_err();
    assert_eq!(there.len(), 1 << 20);
}

#[test]
fn slices_and_clones_share_the_elements() {
    let rt = host_only();
    let array = rt.host((0..10_u32).collect()).unwrap();
    let tail = array.slice(6..).unwrap();
    assert_eq!(*tail.read().unwrap(), [6, 7, 8, 9]);
    tail.slice(1..=2).unwrap().fill(70).unwrap();
    assert_eq!(array.clone().read().unwrap()[5..], [5, 6, 70, 70, 9]);
    assert!(array.slice(10..).unwrap().is_empty());
    let refused = |from: usize, to: usize| array.slice(from..to).unwrap_err();
    let (before, beyond) = (refused(3, 2), refused(4, 11));
    assert_eq!((before.kind(), beyond.kind()), (ErrorKind::OutOfRange, ErrorKind::OutOfRange));
    assert!(beyond.to_string().contains("elements 4..11"), "{beyond}");
}

#[test]
fn buffers_of_any_kind_are_copied_as_trait_objects() {
    let rt = host_only();
    let (src, dst) = (rt.host(vec![1.0_f32, 2.0]).unwrap(), rt.zeros::<f32>(2).unwrap());
    let [from, to]: [Box<dyn Buffer<f32>>; 2] = [Box::new(src.clone()), Box::new(dst.clone())];
    rt.copy(&*from, &*to).wait().unwrap();
    assert_eq!(*dst.read().unwrap(), [1.0, 2.0]);
    src.fill(3.0).unwrap();
    rt.copy_many([(&*from, &*to)]).wait().unwrap();
    assert_eq!(*dst.read().unwrap(), [3.0, 3.0]);
}

#[test]
fn wrong_length_alignment_or_size_is_refused() {
    let rt = host_only();
    let bytes = rt.host(vec![0_u64; 3]).unwrap().cast::<u8>().unwrap();
    assert_eq!(bytes.len(), 24);
    assert_eq!(bytes.slice(8..).unwrap().cast::<[u32; 2]>().unwrap().len(), 2);
    let refused = |from: usize, to: usize| bytes.slice(from..to).unwrap().cast::<u32>().unwrap_err().kind();
    assert_eq!((refused(0, 6), refused(1, 9)), (ErrorKind::InvalidArgument, ErrorKind::InvalidArgument));
    assert_eq!(bytes.cast::<()>().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(rt.zeros::<()>(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(rt.zeros::<u64>(usize::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn arrays_without_elements_are_made_by_every_way() {
    let rt = host_only();
    let mut empty = vec![
        rt.host(Vec::<f64>::new()).unwrap(),
        rt.zeros(0).unwrap(),
        rt.alloc(DeviceId::Cpu, MemoryKind::Pageable, 0).unwrap(),
        rt.zeros(3).unwrap().slice(3..).unwrap(),
    ];
    #[cfg(feature = "dlpack")]
    {
        let tensor = transload::dlpack::Export::of::<f64>(empty[0].raw()).shape(&[0]).versioned().unwrap();
        let imported = transload::dlpack::Importer::new().import_as::<f64, _>(tensor).unwrap();
        empty.push(rt.array(imported.into_buffer()).unwrap());
    }
    for array in &mut empty {
        assert_eq!((array.is_empty(), array.len()), (true, 0));
        array.fill(1.0).unwrap();
        array.copy_from_host(&[]).unwrap();
        assert!(array.read().unwrap().is_empty() && array.write().unwrap().is_empty());
        assert!(array.cast::<u8>().unwrap().is_empty());
        assert!(rt.download(array).wait().unwrap().is_empty());
    }
}

#[test]
fn open_guards_keep_conflicting_users_away() {
    let rt = host_only();
    let array = rt.zeros::<u16>(8).unwrap();
    let (front, back) = (array.slice(..4).unwrap(), array.slice(4..).unwrap());
    let mut writer = front.write().unwrap();
    writer[0] = 9;
    assert_eq!(array.try_read().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(front.try_write().unwrap_err().kind(), ErrorKind::Busy);
    let reader = back.read().unwrap();
    assert_eq!(*back.read().unwrap(), *reader);
    assert_eq!(back.try_write().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(rt.download(&front).wait().unwrap_err().kind(), ErrorKind::Busy);
    drop((writer, reader));
    assert_eq!(*array.read().unwrap(), [9, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn elements_go_from_and_to_slices() {
    let rt = host_only();
    let array = rt.zeros::<[f32; 3]>(2).unwrap();
    let (source, mut back) = ([[1.0_f32; 3], [2.0; 3]], [[0.0; 3]; 2]);
    array.copy_from_host(&source).unwrap();
    array.copy_to_host(&mut back).unwrap();
    assert_eq!(back, source);
    conformance::typed_buffer(&rt.zeros::<[f32; 3]>(7).unwrap(), [1.0; 3], [0.5; 3]).unwrap();
}

#[test]
fn downloaded_elements_are_the_callers_alone() {
    let rt = host_only();
    let array = rt.host((0..100_000_u32).collect()).unwrap();
    let mut buffer = rt.download(&array.slice(1..).unwrap()).wait().unwrap();
    assert!(buffer.iter().copied().eq(1..100_000));
    buffer[0] = 7;
    assert_eq!(array.read().unwrap()[1], 1);
    assert_eq!(buffer.to_vec(), buffer.into_vec());
    assert_eq!(rt.download(&array.slice(..0).unwrap()).wait().unwrap().len(), 0);
}

#[test]
fn report_of_a_download_says_what_moved() {
    let rt = host_only();
    let array = rt.host(vec![3_u16; 5000]).unwrap();
    let (vec, report) = rt.download_into(&array, vec![0; 5000]).wait_with_report().unwrap();
    let (buffer, awaited) = pollster::block_on(rt.download(&array).with_report()).unwrap();
    assert!(vec == [3; 5000] && *buffer == *vec);
    assert_eq!([report, awaited].map(|report| report.unwrap().bytes), [10_000; 2]);
    let none = array.slice(..0).unwrap();
    assert!(rt.download(&none).wait_with_report().unwrap().1.is_none());
    assert!(pollster::block_on(rt.download(&none).with_report()).unwrap().1.is_none());
}

#[test]
fn upload_on_a_worker_is_refused() {
    let rt = host_only();
    let there = rt.clone();
    let uploaded = rt.manager().executor().spawn(async move { there.upload(DeviceId::Cpu, &[1_u8; 5000]) });
    assert_eq!(uploaded.wait().unwrap().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// A container of the caller's.
struct Pixels(Box<[u8]>);

impl Deref for Pixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Pixels {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

// SAFETY: it owns its elements, on the heap.
unsafe impl Destination<u8> for Pixels {}

#[test]
fn download_fills_a_container_of_the_caller() {
    let rt = host_only();
    let pixels = Pixels(vec![0; 64].into_boxed_slice());
    let pixels = rt.download_into(&rt.host(vec![9_u8; 64]).unwrap(), pixels).wait().unwrap();
    assert_eq!(*pixels, [9; 64]);
}

#[test]
fn other_handles_of_a_host_buffer_are_busy() {
    let rt = host_only();
    let array = rt.host(vec![1_u8, 2, 3]).unwrap();
    // Even where handles are left, no safe code reaches the bytes.
    let (handle, part) = (array.clone(), array.slice(1..2).unwrap());
    let buffer = HostBuffer::from_array(array).unwrap();
    assert_eq!(handle.try_read().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(part.try_write().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(rt.download(&part).wait().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(part.fill(0).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(*buffer, [1, 2, 3]);
    let again: Array<u8> = buffer.into_array();
    assert_eq!(again.raw().id(), handle.raw().id());
    handle.fill(4).unwrap();
    assert_eq!(*again.read().unwrap(), [4, 4, 4]);
    // Nor is one made of elements with an open guard.
    let look = again.read().unwrap();
    assert_eq!(HostBuffer::from_array(handle).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(*look, [4, 4, 4]);
}

#[test]
fn read_only_memory_is_no_host_buffer() {
    static BYTES: [u8; 16] = [7; 16];
    // SAFETY: the bytes live for ever, and nobody writes them.
    let storage =
        unsafe { HostBytes::new((), NonNull::from(&BYTES).cast(), BYTES.len(), MemoryKind::Pageable, false) };
    let raw = RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new()));
    let array = host_only().array::<u8>(raw).unwrap();
    assert_eq!(*array.read().unwrap(), BYTES);
    assert_eq!(HostBuffer::from_array(array).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn download_into_returns_the_very_memory() {
    let rt = host_only();
    let array = rt.host((0..5000_u64).collect()).unwrap();
    let vec = vec![0_u64; 5000];
    let address = vec.as_ptr();
    let vec = rt.download_into(&array, vec).wait().unwrap();
    assert!(vec.as_ptr() == address && vec.iter().copied().eq(0..5000));
    let vec = pollster::block_on(rt.download_into(&rt.zeros(5000).unwrap(), vec).into_future()).unwrap();
    assert!(vec.as_ptr() == address && vec.iter().all(|n| *n == 0));

    let buffer = rt.download(&rt.zeros(5000).unwrap()).wait().unwrap();
    let address = buffer.as_ptr();
    let buffer = pollster::block_on(rt.download_into(&array, buffer).into_future()).unwrap();
    assert!(buffer.as_ptr() == address && buffer.iter().copied().eq(0..5000));

    let short = rt.download_into(&array, vec![0; 4999]).wait().unwrap_err();
    assert_eq!(short.kind(), ErrorKind::InvalidArgument);
    drop((array, buffer));
    rt.drain().unwrap();
    assert!(rt.manager().resource_counts().iter().all(|(_, counts)| counts.is_empty()));
}

#[test]
fn host_buffer_is_exclusive_while_it_is_filled() {
    let rt = host_only();
    let (src, array) = (rt.host(vec![5_u8; 100]).unwrap(), rt.zeros(100).unwrap());
    let handle = array.clone();
    let buffer = HostBuffer::from_array(array).unwrap();
    let gate = Gate::before(src.raw());
    let mut filling = Box::pin(rt.download_into(&src, buffer).into_future());
    let mut context = Context::from_waker(Waker::noop());
    assert!(filling.as_mut().poll(&mut context).is_pending());
    assert_eq!(handle.try_read().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(handle.fill(1).unwrap_err().kind(), ErrorKind::Busy);
    gate.open();
    let buffer = pollster::block_on(filling).unwrap();
    assert_eq!(*buffer, [5; 100]);
    // Filled from its own elements it is refused, and dropped.
    let refused = rt.download_into(&handle, buffer).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);

    // Dropped while it waits, it gives the bytes free only when nothing arrives any more.
    src.fill(6).unwrap();
    let (buffer, gate) = (HostBuffer::from_array(handle.clone()).unwrap(), Gate::before(src.raw()));
    let mut filling = Box::pin(rt.download_into(&src, buffer).into_future());
    assert!(filling.as_mut().poll(&mut context).is_pending());
    drop(filling);
    let seen = handle.try_read().map(|view| view.to_vec());
    gate.open();
    rt.drain().unwrap();
    let left = handle.read().unwrap();
    assert!(seen.map_or_else(|error| error.kind() == ErrorKind::Busy, |seen| seen == *left));
}

#[test]
fn futures_own_what_they_need() {
    let rt = host_only();
    let array = rt.host((0..1_000_000_u32).collect()).unwrap();
    let place = array.place();
    let (prepared, shared) = (rt.prepare_async(place, place), rt.share_async(&array, DeviceId::Cpu));
    let (download, drained) = (rt.download(&array).into_future(), rt.drain_async());
    drop((rt, array));
    let thread = std::thread::spawn(move || {
        pollster::block_on(async {
            prepared.await.unwrap();
            assert_eq!(shared.await.unwrap().len(), 1_000_000);
            let buffer = download.await.unwrap();
            assert!(buffer.iter().copied().eq(0..1_000_000));
            drained.await.unwrap();
        });
    });
    thread.join().unwrap();
}

/// Remembers the threads that submitted transfers.
#[derive(Default)]
struct Submitters(Mutex<Vec<ThreadId>>);

impl Observer for Submitters {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let TransferEvent::Submitted { .. } = event {
            self.0.lock().unwrap().push(thread::current().id());
        }
    }
}

#[test]
fn awaited_download_copies_on_another_thread() {
    let submitters = Arc::new(Submitters::default());
    let builder = crate::uncalibrated::builder().without("cuda").observer(Arc::clone(&submitters) as _);
    let rt = builder.discover().unwrap();
    let array = rt.host(vec![3_u8; 1 << 20]).unwrap();
    let waited = rt.download(&array).wait().unwrap();
    let awaited = pollster::block_on(rt.download(&array).into_future()).unwrap();
    assert!(waited[..] == awaited[..] && awaited.iter().all(|byte| *byte == 3));
    let [waited, awaited] = submitters.0.lock().unwrap()[..] else { panic!("not two transfers") };
    assert!(waited == thread::current().id() && awaited != waited);
}
