/* Checks that the stand-in orders commands, refuses calls and loses devices as it should. This file is built together
 * with the stand-in, with and without sanitizers.
 *
 *     cc -O1 -pthread -o DIR/self_test tests/stand_in/self_test.c tests/stand_in/cuda.c */

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long address;

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(handle);
int cuCtxSynchronize(void);
int cuThreadExchangeStreamCaptureMode(int *);
int cuStreamCreateWithPriority(handle *, unsigned, int);
int cuStreamDestroy_v2(handle);
int cuStreamSynchronize(handle);
int cuStreamQuery(handle);
int cuStreamWaitEvent(handle, handle, unsigned);
int cuStreamWriteValue64_v2(handle, address, uint64_t, unsigned);
int cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);
int cuStreamIsCapturing(handle, int *);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle);
int cuGraphDestroy(handle);
int cuGraphExecDestroy(handle);
int cuEventCreate(handle *, unsigned);
int cuEventDestroy_v2(handle);
int cuEventRecord(handle, handle);
int cuEventQuery(handle);
int cuEventElapsedTime_v2(float *, handle, handle);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(address, const void *, size_t, handle);
int cuMemcpyDtoHAsync_v2(void *, address, size_t, handle);
int cuMemsetD8Async(address, unsigned char, size_t, handle);
int cuModuleLoadData(handle *, const char *);
int cuModuleGetFunction(handle *, handle, const char *);
int cuModuleUnload(handle);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                   void **);

enum { GLOBAL, THREAD_LOCAL, RELAXED };

#define IS(code, call) is(code, call, #call, __LINE__)
#define DO(call) IS(0, call)
#define HOLDS(what) is(1, !!(what), #what, __LINE__)

static void is(int expected, int given, const char *what, int line) {
    if (given == expected) return;
    fprintf(stderr, "self_test.c:%d: %s is %d instead of %d\n", line, what, given, expected);
    exit(1);
}

static const char *const NAMES[] = { "affine", "late", "spin", "sample", "stamp", "fill", "poison", "unknown" };
enum { AFFINE, LATE, SPIN, SAMPLE, STAMP, FILL, POISON, UNKNOWN, KERNELS };
static handle context, module, kernels[KERNELS];

static void open_device(void) {
    char text[1000];
    int length = sprintf(text, ".version 7.0\n.target sm_70\n");
    for (int i = 0; i < KERNELS; i++) length += sprintf(text + length, ".visible .entry %s(\n) { ret; }\n", NAMES[i]);
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, text));
    for (int i = 0; i < KERNELS; i++) DO(cuModuleGetFunction(&kernels[i], module, NAMES[i]));
}

static handle new_stream(void) {
    handle it;
    DO(cuStreamCreateWithPriority(&it, 1, 0));
    return it;
}

static handle new_event(int flags) {
    handle it;
    DO(cuEventCreate(&it, flags));
    return it;
}

static int launch(int kernel, handle in, void **arguments) {
    return cuLaunchKernel(kernels[kernel], 1, 1, 1, 256, 1, 1, 0, in, arguments, NULL);
}

static void change(handle in, address at, uint32_t factor, uint32_t term) {
    uint32_t count = 1;
    void *arguments[] = { &at, &count, &factor, &term };
    DO(launch(AFFINE, in, arguments));
}

static void change_late(handle in, address at, uint64_t nanos, uint32_t factor, uint32_t term) {
    void *arguments[] = { &at, &nanos, &factor, &term };
    DO(launch(LATE, in, arguments));
}

/* Changes a value on streams chosen at random. At each change of stream, the same event is recorded and awaited. */
static void *hops(void *seeded) {
    unsigned seed = (unsigned)(uintptr_t)seeded;
    uint32_t *host, expected = 1;
    uint64_t *mark;
    handle streams[3], event;
    address at;
    int last = 0;
    DO(cuCtxSetCurrent(context));
    event = new_event(2);
    for (int i = 0; i < 3; i++) streams[i] = new_stream();
    DO(cuMemAlloc_v2(&at, 4));
    DO(cuMemHostAlloc((void **)&host, 4, 3));
    DO(cuMemHostAlloc((void **)&mark, 8, 3));
    *host = 1;
    *mark = 0;
    DO(cuMemcpyHtoDAsync_v2(at, host, 4, streams[0]));
    for (int i = 0; i < 500; i++) {
        int next = rand_r(&seed) % 3;
        uint32_t term = (uint32_t)rand_r(&seed);
        if (next != last) {
            DO(cuEventRecord(event, streams[last]));
            DO(cuStreamWaitEvent(streams[next], event, 0));
        }
        if (rand_r(&seed) % 20) change(streams[next], at, 3, term);
        else change_late(streams[next], at, 50000, 3, term);
        expected = expected * 3 + term;
        last = next;
    }
    DO(cuMemcpyDtoHAsync_v2(host, at, 4, streams[last]));
    DO(cuStreamWriteValue64_v2(streams[last], (address)(uintptr_t)mark, 77, 0));
    while (__atomic_load_n(mark, __ATOMIC_ACQUIRE) != 77) usleep(100);
    HOLDS(*host == expected);
    for (int i = 0; i < 3; i++) {
        DO(cuStreamSynchronize(streams[i]));
        DO(cuStreamQuery(streams[i]));
        DO(cuStreamDestroy_v2(streams[i]));
    }
    DO(cuEventQuery(event));
    DO(cuEventDestroy_v2(event));
    DO(cuMemFree_v2(at));
    DO(cuMemFreeHost(host));
    DO(cuMemFreeHost(mark));
    return NULL;
}

