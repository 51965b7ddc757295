/*
 * raddle, a dependency engine, for C and C++.
 *
 * A program pushes operations and names the tokens that each one reads and mutates. Operations that name the same token
 * run in push order if one of them mutates it. All others may run at the same time, on the engine's threads.
 *
 *     static int32_t load(void *data, raddle_context *context) { ...; return 0; }
 *
 *     raddle_engine engine;
 *     raddle_token image;
 *     raddle_name name;
 *     raddle_engine_new(NULL, &engine);
 *     raddle_intern("load", &name);
 *     raddle_token_new(engine, name, &image);
 *     raddle_push(engine, RADDLE_OP(.name = name, .function = load, .data = &file, .writes = &image, .write_count = 1));
 *     raddle_wait(engine, image, RADDLE_MODE_ALL, -1, NULL);
 *     raddle_token_free(&image);
 *     raddle_engine_free(&engine);
 *
 * Most functions return a raddle_status; after any but RADDLE_STATUS_OK, raddle_last_message() explains it, and nothing
 * was stored except a failure. Each function says from which threads it may be called, what it does inside operations
 * (and in other functions that an engine calls), and what it does in a forked child with what the parent has made: waits
 * and pushes return an error at once, and what frees only stores zeros. An engine that the child builds works there.
 *
 * Handles are structs of one to four words, passed by value. All zeros is no handle; every function refuses it or does
 * nothing. Functions that end a handle take its address and store zeros there; copies must not be used afterwards. A
 * library built with debug assertions notices handles that were used, and returns RADDLE_STATUS_INVALID; otherwise, they
 * are undefined behaviour, as are addresses that are not valid.
 *
 * The library calls a `drop` function exactly once with its data, also if a call fails, except if the `size` of a struct is
 * wrong. Functions that the library calls must return: no longjmp and no C++ exception may pass through it.
 */


#ifndef RADDLE_H
#define RADDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A raddle_op for raddle_push, with its size: RADDLE_OP(.function = f, .writes = &token, .write_count = 1). In C++,
 * examples/c/raddle.hpp has classes. */
#define RADDLE_OP(...) (&(const raddle_op){.size = sizeof(raddle_op), __VA_ARGS__})


/** The version of this interface: 10,000 for each major version, 100 for each minor one. */
#define RADDLE_VERSION 100

/** What a call returns. After any status but `RADDLE_STATUS_OK`, `raddle_last_message` explains it. */
typedef enum raddle_status {
    /** The call did what it says. */
    RADDLE_STATUS_OK = 0,
    /** An operation failed, and the call reports its failure. */
    RADDLE_STATUS_FAILED = 1,
    /** The time limit passed. What was waited for continues. */
    RADDLE_STATUS_TIMED_OUT = 2,
    /** The wait could never end, for example one for the calling operation itself. */
    RADDLE_STATUS_WOULD_DEADLOCK = 3,
    /** A deletion must not wait, and an operation must not stop its engine or shut it down. */
    RADDLE_STATUS_NOT_HERE = 4,
    /** Too many operations wait inside their functions. */
    RADDLE_STATUS_TOO_MANY_WAITING = 5,
    /** The engine is shut down or shutting down. */
    RADDLE_STATUS_SHUT_DOWN = 6,
    /** A limit on pending operations leaves no room, and the push was not to wait, or the engine is stopped. */
    RADDLE_STATUS_FULL = 7,
    /** A token was deleted before. */
    RADDLE_STATUS_DELETED = 8,
    /** A token belongs to another engine. */
    RADDLE_STATUS_FOREIGN = 9,
    /** The engine has not what the operation asks for. */
    RADDLE_STATUS_UNFIT = 10,
    /** The engine was built before this process was forked. Build another one here. */
    RADDLE_STATUS_FORKED = 11,
    /** An argument is invalid: null where that is not permitted, a handle that was used, or a text that is not UTF-8. */
    RADDLE_STATUS_INVALID = 12,
    /** The system refused a thread, or threads had not ended at the time limit. */
    RADDLE_STATUS_THREADS = 13,
    /** A file could not be written. */
    RADDLE_STATUS_FILE = 14,
    /** raddle panicked, which is a bug. */
    RADDLE_STATUS_PANICKED = 15,
} raddle_status;

/** The kinds of engine, for `raddle_options`. */
typedef enum raddle_engine_kind {
    /** What the environment variable `RADDLE_ENGINE` says, or `PerDevice`. */
    RADDLE_ENGINE_KIND_DEFAULT = 0,
    /** Runs each operation inside its push. */
    RADDLE_ENGINE_KIND_NAIVE = 1,
    /** All devices share one set of workers. */
    RADDLE_ENGINE_KIND_POOLED = 2,
    /** Each device has its own workers. */
    RADDLE_ENGINE_KIND_PER_DEVICE = 3,
} raddle_engine_kind;

/** A choice, for `raddle_options`. */
typedef enum raddle_choice {
    /** As the documentation of the option says. */
    RADDLE_CHOICE_DEFAULT = 0,
    /** Yes. */
    RADDLE_CHOICE_YES = 1,
    /** No. */
    RADDLE_CHOICE_NO = 2,
} raddle_choice;

