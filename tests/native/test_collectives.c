/* Every mode, dtype, size and grid over real proxies gives the answer that the design promises, on every rank, every
 * time.
 *
 * Ranks are threads of this process, each with its own proxy thread. They run through one list of cases without meeting
 * between cases, so ranks are ahead of each other as in life. Under ThreadSanitizer the list is shorter and regions
 * have one address (shm_one_mapping.h).
 */
#define _GNU_SOURCE
#include "reference.h"
#include "shm_one_mapping.h"
#include "world.h"

#define CAPACITY 20480u
#define GUARD 64u
#define MAX_CASES 1024

typedef struct test_case {
    uint32_t kind, mode, dtype, wave, fp32_partials, pieces;
    uint64_t count, rows;
    uint64_t width[RR_MAX_WORLD];
    uint32_t whole;    /* inputs are whole numbers: the answer is exact in every mode */
    uint64_t norm_row; /* elements; 0: no norm */
    uint32_t in_place;
    uint32_t in_skew, out_skew; /* bytes off a 64-byte boundary */
    uint32_t blocks, threads;
    uint32_t spins, lend; /* how a waiting thread passes its time */
    uint64_t seed;
} test_case;

typedef struct plan {
    uint32_t cases;
    test_case at[MAX_CASES];
    uint64_t digest[MAX_CASES][RR_MAX_WORLD]; /* of each rank's output */
} plan;

static const struct {
    const char *name;
    bool raw, access;
} modes[] = {
    {"none", false, false},
#define RR_MODE(name, value, raw, forwarding, power_of_two, partials, access, meaning) {#name, raw, access},
#include "modes.def"
#undef RR_MODE
};

static bool raw(const test_case *t) { return t->kind == RR_REDUCE_SCATTER || modes[t->mode].raw; }

static uint64_t digest_of(const uint8_t *bytes, uint64_t n) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint64_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}

#define WHERE(t, rank, i)                                                                                              \
    "rank %u: %s kind %u dtype %u count %llu partials %u wave %u grid %ux%u in place %u skew %u/%u seed %llu, at "     \
    "%llu",                                                                                                            \
        (rank), modes[(t)->mode].name, (t)->kind, (t)->dtype, (unsigned long long)(t)->count, (t)->fp32_partials,      \
        (t)->wave, (t)->blocks, (t)->threads, (t)->in_place, (t)->in_skew, (t)->out_skew,                              \
        (unsigned long long)(t)->seed, (unsigned long long)(i)

static uint8_t *room(uint64_t bytes) {
    void *p;
    CHECK(!posix_memalign(&p, 64, rr_round_up(bytes + 2 * GUARD + 64, 64)), "out of memory");
    return p;
}

/* Hidden behind both ends of every output: a byte written outside is found. */
static void guard(uint8_t *out, uint64_t bytes) {
    memset(out - GUARD, 0xa5, GUARD);
    memset(out + bytes, 0xa5, GUARD);
}
static bool guarded(const uint8_t *out, uint64_t bytes) {
    for (uint32_t i = 0; i < GUARD; i++)
        if (out[(int)i - (int)GUARD] != 0xa5 || out[bytes + i] != 0xa5) return false;
    return true;
}

#define NORM_EPS 1e-5f

/* How often block 0 speaks to the peers in a direct operation that serves one destination at a time; 0 for others. */
static uint64_t phased_publishes(const test_case *t, const rr_op *op) {
    uint64_t each = op->world - 1, parts = op->layout.phases < 8 ? op->layout.phases / 2 : 4;
    if (t->kind != RR_ALL_REDUCE) return 0;
    if (t->mode == RR_MODE_FULL_PHASED) return (t->pieces > 1 ? t->pieces : 1) * each;
    /* Between the two halves all blocks meet once. */
    if (t->mode == RR_MODE_PAYLOAD_RSAG_PHASED) return 2 * each + 1;
    return t->mode == RR_MODE_BULK_PUSH_PHASED ? parts * (2 * each + 1) : 0;
}

