/* A kernel that cannot go on says why, leaves through all its barriers, and a later launch does no harm.
 *
 * One rank alone, without a proxy thread: flags are set by hand, so that a wait ends in every way it can. Each on
 * several grids, because all blocks have to leave together.
 */
#include "cpu.h"
#include "scripted.h"

#include <signal.h>
#include <time.h>

#define WORLD 3u
#define COUNT 3000u

static rr_proxy *proxy;
static rr_device_state state;
static float in[COUNT], out[COUNT];
static const uint32_t grids[][2] = {{1, 1}, {1, 3}, {3, 1}, {2, 2}};

static rr_op open_rank(uint64_t first_seq) {
    rr_config c = test_config(WORLD, 1, COUNT * sizeof(float));
    for (uint32_t p = 0; p < WORLD; p++) c.paths[p] = 2;
    proxy = script_proxy(&c);
    memset(&state, 0, sizeof state);
    state.seq = first_seq;
    for (uint32_t i = 0; i < COUNT; i++) in[i] = (float)i;
    rr_op op;
    memset(&op, 0, sizeof op);
    op.in = (uint64_t)(uintptr_t)in, op.out = (uint64_t)(uintptr_t)out, op.count = COUNT, op.rows = 1;
    op.region = (uint64_t)(uintptr_t)proxy->base, op.state = (uint64_t)(uintptr_t)&state, op.layout = proxy->layout;
    op.deadline_ns = 5000000000ull, op.report_ns = 1000000, op.sleep_ns = 100000;
    op.world = WORLD, op.rank = 1, op.kind = RR_ALL_REDUCE, op.mode = RR_MODE_FULL, op.dtype = RR_FLOAT32;
    op.stripe_min_bytes = c.stripe_min_bytes;
    memcpy(op.order, c.order, sizeof op.order);
    memcpy(op.paths, c.paths, sizeof op.paths);
    rr_op_seal(&op);
    return op;
}

static void set_flag(const rr_op *op, uint32_t src, uint32_t path, uint64_t value) {
    uint32_t slot = (uint32_t)((state.seq + 1) % RR_SLOTS);
    rr_store_release(
        (uint64_t *)(proxy->base + rr_flag_offset(op->layout.flags, (uint32_t)op->layout.phases, src, slot, 0, path)),
        value);
}

static uint64_t fault(void) { return rr_load_acquire(&rr_kernel_line_of(proxy)->fault); }

/* After a failure no count that a later launch goes on from has moved. */
static void check_left_clean(uint64_t seq) {
    CHECK(state.seq == seq && state.commands == 0 && state.rounds == 0 && state.publishes == 0 && state.failed == 1,
          "seq %llu commands %llu rounds %llu publishes %llu failed %llu", (unsigned long long)state.seq,
          (unsigned long long)state.commands, (unsigned long long)state.rounds, (unsigned long long)state.publishes,
          (unsigned long long)state.failed);
    for (uint32_t i = 0; i < WORLD * RR_MAX_PATHS; i++)
        CHECK(!((rr_wait_line *)(proxy->base + proxy->layout.waits))[i].word, "wait word %u still stands", i);
    CHECK(!rr_kernel_line_of(proxy)->sleeping, "still says it sleeps");
}

static void a_wait_is_bounded_and_names_what_it_waited_for(uint32_t blocks, uint32_t threads) {
    rr_op op = open_rank((1ull << 32) - 1);
    op.deadline_ns = 60000000;
    set_flag(&op, 0, 0, RR_FLAG_VALUE(state.seq + 1, op.digest)); /* all came but the second path of rank 2 */
    set_flag(&op, 0, 1, RR_FLAG_VALUE(state.seq + 1, op.digest));
    set_flag(&op, 2, 0, RR_FLAG_VALUE(state.seq + 1, op.digest));
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "it did not fail");
    CHECK(fault() == RR_ABORT_WORD(RR_ERR_PEER_TIMEOUT, 2, 0, 1, 1ull << 32), "fault word %llx",
          (unsigned long long)fault());
    check_left_clean((1ull << 32) - 1);
    rr_proxy_destroy(proxy);
}

