/* The slow tick, a few hundred times a second at most: who is late, who is dead, what peers told us, whether our own
 * kernel still moves. Late is reported and never punished before the hard deadline; dead ends the session with a name.
 */
#include "internal.h"

#include <string.h>

#define MS 1000000ull
/* Asking "is it alive?" costs a system call per peer. Both figures are far inside the 5 s in which a death must be
 * known. */
#define ALIVE_EVERY_NS (100 * MS)
#define NOTICE_EVERY_NS (1000 * MS)
#define LATE_AGAIN_NS (5000 * MS)
#define LOOP_GAP_NS (1000 * MS)
/* Ticks are a few milliseconds apart; a longer gap counts as this. */
#define TICK_COUNTS_NS (100 * MS)
/* How long after its good-bye a rank may lack a closed peer's data: what the peer posted before has landed by then. */
#define CLOSED_GRACE_NS (200 * MS)

void rr_event_push(rr_proxy *proxy, rr_event event) {
    pthread_mutex_lock(&proxy->event_lock);
    event.index = ++proxy->event_count;
    event.time_ns = rr_now_ns();
    proxy->events[event.index % RR_EVENTS] = event;
    pthread_mutex_unlock(&proxy->event_lock);
}

uint64_t rr_watch_abort(rr_proxy *proxy, uint64_t word) { return rr_claim(&rr_abort_line(proxy)->word, word); }

/* The kernel may be moving it. */
static uint64_t seq_started(rr_proxy *proxy) { return rr_load_relaxed(&rr_kernel_line_of(proxy)->seq_started); }

/* Written here only, read by rr_proxy_stats at any time. */
static void set_mask(uint16_t *mask, uint32_t rank, bool on) {
    uint16_t bit = (uint16_t)(1u << rank);
    __atomic_store_n(mask, on ? *mask | bit : *mask & (uint16_t)~bit, __ATOMIC_RELAXED);
}

/* Ends the session for a path. The word says enough for every rank to name the same place: of a device or its cable the
 * rank and which of its devices; of a path both ranks and the path's number, which is the same at both ends. */
static void path_failed(rr_proxy *proxy, uint32_t reason, uint32_t peer, const rr_loss *how, uint64_t seq) {
    if (rr_load_acquire(&rr_abort_line(proxy)->word)) return;
    if (reason != RR_ERR_PEER_DEAD)
        rr_event_push(proxy, (rr_event){.kind = RR_EVENT_PATH,
                                        .reason = reason,
                                        .peer = peer,
                                        .root = peer,
                                        .path = how->path,
                                        .ms = how->status,
                                        .seq = seq});
    uint32_t here = proxy->config.rank;
    if (reason == RR_ERR_DEVICE_LOST || reason == RR_ERR_LINK_DOWN)
        rr_watch_abort(proxy, RR_ABORT_WORD(reason, here, 0, how->device, seq));
    else
        rr_watch_abort(proxy, RR_ABORT_WORD(reason, peer, here, how->path, seq));
}

static void tell(rr_proxy *proxy, const rr_notice *notice) {
    for (uint32_t p = 0; p < proxy->config.world; p++)
        if (p != proxy->config.rank && !(proxy->closed_mask & 1u << p))
            proxy->provider.ops->notify(&proxy->provider, p, notice);
}

void rr_watch_say_goodbye(rr_proxy *proxy) {
    uint64_t word = rr_load_acquire(&rr_abort_line(proxy)->word);
    /* `waiting` stays what it was: a peer that reads it before it reads `stop` must not take us for the end of its
     * chain. */
    rr_notice notice = {.stop = word, .beat = ++proxy->beat, .waiting = proxy->told_mask};
    if (!word)
        notice.stop = RR_ABORT_WORD(RR_ERR_PEER_CLOSED, proxy->config.rank, 0, 0, rr_progress_of(proxy)->seq_posted);
    tell(proxy, &notice);
}

static void read_notices(rr_proxy *proxy) {
    for (uint32_t p = 0; p < proxy->config.world; p++) {
        if (p == proxy->config.rank || (proxy->closed_mask & 1u << p)) continue;
        uint64_t stop = rr_load_acquire(&rr_notice_of(proxy, p)->stop);
        if (!stop) continue;
        if (RR_ABORT_REASON(stop) != RR_ERR_PEER_CLOSED) {
            rr_watch_abort(proxy, stop); /* the same word, so everybody names the same culprit */
        } else if (RR_ABORT_CULPRIT(stop) != p) {
            rr_watch_abort(proxy, stop); /* it gave up because somebody else closed */
        } else {
            set_mask(&proxy->closed_mask, p, true);
            proxy->closed_ns[p] = proxy->last_tick_ns;
            rr_event_push(proxy, (rr_event){.kind = RR_EVENT_CLOSED, .peer = p, .root = p});
        }
    }
}

