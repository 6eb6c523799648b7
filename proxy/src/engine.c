/* The progress engine: takes commands from the ring and turns them into writes, stripe by stripe and wave by wave.
 *
 * No allocation, lock, system call or log here. No clock either, but for the flight recorder's stamps.
 */
#include "internal.h"

#include <string.h>

/* Completion tag: who this was, and of which generation. */
#define TAG(generation, index, peer, path, flags)                                                                      \
    ((uint64_t)(generation) << 48 | (uint64_t)(flags) << 40 | (uint64_t)(index) << 16 | (uint64_t)(peer) << 8 | (path))
#define TAG_RAISES_FLAG 1u
#define TAG_WINDOWED 2u

/* Rank that is `distance` places after ours on the ring, 1..world-1. */
static uint32_t ring_peer(const rr_proxy *proxy, uint32_t distance) {
    return proxy->config.order[(proxy->position + distance) % proxy->config.world];
}

static bool all_direct(const rr_proxy *proxy, uint32_t peer) {
    for (uint32_t path = 0; path < proxy->config.paths[peer]; path++)
        if (proxy->config.hops[peer][path] > 1) return false;
    return true;
}

/* Does [at, at + bytes) lie in [low, high)? Written so that no sum can wrap. */
static bool within(uint64_t at, uint64_t bytes, uint64_t low, uint64_t high) {
    return at >= low && at <= high && bytes <= high - at;
}

static bool valid(const rr_proxy *proxy, const rr_command *cmd) {
    const rr_layout *l = &proxy->layout;
    uint32_t world = proxy->config.world, everybody = (1u << world) - 1;
    if (cmd->op < RR_OP_BROADCAST || cmd->op > RR_OP_PUT || cmd->wave > RR_WAVE_TWO || cmd->phase >= l->phases)
        return false;
    if (!cmd->seq || cmd->seq >> RR_FLAG_SEQ_BITS) return false;
    if (!cmd->peers || (cmd->peers & ~everybody) || (cmd->peers & 1u << proxy->config.rank)) return false;
    for (uint32_t p = 0; p < world; p++)
        if ((cmd->peers & 1u << p) && !proxy->config.paths[p]) return false;
    if (cmd->op == RR_OP_PUT && (cmd->peers & (cmd->peers - 1))) return false;
    /* Scatter: every chunk of a peer starts at `dst` there, so one chunk has to fit. 16-byte chunks keep stripes
     * aligned. */
    if (cmd->op == RR_OP_SCATTER && (!cmd->chunk || cmd->chunk % 16)) return false;
    uint32_t lands = cmd->op == RR_OP_SCATTER ? cmd->chunk : cmd->bytes;
    return within(cmd->src, cmd->bytes, l->send, l->region_bytes) && within(cmd->dst, lands, l->recv, l->region_bytes);
}

/* What one command sends to one peer. */
typedef struct transfer {
    uint64_t src;
    uint32_t bytes;
    uint32_t paths; /* that carry it */
} transfer;

static transfer transfer_of(const rr_proxy *proxy, const rr_command *cmd, uint32_t peer) {
    bool scatter = cmd->op == RR_OP_SCATTER;
    uint32_t bytes = scatter ? rr_chunk_bytes(cmd->bytes, cmd->chunk, peer) : cmd->bytes;
    return (transfer){.src = cmd->src + (scatter ? (uint64_t)peer * cmd->chunk : 0),
                      .bytes = bytes,
                      .paths = rr_paths_used(bytes, proxy->config.paths[peer], proxy->config.stripe_min_bytes)};
}

/* Picks the peers of the next wave. */
static void next_wave(rr_proxy *proxy, rr_active *a) {
    uint16_t wave = a->waiting;
    if (a->cmd.wave == RR_WAVE_PHASED) {
        do a->phase_at++;
        while (!(a->waiting & 1u << ring_peer(proxy, a->phase_at)));
        wave = (uint16_t)(1u << ring_peer(proxy, a->phase_at));
    } else if (a->cmd.wave == RR_WAVE_TWO) {
        uint16_t direct = 0;
        for (uint32_t p = 0; p < proxy->config.world; p++)
            if ((a->waiting & 1u << p) && all_direct(proxy, p)) direct |= (uint16_t)(1u << p);
        if (direct) wave = direct;
    }
    a->posting = wave;
    a->waiting &= (uint16_t)~wave;
    for (uint32_t p = 0; p < proxy->config.world; p++) {
        if (!(wave & 1u << p)) continue;
        transfer t = transfer_of(proxy, &a->cmd, p);
        for (uint32_t path = 0; path < t.paths; path++) a->at[p][path] = rr_stripe_begin(t.bytes, t.paths, path);
    }
}

/* The watch judges: it sees all paths to the peer, and hears what the others say. The operation stays unfinished. */
static void fail_path(rr_proxy *proxy, uint32_t peer, uint32_t path) {
    rr_count(&proxy->stats.path[peer][path].errors, 1);
    proxy->last_alive_ns = 0; /* now, not at its next turn */
}

