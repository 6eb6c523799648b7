/* The handle and its life. */
#define _GNU_SOURCE
#include "internal.h"
#ifdef RR_HAVE_VERBS
#include "verbs_api.h"
#endif

#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t rr_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

int rr_fail(rr_why why, const char *format, ...) {
    if (!why.bytes) return -1;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(why.text, why.bytes, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n >= why.bytes && why.bytes > 4) memcpy(why.text + why.bytes - 4, "...", 4);
    return -1;
}

/* ---- life ---- */

static int check_config(const rr_config *c, rr_why why) {
    if (c->struct_bytes != sizeof(rr_config))
        return rr_fail(why, "rr_config has %u bytes here and %zu in the library: binding and library differ in version",
                       c->struct_bytes, sizeof(rr_config));
    if (c->world < 2 || c->world > RR_MAX_WORLD)
        return rr_fail(why, "world is %u; expected 2 to %d", c->world, RR_MAX_WORLD);
    if (c->rank >= c->world) return rr_fail(why, "rank is %u; expected 0 to %u", c->rank, c->world - 1);
    if (c->slot_bytes < 2 * RR_PAGE || c->slot_bytes % RR_PAGE || c->slot_bytes > rr_slot_bytes(1ull << 30))
        return rr_fail(why, "slot_bytes is %llu; expected what rr_slot_bytes() gives for a capacity of 1 byte to 1 GiB",
                       (unsigned long long)c->slot_bytes);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < c->world; i++) {
        if (c->order[i] >= c->world || (seen & 1u << c->order[i]))
            return rr_fail(why, "order is not a permutation of the ranks (position %u)", i);
        seen |= 1u << c->order[i];
    }
    for (uint32_t p = 0; p < c->world; p++) {
        if (p == c->rank) continue;
        if (c->paths[p] > RR_MAX_PATHS)
            return rr_fail(why, "rank %u has %u paths; expected at most %d", p, c->paths[p], RR_MAX_PATHS);
        for (uint32_t i = 0; i < c->paths[p]; i++)
            if (!c->hops[p][i])
                return rr_fail(why, "path %u to rank %u has no hops; expected 1 for a direct cable", i, p);
    }
    if (c->forward_window_bytes && (c->forward_chunk_bytes < 4096 || c->forward_chunk_bytes % 16 ||
                                    c->forward_chunk_bytes > c->forward_window_bytes))
        return rr_fail(why, "forward_chunk_bytes is %u; expected a multiple of 16 from 4096 to the window of %u",
                       c->forward_chunk_bytes, c->forward_window_bytes);
    if (!c->late_ms || !c->peer_timeout_ms)
        return rr_fail(why, "late_ms and peer_timeout_ms must not be 0: every wait has a bound");
    if (!c->nap_us || c->nap_us > RR_NAP_MAX_US)
        return rr_fail(why, "nap_us is %u; expected 1 to %u", c->nap_us, RR_NAP_MAX_US);
    return 0;
}

static const rr_provider_ops *provider_by_id(uint32_t id) {
    if (id == RR_PROVIDER_SHM) return &rr_provider_shm;
#ifdef RR_HAVE_VERBS
    if (id == RR_PROVIDER_VERBS) return &rr_provider_verbs;
#endif
    return NULL;
}

