// MXNet 1.9.1 on raddle: an `mxnet::Engine` made of raddle.h, which takes the place of MXNet's own if it is preloaded.
//
// MXNet asks for its engine by `Engine::Get` and `Engine::_GetSharedRef`, through its table of procedures, so functions
// of these names in a library that was loaded before take precedence. So do two of its profiler's, which this library
// hands on. All else here is local.
//
// A variable is a token, and an operation is pushed as it comes. raddle gives the order, the threads and the waits.
// This file has what MXNet wants otherwise:
//
// - Failures. MXNet throws an exception once, for all variables that it has reached, whereas a failure of raddle stays
//   until it is cleared. So no operation fails for raddle. Variables hold exceptions here, under one lock that is taken
//   only if there is one: an operation stores its exception before it completes, and thus before its successors look.
// - Forks. MXNet stops its engine before a fork, and starts it again in both processes. In the child, raddle's engine
//   and tokens are of no use, so a new engine is built, and each variable gets a new token when it is next used.
// - Bulks: short functions that a thread pushes in a row are one operation.
// - Deletions run although an exception has reached the variable, where MXNet leaks it.
//
// The wheel was compiled by an older compiler: strings have the old ABI (_GLIBCXX_USE_CXX11_ABI=0), and what a
// std::function calls takes its arguments by value, where today's takes references. `Function` calls it by hand.

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <mxnet/c_api.h>
#include <mxnet/engine.h>
#include <mxnet/storage.h>
#include <raddle.h>

namespace {

using mxnet::Context;
using mxnet::FnProperty;
using mxnet::RunContext;
using mxnet::engine::VarHandle;
using OnComplete = mxnet::engine::CallbackOnComplete;
using Handles = std::vector<VarHandle>;

[[noreturn]] void fail(const char *what) {
    throw dmlc::Error(std::string("raddle: ") + what + ": " + raddle_last_message());
}

void check(raddle_status status, const char *what) {
    if (status != RADDLE_STATUS_OK) fail(what);
}

// ---------------------------------------------------------------------------------------------------- MXNet's own ----

// Returns MXNet's function of a mangled name. Python loads MXNet for itself only, so that the linker would not find it.
template <class F> F *mxnet_function(const char *mangled) {
    static void *const library = [] {
        void *found = nullptr;
        dl_iterate_phdr(
            [](dl_phdr_info *object, size_t, void *found) -> int {
                if (!object->dlpi_name || !std::strstr(object->dlpi_name, "libmxnet.so")) return 0;
                *static_cast<void **>(found) = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
                return 1;
            },
            &found);
        return found;
    }();
    void *function = library ? dlsym(library, mangled) : nullptr;
    if (!function) throw dmlc::Error(std::string("raddle: libmxnet.so has no ") + mangled);
    return reinterpret_cast<F *>(function);
}

// A std::function of the wheel's compiler. `Arguments` are passed by value.
class Function {
public:
    Function() = default;
    // Takes the function's words: libstdc++ stores only functors inside that may be moved as bytes.
    template <class F> explicit Function(F &&function) {
        static_assert(sizeof(F) == sizeof *this && !std::is_lvalue_reference<F>::value, "a std::function, moved");
        std::memcpy(static_cast<void *>(this), static_cast<void *>(&function), sizeof *this);
        new (&function) F();
    }
    Function(Function &&other) noexcept : words(other.words), manager(other.manager), invoker(other.invoker) {
        other.manager = nullptr;
    }
    Function &operator=(Function &&) = delete;
    ~Function() {
        constexpr int destroy = 3;
        if (manager) manager(this, this, destroy);
    }
    template <class... Arguments> void call(Arguments... arguments) const {
        reinterpret_cast<void (*)(const void *, Arguments...)>(invoker)(this, arguments...);
    }

private:
    std::array<std::uint64_t, 2> words{};
    bool (*manager)(void *, const void *, int) = nullptr;
    void (*invoker)() = nullptr;
};

} // namespace