/* Posts what fits of one stripe. Returns true if anything was posted. */
static bool post_stripe(rr_proxy *proxy, rr_active *a, const transfer *t, uint32_t index, uint32_t peer,
                        uint32_t path) {
    uint32_t end = rr_stripe_begin(t->bytes, t->paths, path + 1);
    bool windowed = proxy->config.forward_window_bytes && proxy->config.hops[peer][path] > 1;
    rr_window *window = &proxy->window[peer][path];
    bool posted = false;
    while (a->at[peer][path] != RR_STRIPE_DONE) {
        uint32_t at = a->at[peer][path], length = end - at;
        if (windowed) {
            if (length > proxy->config.forward_chunk_bytes) length = proxy->config.forward_chunk_bytes;
            if (window->count == RR_WINDOW_CHUNKS ||
                (window->count && window->bytes + length > proxy->config.forward_window_bytes)) {
                rr_count(&proxy->stats.window_stalls, 1);
                return posted;
            }
        }
        bool last = at + length == end;
        rr_write write = {.peer = peer,
                          .path = path,
                          .src = t->src + at,
                          .dst = a->cmd.dst + at,
                          .bytes = length,
                          .value = RR_FLAG_VALUE(a->cmd.seq, a->cmd.digest)};
        if (last)
            write.flag = rr_flag_offset(proxy->layout.flags, (uint32_t)proxy->layout.phases, proxy->config.rank,
                                        (uint32_t)(a->cmd.seq % RR_SLOTS), a->cmd.phase, path);
        write.tag =
            TAG(proxy->generation, index, peer, path, (last ? TAG_RAISES_FLAG : 0) | (windowed ? TAG_WINDOWED : 0));
        enum rr_write_result result = proxy->provider.ops->write(&proxy->provider, &write);
        if (result == RR_WRITE_AGAIN) {
            rr_count(&proxy->stats.queue_stalls, 1);
            return posted;
        }
        if (result == RR_WRITE_FAILED) {
            if (!proxy->stats.path[peer][path].errors) fail_path(proxy, peer, path);
            return posted;
        }
        posted = true;
        rr_path_stats *stats = &proxy->stats.path[peer][path];
        rr_count(&stats->writes, 1);
        rr_count(&stats->bytes, length);
        rr_count(&proxy->stats.writes_posted, 1);
        rr_count(&proxy->stats.bytes_written, length);
        rr_record_of(proxy, a->record)->bytes += length;
        if (result == RR_WRITE_POSTED) {
            proxy->in_flight++;
            if (last) a->outstanding++;
            if (windowed) {
                window->sizes[(window->head + window->count++) % RR_WINDOW_CHUNKS] = length;
                window->bytes += length;
            }
        } else {
            rr_count(&stats->completions, 1);
            rr_count(&proxy->stats.writes_completed, 1);
        }
        a->at[peer][path] = last ? RR_STRIPE_DONE : at + length;
    }
    return posted;
}

/* After the first post: a clock may be a system call, and nothing stands between a command and the wire. */
static void stamp(rr_proxy *proxy, rr_active *a) {
    if (a->stamped) return;
    a->stamped = 1;
    rr_record *record = rr_record_of(proxy, a->record);
    record->last_posted_ns = rr_now_ns();
    if (!record->first_command_ns) record->first_command_ns = record->last_posted_ns;
}

/* Moves one command as far as it goes. Returns true if anything was posted or finished. */
static bool advance(rr_proxy *proxy, rr_active *a, uint32_t index) {
    bool moved = false;
    for (;;) {
        for (uint32_t distance = 1; a->posting && distance < proxy->config.world; distance++) {
            uint32_t peer = ring_peer(proxy, distance);
            if (!(a->posting & 1u << peer)) continue;
            transfer t = transfer_of(proxy, &a->cmd, peer);
            bool all_posted = true;
            for (uint32_t path = 0; path < t.paths; path++) {
                if (a->at[peer][path] == RR_STRIPE_DONE) continue;
                moved |= post_stripe(proxy, a, &t, index, peer, path);
                all_posted &= a->at[peer][path] == RR_STRIPE_DONE;
            }
            if (all_posted) a->posting &= (uint16_t)~(1u << peer);
        }
        if (moved) stamp(proxy, a);
        if (a->posting || a->outstanding) return moved;
        if (!a->waiting) break;
        next_wave(proxy, a);
    }
    rr_record *record = rr_record_of(proxy, a->record);
    if (record->seq == a->cmd.seq && --proxy->record_open[a->record] == 0) {
        record->completed_ns = rr_now_ns();
        if (a->cmd.seq > rr_progress_of(proxy)->seq_completed)
            rr_store_relaxed(&rr_progress_of(proxy)->seq_completed, a->cmd.seq);
    }
    a->in_use = 0;
    return true;
}

