//! Counts instructions per operation with callgrind, and those among them that lock memory: the read-modify-writes and
//! fences that cost most. The counts are the same in nearly every run, however busy the machine is.
//!
//! The engine's only worker is blocked in an operation while a workload is pushed. So the pushes run alone on the
//! pushing thread; the operations then run alone on the worker while the pushing thread sleeps. callgrind counts the
//! two phases separately. The counts reflect neither caches nor contention.
//!
//! - without arguments: prints the counts beside those in `counts.txt`, and writes them to the report;
//! - `--check`: fails if a count of instructions is more than 5 % above the file's, or one of locked instructions more
//!   than a twentieth of an instruction, in each of three runs, unless the file is from another compiler;
//! - `--renew`: rewrites `counts.txt`.

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    hint::black_box,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::mpsc::Sender,
};

use raddle::{Engine, EngineKind, IdlePolicy, chosen};
use raddle_benches::{
    machine,
    report::{Cell, Report, Table, grouped, number},
    runtime::{Raddle, RaddleTyped, Runtime, Shape, occupy, settle},
    workload::Workload,
};

/// The number of operations in a phase: enough to make the ends of the phase negligible.
const OPERATIONS: usize = 4_000;
/// The rounds of a workload before those counted, which fill the record pools. In measurements, counts had no trend
/// after five rounds.
const WARM_UP: usize = 5;
/// The rounds whose mean is a count. Memory retired in one round is freed in a later one. In measurements, single
/// rounds therefore differed by up to 0.4 locked instructions per operation, and means of ten rounds by up to 0.09.
const COUNTED: usize = 10;
/// The environment variable set in the process under callgrind.
const INSIDE: &str = "RADDLE_COUNTS_INSIDE";
/// In the names of counts with typed variables instead of tokens.
const TYPED: &str = "typed: ";
/// The names of counts with operators to which a push passes 16 bytes, and one of which it passes the variable too.
const PASSING: [&str; 2] =
    ["prebuilt operator with 16 bytes, chain", "prebuilt operator with 16 bytes on a chosen variable, chain"];
/// The name of the count of pushes that each replace the argument of a pending run. They have no runs of their own.
const REPLACING: &str = "prebuilt operator with 16 bytes, replaced";
/// The name of the count of operations that commute on a variable.
const COMMUTING: &str = "commuting chain";
/// The relative increase that counts as a regression, and the decrease beyond which the file should be updated.
const TOLERANCE: f64 = 0.05;
/// The increase of locked instructions per operation that counts as a regression: less than one in ten operations would
/// add.
const LOCKED_TOLERANCE: f64 = 0.05;
/// The number of runs in each of which a count must be worse to be a regression. A rare run has a count that no other
/// run has.
const ATTEMPTS: usize = 3;

fn baseline_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("counts.txt")
}

// ------------------------------------------------------------------------------------------------ under callgrind ----

/// Sends a callgrind request with an argument. Does nothing without callgrind.
#[cfg(target_arch = "x86_64")]
fn request(number: u64, argument: u64) {
    // Callgrind requests are numbered from "CT" in the upper half.
    let request = [((b'C' as u64) << 24 | (b'T' as u64) << 16) + number, argument, 0, 0, 0, 0];
    // SAFETY: this is valgrind's magic sequence, which has no effect on a CPU: the rotations add up to 128 bits. Under
    // valgrind it reads `request` and, for a dump, the name that `request` points to, both of which are live, and
    // writes rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") request.as_ptr(), inout("rdx") 0u64 => _,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn request(_: u64, _: u64) {}

/// Makes callgrind write the counts since the last call under `name`.
fn dump(name: &str) {
    let name = std::ffi::CString::new(name).expect("a name without zero bytes");
    // `CALLGRIND_DUMP_STATS_AT`.
    request(3, name.as_ptr() as u64);
}

/// Calls `f` without counting its instructions on this thread.
fn uncounted(f: impl FnOnce()) {
    // `CALLGRIND_TOGGLE_COLLECT`, which affects only the calling thread.
    request(2, 0);
    f();
    request(2, 0);
}

fn inside() {
    let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).pin(false).idle(IdlePolicy::Park);
    let engine = engine.build().expect("an engine");
    count_on(&engine, "", &mut Raddle::with(engine.clone()));
    count_on(&engine, TYPED, &mut RaddleTyped::with(engine.clone(), Shape::Tuple));
    count_passing(&engine);
    count_replacing(&engine);
    count_commuting(&engine);
}

