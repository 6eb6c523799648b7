/* RDMA writes over RC queue pairs. Per path and operation: a payload WRITE and, chained behind it in the same post, an
 * inline WRITE of the flag. A queue pair executes in order, so whoever sees the flag may read the payload.
 */
#include "verbs_impl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE_FLUSH_NS 200000000ull /* how long close() waits for good-byes to be acknowledged */

/* Work request id: which post of which queue pair, and whether this is its last work request. */
#define ID(position, peer, path, last)                                                                                 \
    ((uint64_t)(last) << 63 | (uint64_t)(uint32_t)(position) << 16 | (uint64_t)(peer) << 8 | (path))
#define ID_LAST(id) ((bool)((id) >> 63))
#define ID_POSITION(id) ((uint32_t)((id) >> 16))
#define ID_PEER(id) ((uint32_t)((id) >> 8 & 0xff))
#define ID_PATH(id) ((uint32_t)((id) & 0xff))

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
    return rr_verbs_hca_register(verbs, hca, provider->base, provider->layout->region_bytes, hca->paths * RR_SQ_DEPTH,
                                 devices, why);
}

static int make_qp(rr_provider *provider, uint32_t peer, uint32_t path, const void *arg, rr_why why) {
    verbs_impl *impl = provider->impl;
    char text[WHAT_BYTES];
    verbs_qp *qp = impl->qp[peer][path] = calloc(1, sizeof *qp);
    if (!qp) return rr_fail(why, "out of memory");
    qp->hca = &impl->hca[provider->config->hca_of[peer][path]];
    if (rr_verbs_qp_create(impl->verbs, qp, what(peer, path, text), why) < 0) return -1;
    rr_verbs_qp_end(qp, &((rr_hello *)arg)->path[peer][path]);
    return 0;
}

static int verbs_open(rr_provider *provider, rr_hello *hello, rr_why why) {
    if (why.bytes) why.text[0] = 0;
    if (provider->config->imm)
        return rr_fail(why, "arrival by write-with-immediate is not in this version; use polled flags (imm = 0)");
    if (provider->config->dead_ms < 10 || provider->config->dead_ms > 600000)
        return rr_fail(why, "dead_ms is %u; the verbs provider needs 10 to 600000 to choose a retry budget",
                       provider->config->dead_ms);
    const rr_verbs *verbs = rr_verbs_load(why);
    if (!verbs) return -1;
    verbs_impl *impl = calloc(1, sizeof *impl);
    if (!impl) return rr_fail(why, "out of memory");
    provider->impl = impl;
    impl->verbs = verbs;
    if (each_path(provider, name_hca, NULL, why) < 0) return -1;
    int result = 0;
    uint32_t devices = 0;
    char line[768];
    for (uint32_t i = 0; i < RR_HCAS; i++) devices += impl->hca[i].name != NULL;
    for (uint32_t i = 0; i < RR_HCAS; i++) /* a device that no path uses is never opened: it may have no cable */
        if (impl->hca[i].name && open_hca(provider, &impl->hca[i], devices, (rr_why){line, sizeof line}) < 0)
            result = add_line(why, line);
    return result < 0 ? -1 : each_path(provider, make_qp, hello, why);
}

static int connect_path(rr_provider *provider, uint32_t peer, uint32_t path, const void *arg, rr_why why) {
    verbs_impl *impl = provider->impl;
    const rr_config *config = provider->config;
    const rr_hello *theirs = (const rr_hello *)arg + peer;
    const rr_hello_path *end = &theirs->path[config->rank][path];
    char text[WHAT_BYTES];
    if (!end->qpn || !end->rkey || !theirs->region_addr)
        return rr_fail(why, "rank %u opened no queue pair for its path %u to this rank: both ends need the same plan",
                       peer, path);
    return rr_verbs_qp_connect(impl->verbs, impl->qp[peer][path], end, theirs->region_addr,
                               config->hops[peer][path] > 1 ? RR_FORWARD_FLOW_LABEL : 0, config->dead_ms,
                               what(peer, path, text), why);
}

static int verbs_connect(rr_provider *provider, const rr_hello *all, rr_why why) {
    if (why.bytes) why.text[0] = 0;
    return each_path(provider, connect_path, all, why);
}

static void verbs_started(rr_provider *provider) { (void)provider; }

/* ---- the data path ---- */