static void open_record(rr_proxy *proxy, rr_active *a) {
    uint32_t index = (uint32_t)(a->cmd.seq % RR_RECORDS);
    rr_record *record = rr_record_of(proxy, index);
    if (record->seq != a->cmd.seq) {
        *record = (rr_record){.seq = a->cmd.seq, .mode = a->cmd.mode};
        proxy->record_open[index] = 0;
        rr_count(&proxy->stats.ops, 1);
    }
    record->commands++;
    record->completed_ns = 0;
    proxy->record_open[index]++;
    a->record = index;
}

/* Takes one command from the ring. Returns false if there is none, or no room for it. */
static bool take(rr_proxy *proxy) {
    rr_command *ring = (rr_command *)(proxy->base + proxy->layout.commands);
    rr_command *slot = &ring[proxy->consumed % RR_COMMANDS];
    if (rr_load_acquire(&slot->commit) != proxy->consumed + 1) return false;
    uint32_t index = (uint32_t)(proxy->consumed % RR_COMMANDS);
    rr_active *a = &proxy->active[index];
    if (a->in_use) return false; /* 256 commands ago is unfinished: let it finish */
    a->cmd = *slot;
    rr_store_relaxed(&rr_progress_of(proxy)->consumed, ++proxy->consumed);
    rr_count(&proxy->stats.commands, 1);
    if (!valid(proxy, &a->cmd)) {
        rr_watch_abort(proxy, RR_ABORT_WORD(RR_ERR_BAD_COMMAND, proxy->config.rank, a->cmd.phase, 0, a->cmd.seq));
        return true;
    }
    a->in_use = 1;
    a->waiting = a->cmd.peers;
    a->posting = 0;
    a->phase_at = 0;
    a->outstanding = 0;
    a->stamped = 0;
    open_record(proxy, a);
    proxy->run_list[proxy->actives_used++] = (uint16_t)index;
    if (a->cmd.seq > rr_progress_of(proxy)->seq_posted)
        rr_store_relaxed(&rr_progress_of(proxy)->seq_posted, a->cmd.seq);
    return true;
}

static void complete(rr_proxy *proxy, const rr_completion *c) {
    if ((uint16_t)(c->tag >> 48) != proxy->generation) {
        rr_count(&proxy->stats.stale_completions, 1);
        return;
    }
    uint32_t index = c->tag >> 16 & 0xffff, peer = c->tag >> 8 & 0xff, path = c->tag & 0xff,
             flags = c->tag >> 40 & 0xff;
    rr_active *a = &proxy->active[index];
    proxy->in_flight--;
    if (c->status) {
        fail_path(proxy, peer, path);
        return;
    }
    rr_count(&proxy->stats.writes_completed, 1);
    rr_count(&proxy->stats.path[peer][path].completions, 1);
    if (flags & TAG_WINDOWED) {
        rr_window *window = &proxy->window[peer][path];
        window->bytes -= window->sizes[window->head];
        window->head = (window->head + 1) % RR_WINDOW_CHUNKS;
        window->count--;
    }
    if (flags & TAG_RAISES_FLAG) a->outstanding--;
}

bool rr_engine_idle(const rr_proxy *proxy) { return proxy->actives_used == 0 && proxy->in_flight == 0; }

bool rr_engine_step(rr_proxy *proxy) {
    bool worked = false;
    if (rr_load_acquire(&rr_abort_line(proxy)->word)) {
        /* Sticky: commands are swallowed so that a kernel on its way out leaves the ring as it expects it. */
        while (proxy->actives_used) proxy->active[proxy->run_list[--proxy->actives_used]].in_use = 0;
        rr_command *ring = (rr_command *)(proxy->base + proxy->layout.commands);
        while (rr_load_acquire(&ring[proxy->consumed % RR_COMMANDS].commit) == proxy->consumed + 1)
            rr_store_relaxed(&rr_progress_of(proxy)->consumed, ++proxy->consumed);
        rr_completion drop[16];
        if (proxy->in_flight || proxy->provider.imm) {
            uint32_t n = proxy->provider.ops->poll(&proxy->provider, drop, 16);
            proxy->in_flight -= n < proxy->in_flight ? n : proxy->in_flight;
        }
        return false;
    }
    while (take(proxy)) worked = true;
    if (proxy->in_flight || proxy->provider.imm) {
        rr_completion done[16];
        uint32_t n = proxy->provider.ops->poll(&proxy->provider, done, 16);
        for (uint32_t i = 0; i < n; i++) complete(proxy, &done[i]);
        worked |= n > 0;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < proxy->actives_used; i++) {
        uint16_t index = proxy->run_list[i];
        worked |= advance(proxy, &proxy->active[index], index);
        if (proxy->active[index].in_use) proxy->run_list[kept++] = index;
    }
    proxy->actives_used = kept;
    return worked;
}
