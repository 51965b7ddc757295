//! What the benchmarks share: the workloads, what is compared with raddle, and how figures are written down.
//!
//! The programs are in `benches`; `all.rs` there runs the others. `README.md` beside this folder says what each one
//! measures and how it counts.

pub mod external;
pub mod kernel;
pub mod machine;
pub mod metg;
pub mod pattern;
pub mod report;
pub mod runtime;
#[path = "../../testkit/src/shapes.rs"]
#[allow(missing_docs)]
pub mod shapes;
pub mod stats;
pub mod svg;
pub mod workload;
