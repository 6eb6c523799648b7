/* The progress engine against a provider that answers late, fills up, fails, and lies: what it posts, in which order,
 * how much at once, and that nothing in the command ring makes it touch what is not payload. */
#include "scripted.h"

static rr_proxy *open_engine(rr_config *c) {
    for (uint32_t p = 0; p < c->world; p++) c->paths[p] = c->paths[p] ? c->paths[p] : 1;
    return script_proxy(c);
}

static void step_until_quiet(rr_proxy *proxy) {
    while (rr_engine_step(proxy)) {
    }
}

/* Every stripe of a broadcast went out whole, in order, in pieces of whole units, the flag on its last piece only. */
static void check_stripes(rr_proxy *proxy, const rr_command *cmd, uint32_t peer) {
    uint32_t used = rr_paths_used(cmd->bytes, proxy->config.paths[peer], proxy->config.stripe_min_bytes);
    for (uint32_t path = 0; path < RR_MAX_PATHS; path++) {
        uint64_t at = rr_stripe_begin(cmd->bytes, used, path),
                 end = path < used ? rr_stripe_begin(cmd->bytes, used, path + 1) : at;
        bool flagged = false;
        for (uint32_t i = 0; i < the_script.writes; i++) {
            const rr_write *w = &the_script.write[i];
            if (w->peer != peer || w->path != path || w->src < cmd->src || w->src > cmd->src + cmd->bytes) continue;
            CHECK(!flagged, "peer %u path %u: bytes after the flag", peer, path);
            CHECK(w->src == cmd->src + at && w->dst == cmd->dst + at, "peer %u path %u: a gap at %llu", peer, path,
                  (unsigned long long)at);
            at += w->bytes;
            CHECK(at <= end && (w->bytes % 16 == 0 || at == end), "peer %u path %u: a piece of %u bytes", peer, path,
                  w->bytes);
            flagged = w->flag != 0;
            if (!flagged) continue;
            CHECK(w->value == RR_FLAG_VALUE(cmd->seq, cmd->digest), "flag value %llx", (unsigned long long)w->value);
            CHECK(w->flag == rr_flag_offset(proxy->layout.flags, (uint32_t)proxy->layout.phases, proxy->config.rank,
                                            (uint32_t)(cmd->seq % RR_SLOTS), cmd->phase, path),
                  "peer %u path %u: another's flag", peer, path);
        }
        CHECK(path >= used || (flagged && at == end), "peer %u path %u of %u ends at %llu of %llu, flag %d", peer, path,
              used, (unsigned long long)at, (unsigned long long)end, flagged);
    }
}

static uint32_t bytes_in_flight(uint32_t peer, uint32_t path) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < the_script.writes; i++)
        if (!the_script.completed[i] && the_script.write[i].peer == peer && the_script.write[i].path == path)
            sum += the_script.write[i].bytes;
    return sum;
}

/* Hairpin queues drop what overruns them: a forwarded path never holds more than the window, a direct one does not
 * care. */
static void the_forward_window_is_never_exceeded(void) {
    uint64_t rng = 7;
    uint32_t stalls = 0;
    for (uint32_t round = 0; round < 40; round++) {
        rr_config c = test_config(3, 0, 300000);
        c.forward_chunk_bytes = 4096 + 16 * rng_below(&rng, 200);
        c.forward_window_bytes = c.forward_chunk_bytes * (1 + rng_below(&rng, 5)) + rng_below(&rng, 100);
        c.paths[1] = c.paths[2] = 2;
        c.hops[1][0] = c.hops[2][1] = 2;
        rr_proxy *proxy = open_engine(&c);
        the_script.room = rng_below(&rng, 2) ? 3 : 0;
        rr_command cmd[2];
        for (uint64_t k = 0; k < 2; k++) {
            cmd[k] = broadcast(proxy, k + 1, 6, rng_below(&rng, round % 2 ? 300000 : 20000));
            cmd[k].wave = (uint8_t)rng_below(&rng, 3);
            publish_at(proxy, k, cmd[k]);
        }
        do {
            step_until_quiet(proxy);
            for (uint32_t p = 1; p < 3; p++)
                for (uint32_t path = 0; path < 2; path++)
                    CHECK(c.hops[p][path] == 1 || bytes_in_flight(p, path) <= c.forward_window_bytes,
                          "round %u: %u bytes on a window of %u", round, bytes_in_flight(p, path),
                          c.forward_window_bytes);
            for (uint32_t tries = 0; tries < 8; tries++)
                if (script_complete(1 + rng_below(&rng, 2), rng_below(&rng, 2))) break;
        } while (!rr_engine_idle(proxy));
        for (uint32_t i = 0; i < the_script.writes; i++) {
            const rr_write *w = &the_script.write[i];
            CHECK(c.hops[w->peer][w->path] == 1 || w->bytes <= c.forward_chunk_bytes, "round %u: a chunk of %u", round,
                  w->bytes);
        }
        for (uint32_t k = 0; k < 2; k++)
            for (uint32_t p = 1; p < 3; p++) check_stripes(proxy, &cmd[k], p);
        stalls += (uint32_t)proxy->stats.window_stalls;
        CHECK(!rr_proxy_abort_word(proxy) && proxy->window[1][0].bytes == 0 && proxy->window[2][1].count == 0,
              "round %u", round);
        rr_proxy_destroy(proxy);
    }
    CHECK(stalls, "the window was never full: this test saw nothing");
}

