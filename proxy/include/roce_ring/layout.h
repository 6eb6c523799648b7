/* The one description of every byte that two parties share: kernel and proxy, proxy and peer, C and Python.
 *
 * Included by C11, C++17 and CUDA (nvcc and NVRTC). No pointer, no enum, no bool crosses this file: fixed-width fields
 * only, each with an offset asserted below. Changing anything here changes the layout hash, and ranks with different
 * hashes refuse to talk. Raise RR_WIRE_VERSION with every change that is meant.
 */
#ifndef ROCE_RING_LAYOUT_H
#define ROCE_RING_LAYOUT_H

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif

#ifdef __cplusplus
#define RR_STATIC_ASSERT(cond, what) static_assert(cond, what)
#else
#define RR_STATIC_ASSERT(cond, what) _Static_assert(cond, what)
#endif

#define RR_MAGIC 0x474e495245434f52ull /* "ROCERING" in memory order */
#define RR_WIRE_VERSION 3

/* A flag, or any word that another party polls, has a line to itself. 128 bytes: the L2 line of the GPUs and the pair
 * of 64-byte lines that CPUs prefetch together. */
#define RR_LINE 128
#define RR_PAGE 4096
#define RR_MAX_WORLD 16
#define RR_MAX_PATHS 4 /* two planes, or two planes both ways round */
#define RR_SLOTS 2     /* see "Two slots" in kernels/collective.cuh for the proof that two are enough */
#define RR_COMMANDS 256
#define RR_RECORDS 256
/* Most commands one operation publishes: ring_bidir sends two a step for 2(N-1) steps. Two operations can be unconsumed
 * at once (a rank may finish one before its own proxy has seen the command), never three. */
#define RR_MAX_COMMANDS_PER_OP (4 * (RR_MAX_WORLD - 1))
RR_STATIC_ASSERT(RR_COMMANDS >= 2 * RR_MAX_COMMANDS_PER_OP, "the command ring can never be lapped");

enum rr_error {
#define RR_ERROR(name, value, meaning, hint) RR_ERR_##name = value,
#include <roce_ring/errors.def>
#undef RR_ERROR
};

/* What a command asks of the proxy. */
#define RR_OP_BROADCAST 1u /* the same bytes to every peer in the mask */
#define RR_OP_SCATTER 2u   /* bytes [p * chunk, (p + 1) * chunk) to peer p */
#define RR_OP_PUT 3u       /* one range to the one peer in the mask */

/* How one command's destinations are separated in time. */
#define RR_WAVE_ALL 0u    /* everything at once, nearest ring position first */
#define RR_WAVE_PHASED 1u /* one destination at a time: in phase p to ring position me + 1 + p */
#define RR_WAVE_TWO 2u    /* direct peers, then forwarded ones */

/* One line of work from a kernel. `commit` is written last, with release order, and holds the command's index + 1:
 * memory that was never written reads as "no command", and an old lap reads as an older index. */
typedef struct rr_command {
    uint64_t commit;
    uint64_t seq;   /* operation this belongs to; below 2^48 */
    uint64_t src;   /* offset in this rank's region */
    uint64_t dst;   /* offset in the peer's region */
    uint32_t bytes; /* whole payload */
    uint32_t chunk; /* scatter: bytes per peer; otherwise 0 */
    uint16_t peers; /* bit p: rank p */
    uint8_t op;
    uint8_t phase;
    uint8_t wave;
    uint8_t mode;    /* RR_MODE_*, for the flight recorder only */
    uint16_t digest; /* of what the operation is; travels in the flags it raises */
    uint8_t reserved[16];
} rr_command;

/* A word that ends a session. Layout of every abort, stop-notice and fault word; 0 means "none". */
#define RR_ABORT_WORD(reason, culprit, phase, path, seq)                                                               \
    ((uint64_t)(uint8_t)(reason) | (uint64_t)(uint8_t)(culprit) << 8 | (uint64_t)(uint8_t)(phase) << 16 |              \
     (uint64_t)(uint8_t)(path) << 24 | (uint64_t)(uint32_t)(seq) << 32)