// What the headers lack, declared for the names of its functions.
namespace mxnet {
namespace profiler {
struct Profiler {
    enum ProfilerState {};
    void SetState(ProfilerState state);
    void SetConfig(int mode, std::string file, bool continuous, float period, bool aggregate);
};
} // namespace profiler
} // namespace mxnet

namespace {

int setting(const char *name, int otherwise) {
    const char *text = std::getenv(name);
    return text && *text ? std::atoi(text) : otherwise;
}

// ------------------------------------------------------------------------------------------------------- profiles ----

// What the profiler records, as its functions have been told. All relaxed: an operation may be missed.
namespace profile {

constexpr int symbolic = 1, imperative = 2;
std::atomic<int> mode{setting("MXNET_PROFILER_MODE", symbolic)};
std::atomic<bool> is_running{setting("MXNET_PROFILER_AUTOSTART", 0) != 0};
std::atomic<bool> is_aggregate{false};

bool records(int kind) {
    return is_running.load(std::memory_order_relaxed) && mode.load(std::memory_order_relaxed) & kind;
}

// Returns the name of an operation in the profile, or null: operators of Python have their parts there instead.
const char *name_of(const char *name) {
    for (auto whole : {"Custom", "_backward_Custom", "CustomOperatorWait"}) {
        if (std::strcmp(name, whole) == 0) return nullptr;
    }
    auto get = mxnet_function<void *()>("_ZN5mxnet8profiler16CustomOpProfiler3GetEv");
    auto display = mxnet_function<const char *(void *, const char *)>(
        "_ZN5mxnet8profiler16CustomOpProfiler19GenerateDisplayNameEPKc");
    return display(get(), name);
}

// The time that an operation takes, from its start on.
class Span {
public:
    explicit Span(const char *name) {
        const auto domain = [](const char *name) {
            ProfileHandle made = nullptr;
            mxnet_function<decltype(MXProfileCreateDomain)>("MXProfileCreateDomain")(name, &made);
            return made;
        };
        static const ProfileHandle operators = domain("operator"), parts = domain("Custom Operator");
        auto of = std::strstr(name, "::") ? parts : operators;
        mxnet_function<decltype(MXProfileCreateTask)>("MXProfileCreateTask")(of, name, &task);
        mxnet_function<decltype(MXProfileDurationStart)>("MXProfileDurationStart")(task);
    }
    ~Span() {
        mxnet_function<decltype(MXProfileDurationStop)>("MXProfileDurationStop")(task);
        mxnet_function<decltype(MXProfileDestroyHandle)>("MXProfileDestroyHandle")(task);
    }

private:
    ProfileHandle task = nullptr;
};

} // namespace profile

// ------------------------------------------------------------------------------------------------------ variables ----

// An exception, shared by all variables that it has reached. A wait takes it out for all of them.
using Failure = std::shared_ptr<std::exception_ptr>;

// For all failures. Taken only where there is one.
std::mutex failures;
// Those that a WaitForAll would throw.
std::vector<Failure> unreported;

bool is_present(const Failure &failure) { return failure && *failure; }

struct Variable final : mxnet::engine::Var {
    raddle_token token{};
    // Of the engine that has made the token.
    std::atomic<std::uint32_t> generation{0};
    // Whether `failure` was ever set. Relaxed: the operation that sets it completes before its successors start.
    std::atomic<bool> has_failure{false};
    // Under `failures`.
    Failure failure;

    // The mutations that were completed. `version_` has those from before the last fork.
    size_t version() override { return version_ + raddle_token_version(token); }
};

// Returns the exception in a variable, if any.
Failure failure_of(const Variable *variable) {
    if (!variable->has_failure.load(std::memory_order_relaxed)) return nullptr;
    std::lock_guard<std::mutex> lock(failures);
    if (!is_present(variable->failure)) return nullptr;
    return variable->failure;
}

void report_later(const Failure &failure) {
    if (std::find(unreported.begin(), unreported.end(), failure) == unreported.end()) unreported.push_back(failure);
}

// ----------------------------------------------------------------------------------------------------- operations ----

// A counted pointer in one word.
template <class T> struct Counted {
    std::atomic<std::uint32_t> count{1};
    void retain() { count.fetch_add(1, std::memory_order_relaxed); } // relaxed: this thread holds one
    void release() {
        // Release: what was done with it, done before it is freed. Acquire: all of that.
        if (count.fetch_sub(1, std::memory_order_acq_rel) == 1) T::free(static_cast<T *>(this));
    }
};

} // namespace

