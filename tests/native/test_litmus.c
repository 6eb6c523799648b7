/* The litmus tells a provider that keeps payload and flag in order from one that does not, and a path that is silent
 * from one that works; what it leaves behind does not disturb the session; and paths that are left out are gone for the
 * engine. Real shm sessions of two ranks in one process, with a provider in between that misbehaves on one path.
 */
#include "shm_one_mapping.h"
#include "world.h"

enum fault { NONE, TORN, SILENT };
static enum fault fault_of[RR_MAX_PATHS];

/* A NIC of rank 0 that may deliver a flag first, or one that delivers nothing at all. */
static enum rr_write_result faulty_write(rr_provider *provider, const rr_write *write) {
    enum fault fault = fault_of[write->path];
    if (fault == SILENT) return RR_WRITE_POSTED; /* and no completion ever comes */
    if (fault != TORN || provider->config->rank || !write->flag) return shm_write(provider, write);
    rr_write flag = *write, payload = *write;
    flag.bytes = 0;
    payload.flag = 0;
    shm_write(provider, &flag);
    usleep(2000); /* the wire is slow; the receiver is not */
    return shm_write(provider, &payload);
}

typedef struct outcome {
    uint8_t verdict[RR_MAX_WORLD][RR_MAX_PATHS];
} outcome;

static void prove(test_world *w, uint32_t rank) {
    char why[256] = "";
    outcome *out = (outcome *)w->data + rank;
    CHECK(!rr_proxy_litmus(w->proxy[rank], 0, &out->verdict[0][0], why, sizeof why), "%s", why);
}

static void one_sum(test_world *w, uint32_t rank) {
    static float in[2][5000], out[2][5000];
    for (uint32_t k = 0; k < 4; k++) {
        rr_op op = world_op(w, rank);
        op.in = (uint64_t)(uintptr_t)in[rank], op.out = (uint64_t)(uintptr_t)out[rank];
        op.count = 5000, op.dtype = RR_FLOAT32, op.mode = RR_MODE_FULL;
        op.paths[1 - rank] = ((rr_proxy *)w->proxy[rank])->config.paths[1 - rank];
        rr_op_seal(&op);
        for (uint32_t i = 0; i < 5000; i++) in[rank][i] = (float)(i + k + rank);
        CHECK(rr_cpu_run(&op, 1, 1) == RR_CPU_OK, "rank %u: abort word %llx", rank,
              (unsigned long long)rr_proxy_abort_word(w->proxy[rank]));
        for (uint32_t i = 0; i < 5000; i++)
            CHECK(out[rank][i] == (float)(2 * (i + k) + 1), "operation %u: element %u is %g", k, i,
                  (double)out[rank][i]);
    }
}

static void open_pair(test_world *w, rr_provider_ops *ops, outcome *found, uint32_t dead_ms) {
    char why[512] = "";
    rr_hello hello[2];
    *ops = shm_one_mapping();
    ops->write = faulty_write;
    world_configure(w, 2, 20000);
    for (uint32_t r = 0; r < 2; r++) {
        w->config[r].dead_ms = dead_ms;
        w->config[r].paths[1 - r] = 3;
        w->config[r].first_seq = (1ull << 32) - 2;
        w->proxy[r] = rr_proxy_create_with(&w->config[r], ops, why, sizeof why);
        CHECK(w->proxy[r], "%s", why);
        rr_proxy_hello(w->proxy[r], &hello[r]);
        w->state[r].seq = w->config[r].first_seq;
    }
    for (uint32_t r = 0; r < 2; r++) CHECK(!rr_proxy_connect(w->proxy[r], hello, why, sizeof why), "%s", why);
    memset(found, 0, 2 * sizeof *found);
    w->data = found;
}

int main(void) {
    static test_world w;
    rr_provider_ops ops;
    outcome found[2];
    char why[256] = "";
    uint8_t used[RR_MAX_WORLD] = {0};

    open_pair(&w, &ops, found, 2000);
    world_run(&w, prove);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < RR_MAX_PATHS; i++)
            CHECK(found[r].verdict[1 - r][i] == (i < 3 ? RR_PATH_RIGHT : RR_PATH_NONE), "rank %u, path %u: %u", r, i,
                  found[r].verdict[1 - r][i]);
    used[0] = used[1] = 7;
    for (uint32_t r = 0; r < 2; r++) CHECK(!rr_proxy_use(w.proxy[r], used, 0, why, sizeof why), "%s", why);
    for (uint32_t r = 0; r < 2; r++) CHECK(!rr_proxy_start(w.proxy[r], why, sizeof why), "%s", why);
    world_run(&w, one_sum); /* nothing that the litmus wrote is taken for an operation */
    CHECK(rr_proxy_litmus(w.proxy[0], 0, &found[0].verdict[0][0], why, sizeof why) < 0 && strstr(why, "not started"),
          "a litmus in a running session: %s", why);
    world_close(&w);

    if (!UNDER_TSAN) fault_of[1] = TORN; /* a tear is a data race, and would be reported as one */
    fault_of[2] = SILENT;
    open_pair(&w, &ops, found, 500); /* silence costs five times as much */
    world_run(&w, prove);
    for (uint32_t r = 0; r < 2; r++) {
        const uint8_t *v = found[r].verdict[1 - r];
        uint32_t second = r == 0 || UNDER_TSAN ? RR_PATH_RIGHT : RR_PATH_TORN; /* the receiver sees it */
        CHECK(v[0] == RR_PATH_RIGHT && v[1] == second && v[2] == RR_PATH_SILENT, "rank %u: %u %u %u", r, v[0], v[1],
              v[2]);
    }
    used[0] = used[1] = 8; /* a path that is not planned */
    CHECK(rr_proxy_use(w.proxy[0], used, 0, why, sizeof why) < 0 && strstr(why, "no path to rank 1 is left"), "%s",
          why);
    used[0] = used[1] = 1;
    for (uint32_t r = 0; r < 2; r++) CHECK(!rr_proxy_use(w.proxy[r], used, 0, why, sizeof why), "%s", why);
    for (uint32_t r = 0; r < 2; r++) CHECK(!rr_proxy_start(w.proxy[r], why, sizeof why), "%s", why);
    world_run(&w, one_sum);
    rr_stats s;
    rr_proxy_stats(w.proxy[0], &s);
    CHECK(s.path[1][0].writes && !s.path[1][1].writes && !s.path[1][2].writes, "paths that are left out are used");
    world_close(&w);
    return 0;
}
