/* The order of launches on a GPU, against a driver that only writes down what it was asked for: launches of two streams
 * never run at the same time, a graph capture sees one stream, and nothing is launched after an abort or a refusal.
 */
#include "testing.h"

#include <queue.h>

static char said[256]; /* one letter per call, with the stream it was about */
static int fails, status;
static uint64_t number, context = 7, argument_in, argument_out;

static int say(char what, const void *stream) {
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%c%u ", what, (unsigned)(uint64_t)stream);
    return fails == what ? 700 : 0;
}
static int launch_kernel(void *f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                         unsigned shared, void *stream, void **parameters, void **extra) {
    CHECK((uint64_t)f == 11 && bx == 4 && tx == 512 && by + bz + ty + tz == 4 && !shared && !extra, "%u x %u", bx, tx);
    argument_in = ((rr_op *)parameters[0])->in, argument_out = ((rr_op *)parameters[0])->out;
    return say('L', stream);
}
static int is_capturing(void *stream, int *out) {
    (void)stream;
    *out = status;
    return fails == 'Q' ? 700 : 0;
}
static int capture_info(void *stream, int *out, uint64_t *id, void **graph, const void **nodes, size_t *count) {
    CHECK(!graph && !nodes && !count, "stream %u", (unsigned)(uint64_t)stream);
    *out = status, *id = number;
    return 0;
}
static int record_event(void *event, void *stream) {
    CHECK((uint64_t)event == 13, "event");
    return say('R', stream);
}
static int wait_event(void *stream, void *event, unsigned flags) {
    CHECK((uint64_t)event == 13 && !flags, "event");
    return say('W', stream);
}
static int get_context(void **out) {
    *out = (void *)context;
    return 0;
}
static int push_context(void *one) { return say('+', one); }
static int pop_context(void **out) {
    *out = (void *)context;
    return say('-', *out);
}

static uint64_t abort_word;
static rr_queue queue;
static rr_launch one = {.function = 11, .blocks = 4, .threads = 512};

static void fresh(void) {
    rr_queue q = {.launch_kernel = (uint64_t)launch_kernel,
                  .is_capturing = (uint64_t)is_capturing,
                  .get_capture_info = (uint64_t)capture_info,
                  .record_event = (uint64_t)record_event,
                  .wait_event = (uint64_t)wait_event,
                  .get_context = (uint64_t)get_context,
                  .push_context = (uint64_t)push_context,
                  .pop_context = (uint64_t)pop_context,
                  .context = 7,
                  .abort = (uint64_t)&abort_word,
                  .event = 13};
    queue = q;
    context = 7, fails = status = 0, number = abort_word = 0;
}
static int on(uint64_t stream) {
    said[0] = 0;
    queue.in = 100 + stream, queue.out = 200 + stream, queue.to = stream;
    return rr_queue_launch(&queue, &one);
}
#define SAYS(stream, code, words)                                                                                      \
    do {                                                                                                               \
        int got = on(stream);                                                                                          \
        CHECK(got == (code) && !strcmp(said, words), "said '%s' and returned %#x", said, (unsigned)got);               \
    } while (0)

static void eager(void) {
    fresh();
    SAYS(1, 0, "L1 R1 ");
    CHECK(argument_in == 101 && argument_out == 201, "the launch has another one's addresses");
    SAYS(1, 0, "L1 R1 ");
    SAYS(2, 0, "W2 L2 R2 ");
    SAYS(1, 0, "W1 L1 R1 ");
    context = 8; /* another library's is current */
    SAYS(1, 0, "+7 L1 R1 -8 ");
    SAYS(0, 0, "+7 W0 L0 R0 -8 "); /* the legacy stream is a stream like any other */
}

static void captures(void) {
    fresh();
    SAYS(1, 0, "L1 R1 ");
    CHECK(!queue.captured, "nothing was captured yet");
    status = 1, number = 5;
    SAYS(2, 0, "L2 "); /* no wait: whoever replays it orders it */
    SAYS(2, 0, "L2 ");
    SAYS(3, RR_QUEUE_TWO_STREAMS, "");
    number = 6;
    SAYS(3, 0, "L3 ");
    CHECK(queue.captured, "a graph holds a launch");
    status = 0;
    SAYS(1, 0, "L1 R1 "); /* the last eager launch was here */
}

static void refusals(void) {
    fresh();
    fails = 'L';
    SAYS(1, RR_STEP_LAUNCH << RR_QUEUE_STEP_SHIFT | 700, "L1 ");
    CHECK(!queue.ordered, "nothing was launched, so there is nothing to wait for");
    fails = 'R';
    SAYS(1, RR_STEP_RECORD << RR_QUEUE_STEP_SHIFT | 700, "L1 R1 ");
    fails = 'W';
    SAYS(2, RR_STEP_WAIT << RR_QUEUE_STEP_SHIFT | 700, "W2 ");
    fails = 'Q';
    SAYS(2, RR_STEP_CAPTURE << RR_QUEUE_STEP_SHIFT | 700, "");
    fails = '+', context = 8;
    SAYS(2, RR_STEP_CONTEXT << RR_QUEUE_STEP_SHIFT | 700, "+7 ");
    fails = 'L'; /* the caller's context comes back */
    SAYS(1, RR_STEP_LAUNCH << RR_QUEUE_STEP_SHIFT | 700, "+7 L1 -8 ");
    fails = 0, abort_word = 1;
    SAYS(1, RR_QUEUE_ABORTED, "");
}

int main(void) {
    eager();
    captures();
    refusals();
    return 0;
}
