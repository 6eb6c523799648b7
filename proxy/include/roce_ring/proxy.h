/* The proxy's C API: one opaque handle per rank and session. Stable: structs start with their own size and only grow.
 *
 * Life of a handle:  create -> hello -> (exchange hellos) -> connect -> start -> ... -> stop -> destroy.
 * Every call may be made from any thread; calls that change the session must not race each other. Functions returning
 * int return 0, or -1 with one sentence in `why` (never truncated silently: it ends in "..." if it did not fit).
 */
#ifndef ROCE_RING_PROXY_H
#define ROCE_RING_PROXY_H

#include <roce_ring/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RR_API __attribute__((visibility("default")))

/* A session only ever moves down this list (RUNNING may be skipped). */
enum rr_state {
    RR_STATE_INIT = 0,      /* created; peers unknown. Left by connect. */
    RR_STATE_CONNECTED = 1, /* every peer's region is reachable; no thread yet. Left by start. */
    RR_STATE_RUNNING =
        2, /* the progress thread serves commands. Left by stop (DRAINING) or by an abort word (ABORTED). */
    RR_STATE_DRAINING = 3, /* stop was asked: posted writes finish, peers are told, then CLOSED. */
    RR_STATE_ABORTED = 4,  /* the abort word is set: commands are ignored, peers are told. Sticky. Left by stop. */
    RR_STATE_CLOSED = 5,   /* the thread has ended. */
};

typedef struct rr_config {
    uint32_t struct_bytes; /* sizeof(rr_config) of the caller */
    uint32_t world;
    uint32_t rank;
    uint32_t provider; /* RR_PROVIDER_* */
    uint64_t session[2];
    uint64_t slot_bytes; /* rr_slot_bytes(capacity) */
    uint64_t first_seq;  /* sequence before the first operation; 0 outside tests of the wrap */
    uint32_t stripe_min_bytes;
    uint32_t forward_window_bytes; /* unacknowledged bytes on a forwarded path; 0 = no bound */
    uint32_t forward_chunk_bytes;
    uint32_t late_ms;         /* a waited-for peer is reported late after this long */
    uint32_t peer_timeout_ms; /* hard deadline of every wait */
    uint32_t dead_ms;         /* a failing path or silent peer is given up after this long (verbs: QP retry budget) */
    uint64_t idle_spins;      /* empty polls before the thread naps */
    uint32_t nap_us;          /* first nap; naps double up to RR_NAP_MAX_US */
    uint32_t yield;           /* 1: give the core away on every empty poll (more threads than cores) */
    int32_t cpu;              /* pin the thread there; -1 = leave it to the scheduler (measured neutral to -5.5 %) */
    uint32_t doorbell;        /* 1: kernels ring when they publish (CPU), so naps may be long */
    uint8_t order[RR_MAX_WORLD];                /* rank at each ring position */
    uint8_t paths[RR_MAX_WORLD];                /* paths to each peer, up to RR_MAX_PATHS; 0: no command names it */
    uint8_t hops[RR_MAX_WORLD][RR_MAX_PATHS];   /* 1 = direct cable, 2 = through one neighbour, ... */
    uint8_t hca_of[RR_MAX_WORLD][RR_MAX_PATHS]; /* verbs: index into hca[] */
    char hca[8][32];                            /* verbs: device names; empty = unused */
    uint32_t address[8]; /* verbs: IPv4 of each device's port, in network order; 0 = its only one */
    char shm_dir[128];   /* where region files are made; "" = /dev/shm */
} rr_config;

#define RR_NAP_MAX_US 1000u          /* a GPU cannot ring: its first operation after a pause waits for a nap */
#define RR_NAP_MAX_DOORBELL_US 5000u /* bounds how late the watch looks */

typedef struct rr_path_stats {
    uint64_t writes;
    uint64_t bytes;
    uint64_t completions;
    uint64_t errors;
} rr_path_stats;

typedef struct rr_stats {
    uint32_t struct_bytes;
    uint32_t state; /* enum rr_state */
    uint64_t abort_word;
    uint64_t commands;        /* taken from the ring */
    uint64_t commands_asleep; /* of those, found while the thread napped */
    uint64_t commands_lent;   /* of those, taken by a waiting kernel that lent its thread */
    uint64_t ops;             /* operations with a command */
    uint64_t writes_posted;
    uint64_t writes_completed;
    uint64_t bytes_written;
    uint64_t window_stalls; /* a forwarded path had to wait for acknowledgements */
    uint64_t queue_stalls;  /* a send queue was full */
    uint64_t polls;
    uint64_t empty_polls;
    uint64_t naps;
    uint64_t stale_completions; /* of an older generation; ignored */
    uint64_t late_reports;
    uint64_t longest_late_ms;
    uint64_t longest_loop_gap_us; /* the thread itself was not scheduled */
    uint64_t events_lost;         /* overwritten before rr_proxy_events() came for them */
    uint64_t nudges; /* verbs: writes without bytes, posted because nothing was acknowledged for some time */
    uint64_t seq_started;
    uint64_t seq_done;
    uint64_t seq_posted;
    uint64_t seq_completed;
    uint64_t idle_spins;
    uint32_t nap_us;
    uint32_t yield;
    uint32_t waiting;    /* ranks waited for longer than the late limit, as a mask */
    uint32_t closed;     /* ranks that said good-bye */
    uint32_t ports_down; /* verbs: devices (indices into config.hca) whose port is down, as a mask */
    uint32_t imm;        /* 1: flags arrive by write-with-immediate */
    rr_path_stats path[RR_MAX_WORLD][RR_MAX_PATHS];
} rr_stats;