rr_proxy *rr_proxy_create_with(const rr_config *config, const rr_provider_ops *ops, char *text, size_t text_bytes) {
    rr_why why = {text, text_bytes};
    if (check_config(config, why) < 0) return NULL;
    rr_proxy *proxy = calloc(1, sizeof *proxy);
    if (!proxy) return rr_fail(why, "out of memory"), NULL;
    proxy->config = *config;
    while (config->order[proxy->position] != config->rank) proxy->position++; /* check_config saw a permutation */
    proxy->region_fd = -1;
    proxy->layout = rr_layout_of(config->world, config->slot_bytes);
    proxy->layout_hash = rr_layout_hash(config->world, config->slot_bytes);
    proxy->idle_spins = config->idle_spins;
    proxy->nap_us = config->nap_us;
    proxy->generation = (uint16_t)(config->session[0] ^ config->session[0] >> 16 ^ config->session[1] ^ 1);
    pthread_mutex_init(&proxy->event_lock, NULL);
    proxy->provider = (rr_provider){.ops = ops, .config = &proxy->config, .layout = &proxy->layout, .proxy = proxy};
    rr_hello *hello = &proxy->hello;
    *hello = (rr_hello){.magic = RR_MAGIC,
                        .wire_version = RR_WIRE_VERSION,
                        .hello_bytes = sizeof(rr_hello),
                        .world = config->world,
                        .rank = config->rank,
                        .layout_hash = proxy->layout_hash,
                        .session = {config->session[0], config->session[1]},
                        .slot_bytes = config->slot_bytes,
                        .region_bytes = proxy->layout.region_bytes,
                        .pid = (uint32_t)getpid(),
                        .provider = ops->id,
                        .stripe_min_bytes = config->stripe_min_bytes};
    gethostname(hello->host, sizeof hello->host - 1);
    memcpy(hello->paths, config->paths, sizeof hello->paths);
    for (uint32_t p = 0; p < config->world; p++)
        for (uint32_t i = 0; i < RR_MAX_PATHS; i++) hello->path[p][i].hops = config->hops[p][i];
    if (rr_region_create(proxy, why) < 0) goto failed;
    rr_kernel_line_of(proxy)->seq_started = rr_kernel_line_of(proxy)->seq_done = config->first_seq;
    rr_progress_of(proxy)->seq_posted = rr_progress_of(proxy)->seq_completed = config->first_seq;
    proxy->provider.base = proxy->base;
    proxy->provider.region_fd = proxy->region_fd;
    hello->region_addr = (uint64_t)(uintptr_t)proxy->base;
    memcpy(hello->region_name, proxy->region_name, sizeof hello->region_name);
    if (ops->open(&proxy->provider, hello, why) < 0) goto failed;
    return proxy;
failed:
    rr_proxy_destroy(proxy);
    return NULL;
}

rr_proxy *rr_proxy_create(const rr_config *config, char *text, size_t text_bytes) {
    rr_why why = {text, text_bytes};
    const rr_provider_ops *ops = provider_by_id(config->provider);
    if (!ops)
        return rr_fail(why,
                       "provider %u is not in this build; the verbs provider needs infiniband/verbs.h (libibverbs-dev) "
                       "when the "
                       "package is built",
                       config->provider),
               NULL;
    return rr_proxy_create_with(config, ops, text, text_bytes);
}

int rr_proxy_hello(rr_proxy *proxy, rr_hello *out) {
    *out = proxy->hello;
    return 0;
}

/* One sentence for the first thing in which two hellos disagree. */
static int check_hello(const rr_proxy *proxy, const rr_hello *theirs, uint32_t rank, rr_why why) {
    const rr_hello *ours = &proxy->hello;
    if (theirs->magic != RR_MAGIC) return rr_fail(why, "what came from rank %u is not a hello", rank);
#define SAME(field, name)                                                                                              \
    if (theirs->field != ours->field)                                                                                  \
        return rr_fail(                                                                                                \
            why,                                                                                                       \
            name                                                                                                       \
            " differs: %llx on rank %u, %llx on rank %u; all ranks must run the same build with the same settings",    \
            (unsigned long long)theirs->field, rank, (unsigned long long)ours->field, ours->rank);
    SAME(wire_version, "wire version")
    SAME(hello_bytes, "hello size")
    SAME(world, "world")
    SAME(layout_hash, "layout hash")
    SAME(session[0], "session id")
    SAME(session[1], "session id")
    SAME(slot_bytes, "slot size")
    SAME(region_bytes, "region size")
    SAME(provider, "provider")
    SAME(stripe_min_bytes, "stripe_min_bytes")
#undef SAME
    if (theirs->rank != rank) return rr_fail(why, "the hello at place %u says rank %u", rank, theirs->rank);
    if (!memchr(theirs->host, 0, sizeof theirs->host) || !memchr(theirs->region_name, 0, sizeof theirs->region_name))
        return rr_fail(why, "rank %u's hello holds a text without an end", rank);
    if (rank == ours->rank) return 0;
    if (theirs->paths[ours->rank] != ours->paths[rank])
        return rr_fail(why, "rank %u has %u paths to rank %u, which has %u back", rank, theirs->paths[ours->rank],
                       ours->rank, ours->paths[rank]);
    for (uint32_t i = 0; i < ours->paths[rank]; i++)
        if (theirs->path[ours->rank][i].hops != ours->path[rank][i].hops)
            return rr_fail(why, "path %u between ranks %u and %u is %u hops one way and %u the other", i, ours->rank,
                           rank, ours->path[rank][i].hops, theirs->path[ours->rank][i].hops);
    return 0;
}

