// MXNet's engine through its C++ interface: what MXNet's own tests of the engine check, and, with `--time`, what some
// common uses take at best. Linked with libmxnet.so; runs on raddle if the library of shim.cpp is preloaded. Like that
// library, it must export nothing: its inline functions would replace MXNet's.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <mxnet/engine.h>

namespace {

using mxnet::Context;
using mxnet::FnProperty;
using mxnet::RunContext;
using Done = mxnet::Engine::CallbackOnComplete;
using Var = mxnet::Engine::VarHandle;
using Vars = std::vector<Var>;

mxnet::Engine *const engine = mxnet::Engine::Get();
const char *const kind = std::getenv("MXNET_ENGINE_TYPE");
const bool is_naive = kind && std::strcmp(kind, "NaiveEngine") == 0;

void require(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::_Exit(1);
}

// A std::function as the wheel's compiler makes it: what it calls takes arguments by value. It holds a pointer to `F`,
// which it owns unless all `F` are the same.
template <class F, class... Arguments> std::function<void(Arguments...)> function_of(F f) {
    constexpr bool is_shared = std::is_empty<F>::value;
    static F shared = f; // used only if there is nothing in it
    struct Words {
        F *f;
        void *unused;
        bool (*manager)(Words *, const Words *, int);
        void (*invoker)(const Words *, Arguments...);
    };
    static_assert(sizeof(Words) == sizeof(std::function<void(Arguments...)>), "a std::function");
    Words words{is_shared ? &shared : new F(std::move(f)), nullptr,
                [](Words *to, const Words *from, int what) {
                    if (what == 2) to->f = is_shared ? from->f : new F(*from->f);
                    if (what == 3 && !is_shared) delete to->f;
                    return false;
                },
                [](const Words *words, Arguments... arguments) { (*words->f)(arguments...); }};
    std::function<void(Arguments...)> made;
    std::memcpy(static_cast<void *>(&made), &words, sizeof words);
    return made;
}

template <class F> mxnet::Engine::AsyncFn asynchronous(F f) { return function_of<F, RunContext, Done>(std::move(f)); }
template <class F> mxnet::Engine::SyncFn synchronous(F f) { return function_of<F, RunContext>(std::move(f)); }

template <class F> void push(F f, const Vars &reads, const Vars &writes, FnProperty property = FnProperty::kNormal) {
    engine->PushSync(synchronous(std::move(f)), Context::CPU(), reads, writes, property, 0, "test");
}

Vars variables(std::size_t count) {
    Vars made(count);
    for (Var &variable : made) variable = engine->NewVariable();
    return made;
}

void free_all(const Vars &variables) {
    for (Var variable : variables) engine->DeleteVariable(synchronous([](RunContext) {}), Context::CPU(), variable);
    engine->WaitForAll();
}

// ---------------------------------------------------------------------------------------------------------- tests ----

// Each operation replaces a number by the mean of others. The result must be that of a plain loop, bit by bit.
void random_sums() {
    std::mt19937 random(5);
    const std::size_t count = 50;
    auto vars = variables(count);
    std::vector<double> data(count, 1), expected(count, 1);
    for (int step = 0; step < 20000; ++step) {
        std::vector<std::size_t> from(random() % 19 + 1);
        for (auto &at : from) at = random() % count;
        std::size_t to = random() % count;
        auto run = [from, to](std::vector<double> &data) {
            double sum = 0;
            for (auto at : from) sum += data[at];
            data[to] = sum / static_cast<double>(from.size() + 1);
        };
        run(expected);
        Vars reads, writes{vars[to]};
        for (auto at : from) reads.push_back(vars[at]);
        engine->DeduplicateVarHandle(&reads, &writes);
        if (step % 3 == 0) {
            auto body = [run, &data](RunContext, Done done) { run(data), done(); };
            engine->PushAsync(asynchronous(body), Context::CPU(), reads, writes, FnProperty::kNormal, step % 5);
        } else {
            push([run, &data](RunContext) { run(data); }, reads, writes);
        }
    }
    engine->WaitForAll();
    require(data == expected, "random sums");
    free_all(vars);
}

// An operator is pushed often, completes on another thread, and is deleted while runs are pending.
void operators() {
    auto vars = variables(2);
    int runs = 0;
    auto body = [&runs](RunContext, Done done) {
        ++runs;
        std::thread([done] { done(); }).detach();
    };
    auto opr = engine->NewOperator(asynchronous(body), {vars[0]}, {vars[1]}, FnProperty::kNormal, "counts");
    for (int i = 0; i < 200; ++i) engine->Push(opr, Context::CPU());
    engine->DeleteOperator(opr);
    engine->WaitForVar(vars[1]);
    require(runs == 200, "operators");
    require(vars[1]->version() >= 200, "versions");
    free_all(vars);
}

void exceptions() {
    auto vars = variables(3);
    auto throws = [](auto f) {
        try {
            f();
        } catch (const dmlc::Error &error) {
            return std::string(error.what()) == "a failure";
        }
        return false;
    };
    bool has_run = false;
    push([](RunContext) { throw dmlc::Error("a failure"); }, {}, {vars[0]});
    push([](RunContext) {}, {vars[0]}, {vars[1]});
    push([&has_run](RunContext) { has_run = true; }, {vars[1]}, {vars[2]});
    require(throws([&] { engine->WaitForVar(vars[2]); }), "an exception reaches what depends on it");
    require(!throws([&] { engine->WaitForVar(vars[0]); }) && !has_run, "an exception is thrown once");
    auto completes = [](RunContext, Done done) {
        dmlc::Error error("a failure");
        done(&error);
    };
    engine->PushAsync(asynchronous(completes), Context::CPU(), {}, {vars[0]});
    push([&has_run](RunContext) { has_run = true; }, {vars[0]}, {vars[1]}, FnProperty::kNoSkip);
    require(throws([&] { engine->WaitForAll(); }) && has_run, "a wait for all throws, and kNoSkip runs");
    require(!throws([&] { engine->WaitForAll(); }), "a wait for all throws once");
    push([](RunContext) { throw dmlc::Error("a failure"); }, {}, {vars[0]});
    require(throws([&] {
        while (true) engine->Throw(vars[0]), std::this_thread::yield();
    }), "Throw does not wait");
    free_all(vars);
}

// A variable is deleted after what uses it, and its deletion may be the last use of another.
void deletions() {
    std::atomic<int> deleted{0};
    std::vector<std::atomic<bool>> used(500);
    for (auto &is_used : used) {
        auto vars = variables(2);
        push([&](RunContext) { is_used = true; }, {vars[0]}, {vars[1]});
        for (Var variable : vars) {
            auto free = [&](RunContext) {
                require(is_used, "a deletion runs last");
                ++deleted;
            };
            engine->DeleteVariable(synchronous(free), Context::CPU(), variable);
        }
    }
    engine->WaitForAll();
    require(deleted == 1000, "all deletions run");
}

// Threads push on common variables while one stops and starts the engine.
void stops() {
    auto vars = variables(4);
    std::vector<int> counts(4);
    std::atomic<int> left{4};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (int i = 0; i < 500; ++i) {
                int at = (thread + i) % 4;
                push([&counts, at](RunContext) { ++counts[at]; }, {}, {vars[at]});
            }
            --left;
        });
    }
    // MXNet's own engine must not be stopped while others push.
    if (const char *preloaded = std::getenv("LD_PRELOAD"); preloaded && std::strstr(preloaded, "raddle")) {
        while (left) engine->Stop(), engine->Start();
    }
    for (auto &thread : threads) thread.join();
    engine->Stop();
    engine->Start();
    engine->WaitForAll();
    require(counts == std::vector<int>(4, 500), "stops lose nothing");
    free_all(vars);
}

