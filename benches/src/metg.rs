//! METG(50%): the smallest granularity of operations at which half of what the cores could do is done.
//!
//! The kernel's iterations grow by a quarter at a time. *Efficiency* is the time that the operations would take one
//! after the other, without an engine, divided by the cores and by the time that they take. METG is where efficiency
//! passes 50 % for good, between two neighbouring sizes by a straight line. It is given as the kernel's own time, which
//! is how the peers outside Rust count. The paper counts the cores' time per operation instead, which includes the
//! overhead and is therefore twice as much at 50 %.

use crate::{
    kernel::{Kernel, serial_ns},
    pattern::Pattern,
    workload::Suite,
};

/// What was found.
#[derive(Clone, Debug)]
pub struct Metg {
    /// The kernel's own time at which efficiency passes 50 %, in ns. `None`: it never does.
    pub ns: Option<f64>,
    /// Kernel's own time and efficiency, of each size tried.
    pub curve: Vec<(f64, f64)>,
}

/// How long one size may take, in ns.
const BUDGET: f64 = 4e7;

/// Looks for METG(50%) on `cores` cores.
pub fn metg(suite: &mut dyn Suite, pattern: &Pattern, kernel: Kernel, cores: usize, quick: bool) -> Metg {
    let mut curve: Vec<(f64, f64)> = vec![];
    let mut found: Option<f64> = None;
    // A line of memory takes longer than a round of computing.
    let mut iterations = if kernel == Kernel::Memory { 4 } else { 16 };
    let most = if kernel == Kernel::Memory { 1 << 16 } else { 1 << 17 };
    while iterations <= most {
        let task = serial_ns(kernel, iterations);
        let steps = ((BUDGET / (task * pattern.width as f64)) as usize).clamp(10, if quick { 20 } else { 2000 });
        let efficiency = task / cores as f64 / suite.graph(pattern, steps, kernel, iterations).each();
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
    Metg { ns: found, curve }
}
