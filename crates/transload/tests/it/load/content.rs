//! Loaded tensors have the file's content, for all options.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use transload::{
    ErrorKind,
    load::{LoadOptions, LoadPhase, load, load_async},
};

use super::*;

fn on_host(buffer: &RawBuffer) -> Vec<u8> {
    buffer.read().unwrap().to_vec()
}

#[test]
fn every_type_and_odd_sizes_arrive_at_aligned_places() {
    let manager = host_manager();
    let whole = Model::of_every_type();
    for chunk in [1, 100, 4096, 65_537, 16 << 20] {
        // Each chunk is a transfer, so with chunks of one byte a few thousand bytes are enough.
        let model = if chunk == 1 { whole.of_at_most(1000) } else { whole.clone() };
        let disk = OnDisk::new(&model.file());
        for (buffers, alignment) in [(1, 1), (2, 64), (4, 4096)] {
            let options = LoadOptions::new(HOST).chunk(chunk).buffers(buffers).alignment(alignment);
            let options = options.staging(MemoryKind::Pageable).checksum(true).verify(true);
            let loaded = load(&manager, disk.path(), &options).unwrap();
            model.assert_is(&loaded, alignment.max(64) as u64, on_host);
            assert_eq!(loaded.segments().len(), 1);
            let report = loaded.report();
            assert!(report.buffers <= buffers && report.buffer_bytes <= chunk);
            assert_eq!(report.methods.iter().map(|count| count.chunks).sum::<u64>(), report.chunks);
            assert!(report.verifying.is_some() && report.wall >= report.preparing);
        }
    }
    assert_empty(&manager);
}