/// Runs the workloads. The names of the dumps contain `kind`, the kind of variables.
fn count_on(engine: &Engine, kind: &str, raddle: &mut impl Runtime) {
    for workload in Workload::ALL {
        for number in 0..WARM_UP + COUNTED {
            let prepared = workload.prepare(raddle, OPERATIONS).expect("raddle should support every workload");
            let round = Round::begin(engine, number);
            let pushed = prepared.push(raddle);
            round.end(pushed, &format!("{kind}{}", workload.name()));
        }
    }
}

/// A round, from before its pushes until its operations have run. Pushes are counted, and then runs, except in the
/// first rounds.
struct Round<'e> {
    engine: &'e Engine,
    counted: bool,
    go: Sender<()>,
}

impl<'e> Round<'e> {
    fn begin(engine: &'e Engine, number: usize) -> Self {
        let (counted, go) = (number >= WARM_UP, occupy(engine));
        if counted {
            dump("before");
        }
        Self { engine, counted, go }
    }

    /// Called when `pushed` operations have been pushed. The names of the dumps contain `name`.
    fn end(self, pushed: usize, name: &str) {
        if self.counted {
            dump(&format!("push {pushed} {name}"));
        }
        drop(self.go);
        uncounted(|| settle(self.engine));
        self.engine.wait_for_all().expect("wait");
        if self.counted {
            dump(&format!("run {pushed} {name}"));
        }
    }
}

/// Runs the chain with the operators of [`PASSING`]. Not among the workloads of `push_run`, which older versions of the
/// library must be able to run.
fn count_passing(engine: &Engine) {
    let variable = engine.var(0u64);
    let with = engine.op("chain").operator_with(variable.write(), |value, passed| _ = black_box((value, passed)));
    let on = engine.op("chain").operator_on(chosen::write(), (), |value: &mut u64, (), passed| {
        _ = black_box((value, passed));
    });
    let (with, on) = (with.expect("an operator"), on.expect("an operator"));
    let pushes: [&dyn Fn(); 2] = [&|| (0..OPERATIONS).for_each(|i| with.push([i; 2]).expect("push")), &|| {
        (0..OPERATIONS).for_each(|i| on.push_on(&variable, [i; 2]).expect("push"));
    }];
    for (name, push) in PASSING.into_iter().zip(pushes) {
        for number in 0..WARM_UP + COUNTED {
            let round = Round::begin(engine, number);
            push();
            round.end(OPERATIONS, &format!("{TYPED}{name}"));
        }
    }
}

/// Runs the chain with an access that commutes.
fn count_commuting(engine: &Engine) {
    let variable = engine.var(0u64);
    for number in 0..WARM_UP + COUNTED {
        let round = Round::begin(engine, number);
        for _ in 0..OPERATIONS {
            engine.op("chain").push(variable.commute(), |value| _ = black_box(value)).expect("push");
        }
        round.end(OPERATIONS, &format!("{TYPED}{COMMUTING}"));
    }
}

/// Pushes a conflating operator whose run is pending.
fn count_replacing(engine: &Engine) {
    let variable = engine.var(0u64);
    let newest = engine.op("newest").operator_newest(1, variable.write(), |value, passed: [usize; 2]| {
        _ = black_box((value, passed));
    });
    let newest = newest.expect("an operator");
    for number in 0..WARM_UP + COUNTED {
        let go = occupy(engine);
        newest.push([0; 2]).expect("push");
        if number >= WARM_UP {
            dump("before");
        }
        (0..OPERATIONS).for_each(|i| _ = newest.push([i; 2]).expect("push"));
        if number >= WARM_UP {
            dump(&format!("push {OPERATIONS} {TYPED}{REPLACING}"));
        }
        drop(go);
        engine.wait_for_all().expect("wait");
    }
}

// -------------------------------------------------------------------------------------------------------- outside ----

/// What one operation executes in one phase.
#[derive(Clone, Copy, Default)]
struct Count {
    instructions: f64,
    /// Instructions that lock memory: see [`Program::locks`].
    locked: f64,
}

/// Counts by phase and workload.
type Counts = BTreeMap<String, Count>;

/// The machine code of a program or a library.
struct Program {
    /// The file, and each of its segments as an address, an offset and a size.
    bytes: Vec<u8>,
    segments: Vec<(u64, u64, u64)>,
}

impl Program {
    fn read(path: &str) -> Option<Self> {
        use object::read::elf::{FileHeader, ProgramHeader};
        let bytes = fs::read(path).ok()?;
        let header = object::elf::FileHeader64::<object::Endianness>::parse(&*bytes).ok()?;
        let endian = header.endian().ok()?;
        let of_segment = |segment: &object::elf::ProgramHeader64<_>| {
            (segment.p_vaddr(endian), segment.p_offset(endian), segment.p_filesz(endian))
        };
        let segments = header.program_headers(endian, &*bytes).ok()?.iter().map(of_segment).collect();
        Some(Self { bytes, segments })
    }

