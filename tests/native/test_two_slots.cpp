// Two slots are enough, whoever runs: no slot is written before its last reader is through, and none is staged again
// before the wire has read it.
//
// One thread plays everybody, so a schedule is a list of choices and a failure can be repeated. Kernels are the real
// source, compiled here with hooks that hand the thread back to the scheduler; proxies are the real engine, stepped by
// hand; the wire is a queue per (source, peer, path), which reads the payload when it delivers, as a NIC does. Each
// rank's launch has one or two blocks of two threads, so that one can be stopped between "the flag is here" and "I have
// read the payload".
//
// "Direct": kernels store into each other's regions and load from them, and nothing is on a wire. A slot that is
// written too early shows when its flag is raised, or in a wrong value.
#include "cpu.h"
#include "testing.h"

// The kernels' hooks, renamed: this program links the library's own as well.
#define rr_cpu_block_sync stepped_block_sync
#define rr_cpu_block_any stepped_block_any
#define rr_cpu_clock_ns stepped_clock_ns
#define rr_cpu_relax stepped_relax
#define rr_cpu_relaxed stepped_relaxed
#define rr_cpu_doorbell stepped_doorbell
#define rr_cpu_wake stepped_wake
#define RR_CPU_ISA stepped
#include "../../kernels/cpu.cpp"
#undef rr_cpu_relax

extern "C" {
#include "internal.h"
}

#include <deque>
#include <ucontext.h>
#if UNDER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

static const uint32_t THREADS = 2, MAX_BLOCKS = 2, MAX_RANKS = 5, STACK = 64 * 1024, COUNT = 40;

// ---- coroutines ----

struct fiber {
    ucontext_t context;
    void *tsan;
    uint32_t rank, block, tid;
    bool finished;       // its script is done
    uint64_t blocked_at; // the world's version when it last looked in vain
};

static ucontext_t scheduler_context;
#if UNDER_TSAN
static void *scheduler_tsan;
#endif
static fiber *running;
static uint64_t version = 1; // grows whenever somebody may have reason to look again

static void switch_to(fiber *f) {
    running = f;
#if UNDER_TSAN
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    swapcontext(&scheduler_context, &f->context);
    running = nullptr;
}

static void give_way() {
#if UNDER_TSAN
    __tsan_switch_to_fiber(scheduler_tsan, 0);
#endif
    swapcontext(&running->context, &scheduler_context);
}

struct rr_block_barrier {
    uint32_t arrived, generation;
    bool vote[2];
};

extern "C" bool stepped_block_any(rr_block_barrier *b, bool mine) {
    uint32_t generation = b->generation, now = generation & 1;
    if (mine) b->vote[now] = true;
    version++;
    if (++b->arrived == THREADS) {
        b->arrived = 0, b->vote[!now] = false, b->generation++;
        give_way(); // the last one in may be stopped here as well
    } else {
        while (b->generation == generation) running->blocked_at = version, give_way();
    }
    return b->vote[now];
}
extern "C" void stepped_block_sync(rr_block_barrier *b) { stepped_block_any(b, false); }
extern "C" uint64_t stepped_clock_ns() { return 1; } // nothing is ever late here
extern "C" void stepped_doorbell(uint32_t *) {}
extern "C" void stepped_relaxed(const rr_op *, uint32_t) {}
extern "C" void stepped_relax(const rr_op *, uint32_t polls, uint32_t) {
    if (polls == 1) version++; // it came to a new wait, so it did something before
    running->blocked_at = version;
    give_way();
}

// ---- the world ----

struct rank_state {
    rr_proxy *proxy;
    rr_device_state device;
    rr_block_barrier barrier[MAX_BLOCKS];
    fiber kernel[MAX_BLOCKS * THREADS];
    rr_op op;
    float in[MAX_RANKS * COUNT], out[MAX_RANKS * COUNT];
    uint32_t ops_done, threads_done;
};

struct wire {
    std::deque<rr_write> queue;
};

static uint32_t world, blocks, fibers, ops_to_do, failures;
static uint64_t stride; // how far the sequence moves per operation: 1, or 2 to put every operation into the same slot
static bool striped, direct;

