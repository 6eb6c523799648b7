/* What every native test needs: a check that says where and why, a seeded generator, and a session's configuration. */
#ifndef RR_TESTING_H
#define RR_TESTING_H

#include <roce_ring/proxy.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

/* _exit, not exit: other threads of a failed test may be in any state. */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);                                    \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            fflush(NULL);                                                                                              \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Emulated CPUs are ten times slower: tests/run_tiers.py sets this there. */
static inline int quick(void) { return getenv("RR_QUICK") != NULL; }

/* splitmix64: every seed is good, the state is one word. */
static inline uint64_t rng_next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}
static inline uint32_t rng_below(uint64_t *state, uint32_t bound) { return (uint32_t)(rng_next(state) % bound); }

static inline rr_config test_config(uint32_t world, uint32_t rank, uint64_t capacity) {
    static uint64_t
        sessions; /* one thread makes the configurations of a world, with the same `world` calls each time */
    rr_config c;
    memset(&c, 0, sizeof c);
    c.struct_bytes = sizeof c;
    c.world = world;
    c.rank = rank;
    c.provider = RR_PROVIDER_SHM;
    if (rank == 0) sessions++;
    c.session[0] = sessions;
    c.session[1] = (uint64_t)getpid();
    c.slot_bytes = rr_slot_bytes(capacity);
    c.stripe_min_bytes = 1024;
    c.late_ms = 20000;
    c.peer_timeout_ms = 120000;
    c.idle_spins = 256;
    c.nap_us = 20;
    c.yield = 1;
    c.doorbell = 1;
    c.cpu = -1;
    for (uint32_t p = 0; p < world; p++) {
        c.order[p] = (uint8_t)p;
        c.paths[p] = 1;
        for (uint32_t path = 0; path < RR_MAX_PATHS; path++) c.hops[p][path] = 1;
    }
    return c;
}

#endif
