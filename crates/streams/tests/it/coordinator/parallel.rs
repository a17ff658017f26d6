//! Parallel execution: each task returns its own result, and nothing is in flight afterwards.

use std::{
    panic::{catch_unwind, panic_any},
    sync::{Barrier, Mutex},
    thread,
};

use transload_core::{Error, ErrorKind};
use transload_streams::{CudaStream, MultiStreamCoordinator, TaskStage};

use super::{raw, streams};
use crate::support::setup::{Setup, noise};

type Task<'a, T> = Box<dyn FnOnce(&CudaStream) -> transload_core::Result<T> + Send + 'a>;

#[test]
fn tasks_get_streams_round_robin_and_complete() {
    let setup = Setup::new();
    let own: [CudaStream; 3] = streams(&setup);
    let coordinator = raw::over(&own);
    let bytes = 50_000;
    let contents: Vec<_> = (0..10).map(|seed| noise(bytes, seed)).collect();
    let sources: Vec<_> = contents.iter().map(|content| setup.pinned(content)).collect();
    let (there, backs): (Vec<_>, Vec<_>) =
        (0..10).map(|_| (setup.device(bytes), setup.pinned(&vec![0; bytes]))).unzip();
    let tasks = (0..10_usize).map(|n| {
        let (sources, there, backs) = (&sources, &there, &backs);
        move |stream: &CudaStream| {
            raw::copy(stream, &sources[n], &there[n]);
            raw::copy(stream, &there[n], &backs[n]);
            Ok((n, stream.id()))
        }
    });
    let outcomes = coordinator.execute_parallel(tasks).unwrap();
    for (n, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.unwrap(), (n, own[n % 3].id()));
        assert!(*backs[n].read().unwrap() == contents[n][..], "task {n}");
    }
    assert!(own.iter().all(|stream| stream.is_ready().unwrap()));
    drop((sources, there, backs, own, coordinator));
    setup.finish();
}

#[test]
fn errors_and_panics_are_collected_and_other_tasks_run() {
    let setup = Setup::new();
    let own: [CudaStream; 2] = streams(&setup);
    let coordinator = raw::over(&own);
    let (host, there) = (setup.pinned(&[5; 9000]), setup.device(9000));
    let tasks: Vec<Task<'_, usize>> = vec![
        Box::new(|_| Ok(0)),
        Box::new(|_| Err(Error::new(ErrorKind::Busy, "first"))),
        Box::new(|_| panic!("number {}", 2)),
        Box::new(|stream| {
            // The task fails after enqueueing a copy, which is still waited for.
            raw::copy(stream, &host, &there);
            Err(Error::new(ErrorKind::Io, "second"))
        }),
        Box::new(|_| panic_any(7_u32)),
        Box::new(|_| Ok(5)),
    ];
    let outcomes = coordinator.execute_parallel(tasks).unwrap();
    let seen: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(value) => (*value, None),
            Err(failed) => (failed.task, Some((failed.stage, failed.error.kind()))),
        })
        .collect();
    assert_eq!(
        seen,
        [
            (0, None),
            (1, Some((TaskStage::Submitting, ErrorKind::Busy))),
            (2, Some((TaskStage::Panicked, ErrorKind::Interrupted))),
            (3, Some((TaskStage::Submitting, ErrorKind::Io))),
            (4, Some((TaskStage::Panicked, ErrorKind::Interrupted))),
            (5, None),
        ]
    );
    let text = outcomes[2].as_ref().unwrap_err().to_string();
    assert!(text.contains("task 2") && text.contains("number 2"), "{text}");
    assert!(own.iter().all(|stream| stream.is_ready().unwrap()));
    drop((host, there));
    // A core error keeps its kind and contains the task's error.
    let lifted = Error::from(outcomes[3].as_ref().unwrap_err().clone());
    assert_eq!(lifted.kind(), ErrorKind::Io);
}

#[test]
fn tasks_are_ordered_per_stream_and_parallel_across() {
    let setup = Setup::new();
    let own: [CudaStream; 3] = streams(&setup);
    let coordinator = raw::over(&own);
    // If they ran in sequence, the first would wait here for ever.
    let meeting = Barrier::new(3);
    let order = Mutex::new(Vec::new());
    let tasks = (0..9).map(|n| {
        let (meeting, order) = (&meeting, &order);
        move |stream: &CudaStream| {
            meeting.wait();
            order.lock().unwrap().push((stream.id(), n));
            Ok(())
        }
    });
    assert!(coordinator.execute_parallel(tasks).unwrap().iter().all(Result::is_ok));
    let order = order.into_inner().unwrap();
    for (n, stream) in own.iter().enumerate() {
        let of_one: Vec<_> =
            order.iter().filter(|(id, _)| *id == stream.id()).map(|(_, task)| *task).collect();
        assert_eq!(of_one, [n, n + 3, n + 6]);
    }
    // On one stream no thread is needed.
    let here = thread::current().id();
    let on_one = raw::over([&own[1]]).execute_parallel([|_: &CudaStream| Ok(thread::current().id())]);
    assert_eq!(*on_one.unwrap()[0].as_ref().unwrap(), here);
    let none = MultiStreamCoordinator::new().execute_parallel([|_: &CudaStream| Ok(())]);
    assert_eq!(none.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(coordinator.execute_parallel(Vec::<Task<'_, ()>>::new()).unwrap().is_empty());
}

#[test]
fn panic_in_a_task_leaves_the_coordinator_usable() {
    let setup = Setup::new();
    let own: [CudaStream; 1] = streams(&setup);
    let coordinator = raw::over(&own);
    let outcome = catch_unwind(std::panic::AssertUnwindSafe(|| {
        coordinator.execute_parallel([|_: &CudaStream| -> transload_core::Result<()> { panic!("planted") }])
    }));
    assert_eq!(outcome.unwrap().unwrap()[0].as_ref().unwrap_err().stage, TaskStage::Panicked);
    assert!(coordinator.execute_parallel([|_: &CudaStream| Ok(())]).unwrap()[0].is_ok());
}
