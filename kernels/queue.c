/* See queue.h. The driver's types, as its ABI has them: handles are pointers, results are int. */
#include "queue.h"

typedef void *handle;
typedef int (*launch_kernel_fn)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,
                                void **, void **);
typedef int (*is_capturing_fn)(handle, int *);
typedef int (*get_capture_info_fn)(handle, int *, uint64_t *, handle *, const handle **, size_t *);
typedef int (*record_event_fn)(handle, handle);
typedef int (*wait_event_fn)(handle, handle, unsigned);
typedef int (*get_context_fn)(handle *);
typedef int (*push_context_fn)(handle);

#define CAPTURE_NONE 0
#define CAPTURE_ACTIVE 1

static int refused(int code, int step) { return code ? step << RR_QUEUE_STEP_SHIFT | code : 0; }

/* Number of the capture that the stream is in, 0 for none. */
static int capture_of(const rr_queue *q, handle stream, uint64_t *number) {
    int status = CAPTURE_NONE;
    *number = 0;
    int code = ((is_capturing_fn)q->is_capturing)(stream, &status);
    if (!code && status != CAPTURE_NONE)
        code = ((get_capture_info_fn)q->get_capture_info)(stream, &status, number, NULL, NULL, NULL);
    if (status != CAPTURE_ACTIVE) *number = 0;
    return refused(code, RR_STEP_CAPTURE);
}

/* Two branches of one graph would run at the same time. */
static int enter_capture(rr_queue *q, uint64_t number, uint64_t stream) {
    if (number == q->capture && stream != q->capture_stream) return RR_QUEUE_TWO_STREAMS;
    q->capture = number;
    q->capture_stream = stream;
    q->captured = 1;
    return 0;
}

static int put(rr_queue *q, rr_launch *l, uint64_t stream) {
    uint64_t capture = 0;
    handle to = (handle)stream, event = (handle)q->event;
    int code = capture_of(q, to, &capture);
    if (!code && capture)
        code = enter_capture(q, capture, stream);
    else if (!code && q->ordered && q->stream != stream)
        code = refused(((wait_event_fn)q->wait_event)(to, event, 0), RR_STEP_WAIT);
    if (code) return code;
    void *parameters[] = {&l->op};
    code = ((launch_kernel_fn)q->launch_kernel)((handle)l->function, l->blocks, 1, 1, l->threads, 1, 1, 0, to,
                                                parameters, NULL);
    if (code || capture) return refused(code, RR_STEP_LAUNCH);
    q->stream = stream;
    q->ordered = 1;
    return refused(((record_event_fn)q->record_event)(event, to), RR_STEP_RECORD);
}

int rr_queue_launch(rr_queue *q, rr_launch *l) {
    if (__atomic_load_n((const uint64_t *)q->abort, __ATOMIC_ACQUIRE)) return RR_QUEUE_ABORTED;
    l->op.in = q->in;
    l->op.out = q->out;
    handle current = NULL;
    int code = ((get_context_fn)q->get_context)(&current), entered = 0;
    if (!code && current != (handle)q->context) {
        code = ((push_context_fn)q->push_context)((handle)q->context);
        entered = !code;
    }
    if (code) return refused(code, RR_STEP_CONTEXT);
    code = put(q, l, q->to);
    if (entered) ((get_context_fn)q->pop_context)(&current);
    return code;
}