// What the world runs: an all-reduce mode, or one of the other two kinds.
struct collective {
    const char *name;
    uint32_t kind, mode;
    bool access;
};
static const collective collectives[] = {
#define RR_MODE(name, value, raw, forwarding, power_of_two, partials, access, meaning)                                 \
    {#name, RR_ALL_REDUCE, RR_MODE_##name, access != 0},
#include "../../kernels/modes.def"
#undef RR_MODE
    {"REDUCE_SCATTER", RR_REDUCE_SCATTER, RR_MODE_NONE, false},
    {"ALL_GATHER", RR_ALL_GATHER, RR_MODE_NONE, false},
};
static const collective *what;
static rank_state ranks[MAX_RANKS];
static wire wires[MAX_RANKS][MAX_RANKS][RR_MAX_PATHS];
static rr_completion completions[MAX_RANKS][64];
static uint32_t completed[MAX_RANKS];
static char first_failure[200];

static void violated(const char *how, uint32_t rank, uint64_t seq) {
    if (!failures++)
        snprintf(first_failure, sizeof first_failure, "%s: rank %u, sequence %llu", how, rank, (unsigned long long)seq);
}

static uint64_t done(uint32_t rank) { return rr_load_relaxed(&rr_kernel_line_of(ranks[rank].proxy)->seq_done); }
static uint64_t started(uint32_t rank) { return rr_load_relaxed(&rr_kernel_line_of(ranks[rank].proxy)->seq_started); }

// A direct kernel raises a flag: its stores into that peer, or into the send slot that this peer loads from, are done.
extern "C" void stepped_wake(uint32_t *sleeping, uint32_t rank) {
    version++;
    for (uint32_t p = 0; p < world; p++)
        if (sleeping == &rr_kernel_line_of(ranks[p].proxy)->sleeping && (int64_t)(started(rank) - 2 - done(p)) > 0)
            violated("a slot was written while it was still being read", p, started(rank));
}

// Whole numbers, another one for every rank, operation and element.
static float input_of(uint32_t rank, uint64_t seq, uint32_t i) {
    return (float)((seq * 37 + rank * 11 + i * 3) % 1009);
}

static void prepare(uint32_t rank) {
    rank_state &r = ranks[rank];
    uint32_t count = what->kind == RR_REDUCE_SCATTER ? world * COUNT : COUNT;
    for (uint32_t i = 0; i < count; i++) r.in[i] = input_of(rank, r.device.seq + 1, i);
}

static void check_and_go_on(uint32_t rank) {
    rank_state &r = ranks[rank];
    uint64_t seq = r.device.seq;
    uint32_t count = what->kind == RR_ALL_GATHER ? world * COUNT : COUNT,
             first = what->kind == RR_REDUCE_SCATTER ? rank * COUNT : 0;
    for (uint32_t i = 0; i < count; i++) {
        float expected = 0;
        for (uint32_t p = 0; p < world; p++) expected += input_of(p, seq, first + i);
        if (what->kind == RR_ALL_GATHER) expected = input_of(i / COUNT, seq, i % COUNT);
        if (r.out[i] != expected) violated("a wrong value came out", rank, seq);
    }
    r.ops_done++;
    r.device.seq += stride - 1;
    if (r.ops_done < ops_to_do) prepare(rank);
}

extern "C" bool rr_cpu_thread_stepped(const rr_op *op, rr_cpu_place place);

static void kernel_main() {
    fiber *me = running;
    rank_state &r = ranks[me->rank];
    for (;;) {
        for (uint32_t k = 0; k < ops_to_do; k++) {
            rr_cpu_thread_stepped(&r.op, rr_cpu_place{me->tid, THREADS, me->block, blocks, &r.barrier[me->block]});
            if (++r.threads_done == fibers) {
                r.threads_done = 0;
                check_and_go_on(me->rank);
                version++;
            }
            while (r.ops_done == k) me->blocked_at = version, give_way(); // as a launch ends when its last thread does
        }
        me->finished = true;
        give_way();
    }
}

// ---- the wire ----

extern "C" {
static int wire_open(rr_provider *, rr_hello *, rr_why) { return 0; }
static int wire_connect(rr_provider *, const rr_hello *, rr_why) { return 0; }
static enum rr_write_result wire_write(rr_provider *provider, const rr_write *write) {
    wires[provider->config->rank][write->peer][write->path].queue.push_back(*write);
    return RR_WRITE_POSTED;
}
static uint32_t wire_poll(rr_provider *provider, rr_completion *out, uint32_t room) {
    uint32_t &waiting = completed[provider->config->rank], n = waiting < room ? waiting : room;
    memcpy(out, completions[provider->config->rank], n * sizeof *out);
    memmove(completions[provider->config->rank], completions[provider->config->rank] + n, (waiting - n) * sizeof *out);
    waiting -= n;
    return n;
}
static void wire_notify(rr_provider *, uint32_t, const rr_notice *) {}
static int wire_lost(rr_provider *, uint32_t, rr_loss *) { return 0; }
static void wire_close(rr_provider *) {}
}
static const rr_provider_ops wire_ops = {"wire",    RR_PROVIDER_SHM, wire_open, wire_connect, NULL,       wire_write,
                                         wire_poll, wire_notify,     NULL,      wire_lost,    wire_close, NULL};

// Without windows every write raises a flag, which carries the sequence.
static uint64_t seq_of(const rr_write &w) { return w.value & ((1ull << RR_FLAG_SEQ_BITS) - 1); }

static void deliver(uint32_t src, uint32_t dst, uint32_t path) {
    rr_write w = wires[src][dst][path].queue.front();
    uint64_t seq = seq_of(w);
    // The slot's last operation is two sequences back: its reader must be through.
    if ((int64_t)(seq - 2 - done(dst)) > 0)
        violated("a peer's write came while its slot was still being read", dst, seq);
    memcpy(ranks[dst].proxy->base + w.dst, ranks[src].proxy->base + w.src, w.bytes);
    if (w.flag) rr_store_release((uint64_t *)(ranks[dst].proxy->base + w.flag), w.value);
    wires[src][dst][path].queue.pop_front();
    CHECK(completed[src] < 64, "more completions than the test has room for");
    completions[src][completed[src]++] = rr_completion{w.tag, dst, path, 0};
    version++;
}

static void check_send_slots(uint32_t rank) {
    for (uint32_t p = 0; p < world; p++)
        for (uint32_t path = 0; path < RR_MAX_PATHS; path++)
            for (const rr_write &w : wires[rank][p][path].queue)
                if ((int64_t)(started(rank) - seq_of(w)) >= 2)
                    violated("a send slot was staged again before the wire read it", rank, seq_of(w));
}

// ---- schedules ----

// One step of one actor of `rank`. `choice` picks the actor that is tried first. False if none of them can move.
static bool step(uint32_t rank, uint64_t choice) {
    const uint32_t actors = fibers + 1 + (world - 1) * RR_MAX_PATHS;
    for (uint32_t i = 0; i < actors; i++) {
        uint32_t actor = (uint32_t)((choice + i) % actors);
        if (actor < fibers) {
            fiber &f = ranks[rank].kernel[actor];
            if (f.finished || f.blocked_at == version) continue;
            switch_to(&f);
            check_send_slots(rank);
            return true;
        }
        if (actor == fibers) {
            if (!rr_engine_step(ranks[rank].proxy)) continue;
            version++;
            return true;
        }
        uint32_t peer = (rank + 1 + (actor - fibers - 1) / RR_MAX_PATHS) % world,
                 path = (actor - fibers - 1) % RR_MAX_PATHS;
        if (wires[rank][peer][path].queue.empty()) continue;
        deliver(rank, peer, path);
        return true;
    }
    return false;
}

static bool all_finished() {
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t i = 0; i < fibers; i++)
            if (!ranks[r].kernel[i].finished) return false;
    return true;
}

