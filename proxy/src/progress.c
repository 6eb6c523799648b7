/* The progress thread: takes turns at the engine and the watch, and sleeps when there is nothing to do. */
#define _GNU_SOURCE
#include "internal.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps until a CPU kernel rings, or for `us`. A GPU cannot ring, so naps stay short. */
static void nap(rr_proxy *proxy, uint32_t us) {
    rr_progress *progress = rr_progress_of(proxy);
    rr_store_napping(&progress->napping, 1);
    /* `consumed` may be behind if a kernel lent its thread meanwhile: then this sees an old commit and does not sleep.
     */
    uint64_t consumed = rr_load_relaxed(&progress->consumed);
    rr_command *next = (rr_command *)(proxy->base + proxy->layout.commands) + consumed % RR_COMMANDS;
    if (rr_load_seq_cst(&next->commit) != consumed + 1 && !__atomic_load_n(&proxy->stop, __ATOMIC_ACQUIRE)) {
        struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
        syscall(SYS_futex, &progress->napping, FUTEX_WAIT, 1, &t, NULL, 0);
    }
    rr_store_napping(&progress->napping, 0);
    rr_count(&proxy->stats.naps, 1);
}

typedef struct rr_naps {
    uint32_t us;    /* length of this nap; 0 = the thread is awake */
    uint32_t asked; /* length of the first */
    uint32_t taken; /* of this length */
} rr_naps;

/* Naps start at what was asked for and double every 64: an idle session costs next to nothing. */
static void next_nap(rr_proxy *proxy, rr_naps *naps) {
    uint32_t most = proxy->config.doorbell ? RR_NAP_MAX_DOORBELL_US : RR_NAP_MAX_US;
    uint32_t asked = __atomic_load_n(&proxy->nap_us, __ATOMIC_RELAXED);
    if (!naps->us || naps->asked != asked) { /* falling asleep, or asked for another length meanwhile */
        *naps = (rr_naps){.us = asked, .asked = asked};
    } else if (++naps->taken >= 64 && naps->us < most) {
        naps->us = naps->us * 2 > most ? most : naps->us * 2;
        naps->taken = 0;
    }
}

/* A kernel waits, and only this thread can raise the flags it waits for. */
static bool waits_for_arrivals(rr_proxy *proxy) {
    const rr_kernel_line *kernel = rr_kernel_line_of(proxy);
    return proxy->provider.imm && rr_load_relaxed(&kernel->seq_started) != rr_load_relaxed(&kernel->seq_done) &&
           !rr_load_acquire(&rr_abort_line(proxy)->word);
}

void *rr_progress_main(void *arg) {
    rr_proxy *proxy = arg;
    prctl(PR_SET_NAME, "roce-ring-proxy");
    prctl(PR_SET_TIMERSLACK, 1000ul); /* 1 us: the default of 50 us would triple a 20 us nap */
    uint64_t empty = 0, lent_seen = 0;
    rr_naps naps = {0};
    for (uint64_t turn = 0;; turn++) {
        bool worked = false, pending = true, stop = __atomic_load_n(&proxy->stop, __ATOMIC_ACQUIRE);
        if (rr_try_enter(&proxy->engine_busy)) {
            rr_count(&proxy->stats.polls, 1);
            uint64_t commands = proxy->stats.commands;
            worked = rr_engine_step(proxy);
            if (!worked) rr_count(&proxy->stats.empty_polls, 1);
            if (naps.us && proxy->stats.commands != commands) rr_count(&proxy->stats.commands_asleep, 1);
            bool done = false;
            if (turn % 64 == 0 || naps.us || stop) {
                uint64_t now = rr_now_ns();
                if (now - proxy->last_tick_ns > 2000000 || stop) rr_watch_tick(proxy, now);
                done = stop && (rr_engine_idle(proxy) || now >= proxy->stop_by_ns);
            }
            pending = !rr_engine_idle(proxy) || waits_for_arrivals(proxy);
            if (done) rr_watch_say_goodbye(proxy);
            rr_leave(&proxy->engine_busy);
            if (done) return NULL;
        }
        if (worked) {
            empty = 0, naps.us = 0;
            continue;
        }
        empty++;
        bool in_budget = empty < rr_load_relaxed(&proxy->idle_spins);
        /* A kernel that waits and lends its thread sees what is pending sooner than this one: where threads outnumber
         * cores, two that look for the same would only keep each other, and a NIC made of software, from working. Then
         * this one only watches. */
        uint64_t lent = rr_load_relaxed(&proxy->lent);
        bool watch_only = proxy->config.yield && proxy->config.doorbell && lent != lent_seen && !stop;
        lent_seen = lent;
        if (watch_only) {
            naps = (rr_naps){.us = RR_NAP_MAX_DOORBELL_US};
            nap(proxy, naps.us);
            continue;
        }
        if (in_budget) naps.us = 0; /* the budget may have grown while it napped */
        if (pending || in_budget || stop) {
            if (proxy->config.yield)
                sched_yield();
            else
                rr_cpu_relax();
            continue;
        }
        next_nap(proxy, &naps);
        nap(proxy, naps.us);
    }
}

void rr_proxy_lend(rr_proxy *proxy) {
    if (!rr_try_enter(&proxy->engine_busy)) return;
    uint64_t commands = proxy->stats.commands;
    rr_engine_step(proxy);
    rr_count(&proxy->lent, 1);
    rr_count(&proxy->stats.commands_lent, proxy->stats.commands - commands);
    rr_leave(&proxy->engine_busy);
}