static int not_in_state(rr_proxy *proxy, uint32_t expected, const char *call, rr_why why) {
    static const char *const names[] = {"INIT", "CONNECTED", "RUNNING", "DRAINING", "ABORTED", "CLOSED"};
    uint32_t state = __atomic_load_n(&proxy->state, __ATOMIC_ACQUIRE);
    if (state == expected) return 0;
    return rr_fail(why, "%s needs state %s; the session is %s", call, names[expected], names[state]);
}

int rr_proxy_connect(rr_proxy *proxy, const rr_hello *all, char *text, size_t text_bytes) {
    rr_why why = {text, text_bytes};
    if (not_in_state(proxy, RR_STATE_INIT, "connect", why) < 0) return -1;
    for (uint32_t p = 0; p < proxy->config.world; p++)
        if (check_hello(proxy, &all[p], p, why) < 0) return -1;
    if (proxy->provider.ops->connect(&proxy->provider, all, why) < 0) return -1;
    __atomic_store_n(&proxy->state, RR_STATE_CONNECTED, __ATOMIC_RELEASE);
    return 0;
}

int rr_proxy_use(rr_proxy *proxy, const uint8_t *used, uint32_t imm, char *text, size_t text_bytes) {
    rr_why why = {text, text_bytes};
    if (not_in_state(proxy, RR_STATE_CONNECTED, "use", why) < 0) return -1;
    rr_config *c = &proxy->config;
    for (uint32_t p = 0; p < c->world; p++)
        if (p != c->rank && c->paths[p] && !(used[p] & ((1u << c->paths[p]) - 1)))
            return rr_fail(why, "no path to rank %u is left; every peer needs one", p);
    uint8_t lane[RR_MAX_WORLD][RR_MAX_PATHS] = {{0}};
    for (uint32_t p = 0; p < c->world; p++) {
        uint32_t kept = 0;
        for (uint32_t i = 0; p != c->rank && i < c->paths[p]; i++) {
            if (!(used[p] & 1u << i)) continue;
            lane[p][kept] = (uint8_t)i;
            c->hops[p][kept] = c->hops[p][i];
            c->hca_of[p][kept++] = c->hca_of[p][i];
        }
        c->paths[p] = (uint8_t)kept;
    }
    proxy->provider.imm = imm != 0;
    if (proxy->provider.ops->use) proxy->provider.ops->use(&proxy->provider, lane);
    rr_litmus_clear(proxy);
    return 0;
}

int rr_proxy_start(rr_proxy *proxy, char *text, size_t text_bytes) {
    rr_why why = {text, text_bytes};
    if (not_in_state(proxy, RR_STATE_CONNECTED, "start", why) < 0) return -1;
    rr_region_unlink(proxy);
    __atomic_store_n(&proxy->state, RR_STATE_RUNNING, __ATOMIC_RELEASE);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (proxy->config.cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((unsigned)proxy->config.cpu, &one);
        pthread_attr_setaffinity_np(&attr, sizeof one, &one);
    }
    int failed = pthread_create(&proxy->thread, &attr, rr_progress_main, proxy);
    pthread_attr_destroy(&attr);
    if (failed) {
        __atomic_store_n(&proxy->state, RR_STATE_CONNECTED, __ATOMIC_RELEASE);
        return rr_fail(why, "cannot start the progress thread%s: %s",
                       proxy->config.cpu >= 0 ? " on the CPU asked for" : "", strerror(failed));
    }
    proxy->thread_alive = true;
    return 0;
}

static void wake(rr_proxy *proxy) {
    rr_progress *progress = rr_progress_of(proxy);
    rr_store_napping(&progress->napping, 0);
    syscall(SYS_futex, &progress->napping, FUTEX_WAKE, 1, NULL, NULL, 0);
}