static void at_most_64_chunks_are_in_a_window(void) {
    rr_config c = test_config(2, 0, 1 << 20);
    c.forward_chunk_bytes = 4096, c.forward_window_bytes = 1 << 20;
    c.hops[1][0] = 2;
    rr_proxy *proxy = open_engine(&c);
    rr_command cmd = broadcast(proxy, 1, 2, 1 << 20);
    publish_at(proxy, 0, cmd);
    step_until_quiet(proxy);
    CHECK(the_script.writes == RR_WINDOW_CHUNKS, "%u chunks in flight", the_script.writes);
    while (!rr_engine_idle(proxy)) {
        script_complete(1, 0);
        step_until_quiet(proxy);
    }
    check_stripes(proxy, &cmd, 1);
    rr_proxy_destroy(proxy);
}

/* Phased: one destination at a time, ring position me + 1 + p in phase p, the next when the last one's writes
 * completed. */
static void a_phased_command_serves_one_peer_at_a_time(void) {
    static const uint8_t order[] = {3, 0, 4, 2, 1};
    for (uint32_t peers = 2; peers < 32; peers += 2) {
        rr_config c = test_config(5, 0, 65536);
        memcpy(c.order, order, sizeof order);
        memset(c.paths, 2, 5);
        rr_proxy *proxy = open_engine(&c);
        rr_command cmd = broadcast(proxy, 1, peers, 5000);
        cmd.wave = RR_WAVE_PHASED;
        publish_at(proxy, 0, cmd);
        for (uint32_t distance = 1; distance < 5; distance++) {
            uint32_t peer = order[(1 + distance) % 5], before = the_script.writes;
            if (!(peers & 1u << peer)) continue;
            step_until_quiet(proxy);
            CHECK(the_script.writes == before + 2, "peers %x: %u writes at once", peers, the_script.writes - before);
            for (uint32_t i = before; i < the_script.writes; i++)
                CHECK(the_script.write[i].peer == peer, "peers %x, distance %u: to %u", peers, distance,
                      the_script.write[i].peer);
            CHECK(script_complete(peer, 1), "nothing to complete");
            step_until_quiet(proxy);
            CHECK(the_script.writes == before + 2, "peers %x: the next peer began before this one's writes completed",
                  peers);
            script_complete(peer, 0);
        }
        step_until_quiet(proxy);
        CHECK(rr_engine_idle(proxy), "peers %x", peers);
        rr_proxy_destroy(proxy);
    }
}

static void two_waves_are_direct_peers_and_then_forwarded_ones(void) {
    rr_config c = test_config(5, 2, 65536);
    c.hops[0][0] = c.hops[4][0] = 2; /* ranks 1 and 3 are this rank's neighbours */
    rr_proxy *proxy = open_engine(&c);
    rr_command cmd = broadcast(proxy, 1, 0x1b, 5000);
    cmd.wave = RR_WAVE_TWO;
    publish_at(proxy, 0, cmd);
    step_until_quiet(proxy);
    CHECK(the_script.writes == 2 && (the_script.write[0].peer ^ the_script.write[1].peer) == (1 ^ 3),
          "first wave of %u", the_script.writes);
    script_complete(1, 0);
    step_until_quiet(proxy);
    CHECK(the_script.writes == 2, "the second wave began early");
    script_complete(3, 0);
    step_until_quiet(proxy);
    CHECK(the_script.writes == 4 && (the_script.write[2].peer ^ the_script.write[3].peer) == 4, "second wave of %u",
          the_script.writes - 2);
    script_complete(0, 0), script_complete(4, 0);
    step_until_quiet(proxy);
    CHECK(rr_engine_idle(proxy) && rr_progress_of(proxy)->seq_completed == 1, "not finished");
    cmd.peers = 0x11, cmd.seq = 2; /* forwarded ones only: no empty first wave to wait for */
    publish_at(proxy, 1, cmd);
    step_until_quiet(proxy);
    CHECK(the_script.writes == 6, "forwarded peers alone wait for nobody");
    rr_proxy_destroy(proxy);
}