/** Flags of `raddle_op`. */
typedef enum raddle_flags {
    /**
     * The operation may end later than its function, which then asks for `raddle_context_completion`. Its data and its
     * argument are dropped as soon as the function has returned, so what goes on must have its own.
     */
    RADDLE_FLAGS_ASYNC = 1,
    /** It runs although a token that it names has failed. That token stays failed even if it succeeds. */
    RADDLE_FLAGS_RUN_ALWAYS = 2,
    /** Like `RADDLE_FLAGS_RUN_ALWAYS`, and it is never cancelled. For clean-ups. */
    RADDLE_FLAGS_CLEANUP = 4,
    /** If it is ready in its push, it runs there. */
    RADDLE_FLAGS_EAGER = 8,
    /** If a limit leaves no room, its push returns `RADDLE_STATUS_FULL` instead of waiting. */
    RADDLE_FLAGS_IF_ROOM = 16,
    /** It runs in the lane of prioritized operations. */
    RADDLE_FLAGS_PRIORITIZED = 32,
} raddle_flags;

/** What a wait for a token waits for. */
typedef enum raddle_mode {
    /** All operations on the token that were pushed before the call. */
    RADDLE_MODE_ALL = 0,
    /** Those that mutate it: then it may be read. */
    RADDLE_MODE_WRITERS = 1,
} raddle_mode;

/** How an operation failed. */
typedef enum raddle_cause {
    /** There is no failure. */
    RADDLE_CAUSE_NONE = 0,
    /** Its function returned something other than 0, or `raddle_completion_fail` was called. */
    RADDLE_CAUSE_CODE = 1,
    /** Its completion was dropped unused. */
    RADDLE_CAUSE_LOST_COMPLETION = 2,
    /** It was cancelled. */
    RADDLE_CAUSE_CANCELLED = 3,
    /** Its deadline passed. */
    RADDLE_CAUSE_DEADLINE_PASSED = 4,
    /** Something else: it was not an operation of C, or a device failed. */
    RADDLE_CAUSE_OTHER = 5,
} raddle_cause;

/** What a running operation's function may ask for. Valid during the call, on its thread. */
typedef struct raddle_context raddle_context;

/**
 * The name of an operation or token: two words, to be made once by `raddle_intern` and used in any number of pushes.
 * All zeros: no name. `text` ends with a NUL, which `length` does not count.
 */
typedef struct raddle_name {
    /** The text, with a NUL behind it. */
    const char *text;
    /** Its length in bytes. */
    size_t length;
} raddle_name;

/** What records the events of the engines that are built with it. */
typedef struct raddle_recorder {
    /** Private. */
    void *address;
} raddle_recorder;

/** A function with its data. */
typedef void (*raddle_callback)(void *data);

/** How an engine is built. All zeros except `size` is a default engine. */
typedef struct raddle_options {
    /** `sizeof(raddle_options)`. */
    size_t size;
    /** A `raddle_engine_kind`. */
    int32_t kind;
    /** A `raddle_choice`: whether workers are pinned to cores. By default, they are if the engine has the machine. */
    int32_t pin;
    /** The number of workers; 0: one for each core that the process may use. */
    size_t workers;
    /** The number of workers of the lane for prioritized operations; 0: one. */
    size_t prioritized_workers;
    /** The size of the threads' stacks in bytes; 0: the default. */
    size_t stack_size;
    /** The number of pending operations from which on `raddle_push` outside operations is held back; 0: none. */
    size_t max_pending;
    /** How long a worker searches before it sleeps, in nanoseconds; 0: the default, negative: it sleeps at once. */
    int64_t spin_ns;
    /** The file for a profile, in UTF-8; null: none. */
    const char *profile;
    /** What records the engine's events; all zeros: nothing. */
    struct raddle_recorder recorder;
    /** Called on each thread of the engine before anything else runs there; null: nothing. */
    raddle_callback thread_start;
    /** Called on each thread of the engine as the last thing before its thread-locals are destroyed; null: nothing. */
    raddle_callback thread_end;
    /** For both functions. It must stay valid until the process ends, and be usable by all threads. */
    void *thread_data;
} raddle_options;

/** An engine. Copies are the same handle, and one `raddle_engine_free` ends it. */
typedef struct raddle_engine {
    /** Private. */
    void *address;
} raddle_engine;

/** What an engine has counted since it was built. */
typedef struct raddle_stats {
    /** `sizeof(raddle_stats)`, set by the caller. */
    size_t size;
    /** Operations pushed, the engine's own included, such as waits and deletions. */
    uint64_t pushed;
    /** Those of them that have ended. */
    uint64_t ended;
    /** Those of them that are pending. */
    uint64_t pending;
    /** Those that are ready and wait for a worker. */
    uint64_t ready;
    /** How often one worker took operations from another. */
    uint64_t steals;
    /** How often a worker slept because there was nothing to run. */
    uint64_t parks;
} raddle_stats;

/**
 * A token: operations that name the same one run in push order if one of them mutates it. One word; copies are the
 * same handle, and one `raddle_token_free` or `raddle_token_delete` ends it.
 */
typedef struct raddle_token {
    /** Private. */
    void *address;
} raddle_token;

/**
 * An operation's failure, as a call has reported it. To be freed with `raddle_failure_free`, unless a callback
 * received it.
 */
typedef struct raddle_failure {
    /** Private. */
    void *address;
} raddle_failure;

/**
 * The function of an operation: receives its data and, for this call only, its context. Returns 0 if it succeeds;
 * otherwise, the operation fails with this code. It must neither throw nor jump out.
 */
typedef int32_t (*raddle_function)(void *data, struct raddle_context *context);

