/* C API of the CPU build of the kernels, and what its two files share. */
#ifndef ROCE_RING_CPU_H
#define ROCE_RING_CPU_H

#include "op.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rr_block_barrier;

/* Where one CPU thread stands in the launch's grid. */
typedef struct rr_cpu_place {
    uint32_t tid, threads, block, blocks;
    struct rr_block_barrier *barrier;
} rr_cpu_place;

#define RR_CPU_API __attribute__((visibility("default")))

#define RR_CPU_OK 0
#define RR_CPU_FAILED 1  /* a wait failed: the abort or fault word says why; the output is undefined */
#define RR_CPU_REFUSED 2 /* nothing was done; rr_cpu_refusal() says why */

/* Runs one collective to its end on `blocks` x `threads` CPU threads: 1 x 1 runs on the caller's. */
RR_CPU_API int rr_cpu_run(const rr_op *op, uint32_t blocks, uint32_t threads);
/* The same with the profiling build: op->state is an rr_profiled_state. */
RR_CPU_API int rr_cpu_run_profiled(const rr_op *op, uint32_t blocks, uint32_t threads);
/* Sets op->digest; before every launch of a new op, on CPU and GPU alike. */
RR_CPU_API void rr_op_seal(rr_op *op);
/* NULL, or one sentence why this op cannot run. A pure function of facts that all ranks share. */
RR_CPU_API const char *rr_cpu_refusal(const rr_op *op);
/* "struct field offset bytes" lines of op.h and queue.h; "value name raw forwarding power_of_two partials
 * access meaning". */
RR_CPU_API const char *rr_op_table(void);
RR_CPU_API const char *rr_mode_table(void);
/* Instruction set in use: "v3" or "baseline". */
RR_CPU_API const char *rr_cpu_isa(void);

/* cpu_interrupt.cpp: Ctrl-C in a long wait. Python runs a signal's handler only once we return, so a rank that waits
 * for a peer could not be interrupted. begin: from now on SIGINT is noticed here too (main thread only, and only if
 * somebody handles it). end: as before. */
void rr_interrupt_begin(void);
int rr_interrupt_seen(void);
void rr_interrupt_end(void);

#ifdef __cplusplus
}
#endif
#endif