    /// Whether the instruction at `address` has a lock prefix, is an exchange with memory, which locks without one, or
    /// is a full fence.
    fn locks(&self, address: u64) -> bool {
        let segment = self.segments.iter().find(|&&(start, _, size)| (start..start + size).contains(&address));
        let Some(code) = segment.and_then(|&(start, offset, _)| self.bytes.get((address - start + offset) as usize..))
        else {
            return false;
        };
        // The legacy prefixes other than the lock prefix, and the REX prefixes: Intel, Software Developer's Manual,
        // volume 2, sections 2.1.1 and 2.2.1.
        let mut rest = code.iter().copied().skip_while(|byte| {
            matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x40..=0x4f)
        });
        match [rest.next(), rest.next(), rest.next()] {
            [Some(0xf0), ..] => true,
            // The operand is in memory unless the two highest bits of the byte that describes it are set.
            [Some(0x86 | 0x87), Some(operand), _] => operand < 0xc0,
            [Some(0x0f), Some(0xae), Some(0xf0)] => true,
            _ => false,
        }
    }
}

/// A phase of a workload as callgrind has counted it.
struct Dump {
    name: String,
    instructions: u64,
    locked: u64,
}

/// Parses a callgrind file with a line for each instruction.
fn parse(text: &str, programs: &mut HashMap<String, Option<Program>>) -> Option<Dump> {
    let name = text.lines().find_map(|line| line.strip_prefix("desc: Trigger: Client Request: "))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")))?;
    let (mut locked, mut address, mut program, mut is_call) = (0, 0u64, "", false);
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("ob=") {
            program = path;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(['0', '+', '-', '*']) {
            // The address, the line and the count: the address absolute, or relative to that of the line before.
            let mut fields = line.split(' ');
            let position = fields.next()?;
            let number = |digits: &str| match digits.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => digits.parse().ok(),
            };
            address = match position.split_at(1) {
                ("+", distance) => address + number(distance)?,
                ("-", distance) => address - number(distance)?,
                ("*", _) => address,
                _ => number(position)?,
            };
            // The line after `calls=` repeats the count of the function called.
            if !std::mem::take(&mut is_call)
                && let Some(times) = fields.nth(1).and_then(|times| times.parse::<u64>().ok())
            {
                let known = programs.entry(program.to_owned()).or_insert_with(|| Program::read(program));
                locked += if known.as_ref().is_some_and(|known| known.locks(address)) { times } else { 0 };
            }
        }
    }
    Some(Dump { name: name.trim().to_owned(), instructions: total.split(' ').next()?.parse().ok()?, locked })
}

fn count() -> Result<Counts, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("callgrind-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--dump-instr=yes", "--compress-strings=no"])
        .arg(format!("--callgrind-out-file={}", folder.join("out").display()))
        .arg(env::current_exe().map_err(|error| error.to_string())?)
        .env(INSIDE, "1")
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let (mut counts, mut programs, mut dumps) = (Counts::new(), HashMap::new(), 0);
    for entry in fs::read_dir(&folder).map_err(|error| error.to_string())?.flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        if let Some(dump) = parse(&text, &mut programs)
            && let Some((phase, rest)) = dump.name.split_once(' ')
            && let Some((operations, workload)) = rest.split_once(' ')
            && let Ok(operations) = operations.parse::<f64>()
        {
            let share = 1.0 / (operations * COUNTED as f64);
            let mean = counts.entry(format!("{phase}: {workload}")).or_default();
            mean.instructions += dump.instructions as f64 * share;
            mean.locked += dump.locked as f64 * share;
            dumps += 1;
        }
    }
    _ = fs::remove_dir_all(&folder);
    if !output.status.success() || dumps != (2 * (2 * Workload::ALL.len() + PASSING.len() + 1) + 1) * COUNTED {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind ended with {}, after {dumps} dumps: {}", output.status, error.trim()));
    }
    Ok(counts)
}

/// Describes the counts that are so much above the file's that they are regressions.
fn regressions(counts: &Counts, baseline: &Counts) -> Vec<String> {
    let mut found = vec![];
    for (name, now) in counts {
        let Some(before) = baseline.get(name) else { continue };
        if now.locked > before.locked + LOCKED_TOLERANCE {
            found.push(format!("{name}: {:.2} locked instructions instead of {:.2}", now.locked, before.locked));
        }
        let change = now.instructions / before.instructions - 1.0;
        if change > TOLERANCE {
            found.push(format!("{name}: {}", percent(change)));
        }
    }
    found
}