// ---------------------------------------------------------------------------------------------------------- times ----

double now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// A part of the names of what is timed.
const char *only = "";

// Prints the nanoseconds that one of `count` takes, and how many of all processors, in the best of several rounds each.
template <class F> void time(const char *name, int count, F f) {
    if (!std::strstr(name, only)) return;
    double best = 1e9, processors = 1e9;
    for (int round = 0; round < 25; ++round) {
        double start = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
        for (int i = 0; i < count; ++i) f(i);
        engine->WaitForAll();
        best = std::min(best, (now(CLOCK_MONOTONIC) - start) / count);
        processors = std::min(processors, (now(CLOCK_PROCESS_CPUTIME_ID) - used) / count);
    }
    std::printf("%-40s %8.0f ns %8.0f ns\n", name, best, processors);
}

void times() {
    const int count = 20000;
    auto vars = variables(64);
    auto some = [&](int from, int number) {
        Vars chosen;
        for (int i = 0; i < number; ++i) chosen.push_back(vars[static_cast<std::size_t>((from + i * 3) % 64)]);
        return chosen;
    };
    auto nothing = [](RunContext) {};
    auto complete = [](RunContext, Done done) { done(); };
    auto pushed = [&](int, const Vars &reads, const Vars &writes) {
        engine->PushAsync(asynchronous(complete), Context::CPU(), reads, writes);
    };
    time("chain", count, [&](int i) { pushed(i, {}, {vars[0]}); });
    time("chain, PushSync", count, [&](int) { push(nothing, {}, {vars[0]}); });
    time("one of 64 variables", count, [&](int i) { pushed(i, {}, {vars[static_cast<std::size_t>(i) % 64]}); });
    time("two read, one written, random", count, [&](int i) {
        pushed(i, some(i * 7, 2), {vars[static_cast<std::size_t>(i * 7 + 6 + i % 50) % 64]});
    });
    time("four variables", count, [&](int i) { pushed(i, some(i, 3), some(i + 9, 1)); });
    time("five variables", count, [&](int i) { pushed(i, some(i, 4), some(i + 12, 1)); });
    time("sixteen variables", count, [&](int i) { pushed(i, some(i, 15), some(i + 45, 1)); });
    auto opr = engine->NewOperator(asynchronous(complete), {}, {vars[0]});
    time("an operator's push", count, [&](int) { engine->Push(opr, Context::CPU()); });
    engine->DeleteOperator(opr);
    time("a variable made and deleted", count, [&](int) {
        engine->DeleteVariable(synchronous(nothing), Context::CPU(), engine->NewVariable());
    });
    time("push and wait in turns", 2000, [&](int i) {
        pushed(i, {}, {vars[0]});
        engine->WaitForVar(vars[0]);
    });
}

} // namespace

int main(int count, char **arguments) {
    if (count > 1 && std::string(arguments[1]) == "--time") {
        if (count > 2) only = arguments[2];
        times();
    } else {
        random_sums();
        operators();
        if (!is_naive) exceptions();
        deletions();
        stops();
        std::puts("the engine passes");
    }
    engine->NotifyShutdown();
    engine->WaitForAll();
}