// Always the rank that is furthest ahead, until it cannot move; a slow one moves one step and only when nobody faster
// can.
static bool step_fastest(uint64_t *rng) {
    uint32_t order[MAX_RANKS], first = rng_below(rng, world);
    for (uint32_t i = 0; i < world; i++) order[i] = (first + i) % world;
    for (uint32_t i = 1; i < world; i++)
        for (uint32_t k = i; k && ranks[order[k]].ops_done > ranks[order[k - 1]].ops_done; k--) {
            uint32_t t = order[k];
            order[k] = order[k - 1], order[k - 1] = t;
        }
    for (uint32_t i = 0; i < world; i++)
        if (step(order[i], rng_next(rng))) return true;
    return false;
}

static bool step_random(uint64_t *rng) {
    uint32_t first = rng_below(rng, world);
    for (uint32_t i = 0; i < world; i++)
        if (step((first + i) % world, rng_next(rng))) return true;
    return false;
}

// Like the fastest first, but one rank ("held") is left alone for as long as anybody else can move.
static bool step_holding(uint64_t *rng, uint32_t held) {
    for (uint32_t i = 0, first = rng_below(rng, world); i < world; i++)
        if ((first + i) % world != held && step((first + i) % world, rng_next(rng))) return true;
    return step(held, rng_next(rng));
}

