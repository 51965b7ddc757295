/* A library that takes the place of the CUDA driver and simulates devices on the processor, so that whole programs can
 * run against it. Every stream is a thread with a queue of commands. Calls return before their commands are done, and
 * streams are ordered only as far as the driver's manual specifies.
 *
 *     cc -shared -fPIC -O1 -Wall -Wextra -Werror -pthread -o DIR/libcuda.so.1 tests/stand_in/cuda.c
 *
 * cudarc looks for `libcuda.so`, so DIR needs a link with that name as well. LD_LIBRARY_PATH must name DIR.
 *
 * Kernels are the functions in `KERNELS`, found by name: a module offers the entries declared in its PTX, but the code
 * that runs is C. Mistakes that a device might not report end the process with a message. Examples are a launch of a
 * kernel whose module is unloaded, and two concurrent accesses to the same memory of which at least one writes. A
 * command that uses memory that is not allocated causes the device to be lost.
 *
 * Environment variables, with their defaults in parentheses: STAND_IN_DEVICES: the number of GPUs (1). STAND_IN_DEPTH:
 * the number of commands in a stream's queue (1024); a call that finds the queue full waits. STAND_IN_MEMORY: the size
 * of a device's memory in bytes (1 GiB). STAND_IN_NARROW: streams cannot write 64 bits. STAND_IN_COMPUTE_MODE: the
 * reported compute mode (0: every process may use the device). STAND_IN_SLOW_US: the minimum duration of a kernel, in
 * microseconds. STAND_IN_FAULT=CODE@N: the Nth asynchronous call returns the error CODE; if CODE denotes a loss, the
 * device is lost. */

#define _GNU_SOURCE
#include <ctype.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, FILE_NOT_FOUND = 301, INVALID_HANDLE = 400, ILLEGAL_STATE = 401,
    NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, PEER_ACCESS_ALREADY_ENABLED = 704, NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908
};
enum { GLOBAL, THREAD_LOCAL, RELAXED };
enum { DEVICES = 8, ARGUMENTS = 6, CAPTURED_STREAMS = 16 };

typedef uint64_t address;
typedef struct device device;
typedef struct stream stream;

/* A point in a stream at which an event was recorded. */
typedef struct { int refs, done; uint64_t time; pthread_cond_t is_done; } point;

typedef struct function function;
typedef struct { const char *name; int widths[ARGUMENTS]; void (*run)(stream *, const uint64_t *, uint32_t); } kernel;
typedef struct module { int alive; device *of; function *functions; struct module *next; } module;
struct function { module *in; const kernel *is; char *name; function *next; };

typedef enum { COPY, SET, WRITE, LAUNCH, RECORD, WAIT, CALL, GRAPH } kind;
typedef struct command {
    kind kind;
    address to, from;
    size_t bytes;
    /* Whether a copy's target (`to_any`) and its source (`from_any`) are in the program's ordinary memory, which cannot
     * be checked. */
    int to_any, from_any;
    void *staged;
    uint64_t value;
    function *function;
    uint64_t arguments[ARGUMENTS];
    uint32_t threads;
    point *point;
    void (*call)(void *);
    void *with;
    struct graph *graph;
    struct command *next;
} command;

/* Commands in the order in which they were issued. They can be executed one by one in this order. */
typedef struct graph { int refs; device *of; command *first, **end; } graph;

/* A capture, in progress or ended. `counts` holds, for each of its streams, the number of commands captured there. The
 * capture began on the first of these streams. */
typedef struct capture {
    int refs, mode, active, invalid, streams;
    uint64_t id;
    pthread_t owner;
    unsigned counts[CAPTURED_STREAMS];
    stream *members[CAPTURED_STREAMS];
    graph *graph;
    struct capture *next;
} capture;

struct stream {
    device *of;
    int refs, closing, watchers, priority;
    uint64_t issued, done;
    command *first, **end;
    pthread_cond_t work, moved;
    capture *capture;
    int member;
    /* For each of the capture's streams, how many of its commands precede the next command of this stream. */
    unsigned seen[CAPTURED_STREAMS];
    stream *next;
};

typedef struct {
    device *of;
    int timed;
    point *point;
    capture *capture;
    unsigned seen[CAPTURED_STREAMS];
} event;

typedef struct piece { address at; size_t bytes; device *of; int host, users, freed; struct piece *next; } piece;

/* An access in progress. */
typedef struct access { address at; size_t bytes; int writes; piece *to; struct access *next; } access;

struct device {
    int retained, lost, peers[DEVICES];
    size_t used;
    stream *streams, *standard;
    pthread_cond_t fewer_streams;
};

static pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;
static device devices[DEVICES];
static piece *pieces;
static access *accesses;
static capture *captures;
/* All modules. Unloaded ones are kept so that uses of their functions can be reported. */
static module *modules;
static int started, count_of_devices, narrow;
static uint64_t depth, slowness;
static size_t device_memory;
static long fault_in, fault_code;
static uint64_t last_capture;
static __thread device *current;
static __thread int mode;

#define LOCKED(body) do { pthread_mutex_lock(&all); result = (body); pthread_mutex_unlock(&all); } while (0)

static long long number_in(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoll(text) : otherwise;
}

static void wrong(const char *what, const char *name) {
    fprintf(stderr, "stand-in for the CUDA driver: %s%s\n", what, name);
    abort();
}

static void *get(size_t bytes) {
    void *it = calloc(1, bytes);
    if (!it) wrong("the host has no memory", "");
    return it;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t nanos) {
    struct timespec time = { .tv_sec = (time_t)(nanos / 1000000000), .tv_nsec = (long)(nanos % 1000000000) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL)) { }
}

/* ------------------------------------------------------------------------------------------------------ memory ---- */

static piece *piece_at(address at, size_t bytes) {
    for (piece *it = pieces; it; it = it->next)
        if (!it->freed && it->at <= at && bytes <= it->bytes && at - it->at <= it->bytes - bytes) return it;
    return NULL;
}

/* Marks the device as lost. A lost device does nothing: its queues drain without running their commands. */
static void lose(device *of, int code) { if (!of->lost) of->lost = code; }

