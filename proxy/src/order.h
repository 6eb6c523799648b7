/* Named barriers and atomics. Each names the two observers it stands between; nothing in proxy/ orders memory in
 * another way.
 *
 * Host memory, cache-coherent CPUs, GPU and NIC writing into it over PCIe (or C2C). On Arm these are ldar/stlr/dmb ish.
 */
#ifndef RR_ORDER_H
#define RR_ORDER_H

#include <stdint.h>

/* kernel -> proxy: a command's fields were stored before its commit word. Pairs with rr_publish() in kernels/.
 * peer -> proxy: a notice word. */
static inline uint64_t rr_load_acquire(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* proxy -> peer's kernel (shm provider): the payload copied before is visible to whoever sees the flag. Pairs with the
 * acquire load in rr_wait(). */
static inline void rr_store_release(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/* Words that stand alone (counters, heartbeats, mirrors for status): atomic so that nobody sees half a word, unordered.
 */
static inline uint64_t rr_load_relaxed(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void rr_store_relaxed(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* First writer wins; returns the word that stands. Host threads only: no atomic crosses a bus. */
static inline uint64_t rr_claim(uint64_t *word, uint64_t value) {
    uint64_t seen = 0;
    if (__atomic_compare_exchange_n(word, &seen, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return value;
    return seen;
}

/* proxy <-> CPU kernel, "is anybody there?": the proxy raises `napping` and then looks at the ring once more; the
 * kernel stores its commit word and then looks at `napping`. With all four sequentially consistent, at least one of the
 * two sees the other's store, so no command is slept through. */
static inline uint64_t rr_load_seq_cst(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
static inline void rr_store_napping(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

/* proxy -> a sleeping CPU kernel: the flag was stored, now look whether its reader sleeps. Pairs with the kernel's
 * store of `sleeping` before its last look at the flag; again all four sequentially consistent. */
static inline void rr_store_seq_cst(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }
static inline uint32_t rr_load_sleeping(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
static inline uint32_t rr_take_sleeping(uint32_t *word) { return __atomic_exchange_n(word, 0, __ATOMIC_SEQ_CST); }

/* One turn at the engine at a time: what the last holder wrote is visible to the next. */
static inline int rr_try_enter(uint32_t *busy) { return !__atomic_exchange_n(busy, 1, __ATOMIC_ACQUIRE); }
static inline void rr_leave(uint32_t *busy) { __atomic_store_n(busy, 0, __ATOMIC_RELEASE); }

static inline void rr_cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` is a no-op on these cores; isb gives the pipeline a rest */
#endif
}

#endif