static int allocate(void) {
    address at;
    int result = cuMemAlloc_v2(&at, 8);
    if (!result) DO(cuMemFree_v2(at));
    return result;
}

static void *allocate_in_mode(void *with) {
    int mode = (int)(uintptr_t)with;
    DO(cuCtxSetCurrent(context));
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    return (void *)(uintptr_t)allocate();
}

/* Returns the status of an allocation by another thread in the capture mode `mode`. */
static int elsewhere(int mode) {
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, allocate_in_mode, (void *)(uintptr_t)mode);
    pthread_join(thread, &result);
    return (int)(uintptr_t)result;
}

static void captures(void) {
    handle one = new_stream(), other = new_stream(), fork = new_event(2), joined = new_event(2), graph = NULL, launched;
    uint32_t value = 1, expected = 1, given = 0;
    address at;
    int status;
    DO(cuMemAlloc_v2(&at, 4));
    DO(cuMemcpyHtoDAsync_v2(at, &value, 4, one));
    IS(401, cuStreamEndCapture(one, &graph));

    /* A graph captured from two streams. */
    DO(cuStreamBeginCapture_v2(one, GLOBAL));
    DO(cuStreamIsCapturing(one, &status));
    HOLDS(status == 1);
    change(one, at, 3, 1);
    DO(cuEventRecord(fork, one));
    DO(cuStreamWaitEvent(other, fork, 0));
    change(other, at, 5, 1);
    DO(cuEventRecord(joined, other));
    DO(cuStreamWaitEvent(one, joined, 0));
    DO(elsewhere(RELAXED));
    change(one, at, 7, 1);
    DO(cuStreamEndCapture(one, &graph));
    DO(cuGraphInstantiateWithFlags(&launched, graph, 0));
    DO(cuGraphDestroy(graph));
    DO(cuMemcpyDtoHAsync_v2(&given, at, 4, one));
    HOLDS(given == 1);
    DO(cuGraphLaunch(launched, one));
    DO(cuGraphLaunch(launched, one));
    DO(cuGraphExecDestroy(launched));
    DO(cuMemcpyDtoHAsync_v2(&given, at, 4, one));
    for (int i = 0; i < 2; i++) expected = ((expected * 3 + 1) * 5 + 1) * 7 + 1;
    HOLDS(given == expected);

    /* Calls that some capture modes forbid: a forbidden call is refused and invalidates the capture. */
    DO(cuStreamBeginCapture_v2(one, GLOBAL));
    IS(900, elsewhere(GLOBAL));
    IS(901, cuStreamEndCapture(one, &graph));
    HOLDS(!graph);
    DO(cuStreamBeginCapture_v2(one, GLOBAL));
    DO(elsewhere(THREAD_LOCAL));
    DO(cuStreamEndCapture(one, &graph));
    DO(cuGraphDestroy(graph));
    DO(cuStreamBeginCapture_v2(one, THREAD_LOCAL));
    DO(elsewhere(GLOBAL));
    IS(900, allocate());
    IS(901, cuStreamEndCapture(one, &graph));
    DO(cuStreamBeginCapture_v2(one, RELAXED));
    DO(allocate());
    IS(900, cuStreamQuery(one));
    IS(901, cuStreamQuery(one));
    IS(901, cuEventRecord(fork, one));
    IS(901, cuStreamEndCapture(one, &graph));
    DO(cuStreamBeginCapture_v2(one, RELAXED));
    IS(900, cuCtxSynchronize());
    IS(901, cuStreamEndCapture(one, &graph));
    DO(cuStreamBeginCapture_v2(one, THREAD_LOCAL));
    DO(cuEventRecord(fork, one));
    DO(cuStreamWaitEvent(other, fork, 0));
    IS(903, cuStreamEndCapture(other, &graph));
    change(other, at, 1, 1);
    IS(904, cuStreamEndCapture(one, &graph));
    DO(cuStreamBeginCapture_v2(one, THREAD_LOCAL));
    DO(cuEventRecord(fork, one));
    IS(907, cuEventQuery(fork));
    IS(901, cuStreamEndCapture(one, &graph));
    DO(cuEventRecord(joined, other));
    DO(cuStreamBeginCapture_v2(one, THREAD_LOCAL));
    IS(905, cuStreamWaitEvent(one, joined, 0));
    IS(901, cuStreamEndCapture(one, &graph));

    /* A capture whose stream is destroyed. */
    DO(cuStreamBeginCapture_v2(one, RELAXED));
    change(one, at, 1, 1);
    DO(cuEventRecord(fork, one));
    DO(cuStreamWaitEvent(other, fork, 0));
    DO(cuStreamDestroy_v2(one));
    DO(cuStreamSynchronize(other));
    DO(cuStreamDestroy_v2(other));
    DO(cuEventDestroy_v2(fork));
    DO(cuEventDestroy_v2(joined));
    DO(cuMemFree_v2(at));
}