#define RR_ABORT_REASON(word) ((uint32_t)((word) & 0xff))
#define RR_ABORT_CULPRIT(word) ((uint32_t)((word) >> 8 & 0xff))
#define RR_ABORT_PHASE(word) ((uint32_t)((word) >> 16 & 0xff))
#define RR_ABORT_PATH(word) ((uint32_t)((word) >> 24 & 0xff))
#define RR_ABORT_SEQ(word) ((uint32_t)((word) >> 32))
#define RR_NOBODY 0xffu /* culprit: no rank in particular */

/* Written by host threads only, first writer wins (compare and swap); read by everybody. */
typedef struct rr_abort {
    uint64_t word;
    uint8_t reserved[120];
} rr_abort;

/* Written by this rank's kernel only. A line of its own, so that no atomic ever crosses the bus: the proxy turns it
 * into the abort word. Except `sleeping`: a CPU kernel sets it, and whoever raises a flag it sleeps for (a
 * peer's shm provider) takes it back and wakes it. */
typedef struct rr_kernel_line {
    uint64_t seq_started;
    uint64_t seq_done;
    uint64_t fault;
    uint32_t sleeping; /* futex word of a CPU kernel: peers whose flag it sleeps for, as a mask */
    uint32_t reserved0;
    uint8_t reserved[96];
} rr_kernel_line;

/* Written by the proxy thread only. */
typedef struct rr_progress {
    uint64_t heartbeat;     /* slow ticks, every few milliseconds while awake */
    uint64_t consumed;      /* commands taken from the ring */
    uint64_t seq_posted;    /* newest operation with a command posted */
    uint64_t seq_completed; /* newest operation all of whose writes completed */
    uint32_t napping;       /* futex word: 1 while the thread sleeps */
    uint32_t reserved0;
    uint8_t reserved[88];
} rr_progress;

/* What a peer tells us outside any operation. Each word stands alone. */
typedef struct rr_notice {
    uint64_t stop;    /* abort word of the sender; sticky */
    uint64_t beat;    /* counts "are you alive" notices */
    uint64_t waiting; /* ranks the sender has waited for longer than the late limit, as a mask */
    uint8_t reserved[104];
} rr_notice;

/* wait[src][path]: raised by the waiting kernel thread once it has waited long, cleared when the flag came. */
#define RR_WAIT_WORD(phase, seq) (1ull | (uint64_t)(uint8_t)(phase) << 8 | (uint64_t)(uint32_t)(seq) << 32)
typedef struct rr_wait_line {
    uint64_t word;
    uint8_t reserved[120];
} rr_wait_line;

/* Value of a flag: the operation's number in the low 48 bits (3,000 operations a second for 2,900 years), and above it
 * a digest of what the operation is, so that ranks that run different collectives learn it from the first flag and not
 * from wrong sums. */
#define RR_FLAG_SEQ_BITS 48
#define RR_FLAG_VALUE(seq, digest) ((uint64_t)(seq) | (uint64_t)(uint16_t)(digest) << RR_FLAG_SEQ_BITS)
/* How far a flag is ahead of (> 0) or behind (< 0) an operation. */
#define RR_FLAG_AHEAD(value, seq) ((int64_t)(((value) - (seq)) << (64 - RR_FLAG_SEQ_BITS)) >> (64 - RR_FLAG_SEQ_BITS))

/* One writer (the peer `src`), one reader (this rank's kernel). */
typedef struct rr_flag {
    uint64_t value;
    uint8_t reserved[120];
} rr_flag;

/* Flight recorder entry, written by the proxy. Times in ns of CLOCK_MONOTONIC. */
typedef struct rr_record {
    uint64_t seq;
    uint64_t first_command_ns; /* first write of the first command posted */
    uint64_t last_posted_ns;   /* first write of the last command posted */
    uint64_t completed_ns;     /* 0 while in flight */
    uint32_t bytes;            /* payload bytes sent to all peers together */
    uint16_t commands;
    uint16_t late_peers; /* ranks reported late during this operation, as a mask */
    uint8_t mode;
    uint8_t reserved[23];
} rr_record;