/** A group of operations, to wait for them or cancel them together: the `group` of a `raddle_op`. */
typedef struct raddle_group {
    /** Private. */
    void *address;
} raddle_group;

/**
 * An operation to push. All zeros except `size` and `function` is an operation without tokens. A push reads it, and
 * keeps nothing of it but the function and its data. `RADDLE_OP` sets the size.
 */
typedef struct raddle_op {
    /** `sizeof(raddle_op)`. */
    size_t size;
    /** The name in failures, dumps and traces; all zeros: `unnamed`. */
    struct raddle_name name;
    /** What it does. Must not be null. */
    raddle_function function;
    /** For the function, on whatever thread that runs. */
    void *data;
    /**
     * Called once with `data`, on any thread, once the function has returned or will not be called, also if the push
     * is refused; null: nothing. It may push, but must not wait for this operation.
     */
    raddle_callback drop;
    /** The tokens that it reads. */
    const struct raddle_token *reads;
    /** How many there are. */
    size_t read_count;
    /** The tokens that it mutates. */
    const struct raddle_token *writes;
    /** How many there are. */
    size_t write_count;
    /**
     * The tokens that it mutates whatever they were before: if it succeeds, their failures are cleared, and count as
     * reported.
     */
    const struct raddle_token *overwrites;
    /** How many there are. */
    size_t overwrite_count;
    /** The group to which it belongs, of the same engine; all zeros: none. */
    struct raddle_group group;
    /** Ready operations of higher priority run first; 0 is the default. */
    int32_t priority;
    /** A union of `raddle_flags`. */
    uint32_t flags;
    /**
     * The nanoseconds from now after which it fails unless it has started; 0: no deadline. Negative: it has passed.
     * The failure comes in its turn, behind the operations before it.
     */
    int64_t deadline_ns;
    /** The tokens that it mutates in no particular order among its neighbours that do the same. */
    const struct raddle_token *commutes;
    /** How many there are. */
    size_t commute_count;
} raddle_op;

/** What calls a function when an operation is cancelled. */
typedef struct raddle_listener {
    /** Private. */
    void *address;
} raddle_listener;

/** What ends an operation with `RADDLE_FLAGS_ASYNC`: four words, to be used once. All zeros: none. */
typedef struct raddle_completion {
    /** Private. */
    void *words[3];
    /** Private. */
    size_t number;
} raddle_completion;

/** The handle to a submitted operation, to wait for it or cancel it. */
typedef struct raddle_handle {
    /** Private. */
    void *address;
} raddle_handle;

/**
 * Receives the end of a wait: what the waiting call would have returned, and the failure, which is null unless the
 * status is `RADDLE_STATUS_FAILED`, and which is freed when the function returns.
 */
typedef void (*raddle_done)(void *data, enum raddle_status status, struct raddle_failure failure);

/** An operation that was described once, to be pushed often, each time with an argument. Copies are the same handle. */
typedef struct raddle_operator {
    /** Private. */
    void *address;
} raddle_operator;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the version of the library: `RADDLE_VERSION` of its header.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 */
uint32_t raddle_version(void);

/**
 * Returns why the last call on this thread that did not succeed did not: a text that is valid until the next such call
 * on this thread, and empty if there was none. Never null.
 *
 * Threads: any; each has its own message. In operations: permitted, but a wait inside an operation may run others,
 * which change the message. After a fork: permitted.
 */
const char *raddle_last_message(void);

/**
 * Frees a text that a call has returned. Null is permitted.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. `text` is null or was returned by a function that says so, and was not freed.
 */
void raddle_text_free(char *text);

/**
 * Makes a name from `text`, a C string in UTF-8, which is copied. Equal texts have one copy, which is never freed: use
 * a bounded number of texts, and keep the name rather than intern it for each push.
 *
 * Returns `RADDLE_STATUS_OK`; or `RADDLE_STATUS_INVALID` if the text is null or not UTF-8, or `name` is null.
 *
 * Threads: any. In operations: permitted. After a fork: permitted; names of the parent stay valid.
 *
 * The caller promises:
 * 1. `text` is null or a C string. `name` is null or may be written to.
 */
enum raddle_status raddle_intern(const char *text, struct raddle_name *name);

/**
 * Builds an engine and stores its handle at `engine`. `options` may be null.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_INVALID`, `RADDLE_STATUS_THREADS` or `RADDLE_STATUS_FILE` if an option
 * is wrong, a thread could not be started, or the profile cannot be written.
 *
 * Threads: any. In operations: permitted. After a fork: builds an engine of the child.
 *
 * The caller promises:
 * 1. `options` is null, or a `raddle_options` of the size that it states, whose texts, recorder and functions are
 *    valid. `engine` is null or may be written to.
 */
enum raddle_status raddle_engine_new(const struct raddle_options *options, struct raddle_engine *engine);

/**
 * Stores at `engine` a handle to the process's own engine, which is built with the first handle and ends only by
 * `raddle_engine_shutdown`. Each call makes a handle, for `raddle_engine_free`, which does not end this engine.
 *
 * Returns `RADDLE_STATUS_OK`, or what `raddle_engine_new` returns without options.
 *
 * Threads: any. In operations: permitted. After a fork: the child has its own.
 *
 * The caller promises:
 * 1. `engine` is null or may be written to.
 */
enum raddle_status raddle_engine_global(struct raddle_engine *engine);

