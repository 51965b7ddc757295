/* A library that takes the place of cuBLAS in programs that run on the stand-in for the CUDA driver. It has the
 * functions that `examples/train` needs. A product is computed by the processor, in a host function of the stream, and
 * thus in stream order. As in cuBLAS, matrices are in column-major order.
 *
 *     cc -shared -fPIC -O1 -Wall -Wextra -Werror -o DIR/libcublas.so tests/stand_in/cublas.c -LSTAND_IN -l:libcuda.so.1
 *
 * STAND_IN is the folder of the driver's stand-in. LD_LIBRARY_PATH must contain both folders. Mistakes that cuBLAS
 * might not report end the process with a message: the use of a handle that is destroyed, belongs to another context,
 * or is in use on another thread.
 *
 * STAND_IN_CUBLAS_FAULT: the function whose first call fails (`create`, `stream` or `gemm`). */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };
enum { NORMAL = 0, TRANSPOSED = 1, CONJUGATED = 2 };

int cuCtxGetCurrent(void **);
int cuCtxSynchronize(void);
int cuLaunchHostFunc(void *, void (*)(void *), void *);

/* Handles are never freed, so that the use of a destroyed one can be reported. */
typedef struct { void *context, *stream; int destroyed, users; } handle;

typedef struct { const float *values; int stride, transposed; } matrix;
typedef struct { matrix a, b; float *c; int stride, rows, columns, inner; float alpha, beta; } product;

static void wrong(const char *what) {
    fprintf(stderr, "stand-in for cuBLAS: %s\n", what);
    abort();
}

/* Returns whether a call of `function` is to fail: the first call of the function named by STAND_IN_CUBLAS_FAULT. */
static int fails(const char *function) {
    static int has_failed;
    const char *name = getenv("STAND_IN_CUBLAS_FAULT");
    return name && !strcmp(name, function) && !__atomic_exchange_n(&has_failed, 1, __ATOMIC_RELAXED);
}

static void begin(handle *it) {
    void *context = NULL;
    if (it->destroyed) wrong("a handle is used after it was destroyed");
    if (__atomic_fetch_add(&it->users, 1, __ATOMIC_ACQUIRE)) wrong("two threads use a handle at once");
    if (cuCtxGetCurrent(&context) || context != it->context) wrong("a handle is used in another context");
}

static int end(handle *it, int result) {
    __atomic_fetch_sub(&it->users, 1, __ATOMIC_RELEASE);
    return result;
}

int cublasCreate_v2(handle **it) {
    void *context = NULL;
    if (fails("create")) return ALLOC_FAILED;
    if (cuCtxGetCurrent(&context) || !context) return NOT_INITIALIZED;
    if (!(*it = calloc(1, sizeof **it))) return ALLOC_FAILED;
    (*it)->context = context;
    return SUCCESS;
}

int cublasDestroy_v2(handle *it) {
    if (!it) return NOT_INITIALIZED;
    begin(it);
    it->destroyed = 1;
    return end(it, cuCtxSynchronize() ? EXECUTION_FAILED : SUCCESS);
}

int cublasSetStream_v2(handle *it, void *stream) {
    if (!it) return NOT_INITIALIZED;
    begin(it);
    if (fails("stream")) return end(it, NOT_INITIALIZED);
    it->stream = stream;
    return end(it, SUCCESS);
}

static float at(const matrix *of, int row, int column) {
    size_t major = (size_t)(of->transposed ? row : column), minor = (size_t)(of->transposed ? column : row);
    return of->values[major * (size_t)of->stride + minor];
}

static void compute(void *with) {
    product *it = with;
    for (int column = 0; column < it->columns; column++) {
        for (int row = 0; row < it->rows; row++) {
            float *to = it->c + (size_t)column * (size_t)it->stride + row, sum = 0;
            for (int i = 0; i < it->inner; i++) sum += at(&it->a, row, i) * at(&it->b, i, column);
            /* If `beta` is 0, the old values are not read: they may be anything. */
            *to = it->beta == 0 ? it->alpha * sum : it->alpha * sum + it->beta * *to;
        }
    }
    free(it);
}

/* The number of values in a column, as stored, must not exceed the distance between two columns. */
static int fits(int transposed, int rows, int columns, int stride) {
    int stored = transposed ? columns : rows;
    return stride >= (stored > 1 ? stored : 1);
}

int cublasSgemm_v2(handle *in, int of_a, int of_b, int rows, int columns, int inner, const float *alpha, const float *a,
                   int stride_of_a, const float *b, int stride_of_b, const float *beta, float *c, int stride) {
    if (!in) return NOT_INITIALIZED;
    begin(in);
    int wrong_sizes = rows < 0 || columns < 0 || inner < 0 || !fits(of_a, rows, inner, stride_of_a)
        || !fits(of_b, inner, columns, stride_of_b) || !fits(NORMAL, rows, columns, stride);
    if (wrong_sizes || of_a < NORMAL || of_a > CONJUGATED || of_b < NORMAL || of_b > CONJUGATED || !alpha || !beta)
        return end(in, INVALID_VALUE);
    if (fails("gemm")) return end(in, EXECUTION_FAILED);
    if (!rows || !columns) return end(in, SUCCESS);
    product *it = malloc(sizeof *it);
    if (!it) return end(in, ALLOC_FAILED);
    *it = (product){ { a, stride_of_a, of_a != NORMAL }, { b, stride_of_b, of_b != NORMAL }, c, stride, rows, columns,
                     inner, *alpha, *beta };
    if (cuLaunchHostFunc(in->stream, compute, it)) {
        free(it);
        return end(in, EXECUTION_FAILED);
    }
    return end(in, SUCCESS);
}
