// Taskflow's dependent tasks on the workloads of `push_run`; the script `taskflow` beside this file builds and runs this
// program. `src/external.rs` describes its input and output.
//
// The numbers of variables, the random choices and the kernel are those of `src/workload.rs` and `src/kernel.rs`, and
// must stay the same.
//
// Taskflow takes a task's dependencies as handles, which the program must find: the submitting thread tracks each
// variable's last writer and subsequent readers, without locks, because no other thread uses this state. The tracking
// is timed, as is raddle's bookkeeping.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <latch>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <malloc.h>

#include <taskflow/taskflow.hpp>

namespace {

constexpr std::size_t WORKERS = 2;
constexpr std::uint32_t WIDTH = 16;
constexpr std::uint32_t PUSHERS = 8;
constexpr std::uint32_t OWN = 512;
constexpr std::uint32_t NONE = UINT32_MAX;

using Clock = std::chrono::steady_clock;
using Reads = std::span<const std::uint32_t>;

double ns_since(Clock::time_point start) {
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// The compute-bound kernel, not inlined, so that its code is the same alone and in a task.
[[gnu::noinline]] void compute(std::uint32_t iterations) {
    double x = 1.0 + 1e-9 * (iterations & 7);
    for (std::uint32_t i = 0; i < iterations; ++i) {
        x = x * 0.999'999'999 + 1e-9;
    }
    asm volatile("" : : "x"(x));
}

// Tracks the dependencies of the tasks that one thread submits.
//
// Handles are kept in a ring in submission order, and variables refer to them by number. So a handle has one owner
// besides Taskflow, instead of copies whose shared count all threads would change, and the thread that created a task
// usually also frees it, which is fastest for the allocator.
class Tracker {
  public:
    explicit Tracker(tf::Executor& executor) : executor_(executor) {}

    // Replaces the variables with `count` new ones.
    void make_variables(std::size_t count) {
        variables_.clear();
        variables_.resize(count);
    }

    // Drops all handles. No task may be running.
    void forget() {
        while (first_ != next_) {
            handle(first_++).reset();
        }
    }

    // Submits a task that runs `body` after all earlier conflicting tasks.
    template <class Body>
    void submit(Body body, Reads reads, std::uint32_t write) {
        if (first_ != next_ && handle(first_).is_done()) {
            handle(first_++).reset();
        }
        if (next_ - first_ == ring_.size()) {
            grow();
        }
        before_.clear();
        for (const std::uint32_t read : reads) {
            add(variables_[read].writer);
            variables_[read].readers.push_back(next_);
        }
        if (write != NONE) {
            Variable& variable = variables_[write];
            if (variable.readers.empty()) {
                add(variable.writer);
            }
            // The readers themselves depend on the writer.
            for (const std::uint64_t reader : variable.readers) {
                add(reader);
            }
            variable.readers.clear();
            variable.writer = next_;
        }
        handle(next_++) = executor_.silent_dependent_async(body, before_.begin(), before_.end());
    }

    void submit(Reads reads, std::uint32_t write) {
        submit([] {}, reads, write);
    }

    template <class Body, std::size_t N>
    void submit(Body body, const std::uint32_t (&reads)[N], std::uint32_t write) {
        submit(body, Reads(reads), write);
    }

    template <std::size_t N>
    void submit(const std::uint32_t (&reads)[N], std::uint32_t write) {
        submit([] {}, Reads(reads), write);
    }

    // Submits a task that waits for the gate, and that writes all variables.
    void hold(std::latch& gate) {
        submit([&gate] { gate.wait(); }, Reads(), NONE);
        for (Variable& variable : variables_) {
            variable.writer = next_ - 1;
        }
    }

    void wait() {
        executor_.wait_for_all();
    }

  private:
    struct Variable {
        std::uint64_t writer = 0;
        std::vector<std::uint64_t> readers;
    };

    tf::AsyncTask& handle(std::uint64_t number) {
        return ring_[number & (ring_.size() - 1)];
    }

    // Adds the task with this number as a dependency. If its handle is no longer in the ring, the task has run.
    void add(std::uint64_t number) {
        if (number >= first_) {
            before_.push_back(&handle(number));
        }
    }

    void grow() {
        std::vector<tf::AsyncTask> more(2 * ring_.size());
        for (std::uint64_t number = first_; number != next_; ++number) {
            more[number & (more.size() - 1)] = std::move(handle(number));
        }
        ring_ = std::move(more);
    }

    tf::Executor& executor_;
    std::vector<Variable> variables_;
    // Its size is a power of two.
    std::vector<tf::AsyncTask> ring_ = std::vector<tf::AsyncTask>(1024);
    // The numbers of the first kept handle and of the next handle; no task has the number 0.
    std::uint64_t first_ = 1, next_ = 1;
    // The dependencies of the task being submitted, as pointers, because copying a handle changes its count.
    std::vector<tf::AsyncTask*> before_;
};

// A workload: submits tasks, and returns their number. `count` is the wanted number, or that of the steps.
using Push = std::uint32_t (*)(Tracker&, std::uint32_t count, std::uint32_t iterations);

std::uint32_t independent(Tracker& tasks, std::uint32_t count, std::uint32_t) {
    for (std::uint32_t i = 0; i < count; ++i) {
        tasks.submit({}, i % 4096);
    }
    return count;
}

std::uint32_t chain(Tracker& tasks, std::uint32_t count, std::uint32_t) {
    for (std::uint32_t i = 0; i < count; ++i) {
        tasks.submit({}, 0);
    }
    return count;
}

std::uint32_t readers(Tracker& tasks, std::uint32_t count, std::uint32_t) {
    for (std::uint32_t i = 0; i < count; ++i) {
        if (i % 16 == 0) {
            tasks.submit({}, 0);
        } else {
            tasks.submit({0}, NONE);
        }
    }
    return count;
}

// The variables of an operation: those that it reads, and one that it writes.
template <std::size_t N>
using Pick = std::array<std::uint32_t, N>;

// Returns `count` times different variables out of `variables`.
template <std::size_t N>
std::vector<Pick<N>> choose(std::uint32_t variables, std::uint32_t count) {
    std::uint64_t state = 42;
    const auto random = [&] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<std::uint32_t>(state) % variables;
    };
    std::vector<Pick<N>> picks;
    while (picks.size() < count) {
        Pick<N> pick;
        std::generate(pick.begin(), pick.end(), random);
        Pick<N> sorted = pick;
        std::sort(sorted.begin(), sorted.end());
        if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) {
            picks.push_back(pick);
        }
    }
    return picks;
}