enum rr_event_kind {
    RR_EVENT_LATE = 1,     /* peer, phase, path, seq, ms waited so far; root = rank the chain of waits ends at */
    RR_EVENT_RESOLVED = 2, /* the late peer came after ms */
    RR_EVENT_ABORT = 3,    /* reason, peer = culprit */
    RR_EVENT_CLOSED = 4,   /* peer said good-bye */
    RR_EVENT_LOOP_GAP = 5, /* the progress thread was not scheduled for ms */
    RR_EVENT_PATH = 6,     /* a path failed: peer, path, reason; ms = status of the completion queue, 0 if none came */
    RR_EVENT_PORT = 7,     /* a port of this rank changed: path = index into config.hca, reason = enum rr_port_change */
};

enum rr_port_change {
    RR_PORT_DOWN = 1,
    RR_PORT_UP = 2,
    RR_PORT_GIDS = 3, /* its GID table changed; concerns the next session, queue pairs keep theirs */
    RR_PORT_LOST = 4, /* the device failed as a whole */
};

/* What rr_proxy_litmus found of a planned path. */
enum rr_path_verdict {
    RR_PATH_NONE = 0,       /* not planned */
    RR_PATH_RIGHT = 1,      /* no flag overtook its payload, in either direction as far as this rank sees */
    RR_PATH_TORN = 2,       /* a flag came before its payload */
    RR_PATH_SILENT = 3,     /* something did not arrive, or was not acknowledged, in time */
    RR_PATH_DOWN_HERE = 4,  /* this rank's port is not active */
    RR_PATH_DOWN_THERE = 5, /* the peer's port is not active */
};

typedef struct rr_event {
    uint64_t index; /* counts from 1 */
    uint64_t time_ns;
    uint64_t seq;
    uint64_t ms;
    uint32_t kind;
    uint32_t reason;
    uint32_t peer;
    uint32_t root;
    uint32_t phase;
    uint32_t path;
} rr_event;

typedef struct rr_proxy rr_proxy;

RR_API rr_proxy *rr_proxy_create(const rr_config *config, char *why, size_t why_bytes);
RR_API int rr_proxy_hello(rr_proxy *proxy, rr_hello *out);
/* `all[world]`, index = rank. Checks every hello against this rank's and names the first field that differs. */
RR_API int rr_proxy_connect(rr_proxy *proxy, const rr_hello *all, char *why, size_t why_bytes);
/* Proves what the protocol rests on: on every path, many times, a payload and its flag, checked as soon as the flag is
 * there. All ranks at once, after all have connected. Takes milliseconds; ends after five times dead_ms, or 10 s, at
 * the latest. `imm`: 0 for a flag chained behind its payload, 1 for write-with-immediate. Fills
 * out[RR_MAX_WORLD][RR_MAX_PATHS] with enum rr_path_verdict. */
RR_API int rr_proxy_litmus(rr_proxy *proxy, uint32_t imm, uint8_t *out, char *why, size_t why_bytes);
/* Which of the planned paths to each peer are used from now on (bit i of used[peer]; both ends must say the same), and
 * how flags arrive. Paths are renumbered from 0 without gaps: every path number after this is one of those. Call it
 * after every rank's litmus and before any rank starts. */
RR_API int rr_proxy_use(rr_proxy *proxy, const uint8_t *used, uint32_t imm, char *why, size_t why_bytes);
/* Call only after every rank has connected: it removes what the peers connected through. */
RR_API int rr_proxy_start(rr_proxy *proxy, char *why, size_t why_bytes);
/* Ends the thread: finishes posted writes (bounded by timeout_ms), tells the peers. 0 if everything was finished. */
RR_API int rr_proxy_stop(rr_proxy *proxy, uint32_t timeout_ms);
RR_API void rr_proxy_destroy(rr_proxy *proxy);

/* One turn of the progress loop on the caller's thread, unless the proxy's own is at it: for a CPU kernel that would
 * only wait. Takes no lock and never blocks. */
RR_API void rr_proxy_lend(rr_proxy *proxy);

RR_API void *rr_proxy_region(rr_proxy *proxy);
/* Where this process sees a peer's region, after connect; NULL if it does not (only the shm provider maps them). */
RR_API void *rr_proxy_peer_region(rr_proxy *proxy, uint32_t peer);
RR_API void rr_proxy_layout(rr_proxy *proxy, rr_layout *out);
RR_API uint64_t rr_proxy_abort_word(rr_proxy *proxy);
/* First writer wins: returns the word that now stands. */
RR_API uint64_t rr_proxy_abort(rr_proxy *proxy, uint32_t reason, uint32_t culprit);
RR_API int rr_proxy_set_idle(rr_proxy *proxy, uint64_t idle_spins, uint32_t nap_us);
RR_API void rr_proxy_stats(rr_proxy *proxy, rr_stats *out);
/* Copies events with an index above `after`, oldest first; returns how many. */
RR_API uint32_t rr_proxy_events(rr_proxy *proxy, uint64_t after, rr_event *out, uint32_t room);

/* The layout as data: "struct field offset bytes" lines, then "struct - 0 bytes"; what Python checks its view against.
 */
RR_API const char *rr_layout_table(void);
RR_API uint64_t rr_layout_hash(uint32_t world, uint64_t slot_bytes);
RR_API void rr_layout_fill(uint32_t world, uint64_t capacity, rr_layout *out);
/* "value name meaning\thint" lines. */
RR_API const char *rr_error_table(void);
RR_API uint32_t rr_providers(void); /* bit RR_PROVIDER_*: built in */
RR_API uint32_t rr_wire_version(void);
/* A completion queue's status (rr_event.ms of RR_EVENT_PATH) in libibverbs' words; "" for 0 and in builds without it.
 */
RR_API const char *rr_status_text(uint32_t status);

#ifdef __cplusplus
}
#endif
#endif
