//! Engines on a stack that the program has created, as libraries for coroutines do. The engine does not know the bounds
//! of such a stack.

#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64", not(miri)))]

use raddle_testkit as common;

use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    panic::catch_unwind,
    ptr,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use common::{Gate, engine};
use raddle::EngineKind;

const SIZE: usize = 8 << 20;

/// Memory for a stack. As a static, it is usually below the stacks of all threads.
struct Stack(UnsafeCell<[u8; SIZE]>);

// SAFETY: the only test uses the memory, on one thread.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; SIZE]));

/// Calls `f`, which must not panic, on [`STACK`].
fn on_own_stack(f: extern "C" fn()) {
    let (mut here, mut there) = (MaybeUninit::zeroed(), MaybeUninit::<libc::ucontext_t>::zeroed());
    // SAFETY: the context may be written.
    assert_eq!(unsafe { libc::getcontext(there.as_mut_ptr()) }, 0);
    // SAFETY: the call has initialised the context.
    let context = unsafe { there.assume_init_mut() };
    context.uc_stack.ss_sp = STACK.0.get().cast();
    context.uc_stack.ss_size = SIZE;
    context.uc_link = here.as_mut_ptr();
    // SAFETY: the context is initialised, its stack is used by nothing else, and `f` takes no arguments.
    unsafe { libc::makecontext(ptr::from_mut(context), f, 0) };
    // SAFETY: `here` may be written, and lives until `f` has returned to it.
    assert_eq!(unsafe { libc::swapcontext(here.as_mut_ptr(), ptr::from_mut(context)) }, 0);
}

static RAN_INSIDE: AtomicBool = AtomicBool::new(false);

extern "C" fn nest() {
    let ran_inside = catch_unwind(|| {
        let engine = engine(EngineKind::Naive, 1);
        let inside = engine.clone();
        let outer = engine.op("outer").submit((), move |()| {
            let ran = Gate::new();
            let at_run = ran.clone();
            inside.op("inner").push((), move |()| at_run.open()).expect("the engine should be open");
            ran.is_open()
        });
        outer.expect("the engine should be open").wait().expect("no operation should fail")
    });
    RAN_INSIDE.store(ran_inside.is_ok_and(|inside| inside), SeqCst);
}

#[test]
fn a_naive_engine_nests_operations_on_a_stack_of_the_program() {
    on_own_stack(nest);
    assert!(RAN_INSIDE.load(SeqCst), "a push returned before its operation ran");
}