static void the_abort_word_ends_a_wait(uint32_t blocks, uint32_t threads) {
    rr_op op = open_rank(0);
    rr_proxy_abort(proxy, RR_ERR_ABORTED_BY_USER, RR_NOBODY);
    uint64_t began = rr_now_ns();
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "it did not fail");
    CHECK(rr_now_ns() - began < op.deadline_ns, "it waited for the deadline");
    CHECK(!fault(), "an abort is not this kernel's fault: %llx", (unsigned long long)fault());
    CHECK(!rr_engine_step(proxy) && proxy->stats.writes_posted == 0, "an aborted session moved bytes");
    check_left_clean(0);
    rr_proxy_destroy(proxy);
}

static void a_flag_of_another_operation_is_no_arrival(uint32_t blocks, uint32_t threads) {
    for (uint32_t ahead = 0; ahead < 2; ahead++) {
        rr_op op = open_rank((1ull << 31) - 1);
        op.deadline_ns = 60000000; /* for the other threads: no proxy turns the fault into an abort word here */
        set_flag(&op, 0, 0, RR_FLAG_VALUE(state.seq + 1 + 2 * ahead, ahead ? op.digest : op.digest ^ 0x8000));
        CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "it did not fail");
        /* Both names are in it: the sender's, and this rank's in place of the path. */
        CHECK(fault() == RR_ABORT_WORD(ahead ? RR_ERR_PROTOCOL : RR_ERR_OP_MISMATCH, 0, 0, 1, 1ull << 31),
              "fault word %llx", (unsigned long long)fault());
        check_left_clean((1ull << 31) - 1);
        rr_proxy_destroy(proxy);
    }
}

/* The failed operation's payload may still be on its way to peers that have not failed: a later launch of the same
 * session must not stage over it, or they would get the wrong bytes with the right flag. */
static void a_launch_after_a_failure_touches_nothing(uint32_t blocks, uint32_t threads) {
    rr_op op = open_rank(0);
    op.deadline_ns = 30000000;
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "it did not fail");
    uint64_t send_bytes = RR_SLOTS * 2 * op.layout.slot_bytes;
    uint8_t *before = malloc(send_bytes);
    rr_command ring[4];
    memcpy(before, proxy->base + op.layout.send, send_bytes);
    memcpy(ring, proxy->base + op.layout.commands, sizeof ring);
    for (uint32_t i = 0; i < COUNT; i++) in[i] = -1;
    for (uint32_t src = 0; src < WORLD; src += 2) /* the late flags come after all */
        for (uint32_t path = 0; path < 2; path++) set_flag(&op, src, path, RR_FLAG_VALUE(1, op.digest));
    for (uint32_t mode = RR_MODE_FULL; mode <= RR_MODE_RING_BIDIR; mode++) {
        op.mode = mode;
        CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "mode %u: a session that failed works again", mode);
    }
    op.kind = RR_REDUCE_SCATTER, op.count = COUNT / WORLD;
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "reduce-scatter: a session that failed works again");
    op.kind = RR_ALL_GATHER;
    for (uint32_t p = 0; p < WORLD; p++) op.width[p] = 1000;
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "all-gather: a session that failed works again");
    CHECK(!memcmp(before, proxy->base + op.layout.send, send_bytes),
          "a payload that may be on the wire was overwritten");
    CHECK(!memcmp(ring, proxy->base + op.layout.commands, sizeof ring), "a failed session published");
    CHECK(rr_kernel_line_of(proxy)->seq_started == rr_kernel_line_of(proxy)->seq_done,
          "the watch would take this kernel for stuck");
    check_left_clean(0);
    free(before);
    rr_proxy_destroy(proxy);
}

/* Without a proxy a later launch must not even touch a peer's memory: by then the peer may have given it back. */
static void a_direct_launch_after_a_failure_touches_no_peer(uint32_t blocks, uint32_t threads) {
    rr_op op = open_rank(0);
    op.deadline_ns = 30000000;
    uint8_t *peer = calloc(1, op.layout.region_bytes), *before = malloc(op.layout.region_bytes);
    CHECK(peer && before, "out of memory");
    for (uint32_t p = 0; p < WORLD; p++) op.data[p] = p == op.rank ? op.region : (uint64_t)(uintptr_t)peer;
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "it did not fail");
    CHECK(RR_ABORT_REASON(fault()) == RR_ERR_PEER_TIMEOUT && RR_ABORT_PATH(fault()) == 0, "fault word %llx",
          (unsigned long long)fault());
    check_left_clean(0);
    memcpy(before, peer, op.layout.region_bytes);
    for (uint32_t i = 0; i < COUNT; i++) in[i] = -1;
    for (uint32_t mode = RR_MODE_FULL; mode <= RR_MODE_BULK_PULL; mode++) {
        if (mode == RR_MODE_HALVING) continue; /* not in a world of three */
        op.mode = mode;
        CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "mode %u: a session that failed works again", mode);
    }
    CHECK(!memcmp(before, peer, op.layout.region_bytes), "a failed session stored into a peer's memory");
    free(peer);
    free(before);
    rr_proxy_destroy(proxy);
}