static void run_schedule(uint64_t seed) {
    uint64_t rng = seed;
    uint32_t kind = (uint32_t)(seed % 3), held = rng_below(&rng, world);
    failures = 0;
    for (uint32_t r = 0; r < world; r++) {
        ranks[r].ops_done = 0;
        prepare(r);
        for (fiber &f : ranks[r].kernel) f.finished = false, f.blocked_at = 0;
    }
    while (!all_finished() && !failures) {
        bool moved = kind == 0 ? step_fastest(&rng) : kind == 1 ? step_random(&rng) : step_holding(&rng, held);
        CHECK(moved, "nobody can move: world %u, %s, seed %llu", world, what->name, (unsigned long long)seed);
    }
    if (failures) return;
    // What is still on the wire of this schedule must not spill into the next.
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < world; r++) moved |= step(r, fibers);
    }
    for (uint32_t r = 0; r < world; r++)
        CHECK(rr_engine_idle(ranks[r].proxy), "rank %u, seed %llu", r, (unsigned long long)seed);
}

static void start_fiber(fiber &f, uint32_t rank, uint32_t block, uint32_t tid) {
    f.rank = rank, f.block = block, f.tid = tid;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = malloc(STACK);
    f.context.uc_stack.ss_size = STACK;
    makecontext(&f.context, kernel_main, 0);
#if UNDER_TSAN
    f.tsan = __tsan_create_fiber(0);
#endif
}

static void open_world(uint32_t size, const collective &c, uint64_t first_seq, uint64_t with_stride, bool is_direct) {
    direct = is_direct, world = size, what = &c, stride = with_stride, striped = size % 2, ops_to_do = 6;
    blocks = 1 + (size + c.mode) % MAX_BLOCKS, fibers = blocks * THREADS;
    version++;
    memset(completed, 0, sizeof completed);
    char why[256] = "";
    for (uint32_t r = 0; r < world; r++) {
        rank_state &rank = ranks[r];
        memset((void *)&rank, 0, sizeof rank);
        rr_config config = test_config(world, r, world * COUNT * sizeof(float));
        config.stripe_min_bytes = 16;
        config.first_seq = first_seq;
        for (uint32_t p = 0; p < world; p++) config.paths[p] = striped ? 2 : 1, config.hops[p][0] = 1 + (r + p) % 2;
        rank.proxy = rr_proxy_create_with(&config, &wire_ops, why, sizeof why);
        CHECK(rank.proxy, "%s", why);
        rank.device.seq = first_seq;
        rr_op &op = rank.op;
        op.in = (uint64_t)rank.in, op.out = (uint64_t)rank.out, op.count = COUNT, op.rows = 1;
        op.region = (uint64_t)rank.proxy->base, op.state = (uint64_t)&rank.device, op.layout = rank.proxy->layout;
        op.deadline_ns = op.report_ns = UINT64_MAX;
        op.world = world, op.rank = r, op.kind = c.kind, op.mode = c.mode, op.dtype = RR_FLOAT32;
        for (uint32_t p = 0; p < world; p++) op.width[p] = COUNT * sizeof(float);
        op.stripe_min_bytes = 16;
        op.wave = RR_WAVE_TWO;
        memcpy(op.order, config.order, sizeof op.order);
        memcpy(op.paths, config.paths, sizeof op.paths);
        rr_op_seal(&op);
        rr_store_relaxed(&rr_kernel_line_of(rank.proxy)->seq_started, first_seq);
        rr_store_relaxed(&rr_kernel_line_of(rank.proxy)->seq_done, first_seq);
        for (uint32_t i = 0; i < fibers; i++) start_fiber(rank.kernel[i], r, i / THREADS, i % THREADS);
    }
    for (uint32_t r = 0; direct && r < world; r++)
        for (uint32_t p = 0; p < world; p++) ranks[r].op.data[p] = (uint64_t)ranks[p].proxy->base;
}

