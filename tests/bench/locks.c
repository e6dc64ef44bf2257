/* Threads that append messages to one buffer, under one lock or another, or by a single writer without any.
 *
 * locks KIND K THREADS BODY_BYTES SECONDS prints: appends/s, CPU ns per append, p50 and p99.99 of an append in ns.
 * KIND: mutex; spin; backoff (K tries with a pause between them, then the mutex); adaptive (as backoff, or as mutex
 * where that is faster: it goes over to the mutex when tries fail, and back below 80 % of the rate at which it went
 * over); writer (a ring for each thread, and one thread that appends).
 *
 * The 8 bytes that stand for a checksum and the copy are the work that a log does under its lock.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { BUFFER = 1 << 26, RING = 1 << 10, LINE = 64, MOST_BODY = 4096, BUCKETS = 64 * 16, MOST_THREADS = 64 };

typedef struct {
    _Alignas(LINE) atomic_uint_fast64_t head; /* written by its thread */
    _Alignas(LINE) atomic_uint_fast64_t tail; /* written by the writer */
    char (*slots)[MOST_BODY];
} Ring;

typedef struct {
    _Alignas(LINE) uint64_t appends;
    uint64_t buckets[BUCKETS];
    int number;
} Worker;

static char *buffer;
static size_t end;
static uint64_t sum;
static size_t body_bytes;
static long tries;
static atomic_bool over;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_flag flag = ATOMIC_FLAG_INIT;
static _Alignas(LINE) atomic_bool blocks;       /* adaptive: it is a mutex now */
static _Alignas(LINE) atomic_uint_fast64_t failed; /* adaptive: tries that were used up */
static Ring *rings;

static uint64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + at.tv_nsec;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void append(const char *body)
{
    uint64_t word = 0;
    if (end + body_bytes + 8 > BUFFER)
        end = 0;
    for (size_t at = 0; at + 8 <= body_bytes; at += 8) {
        memcpy(&word, body + at, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
    }
    memcpy(buffer + end, &sum, 8);
    memcpy(buffer + end + 8, body, body_bytes);
    end += body_bytes + 8;
}

static inline void lock_mutex(void) { pthread_mutex_lock(&mutex); }
static inline void unlock_mutex(void) { pthread_mutex_unlock(&mutex); }

static inline void lock_spin(void)
{
    while (atomic_flag_test_and_set_explicit(&flag, memory_order_acquire))
        pause_cpu();
}
static inline void unlock_spin(void) { atomic_flag_clear_explicit(&flag, memory_order_release); }

static inline int try_for_a_while(void)
{
    for (long number = 0; number < tries; number++) {
        if (pthread_mutex_trylock(&mutex) == 0)
            return 1;
        for (long pauses = number & 63; pauses >= 0; pauses--)
            pause_cpu();
    }
    return 0;
}

static inline void lock_backoff(void)
{
    if (!try_for_a_while())
        pthread_mutex_lock(&mutex);
}

static inline void lock_adaptive(void)
{
    if (atomic_load_explicit(&blocks, memory_order_relaxed)) {
        pthread_mutex_lock(&mutex);
    } else if (!try_for_a_while()) {
        atomic_fetch_add_explicit(&failed, 1, memory_order_relaxed);
        pthread_mutex_lock(&mutex);
    }
}

static inline int bucket_of(uint64_t ns)
{
    if (ns < 16)
        return (int)ns;
    int log = 63 - __builtin_clzll(ns);
    return log * 16 + (int)((ns >> (log - 4)) & 15);
}

static inline uint64_t value_of(int bucket)
{
    if (bucket < 16)
        return (uint64_t)bucket;
    return ((uint64_t)16 + (bucket & 15)) << (bucket / 16 - 4);
}

#define WORK(name, lock, unlock)                                         \
    static void *name(void *argument)                                    \
    {                                                                    \
        Worker *worker = argument;                                       \
        char body[MOST_BODY];                                            \
        memset(body, worker->number, sizeof body);                       \
        while (!atomic_load_explicit(&over, memory_order_relaxed)) {     \
            uint64_t began = now_ns();                                   \
            lock();                                                      \
            append(body);                                                \
            unlock();                                                    \
            worker->buckets[bucket_of(now_ns() - began)]++;              \
            worker->appends++;                                           \
        }                                                                \
        return NULL;                                                     \
    }

WORK(work_mutex, lock_mutex, unlock_mutex)
WORK(work_spin, lock_spin, unlock_spin)
WORK(work_backoff, lock_backoff, unlock_mutex)
WORK(work_adaptive, lock_adaptive, unlock_mutex)

/* An append ends for its thread once the writer has it, as in the other kinds. */
static void *work_ring(void *argument)
{
    Worker *worker = argument;
    Ring *ring = &rings[worker->number];
    char body[MOST_BODY];
    uint64_t head = 0;
    memset(body, worker->number, sizeof body);
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        uint64_t began = now_ns();
        while (head - atomic_load_explicit(&ring->tail, memory_order_acquire) >= RING) {
            if (atomic_load_explicit(&over, memory_order_relaxed))
                return NULL;
            sched_yield();
        }
        memcpy(ring->slots[head % RING], body, body_bytes);
        atomic_store_explicit(&ring->head, ++head, memory_order_release);
        worker->buckets[bucket_of(now_ns() - began)]++;
        worker->appends++;
    }
    return NULL;
}