static void drop_piece(piece *it) {
    piece **link = &pieces;
    while (*link != it) link = &(*link)->next;
    *link = it->next;
    if (!it->host) it->of->used -= it->bytes;
    free((void *)it->at);
    free(it);
}

/* Begins an access by a device. The device is lost if the memory is not allocated, or if a kernel uses another device's
 * memory to which access was not granted. */
static int begin(access *it, stream *in, address at, size_t bytes, int writes, int by_kernel) {
    device *of = in->of;
    pthread_mutex_lock(&all);
    piece *to = of->lost ? NULL : piece_at(at, bytes);
    if (to && by_kernel && !to->host && to->of != of && !of->peers[to->of - devices]) to = NULL;
    if (!to) {
        lose(of, ILLEGAL_ADDRESS);
        pthread_mutex_unlock(&all);
        return 0;
    }
    for (access *other = accesses; other; other = other->next)
        if ((writes || other->writes) && at < other->at + other->bytes && other->at < at + bytes)
            wrong("the same memory is accessed twice at once, and one of the accesses writes", "");
    *it = (access){ at, bytes, writes, to, accesses };
    accesses = it;
    to->users++;
    pthread_mutex_unlock(&all);
    return 1;
}

static void end(access *it) {
    pthread_mutex_lock(&all);
    access **link = &accesses;
    while (*link != it) link = &(*link)->next;
    *link = it->next;
    if (!--it->to->users && it->to->freed) drop_piece(it->to);
    pthread_mutex_unlock(&all);
}

/* ----------------------------------------------------------------------------------------------------- kernels ---- */

static uint32_t *word(address at) { return (uint32_t *)at; }

static int is_lost(device *of) {
    int result;
    LOCKED(of->lost);
    return result;
}

static uint32_t least(uint32_t one, uint32_t other) { return one < other ? one : other; }

static void run_affine(stream *in, const uint64_t *of, uint32_t threads) {
    uint32_t count = least((uint32_t)of[1], threads);
    access values;
    if (!count || !begin(&values, in, of[0], 4 * (size_t)count, 1, 1)) return;
    for (uint32_t i = 0; i < count; i++) word(of[0])[i] = word(of[0])[i] * (uint32_t)of[2] + (uint32_t)of[3];
    end(&values);
}

static void run_late(stream *in, const uint64_t *of, uint32_t threads) {
    access value;
    (void)threads;
    if (!begin(&value, in, of[0], 4, 1, 1)) return;
    sleep_until(now() + of[1]);
    if (!is_lost(in->of)) *word(of[0]) = *word(of[0]) * (uint32_t)of[2] + (uint32_t)of[3];
    end(&value);
}

static void run_poison(stream *in, const uint64_t *of, uint32_t threads) {
    access nowhere;
    (void)of, (void)threads;
    if (begin(&nowhere, in, 16, 4, 1, 1)) end(&nowhere);
}

enum { WIDTH = 512 };

static uint32_t row_of(const uint8_t *row, uint32_t x) {
    return row[x ? x - 1 : 0] + 2u * row[x] + row[x + 1 < WIDTH ? x + 1 : WIDTH - 1];
}

static void run_smooth(stream *in, const uint64_t *of, uint32_t threads) {
    uint32_t rows = (uint32_t)of[2], count = least(rows * WIDTH, threads);
    const uint8_t *raw = (const uint8_t *)of[0];
    access from, to;
    if (!count || !begin(&from, in, of[0], (size_t)rows * WIDTH, 0, 1)) return;
    if (begin(&to, in, of[1], count, 1, 1)) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t x = i % WIDTH, y = i / WIDTH, above = y ? y - 1 : 0, below = least(y + 1, rows - 1);
            uint32_t sum = row_of(raw + above * WIDTH, x) + 2 * row_of(raw + y * WIDTH, x);
            ((uint8_t *)of[1])[i] = (uint8_t)((sum + row_of(raw + below * WIDTH, x) + 8) / 16);
        }
        end(&to);
    }
    end(&from);
}

static void run_tone(stream *in, const uint64_t *of, uint32_t threads) {
    uint32_t count = least((uint32_t)of[3] * WIDTH, threads);
    access raw, smooth, toned;
    if (!count || !begin(&raw, in, of[0], count, 0, 1)) return;
    if (begin(&smooth, in, of[1], count, 0, 1)) {
        if (begin(&toned, in, of[2], count, 1, 1)) {
            for (uint32_t i = 0; i < count; i++) {
                int sharp = 3 * ((const uint8_t *)of[0])[i] - 2 * ((const uint8_t *)of[1])[i];
                sharp = sharp < 0 ? 0 : sharp > 255 ? 255 : sharp;
                ((uint8_t *)of[2])[i] = (uint8_t)(510 * sharp / (sharp + 255));
            }
            end(&toned);
        }
        end(&smooth);
    }
    end(&raw);
}

static void run_nothing(stream *in, const uint64_t *of, uint32_t threads) { (void)in, (void)of, (void)threads; }

static void run_spin(stream *in, const uint64_t *of, uint32_t threads) {
    (void)in, (void)threads;
    sleep_until(now() + of[0]);
}

static void run_sample(stream *in, const uint64_t *of, uint32_t threads) {
    uint32_t count = (uint32_t)of[1];
    uint64_t last = 0;
    access samples;
    (void)threads;
    if (!count || !begin(&samples, in, of[0], 8 * (size_t)count, 1, 1)) return;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t time = now();
        while (time == last) time = now();
        ((uint64_t *)of[0])[i] = last = time;
    }
    end(&samples);
}

static void run_stamp(stream *in, const uint64_t *of, uint32_t threads) {
    access stamp;
    (void)threads;
    if (!begin(&stamp, in, of[0], 8, 1, 1)) return;
    sleep_until(now() + of[1]);
    if (!is_lost(in->of)) *(uint64_t *)of[0] = now();
    end(&stamp);
}

static void run_fill(stream *in, const uint64_t *of, uint32_t threads) {
    access words;
    (void)threads;
    if (!of[1] || !begin(&words, in, of[0], 4 * of[1], 1, 1)) return;
    for (uint64_t i = 0; i < of[1]; i++) word(of[0])[i] = (uint32_t)of[2];
    end(&words);
}