fn percent(change: f64) -> String {
    format!("{:+.1} %", change * 100.0)
}

/// Counts until there are no regressions, but at most [`ATTEMPTS`] times. Each count returned is the lowest of all
/// attempts, since a regression appears in each of them.
fn count_repeatedly(baseline: &Counts) -> Result<Counts, String> {
    let mut lowest = count()?;
    for _ in 1..ATTEMPTS {
        if regressions(&lowest, baseline).is_empty() {
            break;
        }
        for (name, Count { instructions, locked }) in count()? {
            let lowest = lowest.entry(name).or_insert(Count { instructions, locked });
            lowest.instructions = lowest.instructions.min(instructions);
            lowest.locked = lowest.locked.min(locked);
        }
    }
    Ok(lowest)
}

/// Reads `counts.txt`. Returns the compiler and the counts.
fn baseline() -> (String, Counts) {
    let text = fs::read_to_string(baseline_file()).unwrap_or_default();
    let compiler = text.lines().find_map(|line| line.strip_prefix("# compiler: ")).unwrap_or_default().to_owned();
    let line = |line: &str| {
        let (rest, locked) = line.rsplit_once(' ')?;
        let (name, instructions) = rest.rsplit_once(' ')?;
        let count = Count { instructions: instructions.parse().ok()?, locked: locked.parse().ok()? };
        Some((name.trim().to_owned(), count))
    };
    (compiler, text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect())
}

fn renew(counts: &Counts) {
    let mut text = format!(
        "# Instructions, and those among them that lock memory, per operation: the baseline of `cargo xtask ci counts`. To\n\
         # update it, run\n\
         #     cargo bench -p raddle-benches --bench counts -- --renew\n\
         # compiler: {}\n",
        machine::RUSTC
    );
    for (name, Count { instructions, locked }) in counts {
        text += &format!("{name} {instructions:.1} {locked:.2}\n");
    }
    fs::write(baseline_file(), text).expect("the file should be written");
}

fn main() -> ExitCode {
    if env::var_os(INSIDE).is_some() {
        inside();
        return ExitCode::SUCCESS;
    }
    let asked = |option: &str| env::args().any(|argument| argument == option);
    if !cfg!(target_arch = "x86_64") || Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: the counts need valgrind on x86-64");
        return ExitCode::SUCCESS;
    }
    if machine::quick() && !asked("--check") && !asked("--renew") {
        // Without callgrind, only run the code.
        inside();
        return ExitCode::SUCCESS;
    }
    let counted = if asked("--renew") { count() } else { count_repeatedly(&baseline().1) };
    let counts = match counted {
        Ok(counts) => counts,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if asked("--renew") {
        renew(&counts);
    }
    let (compiler, baseline) = baseline();

    let mut report = Report::new(
        "counts",
        "Instructions",
        &format!(
            "Per operation that does nothing, counted by callgrind on one worker: means over {COUNTED} rounds of \
             {OPERATIONS} operations. *locked*: instructions with a lock prefix, exchanges with memory and full \
             fences. *push*: until the push returns, while the worker is blocked. *run*: on the worker afterwards, \
             from taking the operation until its successors have been notified. The file to compare with is from \
             {compiler}."
        ),
    );
    let mut table = Table::new(
        "counts",
        "Instructions per operation",
        "",
        &["phase and workload", "now", "file", "change", "locked"],
    );
    let (worse, mut better) = (regressions(&counts, &baseline), vec![]);
    for (name, count) in &counts {
        let before = baseline.get(name).map_or(f64::NAN, |before| before.instructions);
        let change = count.instructions / before - 1.0;
        let cell = if change.is_nan() { "new".into() } else { percent(change) };
        let before: Cell = if before.is_nan() { "–".into() } else { grouped(before, 1).into() };
        let now = number((count.instructions * 10.0).round() / 10.0);
        table.row(name.as_str(), [now, before, cell.clone().into(), format!("{:.2}", count.locked).into()]);
        if change < -TOLERANCE || change.is_nan() {
            better.push(format!("{name}: {cell}"));
        }
    }
    report.add(&table);
    if !asked("--check") && !machine::quick() {
        report.save();
    }
    let renew = "cargo bench -p raddle-benches --bench counts -- --renew";
    if !better.is_empty() {
        println!(
            "fewer instructions than in the file, or no count there: {}\nto update it: {renew}",
            better.join("; ")
        );
    }
    if worse.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("more instructions than in the file: {}", worse.join("; "));
    if compiler != machine::RUSTC {
        println!("not a failure: the file is from {compiler}, and this is {}; to update it: {renew}", machine::RUSTC);
        return ExitCode::SUCCESS;
    }
    if asked("--check") { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
