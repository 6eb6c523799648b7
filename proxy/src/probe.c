/* The probe of probe.h: the verbs provider's own device, GID and queue pair code with one queue pair and no protocol.
 */
#define _GNU_SOURCE
#include <roce_ring/probe.h>

#include "verbs_impl.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

RR_STATIC_ASSERT(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "an endpoint is its bytes in memory");

#define WHAT "the probe"
/* Retry budget of the queue pair: a healthy path answers in microseconds, and at 1 % loss six retries are plenty. */
#define BUDGET_MS 500

struct rr_probe {
    const rr_verbs *verbs;
    verbs_hca hca;
    verbs_qp qp;
    char device[32];
    uint32_t flow_label;
    uint32_t bytes;
    uint32_t peer_bytes;
    uint8_t *base; /* [bytes] to send from, then [bytes] that the peer writes into */
    bool connected, failed;
};

rr_probe *rr_probe_open(const char *device, uint32_t address, uint32_t flow_label, uint32_t bytes, char *text,
                        size_t text_bytes) {
    rr_why why = {text, text_bytes};
    if (!device[0] || strlen(device) >= sizeof((rr_probe *)0)->device)
        return rr_fail(why, "'%.40s' is no RDMA device name; expected one as in /sys/class/infiniband", device), NULL;
    if (!bytes || bytes > RR_PROBE_MAX_BYTES || bytes % 8)
        return rr_fail(why, "a probe of %u bytes; expected a multiple of 8 to %u", bytes, RR_PROBE_MAX_BYTES), NULL;
    if (flow_label >> 20)
        return rr_fail(why, "flow label %u does not fit in 20 bits; take the plan's", flow_label), NULL;
    const rr_verbs *verbs = rr_verbs_load(why);
    if (!verbs) return NULL;
    rr_probe *probe = calloc(1, sizeof *probe);
    if (!probe) return rr_fail(why, "out of memory"), NULL;
    strcpy(probe->device, device);
    probe->verbs = verbs;
    probe->flow_label = flow_label;
    probe->bytes = bytes;
    probe->hca.name = probe->device;
    probe->hca.address = address;
    probe->qp.hca = &probe->hca;
    void *base = mmap(NULL, 2ull * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) {
        rr_fail(why, "no memory for a probe of %u bytes: %s", bytes, strerror(errno));
        goto failed;
    }
    probe->base = base;
    if (rr_verbs_hca_open(verbs, &probe->hca, why) < 0) goto failed;
    if (rr_verbs_hca_register(verbs, &probe->hca, base, 2ull * bytes, RR_SQ_DEPTH, 1, why) < 0) goto failed;
    if (rr_verbs_qp_create(verbs, &probe->qp, WHAT, why) < 0) goto failed;
    return probe;
failed:
    rr_probe_close(probe);
    return NULL;
}

void rr_probe_endpoint(const rr_probe *probe, rr_endpoint *out) {
    *out = (rr_endpoint){
        .magic = RR_PROBE_MAGIC, .bytes = probe->bytes, .address = (uint64_t)(uintptr_t)(probe->base + probe->bytes)};
    rr_verbs_qp_end(&probe->qp, &out->end);
}

int rr_probe_connect(rr_probe *probe, const rr_endpoint *peer, char *text, size_t text_bytes) {
    rr_why why = {text, text_bytes};
    if (probe->connected) return rr_fail(why, "this probe is connected already; make one per peer");
    if (peer->magic != RR_PROBE_MAGIC || !peer->bytes || !peer->address || !peer->end.qpn || !peer->end.rkey)
        return rr_fail(why, "what came from the peer is no probe's endpoint; both ends must run the same version");
    if (rr_verbs_qp_connect(probe->verbs, &probe->qp, &peer->end, peer->address, probe->flow_label, BUDGET_MS, WHAT,
                            why) < 0)
        return -1;
    probe->peer_bytes = peer->bytes;
    probe->connected = true;
    return 0;
}