/* Chunk p goes to peer p, from its place in our slot to the same place in theirs; a peer past the end still gets its
 * flag. */
static void scatter_sends_each_peer_its_chunk(void) {
    rr_config c = test_config(4, 1, 65536);
    rr_proxy *proxy = open_engine(&c);
    the_script.at_once = true;
    rr_command cmd = broadcast(proxy, 1, 0xd, 2 * 1600 + 100);
    cmd.op = RR_OP_SCATTER, cmd.chunk = 1600;
    publish_at(proxy, 0, cmd);
    step_until_quiet(proxy);
    CHECK(the_script.writes == 3, "%u writes", the_script.writes);
    for (uint32_t i = 0; i < 3; i++) {
        const rr_write *w = &the_script.write[i];
        CHECK(w->dst == cmd.dst && w->flag &&
                  w->bytes == (w->peer == 0   ? 1600u
                               : w->peer == 2 ? 100u
                                              : 0u),
              "peer %u: %u bytes", w->peer, w->bytes);
        CHECK(w->src == cmd.src + w->peer * 1600, "peer %u: another's chunk", w->peer);
    }
    rr_proxy_destroy(proxy);
}

static void completions_of_another_generation_are_counted_and_ignored(void) {
    rr_config c = test_config(2, 0, 65536);
    rr_proxy *proxy = open_engine(&c);
    publish_at(proxy, 0, broadcast(proxy, 1, 2, 5000));
    step_until_quiet(proxy);
    for (uint32_t bit = 48; bit < 64; bit++) /* the generation is the tag's top 16 bits */
        script_complete_with((rr_completion){
            .tag = the_script.write[0].tag ^ 1ull << bit, .peer = 1, .status = bit % 2 ? RR_ERR_QP_ERROR : 0});
    step_until_quiet(proxy);
    CHECK(proxy->stats.stale_completions == 16, "%llu counted", (unsigned long long)proxy->stats.stale_completions);
    CHECK(!rr_engine_idle(proxy) && !rr_proxy_abort_word(proxy) && !proxy->stats.writes_completed,
          "an old completion had an effect");
    script_complete(1, 0);
    step_until_quiet(proxy);
    CHECK(rr_engine_idle(proxy), "the right completion had none");
    rr_proxy_destroy(proxy);
}

/* Whether posting or completing fails: it is counted on its path, nothing more goes out there, and the watch, which
 * sees all paths to the peer, is asked at once. */
static void a_failed_path_is_counted_and_the_watch_asked(void) {
    for (int at_completion = 0; at_completion < 2; at_completion++) {
        rr_config c = test_config(4, 0, 65536);
        memset(c.paths, 3, 4);
        rr_proxy *proxy = open_engine(&c);
        proxy->last_alive_ns = 12345;
        if (!at_completion) the_script.fails_peer = 2, the_script.fails_path = 1;
        publish_at(proxy, 0, broadcast(proxy, 5, 0xe, 5000));
        step_until_quiet(proxy);
        if (at_completion) {
            CHECK(the_script.writes == 9, "%u writes", the_script.writes);
            for (uint32_t i = 0; i < 9; i++)
                if (the_script.write[i].peer == 2 && the_script.write[i].path == 1)
                    script_complete_with((rr_completion){
                        .tag = the_script.write[i].tag, .peer = 2, .path = 1, .status = RR_ERR_QP_ERROR});
            step_until_quiet(proxy);
        }
        for (int k = 0; k < 10; k++) rr_engine_step(proxy);
        CHECK(proxy->stats.path[2][1].errors == 1, "%llu errors counted on the path",
              (unsigned long long)proxy->stats.path[2][1].errors);
        CHECK(proxy->last_alive_ns == 0 && !rr_proxy_abort_word(proxy), "the watch was not asked");
        CHECK(!rr_engine_idle(proxy), "the operation counts as done");
        rr_proxy_destroy(proxy);
    }
}

/* After an abort a kernel on its way out may still publish; nothing of it leaves, late completions are drunk up
 * quietly. */