static void close_world() {
    for (uint32_t r = 0; r < world; r++) {
        for (uint32_t i = 0; i < fibers; i++) {
            fiber &f = ranks[r].kernel[i];
            free(f.context.uc_stack.ss_sp);
#if UNDER_TSAN
            __tsan_destroy_fiber(f.tsan);
#endif
        }
        rr_proxy_destroy(ranks[r].proxy);
        for (auto &to_peer : wires[r])
            for (wire &w : to_peer) w.queue.clear();
    }
}

// From just below 2^31 and 2^32, so that whatever is 32 bits wide changes sign or wraps within the first schedule.
static const uint64_t first_seqs[] = {0, (1ull << 31) - 3, (1ull << 32) - 3};

static uint32_t schedules() { return quick() || UNDER_TSAN ? 12 : 80; }

// Calls run(collective) for every one that can run with proxies (false) or without.
template <typename F> static void every_collective(F run) {
    for (const collective &c : collectives)
        for (bool without : {false, true})
            if (without || !c.access) run(c, without);
}

static void two_slots_are_enough_for_every_collective() {
    uint32_t total = 0;
    every_collective([&](const collective &c, bool without) {
        for (uint32_t size = 2; size <= MAX_RANKS; size++) {
            if (c.mode == RR_MODE_HALVING && (size & (size - 1))) continue;
            uint64_t first = first_seqs[total / schedules() % 3];
            open_world(size, c, first, 1, without);
            for (uint64_t seed = 1; seed <= schedules(); seed++, total++) {
                run_schedule(seed);
                CHECK(!failures, "%s (world %u, %s, direct %d, first sequence %llu, seed %llu)", first_failure, size,
                      c.name, without, (unsigned long long)first, (unsigned long long)seed);
            }
            CHECK(ranks[0].device.seq == first + schedules() * ops_to_do, "sequence %llu",
                  (unsigned long long)ranks[0].device.seq);
            close_world();
        }
    });
    printf("%u schedules, no slot written early\n", total);
}

// Every second sequence only: all operations share one slot. Each kind of schedule must catch that soon; direct, where
// less is on its way at a time, the one that lets the fastest run.
static void one_slot_is_not_enough() {
    every_collective([](const collective &c, bool without) {
        for (uint64_t kind = 0; kind < (without ? 1 : 3); kind++) {
            uint64_t caught = 0;
            for (uint64_t seed = 3 + kind; seed <= 60 && !caught; seed += 3) {
                open_world(4, c, 0, 2, without);
                run_schedule(seed);
                if (failures) caught = seed;
                close_world();
            }
            CHECK(caught,
                  "%s, direct %d: one slot passed for enough in schedules of kind %u, so this test sees nothing",
                  c.name, without, (uint32_t)kind);
            if (kind == 0)
                printf("%s, direct %d, with one slot, seed %llu: %s\n", c.name, without, (unsigned long long)caught,
                       first_failure);
        }
    });
}

int main() {
#if UNDER_TSAN
    scheduler_tsan = __tsan_get_current_fiber();
#endif
    two_slots_are_enough_for_every_collective();
    one_slot_is_not_enough();
    return 0;
}
