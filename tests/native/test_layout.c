/* The numbers both ends of a transfer derive for themselves: where things lie, how bytes are cut, and that a difference
 * shows. */
#include "testing.h"

static const uint64_t capacities[] = {1, 4095, 4096, 65536, 1000003, 1ull << 30};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void parts_follow_each_other_on_lines_of_their_own(void) {
    for (uint32_t world = 2; world <= RR_MAX_WORLD; world++) {
        for (size_t i = 0; i < COUNT(capacities); i++) {
            uint64_t slot = rr_slot_bytes(capacities[i]);
            CHECK(slot >= capacities[i] && slot % RR_PAGE == 0, "capacity %llu", (unsigned long long)capacities[i]);
            rr_layout l = rr_layout_of(world, slot), filled;
            rr_layout_fill(world, capacities[i], &filled);
            CHECK(!memcmp(&l, &filled, sizeof l), "world %u: the library's layout is not the header's", world);
            struct {
                const char *name;
                uint64_t at, bytes;
            } part[] = {
                {"header", 0, sizeof(rr_header)},
                {"commands", l.commands, RR_COMMANDS * sizeof(rr_command)},
                {"abort", l.abort, sizeof(rr_abort)},
                {"kernel", l.kernel, sizeof(rr_kernel_line)},
                {"progress", l.progress, sizeof(rr_progress)},
                {"notices", l.notices, world * sizeof(rr_notice)},
                {"waits", l.waits, world * RR_MAX_PATHS * sizeof(rr_wait_line)},
                {"flags", l.flags, world * RR_SLOTS * l.phases * RR_MAX_PATHS * sizeof(rr_flag)},
                {"records", l.records, RR_RECORDS * sizeof(rr_record)},
                {"send", l.send, RR_SLOTS * 2 * slot},
                {"recv", l.recv, RR_SLOTS * world * slot},
                {"end", l.region_bytes, 0},
            };
            for (size_t p = 0; p < COUNT(part); p++) {
                CHECK(part[p].at % RR_LINE == 0, "world %u: %s shares a line", world, part[p].name);
                CHECK(p == 0 || part[p - 1].at + part[p - 1].bytes <= part[p].at, "world %u: %s overlaps %s", world,
                      part[p - 1].name, part[p].name);
            }
            CHECK(l.send % RR_PAGE == 0 && l.recv % RR_PAGE == 0 && l.region_bytes % RR_PAGE == 0, "world %u", world);
        }
    }
}

static void no_two_flags_share_a_line(void) {
    for (uint32_t world = 2; world <= RR_MAX_WORLD; world++) {
        rr_layout l = rr_layout_of(world, rr_slot_bytes(1));
        uint32_t phases = (uint32_t)l.phases;
        CHECK(phases >= 2 * (world - 1) && phases >= 4 * rr_log2_ceil(world) && phases >= 4, "world %u has %u phases",
              world, phases);
        size_t lines = (size_t)((l.records - l.flags) / RR_LINE);
        unsigned char *taken = calloc(lines, 1);
        for (uint32_t src = 0; src < world; src++)
            for (uint32_t slot = 0; slot < RR_SLOTS; slot++)
                for (uint32_t phase = 0; phase < phases; phase++)
                    for (uint32_t path = 0; path < RR_MAX_PATHS; path++) {
                        uint64_t at = rr_flag_offset(l.flags, phases, src, slot, phase, path);
                        CHECK(at >= l.flags && at + sizeof(rr_flag) <= l.records && at % RR_LINE == 0,
                              "world %u src %u phase %u", world, src, phase);
                        size_t line = (size_t)((at - l.flags) / RR_LINE);
                        CHECK(!taken[line], "world %u: two flags on line %zu", world, line);
                        taken[line] = 1;
                    }
        free(taken);
    }
}

/* Deals 16-byte units like cards: an independent description of what rr_stripe_begin computes. */
static void stripes_are_the_whole_in_whole_units(void) {
    uint64_t rng = 1;
    for (int i = 0; i < 20000; i++) {
        uint32_t paths = 1 + rng_below(&rng, RR_MAX_PATHS), bytes = rng_below(&rng, i % 2 ? 300 : 1u << 30);
        uint32_t minimum = rng_below(&rng, 3) ? rng_below(&rng, 2048) : 0, used = rr_paths_used(bytes, paths, minimum);
        CHECK(used == 1 || used == paths, "%u of %u paths", used, paths);
        CHECK(used == 1 || bytes >= minimum, "%u bytes are striped below the minimum of %u", bytes, minimum);
        CHECK(rr_stripe_begin(bytes, used, 0) == 0 && rr_stripe_begin(bytes, used, used) == bytes, "%u bytes, %u paths",
              bytes, used);
        uint32_t units[RR_MAX_PATHS];
        for (uint32_t p = 0; p < used; p++) units[p] = bytes / 16 / used + (p < bytes / 16 % used);
        for (uint32_t p = 0; p < used; p++) {
            uint32_t begin = rr_stripe_begin(bytes, used, p), end = rr_stripe_begin(bytes, used, p + 1);
            uint32_t tail = p + 1 == used ? bytes % 16 : 0;
            CHECK(begin % 16 == 0 && end - begin == units[p] * 16 + tail, "%u bytes, path %u of %u: [%u, %u)", bytes, p,
                  used, begin, end);
            CHECK(used == 1 || end > begin, "%u bytes leave path %u of %u empty", bytes, p, used);
        }
    }
}