static void run_op(test_world *w, uint32_t rank, const test_case *t, const uint8_t *in, uint8_t *out, uint8_t *residual,
                   const uint8_t *weight) {
    rr_op op = world_op(w, rank);
    op.kind = t->kind, op.mode = t->mode, op.dtype = t->dtype, op.wave = t->wave, op.fp32_partials = t->fp32_partials;
    op.pieces = t->pieces;
    op.count = t->count, op.rows = t->rows;
    memcpy(op.width, t->width, sizeof op.width);
    op.in = (uint64_t)(uintptr_t)in;
    op.out = (uint64_t)(uintptr_t)out;
    op.norm_row = t->norm_row, op.norm_residual = (uint64_t)(uintptr_t)residual;
    op.norm_weight = (uint64_t)(uintptr_t)weight, op.norm_eps = NORM_EPS;
    if (t->norm_row) { /* and something to fetch meanwhile, of which nothing may show */
        op.prefetches = 2;
        op.prefetch[0] = (uint64_t)(uintptr_t)weight + 1, op.prefetch_bytes[0] = 1;
        op.prefetch[1] = (uint64_t)(uintptr_t)in, op.prefetch_bytes[1] = t->count;
    }
    op.spins = t->spins;
    if (t->lend) op.lend = (uint64_t)(uintptr_t)rr_proxy_lend, op.proxy = (uint64_t)(uintptr_t)w->proxy[rank];
    rr_op_seal(&op);
    const char *refusal = rr_cpu_refusal(&op);
    CHECK(!refusal, WHERE(t, rank, 0));
    uint64_t before = w->state[rank].publishes, phased = w->direct ? phased_publishes(t, &op) : 0;
    if (phased && t->norm_row && t->blocks > 1) phased++; /* before the norm all blocks meet */
    int result = rr_cpu_run(&op, t->blocks, t->threads);
    CHECK(!phased || w->state[rank].publishes - before == phased, WHERE(t, rank, w->state[rank].publishes - before));
    CHECK(result == RR_CPU_OK, WHERE(t, rank, rr_proxy_abort_word(w->proxy[rank])));
}

static void check_reduced(const test_world *w, uint32_t rank, const test_case *t, const float *const *inputs,
                          const uint8_t *out) {
    uint64_t first = t->kind == RR_REDUCE_SCATTER ? rank * t->count : 0;
    uint32_t size = format_of(t->dtype).bytes;
    /* lanes.cuh: a partial that travels as T rounds at every hop, N - 1 of a ring and log2 N of halving; fp32 partials
     * round once at the end. Each of the N - 1 fp32 additions adds its own 2^-24. */
    uint32_t hops = t->mode == RR_MODE_HALVING ? rr_log2_ceil(w->size) : w->size - 1;
    double bound = (t->fp32_partials ? 1 : hops) * unit_roundoff(t->dtype) + (w->size - 1) * 0x1p-24;
    for (uint64_t i = 0; i < t->count; i++) {
        if (raw(t) || t->whole) {
            uint8_t expected[4];
            encode(t->dtype, sum_in_rank_order(inputs, w->size, first + i), expected);
            CHECK(!memcmp(out + i * size, expected, size), WHERE(t, rank, i));
        } else {
            double exact = 0, magnitude = 0;
            for (uint32_t r = 0; r < w->size; r++)
                exact += inputs[r][first + i], magnitude += fabsf(inputs[r][first + i]);
            double error = fabs(decode(t->dtype, out + i * size) - exact),
                   tiny = t->dtype == RR_FLOAT16 ? hops * 0x1p-25 : 0;
            CHECK(error <= bound * magnitude * 1.01 + tiny, WHERE(t, rank, i));
        }
    }
}

/* Ranks have the same residual and weights, as ranks of one model do: then `out` and the new residual are the same,
 * too. */
static void norm_inputs(const test_case *t, float *residual, float *weight, uint8_t *residual_bits,
                        uint8_t *weight_bits) {
    uint32_t size = format_of(t->dtype).bytes;
    for (uint64_t i = 0; i < t->count; i++) {
        encode(t->dtype, input_value(t->seed, 20, i, 0), residual_bits + i * size);
        residual[i] = decode(t->dtype, residual_bits + i * size);
    }
    for (uint64_t i = 0; i < t->norm_row; i++) {
        encode(t->dtype, input_value(t->seed, 21, i, 0), weight_bits + i * size);
        weight[i] = decode(t->dtype, weight_bits + i * size);
    }
}