/**
 * Drains the engine and ends its threads: operations run and may push more; then frees the handle and stores null
 * there. Null is permitted. Unreported failures are logged.
 *
 * Returns `RADDLE_STATUS_OK`; with debug assertions, `RADDLE_STATUS_INVALID` if the handle was freed.
 *
 * Threads: any one, once; no other call may use the handle then, except inside operations until this returns. In
 * operations: the engine ends in the background, so what runs there must no longer use the handle. After a fork: ends
 * nothing, returns at once.
 *
 * The caller promises:
 * 1. `engine` is null or points to a handle that is null or not freed, and that no other thread uses, except
 *    operations of the engine during the call.
 */
enum raddle_status raddle_engine_free(struct raddle_engine *engine);

/**
 * Refuses pushes, waits until nothing is pending, and ends the threads. With `cancel`, operations that have not
 * started fail; otherwise, they run. `timeout_ns` limits the call in nanoseconds; negative: no limit. The handle stays
 * valid.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_TIMED_OUT` or `RADDLE_STATUS_THREADS` if operations or threads had not
 * ended by then, so that another call may wait again; `RADDLE_STATUS_FILE` if the engine has ended, but not its
 * profile.
 *
 * Threads: any. In operations of the engine: `RADDLE_STATUS_NOT_HERE`, and it ends in the background. After a fork:
 * `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The handle was not freed.
 */
enum raddle_status raddle_engine_shutdown(struct raddle_engine engine, bool cancel, int64_t timeout_ns);

/**
 * Begins what `raddle_engine_shutdown` does with `cancel`, and returns at once.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any. In operations: permitted. After a fork: has no effect.
 *
 * The caller promises:
 * 1. The handle was not freed.
 */
enum raddle_status raddle_engine_notify_shutdown(struct raddle_engine engine);

/**
 * Ends the threads and keeps what is pending, until `raddle_engine_start` or a shutdown. Waits for functions that run,
 * for at most `timeout_ns` nanoseconds; negative: no limit. Meanwhile, eager operations still run in their pushes, and
 * a push at a limit returns `RADDLE_STATUS_FULL`.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_TIMED_OUT` if functions still run, so the engine goes on; or
 * `RADDLE_STATUS_THREADS` if it is stopped, but threads have not ended.
 *
 * Threads: any. In operations of the engine: `RADDLE_STATUS_NOT_HERE`. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The handle was not freed.
 */
enum raddle_status raddle_engine_stop(struct raddle_engine engine, int64_t timeout_ns);

/**
 * Starts the threads of a stopped engine again.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_THREADS` if one could not be started; another call tries again.
 *
 * Threads: any. In operations: permitted. After a fork: has no effect.
 *
 * The caller promises:
 * 1. The handle was not freed.
 */
enum raddle_status raddle_engine_start(struct raddle_engine engine);

/**
 * Returns the number of pending operations, the engine's own included; 0 if the handle is invalid.
 *
 * Threads: any. In operations: permitted; the calling one is pending. After a fork: 0.
 *
 * The caller promises:
 * 1. The handle was not freed.
 */
uint64_t raddle_engine_pending(struct raddle_engine engine);

/**
 * Stores at `text` a description of what is pending and what it waits for, for `raddle_text_free`.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any. In operations: permitted. After a fork: describes an engine with nothing pending.
 *
 * The caller promises:
 * 1. The handle was not freed. `text` is null or may be written to.
 */
enum raddle_status raddle_engine_dump(struct raddle_engine engine, char **text);

/**
 * Stores the engine's counts at `stats`, and, unless `text` is null, tables with more there, for `raddle_text_free`.
 *
 * Returns `RADDLE_STATUS_OK`; or `RADDLE_STATUS_INVALID` if `stats` is null or of a later version.
 *
 * Threads: any. In operations: permitted. After a fork: the counts are 0.
 *
 * The caller promises:
 * 1. The handle was not freed. `stats` is null or a struct of the size that it states. `text` is null or may be
 *    written to.
 */
enum raddle_status raddle_engine_stats(struct raddle_engine engine, struct raddle_stats *stats, char **text);

/**
 * Stores a new token of the engine at `token`. `name` may be all zeros.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID`.
 *
 * Threads: any. In operations: permitted. After a fork: the token is of no use, as its engine.
 *
 * The caller promises:
 * 1. The engine was not freed, the name is all zeros or interned, and `token` is null or may be written to.
 */
enum raddle_status raddle_token_new(struct raddle_engine engine, struct raddle_name name, struct raddle_token *token);

/**
 * Gives the token up and stores null there. Null is permitted. Operations that name it still run.
 *
 * Returns `RADDLE_STATUS_OK`; with debug assertions, `RADDLE_STATUS_INVALID` if the handle was used.
 *
 * Threads: any one. In operations: permitted. After a fork: does nothing.
 *
 * The caller promises:
 * 1. `token` is null or points to a handle that is null or not freed, and that no other thread uses.
 */
enum raddle_status raddle_token_free(struct raddle_token *token);

/**
 * Deletes the token: pushes that name it are refused from now on, and `function`, unless null, is called with `data`
 * once all earlier operations on it have ended, failed or not. It must not wait, but may push. Stores null at `token`.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_DELETED` if another copy of the token was deleted before; or what a push
 * returns. Unless it returns `RADDLE_STATUS_OK`, `function` is called before it returns.
 *
 * Threads: any one. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The engine was not freed. `token` points to a handle that is not freed, and that no other thread uses.
 * 2. `function` may be called once with `data`, on any thread.
 */
