/* How a session's launches get into streams of a GPU, in one call from Python: what the driver is asked for at every
 * eager operation costs less from here than each question would cost through ctypes.
 */
#ifndef ROCE_RING_QUEUE_H
#define ROCE_RING_QUEUE_H

#include "op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One per session; host code that launches holds the session's lock. The driver's functions come as addresses, found by
 * whoever loaded libcuda: this library does not link against it. */
typedef struct rr_queue {
    uint64_t in; /* what the next launch is on: addresses, and the stream it goes into */
    uint64_t out;
    uint64_t to;
    uint64_t launch_kernel;    /* cuLaunchKernel */
    uint64_t is_capturing;     /* cuStreamIsCapturing */
    uint64_t get_capture_info; /* cuStreamGetCaptureInfo_v2 */
    uint64_t record_event;     /* cuEventRecord */
    uint64_t wait_event;       /* cuStreamWaitEvent */
    uint64_t get_context;      /* cuCtxGetCurrent */
    uint64_t push_context;     /* cuCtxPushCurrent_v2 */
    uint64_t pop_context;      /* cuCtxPopCurrent_v2 */
    uint64_t context;          /* the session's */
    uint64_t abort;            /* address of the region's abort word */
    uint64_t event;            /* recorded behind every eager launch */
    uint64_t stream;           /* of the last eager launch, if `ordered` */
    uint64_t capture;          /* number of the last capture that a launch went into, and its stream */
    uint64_t capture_stream;
    uint32_t ordered;
    uint32_t captured; /* some launch went into a graph */
} rr_queue;

/* An operation, sealed, with all that a launch of it needs but the addresses and the stream. */
typedef struct rr_launch {
    rr_op op;
    uint64_t function; /* the kernel's handle */
    uint32_t blocks;
    uint32_t threads;
} rr_launch;

/* clang-format off */
#define RR_QUEUE_FIELDS(X) \
    X(rr_queue, in, 0, 8) \
    X(rr_queue, out, 8, 8) \
    X(rr_queue, to, 16, 8) \
    X(rr_queue, launch_kernel, 24, 8) \
    X(rr_queue, is_capturing, 32, 8) \
    X(rr_queue, get_capture_info, 40, 8) \
    X(rr_queue, record_event, 48, 8) \
    X(rr_queue, wait_event, 56, 8) \
    X(rr_queue, get_context, 64, 8) \
    X(rr_queue, push_context, 72, 8) \
    X(rr_queue, pop_context, 80, 8) \
    X(rr_queue, context, 88, 8) \
    X(rr_queue, abort, 96, 8) \
    X(rr_queue, event, 104, 8) \
    X(rr_queue, stream, 112, 8) \
    X(rr_queue, capture, 120, 8) \
    X(rr_queue, capture_stream, 128, 8) \
    X(rr_queue, ordered, 136, 4) \
    X(rr_queue, captured, 140, 4) \
    X(rr_launch, op, 0, 696) \
    X(rr_launch, function, 696, 8) \
    X(rr_launch, blocks, 704, 4) \
    X(rr_launch, threads, 708, 4)
#define RR_QUEUE_STRUCTS(X) \
    X(rr_queue, 144) \
    X(rr_launch, 712)
/* clang-format on */
RR_QUEUE_FIELDS(RR_ASSERT_FIELD)
RR_QUEUE_STRUCTS(RR_ASSERT_STRUCT)

/* rr_queue_launch: 0, one of these, or the driver's code with the step that it refused above it. */
#define RR_QUEUE_ABORTED -1     /* the session is over: nothing was launched */
#define RR_QUEUE_TWO_STREAMS -2 /* another stream of the same capture has used this session: nothing was launched */
#define RR_QUEUE_STEP_SHIFT 16
enum { RR_STEP_CONTEXT = 1, RR_STEP_CAPTURE, RR_STEP_WAIT, RR_STEP_LAUNCH, RR_STEP_RECORD };

/* Puts the operation into the stream `to`, behind this session's last eager launch on any other, or into the graph that
 * the stream is being captured for. */
__attribute__((visibility("default"))) int rr_queue_launch(rr_queue *queue, rr_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
