/* The layout and the error list as data, for Python's checks and for the hello. */
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LINE_FIELD(type, field, offset, bytes) #type " " #field " " #offset " " #bytes "\n"
#define LINE_STRUCT(type, bytes) #type " - 0 %zu\n"
static char struct_lines[1024];
static char table[8192];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void make_table(void) {
    int n = snprintf(struct_lines, sizeof struct_lines, RR_STRUCTS(LINE_STRUCT) "%s",
#define SIZE(type, bytes) sizeof(type),
                     RR_STRUCTS(SIZE)
#undef SIZE
                         "");
    (void)n;
    snprintf(table, sizeof table, "%s%s", RR_FIELDS(LINE_FIELD), struct_lines);
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
    uint64_t hash = fnv(0xcbf29ce484222325ull, text, strlen(text));
    hash = fnv(hash, constants, sizeof constants);
    return fnv(hash, &layout, sizeof layout);
}

void rr_layout_fill(uint32_t world, uint64_t capacity, rr_layout *out) { *out = rr_layout_of(world, rr_slot_bytes(capacity)); }

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
