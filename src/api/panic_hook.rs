//! The panic hook that names the operation in panic messages.

use std::{
    io::{self, Write},
    panic,
    sync::Once,
    thread,
};

use crate::op::frame;

/// Installs a panic hook that names the operation in which a panic occurs. For such a panic, the hook prints a line to
/// standard error with the operation's name, the source location of its push and, if the engine
/// [shuffles](crate::EngineBuilder::shuffle), the seed. It then calls the previous panic hook.
///
/// Call this function when the program starts. Further calls and calls on a panicking thread do nothing. A hook set
/// later replaces this one. Even without this hook, a failed operation's error contains the name and location.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// raddle::install_panic_hook();
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// engine.op("index").push((), |()| panic!("out of range"))?;
/// // Printed: operation `index` pushed at src/main.rs:4:20 panics:
/// // thread 'raddle-cpu-0' panicked at src/main.rs:4:38: out of range
/// assert!(engine.wait_for_all().is_err());
/// # Ok(())
/// # }
/// ```
pub fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    // A panicking thread cannot change the panic hook.
    if thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if let Some((name, location, seed)) = frame::panicking_op() {
                let seed =
                    seed.map(|seed| format!(", in an engine that shuffles with seed {seed},")).unwrap_or_default();
                // A panic on a write error would abort the process, since this is a panic hook.
                let _ = writeln!(io::stderr(), "operation `{name}` pushed at {location}{seed} panics:");
            }
            before(info);
        }));
    });
}