static void *write_all(void *argument)
{
    int threads = *(int *)argument;
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        int idle = 1;
        for (int number = 0; number < threads; number++) {
            Ring *ring = &rings[number];
            uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
            uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
            if (head == tail)
                continue;
            idle = 0;
            for (; tail < head; tail++)
                append(ring->slots[tail % RING]);
            atomic_store_explicit(&ring->tail, tail, memory_order_release);
        }
        if (idle)
            sched_yield();
    }
    return NULL;
}

static uint64_t total(const Worker *workers, int threads)
{
    uint64_t appends = 0;
    for (int number = 0; number < threads; number++)
        appends += workers[number].appends;
    return appends;
}

/* Which of the two the adaptive lock is, by what a tenth of a second has shown. */
static void adapt(const Worker *workers, int threads, double seconds)
{
    struct timespec tenth = {0, 100000000};
    uint64_t before = 0, went_over = 0;
    for (double passed = 0; passed < seconds; passed += 0.1) {
        nanosleep(&tenth, NULL);
        uint64_t now = total(workers, threads), rate = now - before;
        before = now;
        if (atomic_load(&blocks)) {
            if (rate < went_over * 8 / 10)
                atomic_store(&blocks, 0);
        } else if (atomic_exchange(&failed, 0) > rate / 1000) {
            went_over = rate;
            atomic_store(&blocks, 1);
        }
    }
}

int main(int count, char **words)
{
    if (count != 6) {
        fprintf(stderr, "locks KIND K THREADS BODY_BYTES SECONDS\n");
        return 2;
    }
    const char *kind = words[1];
    int threads = atoi(words[3]);
    double seconds = atof(words[5]);
    tries = atol(words[2]);
    body_bytes = (size_t)atol(words[4]);
    if (threads < 1 || threads > MOST_THREADS || body_bytes > MOST_BODY) {
        fprintf(stderr, "1 to %d threads, bodies of %d bytes at most\n", MOST_THREADS, MOST_BODY);
        return 2;
    }
    void *(*work)(void *) = !strcmp(kind, "mutex")      ? work_mutex
                            : !strcmp(kind, "spin")     ? work_spin
                            : !strcmp(kind, "backoff")  ? work_backoff
                            : !strcmp(kind, "adaptive") ? work_adaptive
                            : !strcmp(kind, "writer")   ? work_ring
                                                        : NULL;
    if (work == NULL) {
        fprintf(stderr, "%s: no such kind\n", kind);
        return 2;
    }
    buffer = malloc(BUFFER);
    memset(buffer, 0, BUFFER);
    Worker *workers = aligned_alloc(LINE, sizeof(Worker) * threads);
    memset(workers, 0, sizeof(Worker) * threads);
    rings = aligned_alloc(LINE, sizeof(Ring) * threads);
    memset(rings, 0, sizeof(Ring) * threads);
    pthread_t ids[MOST_THREADS], writer;
    int is_writer = work == work_ring;
    for (int number = 0; number < threads; number++) {
        workers[number].number = number;
        rings[number].slots = malloc((size_t)RING * MOST_BODY);
        memset(rings[number].slots, 0, (size_t)RING * MOST_BODY);
    }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    uint64_t began = now_ns();
    if (is_writer)
        pthread_create(&writer, NULL, write_all, &threads);
    for (int number = 0; number < threads; number++)
        pthread_create(&ids[number], NULL, work, &workers[number]);
    if (work == work_adaptive) {
        adapt(workers, threads, seconds);
    } else {
        struct timespec whole = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        nanosleep(&whole, NULL);
    }
    atomic_store(&over, 1);
    for (int number = 0; number < threads; number++)
        pthread_join(ids[number], NULL);
    if (is_writer)
        pthread_join(writer, NULL);
    double passed = (now_ns() - began) / 1e9;
    getrusage(RUSAGE_SELF, &after);
    double cpu = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) + (after.ru_stime.tv_sec - before.ru_stime.tv_sec)
                 + (after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6
                 + (after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    uint64_t appends = total(workers, threads), seen = 0, median = 0, most = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        for (int number = 0; number < threads; number++)
            seen += workers[number].buckets[bucket];
        if (!median && seen * 2 >= appends)
            median = value_of(bucket);
        if (seen * 10000 >= appends * 9999) {
            most = value_of(bucket);
            break;
        }
    }
    printf("%.0f %.1f %llu %llu\n", appends / passed, cpu * 1e9 / (appends ? appends : 1), (unsigned long long)median,
           (unsigned long long)most);
    return 0;
}