// The variables are chosen by the first call, which is in the round that is discarded.
template <std::size_t N, std::uint32_t VARIABLES>
std::uint32_t random(Tracker& tasks, std::uint32_t count, std::uint32_t) {
    static const std::vector<Pick<N>> picks = choose<N>(VARIABLES, count);
    for (const Pick<N>& pick : picks) {
        tasks.submit(Reads(pick).first(N - 1), pick.back());
    }
    return static_cast<std::uint32_t>(picks.size());
}

// Task Bench's stencil: each point reads its own and its neighbours' variables from the previous step.
template <class Body>
std::uint32_t stencil(Tracker& tasks, std::uint32_t steps, Body body) {
    for (std::uint32_t step = 0; step < steps; ++step) {
        const std::uint32_t current = (step & 1) * WIDTH, previous = WIDTH - current;
        for (std::uint32_t i = 0; i < WIDTH; ++i) {
            const std::uint32_t at = previous + i, write = current + i;
            if (i == 0) {
                tasks.submit(body, {at, at + 1}, write);
            } else if (i == WIDTH - 1) {
                tasks.submit(body, {at - 1, at}, write);
            } else {
                tasks.submit(body, {at - 1, at, at + 1}, write);
            }
        }
    }
    return WIDTH * steps;
}

std::uint32_t empty_stencil(Tracker& tasks, std::uint32_t count, std::uint32_t) {
    return stencil(tasks, std::max(count * 4 / 5 / WIDTH, 1u), [] {});
}

std::uint32_t full_stencil(Tracker& tasks, std::uint32_t steps, std::uint32_t iterations) {
    return stencil(tasks, steps, [iterations] { compute(iterations); });
}

struct Workload {
    const char* name;
    std::uint32_t variables;
    Push push;
};

constexpr Workload WORKLOADS[] = {
    {"independent/4096v", 4096, independent},
    {"chain", 1, chain},
    {"fanout 1w15r", 1, readers},
    {"random 2r1w/1024v", 1024, random<3, 1024>},
    {"wide 4r1w/8192v", 8192, random<5, 8192>},
    {"wide 5r1w/8192v", 8192, random<6, 8192>},
    {"wide 8r1w/8192v", 8192, random<9, 8192>},
    {"wide 15r1w/8192v", 8192, random<16, 8192>},
    {"stencil w16 empty", 2 * WIDTH, empty_stencil},
    {"stencil w16", 2 * WIDTH, full_stencil},
};