static const kernel KERNELS[] = {
    /* tests/cuda.ptx */
    { "affine", { 8, 4, 4, 4 }, run_affine },
    { "late", { 8, 8, 4, 4 }, run_late },
    { "poison", { 0 }, run_poison },
    /* examples/gpu_pipeline/kernels.ptx */
    { "smooth", { 8, 8, 4 }, run_smooth },
    { "tone", { 8, 8, 8, 4 }, run_tone },
    /* For measurements. The arguments are: for `spin`, the duration in nanoseconds; for `sample`, an address and the
     * number of readings of the clock; for `stamp`, the address of the reading and the delay before it, in nanoseconds;
     * for `fill`, an address, the number of words, and the value of each word. */
    { "nothing", { 0 }, run_nothing },
    { "spin", { 8 }, run_spin },
    { "sample", { 8, 4 }, run_sample },
    { "stamp", { 8, 8 }, run_stamp },
    { "fill", { 8, 8, 4 }, run_fill },
};

/* ---------------------------------------------------------------------------------------------------- commands ---- */

static void drop_point(point *it) { if (it && !--it->refs) free(it); }

static void drop_command(command *it);

static void drop_graph(graph *it) {
    if (!it || --it->refs) return;
    while (it->first) {
        command *first = it->first;
        it->first = first->next;
        drop_command(first);
    }
    free(it);
}

static void drop_command(command *it) {
    drop_point(it->point);
    drop_graph(it->graph);
    free(it->staged);
    free(it);
}

static void copy(stream *in, const command *it) {
    address source = it->staged ? (address)it->staged : it->from;
    access from, to;
    if (it->from_any || begin(&from, in, source, it->bytes, 0, 0)) {
        if (it->to_any || begin(&to, in, it->to, it->bytes, 1, 0)) {
            memmove((void *)it->to, (void *)source, it->bytes);
            if (!it->to_any) end(&to);
        }
        if (!it->from_any) end(&from);
    }
}

static void launch(stream *in, const command *it) {
    uint64_t least_end = now() + slowness;
    int alive, lost;
    pthread_mutex_lock(&all);
    alive = it->function->in->alive;
    lost = in->of->lost;
    pthread_mutex_unlock(&all);
    if (lost) return;
    if (!alive) wrong("the module of this kernel was unloaded before the device had run it: ", it->function->name);
    it->function->is->run(in, it->arguments, it->threads);
    if (now() < least_end) sleep_until(least_end);
}

/* Executes a command, without the lock. */
static void run(stream *in, const command *it) {
    access to;
    switch (it->kind) {
    case COPY:
        copy(in, it);
        break;
    case SET:
        if (begin(&to, in, it->to, it->bytes, 1, 0)) {
            memset((void *)it->to, (int)it->value, it->bytes);
            end(&to);
        }
        break;
    case WRITE:
        if (begin(&to, in, it->to, 8, 1, 0)) {
            __atomic_store_n((uint64_t *)it->to, it->value, __ATOMIC_RELEASE);
            end(&to);
        }
        break;
    case LAUNCH:
        launch(in, it);
        break;
    case CALL:
        it->call(it->with);
        break;
    case GRAPH:
        for (command *each = it->graph->first; each && !is_lost(in->of); each = each->next) run(in, each);
        break;
    case RECORD:
    case WAIT:
        break;
    }
}

static void drop_stream(stream *it) { if (!--it->refs) free(it); }

static void *work(void *with) {
    stream *in = with;
    prctl(PR_SET_NAME, "stand-in stream");
    /* Lets sleeps end on time. */
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&all);
    for (;;) {
        while (!in->first && !in->closing) pthread_cond_wait(&in->work, &all);
        command *it = in->first;
        if (!it) break;
        if (!(in->first = it->next)) in->end = &in->first;
        if (it->kind == WAIT) {
            while (!it->point->done) pthread_cond_wait(&it->point->is_done, &all);
        } else if (it->kind == RECORD) {
            it->point->done = 1;
            it->point->time = now();
            pthread_cond_broadcast(&it->point->is_done);
        } else if (!in->of->lost) {
            pthread_mutex_unlock(&all);
            run(in, it);
            pthread_mutex_lock(&all);
        }
        drop_command(it);
        in->done++;
        if (in->watchers) pthread_cond_broadcast(&in->moved);
    }
    stream **link = &in->of->streams;
    while (*link != in) link = &(*link)->next;
    *link = in->next;
    pthread_cond_broadcast(&in->of->fewer_streams);
    drop_stream(in);
    pthread_mutex_unlock(&all);
    return NULL;
}

static void until(stream *in, uint64_t done) {
    in->refs++;
    in->watchers++;
    while (in->done < done) pthread_cond_wait(&in->moved, &all);
    in->watchers--;
    drop_stream(in);
}

/* Waits for all commands issued to a device before the call. */
static void until_idle(device *of) {
    struct { stream *in; uint64_t issued; } *streams;
    int count = 0;
    for (stream *it = of->streams; it; it = it->next) count++;
    streams = get((size_t)(count + 1) * sizeof *streams);
    count = 0;
    for (stream *it = of->streams; it; it = it->next, count++) {
        streams[count].in = it;
        streams[count].issued = it->issued;
        it->refs++;
    }
    while (count--) {
        until(streams[count].in, streams[count].issued);
        drop_stream(streams[count].in);
    }
    free(streams);
}

static int open_stream(stream **it, int priority) {
    pthread_attr_t attributes;
    pthread_t thread;
    stream *made = get(sizeof *made);
    made->of = current;
    made->refs = 1;
    made->priority = priority;
    made->end = &made->first;
    pthread_cond_init(&made->work, NULL);
    pthread_cond_init(&made->moved, NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, work, made);
    pthread_attr_destroy(&attributes);
    if (failed) {
        free(made);
        return OUT_OF_MEMORY;
    }
    made->next = current->streams;
    current->streams = made;
    *it = made;
    return OK;
}

/* Resolves a handle. The handles of the default streams all denote one stream of the context. */
static int find(stream **it) {
    if ((uintptr_t)*it > 2) return OK;
    if (!current) return INVALID_CONTEXT;
    if (!current->standard) {
        int result = open_stream(&current->standard, 0);
        if (result) return result;
    }
    *it = current->standard;
    return OK;
}

