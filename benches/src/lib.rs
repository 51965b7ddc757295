//! Shared code for the benchmarks: the workloads, the runtimes compared with raddle, and the reports.
//!
//! The programs are in `benches`; `all.rs` there runs the others, except `experiments`. `README.md` beside this folder
//! describes what each measures and how.

pub mod against;
pub mod external;
pub mod kernel;
pub mod machine;
pub mod metg;
pub mod pattern;
pub mod report;
pub mod rounds;
pub mod runtime;
#[path = "../../testkit/src/shapes.rs"]
#[allow(missing_docs)]
pub mod shapes;
pub mod state;
pub mod stats;
pub mod svg;
pub mod targets;
pub mod workload;