static void describe(struct ibv_send_wr *wr, struct ibv_sge *sge, const verbs_qp *qp, const void *from, uint32_t bytes,
                     uint64_t dst) {
    *sge = (struct ibv_sge){.addr = (uintptr_t)from, .length = bytes, .lkey = qp->hca->mr->lkey};
    *wr = (struct ibv_send_wr){.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    wr->wr.rdma.remote_addr = qp->remote_base + dst;
    wr->wr.rdma.rkey = qp->remote_key;
}

/* Hands a chain of `entries` work requests to the device as one post. */
static bool post(verbs_qp *qp, uint32_t peer, uint32_t path, struct ibv_send_wr *chain, uint8_t entries,
                 verbs_sent sent) {
    struct ibv_send_wr *last = chain, *bad;
    while (last->wr_id = ID(qp->posted, peer, path, 0), last->next) last = last->next;
    last->wr_id = ID(qp->posted, peer, path, 1);
    last->send_flags |= IBV_SEND_SIGNALED;
    if (ibv_post_send(qp->qp, chain, &bad)) {
        qp->failed = RR_ERR_QP_ERROR; /* part of the chain may be out: this path cannot be trusted with another flag */
        return false;
    }
    sent.entries = entries;
    qp->sent[qp->posted++ % RR_SQ_DEPTH] = sent;
    qp->room -= entries;
    return true;
}

static enum rr_write_result verbs_write(rr_provider *provider, const rr_write *write) {
    verbs_impl *impl = provider->impl;
    verbs_qp *qp = impl->qp[write->peer][write->path];
    if (qp->failed) return RR_WRITE_FAILED;
    if (qp->room < RR_SQ_FOR_NOTICES + 2) return RR_WRITE_AGAIN;
    struct ibv_send_wr wr[2];
    struct ibv_sge sge[2];
    uint8_t entries = 0;
    if (write->bytes || !write->flag)
        describe(&wr[entries], &sge[entries], qp, provider->base + write->src, write->bytes, write->dst), entries++;
    if (write->flag) {
        describe(&wr[entries], &sge[entries], qp, &write->value, sizeof write->value, write->flag);
        wr[entries++].send_flags = IBV_SEND_INLINE;
    }
    if (entries == 2) wr[0].next = &wr[1];
    if (!post(qp, write->peer, write->path, wr, entries, (verbs_sent){.tag = write->tag})) return RR_WRITE_FAILED;
    impl->writes++;
    return RR_WRITE_POSTED;
}

static uint32_t reason_of(enum ibv_wc_status status, const verbs_hca *hca) {
    switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        return RR_ERR_INTERNAL; /* an address or a key was wrong: never the network's fault */
    case IBV_WC_FATAL_ERR:
        return RR_ERR_DEVICE_LOST;
    default:
        return hca->lost || hca->port_down ? RR_ERR_DEVICE_LOST : RR_ERR_QP_ERROR;
    }
}

/* Books one completion. True if the engine has to hear of it. */
static bool book(verbs_impl *impl, const struct ibv_wc *wc, rr_completion *out) {
    uint32_t peer = ID_PEER(wc->wr_id), path = ID_PATH(wc->wr_id);
    verbs_qp *qp = impl->qp[peer][path];
    verbs_sent *sent = &qp->sent[ID_POSITION(wc->wr_id) % RR_SQ_DEPTH];
    if (wc->status != IBV_WC_SUCCESS && !qp->failed) {
        rr_verbs_hca_events(impl, qp->hca); /* a lost port says so there */
        qp->failed = reason_of(wc->status, qp->hca);
    }
    /* In an error a payload and its flag complete separately, both with an error: the first one is passed on. */
    bool report = !sent->notice && !sent->reported && (ID_LAST(wc->wr_id) || wc->status != IBV_WC_SUCCESS);
    sent->reported = report || sent->reported;
    if (ID_LAST(wc->wr_id)) {
        qp->room += sent->entries;
        qp->retired++;
        if (sent->notice) {
            qp->notices--;
            qp->notices_since_ns = rr_now_ns();
        }
    }
    if (!report) return false;
    impl->writes--;
    *out = (rr_completion){
        .tag = sent->tag, .peer = peer, .path = path, .status = wc->status == IBV_WC_SUCCESS ? 0 : (int)qp->failed};
    return true;
}

