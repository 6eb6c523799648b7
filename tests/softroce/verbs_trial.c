/* One rank of a trial of a provider, without kernels: this program is its own kernel. It publishes commands, waits for
 * flags in its region and checks every byte that came. Build and run: trial.py; `--provider shm` runs it on a
 * machine without RDMA.
 *
 * Three shapes of operation, sizes from 0 to the capacity, ragged: broadcast, scatter, and a put to the next rank
 * together with a broadcast of no bytes. In each, a rank ends only after everybody's flag of this operation came, which
 * is what makes two slots enough (a peer writes a slot again two operations later).
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static rr_config config;
static rr_proxy *proxy;
static rr_layout layout;
static uint8_t *base;
static uint64_t published;
static const char *dir;
static uint64_t capacity; /* most bytes of an operation */

static void fail(const char *what) {
    fprintf(stderr, "rank %u: %s\n", config.rank, what);
    exit(1);
}

/* ---- what a launcher does: hellos through files ---- */

static void put_file(const char *kind, const void *data, size_t bytes) {
    char name[512], part[520];
    snprintf(name, sizeof name, "%s/%s.%u", dir, kind, config.rank);
    snprintf(part, sizeof part, "%s.part", name);
    FILE *f = fopen(part, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) || rename(part, name))
        fail("cannot write into the shared directory");
}

static void get_file(const char *kind, uint32_t rank, void *data, size_t bytes) {
    char name[512], text[600];
    snprintf(name, sizeof name, "%s/%s.%u", dir, kind, rank);
    for (uint64_t until = rr_now_ns() + 20000000000ull; rr_now_ns() < until; usleep(2000)) {
        FILE *f = fopen(name, "rb");
        if (!f) continue;
        size_t got = fread(data, 1, bytes, f);
        fclose(f);
        if (got == bytes) return;
    }
    snprintf(text, sizeof text, "no %s after 20 s", name);
    fail(text);
}

static void barrier(const char *kind) {
    uint8_t byte = 1;
    put_file(kind, &byte, 1);
    for (uint32_t p = 0; p < config.world; p++) get_file(kind, p, &byte, 1);
}

/* ---- what a kernel does ---- */

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser: any bit of the input moves half of the output */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Word i of what `src` sends in operation `seq`, counted from the start of its send slot. */
static uint64_t word_of(uint64_t seq, uint32_t src, uint64_t i) {
    return mix(seq << 24 ^ (uint64_t)src << 56 ^ (i + 1));
}

static void fill(uint8_t *at, uint64_t seq, uint32_t src, uint32_t bytes) {
    for (uint32_t done = 0; done < bytes; done += 8) {
        uint64_t w = word_of(seq, src, done / 8);
        memcpy(at + done, &w, bytes - done < 8 ? bytes - done : 8);
    }
}

/* Received bytes against bytes [begin, begin + bytes) of the sender's slot; begin is a multiple of 16. */
static void check(const uint8_t *at, uint64_t seq, uint32_t src, uint32_t begin, uint32_t bytes) {
    for (uint32_t done = 0; done < bytes; done += 8) {
        uint64_t w = word_of(seq, src, (begin + done) / 8);
        if (memcmp(at + done, &w, bytes - done < 8 ? bytes - done : 8)) {
            char text[200];
            snprintf(text, sizeof text, "operation %llu: byte %u of the %u from rank %u is wrong (its flag had come)",
                     (unsigned long long)seq, done, bytes, src);
            fail(text);
        }
    }
}