enum raddle_status raddle_token_delete(struct raddle_engine engine,
                                       struct raddle_token *token,
                                       raddle_callback function,
                                       void *data);

/**
 * Returns how many operations that mutate the token have succeeded; 0 if the handle is null.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. The token was not freed.
 */
uint64_t raddle_token_version(struct raddle_token token);

/**
 * Returns the failure that the token has now, without a wait, for `raddle_failure_free`; null if it has none, or the
 * handle is null. A pending operation may change it at any time. The failure does not count as reported.
 *
 * Threads: any. In operations: permitted. After a fork: null.
 *
 * The caller promises:
 * 1. The token was not freed.
 */
struct raddle_failure raddle_token_failure(struct raddle_token token);

/**
 * Clears the token's failure, in push order: operations pushed later run again. The failure counts as reported.
 *
 * Returns `RADDLE_STATUS_OK`, or what a push returns.
 *
 * Threads: any. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. Neither the engine nor the token was freed.
 */
enum raddle_status raddle_token_clear_failure(struct raddle_engine engine, struct raddle_token token);

/**
 * Pushes an operation: it runs once everything before it in the queues of its tokens permits it, on a thread of the
 * engine. Up to 16 tokens, nothing is allocated. If one of its tokens has failed by then, its function is not called,
 * and the tokens that it mutates fail, as they do if the function fails.
 *
 * Does not wait, unless a limit holds it back (`max_pending`). Until there is room, the calling thread then runs other
 * operations, so it must hold no lock that one of them takes. If none is ready or running, for instance because all
 * wait for completions, the push passes the limit.
 *
 * Returns `RADDLE_STATUS_OK`; otherwise, the function will not be called, and `drop` was: `RADDLE_STATUS_INVALID`,
 * `RADDLE_STATUS_DELETED` for a token, `RADDLE_STATUS_FOREIGN` for a token or the group, `RADDLE_STATUS_SHUT_DOWN`,
 * `RADDLE_STATUS_FULL` with `RADDLE_FLAGS_IF_ROOM` or while the engine is stopped, `RADDLE_STATUS_UNFIT`.
 *
 * Threads: any, also at the same time; all tokens agree on one order of pushes. In operations: permitted, also while
 * the engine drains. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The engine was not freed, nor what the operation names. `op` is null or a `raddle_op` of the size that it states.
 * 2. The function may be called with `data`, and then `drop`, on any thread.
 */
enum raddle_status raddle_push(struct raddle_engine engine, const struct raddle_op *op);

/**
 * Returns a handle to the engine that runs the operation, for use until its function returns, and not to be freed.
 * Null if the context is.
 *
 * Threads: that of the function. In operations: only there. After a fork: permitted, and its calls are refused.
 *
 * The caller promises:
 * 1. The context is that of the running function.
 */
struct raddle_engine raddle_context_engine(struct raddle_context *context);

/**
 * Returns the argument that the operator's push has passed; null if there is none. It is freed after the call.
 *
 * Threads: that of the function. In operations: only there. After a fork: permitted.
 *
 * The caller promises:
 * 1. The context is that of the running function.
 */
void *raddle_context_argument(struct raddle_context *context);

/**
 * Returns whether the operation should stop: it was cancelled through its handle after it had started, its group was
 * cancelled, its deadline has passed, or a shutdown is cancelling operations.
 *
 * Threads: that of the function. In operations: only there. After a fork: permitted.
 *
 * The caller promises:
 * 1. The context is that of the running function.
 */
bool raddle_context_is_cancelled(struct raddle_context *context);

/**
 * Has `function` called with `data` once the operation should stop, as `raddle_context_is_cancelled` says: on the
 * thread that cancels it, or here if it was cancelled before. So an asynchronous operation can end what it waits for. `function` must not block. Stores at `listener` what ends this, for `raddle_listener_free`.
 * `drop`, unless null, is called with `data` after the last use of it. Allocates.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID`.
 *
 * Threads: that of the function. In operations: only there. After a fork: `function` is not called.
 *
 * The caller promises:
 * 1. The context is that of the running function. `listener` is null or may be written to.
 * 2. `function` may be called once with `data`, and then `drop`, on any thread.
 */
enum raddle_status raddle_context_on_cancel(struct raddle_context *context,
                                            raddle_callback function,
                                            void *data,
                                            raddle_callback drop,
                                            struct raddle_listener *listener);

/**
 * Gives the listener up and stores null there. Null is permitted. Its function is not called any more, but a call that
 * has begun goes on.
 *
 * Returns `RADDLE_STATUS_OK`; with debug assertions, `RADDLE_STATUS_INVALID` if it was used.
 *
 * Threads: any one. In operations: permitted, also in its function. After a fork: does nothing.
 *
 * The caller promises:
 * 1. `listener` is null or points to a listener that only this call uses.
 */
enum raddle_status raddle_listener_free(struct raddle_listener *listener);

/**
 * Says with what the function fails if it returns `code`, and returns `code`, which must not be 0:
 * `return raddle_context_fail(context, 5, "disk full", NULL, NULL);`. `message` is copied, and may be null; what is
 * not UTF-8 in it is replaced. `drop`,
 * unless null, is called with `payload` after the last use of the failure.
 *
 * Threads: that of the function. In operations: only there. After a fork: permitted.
 *
 * The caller promises:
 * 1. The context is that of the running function. `message` is null or a C string.
 * 2. `payload` may be used on any thread, and `drop` called once with it.
 */
