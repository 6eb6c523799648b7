// Runs the kernels on CPU threads: the grid, its barriers, and how a waiting thread gives its core away.
#include "cpu.h"
#include "queue.h"
#include "run.cuh"
#include "stall.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef bool (*thread_fn)(const rr_op *, rr_cpu_place);

#define RR_THREAD_FN(part) extern "C" bool rr_cpu_thread_##part(const rr_op *op, rr_cpu_place place);
RR_THREAD_FN(baseline)
RR_THREAD_FN(baseline_profiled)
#ifdef RR_CPU_HAVE_V3
RR_THREAD_FN(v3)
RR_THREAD_FN(v3_profiled)
#endif

static bool have_v3() {
#ifdef RR_CPU_HAVE_V3
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

static thread_fn best(bool profiled) {
#ifdef RR_CPU_HAVE_V3
    if (have_v3()) return profiled ? rr_cpu_thread_v3_profiled : rr_cpu_thread_v3;
#endif
    return profiled ? rr_cpu_thread_baseline_profiled : rr_cpu_thread_baseline;
}

extern "C" const char *rr_cpu_isa(void) { return have_v3() ? "v3" : "baseline"; }

// One block's barrier. Sense by generation: a thread that is slow to leave one round cannot meet the next by mistake.
struct rr_block_barrier {
    uint32_t threads, arrived, generation;
    uint32_t vote[2];
};

extern "C" bool rr_cpu_block_any(rr_block_barrier *b, bool mine) {
    uint32_t generation = __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE), now = generation & 1;
    if (mine) __atomic_store_n(&b->vote[now], 1, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == b->threads) {
        b->arrived = 0;
        __atomic_store_n(&b->vote[!now], 0, __ATOMIC_RELAXED); // everybody has left the round before this one
        __atomic_store_n(&b->generation, generation + 1, __ATOMIC_RELEASE);
    } else {
        while (__atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) == generation) sched_yield();
    }
    return __atomic_load_n(&b->vote[now], __ATOMIC_RELAXED);
}
extern "C" void rr_cpu_block_sync(rr_block_barrier *b) { rr_cpu_block_any(b, false); }

extern "C" uint64_t rr_cpu_clock_ns(void) {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void futex_wait(uint32_t *word, uint32_t seen, uint64_t ns) {
    timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, nullptr, 0);
}

static uint32_t *sleeping_word(const rr_op *op) {
    return &((rr_kernel_line *)(op->region + op->layout.kernel))->sleeping;
}

// Sleeps of a millisecond: nobody is in a hurry any more, and a person may be about to press Ctrl-C.
#define LONG_WAIT_POLLS 64

// The proxy turns the fault into the abort word, and the wait ends by that.
static void give_up(const rr_op *op) {
    rr_kernel_line *line = (rr_kernel_line *)(op->region + op->layout.kernel);
    if (!__atomic_load_n(&line->fault, __ATOMIC_RELAXED))
        __atomic_store_n(&line->fault, RR_ABORT_WORD(RR_ERR_INTERRUPTED, op->rank, 0, 0, line->seq_started),
                         __ATOMIC_RELEASE);
}

// Looks without a system call while cores are plenty (spins > 0). Then sleeps, because a yield gives the core only to
// threads of the same scheduler group (a session, a unit, a container): a rank that yields can keep a core from the
// very rank it waits for. Two steps: first it says whom it sleeps for and lets the caller look once more, then it
// sleeps.
extern "C" void rr_cpu_relax(const rr_op *op, uint32_t polls, uint32_t awaited) {
    if (op->lend) ((void (*)(void *))op->lend)((void *)op->proxy);
    if (polls <= op->spins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory");
#endif
        return;
    }
    if (!awaited) { // a thread of this very launch: it is running or about to
        timespec t = {0, 50000};
        if (polls < op->spins + 64)
            sched_yield();
        else
            nanosleep(&t, nullptr);
        return;
    }
    if (polls == op->spins + LONG_WAIT_POLLS) rr_interrupt_begin();
    if (rr_interrupt_seen()) give_up(op);
    uint32_t *word = sleeping_word(op), seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    if (seen & awaited)
        futex_wait(word, seen, op->sleep_ns);
    else
        __atomic_fetch_or(word, awaited, __ATOMIC_SEQ_CST);
}

extern "C" void rr_cpu_relaxed(const rr_op *op, uint32_t awaited) {
    rr_interrupt_end();
    uint32_t *word = sleeping_word(op);
    if (__atomic_load_n(word, __ATOMIC_RELAXED) & awaited) __atomic_fetch_and(word, ~awaited, __ATOMIC_RELAXED);
}