/* The proxy may nap: a kernel that published looks, and wakes it. Without a lent thread, or the proxy having been
 * quicker. */
static void publishing_rings_a_proxy_that_naps(uint32_t blocks, uint32_t threads) {
    rr_op op = open_rank(0);
    for (uint32_t src = 0; src < WORLD; src += 2)
        for (uint32_t path = 0; path < 2; path++) set_flag(&op, src, path, RR_FLAG_VALUE(1, op.digest));
    rr_store_napping(&rr_progress_of(proxy)->napping, 1);
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_OK, "fault word %llx", (unsigned long long)fault());
    CHECK(rr_progress_of(proxy)->napping == 0, "the proxy was left asleep");
    CHECK(rr_engine_step(proxy) && rr_progress_of(proxy)->consumed == 1, "no command");
    rr_proxy_destroy(proxy);
}

static uint32_t interrupts;
static void count_interrupt(int number) { __atomic_fetch_add(&interrupts, number == SIGINT, __ATOMIC_RELAXED); }

/* The rest of the process: somebody presses Ctrl-C once the wait is long, and the proxy turns the fault into the abort
 * word. */
static void *press_ctrl_c(void *unused) {
    struct sigaction now = {0};
    for (int i = 0; i < 10000 && !(now.sa_flags & SA_SIGINFO);
         i++) { /* the kernel's handler, once it has waited long */
        nanosleep(&(struct timespec){0, 5000000}, NULL);
        sigaction(SIGINT, NULL, &now);
    }
    for (int i = 0; i < 1000 && !fault(); i++) {
        if (!__atomic_load_n(&interrupts, __ATOMIC_RELAXED)) kill(getpid(), SIGINT);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    rr_watch_abort(proxy, fault());
    return unused;
}

static void ctrl_c_ends_a_long_wait(uint32_t blocks, uint32_t threads) {
    rr_op op = open_rank(0);
    pthread_t helper;
    struct sigaction now, mine = {.sa_handler = count_interrupt};
    op.deadline_ns = 60000000000ull;
    interrupts = 0;
    sigaction(SIGINT, &mine, NULL);
    CHECK(!pthread_create(&helper, NULL, press_ctrl_c, NULL), "no thread");
    CHECK(rr_cpu_run(&op, blocks, threads) == RR_CPU_FAILED, "it did not fail");
    pthread_join(helper, NULL);
    CHECK(RR_ABORT_REASON(fault()) == RR_ERR_INTERRUPTED && RR_ABORT_CULPRIT(fault()) == 1, "fault word %llx",
          (unsigned long long)fault());
    CHECK(interrupts == 1, "the process's own handler ran %u times", interrupts);
    CHECK(!sigaction(SIGINT, NULL, &now) && now.sa_handler == count_interrupt, "the process's own handler is gone");
    rr_proxy_destroy(proxy);
}

int main(void) {
    for (uint32_t g = 0; g < sizeof grids / sizeof grids[0]; g++) {
        uint32_t blocks = grids[g][0], threads = grids[g][1];
        a_wait_is_bounded_and_names_what_it_waited_for(blocks, threads);
        the_abort_word_ends_a_wait(blocks, threads);
        a_flag_of_another_operation_is_no_arrival(blocks, threads);
        a_launch_after_a_failure_touches_nothing(blocks, threads);
        a_direct_launch_after_a_failure_touches_no_peer(blocks, threads);
        publishing_rings_a_proxy_that_naps(blocks, threads);
        ctrl_c_ends_a_long_wait(blocks, threads);
    }
    return 0;
}
