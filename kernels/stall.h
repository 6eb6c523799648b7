/* A trace of many small moves between ranks' memories, operation after operation in one launch: finds what comes and
 * goes with time, which a median or a short race cannot see. One launch a rank, all at the same time.
 *
 * Two observers: ranks, which meet by flags in each other's memory; and the host, which reads the stamps when all
 * launches are over.
 */
#ifndef ROCE_RING_STALL_H
#define ROCE_RING_STALL_H

#include "op.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RR_STALL_STEPS 32 /* a ring of 9 ranks, which is the longest, takes all of them */
#define RR_STALL_STAMPS 3 /* an operation: begun, met, ended */
#define RR_STALL_LINE 128 /* between flags: of different peers, so that none waits for another's line */

/* RR_STALL_READ: from the peers' own payloads. WRITE: into this rank's slot at the peers. TAKE: from the peers' slots
 * here. HOST_*: the host's memory; no peers. */
enum { RR_STALL_READ, RR_STALL_WRITE, RR_STALL_TAKE, RR_STALL_HOST_READ, RR_STALL_HOST_WRITE };

/* All peers at the same time, a unit each in turn. */
typedef struct rr_stall_step {
    uint32_t kind;
    uint32_t peers; /* a mask of ranks */
    uint32_t bytes; /* from or to each; a multiple of 16 */
    uint32_t meet;  /* 1: all ranks meet behind it */
} rr_stall_step;

typedef struct rr_stall {
    uint64_t data[RR_MAX_WORLD];  /* each rank's memory: a slot a rank, its own being its payload */
    uint64_t flags[RR_MAX_WORLD]; /* each rank's: a line of RR_STALL_LINE bytes a block and rank, zero at first */
    uint64_t host;                /* slot_bytes of the host's memory */
    uint64_t stamps;              /* this rank's, ns of its clock: RR_STALL_STAMPS words an operation, zero at first */
    uint64_t lost;                /* this rank's word: 1 + a rank that did not come within limit_ns; zero at first */
    uint64_t grid;                /* this rank's: two words for the blocks of a launch, zero at first */
    uint64_t slot_bytes;
    uint64_t met; /* how often these flags were used before */
    uint64_t limit_ns;
    uint32_t rank;
    uint32_t world;
    uint32_t ops;
    uint32_t steps;
    rr_stall_step step[RR_STALL_STEPS];
} rr_stall;

/* clang-format off */
#define RR_STALL_FIELDS(X) \
    X(rr_stall_step, kind, 0, 4) \
    X(rr_stall_step, peers, 4, 4) \
    X(rr_stall_step, bytes, 8, 4) \
    X(rr_stall_step, meet, 12, 4) \
    X(rr_stall, data, 0, 128) \
    X(rr_stall, flags, 128, 128) \
    X(rr_stall, host, 256, 8) \
    X(rr_stall, stamps, 264, 8) \
    X(rr_stall, lost, 272, 8) \
    X(rr_stall, grid, 280, 8) \
    X(rr_stall, slot_bytes, 288, 8) \
    X(rr_stall, met, 296, 8) \
    X(rr_stall, limit_ns, 304, 8) \
    X(rr_stall, rank, 312, 4) \
    X(rr_stall, world, 316, 4) \
    X(rr_stall, ops, 320, 4) \
    X(rr_stall, steps, 324, 4) \
    X(rr_stall, step, 328, 512)
#define RR_STALL_STRUCTS(X) \
    X(rr_stall_step, 16) \
    X(rr_stall, 840)
/* clang-format on */
RR_STALL_FIELDS(RR_ASSERT_FIELD)
RR_STALL_STRUCTS(RR_ASSERT_STRUCT)

#ifndef __CUDACC__
/* One block of a rank on the calling thread. 0; or 1 if a rank did not come: `lost` says which. */
__attribute__((visibility("default"))) int rr_stall_cpu(const rr_stall *s, uint32_t block, uint32_t blocks);
#endif

#ifdef __cplusplus
}
#endif
#endif
