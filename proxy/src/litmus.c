/* The litmus at start: does a flag ever overtake its payload on this path? Two RDMA writes that land in their order are
 * practice on the devices we know and not a promise of the specification, so every session asks.
 *
 * Both ends of a path send rounds to each other: in round r a payload of words that no other round has, and its flag.
 * Whoever sees the flag checks the payload at once, last word first, and then sends its next round; so a round's slot
 * was checked before it is written again, two rounds later. Where a path is broken the rounds stop, and time does the
 * rest.
 */
#include "internal.h"

#include <sched.h>
#include <string.h>

#define ROUNDS 16u
/* A path that carries nothing shows it by its queue pair, within dead_ms. This is for the rest: a peer that does not
 * come, or comes late because its host is busy. Ranks wait for each other's outcome for a minute. */
#define MOST_MS 10000u
#define MOST_BYTES 16384u /* four packets: what can be torn must have parts */
/* Of another generation than the engine's, so that one that comes late is nobody's there. */
#define TAG(proxy, peer, path) ((uint64_t)(uint16_t)~(proxy)->generation << 48 | (uint64_t)(peer) << 8 | (path))

typedef struct trial {
    uint32_t sent, seen, acked;
    bool torn, failed;
} trial;

typedef struct litmus {
    rr_proxy *proxy;
    uint64_t first; /* sequence before the first round */
    uint32_t bytes;
    uint8_t (*verdict)[RR_MAX_PATHS];
    trial trial[RR_MAX_WORLD][RR_MAX_PATHS];
} litmus;

/* A multiple of 64 that fits into a part of the receive slot per path, and into one of the send slot per peer and path.
 */
static uint32_t payload_bytes(const rr_proxy *proxy) {
    uint64_t room = 2 * proxy->layout.slot_bytes / (proxy->config.world * RR_MAX_PATHS);
    if (room > proxy->layout.slot_bytes / RR_MAX_PATHS) room = proxy->layout.slot_bytes / RR_MAX_PATHS;
    return room < MOST_BYTES ? (uint32_t)room & ~63u : MOST_BYTES;
}