#[test]
fn tensors_are_in_the_files_order_and_unknown_names_are_none() {
    let manager = host_manager();
    // The header lists the second tensor first, as other programs do.
    let header = r#"{"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   "#;
    let disk = OnDisk::new(&file(header, b"AAbbb"));
    let loaded = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap();
    let names: Vec<_> = loaded.tensors().iter().map(LoadedTensor::name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(on_host(loaded.tensor("b").unwrap().buffer()), b"bbb");
    assert!(loaded.tensor("c").is_none() && loaded.metadata().is_empty());
}

#[test]
fn a_model_of_empty_tensors_is_loaded() {
    let manager = host_manager();
    let disk = OnDisk::new(&Model::of_sizes(&[0, 0]).file());
    let loaded = load(&manager, disk.path(), &LoadOptions::new(HOST).checksum(true).verify(true)).unwrap();
    assert_eq!((loaded.bytes(), loaded.report().chunks), (0, 0));
    let empty = &loaded.tensors()[1];
    assert!(empty.buffer().is_empty());
    assert_eq!(empty.checksum(), Some(0x2D06_8005_38D3_94C2), "the hash of nothing");
}

#[test]
fn checksums_are_those_of_the_file_and_only_on_request() {
    let manager = host_manager();
    let disk = OnDisk::new(&file(r#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#, b"abc"));
    for chunk in [3, 2, 1] {
        let options = LoadOptions::new(HOST).checksum(true).chunk(chunk);
        let loaded = load(&manager, disk.path(), &options).unwrap();
        assert_eq!(loaded.tensors()[0].checksum(), Some(0x78AF_5F94_892F_3950), "published for `abc`");
    }
    let loaded = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap();
    assert_eq!((loaded.tensors()[0].checksum(), loaded.report().verifying), (None, None));
}

#[test]
fn tensor_is_an_array_of_its_element_type() {
    let rt = crate::uncalibrated::builder().without("cuda").discover().unwrap();
    let header = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let disk = OnDisk::new(&file(header, &[1.0_f32, 2.0].map(f32::to_le_bytes).concat()));
    let model = rt.load(disk.path(), &LoadOptions::new(HOST)).unwrap();
    let [x] = model.tensors() else { panic!("one tensor") };
    assert_eq!(*x.array::<f32>().unwrap().read().unwrap(), [1.0, 2.0]);
    assert_eq!(x.array::<u8>().unwrap().len(), 8);
    let error = x.array::<u64>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn a_tensor_keeps_its_memory_alive_without_the_model() {
    let manager = host_manager();
    let model = Model::of_sizes(&[1000, 2000]);
    let disk = OnDisk::new(&model.file());
    let loaded = load(&manager, disk.path(), &LoadOptions::new(HOST)).unwrap();
    let tensor = loaded.tensors()[1].clone();
    drop(loaded);
    assert!(on_host(tensor.buffer()) == model.0[1].3);
    drop(tensor);
    assert_empty(&manager);
}

#[test]
fn ring_of_two_loads_thirty_megabytes_with_progress() {
    let manager = host_manager();
    let model = Model::of_sizes(&[10_000_001, 3, 20_000_000]);
    let disk = OnDisk::new(&model.file());
    let told: [Arc<AtomicU64>; 2] = Default::default();
    let [sent, back] = told.clone();
    let options = LoadOptions::new(HOST).chunk(1 << 20).buffers(2).staging(MemoryKind::Pageable);
    let options = options.checksum(true).progress(move |so_far| {
        assert_eq!(so_far.total, 30_000_004);
        let phase = if so_far.phase == LoadPhase::Sending { &sent } else { &back };
        assert!(phase.swap(so_far.bytes, Ordering::Relaxed) < so_far.bytes);
    });
    let loaded = load(&manager, disk.path(), &options).unwrap();
    model.assert_is(&loaded, 64, on_host);
    assert!(told.iter().all(|told| told.load(Ordering::Relaxed) == 30_000_004));
    assert!((1..=2).contains(&loaded.report().buffers), "{}", loaded.report().buffers);
    assert_eq!(loaded.report().chunks, 29);
}

#[test]
fn host_destination_is_read_in_place() {
    let manager = host_manager();
    let model = Model::of_sizes(&[1_000_001, 3, 0, 700_000]);
    let disk = OnDisk::new(&model.file());
    let loaded = load(&manager, disk.path(), &LoadOptions::new(HOST).chunk(100_000)).unwrap();
    model.assert_is(&loaded, 64, on_host);
    let report = loaded.report();
    assert_eq!((report.buffers, report.staging, report.chunks), (0, None, 18));
    assert!(report.methods.is_empty(), "nothing was transferred: {report:?}");
    assert!(manager.get_transfer_stats().is_empty());
}

/// Small pieces, chunks and ring, and more threads than any of them.
#[test]
fn many_threads_and_a_tiny_ring_put_every_byte_in_place() {
    let manager = host_manager();
    // Long tensors between thousands of short ones, with gaps after each.
    let mut sizes: Vec<usize> = (0..4000).map(|index| index % 97).collect();
    sizes.splice(2000..2000, [3_000_001, 65_536, 65_535, 1_300_000]);
    let model = Model::of_sizes(&sizes);
    let disk = OnDisk::new(&model.file());
    for (chunk, buffers, readers) in
        [(1 << 20, 1, 16), (1 << 20, 3, 16), (999, 2, 16), (5 << 20, 2, 4), (5 << 20, 2, 1)]
    {
        for staging in [None, Some(MemoryKind::Pageable)] {
            let options = LoadOptions::new(HOST).chunk(chunk).buffers(buffers).readers(readers);
            let options = staging.map_or(options.clone(), |kind| options.staging(kind));
            let options = options.alignment(256).checksum(true).verify(true);
            let loaded = load(&manager, disk.path(), &options).unwrap();
            model.assert_is(&loaded, 256, on_host);
            drop(loaded);
            assert_empty(&manager);
        }
    }
}

#[test]
fn progress_callback_may_drain() {
    let manager = host_manager();
    let model = Model::of_sizes(&[1_000_001, 3]);
    let disk = OnDisk::new(&model.file());
    for staging in [None, Some(MemoryKind::Pageable)] {
        let draining = manager.clone();
        let options = LoadOptions::new(HOST).chunk(10_000).readers(4).checksum(true);
        let options = staging.map_or(options.clone(), |kind| options.staging(kind));
        // This would hang if the drain waited for a reader that waits for this.
        let options = options.progress(move |_| draining.drain().unwrap());
        let loaded = load(&manager, disk.path(), &options).unwrap();
        model.assert_is(&loaded, 64, on_host);
        drop((loaded, options));
        assert_empty(&manager);
    }
}

#[test]
fn panicking_progress_callback_stops_readers_and_frees_all() {
    let manager = host_manager();
    let disk = OnDisk::new(&Model::of_sizes(&[5_000_000]).file());
    for staging in [None, Some(MemoryKind::Pageable)] {
        let options = LoadOptions::new(HOST).chunk(500_000).readers(8).progress(|_| panic!("by the test"));
        let options = staging.map_or(options.clone(), |kind| options.staging(kind));
        let loading = || load(&manager, disk.path(), &options);
        // This would hang if a thread were left.
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(loading)).is_err());
        assert_empty(&manager);
    }
}

#[test]
fn raw_load_takes_any_file_as_one_tensor_of_bytes() {
    let manager = host_manager();
    let place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    for staging in [None, Some(MemoryKind::Pageable)] {
        for bytes in [1, 100_003] {
            let content = noise(bytes, 8);
            let disk = OnDisk::new(&content);
            let options = LoadOptions::new(place).raw(true).chunk(4096).verify(true);
            let options = staging.map_or(options.clone(), |kind| options.staging(kind));
            let loaded = load(&manager, disk.path(), &options).unwrap();
            let [tensor] = loaded.tensors() else { panic!("{loaded:?}") };
            assert_eq!((tensor.shape(), tensor.name()), (&[bytes][..], disk.path().to_str().unwrap()));
            assert!(on_host(tensor.buffer()) == content, "{bytes} bytes");
            assert!(loaded.report().verifying.is_some());
        }
    }
    let disk = OnDisk::new(&[]);
    let error = load(&manager, disk.path(), &LoadOptions::new(place).raw(true)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("is empty; valid: a file of 1 to "), "{error}");
    assert_empty(&manager);
}

#[test]
fn future_of_a_load_owns_what_it_needs() {
    let model = Model::of_every_type();
    let disk = OnDisk::new(&model.file());
    let loading = {
        let rt = crate::uncalibrated::builder().without("cuda").discover().unwrap();
        rt.load_async(disk.path(), &LoadOptions::new(HOST))
    };
    let loaded = std::thread::spawn(move || pollster::block_on(loading)).join().unwrap().unwrap();
    model.assert_is(&loaded, 64, on_host);
}

#[test]
fn load_async_is_static_and_puts_every_byte_in_place() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let manager = host_manager();
    let model = Model::of_every_type();
    let disk = OnDisk::new(&model.file());
    let options = LoadOptions::new(HOST).checksum(true);
    let loading = load_async(&manager, disk.path(), &options);
    let loaded = runtime.block_on(async { tokio::spawn(loading).await.unwrap() }).unwrap();
    model.assert_is(&loaded, 64, on_host);
    drop(loaded);
    let error = runtime.block_on(load_async(&manager, disk.folder().join("none"), &options)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_empty(&manager);
}

#[test]
fn dropped_load_tells_no_more_and_frees_all() {
    const CHUNKS: u64 = 50;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let manager = host_manager();
    let disk = OnDisk::new(&Model::of_sizes(&[1000 * CHUNKS as usize]).file());
    for staging in [None, Some(MemoryKind::Pageable)] {
        // The first chunk is over, and the load goes on when the future was dropped.
        let (tell, told) = tokio::sync::oneshot::channel();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (tell, gone) = (Mutex::new(Some(tell)), Mutex::new(gone));
        let chunks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&chunks);
        let options = LoadOptions::new(HOST).chunk(1000).buffers(2).progress(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            if let Some(tell) = tell.lock().unwrap().take() {
                tell.send(()).unwrap();
                gone.lock().unwrap().recv().unwrap();
            }
        });
        let options = staging.map_or(options.clone(), |kind| options.staging(kind));
        runtime.block_on(async {
            let loading = tokio::spawn(load_async(&manager, disk.path(), &options));
            // The load waits on its own thread, not on that of these tasks.
            told.await.unwrap();
            loading.abort();
            assert!(loading.await.unwrap_err().is_cancelled());
        });
        go.send(()).unwrap();
        assert_empty(&manager);
        assert_eq!(chunks.load(Ordering::SeqCst), 1);
    }
}
