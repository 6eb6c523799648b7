// A rank's block of a trace on a CPU thread.
#include "stall.cuh"

#include <sched.h>

// Few looks: where ranks outnumber cores, the one that is waited for needs this core.
#define SPINS 200

extern "C" void rr_stall_cpu_relax(uint32_t polls) {
    if (polls > SPINS) sched_yield();
}

extern "C" int rr_stall_cpu(const rr_stall *s, uint32_t block, uint32_t blocks) {
    rr_stall_ctx c = {s, 0, 1, block, blocks, 0};
    return !rr_stall_run(c);
}