int rr_proxy_stop(rr_proxy *proxy, uint32_t timeout_ms) {
    int unfinished = 0;
    if (proxy->thread_alive) {
        uint32_t running = RR_STATE_RUNNING;
        __atomic_compare_exchange_n(&proxy->state, &running, RR_STATE_DRAINING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        proxy->stop_by_ns = rr_now_ns() + timeout_ms * 1000000ull;
        __atomic_store_n(&proxy->stop, 1, __ATOMIC_RELEASE);
        wake(proxy);
        pthread_join(proxy->thread, NULL);
        proxy->thread_alive = false;
        unfinished = rr_engine_idle(proxy) ? 0 : -1;
    }
    __atomic_store_n(&proxy->state, RR_STATE_CLOSED, __ATOMIC_RELEASE);
    return unfinished;
}

void rr_proxy_destroy(rr_proxy *proxy) {
    if (!proxy) return;
    rr_proxy_stop(proxy, 0);
    if (proxy->provider.impl) proxy->provider.ops->close(&proxy->provider);
    rr_region_destroy(proxy);
    pthread_mutex_destroy(&proxy->event_lock);
    free(proxy);
}

/* ---- looking and asking ---- */

const char *rr_status_text(uint32_t status) {
#ifdef RR_HAVE_VERBS
    const rr_verbs *verbs = rr_verbs_load((rr_why){NULL, 0});
    if (status && verbs) return verbs->wc_status_str((enum ibv_wc_status)status);
#endif
    return (void)status, "";
}

void *rr_proxy_region(rr_proxy *proxy) { return proxy->base; }
void *rr_proxy_peer_region(rr_proxy *proxy, uint32_t peer) {
    if (peer >= proxy->config.world || !proxy->provider.ops->mapped) return NULL;
    return proxy->provider.ops->mapped(&proxy->provider, peer);
}
void rr_proxy_layout(rr_proxy *proxy, rr_layout *out) { *out = proxy->layout; }
uint64_t rr_proxy_abort_word(rr_proxy *proxy) { return rr_load_acquire(&rr_abort_line(proxy)->word); }

uint64_t rr_proxy_abort(rr_proxy *proxy, uint32_t reason, uint32_t culprit) {
    uint64_t word = rr_watch_abort(
        proxy, RR_ABORT_WORD(reason, culprit, 0, 0, rr_load_relaxed(&rr_kernel_line_of(proxy)->seq_started)));
    wake(proxy);
    return word;
}

int rr_proxy_set_idle(rr_proxy *proxy, uint64_t idle_spins, uint32_t nap_us) {
    if (!nap_us || nap_us > RR_NAP_MAX_US) return -1;
    rr_store_relaxed(&proxy->idle_spins, idle_spins);
    __atomic_store_n(&proxy->nap_us, nap_us, __ATOMIC_RELAXED);
    wake(proxy);
    return 0;
}

void rr_proxy_stats(rr_proxy *proxy, rr_stats *out) {
    /* Word by word: every counter is whole, though not all are of one instant. */
    const uint64_t *from = (const uint64_t *)&proxy->stats;
    uint64_t *to = (uint64_t *)out;
    for (size_t i = 0; i < sizeof(rr_stats) / sizeof(uint64_t); i++) to[i] = rr_load_relaxed(&from[i]);
    out->struct_bytes = sizeof(rr_stats);
    out->state = __atomic_load_n(&proxy->state, __ATOMIC_ACQUIRE);
    out->abort_word = rr_proxy_abort_word(proxy);
    out->idle_spins = rr_load_relaxed(&proxy->idle_spins);
    out->nap_us = __atomic_load_n(&proxy->nap_us, __ATOMIC_RELAXED);
    out->yield = proxy->config.yield;
    out->imm = proxy->provider.imm;
    pthread_mutex_lock(&proxy->event_lock);
    out->events_lost = proxy->events_lost;
    pthread_mutex_unlock(&proxy->event_lock);
    out->waiting = __atomic_load_n(&proxy->waiting_mask, __ATOMIC_RELAXED);
    out->closed = __atomic_load_n(&proxy->closed_mask, __ATOMIC_RELAXED);
    out->seq_started = rr_load_relaxed(&rr_kernel_line_of(proxy)->seq_started);
    out->seq_done = rr_load_relaxed(&rr_kernel_line_of(proxy)->seq_done);
    out->seq_posted = rr_load_relaxed(&rr_progress_of(proxy)->seq_posted);
    out->seq_completed = rr_load_relaxed(&rr_progress_of(proxy)->seq_completed);
}

uint32_t rr_proxy_events(rr_proxy *proxy, uint64_t after, rr_event *out, uint32_t room) {
    uint32_t n = 0;
    pthread_mutex_lock(&proxy->event_lock);
    uint64_t first = after + 1;
    if (proxy->event_count > RR_EVENTS && first <= proxy->event_count - RR_EVENTS)
        proxy->events_lost += proxy->event_count - RR_EVENTS + 1 - first, first = proxy->event_count - RR_EVENTS + 1;
    for (uint64_t i = first; i <= proxy->event_count && n < room; i++) out[n++] = proxy->events[i % RR_EVENTS];
    pthread_mutex_unlock(&proxy->event_lock);
    return n;
}