static void after_an_abort_commands_are_swallowed(void) {
    rr_config c = test_config(2, 0, 65536);
    rr_proxy *proxy = open_engine(&c);
    for (uint64_t k = 0; k < 3; k++) publish_at(proxy, k, broadcast(proxy, k + 1, 2, 5000));
    step_until_quiet(proxy);
    uint64_t word = rr_proxy_abort(proxy, RR_ERR_ABORTED_BY_USER, RR_NOBODY);
    CHECK(rr_proxy_abort(proxy, RR_ERR_PEER_DEAD, 1) == word && rr_proxy_abort_word(proxy) == word,
          "the first writer did not win");
    for (uint64_t k = 3; k < 5; k++) publish_at(proxy, k, broadcast(proxy, k + 1, 2, 5000));
    uint32_t before = the_script.writes;
    CHECK(before == 3 && !rr_engine_step(proxy), "an aborted engine says it works");
    CHECK(rr_progress_of(proxy)->consumed == 5 && the_script.writes == before, "consumed %llu, %u writes",
          (unsigned long long)rr_progress_of(proxy)->consumed, the_script.writes);
    CHECK(!rr_engine_idle(proxy), "writes are still in flight");
    for (int i = 0; i < 3; i++) script_complete(1, 0);
    rr_engine_step(proxy);
    CHECK(rr_engine_idle(proxy), "completions of the time before the abort are not drunk up");
    rr_proxy_destroy(proxy);
}

/* The ring is lapped many times, with some commands finishing late and out of order. */
static void the_command_ring_wraps(void) {
    rr_config c = test_config(3, 0, 65536);
    c.first_seq = (1ull << 32) - 100;
    rr_proxy *proxy = open_engine(&c);
    uint64_t rng = 3, index = 0, total = 20 * RR_COMMANDS;
    while (index < total || !rr_engine_idle(proxy)) {
        for (uint32_t k = rng_below(&rng, 40);
             k && index < total && index - rr_progress_of(proxy)->consumed < RR_COMMANDS; k--, index++)
            publish_at(proxy, index,
                       broadcast(proxy, c.first_seq + 1 + index / 4, 1 + rng_below(&rng, 3) * 2 > 1 ? 6 : 2,
                                 rng_below(&rng, 4000)));
        rr_engine_step(proxy);
        for (uint32_t k = rng_below(&rng, 60); k; k--) script_complete(1 + rng_below(&rng, 2), 0);
        if (the_script.writes > SCRIPT_WRITES - 2000) {
            /* Forget the finished ones. */
            uint32_t kept = 0;
            for (uint32_t i = 0; i < the_script.writes; i++)
                if (!the_script.completed[i])
                    the_script.write[kept] = the_script.write[i], the_script.completed[kept++] = false;
            the_script.writes = kept;
        }
    }
    CHECK(proxy->stats.commands == total && rr_progress_of(proxy)->consumed == total, "%llu commands",
          (unsigned long long)proxy->stats.commands);
    CHECK(rr_progress_of(proxy)->seq_completed == c.first_seq + total / 4, "completed %llu",
          (unsigned long long)rr_progress_of(proxy)->seq_completed);
    CHECK(proxy->stats.writes_posted == proxy->stats.writes_completed, "writes are missing");
    rr_proxy_destroy(proxy);
}

/* One command that does not finish holds up its own place in the ring, for one lap, and nothing else. */
static void a_full_ring_goes_on_when_the_oldest_finishes(void) {
    rr_config c = test_config(3, 0, 65536);
    rr_proxy *proxy = open_engine(&c);
    publish_at(proxy, 0, broadcast(proxy, 1, 2, 64));
    for (uint64_t k = 1; k < RR_COMMANDS; k++) publish_at(proxy, k, broadcast(proxy, 1, 4, 64));
    step_until_quiet(proxy);
    CHECK(the_script.writes == RR_COMMANDS, "%u of a full ring posted", the_script.writes);
    while (script_complete(2, 0)) {
    }
    step_until_quiet(proxy);
    publish_at(proxy, RR_COMMANDS, broadcast(proxy, 2, 4, 64));
    step_until_quiet(proxy);
    CHECK(the_script.writes == RR_COMMANDS, "a command was taken over an unfinished one");
    script_complete(1, 0);
    step_until_quiet(proxy);
    CHECK(the_script.writes == RR_COMMANDS + 1, "the ring stands still");
    rr_proxy_destroy(proxy);
}

/* Whatever the command ring holds, the engine writes payload into receive slots and flags into flags, to peers in the
 * mask, or it says BAD_COMMAND. Half of the commands are noise, half are good ones with one field spoilt. */