int32_t raddle_context_fail(struct raddle_context *context,
                            int32_t code,
                            const char *message,
                            void *payload,
                            raddle_callback drop);

/**
 * Returns the completion of an operation with `RADDLE_FLAGS_ASYNC`, once: afterwards, and for other operations, all
 * zeros. The operation then ends when the completion is used. If the function does not ask for it, the operation ends
 * when the function returns, which costs less. If a function that has asked returns something other than 0, the
 * operation fails with that, once the completion was used.
 *
 * Threads: that of the function. In operations: only there. After a fork: permitted.
 *
 * The caller promises:
 * 1. The context is that of the running function.
 */
struct raddle_completion raddle_context_completion(struct raddle_context *context);

/**
 * Ends the operation: it has succeeded. What this thread has written before is visible to the operations behind it.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the completion is all zeros.
 *
 * Threads: any one, also foreign to the engine. In operations: permitted. After a fork: has no effect.
 *
 * The caller promises:
 * 1. The completion is all zeros or was not used.
 */
enum raddle_status raddle_completion_complete(struct raddle_completion completion);

/**
 * Ends the operation: it has failed, with `code`, which must not be 0, a `message`, which is copied and may be null,
 * and a `payload`, with which `drop`, unless null, is called after the last use of the failure.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the completion is all zeros.
 *
 * Threads: any one, also foreign to the engine. In operations: permitted. After a fork: has no effect.
 *
 * The caller promises:
 * 1. The completion is all zeros or was not used. `message` is null or a C string.
 * 2. `payload` may be used on any thread, and `drop` called once with it.
 */
enum raddle_status raddle_completion_fail(struct raddle_completion completion,
                                          int32_t code,
                                          const char *message,
                                          void *payload,
                                          raddle_callback drop);

/**
 * Pushes an operation like `raddle_push`, and stores a handle to it at `handle`, for `raddle_handle_free` or a wait.
 * Allocates.
 *
 * Returns what `raddle_push` returns.
 *
 * Threads: any. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. As for `raddle_push`. `handle` is null or may be written to.
 */
enum raddle_status raddle_submit(struct raddle_engine engine, const struct raddle_op *op, struct raddle_handle *handle);

/**
 * Waits until the operation has ended, for at most `timeout_ns` nanoseconds; negative: no limit. Unless the time limit
 * passes, the handle is used up: null is stored there.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED`, with the failure stored at `failure` unless that is null;
 * `RADDLE_STATUS_TIMED_OUT`; or why it cannot wait here.
 *
 * Threads: any one. In operations: permitted, but `RADDLE_STATUS_WOULD_DEADLOCK` if the operation waits for this one.
 * After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. `handle` is null or points to a handle that only this call uses. `failure` is null or may be written to.
 */
enum raddle_status raddle_handle_wait(struct raddle_handle *handle, int64_t timeout_ns, struct raddle_failure *failure);

/**
 * Calls `function` with `data` once the operation has ended: before this returns, or on a thread that ends it. Uses
 * the handle up.
 *
 * Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
 *
 * Threads: any one. In operations: permitted. After a fork: calls `function` with `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. `handle` is null or points to a handle that only this call uses.
 * 2. `function` may be called once with `data`, on any thread.
 */
enum raddle_status raddle_handle_then(struct raddle_handle *handle, raddle_done function, void *data);

/**
 * Cancels the operation. If its function has started, it runs to its end, but `raddle_context_is_cancelled` returns
 * true there, and this returns false. With `quietly`, tokens do not fail. Its data is dropped here.
 *
 * Returns whether this call has cancelled it.
 *
 * Threads: any one. In operations: permitted. After a fork: false.
 *
 * The caller promises:
 * 1. The handle was not freed, nor used up by a wait.
 */
bool raddle_handle_cancel(struct raddle_handle handle, bool quietly);

/**
 * Gives the handle up and stores null there. Null is permitted. The operation runs anyway.
 *
 * Returns `RADDLE_STATUS_OK`; with debug assertions, `RADDLE_STATUS_INVALID` if it was used.
 *
 * Threads: any one. In operations: permitted. After a fork: does nothing.
 *
 * The caller promises:
 * 1. `handle` is null or points to a handle that only this call uses.
 */
enum raddle_status raddle_handle_free(struct raddle_handle *handle);

/**
 * Makes an operator and stores it at `made`. Its function may run several times at once, unless it mutates a token.
 * `drop` is called with `data` after the last run, once the operator is freed.
 *
 * Returns what `raddle_push` returns.
 *
 * Threads: any. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. As for `raddle_push`, but the function may be called any number of times, also at once. `made` is null or may be
 *    written to.
 */
enum raddle_status raddle_operator_new(struct raddle_engine engine,
                                       const struct raddle_op *op,
                                       struct raddle_operator *made);

/**
 * Pushes a run of the operator. `drop`, unless null, is called once with `argument`, after the run or instead of it,
 * also if the push is refused. For operators of up to 16 tokens without a group, a deadline or flags, nothing is
 * allocated.
 *
 * Returns what `raddle_push` returns.
 *
 * Threads: any, also at the same time. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The operator was not freed.
 * 2. `argument` may be used on any thread, and `drop` called once with it.
 */
enum raddle_status raddle_operator_push(struct raddle_operator of, void *argument, raddle_callback drop);

