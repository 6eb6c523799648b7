/* One RC queue pair per (peer, path): made at open, connected once the peers' hellos are here. */
#include "verbs_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define RR_HOP_LIMIT 64

/* A queue pair gives up after (retries + 1) timeouts of 4.096 us * 2^timeout each (InfiniBand specification, "Local ACK
 * Timeout"). 4 to 6 retries: fewer would not outlive a lossy moment, and 7, the field's maximum, means "for ever" to
 * Soft-RoCE. 5, 6 or 7 equal waits and powers of two come to between 7/10 of a bound and all of it. A device may
 * stretch a timeout up to fourfold; the bound of unanswered notices holds all the same. */
verbs_retry rr_verbs_retry(uint32_t bound_ms) {
    verbs_retry best = {1, 4}; /* a timeout of 0 would mean "wait for ever" */
    uint64_t most = 0;
    for (uint8_t timeout = 1; timeout < 32; timeout++)
        for (uint8_t retries = 4; retries <= 6; retries++) {
            uint64_t ns = (retries + 1) * 4096ull << timeout;
            if (ns > most && ns <= bound_ms * 1000000ull) most = ns, best = (verbs_retry){timeout, retries};
        }
    return best;
}

int rr_verbs_qp_create(const rr_verbs *verbs, verbs_qp *qp, const char *what, rr_why why) {
    verbs_hca *hca = qp->hca;
    qp->room = RR_SQ_DEPTH;
    if (getrandom(&qp->psn, sizeof qp->psn, 0) != sizeof qp->psn)
        return rr_fail(why, "no random numbers: %s", strerror(errno));
    qp->psn &= 0xffffff;
    struct ibv_qp_init_attr init = {
        .qp_context = qp,
        .send_cq = hca->cq,
        .recv_cq = hca->cq,
        .cap = {.max_send_wr = RR_SQ_DEPTH,
                .max_recv_wr = RR_RQ_DEPTH,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = RR_NOTICE_BYTES},
        .qp_type = IBV_QPT_RC,
    };
    qp->qp = verbs->create_qp(hca->pd, &init);
    if (!qp->qp) return rr_fail(why, "%s cannot make a queue pair for %s: %s", hca->name, what, strerror(errno));
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = RR_PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int failed = verbs->modify_qp(qp->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (failed)
        return rr_fail(why, "%s cannot initialise its queue pair for %s: %s", hca->name, what, strerror(failed));
    return 0;
}

void rr_verbs_qp_end(const verbs_qp *qp, rr_hello_path *end) {
    memcpy(end->gid, qp->hca->gid.raw, sizeof end->gid);
    end->qpn = qp->qp->qp_num;
    end->rkey = qp->hca->mr->rkey;
    end->psn = qp->psn;
    end->mtu = (uint8_t)qp->hca->mtu;
}

static int cannot_reach(const verbs_hca *hca, const char *what, const rr_hello_path *end, int failed, rr_why why) {
    char ours[RR_GID_TEXT], theirs[RR_GID_TEXT];
    rr_gid_text(hca->gid.raw, ours);
    rr_gid_text(end->gid, theirs);
    const char *hint = "";
    if (failed == ENODATA) hint = "; the GID slot is empty: the address of this port moved, set up again";
    if (failed == ETIMEDOUT || failed == EHOSTUNREACH || failed == ENETUNREACH)
        hint = "; no route or no neighbour entry from one to the other on this device: check the cable, or bring the "
               "mesh up";
    return rr_fail(why, "%s cannot reach %s from %s (%s): %s%s", hca->name, theirs, ours, what, strerror(failed), hint);
}

int rr_verbs_qp_connect(const rr_verbs *verbs, verbs_qp *qp, const rr_hello_path *end, uint64_t base,
                        uint32_t flow_label, uint32_t bound_ms, const char *what, rr_why why) {
    if (end->mtu < IBV_MTU_2048 || end->mtu > IBV_MTU_4096)
        return rr_fail(why, "the peer's end of %s has no valid MTU; both ends must run the same version", what);
    int index = rr_gid_find(verbs, qp->hca->context, qp->hca->name, &qp->hca->gid, why);
    if (index < 0) return -1;
    qp->remote_base = base;
    qp->remote_key = end->rkey;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = end->mtu < qp->hca->mtu ? end->mtu : qp->hca->mtu,
        .dest_qp_num = end->qpn,
        .rq_psn = end->psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = RR_PORT,
                    .grh = {.sgid_index = (uint8_t)index, .hop_limit = RR_HOP_LIMIT, .flow_label = flow_label}},
    };
    memcpy(attr.ah_attr.grh.dgid.raw, end->gid, 16);
    int failed = verbs->modify_qp(qp->qp, &attr,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (failed) return cannot_reach(qp->hca, what, end, failed, why);
    verbs_retry retry = rr_verbs_retry(bound_ms);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = retry.timeout,
                                .retry_cnt = retry.retries,
                                .sq_psn = qp->psn,
                                .max_rd_atomic = 1};
    failed = verbs->modify_qp(qp->qp, &attr,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                  IBV_QP_MAX_QP_RD_ATOMIC);
    if (failed) return rr_fail(why, "%s cannot start its queue pair for %s: %s", qp->hca->name, what, strerror(failed));
    return 0;
}

void rr_verbs_qp_fail(verbs_qp *qp, uint32_t reason, uint32_t status) {
    if (qp->failed) return;
    qp->failed = reason;
    qp->status = status;
    qp->failed_ns = rr_now_ns();
}

bool rr_verbs_qp_receive(verbs_qp *qp, uint64_t id) {
    struct ibv_recv_wr *bad, wr = {.wr_id = id};
    return ibv_post_recv(qp->qp, &wr, &bad) == 0;
}