static void norm_case(test_world *w, uint32_t rank, const test_case *t, const float *const *inputs, const uint8_t *in,
                      uint8_t *out) {
    uint32_t size = format_of(t->dtype).bytes;
    uint8_t *residual_room = room(t->count * size), *residual = residual_room + GUARD + t->out_skew,
            *weight_room = room(t->norm_row * size), *weight_bits = weight_room + GUARD + t->in_skew;
    float *h = malloc(t->count * sizeof *h), *weight = malloc(t->norm_row * sizeof *weight),
          *sum = malloc(t->norm_row * sizeof *sum), *expected = malloc(t->norm_row * sizeof *expected);
    norm_inputs(t, h, weight, residual, weight_bits);
    guard(residual, t->count * size);
    run_op(w, rank, t, in, out, residual, weight_bits);
    CHECK(guarded(residual, t->count * size), WHERE(t, rank, 0));
    for (uint64_t row = 0; row < t->count; row += t->norm_row) {
        for (uint64_t i = 0; i < t->norm_row; i++) {
            uint8_t bits[4];
            encode(t->dtype, sum_in_rank_order(inputs, w->size, row + i), bits);
            sum[i] = decode(t->dtype, bits);
        }
        norm_row(t->dtype, sum, h + row, weight, NORM_EPS, t->norm_row, expected);
        for (uint64_t i = 0; i < t->norm_row; i++) {
            uint64_t at = row + i;
            CHECK(decode(t->dtype, residual + at * size) == h[at], WHERE(t, rank, at));
            CHECK(decode(t->dtype, out + at * size) == expected[i], WHERE(t, rank, at));
        }
    }
    free(residual_room), free(weight_room), free(h), free(weight), free(sum), free(expected);
}

static void reduce_case(test_world *w, uint32_t rank, const test_case *t, uint64_t *digest) {
    uint32_t size = format_of(t->dtype).bytes;
    uint64_t inputs_each = t->kind == RR_REDUCE_SCATTER ? t->count * w->size : t->count, bytes = inputs_each * size;
    float *inputs[RR_MAX_WORLD];
    uint8_t *in_room = room(bytes), *out_room = room(bytes), *in = in_room + GUARD + t->in_skew;
    uint8_t *out = t->in_place ? in : out_room + GUARD + t->out_skew;
    uint64_t out_bytes = t->count * size;
    for (uint32_t r = 0; r < w->size; r++) {
        inputs[r] = malloc(inputs_each * sizeof(float));
        for (uint64_t i = 0; i < inputs_each; i++) {
            uint8_t bits[4];
            encode(t->dtype, input_value(t->seed, r, i, (int)t->whole), bits);
            inputs[r][i] = decode(t->dtype, bits);
            if (r == rank) memcpy(in + i * size, bits, size);
        }
    }
    if (t->in_place) out_bytes = bytes;
    memset(out_room, 0xee, bytes + GUARD);
    guard(out, out_bytes);
    if (t->norm_row) {
        norm_case(w, rank, t, (const float *const *)inputs, in, out);
    } else {
        run_op(w, rank, t, in, out, NULL, NULL);
        check_reduced(w, rank, t, (const float *const *)inputs, out);
    }
    CHECK(guarded(out, out_bytes), WHERE(t, rank, 0));
    *digest = t->kind == RR_REDUCE_SCATTER ? 0 : digest_of(out, t->count * size);
    for (uint32_t r = 0; r < w->size; r++) free(inputs[r]);
    free(in_room);
    free(out_room);
}

static uint8_t gather_byte(uint64_t seed, uint32_t rank, uint64_t i) {
    return (uint8_t)((i * 2654435761u + rank * 97 + seed * 31) >> 5);
}

