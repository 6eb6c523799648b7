/* Traces on real threads: nobody leaves a meeting before all have come, what was written is there behind it, and a rank
 * that does not come is named within the limit. */
#include "stall.h"
#include "testing.h"

#include <pthread.h>

enum { WORLD = 3, BLOCKS = 2, OPS = 300, BYTES = 1024 };

static uint64_t data[WORLD][WORLD * BYTES / 8], flags[WORLD][BLOCKS * WORLD * RR_STALL_LINE / 8],
    host[WORLD][BYTES / 8];
static uint64_t stamps[WORLD][OPS][RR_STALL_STAMPS], lost[WORLD], grid[WORLD][2];
static rr_stall order[WORLD];
static int result[WORLD][BLOCKS];
static uint32_t blocks;

static void prepare(uint64_t limit_ns) {
    memset(data, 0, sizeof data);
    memset(flags, 0, sizeof flags);
    memset(stamps, 0, sizeof stamps);
    memset(lost, 0, sizeof lost);
    memset(grid, 0, sizeof grid);
    for (uint32_t r = 0; r < WORLD; r++) {
        rr_stall *s = &order[r];
        memset(s, 0, sizeof *s);
        s->rank = r, s->world = WORLD, s->ops = OPS, s->slot_bytes = BYTES, s->limit_ns = limit_ns;
        for (uint32_t p = 0; p < WORLD; p++) s->data[p] = (uint64_t)data[p], s->flags[p] = (uint64_t)flags[p];
        s->host = (uint64_t)host[r], s->stamps = (uint64_t)stamps[r], s->lost = (uint64_t)&lost[r];
        s->grid = (uint64_t)grid[r];
        uint32_t next = 1u << (r + 1) % WORLD, others = 7u & ~(1u << r);
        rr_stall_step steps[] = {
            {RR_STALL_WRITE, next, BYTES, 1},   {RR_STALL_TAKE, 7, BYTES, 0},       {RR_STALL_READ, others, BYTES, 1},
            {RR_STALL_WRITE, others, BYTES, 0}, {RR_STALL_HOST_WRITE, 0, BYTES, 0}, {RR_STALL_HOST_READ, 0, BYTES, 0},
        };
        s->steps = sizeof steps / sizeof *steps;
        memcpy(s->step, steps, sizeof steps);
    }
}

static void *block(void *which) {
    uint32_t r = (uint32_t)(uintptr_t)which / BLOCKS, b = (uint32_t)(uintptr_t)which % BLOCKS;
    result[r][b] = rr_stall_cpu(&order[r], b, blocks);
    return NULL;
}

static void run(uint32_t ranks) {
    pthread_t thread[WORLD * BLOCKS];
    for (uintptr_t i = 0; i < ranks * BLOCKS; i++)
        if (i % BLOCKS < blocks) pthread_create(&thread[i], NULL, block, (void *)i);
    for (uint32_t i = 0; i < ranks * BLOCKS; i++)
        if (i % BLOCKS < blocks) pthread_join(thread[i], NULL);
}

static void all_come(void) {
    prepare(20000000000ull);
    run(WORLD);
    for (uint32_t r = 0; r < WORLD; r++) {
        for (uint32_t b = 0; b < blocks; b++) CHECK(result[r][b] == 0 && lost[r] == 0, "rank %u", r);
        for (uint32_t op = 0; op < OPS; op++) {
            uint64_t *at = stamps[r][op];
            CHECK(at[0] <= at[1] && at[1] <= at[2], "rank %u, operation %u", r, op);
            CHECK(op + 1 == OPS || at[2] <= at[RR_STALL_STAMPS], "rank %u: a block is still at operation %u", r, op);
            for (uint32_t p = 0; p < WORLD; p++)
                CHECK(at[1] >= stamps[p][op][0], "rank %u left operation %u before rank %u came", r, op, p);
        }
        for (uint32_t p = 0; p < WORLD; p++)
            CHECK(p == r || data[r][(p + 1) * BYTES / 8 - 2], "rank %u has nothing from rank %u", r, p);
        CHECK(host[r][BYTES / 8 - 2], "rank %u", r);
    }
}

static void one_does_not(void) {
    prepare(50000000ull);
    run(WORLD - 1);
    for (uint32_t r = 0; r < WORLD - 1; r++)
        for (uint32_t b = 0; b < blocks; b++)
            CHECK(result[r][b] == 1 && lost[r] == 1 + WORLD - 1, "rank %u says %d, %llu", r, result[r][b],
                  (unsigned long long)lost[r]);
}

int main(void) {
    for (blocks = 1; blocks <= BLOCKS; blocks++) {
        all_come();
        one_does_not();
    }
    return 0;
}
