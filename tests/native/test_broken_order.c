/* The checkers work: a provider that stores the flag before the payload is noticed, the intact one never is.
 *
 * "Noticed" means wrong values come out of a collective, and, in the ThreadSanitizer build, that it reports the race:
 * there the broken half runs in a child, which must die of the report.
 */
#define _GNU_SOURCE
#include "shm_one_mapping.h"
#include "world.h"

#include <sched.h>
#include <sys/wait.h>

#define COUNT 2000u
#define OPS 60u
#define TSAN_EXIT 66 /* ThreadSanitizer's default exit status after a report */

static enum rr_write_result flag_before_payload(rr_provider *provider, const rr_write *write) {
    shm_impl *impl = provider->impl;
    uint8_t *peer = impl->peer[write->peer].base;
    if (write->flag) rr_store_release((uint64_t *)(peer + write->flag), write->value);
    for (int i = 0; i < 50; i++) sched_yield(); /* the wire is slow; the receiver is not */
    memcpy(peer + write->dst, provider->base + write->src, write->bytes);
    return RR_WRITE_DONE;
}

typedef struct tally {
    uint64_t wrong[RR_MAX_WORLD];
} tally;

/* Whole numbers that differ from one operation to the next, so that what an earlier one left in the slot is wrong. */
static float input_of(uint32_t rank, uint32_t op, uint32_t i) { return (float)((op * 31 + rank * 7 + i) % 509); }

static void count_wrong_values(test_world *w, uint32_t rank) {
    static float in[RR_MAX_WORLD][COUNT], out[RR_MAX_WORLD][COUNT];
    for (uint32_t k = 0; k < OPS; k++) {
        rr_op op = world_op(w, rank);
        op.in = (uint64_t)(uintptr_t)in[rank], op.out = (uint64_t)(uintptr_t)out[rank];
        op.count = COUNT, op.dtype = RR_FLOAT32, op.mode = RR_MODE_FULL + k % 6;
        rr_op_seal(&op);
        for (uint32_t i = 0; i < COUNT; i++) in[rank][i] = input_of(rank, k, i);
        CHECK(rr_cpu_run(&op, 1, 1) == RR_CPU_OK, "rank %u, operation %u: abort word %llx", rank, k,
              (unsigned long long)rr_proxy_abort_word(w->proxy[rank]));
        for (uint32_t i = 0; i < COUNT; i++) {
            float sum = 0;
            for (uint32_t p = 0; p < w->size; p++) sum += input_of(p, k, i);
            ((tally *)w->data)->wrong[rank] += out[rank][i] != sum;
        }
    }
}

static uint64_t wrong_values_with(bool broken) {
    static test_world w;
    static rr_provider_ops ops;
    tally t = {{0}};
    ops = shm_one_mapping();
    if (broken) ops.write = flag_before_payload;
    world_configure(&w, 3, COUNT * sizeof(float));
    w.data = &t;
    world_open(&w, &ops);
    world_run(&w, count_wrong_values);
    world_close(&w);
    return t.wrong[0] + t.wrong[1] + t.wrong[2];
}

/* Runs the broken half as a child and returns its exit status; its report goes to `report`. */
static int broken_child(const char *self, char *report, size_t room) {
    int ends[2];
    CHECK(!pipe(ends), "no pipe");
    pid_t child = fork();
    CHECK(child >= 0, "no child");
    if (!child) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        setenv("TSAN_OPTIONS", "halt_on_error=1", 1);
        execl(self, self, "broken", NULL);
        _exit(127);
    }
    close(ends[1]);
    size_t have = 0;
    for (ssize_t n; have < room - 1 && (n = read(ends[0], report + have, room - 1 - have)) > 0;) have += (size_t)n;
    report[have] = 0;
    close(ends[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child ended with %x: %s", (unsigned)status,
          report);
    return WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "broken")) return wrong_values_with(true) ? 1 : 0;
    uint64_t wrong = wrong_values_with(false);
    CHECK(wrong == 0, "%llu wrong values with the intact provider", (unsigned long long)wrong);
    if (UNDER_TSAN) {
        static char report[65536];
        int status = broken_child(argv[0], report, sizeof report);
        CHECK(status == TSAN_EXIT && strstr(report, "data race"), "the race passed unseen, exit status %d: %s", status,
              report);
        CHECK(strstr(report, "flag_before_payload"), "another race than the one intended: %s", report);
        printf("flag before payload: reported by ThreadSanitizer\n");
    } else {
        wrong = wrong_values_with(true);
        CHECK(wrong > 0, "the flag came before the payload and nobody noticed");
        printf("flag before payload: %llu of %u values wrong\n", (unsigned long long)wrong, 3 * OPS * COUNT);
    }
    return 0;
}