static int explain(const rr_probe *probe, const struct ibv_wc *wc, rr_why why) {
    const char *hint = "run the doctor on both nodes";
    if (wc->status == IBV_WC_RETRY_EXC_ERR)
        hint = "nothing answers: check the cable, the MTU of every port on the way, and the rule of each relay";
    else if (wc->status == IBV_WC_REM_ACCESS_ERR)
        hint = "the peer's probe was closed or is another one: exchange endpoints again";
    else if (wc->status == IBV_WC_LOC_QP_OP_ERR || wc->status == IBV_WC_WR_FLUSH_ERR)
        hint = "the packet could not leave: check this port's link, route and neighbour entry";
    return rr_fail(why, "%s: a write failed with '%s' (status %d, vendor error 0x%x); %s", probe->device,
                   probe->verbs->wc_status_str(wc->status), (int)wc->status, wc->vendor_err, hint);
}

/* One write to its end. */
static int one_write(rr_probe *probe, uint32_t bytes, uint32_t limit_ms, uint64_t *latency_ns, rr_why why) {
    struct ibv_sge sge = {.addr = (uintptr_t)probe->base, .length = bytes, .lkey = probe->hca.mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {.remote_addr = probe->qp.remote_base, .rkey = probe->qp.remote_key}};
    uint64_t begin = rr_now_ns(), until = begin + limit_ms * 1000000ull;
    int failed = ibv_post_send(probe->qp.qp, &wr, &bad);
    if (failed) return rr_fail(why, "%s refused a write: %s", probe->device, strerror(failed));
    for (;;) {
        struct ibv_wc wc;
        int n = ibv_poll_cq(probe->hca.cq, 1, &wc);
        *latency_ns = rr_now_ns() - begin;
        if (n < 0) return rr_fail(why, "the completion queue of %s failed; run the doctor", probe->device);
        if (n) return wc.status == IBV_WC_SUCCESS ? 0 : explain(probe, &wc, why);
        if (begin + *latency_ns >= until)
            return rr_fail(why,
                           "%s: a write of %u bytes was not acknowledged within %u ms; check the cable, the MTU of "
                           "every port on the way, and the rule of each relay",
                           probe->device, bytes, limit_ms);
        sched_yield();
    }
}

int rr_probe_write(rr_probe *probe, uint32_t count, uint32_t bytes, uint32_t limit_ms, uint64_t *latency_ns, char *text,
                   size_t text_bytes) {
    rr_why why = {text, text_bytes};
    if (!probe->connected || probe->failed)
        return rr_fail(why, "%s: this probe %s", probe->device,
                       probe->failed ? "has failed; make a new one" : "is not connected; give it its peer's endpoint");
    if (!count || count > RR_PROBE_MAX_COUNT || !limit_ms || limit_ms > RR_PROBE_MAX_MS)
        return rr_fail(why, "%u writes of at most %u ms each; expected 1 to %u writes and 1 to %u ms", count, limit_ms,
                       RR_PROBE_MAX_COUNT, RR_PROBE_MAX_MS);
    if (!bytes || bytes > probe->bytes || bytes > probe->peer_bytes)
        return rr_fail(why, "a write of %u bytes; expected 1 to %u, which both probes have", bytes,
                       probe->bytes < probe->peer_bytes ? probe->bytes : probe->peer_bytes);
    for (uint32_t done = 0; done < count; done++)
        if (one_write(probe, bytes, limit_ms, &latency_ns[done], why) < 0) {
            probe->failed = true;
            return (int)done;
        }
    return (int)count;
}

void rr_probe_close(rr_probe *probe) {
    if (!probe) return;
    if (probe->qp.qp) probe->verbs->destroy_qp(probe->qp.qp);
    rr_verbs_hca_close(probe->verbs, &probe->hca);
    if (probe->base) munmap(probe->base, 2ull * probe->bytes);
    free(probe);
}
