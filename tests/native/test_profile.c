/* The profiling build: same sums, every operation noted once, its parts within the time that the caller saw. Two blocks
 * and two threads, so that ThreadSanitizer sees that only one of them writes.
 */
#define _GNU_SOURCE
#include "shm_one_mapping.h"
#include "world.h"

#define WORLD 3u
#define COUNT 999u
#define OPERATIONS 70u /* more than are kept */

static rr_profiled_state states[WORLD];
static uint64_t took[WORLD][OPERATIONS + 1];

static void body(test_world *w, uint32_t rank) {
    static float in[WORLD][COUNT], out[WORLD][COUNT];
    rr_op op = world_op(w, rank);
    op.in = (uint64_t)(uintptr_t)in[rank], op.out = (uint64_t)(uintptr_t)out[rank];
    op.state = (uint64_t)(uintptr_t)&states[rank];
    op.count = COUNT, op.dtype = RR_FLOAT32;
    for (uint32_t seq = 1; seq <= OPERATIONS; seq++) {
        op.mode = seq % 2 ? RR_MODE_FULL : RR_MODE_PAYLOAD_RSAG;
        rr_op_seal(&op);
        for (uint32_t i = 0; i < COUNT; i++) in[rank][i] = (float)(rank + i + seq);
        uint64_t began = rr_now_ns();
        CHECK(rr_cpu_run_profiled(&op, 2, 2) == RR_CPU_OK, "rank %u, operation %u", rank, seq);
        took[rank][seq] = rr_now_ns() - began;
        for (uint32_t i = 0; i < COUNT; i++)
            CHECK(out[rank][i] == (float)(3 + 3 * (i + seq)), "rank %u, operation %u, element %u", rank, seq, i);
    }
}

int main(void) {
    static test_world w;
    rr_provider_ops one_mapping = shm_one_mapping();
    world_configure(&w, WORLD, COUNT * sizeof(float));
    world_open(&w, UNDER_TSAN ? &one_mapping : &rr_provider_shm);
    world_run(&w, body);
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint32_t seq = OPERATIONS - RR_PROFILES + 1; seq <= OPERATIONS; seq++) {
            const rr_profile *p = &states[r].profiles[seq % RR_PROFILES];
            CHECK(p->seq == seq, "rank %u: %u in the place of operation %u", r, (unsigned)p->seq, seq);
            CHECK(p->began_ns && p->stage_ns && p->command_ns && p->wait_ns && p->reduce_ns, "rank %u, %u", r, seq);
            uint64_t all = p->stage_ns + p->command_ns + p->wait_ns + p->reduce_ns;
            CHECK(all <= took[r][seq], "rank %u: %u ns noted of %u", r, (unsigned)all, (unsigned)took[r][seq]);
        }
    world_close(&w);
    return 0;
}