/* Returns whether this error makes the context unusable. */
static int is_loss(long code) {
    return code == 214 || code == 220 || code == 226 || code == 700 || code == 702 || code == 710 ||
           (code >= 714 && code <= 719) || code == 721 || code == 999;
}

static int fault(device *of) {
    if (!fault_in || --fault_in) return OK;
    if (is_loss(fault_code)) lose(of, (int)fault_code);
    return (int)fault_code;
}

/* Checks the conditions of every asynchronous call. */
static int before(stream **in) {
    int result = find(in);
    if (result == OK) result = (*in)->of->lost;
    if (result == OK) result = fault((*in)->of);
    if (result == OK && (*in)->capture && (*in)->capture->invalid) result = CAPTURE_INVALIDATED;
    return result;
}

/* Appends a command to the stream's queue, as soon as there is room, or to the graph of the stream's capture. */
static int put(stream *in, command given) {
    command *it = get(sizeof *it);
    *it = given;
    it->next = NULL;
    if (in->capture) {
        graph *graph = in->capture->graph;
        *graph->end = it;
        graph->end = &it->next;
        in->seen[in->member] = ++in->capture->counts[in->member];
        return OK;
    }
    if (in->issued - in->done >= depth) {
        in->watchers++;
        while (in->issued - in->done >= depth) pthread_cond_wait(&in->moved, &all);
        in->watchers--;
    }
    in->issued++;
    *in->end = it;
    in->end = &it->next;
    pthread_cond_signal(&in->work);
    return OK;
}

/* ---------------------------------------------------------------------------------------------------- captures ---- */

static void drop_capture(capture *it) {
    if (!it || --it->refs) return;
    drop_graph(it->graph);
    free(it);
}

/* Checks a call that is unsafe during captures. If the modes of the thread and of a capture forbid the call, refuses it
 * and invalidates the capture. */