// As a proxy does that raises a flag for a sleeping kernel (proxy/src/provider_shm.c): a busy one costs no system call.
extern "C" void rr_cpu_wake(uint32_t *sleeping, uint32_t rank) {
    if ((__atomic_load_n(sleeping, __ATOMIC_SEQ_CST) & 1u << rank) &&
        __atomic_exchange_n(sleeping, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, sleeping, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

// The proxy sleeps on this word; clearing it first makes a second doorbell cheap.
extern "C" void rr_cpu_doorbell(uint32_t *napping) {
    __atomic_store_n(napping, 0, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, napping, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Threads pass the gate together or not at all: a launch that cannot have all of its threads never begins.
enum { GATE_SHUT, GATE_OPEN, GATE_CANCEL };

struct job {
    thread_fn run;
    const rr_op *op;
    rr_cpu_place place;
    const uint32_t *gate;
    bool ok;
};

static void *job_main(void *arg) {
    job *j = (job *)arg;
    uint32_t gate;
    while ((gate = __atomic_load_n(j->gate, __ATOMIC_ACQUIRE)) == GATE_SHUT) sched_yield();
    j->ok = gate == GATE_OPEN && j->run(j->op, j->place);
    return nullptr;
}

extern "C" const char *rr_cpu_refusal(const rr_op *op) { return rr_op_refusal(op); }

extern "C" void rr_op_seal(rr_op *op) { op->digest = rr_op_digest(op); }

#define RR_CPU_MAX_THREADS 64

static int run_on(thread_fn run, const rr_op *op, uint32_t blocks, uint32_t threads) {
    if (rr_op_refusal(op) || !blocks || !threads || blocks > RR_CPU_MAX_THREADS / threads) return RR_CPU_REFUSED;
    if (blocks * threads == 1) return run(op, rr_cpu_place{0, 1, 0, 1, nullptr}) ? RR_CPU_OK : RR_CPU_FAILED;
    rr_block_barrier barriers[RR_CPU_MAX_THREADS] = {};
    job jobs[RR_CPU_MAX_THREADS] = {};
    pthread_t ids[RR_CPU_MAX_THREADS];
    uint32_t all = blocks * threads, created = 1, gate = GATE_SHUT;
    for (uint32_t i = 0; i < blocks; i++) barriers[i].threads = threads;
    for (uint32_t i = 0; i < all; i++)
        jobs[i] = job{run, op, {i % threads, threads, i / threads, blocks, &barriers[i / threads]}, &gate, false};
    while (created < all && !pthread_create(&ids[created], nullptr, job_main, &jobs[created])) created++;
    __atomic_store_n(&gate, created == all ? GATE_OPEN : GATE_CANCEL, __ATOMIC_RELEASE);
    job_main(&jobs[0]);
    bool ok = jobs[0].ok;
    for (uint32_t i = 1; i < created; i++) {
        pthread_join(ids[i], nullptr);
        ok &= jobs[i].ok;
    }
    return created < all ? RR_CPU_REFUSED : ok ? RR_CPU_OK : RR_CPU_FAILED;
}

extern "C" int rr_cpu_run(const rr_op *op, uint32_t blocks, uint32_t threads) {
    return run_on(best(false), op, blocks, threads);
}
extern "C" int rr_cpu_run_profiled(const rr_op *op, uint32_t blocks, uint32_t threads) {
    return run_on(best(true), op, blocks, threads);
}

extern "C" const char *rr_op_table(void) {
#define LINE_FIELD(type, field, offset, bytes) #type " " #field " " #offset " " #bytes "\n"
#define LINE_STRUCT(type, bytes) #type " - 0 " #bytes "\n"
    return RR_OP_FIELDS(LINE_FIELD) RR_OP_STRUCTS(LINE_STRUCT) RR_QUEUE_FIELDS(LINE_FIELD) RR_QUEUE_STRUCTS(LINE_STRUCT)
        RR_STALL_FIELDS(LINE_FIELD) RR_STALL_STRUCTS(LINE_STRUCT);
}

extern "C" const char *rr_mode_table(void) {
#define RR_MODE(name, value, raw, forwarding, power_of_two, partials, access, meaning)                                 \
    #value " " #name " " #raw " " #forwarding " " #power_of_two " " #partials " " #access " " meaning "\n"
    return
#include "modes.def"
        ;
#undef RR_MODE
}