// An operator: a function with its variables, to be pushed often. Its name is MXNet's.
struct mxnet::engine::Opr : Counted<mxnet::engine::Opr> {
    Function function;
    std::vector<Variable *> variables; // those that it reads, then those that it mutates
    std::size_t reads;
    FnProperty property;
    bool is_wait;
    std::string name;
    Opr(Function &&function) : function(std::move(function)) {}
    static void free(Opr *opr) { delete opr; }
};

namespace {

using mxnet::engine::Opr;

enum class Kind { pooled, per_device, naive };

class RaddleEngine;

// Memory for pushed operations. It goes from the threads that push to those that end operations and back, in chains:
// malloc would take a lock for each piece.
namespace pieces {

// Behind a pushed operation is room for as many variables.
constexpr std::size_t most_variables = 16;

struct Piece {
    Piece *next;
};
// Given back by any thread; taken as a whole.
std::atomic<Piece *> given_back{nullptr};
// The thread's.
thread_local Piece *own = nullptr;

void give_back(void *memory) {
    auto piece = static_cast<Piece *>(memory);
    piece->next = given_back.load(std::memory_order_relaxed);
    // Release: the end of its use.
    while (!given_back.compare_exchange_weak(piece->next, piece, std::memory_order_release, std::memory_order_relaxed));
}

void *take(std::size_t size) {
    struct End {
        ~End() {
            while (own) give_back(std::exchange(own, own->next));
        }
    };
    static thread_local End end;
    (void)end;
    if (!own) own = given_back.exchange(nullptr, std::memory_order_acquire); // acquire: the end of its use
    return own ? std::exchange(own, own->next) : ::operator new(size);
}

} // namespace pieces

// A pushed operation. Held by raddle until its function has returned, and by its completion.
struct Operation : Counted<Operation> {
    RaddleEngine *engine;
    Function function;            // unless there is an `opr`, or it is a bulk
    std::vector<Function> bulk;
    Opr *opr = nullptr;
    Variable *const *variables;   // behind this, or the operator's
    std::uint32_t reads = 0, writes = 0;
    Context context;
    FnProperty property;
    bool is_wait = false;
    bool holds_opr = false;
    bool is_large = false; // its memory is not one of the `pieces`
    // How an asynchronous operation ends: if `end` was not called when its function returns, by its completion.
    enum End { pending, by_completion, ended };
    std::atomic<End> end{pending};
    raddle_completion completion{};
    Failure failure;
    // If a profile has it.
    raddle_name profiled{};
    std::unique_ptr<profile::Span> span;