static int unsafe_call(void) {
    int result = OK;
    for (capture *it = captures; it; it = it->next) {
        int own = it->mode != RELAXED && pthread_equal(it->owner, pthread_self());
        if (mode != RELAXED && (own || (mode == GLOBAL && it->mode == GLOBAL))) {
            it->invalid = 1;
            result = CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

/* Checks whether the progress of a stream may be queried. If the stream is being captured, invalidates the capture. */
static int ask(stream *in) {
    if (in->capture) {
        int result = in->capture->invalid ? CAPTURE_INVALIDATED : CAPTURE_UNSUPPORTED;
        in->capture->invalid = 1;
        return result;
    }
    int result = unsafe_call();
    return result ? result : in->of->lost;
}

static void join(stream *in, capture *to) {
    in->capture = to;
    in->member = to->streams;
    memset(in->seen, 0, sizeof in->seen);
    to->members[to->streams++] = in;
    to->refs++;
}

static void finish(capture *it) {
    capture **link = &captures;
    while (*link != it) link = &(*link)->next;
    *link = it->next;
    it->active = 0;
    it->refs++;
    for (int i = 0; i < it->streams; i++) {
        if (!it->members[i]) continue;
        it->members[i]->capture = NULL;
        drop_capture(it);
    }
    drop_capture(it);
}

int cuThreadExchangeStreamCaptureMode(int *with) {
    int last = mode;
    if (*with < GLOBAL || *with > RELAXED) return INVALID_VALUE;
    mode = *with;
    *with = last;
    return OK;
}

static int begin_capture(stream *in, int how) {
    if ((uintptr_t)in <= 2) return CAPTURE_UNSUPPORTED;
    if (how < GLOBAL || how > RELAXED) return INVALID_VALUE;
    if (in->of->lost) return in->of->lost;
    if (in->capture) return ILLEGAL_STATE;
    capture *it = get(sizeof *it);
    it->mode = how;
    it->active = 1;
    it->id = ++last_capture;
    it->owner = pthread_self();
    it->graph = get(sizeof *it->graph);
    *it->graph = (graph){ 1, in->of, NULL, &it->graph->first };
    it->next = captures;
    captures = it;
    join(in, it);
    return OK;
}
int cuStreamBeginCapture_v2(stream *in, int how) {
    int result;
    LOCKED(begin_capture(in, how));
    return result;
}

static int end_capture(stream *in, graph **made) {
    *made = NULL;
    if ((uintptr_t)in <= 2 || !in->capture) return ILLEGAL_STATE;
    capture *it = in->capture;
    if (in->member) return CAPTURE_UNMATCHED;
    if (it->mode != RELAXED && !pthread_equal(it->owner, pthread_self())) return CAPTURE_WRONG_THREAD;
    int result = in->of->lost ? in->of->lost : it->invalid ? CAPTURE_INVALIDATED : OK;
    for (int i = 0; i < it->streams && result == OK; i++)
        if (in->seen[i] < it->counts[i]) result = CAPTURE_UNJOINED;
    if (result == OK) {
        *made = it->graph;
        (*made)->refs++;
    }
    finish(it);
    return result;
}
int cuStreamEndCapture(stream *in, graph **made) {
    int result;
    LOCKED(end_capture(in, made));
    return result;
}

static int capture_info(stream *in, int *status, uint64_t *id, graph **into) {
    int result = find(&in);
    if (result) return result;
    *status = !in->capture ? 0 : in->capture->invalid ? 2 : 1;
    if (id && *status == 1) *id = in->capture->id;
    if (into && *status == 1) *into = in->capture->graph;
    return in->of->lost;
}
int cuStreamIsCapturing(stream *in, int *status) {
    int result;
    LOCKED(capture_info(in, status, NULL, NULL));
    return result;
}
int cuStreamGetCaptureInfo_v2(stream *in, int *status, uint64_t *id, graph **into, void *on, size_t *count) {
    int result;
    if (on || count) return NOT_SUPPORTED;
    LOCKED(capture_info(in, status, id, into));
    return result;
}
int cuStreamGetCaptureInfo_v3(stream *in, int *status, uint64_t *id, graph **into, void *on, void *edges, size_t *n) {
    return edges ? NOT_SUPPORTED : cuStreamGetCaptureInfo_v2(in, status, id, into, on, n);
}

/* An executable graph is the graph itself, since the stand-in has no call that changes a graph. */
int cuGraphInstantiateWithFlags(graph **it, graph *from, unsigned long long flags) {
    if (flags > 15 || (flags & 5) == 5) return INVALID_VALUE;
    pthread_mutex_lock(&all);
    int result = from->of->lost;
    if (result == OK) {
        from->refs++;
        *it = from;
    }
    pthread_mutex_unlock(&all);
    return result;
}
int cuGraphUpload(graph *it, stream *in) { (void)it, (void)in; return OK; }
int cuGraphLaunch(graph *it, stream *in) {
    int result;
    pthread_mutex_lock(&all);
    result = before(&in);
    if (result == OK && in->capture) result = NOT_SUPPORTED;
    if (result == OK) {
        it->refs++;
        result = put(in, (command){ .kind = GRAPH, .graph = it });
    }
    pthread_mutex_unlock(&all);
    return result;
}
int cuGraphDestroy(graph *it) {
    pthread_mutex_lock(&all);
    drop_graph(it);
    pthread_mutex_unlock(&all);
    return OK;
}
int cuGraphExecDestroy(graph *it) { return cuGraphDestroy(it); }

/* ---------------------------------------------------------------------------------------- devices and contexts ---- */

int cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    pthread_mutex_lock(&all);
    if (!started) {
        const char *text = getenv("STAND_IN_FAULT");
        if (text && sscanf(text, "%ld@%ld", &fault_code, &fault_in) != 2) wrong("STAND_IN_FAULT is not CODE@N: ", text);
        long long count = number_in("STAND_IN_DEVICES", 1);
        count_of_devices = count < 0 ? 0 : count > DEVICES ? DEVICES : (int)count;
        depth = (uint64_t)number_in("STAND_IN_DEPTH", 1024);
        device_memory = (size_t)number_in("STAND_IN_MEMORY", 1 << 30);
        slowness = 1000 * (uint64_t)number_in("STAND_IN_SLOW_US", 0);
        narrow = getenv("STAND_IN_NARROW") != NULL;
        if (!depth) wrong("STAND_IN_DEPTH must be a positive number", "");
        for (int i = 0; i < DEVICES; i++) pthread_cond_init(&devices[i].fewer_streams, NULL);
        started = 1;
    }
    pthread_mutex_unlock(&all);
    return OK;
}

int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuDeviceGetCount(int *count) { *count = count_of_devices; return started ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < count_of_devices ? OK : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, (size_t)size, "stand-in %d", device);
    return OK;
}
int cuDeviceGetPCIBusId(char *id, int size, int device) {
    if (size < 13) return INVALID_VALUE;
    snprintf(id, (size_t)size, "0000:%02X:00.0", 0x17 + device);
    return OK;
}
int cuDeviceGetUuid_v2(char *uuid, int device) {
    memset(uuid, 0, 16);
    uuid[15] = (char)(device + 1);
    return OK;
}
int cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = device_memory; return OK; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const int VALUES[][2] = {
        /* Threads of a block, its three dimensions, the grid's three dimensions, shared memory, threads of a warp. */
        { 1, 1024 }, { 2, 1024 }, { 3, 1024 }, { 4, 64 }, { 5, 2147483647 }, { 6, 65535 }, { 7, 65535 }, { 8, 49152 },
        { 10, 32 },
        /* Clock rate in kHz, multiprocessors, mapped memory, concurrent kernels, copy engines, unified addressing. */
        { 13, 1980000 }, { 16, 132 }, { 19, 1 }, { 31, 1 }, { 40, 3 }, { 41, 1 },
        /* Compute capability, priorities. */
        { 75, 9 }, { 76, 0 }, { 78, 1 },
    };
    if (attribute < 1 || attribute > 150) return INVALID_VALUE;
    *value = 0;
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++)
        if (VALUES[i][0] == attribute) *value = VALUES[i][1];
    if (attribute == 33) *value = 0x17 + device;
    if (attribute == 20) *value = (int)number_in("STAND_IN_COMPUTE_MODE", 0);
    if (attribute == 122) *value = !narrow;
    return OK;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer; return OK; }

int cuDevicePrimaryCtxRetain(device **it, int number) {
    pthread_mutex_lock(&all);
    int result = started ? OK : NOT_INITIALIZED;
    if (result == OK) {
        *it = &devices[number];
        (*it)->retained++;
    }
    pthread_mutex_unlock(&all);
    return result;
}

/* Destroys everything in a context that its last holder has released. */
static void destroy(device *it) {
    for (stream *each = it->streams; each; each = each->next) {
        if (each->capture) finish(each->capture);
        each->closing = 1;
        pthread_cond_signal(&each->work);
    }
    while (it->streams) pthread_cond_wait(&it->fewer_streams, &all);
    for (piece *each = pieces, *next; each; each = next) {
        next = each->next;
        if (each->of != it) continue;
        if (each->users) each->freed = 1;
        else drop_piece(each);
    }
    for (module *each = modules; each; each = each->next) each->alive &= each->of != it;
    memset(it->peers, 0, sizeof it->peers);
    it->standard = NULL;
    it->lost = OK;
}
int cuDevicePrimaryCtxRelease_v2(int number) {
    int result = OK;
    pthread_mutex_lock(&all);
    if (!devices[number].retained) result = INVALID_CONTEXT;
    else if (!--devices[number].retained) destroy(&devices[number]);
    pthread_mutex_unlock(&all);
    return result;
}

int cuCtxGetCurrent(device **it) { *it = current; return OK; }
int cuCtxSetCurrent(device *it) { current = it; return OK; }
int cuCtxGetDevice(int *number) {
    if (!current) return INVALID_CONTEXT;
    *number = (int)(current - devices);
    return OK;
}
int cuCtxSetFlags(unsigned flags) { (void)flags; return current ? OK : INVALID_CONTEXT; }
int cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0;
    *highest = -5;
    return current ? OK : INVALID_CONTEXT;
}
int cuCtxEnablePeerAccess(device *peer, unsigned flags) {
    int result = OK;
    if (!current || current == peer || !peer) return INVALID_CONTEXT;
    if (flags) return INVALID_VALUE;
    pthread_mutex_lock(&all);
    if (current->lost) result = current->lost;
    else if (!peer->retained) result = INVALID_CONTEXT;
    else if (current->peers[peer - devices]++) result = PEER_ACCESS_ALREADY_ENABLED;
    pthread_mutex_unlock(&all);
    return result;
}

