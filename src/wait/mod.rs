//! Waits: for a variable, a result, a group, or all operations of an engine, from outside or inside an operation.
//!
//! This layer owns a waiting thread's path: the checks before the wait, what the thread runs meanwhile ([`in_place`]),
//! the search for cycles of waits ([`cycles`]), how it waits at first ([`spin`]), and the return to work ([`regain`]). The functions that a program's
//! calls use are re-exported here.
//!
//! It may name `context`, `op` and the file [`engine::core`](crate::engine::core). It pushes and runs operations only
//! through methods of `Core`.

mod calls;
pub(crate) mod cycles;
pub(crate) mod in_place;
pub(crate) mod regain;
pub(crate) mod spin;

pub use calls::blocking;
pub(crate) use calls::{
    WAIT, begin, catch_up, catch_up_and_go_on, check, check_kept_out, check_thread, for_all, for_all_async,
    for_earlier, for_group, for_group_async, for_handle, for_members, for_result, for_var, make_way, sleep,
    sleep_listed, until_idle, until_idle_async, until_idle_or_failed, wait_by, would_deadlock,
};
pub(crate) use regain::on_enough_stack;
