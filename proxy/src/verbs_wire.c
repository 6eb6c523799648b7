/* RDMA writes over RC queue pairs, in the session's two ways of arrival. Per path and operation: a payload WRITE and,
 * chained behind it in the same post, an inline WRITE of the flag; a queue pair executes in order, so whoever sees the
 * flag may read the payload. Or, where the litmus found that a device does not keep that order: one WRITE with
 * immediate data, whose completion at the receiver stands behind the payload by specification; there the proxy raises
 * the flag.
 */
#include "verbs_impl.h"

#include <endian.h>
#include <string.h>

/* Immediate data: enough of a flag to raise it. Which peer and path it is of, the queue pair knows. */
#define IMM_SEQ_BITS 11
#define IMM(phase, value)                                                                                              \
    ((uint32_t)(phase) << 27 | (uint32_t)((value) >> RR_FLAG_SEQ_BITS) << IMM_SEQ_BITS |                               \
     (uint32_t)((value) & ((1u << IMM_SEQ_BITS) - 1)))
#define IMM_PHASE(imm) ((imm) >> 27)
#define IMM_DIGEST(imm) ((imm) >> IMM_SEQ_BITS & 0xffffu)
RR_STATIC_ASSERT(27 == IMM_SEQ_BITS + 64 - RR_FLAG_SEQ_BITS && 2 * (RR_MAX_WORLD - 1) <= 32, "a phase fits in 5 bits");

/* A tail that was lost is noticed by nobody: what the peer misses is the last it would have got, and the queue pair's
 * own timer is set to seconds. A write of no bytes behind it makes the peer say what it lacks, or acknowledge it all.
 * After 4, 8, 16 and 32 ms; then it is the timer's: a peer says it once only, and every post makes Soft-RoCE's timer
 * begin anew. */
#define NUDGE_FIRST_NS 4000000ull
#define NUDGE_LAST_NS 32000000ull

static void describe(struct ibv_send_wr *wr, struct ibv_sge *sge, const verbs_qp *qp, const void *from, uint32_t bytes,
                     uint64_t dst) {
    *sge = (struct ibv_sge){.addr = (uintptr_t)from, .length = bytes, .lkey = qp->hca->mr->lkey};
    *wr = (struct ibv_send_wr){.sg_list = sge, .num_sge = bytes ? 1 : 0, .opcode = IBV_WR_RDMA_WRITE};
    wr->wr.rdma.remote_addr = qp->remote_base + dst;
    wr->wr.rdma.rkey = qp->remote_key;
}

/* Hands a chain of `entries` work requests to the device as one post. */
static bool post(const verbs_impl *impl, verbs_qp *qp, struct ibv_send_wr *chain, uint8_t entries, verbs_sent sent) {
    struct ibv_send_wr *last = chain, *bad;
    uint64_t id = RR_ID(impl->generation, qp->posted, qp->peer, qp->planned);
    while (last->wr_id = id, last->next) last = last->next;
    last->wr_id = id | RR_ID_LAST;
    last->send_flags |= IBV_SEND_SIGNALED;
    if (ibv_post_send(qp->qp, chain, &bad)) {
        rr_verbs_qp_fail(qp, RR_ERR_QP_ERROR, 0); /* part of the chain may be out: no flag can be trusted to it */
        return false;
    }
    sent.entries = entries;
    qp->sent[qp->posted++ % RR_SQ_DEPTH] = sent;
    qp->room -= entries;
    return true;
}

static uint32_t immediate(const rr_provider *provider, const rr_write *write) {
    uint64_t line = (write->flag - provider->layout->flags) / sizeof(rr_flag);
    return IMM(line / RR_MAX_PATHS % provider->layout->phases, write->value);
}

enum rr_write_result rr_verbs_write(rr_provider *provider, const rr_write *write) {
    verbs_impl *impl = provider->impl;
    verbs_qp *qp = impl->qp[write->peer][write->path];
    if (qp->failed) return RR_WRITE_FAILED;
    if (qp->room < RR_SQ_FOR_NOTICES + 2) return RR_WRITE_AGAIN;
    struct ibv_send_wr wr[2];
    struct ibv_sge sge[2];
    uint8_t entries = 0;
    bool chained = write->flag && !provider->imm;
    if (write->bytes || !chained)
        describe(&wr[entries], &sge[entries], qp, provider->base + write->src, write->bytes, write->dst), entries++;
    if (write->flag && provider->imm) {
        wr[0].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr[0].imm_data = htobe32(immediate(provider, write));
    }
    if (chained) {
        describe(&wr[entries], &sge[entries], qp, &write->value, sizeof write->value, write->flag);
        wr[entries++].send_flags = IBV_SEND_INLINE;
    }
    if (entries == 2) wr[0].next = &wr[1];
    if (!post(impl, qp, wr, entries, (verbs_sent){.tag = write->tag})) return RR_WRITE_FAILED;
    impl->writes++;
    return RR_WRITE_POSTED;
}