/* Word i of what `src` sends in one round (splitmix64's finaliser: any bit of the input moves half of the output). */
static uint64_t canary(uint64_t seq, uint32_t src, uint32_t path, uint32_t i) {
    uint64_t x = seq << 24 ^ (uint64_t)src << 56 ^ (uint64_t)path << 52 ^ (i + 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint64_t flag_at(const rr_proxy *proxy, uint32_t src, uint64_t seq, uint32_t path) {
    return rr_flag_offset(proxy->layout.flags, (uint32_t)proxy->layout.phases, src, (uint32_t)(seq % RR_SLOTS), 0,
                          path);
}

static uint64_t recv_at(const litmus *l, uint32_t src, uint64_t seq, uint32_t path) {
    const rr_layout *at = &l->proxy->layout;
    return at->recv + (seq % RR_SLOTS * at->world + src) * at->slot_bytes + (uint64_t)path * l->bytes;
}

static void send_round(litmus *l, uint32_t peer, uint32_t path) {
    rr_proxy *proxy = l->proxy;
    trial *t = &l->trial[peer][path];
    uint64_t seq = l->first + t->sent + 1;
    uint64_t src = proxy->layout.send + seq % RR_SLOTS * 2 * proxy->layout.slot_bytes +
                   (uint64_t)(peer * RR_MAX_PATHS + path) * l->bytes;
    uint64_t *words = (uint64_t *)(proxy->base + src);
    for (uint32_t i = 0; i < l->bytes / 8; i++) words[i] = canary(seq, proxy->config.rank, path, i);
    rr_write write = {.peer = peer,
                      .path = path,
                      .src = src,
                      .dst = recv_at(l, proxy->config.rank, seq, path),
                      .bytes = l->bytes,
                      .flag = flag_at(proxy, proxy->config.rank, seq, path),
                      .value = RR_FLAG_VALUE(seq & ((1ull << RR_FLAG_SEQ_BITS) - 1), 0),
                      .tag = TAG(proxy, peer, path)};
    switch (proxy->provider.ops->write(&proxy->provider, &write)) {
    case RR_WRITE_DONE:
        t->acked++;
        t->sent++;
        break;
    case RR_WRITE_POSTED:
        t->sent++;
        break;
    case RR_WRITE_AGAIN:
        break;
    case RR_WRITE_FAILED:
        t->failed = true;
    }
}

/* Looks for the peer's next round. True if it came. */
static bool see_round(litmus *l, uint32_t peer, uint32_t path) {
    rr_proxy *proxy = l->proxy;
    trial *t = &l->trial[peer][path];
    uint64_t seq = l->first + t->seen + 1;
    const uint64_t *flag = (const uint64_t *)(proxy->base + flag_at(proxy, peer, seq, path));
    if (rr_load_acquire(flag) != RR_FLAG_VALUE(seq & ((1ull << RR_FLAG_SEQ_BITS) - 1), 0)) return false;
    const uint64_t *words = (const uint64_t *)(proxy->base + recv_at(l, peer, seq, path));
    for (uint32_t i = l->bytes / 8; i-- > 0;) t->torn |= words[i] != canary(seq, peer, path, i);
    t->seen++;
    return true;
}

static void take_completions(litmus *l) {
    rr_completion done[16];
    uint32_t n = l->proxy->provider.ops->poll(&l->proxy->provider, done, 16);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t peer = done[i].tag >> 8 & 0xff, path = done[i].tag & 0xff;
        if (done[i].tag != TAG(l->proxy, peer, path)) continue;
        trial *t = &l->trial[peer][path];
        if (done[i].status)
            t->failed = true;
        else
            t->acked++;
    }
}

/* One turn over all paths. True while some path is undecided. */
static bool turn(litmus *l) {
    const rr_config *c = &l->proxy->config;
    bool undecided = false, moved = false;
    take_completions(l);
    for (uint32_t p = 0; p < c->world; p++) {
        for (uint32_t i = 0; p != c->rank && i < c->paths[p]; i++) {
            trial *t = &l->trial[p][i];
            if (l->verdict[p][i] != RR_PATH_NONE) continue;
            if (t->sent <= t->seen && t->sent < ROUNDS) send_round(l, p, i);
            if (t->seen < ROUNDS) moved |= see_round(l, p, i);
            if (t->failed)
                l->verdict[p][i] = RR_PATH_SILENT;
            else if (t->seen == ROUNDS && t->acked == ROUNDS)
                l->verdict[p][i] = t->torn ? RR_PATH_TORN : RR_PATH_RIGHT;
            else
                undecided = true;
        }
    }
    if (undecided && !moved) sched_yield();
    return undecided;
}

int rr_proxy_litmus(rr_proxy *proxy, uint32_t imm, uint8_t *out, char *text, size_t text_bytes) {
    if (__atomic_load_n(&proxy->state, __ATOMIC_ACQUIRE) != RR_STATE_CONNECTED)
        return rr_fail((rr_why){text, text_bytes}, "the litmus needs a session that is connected and not started");
    litmus l = {.proxy = proxy,
                .first = rr_kernel_line_of(proxy)->seq_started + (imm ? ROUNDS : 0),
                .bytes = payload_bytes(proxy),
                .verdict = (uint8_t (*)[RR_MAX_PATHS])out};
    memcpy(out, proxy->provider.down, sizeof proxy->provider.down);
    proxy->provider.imm = imm != 0;
    uint64_t ms = 5ull * proxy->config.dead_ms;
    uint64_t until = rr_now_ns() + (ms < MOST_MS ? ms : MOST_MS) * 1000000ull;
    while (turn(&l) && rr_now_ns() < until) continue;
    for (uint32_t p = 0; p < proxy->config.world; p++)
        for (uint32_t i = 0; p != proxy->config.rank && i < proxy->config.paths[p]; i++)
            if (l.verdict[p][i] == RR_PATH_NONE) l.verdict[p][i] = RR_PATH_SILENT;
    return 0;
}

void rr_litmus_clear(rr_proxy *proxy) {
    memset(proxy->base + proxy->layout.flags, 0, proxy->layout.records - proxy->layout.flags);
}
