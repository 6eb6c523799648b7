/* One queue pair on one path, outside any session: opens, writes a few times into the peer's probe, and says how long
 * each write took or in one sentence why one failed. What proves a path before ranks use it.
 *
 * Life: open -> endpoint -> (exchange endpoints) -> connect -> write ... -> close. One thread at a time per probe.
 * Calls return 0 or a count, or -1 with one sentence in `why`. Only in builds with the verbs provider.
 */
#ifndef ROCE_RING_PROBE_H
#define ROCE_RING_PROBE_H

#include <roce_ring/proxy.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RR_PROBE_MAGIC 0x31505252u /* "RRP1" in memory order */
#define RR_PROBE_MAX_BYTES (1u << 20)
#define RR_PROBE_MAX_COUNT 4096u
#define RR_PROBE_MAX_MS 60000u

/* What a probe tells its peer. Little-endian. */
typedef struct rr_endpoint {
    uint32_t magic;
    uint32_t bytes;   /* that may be written from `address` on */
    uint64_t address; /* in the owner's memory */
    rr_hello_path end;
} rr_endpoint;
RR_STATIC_ASSERT(sizeof(rr_endpoint) == 48 && offsetof(rr_endpoint, bytes) == 4 &&
                     offsetof(rr_endpoint, address) == 8 && offsetof(rr_endpoint, end) == 16,
                 "rr_endpoint");

typedef struct rr_probe rr_probe;

/* `address`: IPv4 of the port, in network order; 0 takes the only one it has. `bytes`: largest write, to
 * RR_PROBE_MAX_BYTES. Bounded by 2 s, which a port that has just come up may need to show its GID. */
RR_API rr_probe *rr_probe_open(const char *device, uint32_t address, uint32_t flow_label, uint32_t bytes, char *why,
                               size_t why_bytes);
RR_API void rr_probe_endpoint(const rr_probe *probe, rr_endpoint *out);
/* Bounded by the kernel's own search for the peer's MAC, about a second where a neighbour does not answer. */
RR_API int rr_probe_connect(rr_probe *probe, const rr_endpoint *peer, char *why, size_t why_bytes);
/* `count` writes of `bytes`, one after the other, each with a time limit of `limit_ms`. Returns how many completed and
 * fills that many of `latency_ns`; fewer than `count` if one failed, with the reason in `why`. A failed probe stays
 * failed: make a new one. */
RR_API int rr_probe_write(rr_probe *probe, uint32_t count, uint32_t bytes, uint32_t limit_ms, uint64_t *latency_ns,
                          char *why, size_t why_bytes);
RR_API void rr_probe_close(rr_probe *probe);

#ifdef __cplusplus
}
#endif
#endif