static uint32_t verbs_poll(rr_provider *provider, rr_completion *out, uint32_t room) {
    verbs_impl *impl = provider->impl;
    struct ibv_wc wc[16];
    uint32_t found = 0;
    impl->poll_from++; /* another device first each time: none starves when `room` is small */
    for (uint32_t i = 0; i < RR_HCAS && found < room; i++) {
        verbs_hca *hca = &impl->hca[(impl->poll_from + i) % RR_HCAS];
        if (!hca->cq) continue;
        uint32_t want = room - found < 16 ? room - found : 16;
        int n = ibv_poll_cq(hca->cq, (int)want, wc);
        if (n < 0) hca->lost = true;
        for (int k = 0; k < n; k++) found += book(impl, &wc[k], &out[found]);
    }
    return found;
}

/* The engine polls while it has writes in flight. Otherwise only notices can be in the queues, and nobody would take
 * them out. */
static void take_notices(rr_provider *provider) {
    rr_completion none[1];
    verbs_impl *impl = provider->impl;
    if (!impl->writes) verbs_poll(provider, none, 1);
}

static void verbs_notify(rr_provider *provider, uint32_t peer, const rr_notice *notice) {
    verbs_impl *impl = provider->impl;
    take_notices(provider);
    uint64_t at = provider->layout->notices + provider->config->rank * sizeof(rr_notice);
    for (uint32_t path = 0; path < provider->config->paths[peer];
         path++) { /* every path: one of them may be what is broken */
        verbs_qp *qp = impl->qp[peer][path];
        if (qp->failed || !qp->room) continue;
        struct ibv_send_wr wr;
        struct ibv_sge sge;
        describe(&wr, &sge, qp, notice, RR_NOTICE_BYTES, at);
        wr.send_flags = IBV_SEND_INLINE;
        if (post(qp, peer, path, &wr, 1, (verbs_sent){.notice = true}) && !qp->notices++)
            qp->notices_since_ns = rr_now_ns();
    }
}

static int verbs_lost(rr_provider *provider, uint32_t peer, uint32_t *path) {
    verbs_impl *impl = provider->impl;
    /* The first notice goes out when a wait has lasted half of late_ms; the last rank must know within dead_ms. */
    uint64_t dead = provider->config->dead_ms, late = provider->config->late_ms;
    uint64_t now = rr_now_ns(), patience = (dead > 2 * late ? dead * 9 / 10 - late : dead / 2) * 1000000;
    uint32_t bad = 0, reason = RR_ERR_OK, paths = provider->config->paths[peer];
    take_notices(provider);
    for (uint32_t i = 0; i < paths; i++) {
        verbs_qp *qp = impl->qp[peer][i];
        rr_verbs_hca_events(impl, qp->hca);
        uint32_t here = qp->failed;
        if (qp->hca->lost)
            here = RR_ERR_DEVICE_LOST;
        else if (!here && qp->notices && now - qp->notices_since_ns > patience)
            here = RR_ERR_QP_ERROR;
        if (!here) continue;
        if (!bad++) reason = here, *path = i;
    }
    /* Nothing gets through on any path and no device of ours is to blame: it is the peer. */
    return bad == paths && reason == RR_ERR_QP_ERROR ? RR_ERR_PEER_DEAD : reason;
}

/* A good-bye posted a moment ago is worth waiting for: with its queue pair it would be gone. */
static void flush_notices(rr_provider *provider) {
    verbs_impl *impl = provider->impl;
    uint64_t until = rr_now_ns() + CLOSE_FLUSH_NS;
    for (bool waiting = true; waiting && rr_now_ns() < until; sched_yield()) {
        rr_completion drop[16];
        verbs_poll(provider, drop, 16);
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
        for (uint32_t i = 0; i < RR_MAX_PATHS; i++) {
            if (!impl->qp[p][i]) continue;
            if (impl->qp[p][i]->qp) impl->verbs->destroy_qp(impl->qp[p][i]->qp);
            free(impl->qp[p][i]);
        }
    for (uint32_t i = 0; i < RR_HCAS; i++) rr_verbs_hca_close(impl->verbs, &impl->hca[i]);
    free(impl);
    provider->impl = NULL;
}

const rr_provider_ops rr_provider_verbs = {
    .name = "verbs",
    .id = RR_PROVIDER_VERBS,
    .open = verbs_open,
    .connect = verbs_connect,
    .started = verbs_started,
    .write = verbs_write,
    .poll = verbs_poll,
    .notify = verbs_notify,
    .lost = verbs_lost,
    .close = verbs_close,
};
