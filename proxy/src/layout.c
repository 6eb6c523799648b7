/* The layout and the error list as data, for Python's checks and for the hello. */
#include "internal.h"

#include <pthread.h>
#include <stdio.h>

/* The structs of proxy.h: not on the wire, but Python has a view of them too. */
/* clang-format off */
#define API_FIELDS(X) \
    X(rr_config, struct_bytes) \
    X(rr_config, world) \
    X(rr_config, rank) \
    X(rr_config, provider) \
    X(rr_config, session) \
    X(rr_config, slot_bytes) \
    X(rr_config, first_seq) \
    X(rr_config, stripe_min_bytes) \
    X(rr_config, forward_window_bytes) \
    X(rr_config, forward_chunk_bytes) \
    X(rr_config, late_ms) \
    X(rr_config, peer_timeout_ms) \
    X(rr_config, dead_ms) \
    X(rr_config, idle_spins) \
    X(rr_config, nap_us) \
    X(rr_config, yield) \
    X(rr_config, cpu) \
    X(rr_config, doorbell) \
    X(rr_config, order) \
    X(rr_config, paths) \
    X(rr_config, hops) \
    X(rr_config, hca_of) \
    X(rr_config, hca) \
    X(rr_config, address) \
    X(rr_config, shm_dir) \
    X(rr_path_stats, writes) \
    X(rr_path_stats, bytes) \
    X(rr_path_stats, completions) \
    X(rr_path_stats, errors) \
    X(rr_stats, struct_bytes) \
    X(rr_stats, state) \
    X(rr_stats, abort_word) \
    X(rr_stats, commands) \
    X(rr_stats, commands_asleep) \
    X(rr_stats, commands_lent) \
    X(rr_stats, ops) \
    X(rr_stats, writes_posted) \
    X(rr_stats, writes_completed) \
    X(rr_stats, bytes_written) \
    X(rr_stats, window_stalls) \
    X(rr_stats, queue_stalls) \
    X(rr_stats, polls) \
    X(rr_stats, empty_polls) \
    X(rr_stats, naps) \
    X(rr_stats, stale_completions) \
    X(rr_stats, late_reports) \
    X(rr_stats, longest_late_ms) \
    X(rr_stats, longest_loop_gap_us) \
    X(rr_stats, events_lost) \
    X(rr_stats, nudges) \
    X(rr_stats, seq_started) \
    X(rr_stats, seq_done) \
    X(rr_stats, seq_posted) \
    X(rr_stats, seq_completed) \
    X(rr_stats, idle_spins) \
    X(rr_stats, nap_us) \
    X(rr_stats, yield) \
    X(rr_stats, waiting) \
    X(rr_stats, closed) \
    X(rr_stats, ports_down) \
    X(rr_stats, imm) \
    X(rr_stats, path) \
    X(rr_event, index) \
    X(rr_event, time_ns) \
    X(rr_event, seq) \
    X(rr_event, ms) \
    X(rr_event, kind) \
    X(rr_event, reason) \
    X(rr_event, peer) \
    X(rr_event, root) \
    X(rr_event, phase) \
    X(rr_event, path) \
    X(rr_layout, world) \
    X(rr_layout, slot_bytes) \
    X(rr_layout, phases) \
    X(rr_layout, commands) \
    X(rr_layout, abort) \
    X(rr_layout, kernel) \
    X(rr_layout, progress) \
    X(rr_layout, notices) \
    X(rr_layout, waits) \
    X(rr_layout, flags) \
    X(rr_layout, records) \
    X(rr_layout, send) \
    X(rr_layout, recv) \
    X(rr_layout, region_bytes)
#define API_STRUCTS(X) X(rr_config, 0) X(rr_path_stats, 0) X(rr_stats, 0) X(rr_event, 0) X(rr_layout, 0)
/* clang-format on */
static char table[16384];
static size_t wire_table_bytes; /* the part that the layout hash covers */
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static size_t add(size_t at, const char *type, const char *field, size_t offset, size_t bytes) {
    return at + (size_t)snprintf(table + at, sizeof table - at, "%s %s %zu %zu\n", type, field, offset, bytes);
}

static void make_table(void) {
    size_t at = 0;
#define FIELD(type, field, offset, bytes) at = add(at, #type, #field, offset, bytes);
#define STRUCT(type, bytes) at = add(at, #type, "-", 0, sizeof(type));
    RR_FIELDS(FIELD)
    RR_STRUCTS(STRUCT)
    wire_table_bytes = at;
#define API_FIELD(type, field) at = add(at, #type, #field, offsetof(type, field), sizeof(((type *)0)->field));
    API_FIELDS(API_FIELD)
    API_STRUCTS(STRUCT)
}

const char *rr_layout_table(void) {
    pthread_once(&table_once, make_table);
    return table;
}

/* FNV-1a, 64 bit: a checksum against mistakes, not against an adversary (hellos travel over the exchange channel). */
static uint64_t fnv(uint64_t hash, const void *data, size_t bytes) {
    for (const uint8_t *p = data; bytes--; p++) hash = (hash ^ *p) * 0x100000001b3ull;
    return hash;
}

uint64_t rr_layout_hash(uint32_t world, uint64_t slot_bytes) {
    const char *text = rr_layout_table();
    rr_layout layout = rr_layout_of(world, slot_bytes);
    uint32_t constants[] = {RR_WIRE_VERSION, RR_LINE, RR_MAX_WORLD, RR_MAX_PATHS, RR_SLOTS, RR_COMMANDS, RR_RECORDS};
    uint64_t hash = fnv(0xcbf29ce484222325ull, text, wire_table_bytes);
    hash = fnv(hash, constants, sizeof constants);
    return fnv(hash, &layout, sizeof layout);
}

void rr_layout_fill(uint32_t world, uint64_t capacity, rr_layout *out) {
    *out = rr_layout_of(world, rr_slot_bytes(capacity));
}

const char *rr_error_table(void) {
    return
#define RR_ERROR(name, value, meaning, hint) #value " " #name " " meaning "\t" hint "\n"
#include <roce_ring/errors.def>
#undef RR_ERROR
        ;
}

uint32_t rr_providers(void) {
    uint32_t built = 1u << RR_PROVIDER_SHM;
#ifdef RR_HAVE_VERBS
    built |= 1u << RR_PROVIDER_VERBS;
#endif
    return built;
}

uint32_t rr_wire_version(void) { return RR_WIRE_VERSION; }