/* A context with a captured stream cannot be waited for, in any mode; an attempt invalidates the capture. */
static int synchronize(void) {
    if (!current) return INVALID_CONTEXT;
    int result = unsafe_call();
    for (stream *it = current->streams; it; it = it->next) {
        if (!it->capture) continue;
        it->capture->invalid = 1;
        result = CAPTURE_UNSUPPORTED;
    }
    if (result) return result;
    until_idle(current);
    return current->lost;
}
int cuCtxSynchronize(void) {
    int result;
    LOCKED(synchronize());
    return result;
}

/* ------------------------------------------------------------------------------------------------------ memory ---- */

static int allocate(address *it, size_t bytes, int host) {
    if (!current) return INVALID_CONTEXT;
    if (unsafe_call()) return CAPTURE_UNSUPPORTED;
    if (host) until_idle(current);
    if (current->lost) return current->lost;
    if (!bytes) return INVALID_VALUE;
    if (bytes > SIZE_MAX / 2 || (!host && bytes > device_memory - current->used)) return OUT_OF_MEMORY;
    void *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!at) return OUT_OF_MEMORY;
    /* The memory, up to its first MiB, is filled with a pattern, so that a caller that relies on zeros fails. */
    memset(at, 0x77, bytes < 1 << 20 ? bytes : 1 << 20);
    piece *made = get(sizeof *made);
    *made = (piece){ (address)at, bytes, current, host, 0, 0, pieces };
    pieces = made;
    if (!host) current->used += bytes;
    *it = (address)at;
    return OK;
}

/* Frees device memory once the device is idle. If host memory is freed while a device uses it, the device is lost. */
static int give_back(address it, int host) {
    if (!current) return INVALID_CONTEXT;
    if (unsafe_call()) return CAPTURE_UNSUPPORTED;
    if (!host) until_idle(current);
    if (current->lost) return current->lost;
    piece *given = piece_at(it, 1);
    if (!given || given->at != it || given->host != host) return INVALID_VALUE;
    if (given->users) {
        lose(given->of, ILLEGAL_ADDRESS);
        given->freed = 1;
        return OK;
    }
    drop_piece(given);
    return OK;
}

int cuMemAlloc_v2(address *it, size_t bytes) { int result; LOCKED(allocate(it, bytes, 0)); return result; }
int cuMemFree_v2(address it) { int result; LOCKED(give_back(it, 0)); return result; }
int cuMemHostAlloc(void **it, size_t bytes, unsigned flags) {
    address at = 0;
    int result;
    if (flags > 7) return INVALID_VALUE;
    LOCKED(allocate(&at, bytes, 1));
    if (result == OK) *it = (void *)at;
    return result;
}
int cuMemFreeHost(void *it) { int result; LOCKED(give_back((address)it, 1)); return result; }
int cuMemHostGetDevicePointer_v2(address *it, void *host, unsigned flags) {
    if (flags) return INVALID_VALUE;
    pthread_mutex_lock(&all);
    piece *of = piece_at((address)host, 1);
    int result = !current ? INVALID_CONTEXT : current->lost ? current->lost : of && of->host ? OK : INVALID_VALUE;
    pthread_mutex_unlock(&all);
    *it = (address)host;
    return result;
}
int cuMemGetInfo_v2(size_t *unused, size_t *total) {
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&all);
    *total = device_memory;
    *unused = *total - current->used;
    int result = current->lost;
    pthread_mutex_unlock(&all);
    return result;
}

/* `to_host` and `from_host` say whether the target and the source may be ordinary memory of the host, not allocated by
 * this library. Unless the stream is captured, the call accesses ordinary memory before it returns. */
static int issue_copy(address to, address from, size_t bytes, stream *in, int to_host, int from_host) {
    int result = before(&in);
    if (result) return result;
    if (!bytes) return OK;
    if (!current || current != in->of) return INVALID_CONTEXT;
    command it = { .kind = COPY, .to = to, .from = from, .bytes = bytes };
    it.to_any = to_host && !piece_at(to, bytes);
    it.from_any = from_host && !piece_at(from, bytes);
    if (it.from_any && !in->capture) {
        it.staged = get(bytes);
        memcpy(it.staged, (void *)from, bytes);
    }
    result = put(in, it);
    if (it.to_any && !in->capture) {
        until(in, in->issued);
        result = in->of->lost;
    }
    return result;
}
int cuMemcpyAsync(address to, address from, size_t bytes, stream *in) {
    int result;
    LOCKED(issue_copy(to, from, bytes, in, 1, 1));
    return result;
}
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, stream *in) {
    int result;
    LOCKED(issue_copy(to, (address)from, bytes, in, 0, 1));
    return result;
}
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, stream *in) {
    int result;
    LOCKED(issue_copy((address)to, from, bytes, in, 1, 0));
    return result;
}
int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, stream *in) {
    int result;
    LOCKED(issue_copy(to, from, bytes, in, 0, 0));
    return result;
}
int cuMemcpyPeerAsync(address to, device *of_to, address from, device *of_from, size_t bytes, stream *in) {
    int result;
    if (!of_to || !of_from) return INVALID_CONTEXT;
    LOCKED(of_to->retained && of_from->retained ? issue_copy(to, from, bytes, in, 0, 0) : INVALID_CONTEXT);
    return result;
}