using Figures = std::vector<double>;

Figures push_and_run(Tracker& tasks, const Workload& workload, std::uint32_t count, std::uint32_t iterations) {
    tasks.forget();
    tasks.make_variables(workload.variables);
    const auto start = Clock::now();
    const std::uint32_t pushed = workload.push(tasks, count, iterations);
    tasks.wait();
    return {ns_since(start) / pushed};
}

Figures first_use(std::uint32_t count) {
    tf::Executor executor(WORKERS);
    Tracker tasks(executor);
    return push_and_run(tasks, WORKLOADS[0], count, 0);
}

Figures pushers(tf::Executor& executor, std::uint32_t count) {
    const std::uint32_t each = count / PUSHERS;
    std::vector<Tracker> all(PUSHERS, Tracker(executor));
    for (Tracker& tasks : all) {
        tasks.make_variables(OWN);
    }
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (Tracker& tasks : all) {
        threads.emplace_back([&tasks, each] {
            for (std::uint32_t i = 0; i < each; ++i) {
                tasks.submit({}, i % OWN);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    executor.wait_for_all();
    return {ns_since(start) / (each * PUSHERS)};
}

// Returns the process's resident memory without that of files, in bytes.
double resident() {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word && word != "RssAnon:") {
    }
    double kib = 0;
    status >> kib;
    return 1024 * kib;
}

// Measures a backlog in a new process: see `backlog` in `src/workload.rs`.
Figures backlog(Tracker& tasks, const Workload& workload, std::uint32_t count) {
    Figures figures;
    double bytes = 0;
    for (const bool first : {true, false}) {
        std::latch gate(1);
        tasks.make_variables(workload.variables);
        tasks.hold(gate);
        const double before = resident();
        auto start = Clock::now();
        workload.push(tasks, count, 0);
        figures.push_back(ns_since(start) / count);
        if (first) {
            bytes = (resident() - before) / count;
        }
        start = Clock::now();
        gate.count_down();
        tasks.wait();
        figures.push_back(ns_since(start) / count);
    }
    figures.push_back(bytes);
    return figures;
}

// Returns whether the results equal those of a serial run: each operation computes its variable's new value from the
// old value and the values it reads.
bool ordered(Tracker& tasks) {
    const std::vector<Pick<3>> picks = choose<3>(1024, 100'000);
    std::vector<std::uint64_t> values(1024), serial(1024);
    const auto mix = [](std::vector<std::uint64_t>& values, const Pick<3>& pick) {
        const auto [a, b, c] = pick;
        values[c] = (values[c] ^ values[a]) * 0x9e37'79b9'7f4a'7c15 + values[b] + c;
    };
    tasks.make_variables(1024);
    for (const Pick<3>& pick : picks) {
        mix(serial, pick);
        tasks.submit([&] { mix(values, pick); }, Reads(pick).first(2), pick.back());
    }
    tasks.wait();
    return values == serial;
}

} // namespace

int main(int argc, char** argv) {
    // Freed memory is kept for the next round instead of being returned to the system page by page.
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
    tf::Executor executor(WORKERS);
    Tracker tasks(executor);
    const auto answer = [&](const std::string& name, std::uint32_t count, std::uint32_t iterations) {
        if (name == "first use") {
            return first_use(count);
        }
        if (name == "pushers") {
            return pushers(executor, count);
        }
        for (const Workload& workload : WORKLOADS) {
            if (name == workload.name) {
                return argc > 1 ? backlog(tasks, workload, count) : push_and_run(tasks, workload, count, iterations);
            }
        }
        return Figures{};
    };
    const auto print = [](const Figures& figures) {
        for (const double figure : figures) {
            std::cout << figure << ' ';
        }
        std::cout << std::endl;
    };
    if (argc > 3) {
        print(answer(argv[3], std::stoul(argv[2]), 0));
        return EXIT_SUCCESS;
    }
    if (!ordered(tasks)) {
        std::cerr << "tasks ran in an order that the dependences do not allow\n";
        return EXIT_FAILURE;
    }
    std::uint32_t count = 0, iterations = 0;
    std::string name;
    while (std::cin >> count >> iterations && std::getline(std::cin >> std::ws, name)) {
        print(answer(name, count, iterations));
    }
    return EXIT_SUCCESS;
}
