/* The verbs provider: one RC queue pair per path, made of the plan's devices; which of them are used; and what the
 * queue pairs and devices say about peers. What goes over them is in verbs_wire.c.
 */
#include "verbs_impl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE_FLUSH_NS 200000000ull /* how long close() waits for good-byes to be acknowledged */
#define EVENTS_EVERY_NS 20000000ull /* asking the devices for events costs a system call each */
#define DOUBT_NS 200000000ull       /* a notice unanswered for so long: this path may be broken too */
#define BLAME_AFTER_NS                                                                                                 \
    300000000ull /* what others have to say of a broken path has come by then: a few ticks of theirs */

/* ---- open, connect, close ---- */

/* The user reads of all problems at once: a line each, none twice. */
static int add_line(rr_why why, const char *line) {
    size_t at = why.bytes ? strnlen(why.text, why.bytes) : 0;
    if (at + 2 > why.bytes || strstr(why.text, line)) return -1;
    if (at) why.text[at++] = '\n';
    return rr_fail((rr_why){why.text + at, why.bytes - at}, "%s", line);
}

typedef int (*path_step)(rr_provider *provider, uint32_t peer, uint32_t path, const void *arg, rr_why why);

static int each_path(rr_provider *provider, path_step step, const void *arg, rr_why why) {
    int result = 0;
    char line[768];
    for (uint32_t p = 0; p < provider->config->world; p++) {
        if (p == provider->config->rank) continue;
        for (uint32_t i = 0; i < provider->config->paths[p]; i++)
            if (step(provider, p, i, arg, (rr_why){line, sizeof line}) < 0) result = add_line(why, line);
    }
    return result;
}

static int name_hca(rr_provider *provider, uint32_t peer, uint32_t path, const void *arg, rr_why why) {
    (void)arg;
    verbs_impl *impl = provider->impl;
    uint32_t index = provider->config->hca_of[peer][path];
    const char *name = index < RR_HCAS ? provider->config->hca[index] : "";
    if (!name[0] || !memchr(name, 0, sizeof provider->config->hca[0]))
        return rr_fail(why, "path %u to rank %u uses hca[%u], which has no device name; expected a name from the plan",
                       path, peer, index);
    for (uint32_t i = 0; i < path; i++)
        if (provider->config->hca_of[peer][i] == index)
            return rr_fail(why, "paths %u and %u to rank %u both use %s; expected different devices", i, path, peer,
                           name);
    impl->hca[index].name = name;
    impl->hca[index].index = index;
    impl->hca[index].address = provider->config->address[index];
    impl->hca[index].paths++;
    return 0;
}

#define WHAT_BYTES 32
static const char *what(uint32_t peer, uint32_t path, char out[WHAT_BYTES]) {
    snprintf(out, WHAT_BYTES, "path %u to rank %u", path, peer);
    return out;
}

static int open_hca(rr_provider *provider, verbs_hca *hca, uint32_t devices, rr_why why) {
    const rr_verbs *verbs = ((verbs_impl *)provider->impl)->verbs;
    if (rr_verbs_hca_open(verbs, hca, why) < 0) return -1;
    if (2 * provider->config->slot_bytes > hca->max_message)
        return rr_fail(
            why,
            "%s sends at most %u bytes in one message; a capacity of %llu bytes needs twice that capacity: lower it",
            hca->name, hca->max_message, (unsigned long long)provider->config->slot_bytes - RR_PAGE);
    /* Room for every entry of every queue: a failing queue pair completes its unsignalled ones as well. */
    uint32_t entries = hca->paths * (RR_SQ_DEPTH + RR_RQ_DEPTH);
    return rr_verbs_hca_register(verbs, hca, provider->base, provider->layout->region_bytes, entries, devices, why);
}

static int make_qp(rr_provider *provider, uint32_t peer, uint32_t path, const void *arg, rr_why why) {
    verbs_impl *impl = provider->impl;
    verbs_hca *hca = &impl->hca[provider->config->hca_of[peer][path]];
    char text[WHAT_BYTES];
    if (hca->inactive) { /* the hello says so by a queue pair number of 0 */
        provider->down[peer][path] = RR_PATH_DOWN_HERE;
        return 0;
    }
    verbs_qp *qp = calloc(1, sizeof *qp);
    if (!qp) return rr_fail(why, "out of memory");
    *qp = (verbs_qp){.hca = hca, .peer = peer, .planned = path, .lane = path};
    impl->planned[peer][path] = impl->qp[peer][path] = qp;
    if (rr_verbs_qp_create(impl->verbs, qp, what(peer, path, text), why) < 0) return -1;
    for (uint32_t i = 0; i < RR_RQ_DEPTH; i++)
        if (!rr_verbs_qp_receive(qp, RR_ID_RECEIVE(peer, path)))
            return rr_fail(why, "%s takes fewer than %d receives on a queue pair", hca->name, RR_RQ_DEPTH);
    rr_verbs_qp_end(qp, &((rr_hello *)arg)->path[peer][path]);
    return 0;
}