static int wait_for(stream *in, int issued) {
    if (issued) return issued;
    if (find(&in) || in->capture) return CAPTURE_UNSUPPORTED;
    until(in, in->issued);
    return in->of->lost;
}
int cuMemcpyHtoD_v2(address to, const void *from, size_t bytes) {
    int result;
    LOCKED(unsafe_call() ? CAPTURE_UNSUPPORTED : wait_for(NULL, issue_copy(to, (address)from, bytes, NULL, 0, 1)));
    return result;
}
int cuMemcpyDtoH_v2(void *to, address from, size_t bytes) {
    int result;
    LOCKED(unsafe_call() ? CAPTURE_UNSUPPORTED : wait_for(NULL, issue_copy((address)to, from, bytes, NULL, 1, 0)));
    return result;
}
int cuMemcpyDtoD_v2(address to, address from, size_t bytes) {
    int result;
    LOCKED(unsafe_call() ? CAPTURE_UNSUPPORTED : wait_for(NULL, issue_copy(to, from, bytes, NULL, 0, 0)));
    return result;
}

static int issue_set(address to, unsigned char value, size_t bytes, stream *in) {
    int result = before(&in);
    return result || !bytes ? result : put(in, (command){ .kind = SET, .to = to, .value = value, .bytes = bytes });
}
int cuMemsetD8Async(address to, unsigned char value, size_t bytes, stream *in) {
    int result;
    LOCKED(issue_set(to, value, bytes, in));
    return result;
}
int cuMemsetD8_v2(address to, unsigned char value, size_t bytes) {
    int result;
    LOCKED(unsafe_call() ? CAPTURE_UNSUPPORTED : wait_for(NULL, issue_set(to, value, bytes, NULL)));
    return result;
}

/* ------------------------------------------------------------------------------------------ streams and events ---- */

int cuStreamCreateWithPriority(stream **it, unsigned flags, int priority) {
    int result;
    if (!current) return INVALID_CONTEXT;
    if (flags > 1) return INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    LOCKED(current->lost ? current->lost : open_stream(it, priority));
    return result;
}
int cuStreamCreate(stream **it, unsigned flags) { return cuStreamCreateWithPriority(it, flags, 0); }
int cuStreamGetPriority(stream *in, int *priority) {
    int result;
    LOCKED(find(&in));
    if (result == OK) *priority = in->priority;
    return result;
}

/* Returns immediately; the stream ends when its commands are done. */
int cuStreamDestroy_v2(stream *it) {
    if ((uintptr_t)it <= 2) return INVALID_HANDLE;
    pthread_mutex_lock(&all);
    int result = it->of->lost;
    capture *in = it->capture;
    if (in) {
        in->invalid = 1;
        if (it->member == 0) finish(in);
        else {
            in->members[it->member] = NULL;
            it->capture = NULL;
            drop_capture(in);
        }
    }
    it->closing = 1;
    pthread_cond_signal(&it->work);
    pthread_mutex_unlock(&all);
    return result;
}

static int query_stream(stream *in) {
    int result = find(&in);
    if (result == OK) result = ask(in);
    return result ? result : in->done < in->issued ? NOT_READY : OK;
}
int cuStreamQuery(stream *in) { int result; LOCKED(query_stream(in)); return result; }

static int synchronize_stream(stream *in) {
    int result = find(&in);
    if (result == OK) result = ask(in);
    if (result) return result;
    device *of = in->of;
    until(in, in->issued);
    return of->lost;
}
int cuStreamSynchronize(stream *in) { int result; LOCKED(synchronize_stream(in)); return result; }

static int write_value(stream *in, address at, uint64_t value, unsigned flags) {
    if (narrow) return NOT_SUPPORTED;
    if (flags || at % 8) return INVALID_VALUE;
    int result = before(&in);
    return result ? result : put(in, (command){ .kind = WRITE, .to = at, .value = value });
}
int cuStreamWriteValue64_v2(stream *in, address at, uint64_t value, unsigned flags) {
    int result;
    LOCKED(write_value(in, at, value, flags));
    return result;
}

static int host_call(stream *in, void (*call)(void *), void *with) {
    int result = before(&in);
    return result ? result : put(in, (command){ .kind = CALL, .call = call, .with = with });
}
int cuLaunchHostFunc(stream *in, void (*call)(void *), void *with) {
    int result;
    LOCKED(host_call(in, call, with));
    return result;
}

int cuEventCreate(event **it, unsigned flags) {
    int result = OK;
    if (!current) return INVALID_CONTEXT;
    if (flags > 7) return INVALID_VALUE;
    pthread_mutex_lock(&all);
    if (!(result = current->lost)) {
        *it = get(sizeof **it);
        (*it)->of = current;
        (*it)->timed = !(flags & 2);
    }
    pthread_mutex_unlock(&all);
    return result;
}
int cuEventDestroy_v2(event *it) {
    pthread_mutex_lock(&all);
    int result = it->of->lost;
    drop_point(it->point);
    drop_capture(it->capture);
    free(it);
    pthread_mutex_unlock(&all);
    return result;
}

static int record(event *it, stream *in) {
    int result = before(&in);
    if (result) return result;
    if (it->of != in->of) return INVALID_CONTEXT;
    drop_capture(it->capture);
    drop_point(it->point);
    it->capture = NULL;
    it->point = NULL;
    if (in->capture) {
        it->capture = in->capture;
        it->capture->refs++;
        memcpy(it->seen, in->seen, sizeof it->seen);
        return OK;
    }
    /* The event may be recorded again, or destroyed, while this call waits for room. */
    point *made = get(sizeof *made);
    pthread_cond_init(&made->is_done, NULL);
    made->refs = 2;
    it->point = made;
    return put(in, (command){ .kind = RECORD, .point = made });
}
int cuEventRecord(event *it, stream *in) { int result; LOCKED(record(it, in)); return result; }

static int wait_event(stream *in, event *on, unsigned flags) {
    int result = flags ? INVALID_VALUE : before(&in);
    if (result) return result;
    if (on->capture) {
        if (!on->capture->active) return CAPTURE_ISOLATION;
        if (on->capture->invalid) return CAPTURE_INVALIDATED;
        if (in->capture && in->capture != on->capture) {
            in->capture->invalid = on->capture->invalid = 1;
            return CAPTURE_MERGE;
        }
        if (!in->capture && on->capture->streams == CAPTURED_STREAMS) return NOT_SUPPORTED;
        if (!in->capture) join(in, on->capture);
        for (int i = 0; i < CAPTURED_STREAMS; i++) if (in->seen[i] < on->seen[i]) in->seen[i] = on->seen[i];
        return OK;
    }
    if (!on->point) return OK;
    if (in->capture) {
        in->capture->invalid = 1;
        return CAPTURE_ISOLATION;
    }
    on->point->refs++;
    return put(in, (command){ .kind = WAIT, .point = on->point });
}
int cuStreamWaitEvent(stream *in, event *on, unsigned flags) {
    int result;
    LOCKED(wait_event(in, on, flags));
    return result;
}