static void clocks_and_refusals(void) {
    enum { COUNT = 100 };
    handle in = new_stream(), first = new_event(0), second = new_event(0), absent;
    uint32_t count = COUNT, word = 9;
    uint64_t nanos = 20000000, words = 2 * COUNT, last, *host;
    address at;
    float millis;
    DO(cuMemAlloc_v2(&at, 8 * COUNT));
    DO(cuMemHostAlloc((void **)&host, 8 * COUNT, 3));
    DO(cuEventRecord(first, in));
    DO(launch(SAMPLE, in, (void *[]){ &at, &count }));
    DO(launch(SPIN, in, (void *[]){ &nanos }));
    DO(cuEventRecord(second, in));
    IS(600, cuEventQuery(second));
    IS(600, cuStreamQuery(in));
    DO(cuMemcpyDtoHAsync_v2(host, at, 8 * COUNT, in));
    DO(cuStreamSynchronize(in));
    for (int i = 1; i < COUNT; i++) HOLDS(host[i] > host[i - 1]);
    DO(cuEventElapsedTime_v2(&millis, first, second));
    HOLDS(millis >= 20 && millis < 10000);
    last = host[COUNT - 1];
    DO(launch(STAMP, in, (void *[]){ &at, &nanos }));
    DO(cuMemcpyDtoHAsync_v2(host, at, 8, in));
    DO(cuStreamSynchronize(in));
    HOLDS(host[0] >= last + 2 * nanos);
    DO(launch(FILL, in, (void *[]){ &at, &words, &word }));
    DO(cuMemcpyDtoHAsync_v2(host, at, 8 * COUNT, in));
    DO(cuStreamSynchronize(in));
    for (int i = 0; i < 2 * COUNT; i++) HOLDS(((uint32_t *)host)[i] == 9);
    IS(801, launch(UNKNOWN, in, NULL));
    IS(500, cuModuleGetFunction(&absent, module, "absent"));
    IS(2, cuMemAlloc_v2(&at, (size_t)1 << 40));
    DO(cuEventDestroy_v2(first));
    DO(cuEventDestroy_v2(second));
    DO(cuStreamDestroy_v2(in));
    DO(cuMemFree_v2(at));
    DO(cuMemFreeHost(host));
}

static void loss(void) {
    handle in = new_stream(), other = new_stream();
    uint64_t *mark;
    address at;
    DO(cuMemAlloc_v2(&at, 4));
    DO(cuMemHostAlloc((void **)&mark, 8, 3));
    *mark = 0;
    DO(launch(POISON, in, NULL));
    (void)cuStreamWriteValue64_v2(in, (address)(uintptr_t)mark, 5, 0);
    IS(700, cuStreamSynchronize(in));
    IS(700, cuStreamQuery(other));
    IS(700, cuMemsetD8Async(at, 0, 4, other));
    IS(700, cuMemFree_v2(at));
    HOLDS(__atomic_load_n(mark, __ATOMIC_ACQUIRE) == 0);
    IS(700, cuStreamDestroy_v2(in));
    IS(700, cuStreamDestroy_v2(other));
    IS(700, cuModuleUnload(module));
    DO(cuDevicePrimaryCtxRelease_v2(0));
}

/* Returns whether a process that unloads a module ends as it should. If `queued`, a kernel of the module is pending. */
static int unloads(int queued) {
    uint64_t nanos = 20000000;
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        handle in;
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        DO(cuInit(0));
        open_device();
        in = new_stream();
        /* The first kernel keeps the stream busy. */
        for (int i = 0; i < 2; i++) DO(launch(SPIN, in, (void *[]){ &nanos }));
        if (!queued) DO(cuStreamSynchronize(in));
        DO(cuModuleUnload(module));
        DO(cuStreamSynchronize(in));
        _exit(0);
    }
    HOLDS(child > 0 && waitpid(child, &status, 0) == child);
    return queued ? WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT : WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void) {
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    HOLDS(unloads(0));
    HOLDS(unloads(1));
    DO(cuInit(0));
    open_device();
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, hops, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    captures();
    clocks_and_refusals();
    loss();
    open_device();
    clocks_and_refusals();
    DO(cuModuleUnload(module));
    DO(cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}
