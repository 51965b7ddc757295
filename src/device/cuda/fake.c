/* A library that stands in for the CUDA driver in tests: it has the functions that raddle calls, and executes them
 * immediately, on the CPU.
 *
 * Events, and marks that are written to memory, are the exceptions: the first query finds them not ready. Every
 * asynchronous call can be made to fail, once or permanently. Only one thread at a time may use the library.
 *
 * Environment: FAKE_INIT is what cuInit returns.  FAKE_DEVICES is the number of GPUs, 2 by default.  With FAKE_NARROW
 * set, streams cannot write 64 bits.  With FAKE_OLD set, the driver does not know the attribute for such writes. */

#include <stdlib.h>
#include <string.h>

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600,
    PEER_ACCESS_ALREADY_ENABLED = 704, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, ILLEGAL_STATE = 401
};

typedef unsigned long long address;
typedef struct { int retained; } context;
typedef struct { context *of; int priority, busy; address word; unsigned long long value; int recording; } stream;
typedef struct { context *of; stream *in; int asked; int recorded; } event;

static context contexts[8];
static __thread context *current;
static int live, waits, lost, fail_in, fail_code, fail_stays, capturing, broken, peers, stream_waits;
static int recorded_calls, peer_refusal;
static __thread int mode;
static size_t device_bytes;

/* Returns the number of live contexts, streams, events, executable graphs and pieces of memory. */
int fakeLive(void) { return live; }

/* Returns how often a stream was made to wait for another stream's event. */
int fakeWaits(void) { return waits; }

/* Makes one asynchronous call, after `skip` others, fail with `code`; if `stays` is set, all later calls fail too. */
void fakeFail(int skip, int code, int stays) { fail_in = skip + 1; fail_code = code; fail_stays = stays; }

/* Sets whether another thread is capturing a graph in the global mode. Calls that could disturb the capture are then
 * refused and invalidate it, except those of threads in the relaxed mode, 2. */
void fakeCapture(int on) { capturing = on; }

/* Returns how many calls have invalidated the capture. */
int fakeBroken(void) { return broken; }

/* Returns how often access to another device's memory was requested and not refused. */
int fakePeers(void) { return peers; }

/* Returns how often callers have waited for a stream. */
int fakeStreamWaits(void) { return stream_waits; }

/* Returns how many calls were captured into a graph instead of executed. */
int fakeRecorded(void) { return recorded_calls; }

/* Makes the next request for access to another device's memory fail with `code`. */
void fakeRefusePeer(int code) { peer_refusal = code; }

/* Returns the number of the calling thread's current context, or -1 if there is none. */
int fakeCurrent(void) { return current ? (int)(current - contexts) : -1; }

/* Returns the priority of a stream. */
int fakePriority(stream *of) { return of->priority; }

static int number_in(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }

static int call(void) {
    if (lost) return lost;
    if (fail_in && --fail_in == 0) {
        if (fail_stays) lost = fail_code;
        return fail_code;
    }
    return OK;
}

static int forbidden(void) {
    if (!capturing || mode == 2) return OK;
    broken++;
    return CAPTURE_UNSUPPORTED;
}

int cuThreadExchangeStreamCaptureMode(int *with) {
    int before = mode;
    if (!current) return INVALID_CONTEXT;
    if (*with < 0 || *with > 2) return INVALID_VALUE;
    mode = *with;
    *with = before;
    return OK;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : number_in("FAKE_INIT", OK); }

int cuDeviceGetCount(int *count) { *count = number_in("FAKE_DEVICES", 2); return OK; }
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal < number_in("FAKE_DEVICES", 2) ? OK : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, device ? "other fake" : "fake", size);
    return OK;
}
int cuDeviceGetPCIBusId(char *id, int size, int device) {
    if (size < 13) return INVALID_VALUE;
    strcpy(id, device ? "0000:0B:00.0" : "0000:0A:1F.3");
    return OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    if (attribute == 122 && getenv("FAKE_OLD")) return INVALID_VALUE;
    *value = attribute == 122 && !getenv("FAKE_NARROW");
    return OK;
}
int cuDevicePrimaryCtxRetain(context **it, int device) {
    *it = &contexts[device];
    (*it)->retained++;
    live++;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) { contexts[device].retained--; live--; return OK; }

int cuCtxGetCurrent(context **it) { *it = current; return OK; }
int cuCtxEnablePeerAccess(context *peer, unsigned flags) {
    if (!current || current == peer || !peer->retained) return INVALID_CONTEXT;
    if (flags) return INVALID_VALUE;
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    if (peer_refusal) {
        int code = peer_refusal;
        peer_refusal = 0;
        return code;
    }
    return peers++ ? PEER_ACCESS_ALREADY_ENABLED : OK;
}
int cuCtxSetCurrent(context *it) { current = it; return OK; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return current ? OK : INVALID_CONTEXT;
}

int cuStreamCreateWithPriority(stream **it, unsigned flags, int priority) {
    if (!current) return INVALID_CONTEXT;
    if (flags != 1) return INVALID_VALUE;
    *it = calloc(1, sizeof **it);
    (*it)->of = current;
    (*it)->priority = priority;
    live++;
    return OK;
}
int cuStreamDestroy_v2(stream *it) { free(it); live--; return lost; }
/* Returns whether a query of the stream, or a wait for it, must be refused because the stream is being captured into a
 * graph. If so, the call invalidates the capture. */
static int in_recording(stream *it) {
    if (it->recording) it->recording = 2;
    return it->recording;
}