/* First page of a region. Written once by its owner before anybody can see the region. */
typedef struct rr_header {
    uint64_t magic;
    uint32_t wire_version;
    uint32_t world;
    uint32_t rank;
    uint32_t phases;
    uint64_t layout_hash;
    uint64_t session[2];
    uint64_t slot_bytes;
    uint64_t region_bytes;
} rr_header;

/* Offsets of a region's parts; a pure function of (world, slot_bytes), so all ranks' regions look alike and an offset
 * means the same in each. */
typedef struct rr_layout {
    uint64_t world;
    uint64_t slot_bytes;
    uint64_t phases;
    uint64_t commands; /* rr_command[RR_COMMANDS] */
    uint64_t abort;    /* rr_abort */
    uint64_t kernel;   /* rr_kernel_line */
    uint64_t progress; /* rr_progress */
    uint64_t notices;  /* rr_notice[world] */
    uint64_t waits;    /* rr_wait_line[world][RR_MAX_PATHS] */
    uint64_t flags;    /* rr_flag[world][RR_SLOTS][phases][RR_MAX_PATHS] */
    uint64_t records;  /* rr_record[RR_RECORDS] */
    uint64_t send;     /* [RR_SLOTS][2 * slot_bytes]: staged payload, or fp32 partial sums of a 16-bit one */
    uint64_t recv;     /* [RR_SLOTS][world * slot_bytes] */
    uint64_t region_bytes;
} rr_layout;

/* What a rank tells its peers before anything moves. Sent over the exchange, never over the fabric. */
typedef struct rr_hello_path {
    uint8_t gid[16];
    uint32_t qpn;
    uint32_t rkey;
    uint32_t psn;
    uint8_t mtu; /* enum ibv_mtu */
    uint8_t hops;
    uint8_t reserved[2];
} rr_hello_path;

#define RR_PROVIDER_SHM 1u
#define RR_PROVIDER_VERBS 2u

typedef struct rr_hello {
    uint64_t magic;
    uint32_t wire_version;
    uint32_t hello_bytes;
    uint32_t world;
    uint32_t rank;
    uint64_t layout_hash;
    uint64_t session[2];
    uint64_t slot_bytes;
    uint64_t region_bytes;
    uint64_t region_addr;   /* what a peer adds offsets to (verbs) */
    uint64_t process_token; /* random per process: equal means "same process", whatever the pid namespace says */
    uint32_t pid;
    uint32_t provider;
    uint32_t stripe_min_bytes;
    uint32_t reserved0;
    char host[64];
    char region_name[128]; /* shm: path of the region's file */
    uint8_t paths[RR_MAX_WORLD];
    rr_hello_path path[RR_MAX_WORLD][RR_MAX_PATHS];
} rr_hello;

/* ---- derived numbers: the same on both ends of every transfer ---- */

#ifdef __CUDACC__
#define RR_SHARED_FN static __host__ __device__ inline
#else
#define RR_SHARED_FN static inline
#endif

RR_SHARED_FN uint64_t rr_round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

RR_SHARED_FN uint32_t rr_log2_ceil(uint32_t world) {
    uint32_t bits = 0;
    while ((1u << bits) < world) bits++;
    return bits;
}

/* Flags one source may raise in one operation: 2(N-1) steps of a ring, twice 2*log2(N) of the two halves of halving. */
RR_SHARED_FN uint32_t rr_phases(uint32_t world) {
    uint32_t ring = 2 * (world - 1), halving = 4 * rr_log2_ceil(world);
    uint32_t most = ring > halving ? ring : halving;
    return most > 4 ? most : 4;
}

RR_SHARED_FN uint64_t rr_flag_offset(uint64_t flags, uint32_t phases, uint32_t src, uint32_t slot, uint32_t phase,
                                     uint32_t path) {
    return flags + ((((uint64_t)src * RR_SLOTS + slot) * phases + phase) * RR_MAX_PATHS + path) * sizeof(rr_flag);
}