static void noise_in_the_ring_cannot_reach_outside_the_layout(void) {
    uint32_t refused = 0, accepted = 0;
    for (uint32_t size = 2; size <= RR_MAX_WORLD; size += 7) {
        rr_config c = test_config(size, size - 1, 30000);
        for (uint32_t p = 0; p < size; p++)
            c.paths[p] = (uint8_t)(1 + p % RR_MAX_PATHS), c.hops[p][0] = (uint8_t)(1 + p % 2);
        c.forward_window_bytes = c.forward_chunk_bytes = 4096;
        rr_proxy *proxy = open_engine(&c);
        the_script.at_once = true;
        const rr_layout *l = &proxy->layout;
        uint64_t rng = size;
        for (uint64_t index = 0; index < (quick() ? 2000 : 20000); index++) {
            rr_command cmd = broadcast(proxy, 1 + rng_below(&rng, 1000), 1 + rng_below(&rng, (1u << (size - 1)) - 1),
                                       rng_below(&rng, 30000));
            uint64_t noise[8];
            for (int i = 0; i < 8; i++) noise[i] = rng_next(&rng);
            if (index % 2) {
                memcpy(&cmd, noise, sizeof cmd);
            } else {
                if (rng_below(&rng, 3) == 0) cmd.op = RR_OP_SCATTER, cmd.chunk = 16 * rng_below(&rng, 1000);
                uint32_t bit = rng_below(&rng, 8 * sizeof cmd); /* one bit, or one byte near a bound */
                if (rng_below(&rng, 2))
                    ((uint8_t *)&cmd)[bit / 8] ^= (uint8_t)(1u << bit % 8);
                else if (rng_below(&rng, 2))
                    cmd.src = l->region_bytes - rng_below(&rng, 40000);
                else
                    cmd.dst = l->recv + (rng_below(&rng, 2) ? l->region_bytes - l->recv - rng_below(&rng, 40000)
                                                            : 0ull - rng_below(&rng, 100));
            }
            the_script.writes = 0;
            publish_at(proxy, index, cmd);
            step_until_quiet(proxy);
            CHECK(rr_engine_idle(proxy), "command %llu never ends", (unsigned long long)index);
            for (uint32_t i = 0; i < the_script.writes; i++) {
                const rr_write *w = &the_script.write[i];
                CHECK(w->peer < size && w->peer != c.rank && (cmd.peers & 1u << w->peer) && w->path < c.paths[w->peer],
                      "peer %u path %u", w->peer, w->path);
                CHECK(!w->bytes ||
                          (w->src >= l->send && w->bytes <= l->region_bytes && w->src <= l->region_bytes - w->bytes),
                      "reads at %llx", (unsigned long long)w->src);
                CHECK(w->dst >= l->recv && w->dst <= l->region_bytes - w->bytes, "writes at %llx",
                      (unsigned long long)w->dst);
                CHECK(!w->flag || (w->flag >= l->flags && w->flag < l->records && (w->flag - l->flags) % RR_LINE == 0),
                      "flag at %llx", (unsigned long long)w->flag);
            }
            if (!rr_proxy_abort_word(proxy)) {
                accepted++;
                continue;
            }
            refused++;
            CHECK(RR_ABORT_REASON(rr_proxy_abort_word(proxy)) == RR_ERR_BAD_COMMAND &&
                      RR_ABORT_CULPRIT(rr_proxy_abort_word(proxy)) == c.rank,
                  "abort word %llx", (unsigned long long)rr_proxy_abort_word(proxy));
            CHECK(the_script.writes == 0, "a refused command was served");
            rr_abort_line(proxy)->word = 0; /* only a test may forgive */
        }
        rr_proxy_destroy(proxy);
    }
    CHECK(accepted > 100 && refused > 100, "%u accepted, %u refused: too one-sided to say anything", accepted, refused);
}

int main(void) {
    the_forward_window_is_never_exceeded();
    at_most_64_chunks_are_in_a_window();
    a_phased_command_serves_one_peer_at_a_time();
    two_waves_are_direct_peers_and_then_forwarded_ones();
    scatter_sends_each_peer_its_chunk();
    completions_of_another_generation_are_counted_and_ignored();
    a_failed_path_is_counted_and_the_watch_asked();
    after_an_abort_commands_are_swallowed();
    the_command_ring_wraps();
    a_full_ring_goes_on_when_the_oldest_finishes();
    noise_in_the_ring_cannot_reach_outside_the_layout();
    return 0;
}
