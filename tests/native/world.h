/* All ranks of a session in one process: real proxies with their threads, and one thread per rank that plays the
 * engine. */
#ifndef RR_WORLD_H
#define RR_WORLD_H

#include "cpu.h"
#include "provider.h"
#include "testing.h"

#include <pthread.h>

typedef struct test_world {
    uint32_t size;
    bool direct; /* kernels store into each other's regions, proxies only watch */
    rr_config config[RR_MAX_WORLD];
    rr_proxy *proxy[RR_MAX_WORLD];
    rr_device_state state[RR_MAX_WORLD];
    void (*body)(struct test_world *w, uint32_t rank);
    void *data; /* the test's own */
} test_world;

/* `w->config` may be changed between these two. */
static inline void world_configure(test_world *w, uint32_t size, uint64_t capacity) {
    memset(w, 0, sizeof *w);
    w->size = size;
    for (uint32_t r = 0; r < size; r++) w->config[r] = test_config(size, r, capacity);
}

static inline void world_open(test_world *w, const rr_provider_ops *ops) {
    char why[512] = "";
    rr_hello hello[RR_MAX_WORLD];
    for (uint32_t r = 0; r < w->size; r++) {
        w->proxy[r] = rr_proxy_create_with(&w->config[r], ops, why, sizeof why);
        CHECK(w->proxy[r], "rank %u: %s", r, why);
        rr_proxy_hello(w->proxy[r], &hello[r]);
        w->state[r].seq = w->config[r].first_seq;
    }
    for (uint32_t r = 0; r < w->size; r++)
        CHECK(!rr_proxy_connect(w->proxy[r], hello, why, sizeof why), "rank %u: %s", r, why);
    for (uint32_t r = 0; r < w->size; r++) CHECK(!rr_proxy_start(w->proxy[r], why, sizeof why), "rank %u: %s", r, why);
}

static inline void world_close(test_world *w) {
    for (uint32_t r = 0; r < w->size; r++)
        CHECK(!rr_proxy_stop(w->proxy[r], 5000), "rank %u has unfinished writes; abort word %llx", r,
              (unsigned long long)rr_proxy_abort_word(w->proxy[r]));
    for (uint32_t r = 0; r < w->size; r++) rr_proxy_destroy(w->proxy[r]);
}

/* An op with everything filled in but what is to be computed. */
static inline rr_op world_op(test_world *w, uint32_t rank) {
    rr_op op;
    memset(&op, 0, sizeof op);
    const rr_config *c = &w->config[rank];
    op.region = (uint64_t)(uintptr_t)rr_proxy_region(w->proxy[rank]);
    op.state = (uint64_t)(uintptr_t)&w->state[rank];
    rr_proxy_layout(w->proxy[rank], &op.layout);
    op.rows = 1;
    op.deadline_ns = c->peer_timeout_ms * 1000000ull;
    op.report_ns = 50000000;
    op.sleep_ns = 2000000;
    op.world = w->size;
    op.rank = rank;
    op.kind = RR_ALL_REDUCE;
    op.stripe_min_bytes = c->stripe_min_bytes;
    for (uint32_t p = 0; w->direct && p < w->size; p++)
        op.data[p] = p == rank ? op.region : (uint64_t)(uintptr_t)rr_proxy_peer_region(w->proxy[rank], p);
    memcpy(op.order, c->order, sizeof op.order);
    memcpy(op.paths, c->paths, sizeof op.paths);
    return op;
}

typedef struct world_seat {
    test_world *w;
    uint32_t rank;
} world_seat;

static inline void *world_sit(void *arg) {
    world_seat *seat = (world_seat *)arg;
    seat->w->body(seat->w, seat->rank);
    return NULL;
}

/* Runs body(w, rank) on a thread per rank, to the end of all. */
static inline void world_run(test_world *w, void (*body)(test_world *w, uint32_t rank)) {
    pthread_t threads[RR_MAX_WORLD];
    world_seat seats[RR_MAX_WORLD];
    w->body = body;
    for (uint32_t r = 0; r < w->size; r++) {
        seats[r] = (world_seat){w, r};
        CHECK(!pthread_create(&threads[r], NULL, world_sit, &seats[r]), "thread %u", r);
    }
    for (uint32_t r = 0; r < w->size; r++) pthread_join(threads[r], NULL);
}

#endif