/* Paths that carry a transfer of `bytes`: all of them from `stripe_min` up, else the first alone. */
RR_SHARED_FN uint32_t rr_paths_used(uint32_t bytes, uint32_t paths, uint32_t stripe_min) {
    return bytes >= stripe_min && bytes >= 16u * paths ? paths : 1;
}

/* Where path `path` of `used` begins within a transfer of `bytes`: 16-byte units, the remainder to the first paths. The
 * end of a path is the beginning of the next. */
RR_SHARED_FN uint32_t rr_stripe_begin(uint32_t bytes, uint32_t used, uint32_t path) {
    uint32_t units = bytes / 16, each = units / used, extra = units % used;
    if (path >= used) return bytes;
    return 16u * (path * each + (path < extra ? path : extra));
}

/* Bytes of chunk p when `bytes` are cut in chunks of `chunk`; 0 past the end. */
RR_SHARED_FN uint32_t rr_chunk_bytes(uint32_t bytes, uint32_t chunk, uint32_t p) {
    uint64_t begin = (uint64_t)p * chunk;
    if (begin >= bytes) return 0;
    return bytes - begin < chunk ? (uint32_t)(bytes - begin) : chunk;
}

/* Slot size for a capacity in bytes. The extra page holds what rounding chunks up to 16 bytes costs: at most 2 * 16 * N
 * bytes over both halves of a split payload, twice for fp32 partial sums. */
RR_SHARED_FN uint64_t rr_slot_bytes(uint64_t capacity) { return rr_round_up(capacity, RR_PAGE) + RR_PAGE; }
RR_STATIC_ASSERT(2 * 2 * 16 * RR_MAX_WORLD <= RR_PAGE, "rounding fits the spare page");

RR_SHARED_FN rr_layout rr_layout_of(uint32_t world, uint64_t slot_bytes) {
    rr_layout l;
    uint64_t at = RR_PAGE; /* the header's page */
    l.world = world;
    l.slot_bytes = slot_bytes;
    l.phases = rr_phases(world);
    l.commands = at, at += RR_COMMANDS * sizeof(rr_command);
    l.abort = at, at += sizeof(rr_abort);
    l.kernel = at, at += sizeof(rr_kernel_line);
    l.progress = at, at += sizeof(rr_progress);
    l.notices = at, at += world * sizeof(rr_notice);
    l.waits = at, at += world * RR_MAX_PATHS * sizeof(rr_wait_line);
    l.flags = at, at += world * RR_SLOTS * l.phases * RR_MAX_PATHS * sizeof(rr_flag);
    l.records = at, at += RR_RECORDS * sizeof(rr_record);
    at = rr_round_up(at, RR_PAGE);
    l.send = at, at += RR_SLOTS * 2 * slot_bytes;
    l.recv = at, at += RR_SLOTS * world * slot_bytes;
    l.region_bytes = at;
    return l;
}

/* ---- every field, once: the asserts here, the table Python checks its view against (layout.c), the layout hash ----
 */