static void publish(rr_command cmd) {
    rr_command *slot = (rr_command *)(base + layout.commands) + published % RR_COMMANDS;
    while (published - rr_load_relaxed(&rr_progress_of(proxy)->consumed) >= RR_COMMANDS) sched_yield();
    cmd.commit = slot->commit;
    *slot = cmd;
    __atomic_store_n(&slot->commit, ++published, __ATOMIC_SEQ_CST);
    uint32_t *napping = &rr_progress_of(proxy)->napping;
    if (__atomic_load_n(napping, __ATOMIC_SEQ_CST)) {
        rr_store_napping(napping, 0);
        syscall(SYS_futex, napping, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static void say_abort(uint64_t word) {
    char text[160];
    snprintf(text, sizeof text, "aborted: reason %u, culprit rank %u, path %u, operation %u", RR_ABORT_REASON(word),
             RR_ABORT_CULPRIT(word), RR_ABORT_PATH(word), RR_ABORT_SEQ(word));
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    fprintf(stderr, "rank %u: at %lld.%03ld\n", config.rank, (long long)t.tv_sec, t.tv_nsec / 1000000);
    rr_proxy_stop(proxy, 200);
    rr_proxy_destroy(proxy);
    fail(text);
}

static void wait_flags(uint32_t src, uint32_t phase, uint64_t seq, uint32_t bytes) {
    uint32_t used = rr_paths_used(bytes, config.paths[src], config.stripe_min_bytes);
    for (uint32_t path = 0; path < used; path++) {
        uint64_t *flag = (uint64_t *)(base + rr_flag_offset(layout.flags, (uint32_t)layout.phases, src, seq % RR_SLOTS,
                                                            phase, path));
        rr_wait_line *line = (rr_wait_line *)(base + layout.waits) + src * RR_MAX_PATHS + path;
        uint64_t since = rr_now_ns();
        bool raised = false;
        for (uint32_t turn = 1; rr_load_acquire(flag) != seq; turn++) {
            if (turn % 64 == 0) {
                uint64_t word = rr_proxy_abort_word(proxy);
                if (word) say_abort(word);
                if (!raised && rr_now_ns() - since > 100000000)
                    rr_store_release(&line->word, RR_WAIT_WORD(phase, seq)), raised = true;
            }
            sched_yield();
        }
        if (raised) rr_store_release(&line->word, 0);
    }
}

/* What a kernel says of itself. */
static void begin(uint64_t seq) { rr_store_relaxed(&rr_kernel_line_of(proxy)->seq_started, seq); }
static void end(uint64_t seq) { rr_store_relaxed(&rr_kernel_line_of(proxy)->seq_done, seq); }

static uint64_t send_at(uint64_t seq) { return layout.send + seq % RR_SLOTS * 2 * layout.slot_bytes; }
static uint64_t recv_at(uint64_t seq, uint32_t src) {
    return layout.recv + (seq % RR_SLOTS * config.world + src) * layout.slot_bytes;
}

static uint64_t everybody_else(void) { return ((1u << config.world) - 1) & ~(1u << config.rank); }

static rr_command command(uint64_t seq, uint8_t op, uint8_t phase, uint32_t bytes) {
    return (rr_command){.seq = seq,
                        .src = send_at(seq),
                        .dst = recv_at(seq, config.rank),
                        .bytes = bytes,
                        .peers = (uint16_t)everybody_else(),
                        .op = op,
                        .phase = phase,
                        .wave = (uint8_t)(seq % 3)}; /* all waves in turn */
}

static void broadcast(uint64_t seq, uint32_t bytes) {
    begin(seq);
    fill(base + send_at(seq), seq, config.rank, bytes);
    publish(command(seq, RR_OP_BROADCAST, 0, bytes));
    for (uint32_t p = 0; p < config.world; p++) {
        if (p == config.rank) continue;
        wait_flags(p, 0, seq, bytes);
        check(base + recv_at(seq, p), seq, p, 0, bytes);
    }
    end(seq);
}

static void scatter(uint64_t seq, uint32_t bytes) {
    begin(seq);
    uint32_t chunk = (uint32_t)rr_round_up(bytes / config.world + 1, 16),
             mine = rr_chunk_bytes(bytes, chunk, config.rank);
    fill(base + send_at(seq), seq, config.rank, bytes);
    rr_command cmd = command(seq, RR_OP_SCATTER, 0, bytes);
    cmd.chunk = chunk;
    publish(cmd);
    for (uint32_t p = 0; p < config.world; p++) {
        if (p == config.rank) continue;
        wait_flags(p, 0, seq, mine);
        check(base + recv_at(seq, p), seq, p, config.rank * chunk, mine);
    }
    end(seq);
}

static void put(uint64_t seq, uint32_t bytes) {
    begin(seq);
    uint32_t next = (config.rank + 1) % config.world, previous = (config.rank + config.world - 1) % config.world;
    fill(base + send_at(seq), seq, config.rank, bytes);
    rr_command cmd = command(seq, RR_OP_PUT, 0, bytes);
    cmd.peers = (uint16_t)(1u << next);
    publish(cmd);
    wait_flags(previous, 0, seq, bytes);
    check(base + recv_at(seq, previous), seq, previous, 0, bytes);
    publish(command(seq, RR_OP_BROADCAST, 1, 0));
    for (uint32_t p = 0; p < config.world; p++)
        if (p != config.rank) wait_flags(p, 1, seq, 0);
    end(seq);
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Microseconds from publishing a broadcast until everybody's flags are here; before each, an operation of no bytes
 * brings the ranks together. The bytes are checked in every one. */
static uint64_t timed(uint64_t seq, uint32_t bytes, uint32_t rounds, uint64_t *ns, uint64_t *ns_empty) {
    for (uint32_t i = 0; i < rounds; i++) {
        broadcast(++seq, 0);
        for (uint32_t step = 0; step < 2; step++) {
            uint32_t size = step ? 0 : bytes;
            seq++;
            begin(seq);
            fill(base + send_at(seq), seq, config.rank, size);
            uint64_t at = rr_now_ns();
            publish(command(seq, RR_OP_BROADCAST, 0, size));
            for (uint32_t p = 0; p < config.world; p++)
                if (p != config.rank) wait_flags(p, 0, seq, size);
            (step ? ns_empty : ns)[i] = rr_now_ns() - at;
            for (uint32_t p = 0; p < config.world; p++)
                if (p != config.rank) check(base + recv_at(seq, p), seq, p, 0, size);
            end(seq);
        }
    }
    qsort(ns, rounds, sizeof ns[0], by_value);
    qsort(ns_empty, rounds, sizeof ns[0], by_value);
    return seq;
}

/* The litmus, and what is left of the paths after it. */
static void prove(int imm) {
    typedef uint8_t verdicts[RR_MAX_WORLD][RR_MAX_PATHS];
    static verdicts all[RR_MAX_WORLD];
    char why[1024] = "";
    uint8_t used[RR_MAX_WORLD] = {0};
    uint64_t at = rr_now_ns();
    if (rr_proxy_litmus(proxy, (uint32_t)imm, &all[config.rank][0][0], why, sizeof why)) fail(why);
    double ms = (double)(rr_now_ns() - at) / 1e6;
    put_file("litmus", all[config.rank], sizeof all[0]);
    for (uint32_t p = 0; p < config.world; p++) get_file("litmus", p, all[p], sizeof all[0]);
    printf("rank %u: litmus of %.1f ms says", config.rank, ms);
    for (uint32_t p = 0; p < config.world; p++) {
        if (p == config.rank) continue;
        for (uint32_t i = 0; i < config.paths[p]; i++) {
            uint8_t here = all[config.rank][p][i], there = all[p][config.rank][i];
            printf(" %u.%u=%u/%u", p, i, here, there);
            if (here == RR_PATH_RIGHT && there == RR_PATH_RIGHT) used[p] |= (uint8_t)(1u << i);
        }
        config.paths[p] = (uint8_t)__builtin_popcount(used[p]);
    }
    printf("\n");
    fflush(stdout);
    if (rr_proxy_use(proxy, used, (uint32_t)imm, why, sizeof why)) fail(why);
    barrier("used");
}

static const char *option(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    if (!otherwise) fprintf(stderr, "option %s is missing\n", name), exit(2);
    return otherwise;
}

/* "peer=h0/h1,peer=h0/h1": devices of the paths to each peer, as in the planner's map of one rank. */
static void parse_map(char *map) {
    for (char *item; (item = strsep(&map, ","));) {
        uint32_t peer = (uint32_t)strtoul(item, &item, 10);
        while (*item == '=' || *item == '/')
            config.hca_of[peer][config.paths[peer]++] = (uint8_t)strtoul(item + 1, &item, 10);
    }
}

int main(int argc, char **argv) {
    bool shm = !strcmp(option(argc, argv, "--provider", "verbs"), "shm");
    config = (rr_config){.struct_bytes = sizeof config,
                         .world = (uint32_t)atoi(option(argc, argv, "--world", NULL)),
                         .rank = (uint32_t)atoi(option(argc, argv, "--rank", NULL)),
                         .provider = shm ? RR_PROVIDER_SHM : RR_PROVIDER_VERBS,
                         .session = {0x747269616cull, 1},
                         .first_seq = 0,
                         .stripe_min_bytes = (uint32_t)atoi(option(argc, argv, "--stripe-min", "4096")),
                         .forward_window_bytes = (uint32_t)atoi(option(argc, argv, "--window", "0")),
                         .forward_chunk_bytes = 8192,
                         .late_ms = 500,
                         .peer_timeout_ms = 30000,
                         .dead_ms = (uint32_t)atoi(option(argc, argv, "--dead-ms", "2000")),
                         .idle_spins = 100000,
                         .nap_us = 20,
                         .yield = 1,
                         .cpu = -1};
    uint32_t ops = (uint32_t)atoi(option(argc, argv, "--ops", "3000")),
             rounds = (uint32_t)atoi(option(argc, argv, "--rounds", "300"));
    uint32_t bytes = (uint32_t)atoi(option(argc, argv, "--bytes", "61440"));
    dir = option(argc, argv, "--dir", NULL);
    capacity = (uint64_t)atoll(option(argc, argv, "--capacity", "65536"));
    if (bytes > capacity) capacity = bytes;
    config.slot_bytes = rr_slot_bytes(capacity);
    parse_map(strdup(option(argc, argv, "--map", NULL)));
    char *names = strdup(option(argc, argv, "--hca", ""));
    for (uint32_t i = 0; i < 8 && names; i++) snprintf(config.hca[i], sizeof config.hca[i], "%s", strsep(&names, ","));
    for (uint32_t p = 0; p < config.world; p++) {
        uint32_t distance = (p + config.world - config.rank) % config.world;
        config.order[p] = (uint8_t)p;
        for (uint32_t i = 0; i < RR_MAX_PATHS; i++)
            config.hops[p][i] = (uint8_t)(distance < config.world - distance ? distance : config.world - distance);
    }

    char why[4096] = "";
    proxy = rr_proxy_create(&config, why, sizeof why);
    if (!proxy) fail(why);
    rr_hello all[RR_MAX_WORLD];
    rr_proxy_hello(proxy, &all[config.rank]);
    put_file("hello", &all[config.rank], sizeof all[0]);
    for (uint32_t p = 0; p < config.world; p++) get_file("hello", p, &all[p], sizeof all[0]);
    if (rr_proxy_connect(proxy, all, why, sizeof why)) fail(why);
    barrier("connected");
    prove(atoi(option(argc, argv, "--imm", "0")));
    if (rr_proxy_start(proxy, why, sizeof why)) fail(why);
    base = rr_proxy_region(proxy);
    rr_proxy_layout(proxy, &layout);

    uint64_t seq = 0, started = rr_now_ns();
    while (seq < ops) {
        seq++;
        uint32_t size = (uint32_t)(mix(seq) % 4 ? mix(seq * 3) % (capacity + 1) : mix(seq * 5) % 64);
        (seq % 3 == 0 ? broadcast : seq % 3 == 1 ? scatter : put)(seq, size);
    }
    double mixed_s = (double)(rr_now_ns() - started) / 1e9;
    uint64_t *ns = calloc(rounds, 8), *ns_empty = calloc(rounds, 8);
    timed(seq, bytes, rounds, ns, ns_empty);
    int unfinished = rr_proxy_stop(proxy, 2000);

    rr_stats s;
    rr_proxy_stats(proxy, &s);
    printf("rank %u: %u mixed operations right in %.2f s\n", config.rank, ops, mixed_s);
    if (rounds)
        printf("rank %u: broadcast of %u bytes to %u peers: median %.0f us, p99 %.0f us; of 0 bytes: median %.0f us, "
               "p99 %.0f us\n",
               config.rank, bytes, config.world - 1, (double)ns[rounds / 2] / 1e3, (double)ns[rounds * 99 / 100] / 1e3,
               (double)ns_empty[rounds / 2] / 1e3, (double)ns_empty[rounds * 99 / 100] / 1e3);
    printf("rank %u: commands %llu, writes %llu, queue stalls %llu, window stalls %llu, naps %llu, late %llu, stale "
           "%llu, nudges %llu, bytes per path",
           config.rank, (unsigned long long)s.commands, (unsigned long long)s.writes_posted,
           (unsigned long long)s.queue_stalls, (unsigned long long)s.window_stalls, (unsigned long long)s.naps,
           (unsigned long long)s.late_reports, (unsigned long long)s.stale_completions, (unsigned long long)s.nudges);
    for (uint32_t p = 0; p < config.world; p++)
        for (uint32_t i = 0; i < config.paths[p]; i++)
            printf(" %u.%u=%llu", p, i, (unsigned long long)s.path[p][i].bytes);
    printf("\n");
    rr_proxy_destroy(proxy);
    if (unfinished) fail("stop left writes unfinished");
    return 0;
}