static void chunks_are_the_whole_and_start_on_packs(void) {
    uint64_t rng = 2;
    for (int i = 0; i < 20000; i++) {
        uint32_t world = 2 + rng_below(&rng, RR_MAX_WORLD - 1), chunk = 16 * (1 + rng_below(&rng, 1000));
        uint32_t bytes = rng_below(&rng, world * chunk + 1), sum = 0;
        for (uint32_t p = 0; p < world; p++) {
            uint32_t n = rr_chunk_bytes(bytes, chunk, p);
            CHECK(n <= chunk && (n == chunk || sum + n == bytes), "chunk %u of %u in %u has %u", p, chunk, bytes, n);
            sum += n;
        }
        CHECK(sum == bytes, "chunks of %u hold %u of %u bytes", chunk, sum, bytes);
        CHECK(rr_chunk_bytes(UINT32_MAX, UINT32_MAX, 2) == 0, "a chunk past 4 GiB wrapped");
    }
}

static void the_hash_tells_worlds_and_slots_apart(void) {
    uint64_t seen[(RR_MAX_WORLD - 1) * COUNT(capacities)];
    size_t n = 0;
    for (uint32_t world = 2; world <= RR_MAX_WORLD; world++)
        for (uint64_t slot = 2 * RR_PAGE; slot < (2 + COUNT(capacities)) * RR_PAGE; slot += RR_PAGE) {
            uint64_t hash = rr_layout_hash(world, slot);
            CHECK(hash == rr_layout_hash(world, slot), "the hash is not a function");
            for (size_t i = 0; i < n; i++)
                CHECK(hash != seen[i], "world %u, slot %llu has another's hash", world, (unsigned long long)slot);
            seen[n++] = hash;
        }
}

static void every_error_says_what_it_means_and_what_to_do(void) {
    static const uint32_t values[] = {
#define RR_ERROR(name, value, meaning, hint) value,
#include <roce_ring/errors.def>
#undef RR_ERROR
    };
    const char *line = rr_error_table();
    for (size_t i = 0; i < COUNT(values); i++) {
        CHECK(values[i] == i, "value %u at place %zu: values travel on the wire and have no gaps", values[i], i);
        const char *end = strchr(line, '\n'), *tab = strchr(line, '\t'), *space = strchr(line, ' ');
        CHECK(end && tab && tab < end && space && space < tab, "line %zu of the table", i);
        CHECK(strtoul(line, NULL, 10) == values[i], "line %zu is of another error", i);
        CHECK(strchr(space + 1, ' ') + 5 < tab && tab + 5 < end, "error %zu has no meaning or no hint", i);
        line = end + 1;
    }
    CHECK(*line == 0, "the table goes on: %s", line);
}

static void an_abort_word_keeps_its_parts(void) {
    uint64_t word = RR_ABORT_WORD(RR_ERR_QP_ERROR, 15, 29, 3, 0x1fffffffeull);
    CHECK(RR_ABORT_REASON(word) == RR_ERR_QP_ERROR && RR_ABORT_CULPRIT(word) == 15 && RR_ABORT_PHASE(word) == 29,
          "%llx", (unsigned long long)word);
    CHECK(RR_ABORT_PATH(word) == 3 && RR_ABORT_SEQ(word) == 0xfffffffeu, "%llx", (unsigned long long)word);
}

/* A refusal that gives a bound has to accept the bound. */
static void the_largest_capacity_is_accepted(void) {
    char why[256] = "";
    rr_config c = test_config(2, 0, 1ull << 30);
    strcpy(c.shm_dir, "/nowhere/at/all");
    CHECK(!rr_proxy_create(&c, why, sizeof why) && strstr(why, "/nowhere/at/all"), "1 GiB: %s", why);
    c.slot_bytes += RR_PAGE;
    CHECK(!rr_proxy_create(&c, why, sizeof why) && strstr(why, "slot_bytes"), "more than 1 GiB: %s", why);
}

int main(void) {
    parts_follow_each_other_on_lines_of_their_own();
    no_two_flags_share_a_line();
    stripes_are_the_whole_in_whole_units();
    chunks_are_the_whole_and_start_on_packs();
    the_hash_tells_worlds_and_slots_apart();
    every_error_says_what_it_means_and_what_to_do();
    an_abort_word_keeps_its_parts();
    the_largest_capacity_is_accepted();
    return 0;
}