/* Like `call`, for commands of a stream. Returns -1 if the command is captured and so not executed. */
static int command(stream *in) {
    int result = call();
    if (result == OK && in->recording) {
        recorded_calls++;
        return -1;
    }
    return result;
}

int cuStreamBeginCapture_v2(stream *it, int how) {
    if (it->recording || how < 0 || how > 2) return ILLEGAL_STATE;
    it->recording = 1;
    return OK;
}
int cuStreamIsCapturing(stream *it, int *status) { *status = it->recording; return lost; }
int cuStreamEndCapture(stream *it, void **graph) {
    int before = it->recording;
    if (!before) return ILLEGAL_STATE;
    it->recording = 0;
    *graph = NULL;
    if (before == 2) return CAPTURE_INVALIDATED;
    *graph = malloc(1);
    return OK;
}
int cuGraphDestroy(void *it) { free(it); return OK; }
int cuGraphInstantiateWithFlags(void **it, void *graph, unsigned long long flags) {
    if (!graph || flags) return INVALID_VALUE;
    *it = malloc(1);
    live++;
    return OK;
}
int cuGraphExecDestroy(void *it) { free(it); live--; return OK; }
int cuStreamSynchronize(stream *it) {
    if (forbidden() || in_recording(it)) return CAPTURE_UNSUPPORTED;
    stream_waits++;
    return lost;
}
int cuStreamQuery(stream *it) {
    if (forbidden() || in_recording(it)) return CAPTURE_UNSUPPORTED;
    if (call()) return lost ? lost : fail_code;
    if (it->busy) { it->busy = 0; return NOT_READY; }
    if (it->word) { *(unsigned long long *)it->word = it->value; it->word = 0; }
    return OK;
}
int cuStreamWaitEvent(stream *it, event *on, unsigned flags) {
    int result = flags || !on->recorded ? INVALID_VALUE : command(it);
    if (result == OK && on->in != it) waits++;
    return result < 0 ? OK : result;
}

#ifndef WITHOUT_WRITE_VALUE
int cuStreamWriteValue64_v2(stream *it, address at, unsigned long long value, unsigned flags) {
    int result = command(it);
    if (result) return result < 0 ? OK : result;
    if (flags) return INVALID_VALUE;
    it->word = at;
    it->value = value;
    it->busy = 1;
    return OK;
}
#endif

int cuEventCreate(event **it, unsigned flags) {
    if (!current) return INVALID_CONTEXT;
    if (flags != 2) return INVALID_VALUE;
    *it = calloc(1, sizeof **it);
    (*it)->of = current;
    live++;
    return OK;
}
int cuEventDestroy_v2(event *it) { free(it); live--; return lost; }
#ifndef WITHOUT_EVENT_QUERY
int cuEventQuery(event *it) { return forbidden() ? CAPTURE_UNSUPPORTED : lost ? lost : it->asked++ ? OK : NOT_READY; }
#endif
int cuEventRecord(event *it, stream *in) {
    int result = command(in);
    if (result) return result < 0 ? OK : result;
    if (it->of != in->of) return INVALID_CONTEXT;
    it->in = in;
    it->asked = 0;
    it->recorded = 1;
    return OK;
}

/* Device memory is limited to 1 MiB. The size of each piece is stored in front of it. */
int cuMemAlloc_v2(address *it, size_t bytes) {
    char *all;
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    if (!current) return INVALID_CONTEXT;
    if (lost) return lost;
    if (device_bytes + bytes > 1 << 20) return OUT_OF_MEMORY;
    if (!(all = aligned_alloc(256, 256 + (bytes + 255) / 256 * 256))) return OUT_OF_MEMORY;
    *(size_t *)all = bytes;
    device_bytes += bytes;
    live++;
    *it = (address)(all + 256);
    return OK;
}
int cuMemFree_v2(address it) {
    char *all = (char *)it - 256;
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    if (!current) return INVALID_CONTEXT;
    if (lost) return lost;
    device_bytes -= *(size_t *)all;
    free(all);
    live--;
    return OK;
}
int cuMemHostAlloc(void **it, size_t bytes, unsigned flags) {
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    if (!current) return INVALID_CONTEXT;
    if (lost) return lost;
    if (flags != 3) return INVALID_VALUE;
    if (!(*it = aligned_alloc(256, (bytes + 255) / 256 * 256))) return OUT_OF_MEMORY;
    memset(*it, 0x77, bytes);
    live++;
    return OK;
}
int cuMemFreeHost(void *it) {
    if (forbidden()) return CAPTURE_UNSUPPORTED;
    if (lost) return lost;
    free(it);
    live--;
    return OK;
}
int cuMemHostGetDevicePointer_v2(address *it, void *host, unsigned flags) {
    *it = (address)host;
    return flags ? INVALID_VALUE : OK;
}

static int copy(address to, address from, size_t bytes, stream *in) {
    int result = command(in);
    if (result) return result < 0 ? OK : result;
    if (current != in->of) return INVALID_CONTEXT;
    memmove((void *)to, (void *)from, bytes);
    return OK;
}
int cuMemcpyAsync(address to, address from, size_t bytes, stream *in) { return copy(to, from, bytes, in); }
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, stream *in) {
    return copy(to, (address)from, bytes, in);
}
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, stream *in) {
    return copy((address)to, from, bytes, in);
}
int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, stream *in) { return copy(to, from, bytes, in); }
int cuMemcpyPeerAsync(address to, context *of_to, address from, context *of_from, size_t bytes, stream *in) {
    if (of_to == of_from || !of_to->retained || !of_from->retained) return INVALID_CONTEXT;
    return copy(to, from, bytes, in);
}
