/* What the verbs provider's files share. Everything here belongs to the progress thread, but for open, connect and
 * close. */
#ifndef RR_VERBS_IMPL_H
#define RR_VERBS_IMPL_H

#include "internal.h"
#include "verbs_api.h"

#define RR_HCAS 8
#define RR_PORT 1 /* every function we know has one port */
/* Send queue entries per queue pair: a write and its flag are two, so 126 stripes; far more than two operations have.
 */
#define RR_SQ_DEPTH 256
/* Kept free for notices: a stop notice must go out although the data path has filled the queue. */
#define RR_SQ_FOR_NOTICES 4
/* Receive queue entries: one for every flag that a peer can raise ahead of us, if flags arrive as immediate data: those
 * of two operations. */
#define RR_RQ_DEPTH 64
RR_STATIC_ASSERT(RR_RQ_DEPTH >= 2 * 2 * (RR_MAX_WORLD - 1), "a receive is there for every flag");
#define RR_NOTICE_BYTES 24 /* stop, beat, waiting */

/* One RDMA device that some path uses. One protection domain and one registration (the region) each. */
typedef struct verbs_hca {
    const char *name;
    uint32_t address; /* IPv4 of the GID to use, in network order; 0: the only one that the port has */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *cq;
    union ibv_gid gid;
    enum ibv_mtu mtu;
    uint32_t max_message;
    uint32_t paths;
    uint32_t index; /* in config.hca */
    bool inactive;  /* the port was not active when it was opened */
    bool port_down; /* said by an asynchronous event, until the next one says otherwise */
    bool lost;      /* the device failed as a whole */
} verbs_hca;

enum verbs_kind {
    VERBS_WRITE,  /* the engine's: a payload, a flag, or both */
    VERBS_NOTICE, /* its acknowledgement proves that the peer's host is alive */
    VERBS_NUDGE,  /* no bytes; makes the peer say what it lacks */
};

/* One post. Its last work request is signalled. */
typedef struct verbs_sent {
    uint64_t tag; /* the engine's */
    uint8_t entries;
    uint8_t kind;  /* enum verbs_kind */
    bool reported; /* an error was already passed on */
} verbs_sent;

/* One RC queue pair: one path to one peer. Completions of a queue pair come in the order of its posts. */
typedef struct verbs_qp {
    struct ibv_qp *qp;
    verbs_hca *hca;
    uint64_t remote_base;
    uint32_t remote_key;
    uint32_t psn;
    uint32_t room;             /* free send queue entries */
    uint32_t posted, retired;  /* count posts; index into sent[] modulo its size */
    uint32_t notices;          /* posted and not acknowledged */
    uint64_t notices_since_ns; /* when this many went unacknowledged: the oldest was posted, or the one before it was
                                  acknowledged */
    uint32_t failed;           /* enum rr_error, 0 while it works */
    uint32_t status;           /* enum ibv_wc_status of the first failed completion */
    uint64_t failed_ns;
    uint32_t peer, planned;  /* whose it is, and which of the planned paths */
    uint32_t lane;           /* as which path the session counts it */
    uint32_t retired_seen;   /* `retired` at the last tick, for nudges: */
    uint64_t quiet_since_ns; /* nothing was acknowledged since */
    uint64_t nudge_after_ns; /* doubles from one nudge to the next */
    verbs_sent sent[RR_SQ_DEPTH];
} verbs_qp;

typedef struct verbs_impl {
    const rr_verbs *verbs;
    verbs_hca hca[RR_HCAS];
    verbs_qp *planned[RR_MAX_WORLD][RR_MAX_PATHS]; /* by planned path; NULL where there is none, or none in use */
    verbs_qp *qp[RR_MAX_WORLD][RR_MAX_PATHS];      /* the same, by the session's path numbers */
    uint32_t generation; /* of the work request ids; another one after every change of paths */
    uint32_t writes;     /* the engine's posts not yet completed */
    uint32_t poll_from;
    uint64_t events_ns; /* when asynchronous events were last asked for */
} verbs_impl;

/* Work request id: of which generation, which post of which queue pair, and whether this is its last work request. Or a
 * receive of that queue pair. */
#define RR_ID(generation, position, peer, path)                                                                        \
    ((uint64_t)((generation) & 0x3fffu) << 48 | (uint64_t)(uint32_t)(position) << 16 | (uint64_t)(peer) << 8 | (path))