static void gather_case(test_world *w, uint32_t rank, const test_case *t, uint64_t *digest) {
    uint64_t row = 0, at = 0, mine = t->rows * t->width[rank];
    for (uint32_t r = 0; r < w->size; r++) at += r < rank ? t->width[r] : 0, row += t->width[r];
    uint8_t *in_room = room(mine), *out_room = room(t->rows * row), *out = out_room + GUARD + t->out_skew;
    uint8_t *in =
        t->in_place ? out + at : in_room + GUARD + t->in_skew; /* in place: one row, already where it belongs */
    memset(out, 0xee, t->rows * row);
    for (uint64_t i = 0; i < mine; i++) in[i] = gather_byte(t->seed, rank, i);
    guard(out, t->rows * row);
    run_op(w, rank, t, in, out, NULL, NULL);
    CHECK(guarded(out, t->rows * row), WHERE(t, rank, 0));
    for (uint64_t r = 0, column = 0; r < t->rows; r++, column = 0)
        for (uint32_t src = 0; src < w->size; column += t->width[src++])
            for (uint64_t i = 0; i < t->width[src]; i++)
                CHECK(out[r * row + column + i] == gather_byte(t->seed, src, r * t->width[src] + i),
                      WHERE(t, rank, r * row + column + i));
    *digest = digest_of(out, t->rows * row);
    free(in_room);
    free(out_room);
}

static void run_plan(test_world *w, uint32_t rank) {
    plan *p = w->data;
    for (uint32_t i = 0; i < p->cases; i++) {
        const test_case *t = &p->at[i];
        if (t->kind == RR_ALL_GATHER)
            gather_case(w, rank, t, &p->digest[i][rank]);
        else
            reduce_case(w, rank, t, &p->digest[i][rank]);
    }
}

/* ---- which cases ---- */

static test_case *next_case(plan *p, uint64_t *rng, uint32_t world) {
    CHECK(p->cases < MAX_CASES, "raise MAX_CASES");
    static const uint32_t grids[][2] = {{1, 1}, {1, 3}, {3, 1}, {2, 2}};
    test_case *t = &p->at[p->cases++];
    /* Large worlds have threads enough. */
    const uint32_t *grid = grids[rng_below(rng, world <= 3 ? 4 : 8) % (world <= 5 ? 8 : 1) & 3];
    *t = (test_case){.kind = RR_ALL_REDUCE,
                     .dtype = 1 + rng_below(rng, 3),
                     .rows = 1,
                     .blocks = grid[0],
                     .threads = grid[1],
                     .seed = p->cases};
    t->wave = rng_below(rng, 2) ? RR_WAVE_TWO : RR_WAVE_ALL;
    t->in_place = rng_below(rng, 3) == 0;
    t->spins = rng_below(rng, 2) * 200;
    t->lend = rng_below(rng, 2);
    if (rng_below(rng, 2)) t->in_skew = rng_below(rng, 17), t->out_skew = rng_below(rng, 17);
    return t;
}

static void plan_reductions(plan *p, uint64_t *rng, uint32_t world, bool direct) {
    static const uint32_t counts[] = {1, 2, 17, 1003, 4097, 0}; /* 0: the capacity */
    for (uint32_t mode = RR_MODE_FULL; mode < sizeof modes / sizeof *modes; mode++) {
        if (modes[mode].access && !direct) continue;
        if (mode == RR_MODE_HALVING && (world & (world - 1))) continue;
        for (uint32_t dtype = RR_FLOAT32; dtype <= RR_BFLOAT16; dtype++) {
            for (uint32_t c = 0; c < 6; c++) {
                /* The covering subset: three of six sizes, another three for every mode and dtype. */
                if ((UNDER_TSAN || quick()) && (c + mode + dtype) % 2) continue;
                if ((UNDER_TSAN || quick()) && c >= 4 && (mode + dtype + c / 5) % 4) continue;
                test_case *t = next_case(p, rng, world);
                t->mode = mode, t->dtype = dtype;
                t->count = counts[c] ? counts[c] : CAPACITY / format_of(dtype).bytes;
                t->fp32_partials = !raw(t) && rng_below(rng, 2);
                t->pieces = mode <= RR_MODE_FULL_PHASED ? rng_below(rng, 5) : 0;
                t->whole = !raw(t) && rng_below(rng, 2);
                if (t->whole) continue;
                /* Again, elsewhere in memory, on another grid: the bits must not change. */
                test_case first = *t, *again = next_case(p, rng, world);
                first.blocks = again->blocks, first.threads = again->threads, first.in_skew = again->in_skew,
                first.in_place = !first.in_place;
                *again = first;
            }
        }
    }
    for (uint32_t c = 0; c < 6; c++) {
        test_case *t = next_case(p, rng, world);
        t->kind = RR_REDUCE_SCATTER;
        uint64_t most = CAPACITY / format_of(t->dtype).bytes / world;
        t->count = counts[c] && counts[c] < most ? counts[c] : most;
    }
}

