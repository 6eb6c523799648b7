/* One rank of four comes late and is reported; another time it does not come at all, and everybody names it.
 *
 * In a ring only the next rank waits for it directly; the others wait for each other and follow the chain. With real
 * threads, so that ThreadSanitizer sees kernels, proxies and watches at the words they share. Then the same with
 * kernels that store into each other's regions: nobody moves anything but they, and the watch has to see it all the
 * same.
 */
#define _GNU_SOURCE
#include "shm_one_mapping.h"
#include "world.h"
#include <sched.h>

#include <time.h>

#define WORLD 4u
#define LATE 2u
#define COUNT 100u

static void come_late(test_world *w, uint32_t rank) {
    static float in[WORLD][COUNT], out[WORLD][COUNT];
    rr_op op = world_op(w, rank);
    op.in = (uint64_t)(uintptr_t)in[rank], op.out = (uint64_t)(uintptr_t)out[rank];
    op.count = COUNT, op.dtype = RR_FLOAT32, op.mode = RR_MODE_RING, op.report_ns = 10000000, op.sleep_ns = 200000;
    op.deadline_ns += 20000000000ull; /* the proxy ends waits, not the kernel */
    rr_op_seal(&op);
    for (uint32_t i = 0; i < COUNT; i++) in[rank][i] = (float)(rank + i);
    if (rank == LATE) nanosleep(&(struct timespec){2, 500000000}, NULL);
    CHECK(rr_cpu_run(&op, 1, 2) == RR_CPU_OK, "rank %u: abort word %llx", rank,
          (unsigned long long)rr_proxy_abort_word(w->proxy[rank]));
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK(out[rank][i] == (float)(6 + 4 * i), "rank %u at %u: %g", rank, i, out[rank][i]);
    if (rank == LATE) return; /* and never comes again */
    CHECK(rr_cpu_run(&op, 1, 2) == RR_CPU_FAILED, "rank %u finished without rank %u", rank, LATE);
}

/* Reports are in the order of time: the first ones are of the first operation. */
static void check_events(rr_proxy *proxy, uint32_t rank) {
    static rr_event all[256];
    uint32_t n = 0, late = 0, resolved = 0, aborted = 0;
    /* The kernel leaves as soon as the abort word stands; the event follows at the end of the same look. */
    for (uint64_t began = rr_now_ns(); rr_now_ns() - began < 2000000000ull; sched_yield()) {
        n = rr_proxy_events(proxy, 0, all, 256);
        if (n && all[n - 1].kind == RR_EVENT_ABORT) break;
    }
    for (uint32_t i = 0; i < n; i++) {
        const rr_event *e = &all[i];
        if (e->kind == RR_EVENT_LATE) {
            late++;
            CHECK(e->root == LATE, "rank %u waits for %u and blames %u", rank, e->peer, e->root);
            CHECK(e->peer == (rank + WORLD - 1) % WORLD, "rank %u reports %u, which it does not wait for", rank,
                  e->peer);
        }
        resolved += e->kind == RR_EVENT_RESOLVED;
        aborted += e->kind == RR_EVENT_ABORT && e->peer == LATE;
    }
    if (rank != LATE)
        CHECK(late >= 2 && resolved >= 1 && aborted == 1, "rank %u: %u late, %u resolved, %u aborted", rank, late,
              resolved, aborted);
}

static void one_rank_comes_late(bool direct) {
    static test_world w;
    rr_provider_ops ops = shm_one_mapping();
    world_configure(&w, WORLD, COUNT * sizeof(float));
    w.direct = direct;
    for (uint32_t r = 0; r < WORLD; r++) w.config[r].late_ms = 1000, w.config[r].peer_timeout_ms = 4000;
    world_open(&w, &ops);
    world_run(&w, come_late);
    for (uint32_t r = 0; r < WORLD; r++) {
        /* The late rank runs nothing when the others give up: its proxy hears of it at its next look. */
        uint64_t word = 0, began = rr_now_ns();
        while (!(word = rr_proxy_abort_word(w.proxy[r])) && rr_now_ns() - began < 2000000000ull) sched_yield();
        CHECK(RR_ABORT_REASON(word) == RR_ERR_PEER_TIMEOUT && RR_ABORT_CULPRIT(word) == LATE && RR_ABORT_SEQ(word) == 2,
              "rank %u: abort word %llx", r, (unsigned long long)word);
        check_events(w.proxy[r], r);
    }
    world_close(&w);
}

int main(void) {
    one_rank_comes_late(false);
    one_rank_comes_late(true);
    return 0;
}