/* Follows "waits for" from peer to peer. Only tells, never decides: its input comes from peers. Bounded by world. */
static uint32_t end_of_chain(rr_proxy *proxy, uint32_t peer) {
    uint32_t seen = 1u << proxy->config.rank;
    for (uint32_t steps = 0; steps < proxy->config.world; steps++) {
        seen |= 1u << peer;
        uint32_t next =
            (uint32_t)rr_load_relaxed(&rr_notice_of(proxy, peer)->waiting) & ((1u << proxy->config.world) - 1) & ~seen;
        if (!next) return peer;
        peer = (uint32_t)__builtin_ctz(next);
    }
    return peer;
}

/* The oldest wait word of any path from `src`; 0 if the kernel is not waiting for it. */
static uint64_t wait_of(rr_proxy *proxy, uint32_t src, uint32_t *path) {
    const rr_wait_line *waits = (const rr_wait_line *)(proxy->base + proxy->layout.waits) + src * RR_MAX_PATHS;
    for (uint32_t i = 0; i < RR_MAX_PATHS; i++) {
        uint64_t word = rr_load_acquire(&waits[i].word);
        if (word) return *path = i, word;
    }
    return 0;
}

static void watch_peer(rr_proxy *proxy, uint32_t p, uint64_t now) {
    uint32_t path = 0;
    uint64_t word = wait_of(proxy, p, &path);
    if (word != proxy->wait_word[p]) {
        /* A wait that an abort ended is not a peer that came. */
        if (proxy->late_reported_ns[p] && !rr_load_acquire(&rr_abort_line(proxy)->word)) {
            uint64_t ms = (now - proxy->wait_since_ns[p]) / MS;
            rr_raise(&proxy->stats.longest_late_ms, ms);
            rr_event_push(proxy, (rr_event){.kind = RR_EVENT_RESOLVED, .peer = p, .root = p, .ms = ms});
        }
        proxy->wait_word[p] = word;
        proxy->wait_since_ns[p] = now;
        proxy->late_reported_ns[p] = 0;
        set_mask(&proxy->waiting_mask, p, false);
    }
    if (!word) return;
    uint64_t waited = now - proxy->wait_since_ns[p], late = proxy->config.late_ms * MS;
    uint32_t seq = (uint32_t)(word >> 32), phase = word >> 8 & 0xff;
    /* Tell the others early, so that at the late limit everybody can follow the chain of waits to its end. */
    if (waited >= late / 2) set_mask(&proxy->waiting_mask, p, true);
    if (waited >= late && (!proxy->late_reported_ns[p] || now - proxy->late_reported_ns[p] >= LATE_AGAIN_NS)) {
        proxy->late_reported_ns[p] = now;
        rr_count(&proxy->stats.late_reports, 1);
        rr_raise(&proxy->stats.longest_late_ms, waited / MS);
        rr_record_of(proxy, (uint32_t)(seq_started(proxy) % RR_RECORDS))->late_peers |= (uint16_t)(1u << p);
        rr_event_push(proxy, (rr_event){.kind = RR_EVENT_LATE,
                                        .peer = p,
                                        .root = end_of_chain(proxy, p),
                                        .phase = phase,
                                        .path = path,
                                        .seq = seq,
                                        .ms = waited / MS});
    }
    if ((proxy->closed_mask & 1u << p) && waited > CLOSED_GRACE_NS && now - proxy->closed_ns[p] > CLOSED_GRACE_NS)
        rr_watch_abort(proxy, RR_ABORT_WORD(RR_ERR_PEER_CLOSED, p, phase, path, seq));
    if (waited >= proxy->config.peer_timeout_ms * MS) {
        read_notices(proxy); /* whoever waits for the culprit itself knows best, and its time is up now too */
        rr_watch_abort(proxy, RR_ABORT_WORD(RR_ERR_PEER_TIMEOUT, end_of_chain(proxy, p), phase, path, seq));
    }
}