/* Rows of one element, of a few packs, of more than the 512 lanes have in one go, and of no whole packs. */
static void plan_norms(plan *p, uint64_t *rng, uint32_t world, bool direct) {
    static const uint32_t rows[][2] = {{1, 7}, {64, 9}, {1003, 4}, {4800, 1}, {136, 31}, {2048, 2}};
    for (uint32_t mode = RR_MODE_FULL; mode < sizeof modes / sizeof *modes; mode++) {
        if (!modes[mode].raw || (modes[mode].access && !direct)) continue;
        for (uint32_t c = 0; c < 6; c++) {
            if ((UNDER_TSAN || quick()) && (c + mode + world) % 3) continue;
            test_case *t = next_case(p, rng, world);
            t->mode = mode, t->norm_row = rows[c][0], t->count = rows[c][0] * rows[c][1];
            t->pieces = mode <= RR_MODE_FULL_PHASED ? rng_below(rng, 5) : 0;
        }
    }
}

static void plan_gathers(plan *p, uint64_t *rng, uint32_t world) {
    for (uint32_t c = 0; c < (quick() ? 4 : 12); c++) {
        test_case *t = next_case(p, rng, world);
        t->kind = RR_ALL_GATHER;
        t->rows = c % 3 ? 1 + rng_below(rng, 9) : 1;
        for (uint32_t r = 0; r < world; r++) t->width[r] = c % 2 ? 1 + rng_below(rng, 2000) : 512;
        if (c % 4 == 1) t->width[rng_below(rng, world)] = 0;
        t->in_place &= t->rows == 1;
    }
}

static void run_world(uint32_t size, uint32_t paths, bool direct, uint64_t seed) {
    static test_world w;
    static plan p;
    uint64_t rng = seed;
    memset(&p, 0, sizeof p);
    plan_reductions(&p, &rng, size, direct);
    plan_norms(&p, &rng, size, direct);
    plan_gathers(&p, &rng, size);
    world_configure(&w, size, CAPACITY);
    w.data = &p;
    w.direct = direct;
    for (uint32_t r = 0; r < size; r++) {
        w.config[r].stripe_min_bytes = paths == 2 ? 1024 : 16;
        for (uint32_t q = 0; q < size; q++) {
            w.config[r].paths[q] = (uint8_t)(1 + (r + q) % paths); /* symmetric, as the hello demands */
            w.config[r].order[q] = (uint8_t)(size - 1 - q);        /* ring order is not rank order */
            w.config[r].hops[q][1] = (r + q) % 2 ? 2 : 1;          /* so that two waves have two */
        }
        if (paths == 3) w.config[r].forward_window_bytes = 8192, w.config[r].forward_chunk_bytes = 4096;
    }
    static rr_provider_ops one_mapping;
    one_mapping = shm_one_mapping();
    world_open(&w, UNDER_TSAN ? &one_mapping : &rr_provider_shm);
    world_run(&w, run_plan);
    world_close(&w);
    for (uint32_t i = 0; i < p.cases; i++) {
        const test_case *t = &p.at[i];
        if (t->kind == RR_REDUCE_SCATTER) continue;
        for (uint32_t r = 1; r < size; r++) CHECK(p.digest[i][r] == p.digest[i][0], WHERE(t, r, 0));
        if (i && p.at[i - 1].seed == t->seed) CHECK(p.digest[i][0] == p.digest[i - 1][0], WHERE(t, 0, 0));
    }
    printf("world %u, %s, up to %u paths: %u collectives\n", size, direct ? "direct" : "proxies", paths, p.cases);
}

int main(void) {
    static const uint32_t sizes[] = {2, 3, 4, 5, 8};
    uint64_t seed = 20240001;
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t paths = 1; paths <= 3; paths++) {
            if ((UNDER_TSAN || quick()) && paths != 1 + i % 3) continue;
            run_world(sizes[i], paths, false, ++seed);
        }
    for (uint32_t i = 0; i < 5; i++) run_world(sizes[i], 1, true, ++seed);
    return 0;
}
