/*
 * A pipeline of three stages in C: each chunk is read, scaled and summed. Chunks pass through the stages at the same time,
 * and the token of each orders its stages. A thread of the program reads, and completes operations for the engine. One
 * chunk cannot be read: its later stages are skipped, and the wait for it returns the failure.
 *
 *     cargo xtask capi /tmp/raddle
 *     cc -o pipeline examples/c/pipeline.c -I/tmp/raddle/include /tmp/raddle/lib/libraddle.a -lpthread -lm -ldl
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "raddle.h"

enum { CHUNKS = 16, LENGTH = 1000, UNREADABLE = 5, EIO_CODE = 5 };
static const int64_t SECOND = 1000000000;

static void check(raddle_status status, const char *what)
{
    if (status != RADDLE_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", what, raddle_last_message());
        exit(EXIT_FAILURE);
    }
}

/* A chunk. Its token orders the operations that use it, so none of them needs a lock. */
struct chunk {
    int number;
    raddle_token token;
    double values[LENGTH];
    double sum;
};

/* What the reading thread is asked for, in order. This queue is the program's own, and has a lock of its own. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct { struct chunk *chunk; raddle_completion completion; } requests[CHUNKS];
    int begun, ended;
} reader = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* The first stage begins a read and returns. The operation ends when the reading thread uses its completion. */
static int32_t begin_read(void *data, raddle_context *context)
{
    pthread_mutex_lock(&reader.lock);
    reader.requests[reader.begun].chunk = data;
    reader.requests[reader.begun].completion = raddle_context_completion(context);
    reader.begun++;
    pthread_cond_signal(&reader.changed);
    pthread_mutex_unlock(&reader.lock);
    return 0;
}

static void *read_chunks(void *unused)
{
    (void)unused;
    for (int i = 0; i < CHUNKS; i++) {
        pthread_mutex_lock(&reader.lock);
        while (reader.ended == reader.begun)
            pthread_cond_wait(&reader.changed, &reader.lock);
        struct chunk *chunk = reader.requests[reader.ended].chunk;
        raddle_completion completion = reader.requests[reader.ended].completion;
        reader.ended++;
        pthread_mutex_unlock(&reader.lock);
        if (chunk->number == UNREADABLE) {
            int *sector = malloc(sizeof *sector); /* freed with the failure */
            if (sector != NULL)
                *sector = 1234;
            check(raddle_completion_fail(completion, EIO_CODE, "the disk has a bad sector", sector, free), "fail");
            continue;
        }
        for (int j = 0; j < LENGTH; j++)
            chunk->values[j] = chunk->number;
        check(raddle_completion_complete(completion), "complete");
    }
    return NULL;
}

static int32_t scale(void *data, raddle_context *context)
{
    (void)context;
    struct chunk *chunk = data;
    for (int j = 0; j < LENGTH; j++)
        chunk->values[j] *= 2;
    return 0;
}

static int32_t add_up(void *data, raddle_context *context)
{
    (void)context;
    struct chunk *chunk = data;
    chunk->sum = 0;
    for (int j = 0; j < LENGTH; j++)
        chunk->sum += chunk->values[j];
    return 0;
}

/* Called when all chunks are through, on whatever thread finds out. */
static void finished(void *data, raddle_status status, raddle_failure failure)
{
    (void)failure;
    pthread_mutex_lock(&reader.lock);
    *(raddle_status *)data = status;
    pthread_cond_signal(&reader.changed);
    pthread_mutex_unlock(&reader.lock);
}

int main(void)
{
    raddle_engine engine;
    raddle_options options = {.size = sizeof options, .workers = 2, .pin = RADDLE_CHOICE_NO};
    check(raddle_engine_new(&options, &engine), "build");

    raddle_name reads, scales, adds;
    check(raddle_intern("read", &reads), "intern");
    check(raddle_intern("scale", &scales), "intern");
    check(raddle_intern("sum", &adds), "intern");

    pthread_t thread;
    if (pthread_create(&thread, NULL, read_chunks, NULL) != 0)
        return EXIT_FAILURE;

    static struct chunk chunks[CHUNKS];
    for (int i = 0; i < CHUNKS; i++) {
        struct chunk *chunk = &chunks[i];
        chunk->number = i;
        check(raddle_token_new(engine, (raddle_name){0}, &chunk->token), "token");
        check(raddle_push(engine, RADDLE_OP(.name = reads, .function = begin_read, .data = chunk, .flags = RADDLE_FLAGS_ASYNC,
                                            .writes = &chunk->token, .write_count = 1)), "push");
        check(raddle_push(engine, RADDLE_OP(.name = scales, .function = scale, .data = chunk,
                                            .writes = &chunk->token, .write_count = 1)), "push");
        check(raddle_push(engine, RADDLE_OP(.name = adds, .function = add_up, .data = chunk,
                                            .writes = &chunk->token, .write_count = 1)), "push");
    }

    double total = 0;
    int failures = 0;
    for (int i = 0; i < CHUNKS; i++) {
        raddle_failure failure;
        raddle_status status = raddle_wait(engine, chunks[i].token, RADDLE_MODE_WRITERS, 60 * SECOND, &failure);
        if (status == RADDLE_STATUS_FAILED && raddle_failure_code(failure) == EIO_CODE) {
            const int *sector = raddle_failure_payload(failure);
            printf("chunk %d: %s, sector %d\n", i, raddle_failure_message(failure), sector ? *sector : -1);
            raddle_failure_free(&failure);
            failures++;
            continue;
        }
        check(status, "wait");
        total += chunks[i].sum;
    }
    pthread_join(thread, NULL);

    raddle_status end = RADDLE_STATUS_TIMED_OUT;
    check(raddle_wait_all_then(engine, finished, &end), "wait for all");
    pthread_mutex_lock(&reader.lock);
    while (end == RADDLE_STATUS_TIMED_OUT)
        pthread_cond_wait(&reader.changed, &reader.lock);
    pthread_mutex_unlock(&reader.lock);
    check(end, "wait for all"); /* the failure was reported, so it is not reported again */

    raddle_stats stats = {.size = sizeof stats};
    check(raddle_engine_stats(engine, &stats, NULL), "stats");
    printf("the sum is %.0f; %d chunk failed; pending: %" PRIu64 "\n", total, failures, stats.pending);
    for (int i = 0; i < CHUNKS; i++)
        check(raddle_token_free(&chunks[i].token), "free a token");
    check(raddle_engine_free(&engine), "free the engine");

    const double expected = 2.0 * LENGTH * (CHUNKS * (CHUNKS - 1) / 2 - UNREADABLE);
    return total == expected && failures == 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
