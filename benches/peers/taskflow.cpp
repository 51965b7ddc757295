// Taskflow's dependent tasks on the workloads of `push_run`, for `RADDLE_PEERS`; the script `taskflow` beside this file
// builds and runs this program.
//
// The numbers of operations and variables, the random choices, the kernel and METG(50%) are those of `src/workload.rs`,
// `src/kernel.rs` and `src/metg.rs`, and must stay the same.
//
// Taskflow takes a task's dependencies as handles, which the program must find: the submitting thread tracks each
// variable's last writer and subsequent readers, without locks, because no other thread uses this state. The tracking
// is timed, as is raddle's bookkeeping.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <taskflow/taskflow.hpp>

namespace {

constexpr std::size_t WORKERS = 2;
constexpr std::uint32_t OPERATIONS = 100'000;
constexpr std::uint32_t WIDTH = 16;
constexpr int ROUNDS = 7;
constexpr int METG_ROUNDS = 3;
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

// Handles are kept in a ring in submission order, and variables refer to them by number. So a handle has one owner
// besides Taskflow, instead of copies whose shared count all threads would change, and the thread that created a task
// usually also frees it, which is fastest for the allocator.
class Engine {
  public:
    // Replaces the variables with `count` new ones. No task may be running.
    void make_variables(std::size_t count) {
        while (first_ != next_) {
            handle(first_++).reset();
        }
        variables_.clear();
        variables_.resize(count);
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

    tf::Executor executor_{WORKERS};
    std::vector<Variable> variables_;
    // Its size is a power of two.
    std::vector<tf::AsyncTask> ring_ = std::vector<tf::AsyncTask>(1024);
    // The numbers of the first kept handle and of the next handle; no task has the number 0.
    std::uint64_t first_ = 1, next_ = 1;
    // The dependencies of the task being submitted, as pointers, because copying a handle changes its count.
    std::vector<tf::AsyncTask*> before_;
};

double independent(Engine& engine) {
    engine.make_variables(4096);
    const auto start = Clock::now();
    for (std::uint32_t i = 0; i < OPERATIONS; ++i) {
        engine.submit({}, i % 4096);
    }
    engine.wait();
    return ns_since(start) / OPERATIONS;
}

double chain(Engine& engine) {
    engine.make_variables(1);
    const auto start = Clock::now();
    for (std::uint32_t i = 0; i < OPERATIONS; ++i) {
        engine.submit({}, 0);
    }
    engine.wait();
    return ns_since(start) / OPERATIONS;
}

double readers(Engine& engine) {
    engine.make_variables(1);
    const auto start = Clock::now();
    for (std::uint32_t i = 0; i < OPERATIONS; ++i) {
        if (i % 16 == 0) {
            engine.submit({}, 0);
        } else {
            engine.submit({0}, NONE);
        }
    }
    engine.wait();
    return ns_since(start) / OPERATIONS;
}

// The variables of an operation: those that it reads, and one that it writes.
template <std::size_t N>
using Pick = std::array<std::uint32_t, N>;

// Returns different variables out of `variables` for each operation.
template <std::size_t N>
std::vector<Pick<N>> choose(std::uint32_t variables) {
    std::uint64_t state = 42;
    const auto random = [&] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<std::uint32_t>(state) % variables;
    };
    std::vector<Pick<N>> picks;
    while (picks.size() < OPERATIONS) {
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

template <std::size_t N, std::uint32_t VARIABLES>
double random(Engine& engine) {
    static const std::vector<Pick<N>> picks = choose<N>(VARIABLES);
    engine.make_variables(VARIABLES);
    const auto start = Clock::now();
    for (const Pick<N>& pick : picks) {
        engine.submit(Reads(pick).first(N - 1), pick.back());
    }
    engine.wait();
    return ns_since(start) / OPERATIONS;
}

// Task Bench's stencil: each point reads its own and its neighbours' variables from the previous step.
template <class Body>
double stencil(Engine& engine, std::uint32_t steps, Body body) {
    engine.make_variables(2 * WIDTH);
    const auto start = Clock::now();
    for (std::uint32_t step = 0; step < steps; ++step) {
        const std::uint32_t current = (step & 1) * WIDTH, previous = WIDTH - current;
        for (std::uint32_t i = 0; i < WIDTH; ++i) {
            const std::uint32_t at = previous + i, write = current + i;
            if (i == 0) {
                engine.submit(body, {at, at + 1}, write);
            } else if (i == WIDTH - 1) {
                engine.submit(body, {at - 1, at}, write);
            } else {
                engine.submit(body, {at - 1, at, at + 1}, write);
            }
        }
    }
    engine.wait();
    return ns_since(start) / (WIDTH * steps);
}

double empty_stencil(Engine& engine) {
    return stencil(engine, OPERATIONS * 4 / 5 / WIDTH, [] {});
}

double serial_ns(std::uint32_t iterations) {
    const std::uint32_t count = std::max(2'000'000 / (iterations + 1) / WIDTH, 20u) * WIDTH;
    const auto start = Clock::now();
    for (std::uint32_t i = 0; i < count; ++i) {
        compute(iterations);
    }
    return ns_since(start) / count;
}

// Returns the size from which efficiency stays at 50 % or more, or a negative number if there is no such size.
double metg(Engine& engine) {
    double found = -1, task_before = 0, efficiency_before = 1;
    for (std::uint32_t iterations = 16; iterations <= 1u << 17; iterations = iterations * 5 / 4 + 1) {
        const double task = serial_ns(iterations);
        const auto steps = static_cast<std::uint32_t>(std::clamp(4e7 / (task * WIDTH), 10.0, 2000.0));
        const double each = stencil(engine, steps, [iterations] { compute(iterations); });
        const double efficiency = task / WORKERS / each;
        if (efficiency < 0.5) {
            found = -1;
        } else if (found < 0) {
            found = task;
            if (efficiency_before < 0.5) {
                const double part = (0.5 - efficiency_before) / (efficiency - efficiency_before);
                found = task_before + (task - task_before) * part;
            }
        }
        task_before = task;
        efficiency_before = efficiency;
        if (found >= 0 && task > 4 * found) {
            break;
        }
    }
    return found;
}

// Returns whether the results equal those of a serial run: each operation computes its variable's new value from the
// old value and the values it reads.
bool ordered(Engine& engine) {
    const std::vector<Pick<3>> picks = choose<3>(1024);
    std::vector<std::uint64_t> values(1024), serial(1024);
    const auto mix = [](std::vector<std::uint64_t>& values, const Pick<3>& pick) {
        const auto [a, b, c] = pick;
        values[c] = (values[c] ^ values[a]) * 0x9e37'79b9'7f4a'7c15 + values[b] + c;
    };
    engine.make_variables(1024);
    for (const Pick<3>& pick : picks) {
        mix(serial, pick);
        engine.submit([&] { mix(values, pick); }, Reads(pick).first(2), pick.back());
    }
    engine.wait();
    return values == serial;
}

double median(std::vector<double>& figures) {
    std::sort(figures.begin(), figures.end());
    return figures[figures.size() / 2];
}

// Lets the previous measurement's threads go to sleep.
void settle() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

} // namespace

int main() {
    struct Row {
        const char* name;
        double (*run)(Engine&);
        int rounds;
        std::vector<double> figures;
    };
#ifdef __GLIBC__
    // Freed memory is kept for the next round instead of being returned to the system page by page.
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
#endif
    Engine engine;
    if (!ordered(engine)) {
        std::fputs("tasks ran in an order that the dependences do not allow\n", stderr);
        return EXIT_FAILURE;
    }
    // Workloads take turns, and the first round is discarded.
    Row rows[] = {
        {"independent/4096v", independent, ROUNDS, {}},
        {"chain", chain, ROUNDS, {}},
        {"fanout 1w15r", readers, ROUNDS, {}},
        {"random 2r1w/1024v", random<3, 1024>, ROUNDS, {}},
        {"wide 4r1w/8192v", random<5, 8192>, ROUNDS, {}},
        {"wide 8r1w/8192v", random<9, 8192>, ROUNDS, {}},
        {"stencil w16 empty", empty_stencil, ROUNDS, {}},
        {"METG50 stencil w16", metg, METG_ROUNDS, {}},
    };
    for (int round = 0; round <= ROUNDS; ++round) {
        for (Row& row : rows) {
            if (round > row.rounds) {
                continue;
            }
            settle();
            const double figure = row.run(engine);
            if (round > 0) {
                row.figures.push_back(figure);
            }
        }
    }
    for (Row& row : rows) {
        std::printf("Taskflow dependent_async %s %.0f ns\n", row.name, median(row.figures));
    }
    return EXIT_SUCCESS;
}