/**
 * Frees an operator and stores null there. Null is permitted. Runs that were pushed still run.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any one. In operations: permitted. After a fork: does nothing.
 *
 * The caller promises:
 * 1. `of` is null or points to a handle that is null or not freed, and that no other thread uses.
 */
enum raddle_status raddle_operator_free(struct raddle_operator *of);

/**
 * Waits for operations on the token that were pushed before, of a `raddle_mode`, for at most `timeout_ns` nanoseconds;
 * negative: no limit.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED` if the token has failed, with the failure stored at `failure`
 * unless that is null; `RADDLE_STATUS_TIMED_OUT`; `RADDLE_STATUS_FOREIGN`; or why it cannot wait here.
 *
 * Threads: any. In operations: permitted, but `RADDLE_STATUS_WOULD_DEADLOCK` if an operation awaited waits for this
 * one, and `RADDLE_STATUS_NOT_HERE` in functions that must not wait. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. Neither the engine nor the token was freed. `failure` is null or may be written to.
 */
enum raddle_status raddle_wait(struct raddle_engine engine,
                               struct raddle_token token,
                               int32_t mode,
                               int64_t timeout_ns,
                               struct raddle_failure *failure);

/**
 * Calls `function` with `data` once what `raddle_wait` would wait for has ended: before this returns, or on a thread
 * that ends it.
 *
 * Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
 *
 * Threads: any. In operations: permitted, but calls it with `RADDLE_STATUS_WOULD_DEADLOCK` for a token that the
 * operation names. After a fork: calls `function` with `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls
 * nothing in the child.
 *
 * The caller promises:
 * 1. Neither the engine nor the token was freed.
 * 2. `function` may be called once with `data`, on any thread.
 */
enum raddle_status raddle_wait_then(struct raddle_engine engine,
                                    struct raddle_token token,
                                    int32_t mode,
                                    raddle_done function,
                                    void *data);

/**
 * Waits until all operations that were pushed before have ended, for at most `timeout_ns` nanoseconds; negative: no
 * limit. Later pushes do not prolong it.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED` if there is an unreported failure, the earliest of which is then
 * reported, and stored at `failure` unless that is null; `RADDLE_STATUS_TIMED_OUT`.
 *
 * Threads: any. In operations of the engine: `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The engine was not freed. `failure` is null or may be written to.
 */
enum raddle_status raddle_wait_all(struct raddle_engine engine, int64_t timeout_ns, struct raddle_failure *failure);

/**
 * Calls `function` with `data` once what `raddle_wait_all` would wait for has ended: before this returns, or on a
 * thread that ends it.
 *
 * Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
 *
 * Threads: any. In operations of the engine: calls it with `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: calls it with
 * `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls nothing in the child.
 *
 * The caller promises:
 * 1. The engine was not freed.
 * 2. `function` may be called once with `data`, on any thread.
 */
enum raddle_status raddle_wait_all_then(struct raddle_engine engine, raddle_done function, void *data);

/**
 * Waits until no operation is pending, not even one that was pushed during the call, for at most `timeout_ns`
 * nanoseconds; negative: no limit. A thread that keeps pushing prolongs it.
 *
 * Returns what `raddle_wait_all` returns.
 *
 * Threads: any. In operations of the engine: `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The engine was not freed. `failure` is null or may be written to.
 */
enum raddle_status raddle_wait_idle(struct raddle_engine engine, int64_t timeout_ns, struct raddle_failure *failure);

/**
 * Calls `function` with `data` once what `raddle_wait_idle` would wait for has ended: before this returns, or on a
 * thread that ends it.
 *
 * Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
 *
 * Threads: any. In operations of the engine: calls it with `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: calls it with
 * `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls nothing in the child.
 *
 * The caller promises:
 * 1. The engine was not freed.
 * 2. `function` may be called once with `data`, on any thread.
 */
enum raddle_status raddle_wait_idle_then(struct raddle_engine engine, raddle_done function, void *data);

/**
 * Calls `function` with `data`, during which the calling thread may use all cores of its engine. What the function
 * starts, such as the threads of OpenMP, inherits these instead of the one core of a pinned worker.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the function is null.
 *
 * Threads: any. In operations: meant for them; elsewhere, it only calls the function. After a fork: only calls it.
 *
 * The caller promises:
 * 1. `function` may be called with `data`.
 */
enum raddle_status raddle_unpinned(raddle_callback function, void *data);

/**
 * Calls `function` with `data`, in which an operation blocks on something foreign to the engine: its worker runs
 * others meanwhile.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the function is null.
 *
 * Threads: any. In operations: meant for them; elsewhere, it only calls the function. After a fork: only calls it.
 *
 * The caller promises:
 * 1. `function` may be called with `data`.
 */
enum raddle_status raddle_blocking(raddle_callback function, void *data);

/**
 * Returns the code with which the operation failed; 0 if it failed otherwise, or the handle is null.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. The failure is null or not freed.
 */
int32_t raddle_failure_code(struct raddle_failure failure);

/**
 * Returns how the operation failed, a `raddle_cause`; `RADDLE_CAUSE_NONE` if the handle is null.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. The failure is null or not freed.
 */
int32_t raddle_failure_cause(struct raddle_failure failure);

/**
 * Returns what failed and why, in UTF-8, valid until the failure is freed; null if the handle is null.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. The failure is null or not freed.
 */
const char *raddle_failure_message(struct raddle_failure failure);