#define RR_ID_LAST (1ull << 63)
#define RR_ID_RECEIVE(peer, path) (1ull << 62 | (uint64_t)(peer) << 8 | (path))
#define RR_ID_IS_RECEIVE(id) ((bool)((id) >> 62 & 1))
#define RR_ID_IS_OF(id, generation) (((id) >> 48 & 0x3fffu) == ((generation) & 0x3fffu))
#define RR_ID_POSITION(id) ((uint32_t)((id) >> 16))
#define RR_ID_PEER(id) ((uint32_t)((id) >> 8 & 0xff))
#define RR_ID_PATH(id) ((uint32_t)((id) & 0xff))

/* verbs_wire.c */
enum rr_write_result rr_verbs_write(rr_provider *provider, const rr_write *write);
uint32_t rr_verbs_poll(rr_provider *provider, rr_completion *out, uint32_t room);
void rr_verbs_notify(rr_provider *provider, uint32_t peer, const rr_notice *notice);
void rr_verbs_take_notices(rr_provider *provider);
void rr_verbs_nudge(rr_provider *provider, verbs_qp *qp, uint64_t now_ns);

/* verbs_hca.c */
/* Opens the device by `name`, checks its port and finds its GID. On failure close() it all the same. */
int rr_verbs_hca_open(const rr_verbs *verbs, verbs_hca *hca, rr_why why);
/* Lets peers write into [base, base + bytes) and makes the completion queue. `devices`: how many will register the same
 * bytes, for the message about the lock limit. */
int rr_verbs_hca_register(const rr_verbs *verbs, verbs_hca *hca, void *base, uint64_t bytes, uint32_t cq_entries,
                          uint32_t devices, rr_why why);
void rr_verbs_hca_close(const rr_verbs *verbs, verbs_hca *hca);
/* Takes the asynchronous events, without blocking, and tells them. */
void rr_verbs_hca_events(rr_provider *provider, verbs_hca *hca);

/* verbs_gid.c */
#define RR_GID_NONE (-1)
#define RR_GID_WAIT_MS 2000 /* how long a port that is up may take to show its IPv4 GID */
/* Index of the one GID of `entries` that a path may use: RoCE v2, IPv4-mapped, of the port's own network device, and
 * `address` if that is not 0. RR_GID_NONE, with one sentence, if there is none or more than one. */
int rr_gid_choose(const struct ibv_gid_entry *entries, size_t count, const char *device, uint32_t address, rr_why why);
int rr_gid_resolve(const rr_verbs *verbs, struct ibv_context *context, const char *device, uint32_t address,
                   union ibv_gid *gid, rr_why why);
/* Where `gid` stands now: an index moves when a link flaps, the value does not. */
int rr_gid_find(const rr_verbs *verbs, struct ibv_context *context, const char *device, const union ibv_gid *gid,
                rr_why why);
#define RR_GID_TEXT 48
const char *rr_gid_text(const uint8_t gid[16], char out[RR_GID_TEXT]);

/* verbs_qp.c. `what` is the path in words, for messages. */
int rr_verbs_qp_create(const rr_verbs *verbs, verbs_qp *qp, const char *what, rr_why why);
/* What a peer must know of a queue pair. */
void rr_verbs_qp_end(const verbs_qp *qp, rr_hello_path *end);
/* `base`: the peer's address that offsets are added to. `bound_ms`: when it must have given up a peer that does not
 * answer. Asks the kernel for the peer's MAC, which may take a second. */
int rr_verbs_qp_connect(const rr_verbs *verbs, verbs_qp *qp, const rr_hello_path *end, uint64_t base,
                        uint32_t flow_label, uint32_t bound_ms, const char *what, rr_why why);
/* Marks the packets that a neighbour's NIC must forward: becomes UDP source port 65535, which the mesh's rules match.
 */
#define RR_FORWARD_FLOW_LABEL 16383u
typedef struct verbs_retry {
    uint8_t timeout, retries; /* as a queue pair's attributes */
} verbs_retry;
/* The longest that a queue pair may try for without exceeding `bound_ms`. */
verbs_retry rr_verbs_retry(uint32_t bound_ms);
/* The queue pair is of no use any more. The first reason stands. */
void rr_verbs_qp_fail(verbs_qp *qp, uint32_t reason, uint32_t status);
/* A receive without a buffer, for the immediate data of one flag. False if the queue pair refuses. */
bool rr_verbs_qp_receive(verbs_qp *qp, uint64_t id);

#endif
