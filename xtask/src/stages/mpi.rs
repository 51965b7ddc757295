//! Training by several processes.

use crate::tools::{Result, cargo, install, skip};

pub fn run() -> Result {
    let packages = [
        ("/usr/include/*/mpi/mpi.h", "libopenmpi-dev"),
        ("/usr/bin/mpirun", "openmpi-bin"),
        ("/usr/lib/llvm-*/lib/libclang.so*", "libclang-dev"),
    ];
    if !packages.iter().all(|(pattern, package)| install(pattern, package)) {
        skip("MPI is neither installed nor installable (libopenmpi-dev, openmpi-bin, libclang-dev)");
        return Ok(());
    }
    cargo("test --package raddle-train --features mpi --lib --test processes").run()
}