/**
 * Returns the name of the operation that failed first, valid until the failure is freed; null if the handle is null.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. The failure is null or not freed.
 */
const char *raddle_failure_operation(struct raddle_failure failure);

/**
 * Returns the payload with which the operation failed, valid until the failure is freed; null if there is none.
 * Every report of the failure shares it, also on several threads at once.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. The failure is null or not freed.
 */
void *raddle_failure_payload(struct raddle_failure failure);

/**
 * Clears the failure on all tokens that it has reached or is yet to reach, and counts it as reported. Not ordered with
 * pushes: an operation pushed later is not skipped because of it, and one pushed earlier may be. To clear one token in
 * push order, use `raddle_token_clear_failure`. The handle stays valid.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the handle is null.
 *
 * Threads: any. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. The failure is null or not freed.
 */
enum raddle_status raddle_failure_clear_everywhere(struct raddle_failure failure);

/**
 * Frees a failure and stores null there. Null is permitted. The payload is freed with the last use of the failure,
 * which may be a token that is still failed.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any one. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. `failure` is null or points to a handle that is null or not freed, and that no other thread uses.
 */
enum raddle_status raddle_failure_free(struct raddle_failure *failure);

/**
 * Stores a new group at `group`: of the engine, or inside its group `parent` unless that is null. From `max_pending`
 * pending operations on, `raddle_push` outside operations is held back; 0: no limit.
 *
 * Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID`.
 *
 * Threads: any. In operations: permitted. After a fork: the group is of no use, as its engine.
 *
 * The caller promises:
 * 1. Neither the engine nor the parent was freed. `group` is null or may be written to.
 */
enum raddle_status raddle_group_new(struct raddle_engine engine,
                                    struct raddle_group parent,
                                    size_t max_pending,
                                    struct raddle_group *group);

/**
 * Waits until the group's operations that were pushed before have ended, for at most `timeout_ns` nanoseconds;
 * negative: no limit.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED` if one of them failed, with the failure of the earliest stored at
 * `failure` unless that is null, each once; `RADDLE_STATUS_TIMED_OUT`.
 *
 * Threads: any. In operations of the group: `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: `RADDLE_STATUS_FORKED`.
 *
 * The caller promises:
 * 1. The group was not freed. `failure` is null or may be written to.
 */
enum raddle_status raddle_group_wait(struct raddle_group group, int64_t timeout_ns, struct raddle_failure *failure);

/**
 * Calls `function` with `data` once what `raddle_group_wait` would wait for has ended: before this returns, or on a
 * thread that ends it.
 *
 * Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
 *
 * Threads: any. In operations of the group: calls it with `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: calls it with
 * `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls nothing in the child.
 *
 * The caller promises:
 * 1. The group was not freed.
 * 2. `function` may be called once with `data`, on any thread.
 */
enum raddle_status raddle_group_then(struct raddle_group group, raddle_done function, void *data);

/**
 * Cancels what the group's operations have not started, also in groups inside it, and refuses to start others. In
 * those that run, `raddle_context_is_cancelled` returns true. With `quietly`, tokens do not fail. Each operation, also
 * one that is pushed later, ends in its turn, behind the operations before it.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any. In operations: permitted. After a fork: has no effect.
 *
 * The caller promises:
 * 1. The group was not freed.
 */
enum raddle_status raddle_group_cancel(struct raddle_group group, bool quietly);

/**
 * Returns the number of the group's pending operations; 0 if the handle is null.
 *
 * Threads: any. In operations: permitted. After a fork: 0.
 *
 * The caller promises:
 * 1. The group was not freed.
 */
uint64_t raddle_group_pending(struct raddle_group group);

/**
 * Frees a group's handle and stores null there. Null is permitted. Its operations run as before.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any one. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. `group` is null or points to a handle that is null or not freed, and that no other thread uses.
 */
enum raddle_status raddle_group_free(struct raddle_group *group);

/**
 * Stores a new recorder at `recorder`, for `raddle_options`.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any. In operations: permitted. After a fork: permitted; engines of the child need recorders of the child.
 *
 * The caller promises:
 * 1. `recorder` is null or may be written to.
 */
enum raddle_status raddle_recorder_new(struct raddle_recorder *recorder);

/**
 * Takes what was recorded since the last call and writes it to the file `path`, in UTF-8, as a trace for Perfetto.
 *
 * Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FILE` if the file cannot be written.
 *
 * Threads: any. In operations: permitted; it reads and writes much. After a fork: the trace is empty.
 *
 * The caller promises:
 * 1. The recorder was not freed. `path` is null or a C string.
 */
enum raddle_status raddle_recorder_write(struct raddle_recorder recorder, const char *path);

/**
 * Frees a recorder and stores null there. Engines that use it go on recording, but their events can no longer
 * be written. Null is permitted.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any one. In operations: permitted. After a fork: permitted.
 *
 * The caller promises:
 * 1. `recorder` is null or points to a handle that is null or not freed, and that no other thread uses.
 */
enum raddle_status raddle_recorder_free(struct raddle_recorder *recorder);

/**
 * Stores at `text` what was found out about this machine and its settings, with advice, for `raddle_text_free`. Takes
 * some tens of milliseconds.
 *
 * Returns `RADDLE_STATUS_OK`.
 *
 * Threads: any. In operations: permitted; it sleeps. After a fork: permitted.
 *
 * The caller promises:
 * 1. `text` is null or may be written to.
 */
enum raddle_status raddle_doctor(char **text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RADDLE_H */