/* clang-format off */
#define RR_FIELDS(X) \
    X(rr_command, commit, 0, 8) \
    X(rr_command, seq, 8, 8) \
    X(rr_command, src, 16, 8) \
    X(rr_command, dst, 24, 8) \
    X(rr_command, bytes, 32, 4) \
    X(rr_command, chunk, 36, 4) \
    X(rr_command, peers, 40, 2) \
    X(rr_command, op, 42, 1) \
    X(rr_command, phase, 43, 1) \
    X(rr_command, wave, 44, 1) \
    X(rr_command, mode, 45, 1) \
    X(rr_command, digest, 46, 2) \
    X(rr_abort, word, 0, 8) \
    X(rr_kernel_line, seq_started, 0, 8) \
    X(rr_kernel_line, seq_done, 8, 8) \
    X(rr_kernel_line, fault, 16, 8) \
    X(rr_kernel_line, sleeping, 24, 4) \
    X(rr_progress, heartbeat, 0, 8) \
    X(rr_progress, consumed, 8, 8) \
    X(rr_progress, seq_posted, 16, 8) \
    X(rr_progress, seq_completed, 24, 8) \
    X(rr_progress, napping, 32, 4) \
    X(rr_notice, stop, 0, 8) \
    X(rr_notice, beat, 8, 8) \
    X(rr_notice, waiting, 16, 8) \
    X(rr_wait_line, word, 0, 8) \
    X(rr_flag, value, 0, 8) \
    X(rr_record, seq, 0, 8) \
    X(rr_record, first_command_ns, 8, 8) \
    X(rr_record, last_posted_ns, 16, 8) \
    X(rr_record, completed_ns, 24, 8) \
    X(rr_record, bytes, 32, 4) \
    X(rr_record, commands, 36, 2) \
    X(rr_record, late_peers, 38, 2) \
    X(rr_record, mode, 40, 1) \
    X(rr_header, magic, 0, 8) \
    X(rr_header, wire_version, 8, 4) \
    X(rr_header, world, 12, 4) \
    X(rr_header, rank, 16, 4) \
    X(rr_header, phases, 20, 4) \
    X(rr_header, layout_hash, 24, 8) \
    X(rr_header, session, 32, 16) \
    X(rr_header, slot_bytes, 48, 8) \
    X(rr_header, region_bytes, 56, 8) \
    X(rr_hello_path, gid, 0, 16) \
    X(rr_hello_path, qpn, 16, 4) \
    X(rr_hello_path, rkey, 20, 4) \
    X(rr_hello_path, psn, 24, 4) \
    X(rr_hello_path, mtu, 28, 1) \
    X(rr_hello_path, hops, 29, 1) \
    X(rr_hello, magic, 0, 8) \
    X(rr_hello, wire_version, 8, 4) \
    X(rr_hello, hello_bytes, 12, 4) \
    X(rr_hello, world, 16, 4) \
    X(rr_hello, rank, 20, 4) \
    X(rr_hello, layout_hash, 24, 8) \
    X(rr_hello, session, 32, 16) \
    X(rr_hello, slot_bytes, 48, 8) \
    X(rr_hello, region_bytes, 56, 8) \
    X(rr_hello, region_addr, 64, 8) \
    X(rr_hello, process_token, 72, 8) \
    X(rr_hello, pid, 80, 4) \
    X(rr_hello, provider, 84, 4) \
    X(rr_hello, stripe_min_bytes, 88, 4) \
    X(rr_hello, host, 96, 64) \
    X(rr_hello, region_name, 160, 128) \
    X(rr_hello, paths, 288, 16) \
    X(rr_hello, path, 304, 2048)
/* clang-format on */

/* clang-format off */
#define RR_STRUCTS(X) \
    X(rr_command, 64) \
    X(rr_abort, RR_LINE) \
    X(rr_kernel_line, RR_LINE) \
    X(rr_progress, RR_LINE) \
    X(rr_notice, RR_LINE) \
    X(rr_wait_line, RR_LINE) \
    X(rr_flag, RR_LINE) \
    X(rr_record, 64) \
    X(rr_header, 64) \
    X(rr_hello_path, 32) \
    X(rr_hello, 2352)
/* clang-format on */

#ifdef __CUDACC_RTC__ /* has no offsetof; nvcc, C and C++ compile the same header and check it all */
#define RR_ASSERT_FIELD(type, field, offset, bytes)                                                                    \
    RR_STATIC_ASSERT(sizeof(((type *)0)->field) == (bytes), #type "." #field);
#else
#define RR_ASSERT_FIELD(type, field, offset, bytes)                                                                    \
    RR_STATIC_ASSERT(offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (bytes), #type "." #field);
#endif
#define RR_ASSERT_STRUCT(type, bytes) RR_STATIC_ASSERT(sizeof(type) == (bytes), #type);
RR_FIELDS(RR_ASSERT_FIELD)
RR_STRUCTS(RR_ASSERT_STRUCT)

#endif