static int verbs_open(rr_provider *provider, rr_hello *hello, rr_why why) {
    if (why.bytes) why.text[0] = 0;
    if (provider->config->dead_ms < 10 || provider->config->dead_ms > 600000)
        return rr_fail(why, "dead_ms is %u; the verbs provider needs 10 to 600000 to choose a retry budget",
                       provider->config->dead_ms);
    const rr_verbs *verbs = rr_verbs_load(why);
    if (!verbs) return -1;
    verbs_impl *impl = calloc(1, sizeof *impl);
    if (!impl) return rr_fail(why, "out of memory");
    provider->impl = impl;
    impl->verbs = verbs;
    impl->generation = provider->proxy->generation;
    if (each_path(provider, name_hca, NULL, why) < 0) return -1;
    int result = 0;
    uint32_t devices = 0;
    char line[768];
    for (uint32_t i = 0; i < RR_HCAS; i++) devices += impl->hca[i].name != NULL;
    /* A device that no path uses is never opened: it may have no cable. One without a link is left out: its paths are.
     */
    for (uint32_t i = 0; i < RR_HCAS; i++)
        if (impl->hca[i].name && open_hca(provider, &impl->hca[i], devices, (rr_why){line, sizeof line}) < 0 &&
            !impl->hca[i].inactive)
            result = add_line(why, line);
    return result < 0 ? -1 : each_path(provider, make_qp, hello, why);
}

static int connect_path(rr_provider *provider, uint32_t peer, uint32_t path, const void *arg, rr_why why) {
    verbs_impl *impl = provider->impl;
    const rr_config *config = provider->config;
    const rr_hello *theirs = (const rr_hello *)arg + peer;
    const rr_hello_path *end = &theirs->path[config->rank][path];
    char text[WHAT_BYTES];
    if (!end->qpn && !provider->down[peer][path]) provider->down[peer][path] = RR_PATH_DOWN_THERE;
    if (provider->down[peer][path]) return 0;
    return rr_verbs_qp_connect(impl->verbs, impl->qp[peer][path], end, theirs->region_addr,
                               config->hops[peer][path] > 1 ? RR_FORWARD_FLOW_LABEL : 0, config->dead_ms * 7 / 8,
                               what(peer, path, text), why);
}

static int verbs_connect(rr_provider *provider, const rr_hello *all, rr_why why) {
    if (why.bytes) why.text[0] = 0;
    return each_path(provider, connect_path, all, why);
}

static void drop_qp(verbs_impl *impl, uint32_t peer, uint32_t path) {
    verbs_qp *qp = impl->planned[peer][path];
    if (!qp) return;
    if (qp->qp) impl->verbs->destroy_qp(qp->qp);
    free(qp);
    impl->planned[peer][path] = NULL;
}

static void verbs_use(rr_provider *provider, const uint8_t lane[RR_MAX_WORLD][RR_MAX_PATHS]) {
    verbs_impl *impl = provider->impl;
    memset(impl->qp, 0, sizeof impl->qp);
    for (uint32_t p = 0; p < provider->config->world; p++) {
        for (uint32_t i = 0; i < provider->config->paths[p]; i++) {
            verbs_qp *qp = impl->planned[p][lane[p][i]];
            impl->qp[p][i] = qp;
            qp->lane = i;
        }
        for (uint32_t i = 0; i < RR_MAX_PATHS; i++) {
            bool used = false;
            for (uint32_t k = 0; k < RR_MAX_PATHS; k++) used |= impl->qp[p][k] == impl->planned[p][i];
            if (!used) drop_qp(impl, p, i);
        }
    }
    impl->generation++; /* what is still to come of the dropped ones is nobody's */
    impl->writes = 0;
}

/* A good-bye posted a moment ago is worth waiting for: with its queue pair it would be gone. */
static void flush_notices(rr_provider *provider) {
    verbs_impl *impl = provider->impl;
    uint64_t until = rr_now_ns() + CLOSE_FLUSH_NS;
    for (bool waiting = true; waiting && rr_now_ns() < until; sched_yield()) {
        rr_completion drop[16];
        rr_verbs_poll(provider, drop, 16);
        waiting = false;
        for (uint32_t p = 0; p < RR_MAX_WORLD; p++)
            for (uint32_t i = 0; i < RR_MAX_PATHS; i++)
                waiting |= impl->qp[p][i] && impl->qp[p][i]->notices && !impl->qp[p][i]->failed;
    }
}