void rr_verbs_notify(rr_provider *provider, uint32_t peer, const rr_notice *notice) {
    verbs_impl *impl = provider->impl;
    rr_verbs_take_notices(provider);
    uint64_t at = provider->layout->notices + provider->config->rank * sizeof(rr_notice);
    for (uint32_t path = 0; path < provider->config->paths[peer];
         path++) { /* every path: one of them may be what is broken */
        verbs_qp *qp = impl->qp[peer][path];
        if (!qp || qp->failed || !qp->room) continue;
        struct ibv_send_wr wr;
        struct ibv_sge sge;
        describe(&wr, &sge, qp, notice, RR_NOTICE_BYTES, at);
        wr.send_flags = IBV_SEND_INLINE;
        if (post(impl, qp, &wr, 1, (verbs_sent){.kind = VERBS_NOTICE}) && !qp->notices++)
            qp->notices_since_ns = rr_now_ns();
    }
}

void rr_verbs_nudge(rr_provider *provider, verbs_qp *qp, uint64_t now) {
    if (qp->posted == qp->retired || qp->retired != qp->retired_seen) {
        qp->retired_seen = qp->retired;
        qp->quiet_since_ns = now;
        qp->nudge_after_ns = NUDGE_FIRST_NS;
        return;
    }
    bool spent = qp->nudge_after_ns > NUDGE_LAST_NS;
    if (qp->failed || !qp->room || spent || now - qp->quiet_since_ns < qp->nudge_after_ns) return;
    qp->quiet_since_ns = now;
    qp->nudge_after_ns *= 2;
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    describe(&wr, &sge, qp, NULL, 0, provider->layout->notices);
    if (post(provider->impl, qp, &wr, 1, (verbs_sent){.kind = VERBS_NUDGE}))
        rr_count(&provider->proxy->stats.nudges, 1);
}

/* A peer's flag came as immediate data: raised here for the kernel, which acquires it as if the NIC had written it. The
 * payload was there before the completion. */
static void arrive(rr_provider *provider, verbs_qp *qp, const struct ibv_wc *wc) {
    const rr_layout *l = provider->layout;
    if (wc->status != IBV_WC_SUCCESS) return; /* the queue pair is on its way out: its sends say why */
    uint32_t imm = be32toh(wc->imm_data);
    if (IMM_PHASE(imm) >= l->phases || !rr_verbs_qp_receive(qp, wc->wr_id)) {
        rr_verbs_qp_fail(qp, RR_ERR_INTERNAL, 0);
        return;
    }
    /* Eleven bits of the sequence are enough: no peer is more than two operations away from where our kernel is. */
    uint64_t here = rr_load_relaxed(&((const rr_kernel_line *)(provider->base + l->kernel))->seq_started);
    int32_t ahead = (int32_t)((imm - (uint32_t)here) << (32 - IMM_SEQ_BITS)) >> (32 - IMM_SEQ_BITS);
    uint64_t seq = (here + (uint64_t)(int64_t)ahead) & ((1ull << RR_FLAG_SEQ_BITS) - 1);
    uint64_t at =
        rr_flag_offset(l->flags, (uint32_t)l->phases, qp->peer, (uint32_t)(seq % RR_SLOTS), IMM_PHASE(imm), qp->lane);
    rr_store_release((uint64_t *)(provider->base + at), RR_FLAG_VALUE(seq, IMM_DIGEST(imm)));
}

static uint32_t reason_of(enum ibv_wc_status status) {
    switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        return RR_ERR_INTERNAL; /* an address or a key was wrong: never the network's fault */
    default:
        return RR_ERR_QP_ERROR;
    }
}

/* Books one completion. True if the engine has to hear of it. */
static bool book(rr_provider *provider, const struct ibv_wc *wc, rr_completion *out) {
    verbs_impl *impl = provider->impl;
    verbs_qp *qp = impl->planned[RR_ID_PEER(wc->wr_id)][RR_ID_PATH(wc->wr_id)];
    if (qp && RR_ID_IS_RECEIVE(wc->wr_id)) return arrive(provider, qp, wc), false;
    if (!qp || !RR_ID_IS_OF(wc->wr_id, impl->generation)) {
        rr_count(&provider->proxy->stats.stale_completions, 1);
        return false;
    }
    verbs_sent *sent = &qp->sent[RR_ID_POSITION(wc->wr_id) % RR_SQ_DEPTH];
    bool last = wc->wr_id & RR_ID_LAST, fine = wc->status == IBV_WC_SUCCESS;
    if (!fine) rr_verbs_qp_fail(qp, reason_of(wc->status), wc->status);
    /* In an error a payload and its flag complete separately, both with an error: the first one is passed on. */
    bool report = sent->kind == VERBS_WRITE && !sent->reported && (last || !fine);
    sent->reported |= report;
    if (last) {
        qp->room += sent->entries;
        qp->retired++;
        if (sent->kind == VERBS_NOTICE) {
            qp->notices--;
            qp->notices_since_ns = rr_now_ns();
        }
    }
    if (!report) return false;
    impl->writes--;
    *out = (rr_completion){.tag = sent->tag, .peer = qp->peer, .path = qp->lane, .status = fine ? 0 : (int)qp->failed};
    return true;
}

uint32_t rr_verbs_poll(rr_provider *provider, rr_completion *out, uint32_t room) {
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
        for (int k = 0; k < n; k++) found += book(provider, &wc[k], &out[found]);
    }
    return found;
}

/* The engine polls while it has writes in flight. Otherwise only notices can be in the queues, and nobody would take
 * them out. */
void rr_verbs_take_notices(rr_provider *provider) {
    rr_completion none[16];
    verbs_impl *impl = provider->impl;
    if (!impl->writes) rr_verbs_poll(provider, none, 16);
}
