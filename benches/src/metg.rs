//! METG(50%): the size of operations from which the cores do at least half of the work of which they are capable.
//!
//! From one size to the next, the kernel's iterations grow by about a quarter, or eightfold in quick runs. *Efficiency*
//! is the serial time of the operations without an engine, divided by the number of cores and by the measured time.
//! METG is the size from which efficiency does not fall below 50 %. It is interpolated linearly between neighbouring
//! sizes, and given as the kernel's own time, also for the non-Rust peers. The paper instead uses the cores' time per
//! operation, which includes overhead and is therefore twice as large at 50 %.

use crate::{
    kernel::{Kernel, serial_ns},
    pattern::Pattern,
    state::{Flipped, Watch},
    workload::Suite,
};

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Metg {
    /// The kernel's own time from which efficiency stays at 50 % or more, in ns, or `None` if there is no such time.
    pub ns: Option<f64>,
    /// The kernel's own time and the efficiency for each size tried.
    pub curve: Vec<(f64, f64)>,
}

/// The serial time of the operations of one size, in ns, from which the number of steps is calculated.
const BUDGET: f64 = 4e7;

/// Searches for METG(50%) on `cores` cores. A search takes about a second, so the machine's state is checked after each
/// size. For a serial runtime on several cores there is no search: on two, it does exactly half of the work at best, so
/// noise would determine the result.
///
/// # Errors
/// If the machine's state changes.
pub fn metg(
    suite: &mut dyn Suite,
    pattern: &Pattern,
    kernel: Kernel,
    cores: usize,
    quick: bool,
    watch: &mut Watch<'_>,
) -> Result<Metg, Flipped> {
    let mut curve: Vec<(f64, f64)> = vec![];
    let mut found: Option<f64> = None;
    if suite.is_serial() && cores > 1 {
        return Ok(Metg { ns: found, curve });
    }
    // An iteration of the memory-bound kernel takes longer than an iteration of the other kernels.
    let mut iterations = if kernel == Kernel::Memory { 4 } else { 16 };
    let most = if kernel == Kernel::Memory { 1 << 16 } else { 1 << 17 };
    while iterations <= most {
        let task = serial_ns(kernel, iterations);
        let steps = ((BUDGET / (task * pattern.width as f64)) as usize).clamp(10, if quick { 20 } else { 2000 });
        let efficiency = task / cores as f64 / suite.graph(pattern, steps, kernel, iterations).each();
        watch.check()?;
        if efficiency < 0.5 {
            found = None;
        } else if found.is_none() {
            found = Some(match curve.last() {
                Some(&(before, less)) if less < 0.5 => before + (task - before) * (0.5 - less) / (efficiency - less),
                _ => task,
            });
        }
        curve.push((task, efficiency));
        if found.is_some_and(|found| task > 4.0 * found) {
            break;
        }
        iterations = if quick { iterations * 8 } else { iterations * 5 / 4 + 1 };
    }
    Ok(Metg { ns: found, curve })
}