    // Makes one with room for `count` variables.
    static Operation *make(std::size_t count) {
        bool is_large = count > pieces::most_variables;
        auto size = sizeof(Operation) + std::max(count, pieces::most_variables) * sizeof(Variable *);
        void *memory = is_large ? ::operator new(size) : pieces::take(size);
        auto made = new (memory) Operation();
        made->is_large = is_large;
        made->variables = reinterpret_cast<Variable **>(made + 1);
        return made;
    }
    static void free(Operation *operation) {
        bool is_large = operation->is_large;
        operation->~Operation();
        is_large ? ::operator delete(operation) : pieces::give_back(operation);
    }
    ~Operation() {
        if (holds_opr) opr->release();
    }
    template <class Variables> void add(const Variables &more, std::uint32_t &count) {
        auto at = const_cast<Variable **>(variables) + reads + writes;
        for (auto variable : more) *at++ = static_cast<Variable *>(variable);
        count = static_cast<std::uint32_t>(more.size());
    }
    const Function &called() const { return opr ? opr->function : function; }
};

// The functions that a thread has pushed in a row, not yet pushed as one operation.
struct Bulk {
    int size = 0;
    Context context;
    std::vector<Function> functions;
    Handles reads, writes;
};

// The thread's, or null.
thread_local Bulk *own = nullptr;

// Interns a text, with a table of each thread, so that a push need not look it up. MXNet pushes until the process ends,
// when destructors of thread-locals have run, so there is none.
raddle_name name_of(const char *text) {
    static thread_local std::array<raddle_name, 256> known;
    if (!text || !*text) return {};
    auto address = reinterpret_cast<std::uintptr_t>(text);
    raddle_name &name = known[(address ^ address >> 8 ^ address >> 16) % known.size()];
    if (!name.text || std::strcmp(name.text, text) != 0) {
        if (raddle_intern(text, &name) != RADDLE_STATUS_OK) name = {};
    }
    return name;
}

// Whether this is one of the engine's threads.
thread_local bool is_worker = false;

class RaddleEngine final : public mxnet::Engine {
public:
    explicit RaddleEngine(Kind kind)
        : kind(kind),
          storage(mxnet_function<std::shared_ptr<mxnet::Storage>()>("_ZN5mxnet7Storage13_GetSharedRefEv")()) {
        build(setting("MXNET_CPU_WORKER_NTHREADS", 1));
    }