static void verbs_close(rr_provider *provider) {
    verbs_impl *impl = provider->impl;
    flush_notices(provider);
    for (uint32_t p = 0; p < RR_MAX_WORLD; p++)
        for (uint32_t i = 0; i < RR_MAX_PATHS; i++) drop_qp(impl, p, i);
    for (uint32_t i = 0; i < RR_HCAS; i++) rr_verbs_hca_close(impl->verbs, &impl->hca[i]);
    free(impl);
    provider->impl = NULL;
}

/* ---- watching ---- */

static void ask_devices(rr_provider *provider) {
    verbs_impl *impl = provider->impl;
    for (uint32_t i = 0; i < RR_HCAS; i++)
        if (impl->hca[i].cq) rr_verbs_hca_events(provider, &impl->hca[i]);
}

static void verbs_tick(rr_provider *provider, uint64_t now) {
    verbs_impl *impl = provider->impl;
    rr_verbs_take_notices(provider);
    for (uint32_t p = 0; p < provider->config->world; p++)
        for (uint32_t i = 0; i < provider->config->paths[p]; i++)
            if (impl->qp[p][i]) rr_verbs_nudge(provider, impl->qp[p][i], now);
    if (now - impl->events_ns < EVENTS_EVERY_NS) return;
    impl->events_ns = now;
    ask_devices(provider);
}

/* What one queue pair says about its peer: enum rr_error and since when; 0 while it works. */
static uint32_t state_of(const rr_provider *provider, const verbs_qp *qp, uint64_t now, uint64_t *since, bool *doubt) {
    /* The first notice goes out when a wait has lasted half of late_ms; the last rank must know within dead_ms. */
    uint64_t dead = provider->config->dead_ms, late = provider->config->late_ms;
    uint64_t patience = (dead > 2 * late ? dead * 3 / 4 - late / 2 : dead / 2) * 1000000;
    uint64_t silence = qp->notices ? now - qp->notices_since_ns : 0;
    *since = qp->failed ? qp->failed_ns : qp->notices_since_ns + patience;
    if (qp->hca->lost) return RR_ERR_DEVICE_LOST;
    if (!qp->failed && silence <= patience) {
        *doubt |= silence > DOUBT_NS;
        return RR_ERR_OK;
    }
    if (qp->failed == RR_ERR_INTERNAL) return RR_ERR_INTERNAL;
    return qp->hca->port_down ? RR_ERR_LINK_DOWN : RR_ERR_QP_ERROR;
}

static int verbs_lost(rr_provider *provider, uint32_t peer, rr_loss *how) {
    verbs_impl *impl = provider->impl;
    uint64_t now = rr_now_ns(), first = now, grace = provider->config->dead_ms * 1000000ull / 8;
    uint32_t bad = 0, reason = RR_ERR_OK, paths = provider->config->paths[peer];
    bool doubt = false;
    ask_devices(provider);
    for (uint32_t i = 0; i < paths; i++) {
        const verbs_qp *qp = impl->qp[peer][i];
        uint64_t since;
        uint32_t here = state_of(provider, qp, now, &since, &doubt);
        if (!here) continue;
        if (since < first) first = since;
        if (!bad++ || reason == RR_ERR_QP_ERROR) {
            reason = here;
            *how = (rr_loss){.path = i, .device = qp->hca->index, .status = qp->status};
        }
    }
    if (reason != RR_ERR_QP_ERROR) return (int)reason;
    /* Another path may be about to fail, too; and who sits at the end of a cut cable knows that it was the cable, and
     * its word is on the way. */
    if (now - first < (grace < BLAME_AFTER_NS ? grace : BLAME_AFTER_NS)) return RR_ERR_OK;
    /* Nothing gets through on any path and no device of ours is to blame: it is the peer. */
    if (bad == paths) return RR_ERR_PEER_DEAD;
    return doubt ? RR_ERR_OK : RR_ERR_QP_ERROR;
}

const rr_provider_ops rr_provider_verbs = {
    .name = "verbs",
    .id = RR_PROVIDER_VERBS,
    .open = verbs_open,
    .connect = verbs_connect,
    .use = verbs_use,
    .write = rr_verbs_write,
    .poll = rr_verbs_poll,
    .notify = rr_verbs_notify,
    .tick = verbs_tick,
    .lost = verbs_lost,
    .close = verbs_close,
};
