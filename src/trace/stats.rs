//! Statistics: what an engine has counted.

use std::fmt;

use raddle_trace::{OpStats, recording::OpTable};

/// What an engine has done, from [`Engine::stats`](crate::Engine::stats). [`Display`](fmt::Display) prints tables.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The number of operations pushed since the engine was built. Like the next two, it includes the engine's own
    /// operations, such as waits and deletions.
    pub pushed: u64,
    /// How many of the pushed operations have ended.
    pub ended: u64,
    /// How many of the pushed operations are pending.
    pub pending: u64,
    /// How many operations were run by waits and held-back pushes instead of by a worker.
    pub helped: u64,
    /// What the lanes of workers have done.
    pub lanes: Vec<LaneStats>,
    /// The operations by name, sorted by total running time, longest first. Empty for engines with neither a
    /// [recorder](crate::EngineBuilder::recorder) nor a [profile](crate::EngineBuilder::profile). The list covers all
    /// operations of the recorder's engines that have ended since the recorder's creation, except the engines' own.
    pub operations: Vec<OpStats>,
    /// The number of events that the recorder has lost since its creation. They are missing from `operations`.
    pub lost: u64,
}

/// What the workers of a lane have done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaneStats {
    /// The name of the lane.
    pub name: String,
    /// The number of operations currently ready and waiting for a worker.
    pub ready: usize,
    /// The number of times that another thread has woken a worker.
    pub wakes: u64,
    /// What each worker has done.
    pub workers: Vec<WorkerStats>,
}

/// What a worker has done.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkerStats {
    /// The number of operations currently in the worker's deque.
    pub queued: usize,
    /// The number of times that the worker has stolen operations from another worker.
    pub steals: u64,
    /// The number of operations run by functions on the worker while they waited.
    pub helped: u64,
    /// The number of times that the worker has parked because there was nothing to run.
    pub parks: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pushed, ended, pending, helped, .. } = self;
        writeln!(
            f,
            "{pushed} operations were pushed, {ended} have ended, and {pending} are pending. \
             Waits and held-back pushes ran {helped} operations."
        )?;
        for lane in &self.lanes {
            writeln!(f, "\nLane {}, woken {} times, {} ready:", lane.name, lane.wakes, lane.ready)?;
            for (index, worker) in lane.workers.iter().enumerate() {
                let WorkerStats { queued, steals, helped, parks } = worker;
                write!(f, "  worker {index:<3} {queued:>8} queued {steals:>10} steals")?;
                writeln!(f, " {helped:>10} helped {parks:>10} parks")?;
            }
        }
        if self.lost > 0 {
            writeln!(f, "\n{} events were lost and are missing below.", self.lost)?;
        }
        if self.operations.is_empty() {
            return Ok(());
        }
        write!(f, "\n{}", OpTable(&self.operations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_printed() {
        let stats = Stats {
            pushed: 21,
            ended: 22,
            pending: 23,
            helped: 24,
            lanes: vec![LaneStats {
                name: "cpu".to_owned(),
                ready: 31,
                wakes: 32,
                workers: vec![WorkerStats { queued: 41, steals: 42, helped: 43, parks: 44 }],
            }],
            operations: Vec::new(),
            lost: 51,
        };
        let text = stats.to_string();
        let line = |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).expect(start);
        assert_eq!(
            line("21"),
            "21 operations were pushed, 22 have ended, and 23 are pending. Waits and held-back pushes ran 24 operations."
        );
        assert_eq!(line("Lane"), "Lane cpu, woken 32 times, 31 ready:");
        let words = |start| line(start).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words("worker"), "worker 0 41 queued 42 steals 43 helped 44 parks");
        assert_eq!(words("51"), "51 events were lost and are missing below.");
    }
}