static int ask_event(const event *it) {
    int result = it->capture ? CAPTURED_EVENT : unsafe_call();
    if (it->capture && it->capture->active) it->capture->invalid = 1;
    return result ? result : it->of->lost;
}
static int query_event(const event *it) {
    int result = ask_event(it);
    return result ? result : it->point && !it->point->done ? NOT_READY : OK;
}
int cuEventQuery(event *it) { int result; LOCKED(query_event(it)); return result; }

static int synchronize_event(event *it) {
    int result = ask_event(it);
    if (result || !it->point) return result;
    point *on = it->point;
    device *of = it->of;
    on->refs++;
    while (!on->done) pthread_cond_wait(&on->is_done, &all);
    drop_point(on);
    return of->lost;
}
int cuEventSynchronize(event *it) { int result; LOCKED(synchronize_event(it)); return result; }

static int elapsed(float *millis, const event *from, const event *to) {
    if (from->of->lost) return from->of->lost;
    if (!from->timed || !to->timed || !from->point || !to->point) return INVALID_HANDLE;
    if (!from->point->done || !to->point->done) return NOT_READY;
    *millis = (float)((double)(int64_t)(to->point->time - from->point->time) / 1e6);
    return OK;
}
int cuEventElapsedTime_v2(float *millis, event *from, event *to) {
    int result;
    LOCKED(elapsed(millis, from, to));
    return result;
}
int cuEventElapsedTime(float *millis, event *from, event *to) { return cuEventElapsedTime_v2(millis, from, to); }

/* ----------------------------------------------------------------------------------------- modules and kernels ---- */

static int is_in_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static int load(module **it, const char *text) {
    if (!current) return INVALID_CONTEXT;
    if (unsafe_call()) return CAPTURE_UNSUPPORTED;
    if (current->lost) return current->lost;
    if (!memcmp(text, "\177ELF", 4)) return NO_BINARY_FOR_GPU;
    if (!strstr(text, ".version") || !strstr(text, ".target")) return INVALID_PTX;
    module *made = get(sizeof *made);
    made->alive = 1;
    made->of = current;
    while ((text = strstr(text, ".entry"))) {
        text += strlen(".entry");
        text += strspn(text, " \t\r\n");
        size_t length = 0;
        while (is_in_name(text[length])) length++;
        if (!length) continue;
        function *entry = get(sizeof *entry);
        entry->in = made;
        entry->name = strndup(text, length);
        for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
            if (!strcmp(KERNELS[i].name, entry->name)) entry->is = &KERNELS[i];
        entry->next = made->functions;
        made->functions = entry;
    }
    made->next = modules;
    modules = *it = made;
    return OK;
}
int cuModuleLoadData(module **it, const char *text) { int result; LOCKED(load(it, text)); return result; }
int cuModuleLoadDataEx(module **it, const char *text, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(it, text);
}
int cuModuleLoad(module **it, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return FILE_NOT_FOUND;
    size_t length = 0, more;
    char *text = get(1);
    do {
        if (!(text = realloc(text, length + 4097))) wrong("the host has no memory", "");
        length += more = fread(text + length, 1, 4096, file);
    } while (more);
    text[length] = 0;
    fclose(file);
    int result = cuModuleLoadData(it, text);
    free(text);
    return result;
}
int cuModuleUnload(module *it) {
    pthread_mutex_lock(&all);
    if (!it->alive) wrong("a module was unloaded twice, or after its context", "");
    int result = unsafe_call();
    if (!result) result = it->of->lost;
    if (result != CAPTURE_UNSUPPORTED) it->alive = 0;
    pthread_mutex_unlock(&all);
    return result;
}
int cuModuleGetFunction(function **it, module *in, const char *name) {
    pthread_mutex_lock(&all);
    if (!in->alive) wrong("the module was unloaded before this kernel was requested: ", name);
    int result = in->of->lost ? in->of->lost : NOT_FOUND;
    for (function *each = in->functions; each && result == NOT_FOUND; each = each->next) {
        if (strcmp(each->name, name)) continue;
        *it = each;
        result = OK;
    }
    pthread_mutex_unlock(&all);
    return result;
}

typedef struct { unsigned x, y, z; } size;

static int issue_launch(function *of, size grid, size block, stream *in, void **arguments) {
    if (!of->in->alive) wrong("the module of this kernel was unloaded before its launch: ", of->name);
    int result = before(&in);
    if (result) return result;
    if (!of->is) return NOT_SUPPORTED;
    if (of->in->of != in->of) return INVALID_HANDLE;
    uint64_t threads = (uint64_t)grid.x * block.x, block_threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || !grid.y || !grid.z || !block_threads || block_threads > 1024) return INVALID_VALUE;
    command it = { .kind = LAUNCH, .function = of };
    it.threads = threads > UINT32_MAX ? UINT32_MAX : (uint32_t)threads;
    for (int i = 0; i < ARGUMENTS && of->is->widths[i]; i++) {
        if (!arguments || !arguments[i]) return INVALID_VALUE;
        memcpy(&it.arguments[i], arguments[i], (size_t)of->is->widths[i]);
    }
    return put(in, it);
}
int cuLaunchKernel(function *of, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, stream *in, void **arguments, void **extra) {
    int result;
    (void)shared;
    if (extra) return NOT_SUPPORTED;
    LOCKED(issue_launch(of, (size){ gx, gy, gz }, (size){ bx, by, bz }, in, arguments));
    return result;
}

/* ------------------------------------------------------------------------------------------------------ errors ---- */

int cuGetErrorName(int code, const char **text) {
    static __thread char name[32];
    snprintf(name, sizeof name, "CUDA_ERROR_%d", code);
    *text = name;
    return OK;
}
int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }
