//! Runs: small transfers of one path that a thread submitted one after another without seeing the end of any, so that they could have been
//! one list.

use std::collections::BTreeMap;

use transload_core::{ClockId, TransferId, TransferPath, TransferReport};

use crate::{busy::BusyTime, clock_map::nanoseconds, recent::Recent, timed_transfers::Ran};

/// The largest transfer of a run, in bytes.
const PIECE: u64 = 64 << 10;
/// Threads whose runs are known.
const THREADS: usize = 4096;

struct Run {
    path: TransferPath,
    transfers: u64,
    bytes: u64,
    /// How many were timed, and when they ran.
    timed: u64,
    ran: Option<Ran>,
    /// How long they were submitted and ran, each after the other: the rest of its time is the program's.
    most_ns: u64,
    /// Whether later transfers begin another one.
    is_closed: bool,
}

struct Member {
    run: u64,
    is_ended: bool,
    is_timed: bool,
}

/// The runs of a path of which every transfer was timed. All have one clock.
#[derive(Clone, Default)]
pub(crate) struct RunTotals {
    clock: Option<ClockId>,
    pub(crate) runs: u64,
    pub(crate) transfers: u64,
    pub(crate) bytes: u64,
    /// From the begin of each run to its end, without what the program did between its transfers.
    pub(crate) busy: BusyTime,
}

#[derive(Default)]
pub(crate) struct Runs {
    runs: Recent<u64, Run>,
    /// The last run of each thread.
    of_threads: BTreeMap<u64, u64>,
    members: Recent<TransferId, Member>,
    last: u64,
    pub(crate) totals: BTreeMap<TransferPath, RunTotals>,
}

impl Runs {
    /// Takes each transfer that a thread submits. One that is complete by then ends the run before it.
    pub(crate) fn submitted(
        &mut self,
        id: TransferId,
        report: &TransferReport,
        thread: u64,
        is_complete: bool,
    ) {
        let (path, bytes) = (report.path, report.bytes);
        let is_piece = bytes <= PIECE && !is_complete;
        let last = self.of_threads.get(&thread).copied();
        let continued = last.and_then(|last| {
            let run = self.runs.get_mut(last)?;
            run.is_closed |= run.path != path || !is_piece;
            (!run.is_closed).then_some(run)
        });
        match continued {
            Some(run) => {
                (run.transfers, run.bytes) = (run.transfers + 1, run.bytes.saturating_add(bytes));
                run.most_ns = run.most_ns.saturating_add(report.submitting.map_or(0, nanoseconds));
            }
            None => {
                last.into_iter().for_each(|last| self.settle(last));
                self.of_threads.remove(&thread);
                if !is_piece {
                    return;
                }
                self.last += 1;
                let run =
                    Run { path, transfers: 1, bytes, timed: 0, ran: None, most_ns: 0, is_closed: false };
                self.runs.get_or_insert(self.last, || run);
                self.of_threads.insert(thread, self.last);
            }
        }
        if let Some(run) = self.of_threads.get(&thread).copied() {
            self.members.get_or_insert(id, || Member { run, is_ended: false, is_timed: false });
        }
        for _ in THREADS..self.of_threads.len() {
            self.of_threads.pop_first();
        }
    }

    /// Takes the end of a transfer, also of its handle: what is submitted from then on may need it.
    pub(crate) fn ended(&mut self, id: TransferId) {
        self.change(id, |member, run| (member.is_ended, run.is_closed) = (true, true));
    }

    /// Ends all runs, since ends that their threads saw may not be known.
    pub(crate) fn close(&mut self) {
        self.runs.values_mut().for_each(|run| run.is_closed = true);
        self.runs.keys().collect::<Vec<_>>().into_iter().for_each(|number| self.settle(number));
    }

    /// Takes when a transfer ran.
    pub(crate) fn timed(&mut self, id: TransferId, ran: Ran) {
        self.change(id, |member, run| {
            member.is_timed = true;
            // One of several clocks has no length.
            let joined = run.ran.map_or(Some(ran), |before| before.joined(ran));
            run.timed += u64::from(joined.is_some());
            run.ran = joined.or(run.ran);
            run.most_ns = run.most_ns.saturating_add((ran.end - ran.begin).max(0).cast_unsigned());
        });
    }

    fn change(&mut self, id: TransferId, change: impl FnOnce(&mut Member, &mut Run)) {
        let Some(member) = self.members.get_mut(id) else { return };
        let number = member.run;
        if let Some(run) = self.runs.get_mut(number) {
            change(member, run);
        }
        if member.is_ended && member.is_timed {
            self.members.remove(id);
        }
        self.settle(number);
    }

    /// Counts a run that is complete.
    fn settle(&mut self, number: u64) {
        let is_complete = |run: &Run| run.is_closed && run.timed == run.transfers;
        if !self.runs.get_mut(number).is_some_and(|run| is_complete(run)) {
            return;
        }
        if let Some(Run { path, transfers: transfers @ 2.., bytes, ran: Some(ran), most_ns, .. }) =
            self.runs.remove(number)
        {
            let number = self.totals.len();
            let busy = || RunTotals { busy: BusyTime::of_nth(number), ..RunTotals::default() };
            let totals = self.totals.entry(path).or_insert_with(busy);
            if *totals.clock.get_or_insert(ran.clock) != ran.clock {
                return;
            }
            totals.runs += 1;
            totals.transfers += transfers;
            totals.bytes = totals.bytes.saturating_add(bytes);
            totals.busy.add(ran.begin, ran.end.min(ran.begin.saturating_add_unsigned(most_ns)));
        }
    }
}
