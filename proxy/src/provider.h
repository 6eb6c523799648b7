/* What moves bytes. A provider makes a peer's region writable: payload first, then the flag, on one ordered channel.
 *
 * Called by the progress thread only, except open/connect (before it starts) and close (after it ended).
 */
#ifndef RR_PROVIDER_H
#define RR_PROVIDER_H

#include <roce_ring/proxy.h>

#include <stdbool.h>

typedef struct rr_why {
    char *text;
    size_t bytes;
} rr_why;

/* Writes one sentence and returns -1, so that callers can `return rr_fail(...)`. */
int rr_fail(rr_why why, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One contiguous RDMA write, and the flag that follows it on the same channel. */
typedef struct rr_write {
    uint32_t peer;
    uint32_t path;
    uint64_t src; /* offset in our region */
    uint64_t dst; /* offset in the peer's region */
    uint32_t bytes;
    uint64_t flag;  /* offset in the peer's region; 0 = none follows (a chunk of a windowed stripe) */
    uint64_t value; /* of the flag */
    uint64_t tag;   /* comes back in the completion; the engine keeps a generation in it */
} rr_write;

typedef struct rr_completion {
    uint64_t tag;
    uint32_t peer; /* where it failed; only read when status != 0 */
    uint32_t path;
    int status; /* 0, or enum rr_error */
} rr_completion;

enum rr_write_result {
    RR_WRITE_DONE,   /* already visible at the peer; no completion follows */
    RR_WRITE_POSTED, /* a completion with this tag follows */
    RR_WRITE_AGAIN,  /* the queue is full: poll, then try again */
    RR_WRITE_FAILED, /* the path is gone; lost() says how */
};

/* Where a loss showed. */
typedef struct rr_loss {
    uint32_t path;
    uint32_t device; /* index into config.hca, where a device or its port is to blame */
    uint32_t status; /* of the completion queue; 0 if none came */
} rr_loss;

typedef struct rr_provider rr_provider;
struct rr_proxy;

typedef struct rr_provider_ops {
    const char *name;
    uint32_t id;
    /* Takes hold of devices, registers the region, fills this provider's part of the hello. */
    int (*open)(rr_provider *provider, rr_hello *hello, rr_why why);
    int (*connect)(rr_provider *provider, const rr_hello *all, rr_why why);
    /* lane[peer][i]: planned path that is path i from now on. NULL if a path is only a number here. */
    void (*use)(rr_provider *provider, const uint8_t lane[RR_MAX_WORLD][RR_MAX_PATHS]);
    enum rr_write_result (*write)(rr_provider *provider, const rr_write *write);
    uint32_t (*poll)(rr_provider *provider, rr_completion *out, uint32_t room);
    /* Best effort, never blocks: replaces notice[rank] at the peer. */
    void (*notify)(rr_provider *provider, uint32_t peer, const rr_notice *notice);
    /* Every few milliseconds, while the thread is awake. NULL if there is nothing to do. */
    void (*tick)(rr_provider *provider, uint64_t now_ns);
    /* 0: the peer is there, or one cannot tell yet. Otherwise enum rr_error: how it was lost. May make a system call:
     * the watch asks ten times a second. Whoever fails a write must answer here within dead_ms. */
    int (*lost)(rr_provider *provider, uint32_t peer, rr_loss *how);
    void (*close)(rr_provider *provider);
    /* A peer's region in this process. NULL if the provider maps none. */
    void *(*mapped)(rr_provider *provider, uint32_t peer);
} rr_provider_ops;

struct rr_provider {
    const rr_provider_ops *ops;
    const rr_config *config;
    const rr_layout *layout;
    uint8_t *base; /* our region */
    int region_fd; /* file behind it */
    struct rr_proxy *proxy;
    /* Peers' flags arrive as completions and poll() raises them, so it has to be called whatever is in flight. */
    bool imm;
    uint8_t down[RR_MAX_WORLD][RR_MAX_PATHS]; /* planned paths without a queue pair: RR_PATH_DOWN_*, else 0 */
    void *impl;
};

extern const rr_provider_ops rr_provider_shm;
#ifdef RR_HAVE_VERBS
extern const rr_provider_ops rr_provider_verbs;
#endif

/* Tests pass a provider that wraps another one. */
rr_proxy *rr_proxy_create_with(const rr_config *config, const rr_provider_ops *ops, char *why, size_t why_bytes);

#endif
