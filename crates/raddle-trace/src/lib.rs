//! What an engine of the crate [raddle](https://docs.rs/raddle) has recorded: events, the histories of operations that
//! are assembled from them, and the checks, reports and files made from these.
//!
//! raddle re-exports all of this in its module `trace`, so programs need not name this crate. It knows nothing of
//! engines: the recorder, which does, is a part of raddle.

mod chrome;
mod event;
mod export;
mod graph;
mod history;
mod name;
mod op_stats;
mod order;
mod perfetto;
mod report;

pub use event::{AccessMode, OpId, Outcome, Place, VarId};
pub use history::{Run, Trace, TracedOp};
pub use name::Name;
pub use op_stats::{OpStats, Times};
pub use order::{OrderReport, OrderViolation};
pub use report::CriticalStep;

/// What a recorder needs: the layout of events, the histories, and the writers of files. For raddle only: anything here
/// may change in any version.
#[doc(hidden)]
pub mod recording {
    pub use crate::{
        chrome::{Chrome, Json},
        event::{
            AccessWord, BRIEF_ACCESSES, Event, IdMap, IdSet, MAX_ACCESSES, NumberHasher, PlaceWord, PushEvent,
            PushHead, RingSlot, Short, What, arrived, brief_push, push, ran, read, short, slots_of_push,
        },
        export::{Exporter, Format},
        graph::{nearest, short_cycle},
        history::{EngineInfo, Export, History, VarNames},
        name::Plain,
        op_stats::OpTable,
        perfetto::Perfetto,
        report::Gathered,
    };
}
