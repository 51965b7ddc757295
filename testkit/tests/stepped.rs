//! A thread may be stopped before any instruction of a push, a run or a completion: the pushes of other threads return
//! nevertheless. So no push waits for a lock, an allocation or a system call of another thread.
//!
//! The processor traps after each instruction of a stepped thread. At each instruction that a scenario reaches for the
//! first time, the thread stands still until other threads have pushed further operations, on other variables and on
//! the same ones. This is a separate binary since its allocator never makes a thread wait: an allocator that locks is
//! the program's choice, and the one exception that the guide names.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(any(raddle_tsan, raddle_sanitized))))]

use std::{
    alloc::{GlobalAlloc, Layout},
    arch::asm,
    backtrace::Backtrace,
    collections::BTreeSet,
    ffi::c_void,
    ptr::null_mut,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use raddle::{Engine, Group, Var, trace::Recorder};

/// An allocator without locks, which never frees.
struct Bump;

/// The size of the memory to allocate from. It is only reserved.
const MEMORY: usize = 64 << 30;

static START: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each allocation gets its own part of the memory.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed, here and below: no allocation depends on another one, and the first one precedes all threads.
        let mut start = START.load(Relaxed);
        if start.is_null() {
            let (access, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
            // SAFETY: the mapping is new.
            start = unsafe { libc::mmap(null_mut(), MEMORY, access, flags, -1, 0) }.cast();
            START.store(start, Relaxed);
        }
        let align = layout.align().max(16);
        let at = USED.fetch_add(layout.size() + align, Relaxed).next_multiple_of(align);
        if at + layout.size() > MEMORY { null_mut() } else { start.wrapping_add(at) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Bump = Bump;

/// Whether stepped threads stand still at new instructions. If not, they stop stepping at the next one.
static STEPPING: AtomicBool = AtomicBool::new(false);
/// The number of pushes by other threads that have returned.
static PUSHED: AtomicU64 = AtomicU64::new(0);
/// The number of pushes that a thread standing still waits for.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// A hash table of the instructions reached in this scenario, each with the depth of the stack, which tells most calls
/// of a function apart.
static REACHED: [AtomicU64; 1 << 20] = [const { AtomicU64::new(0) }; 1 << 20];
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Where stepped threads stood when another thread did not push on.
static STALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The time after which a push that does not return counts as waiting.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether this instruction, at this depth of the stack, has not been reached in this scenario.
fn is_new(instruction: i64, stack: i64) -> bool {
    // The factors are odd and otherwise arbitrary.
    let key =
        (instruction as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (stack as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut at = key >> 44;
    loop {
        match REACHED[at as usize].compare_exchange(0, key, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(other) if other == key => return false,
            Err(_) => at = (at + 1) % REACHED.len() as u64,
        }
    }
}

/// The handler of the trap after each instruction of a stepped thread.
extern "C" fn stand_still(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the interrupted thread's context.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if !STEPPING.load(Relaxed) {
        registers[libc::REG_EFL as usize] &= !TRAP;
        return;
    }
    if !is_new(registers[libc::REG_RIP as usize], registers[libc::REG_RSP as usize]) {
        return;
    }
    COUNT.fetch_add(1, Relaxed);
    let start = Instant::now();
    // The first of the pushes may have been on its way; of the others, one is on the same variable.
    ASKED.fetch_max(PUSHED.load(Relaxed) + 3, Relaxed);
    while PUSHED.load(Relaxed) < ASKED.load(Relaxed) {
        thread::yield_now();
        if start.elapsed() > PATIENCE {
            STEPPING.store(false, Relaxed);
            STALLS.lock().expect("no thread panics here").push(Backtrace::force_capture().to_string());
            return;
        }
    }
}

/// The flag of the processor that makes it trap after each instruction.
const TRAP: i64 = 0x100;

/// Begins to step the calling thread.
fn step() {
    // SAFETY: only the flag changes, whose trap `stand_still` handles.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") }
}

/// Ends the stepping of the calling thread.
fn walk() {
    // SAFETY: only the flag changes.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -257", "popfq") }
}

fn stepped<R>(f: impl FnOnce() -> R) -> R {
    step();
    let result = f();
    walk();
    result
}

/// Pushes operations on each of two variables in turn until `over`. If a thousand are pending, pushes only what a
/// thread that stands still waits for.
fn push_beside(engine: &Engine, tokens: [&Var<()>; 2], over: &AtomicBool) {
    let ran: &'static AtomicU64 = Box::leak(Box::default());
    for (count, token) in (0..).zip(tokens.into_iter().cycle()) {
        while count - ran.load(Relaxed) > 1000 && PUSHED.load(Relaxed) >= ASKED.load(Relaxed) {
            if over.load(Relaxed) {
                return;
            }
            thread::yield_now();
        }
        let ran = move |_: &mut ()| _ = ran.fetch_add(1, Relaxed);
        engine.op("beside").push(token.write(), ran).expect("the engine should be open");
        PUSHED.fetch_add(1, Relaxed);
    }
}

/// Runs `scenario` on a new thread, which steps parts of it, while another thread pushes on a variable that the
/// scenario uses, and on one of its own. Returns the number of instructions at which the thread stood still.
fn others_push_on(engine: &Engine, shared: &Var<()>, scenario: impl FnOnce() + Send) -> u64 {
    REACHED.iter().for_each(|place| place.store(0, Relaxed));
    COUNT.store(0, Relaxed);
    let over = AtomicBool::new(false);
    let own = engine.var(());
    thread::scope(|scope| {
        scope.spawn(|| push_beside(engine, [shared, &own], &over));
        STEPPING.store(true, Relaxed);
        let panicked = scope.spawn(scenario).join().is_err();
        STEPPING.store(false, Relaxed);
        over.store(true, Relaxed);
        assert!(!panicked, "the scenario panicked");
    });
    engine.wait_for_all().expect("nothing should fail");
    let stalls = std::mem::take(&mut *STALLS.lock().expect("no thread panics here"));
    let distinct: BTreeSet<_> = stalls.iter().collect();
    assert!(distinct.is_empty(), "no push of another thread returned while a thread stood at\n{distinct:#?}");
    COUNT.load(Relaxed)
}

fn install() {
    // SAFETY: all fields are numbers or may be null.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = stand_still as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: the handler has the signature that the flags demand.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, null_mut()) }, 0);
}

/// A lock that others take as well is found. Without this, the test might find nothing at all.
fn a_lock_is_found(engine: &Engine) {
    static LOCK: Mutex<()> = Mutex::new(());
    #[inline(never)]
    fn push_locked(engine: &Engine, token: &Var<()>) {
        let _held = LOCK.lock();
        engine.op("locked").push(token.write(), |_| ()).expect("the engine should be open");
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let own = engine.var(());
            while !over.load(Relaxed) {
                push_locked(engine, &own);
                PUSHED.fetch_add(1, Relaxed);
            }
        });
        STEPPING.store(true, Relaxed);
        scope.spawn(|| stepped(|| push_locked(engine, &engine.var(())))).join().expect("no panic");
        over.store(true, Relaxed);
    });
    let stalls = std::mem::take(&mut *STALLS.lock().expect("no thread panics here"));
    assert!(stalls.iter().any(|stall| stall.contains("push_locked")), "the lock was not found: {stalls:?}");
}

#[test]
fn other_threads_push_on_wherever_a_thread_stands() {
    install();
    let engine = Engine::builder().workers(2).pin(false).build().expect("an engine");
    a_lock_is_found(&engine);
    let recorded = Engine::builder().workers(2).pin(false).recorder(&Recorder::new()).build().expect("an engine");
    for (name, engine) in [("plain", &engine), ("recorded", &recorded)] {
        let shared = engine.var(());
        let report = |what: &str, count| println!("{name}: {count} instructions of {what}");

        // The first push of a thread, and pushes into a backlog, for which new records are taken.
        let count = others_push_on(engine, &shared, || {
            let own: Vec<_> = (0..8).map(|_| engine.var(())).collect();
            let value = engine.var(0u64);
            let (open, gate) = mpsc::channel::<()>();
            engine.op("gate").push(own[0].write(), move |_| _ = gate.recv()).expect("the engine should be open");
            let pushes = || -> Result<(), raddle::PushError> {
                for _ in 0..60 {
                    engine.op("few").push((own[0].write(), shared.read()), |_| ())?;
                    engine.op("wide").push(own.iter().map(Var::write).collect::<Vec<_>>(), |_| ())?;
                    engine.op("typed").push((value.write(), own[0].read()), |(value, _)| *value += 1)?;
                }
                Ok(())
            };
            stepped(pushes).expect("the engine should be open");
            drop(open);
        });
        report("pushes into a backlog", count);

        // Operations with results, groups and completions.
        let count = others_push_on(engine, &shared, || {
            let group = engine.group();
            let push = |group: &Group| -> Result<(), Box<dyn std::error::Error>> {
                let handle = engine.op("result").submit(shared.read(), |_| 1)?;
                group.op("grouped").push(shared.write(), |_| ())?;
                engine.op("completed").push((raddle::completion(), shared.write()), |(done, _)| done.complete())?;
                drop(handle);
                drop(engine.var(()));
                Ok(())
            };
            stepped(|| (0..20).try_for_each(|_| push(&group))).expect("the engine should be open");
        });
        report("pushes with results, in groups, and with completions", count);

        // Records are reused and given back, by operations that run on the thread that pushes them.
        let count = others_push_on(engine, &shared, || {
            let own: Vec<_> = (0..8).map(|_| engine.var(())).collect();
            for round in 0..1400 {
                let push = || engine.op("eager").eager().push(own[0].write(), |_| ());
                let pushed = if round % 4 == 0 { stepped(push) } else { push() };
                pushed.expect("the engine should be open");
                if round % 100 == 0 {
                    let wide = || engine.op("wide").push(own.iter().map(Var::write).collect::<Vec<_>>(), |_| ());
                    stepped(wide).expect("the engine should be open");
                }
            }
        });
        report("operations on the pushing thread", count);

        // A worker runs and completes operations.
        let count = others_push_on(engine, &shared, || {
            for _ in 0..3 {
                let own = engine.var(());
                engine.op("step").push(own.write(), |_| step()).expect("the engine should be open");
                for _ in 0..10 {
                    engine.op("run").push((own.write(), shared.read()), |_| ()).expect("the engine should be open");
                }
                let last = engine.op("last").submit(own.write(), |_| walk()).expect("the engine should be open");
                last.wait().expect("the operation should run");
            }
        });
        report("a worker", count);
    }
}