static void watch_alive(rr_proxy *proxy, uint64_t now) {
    if (now - proxy->last_alive_ns < ALIVE_EVERY_NS) return;
    proxy->last_alive_ns = now;
    for (uint32_t p = 0; p < proxy->config.world; p++) {
        if (p == proxy->config.rank || (proxy->closed_mask & 1u << p)) continue;
        rr_loss how = {0};
        int reason = proxy->provider.ops->lost(&proxy->provider, p, &how);
        if (!reason) continue;
        /* It may have told us why before it went: a stop word stored before its end is visible by now. */
        read_notices(proxy);
        if (!(proxy->closed_mask & 1u << p)) path_failed(proxy, (uint32_t)reason, p, &how, seq_started(proxy));
    }
}

static void watch_kernel(rr_proxy *proxy, uint64_t now) {
    rr_kernel_line *kernel = rr_kernel_line_of(proxy);
    uint64_t fault = rr_load_acquire(&kernel->fault);
    if (fault) rr_watch_abort(proxy, fault);
    uint64_t started = rr_load_relaxed(&kernel->seq_started), done = rr_load_relaxed(&kernel->seq_done);
    rr_store_relaxed(&proxy->stats.seq_started, started);
    rr_store_relaxed(&proxy->stats.seq_done, done);
    if (started == done || started != proxy->started_seen) {
        proxy->started_seen = started;
        proxy->started_ns = now;
    } else if (now - proxy->started_ns > proxy->config.peer_timeout_ms * MS + 5000 * MS) {
        /* Its own waits are bounded by peer_timeout and reported above; past that the kernel itself is stuck. */
        rr_watch_abort(proxy, RR_ABORT_WORD(RR_ERR_KERNEL_STUCK, proxy->config.rank, 0, 0, started));
    }
}

/* Time in which this process did not run (Ctrl-Z, a paused container, a debugger) counts against nobody: what peers
 * sent meanwhile is there, but this rank's kernel has not looked yet. */
static void excuse(rr_proxy *proxy, uint64_t ns) {
    for (uint32_t p = 0; p < proxy->config.world; p++) {
        proxy->wait_since_ns[p] += ns;
        proxy->closed_ns[p] += ns;
    }
    proxy->started_ns += ns;
}

void rr_watch_tick(rr_proxy *proxy, uint64_t now) {
    if (proxy->last_tick_ns) {
        uint64_t gap = now - proxy->last_tick_ns;
        rr_raise(&proxy->stats.longest_loop_gap_us, gap / 1000);
        if (gap > TICK_COUNTS_NS) excuse(proxy, gap - TICK_COUNTS_NS);
        if (gap > LOOP_GAP_NS)
            rr_event_push(proxy, (rr_event){.kind = RR_EVENT_LOOP_GAP,
                                            .peer = proxy->config.rank,
                                            .root = proxy->config.rank,
                                            .ms = gap / MS});
    }
    proxy->last_tick_ns = now;
    rr_count(&rr_progress_of(proxy)->heartbeat, 1);
    read_notices(proxy);
    watch_kernel(proxy, now);
    for (uint32_t p = 0; p < proxy->config.world; p++)
        if (p != proxy->config.rank) watch_peer(proxy, p, now);
    if (proxy->provider.ops->tick) proxy->provider.ops->tick(&proxy->provider, now);
    watch_alive(proxy, now);
    rr_store_relaxed(&proxy->stats.seq_posted, rr_progress_of(proxy)->seq_posted);
    rr_store_relaxed(&proxy->stats.seq_completed, rr_progress_of(proxy)->seq_completed);

    uint64_t word = rr_load_acquire(&rr_abort_line(proxy)->word);
    if (word) {
        if (proxy->abort_told) return;
        proxy->abort_told = true;
        __atomic_store_n(&proxy->state, RR_STATE_ABORTED, __ATOMIC_RELEASE);
        tell(proxy, &(rr_notice){.stop = word, .beat = ++proxy->beat, .waiting = proxy->told_mask});
        rr_event_push(proxy, (rr_event){.kind = RR_EVENT_ABORT,
                                        .reason = RR_ABORT_REASON(word),
                                        .peer = RR_ABORT_CULPRIT(word),
                                        .root = RR_ABORT_CULPRIT(word),
                                        .phase = RR_ABORT_PHASE(word),
                                        .path = RR_ABORT_PATH(word),
                                        .seq = RR_ABORT_SEQ(word)});
        return;
    }
    bool changed = proxy->waiting_mask != proxy->told_mask;
    if (changed || (proxy->waiting_mask && now - proxy->last_notice_ns >= NOTICE_EVERY_NS)) {
        proxy->last_notice_ns = now;
        proxy->told_mask = proxy->waiting_mask;
        tell(proxy, &(rr_notice){.beat = ++proxy->beat, .waiting = proxy->waiting_mask});
    }
}