    ~RaddleEngine() override {
        if (process != getpid()) return;
        NotifyShutdown();
        // What a foreign thread does not complete must not keep the process from its end.
        if (raddle_engine_shutdown(engine, true, 5'000'000'000) == RADDLE_STATUS_OK) raddle_engine_free(&engine);
    }

    void NotifyShutdown() override { is_shut_down.store(true, std::memory_order_relaxed); }

    void Stop() override {
        if (kind == Kind::naive || is_worker) return;
        flush();
        // What other threads push meanwhile stays pending.
        check(raddle_wait_all(engine, -1, nullptr), "stop");
        check(raddle_engine_stop(engine, -1), "stop");
    }

    void Start() override {
        if (process != getpid()) {
            // Another thread of the parent may have held these.
            new (&failures) std::mutex();
            new (&renewals) std::mutex();
            is_worker = false;
            // MXNet's setting for forked workers. The parent's handle is left alone.
            build(setting("MXNET_MP_WORKER_NTHREADS", 1));
        } else if (kind != Kind::naive && !is_worker) {
            check(raddle_engine_start(engine), "start");
        }
    }

    VarHandle NewVariable() override {
        auto variable = new Variable();
        make_token(variable);
        return variable;
    }

    Opr *NewOperator(AsyncFn function, const Handles &reads, const Handles &writes, FnProperty property,
                     const char *name, bool is_wait) override {
        auto opr = new Opr(Function(std::move(function)));
        for (auto handles : {&reads, &writes})
            for (VarHandle variable : *handles) opr->variables.push_back(static_cast<Variable *>(variable));
        opr->reads = reads.size();
        opr->property = property;
        opr->is_wait = is_wait;
        opr->name = name ? name : "";
        return opr;
    }

    // The last mutation of all its variables, as in MXNet. Without variables, its runs hold it.
    void DeleteOperator(Opr *opr) override {
        if (opr->variables.empty()) return opr->release();
        flush();
        auto operation = Operation::make(opr->variables.size());
        operation->add(opr->variables, operation->writes);
        operation->opr = opr;
        operation->holds_opr = true;
        auto nothing = [](void *, raddle_context *) -> std::int32_t { return 0; };
        push(operation, Context::CPU(), FnProperty::kAsync, 0, "DeleteOperator", nothing);
    }

    void Push(Opr *opr, Context context, int priority, bool is_profiled) override {
        flush();
        auto operation = Operation::make(0);
        operation->opr = opr;
        operation->holds_opr = opr->variables.empty();
        if (operation->holds_opr) opr->retain();
        operation->variables = opr->variables.data();
        operation->reads = static_cast<std::uint32_t>(opr->reads);
        operation->writes = static_cast<std::uint32_t>(opr->variables.size() - opr->reads);
        operation->is_wait = opr->is_wait;
        is_profiled &= kind != Kind::naive || profile::records(profile::symbolic);
        push(operation, context, opr->property, priority, opr->name.c_str(), run_async, is_profiled);
    }

    void PushAsync(AsyncFn function, Context context, const Handles &reads, const Handles &writes, FnProperty property,
                   int priority, const char *name, bool is_wait) override {
        flush();
        auto operation = made(reads, writes);
        new (&operation->function) Function(std::move(function));
        operation->is_wait = is_wait;
        push(operation, context, property, priority, name, run_async);
    }

    void PushSync(SyncFn function, Context context, const Handles &reads, const Handles &writes, FnProperty property,
                  int priority, const char *name) override {
        if (bulk_size() && property == FnProperty::kNormal && !priority) {
            return append(std::move(function), context, reads, writes);
        }
        flush();
        auto operation = made(reads, writes);
        new (&operation->function) Function(std::move(function));
        push(operation, context, property, priority, name, run_sync);
    }

    void DeleteVariable(SyncFn function, Context context, VarHandle variable) override {
        flush();
        auto operation = made({}, {variable});
        new (&operation->function) Function(std::move(function));
        describe(operation, context, FnProperty::kDeleteVar, "DeleteVariable", profile::records(profile::imperative));
        raddle_token token = token_of(operation->variables[0]);
        check(raddle_token_delete(engine, &token, run_deletion, operation), "DeleteVariable");
    }

    void WaitForVar(VarHandle handle) override {
        if (kind == Kind::naive) return;
        flush();
        auto variable = static_cast<Variable *>(handle);
        check(raddle_wait(engine, token_of(variable), RADDLE_MODE_WRITERS, -1, nullptr), "WaitForVar");
        Throw(variable);
    }

    void WaitForAll() override {
        if (kind == Kind::naive) return;
        flush();
        // Operations may push more.
        check(raddle_wait_idle(engine, -1, nullptr), "WaitForAll");
        std::exception_ptr first;
        {
            std::lock_guard<std::mutex> lock(failures);
            for (const Failure &failure : unreported) {
                if (!first) first = *failure;
                *failure = nullptr;
            }
            unreported.clear();
        }
        if (first) std::rethrow_exception(first);
    }

    void Throw(VarHandle handle) override {
        auto variable = static_cast<Variable *>(handle);
        if (!variable->has_failure.load(std::memory_order_relaxed)) return;
        std::exception_ptr thrown;
        {
            std::lock_guard<std::mutex> lock(failures);
            if (variable->failure) std::swap(thrown, *variable->failure);
        }
        if (thrown) std::rethrow_exception(thrown);
    }

    int bulk_size() const override {
        if (!own || kind == Kind::naive) return 0;
        // Tables list operations one by one.
        return profile::is_running.load(std::memory_order_relaxed) && profile::is_aggregate ? 0 : own->size;
    }

    int set_bulk_size(int size) override {
        if (kind == Kind::naive) return 0;
        Bulk &bulk = this->bulk();
        std::swap(bulk.size, size);
        if (bulk.functions.size() >= static_cast<std::size_t>(std::max(bulk.size, 0))) flush();
        return size;
    }

private:
    const Kind kind;
    raddle_engine engine{};
    // The process that has built `engine`, and how many have before.
    pid_t process = 0;
    std::atomic<std::uint32_t> generation{0};
    std::mutex renewals;
    std::atomic<bool> is_shut_down{false}; // relaxed: a hint
    // Functions free memory there, so it must live longer.
    std::shared_ptr<mxnet::Storage> storage;

    void build(int workers) {
        raddle_options options{};
        options.size = sizeof options;
        options.kind = kind == Kind::naive    ? RADDLE_ENGINE_KIND_NAIVE
                       : kind == Kind::pooled ? RADDLE_ENGINE_KIND_POOLED
                                              : RADDLE_ENGINE_KIND_PER_DEVICE;
        // The threads that OpenMP starts in operations would inherit the cores of a worker.
        options.pin = RADDLE_CHOICE_NO;
        options.workers = kind == Kind::pooled ? 16 : static_cast<std::size_t>(std::max(workers, 1));
        options.prioritized_workers = static_cast<std::size_t>(setting("MXNET_CPU_PRIORITY_NTHREADS", 4));
        // As large as those of other threads, since Python may be called.
        pthread_attr_t attributes;
        if (pthread_getattr_default_np(&attributes) == 0) {
            pthread_attr_getstacksize(&attributes, &options.stack_size);
            pthread_attr_destroy(&attributes);
        }
        options.thread_start = kind == Kind::pooled ? +[](void *) { is_worker = true; } : begin_worker;
        process = getpid();
        check(raddle_engine_new(&options, &engine), "build");
        generation.fetch_add(1, std::memory_order_release); // with `engine`
    }

    // Sets the number of OpenMP's threads as MXNet does for its own.
    static void begin_worker(void *) {
        is_worker = true;
        auto get = mxnet_function<void *()>("_ZN5mxnet6engine6OpenMP3GetEv");
        mxnet_function<void(void *, bool)>("_ZN5mxnet6engine6OpenMP22on_start_worker_threadEb")(get(), true);
    }

    void make_token(Variable *variable) {
        check(raddle_token_new(engine, {}, &variable->token), "NewVariable");
        // Release: the token.
        variable->generation.store(generation.load(std::memory_order_relaxed), std::memory_order_release);
    }

    raddle_token token_of(Variable *variable) {
        // Acquire: the token.
        auto own = variable->generation.load(std::memory_order_acquire);
        if (own != generation.load(std::memory_order_relaxed)) renew(variable);
        return variable->token;
    }

    // Gives a variable of the parent process a token of this one.
    void renew(Variable *variable) {
        std::lock_guard<std::mutex> lock(renewals);
        if (variable->generation.load(std::memory_order_relaxed) == generation.load(std::memory_order_relaxed)) return;
        variable->version_ = variable->version();
        raddle_token_free(&variable->token);
        make_token(variable);
    }

    Operation *made(const Handles &reads, const Handles &writes) {
        auto operation = Operation::make(reads.size() + writes.size());
        operation->add(reads, operation->reads);
        operation->add(writes, operation->writes);
        return operation;
    }

    void describe(Operation *operation, Context context, FnProperty property, const char *name, bool is_profiled) {
        operation->engine = this;
        operation->context = context;
        operation->property = property;
        if (is_profiled && name && *name) operation->profiled = name_of(profile::name_of(name));
    }

    void push(Operation *operation, Context context, FnProperty property, int priority, const char *name,
              raddle_function run) {
        push(operation, context, property, priority, name, run, profile::records(profile::imperative));
    }

    void push(Operation *operation, Context context, FnProperty property, int priority, const char *name,
              raddle_function run, bool is_profiled) {
        describe(operation, context, property, name, is_profiled);
        std::size_t count = operation->reads + operation->writes;
        std::array<raddle_token, 32> few;
        std::vector<raddle_token> many(count > few.size() ? count : 0);
        raddle_token *tokens = many.empty() ? few.data() : many.data();
        for (std::size_t i = 0; i < count; ++i) tokens[i] = token_of(operation->variables[i]);
        raddle_op op{};
        op.size = sizeof op;
        op.name = name_of(name);
        op.function = run;
        op.data = operation;
        op.drop = [](void *data) {
            static_cast<Operation *>(data)->release();
        };
        op.reads = tokens;
        op.read_count = operation->reads;
        op.writes = tokens + operation->reads;
        op.write_count = operation->writes;
        op.priority = priority;
        if (run == run_async) op.flags |= RADDLE_FLAGS_ASYNC;
        if (property == FnProperty::kCPUPrioritized) op.flags |= RADDLE_FLAGS_PRIORITIZED;
        // MXNet's engines run these in the pushing thread if they are ready.
        if (property == FnProperty::kAsync) op.flags |= RADDLE_FLAGS_EAGER;
        if (kind == Kind::naive) return push_and_wait(operation, op);
        check(raddle_push(engine, &op), "push");
    }

    // As MXNet's NaiveEngine: the push throws what the operation threw.
    void push_and_wait(Operation *operation, const raddle_op &op) {
        operation->retain();
        raddle_handle handle;
        auto status = raddle_submit(engine, &op, &handle);
        if (status == RADDLE_STATUS_OK) status = raddle_handle_wait(&handle, -1, nullptr);
        Failure failure = std::move(operation->failure);
        operation->release();
        check(status, "push");
        if (failure) std::rethrow_exception(*failure);
    }

    // ------------------------------------------------------------------------------------------------------- runs ----

    // Begins a run. Returns whether the operation's function is to be called, and inherits a variable's exception.
    bool begins(Operation *operation) {
        if (operation->profiled.text) operation->span = std::make_unique<profile::Span>(operation->profiled.text);
        if (operation->property == FnProperty::kDeleteVar) return true;
        if (is_shut_down.load(std::memory_order_relaxed)) return false;
        std::size_t count = operation->reads + operation->writes;
        for (std::size_t i = 0; i < count && !operation->failure; ++i) {
            operation->failure = failure_of(operation->variables[i]);
        }
        if (!operation->failure) return true;
        std::lock_guard<std::mutex> lock(failures);
        report_later(operation->failure);
        return !is_present(operation->failure) || operation->property == FnProperty::kNoSkip || operation->is_wait;
    }

    static Failure current() { return std::make_shared<std::exception_ptr>(std::current_exception()); }

    // Ends a run: stores the operation's exception, if any, in the variables that it mutates.
    void ends(Operation *operation) {
        operation->span.reset();
        if (!operation->failure || kind == Kind::naive) return;
        std::lock_guard<std::mutex> lock(failures);
        if (!is_present(operation->failure)) return;
        for (std::uint32_t i = 0; i < operation->writes; ++i) {
            Variable *variable = operation->variables[operation->reads + i];
            variable->failure = operation->failure;
            variable->has_failure.store(true, std::memory_order_relaxed);
            report_later(operation->failure);
        }
    }

    static std::int32_t run_sync(void *data, raddle_context *) {
        auto operation = static_cast<Operation *>(data);
        auto engine = operation->engine;
        if (engine->begins(operation)) {
            RunContext context{operation->context, nullptr, nullptr, !operation->bulk.empty()};
            try {
                if (operation->bulk.empty()) operation->function.call(context);
                for (const Function &function : operation->bulk) function.call(context);
            } catch (...) {
                operation->failure = current();
            }
        }
        engine->ends(operation);
        return 0;
    }

    // Runs a deletion, behind all else on the variable.
    static void run_deletion(void *data) {
        auto operation = static_cast<Operation *>(data);
        run_sync(operation, nullptr);
        delete operation->variables[0];
        operation->release();
    }

    static std::int32_t run_async(void *data, raddle_context *context) {
        auto operation = static_cast<Operation *>(data);
        auto engine = operation->engine;
        if (!engine->begins(operation)) {
            engine->ends(operation);
            return 0;
        }
        operation->retain();
        OnComplete done = engine->CreateCallback(complete, operation);
        // Acquire: what was done before the end.
        auto has_ended = [&] { return operation->end.load(std::memory_order_acquire) == Operation::ended; };
        try {
            operation->called().call(RunContext{operation->context, nullptr, nullptr, false}, done);
        } catch (...) {
            if (!has_ended()) {
                operation->failure = current();
                done();
            }
        }
        if (has_ended()) return 0;
        operation->completion = raddle_context_completion(context);
        // Release: the completion. Acquire: what was done before the end.
        if (operation->end.exchange(Operation::by_completion, std::memory_order_acq_rel) == Operation::ended) {
            raddle_completion_complete(operation->completion);
        }
        return 0;
    }

    static void complete(mxnet::Engine *engine, void *data, const dmlc::Error *error) {
        auto operation = static_cast<Operation *>(data);
        if (error) operation->failure = std::make_shared<std::exception_ptr>(std::make_exception_ptr(*error));
        static_cast<RaddleEngine *>(engine)->ends(operation);
        // Release: what was done before. Acquire: the completion.
        auto before = operation->end.exchange(Operation::ended, std::memory_order_acq_rel);
        if (before == Operation::by_completion) raddle_completion_complete(operation->completion);
        operation->release();
    }

    // ------------------------------------------------------------------------------------------------------ bulks ----

    // The thread's bulk. It may be used again when the thread's destructors have run.
    static Bulk &bulk() {
        struct End {
            ~End() { delete std::exchange(own, nullptr); }
        };
        static thread_local End end;
        if (!own) own = new Bulk();
        (void)end;
        return *own;
    }

    void append(SyncFn function, Context context, const Handles &reads, const Handles &writes) {
        Bulk &bulk = this->bulk();
        if (context != bulk.context) flush();
        bulk.context = context;
        bulk.functions.emplace_back(std::move(function));
        bulk.reads.insert(bulk.reads.end(), reads.begin(), reads.end());
        bulk.writes.insert(bulk.writes.end(), writes.begin(), writes.end());
        if (bulk.functions.size() >= static_cast<std::size_t>(bulk.size)) flush();
    }

    // Pushes the thread's bulk. Must be called before anything else is pushed or waited for.
    void flush() {
        if (!own || own->functions.empty()) return;
        Bulk &bulk = *own;
        DeduplicateVarHandle(&bulk.reads, &bulk.writes);
        auto operation = made(bulk.reads, bulk.writes);
        operation->bulk.swap(bulk.functions);
        bulk.reads.clear();
        bulk.writes.clear();
        push(operation, bulk.context, FnProperty::kNormal, 0, "ImperativeBulk", run_sync);
    }
};

mxnet::Engine *create() {
    const char *given = std::getenv("MXNET_ENGINE_TYPE");
    std::string name = given ? given : "ThreadedEnginePerDevice";
    if (given) LOG(INFO) << "MXNet start using engine: " << name << ", on raddle";
    if (name == "NaiveEngine") return new RaddleEngine(Kind::naive);
    if (name == "ThreadedEngine") return new RaddleEngine(Kind::pooled);
    if (name == "ThreadedEnginePerDevice") return new RaddleEngine(Kind::per_device);
    throw dmlc::Error("Cannot find Engine " + name);
}

} // namespace

namespace mxnet {

std::shared_ptr<Engine> Engine::_GetSharedRef() {
    static std::shared_ptr<Engine> engine(create());
    return engine;
}

Engine *Engine::Get() {
    static Engine *engine = _GetSharedRef().get();
    return engine;
}

void profiler::Profiler::SetState(ProfilerState state) {
    profile::is_running = state != ProfilerState{};
    using F = void(void *, ProfilerState);
    auto of_mxnet = mxnet_function<F>("_ZN5mxnet8profiler8Profiler8SetStateENS1_13ProfilerStateE");
    of_mxnet(this, state);
}

void profiler::Profiler::SetConfig(int mode, std::string file, bool continuous, float period, bool aggregate) {
    profile::mode = mode;
    profile::is_aggregate = aggregate;
    using F = void(void *, int, std::string, bool, float, bool);
    auto of_mxnet = mxnet_function<F>("_ZN5mxnet8profiler8Profiler9SetConfigEiSsbfb");
    of_mxnet(this, mode, std::move(file), continuous, period, aggregate);
}

} // namespace mxnet
