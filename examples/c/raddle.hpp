// raddle for C++11 and later: handles that free what they own, operations as lambdas, and exceptions that wait for whoever
// waits. A page on top of raddle.h, to be copied and extended.
#pragma once

#include <raddle.h>

#include <chrono>
#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace raddle {

// What a call returns other than RADDLE_STATUS_OK. A failure that is a C++ exception is thrown as that instead.
struct Error : std::runtime_error {
    raddle_status status;
    std::int32_t code; // of the failed operation, or 0
    Error(raddle_status status, const std::string &message, std::int32_t code = 0)
        : std::runtime_error(message), status(status), code(code) {}
};

inline void check(raddle_status status) {
    if (status != RADDLE_STATUS_OK) throw Error(status, raddle_last_message());
}

// The code of operations that fail with an exception. Their payload is a std::exception_ptr.
constexpr std::int32_t exception_code = 0x632b2b;

// Throws what `failure` says, and frees it.
inline void check(raddle_status status, raddle_failure failure) {
    if (status != RADDLE_STATUS_FAILED) return check(status);
    struct Guard { raddle_failure &failure; ~Guard() { raddle_failure_free(&failure); } } guard{failure};
    auto code = raddle_failure_code(failure);
    auto thrown = static_cast<std::exception_ptr *>(raddle_failure_payload(failure));
    if (code == exception_code && thrown) std::rethrow_exception(*thrown);
    throw Error(status, raddle_failure_message(failure), code);
}

// Makes a name; keep it rather than intern it for each push.
inline raddle_name name(const char *text) { raddle_name made{}; check(raddle_intern(text, &made)); return made; }

inline std::int64_t nanoseconds(std::chrono::nanoseconds limit) { return limit.count() < 0 ? 0 : limit.count(); }

// A handle that ends with the object.
template <class Handle, raddle_status (*end)(Handle *)> class Owned {
public:
    Owned() = default;
    Owned(Owned &&other) noexcept : handle(other.release()) {}
    Owned &operator=(Owned &&other) noexcept { std::swap(handle, other.handle); return *this; }
    ~Owned() { end(&handle); }
    Handle get() const { return handle; }
    Handle release() { Handle given = handle; handle = Handle{}; return given; }

protected:
    Handle handle{};
};

using Failure = Owned<raddle_failure, raddle_failure_free>;

struct Token : Owned<raddle_token, raddle_token_free> {
    explicit Token(raddle_engine engine, raddle_name name = {}) { check(raddle_token_new(engine, name, &handle)); }
    std::uint64_t version() const { return raddle_token_version(handle); }
};

// Ends an operation, once; it fails if the object is destroyed unused.
class Completion {
public:
    explicit Completion(raddle_completion completion) : completion(completion) {}
    Completion(Completion &&other) noexcept : completion(other.take()) {}
    ~Completion() { if (completion.words[0]) raddle_completion_fail(take(), -1, "its completion was lost", nullptr, nullptr); }
    void complete() { check(raddle_completion_complete(take())); }
    void fail(std::int32_t code, const char *message) { check(raddle_completion_fail(take(), code, message, nullptr, nullptr)); }

private:
    raddle_completion take() { raddle_completion taken = completion; completion = {}; return taken; }
    raddle_completion completion;
};

// The tokens of an operation.
struct Accesses {
    std::initializer_list<const Token *> reads, writes;
};

struct Engine : Owned<raddle_engine, raddle_engine_free> {
    explicit Engine(raddle_options options = {}) {
        options.size = sizeof options;
        check(raddle_engine_new(&options, &handle));
    }

    Token token(raddle_name name = {}) const { return Token(handle, name); }

    // Pushes `f(raddle_context *)`. An exception that it throws is its failure.
    template <class F> void push(raddle_name name, Accesses accesses, F f, raddle_op options = {}) const {
        enqueue(name, accesses, std::move(f), options);
    }

    // Pushes `f(Completion)`, an operation that ends when the completion is used.
    template <class F> void push_async(raddle_name name, Accesses accesses, F f, raddle_op options = {}) const {
        options.flags |= RADDLE_FLAGS_ASYNC;
        auto call = [f](raddle_context *context) mutable { f(Completion(raddle_context_completion(context))); };
        enqueue(name, accesses, call, options);
    }

    void wait(const Token &token, raddle_mode mode = RADDLE_MODE_ALL) const { wait_ns(token, mode, -1); }
    void wait_for(const Token &token, std::chrono::nanoseconds limit, raddle_mode mode = RADDLE_MODE_ALL) const {
        wait_ns(token, mode, nanoseconds(limit));
    }
    void wait_all() const { raddle_failure failure{}; auto status = raddle_wait_all(handle, -1, &failure); check(status, failure); }
    void clear_failure(const Token &token) const { check(raddle_token_clear_failure(handle, token.get())); }

private:
    void wait_ns(const Token &token, raddle_mode mode, std::int64_t limit) const {
        raddle_failure failure{};
        auto status = raddle_wait(handle, token.get(), mode, limit, &failure);
        check(status, failure);
    }

    template <class F> void enqueue(raddle_name name, const Accesses &accesses, F f, raddle_op op) const {
        std::vector<raddle_token> reads, writes;
        for (auto token : accesses.reads) reads.push_back(token->get());
        for (auto token : accesses.writes) writes.push_back(token->get());
        op.size = sizeof op;
        op.name = name;
        op.reads = reads.data(), op.read_count = reads.size();
        op.writes = writes.data(), op.write_count = writes.size();
        op.function = [](void *data, raddle_context *context) -> std::int32_t {
            try {
                (*static_cast<F *>(data))(context);
                return 0;
            } catch (const std::exception &error) {
                return fail(context, error.what());
            } catch (...) {
                return fail(context, "an exception");
            }
        };
        op.data = new F(std::move(f));
        op.drop = [](void *data) { delete static_cast<F *>(data); };
        check(raddle_push(handle, &op));
    }

    static std::int32_t fail(raddle_context *context, const char *message) {
        auto thrown = new (std::nothrow) std::exception_ptr(std::current_exception());
        return raddle_context_fail(context, exception_code, message, thrown,
                                   [](void *thrown) { delete static_cast<std::exception_ptr *>(thrown); });
    }
};

} // namespace raddle
