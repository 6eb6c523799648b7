/* Where an operation's time goes, as block 0's lead thread sees it. A build of its own, RR_PROFILE=1: elsewhere nothing
 * of this is there.
 */
#ifndef ROCE_RING_PROFILE_CUH
#define ROCE_RING_PROFILE_CUH

#include "device.cuh"

#if RR_PROFILE
RR_FN bool rr_notes_time(const rr_ctx &c) { return c.block == 0 && c.tid == rr_lead(c); }

#if RR_GPU
/* Shared memory: the kernels have no registers to spare. One thread writes, so nobody has to wait. */
RR_FN rr_notes &rr_notes_of(rr_ctx &) {
    __shared__ rr_notes notes;
    return notes;
}
#else
RR_FN rr_notes &rr_notes_of(rr_ctx &c) { return c.notes_of_time; }
#endif

RR_FN void rr_mark_begin(rr_ctx &c) {
    if (!rr_notes_time(c)) return;
    rr_notes &notes = rr_notes_of(c);
    notes.profile.seq = c.seq;
    notes.profile.began_ns = notes.marked = rr_clock_ns();
    notes.profile.stage_ns = notes.profile.command_ns = notes.profile.wait_ns = notes.profile.reduce_ns = 0;
}
/* The time since the last mark was for this. */
#define rr_mark(c, part)                                                                                               \
    do {                                                                                                               \
        if (rr_notes_time(c)) {                                                                                        \
            rr_notes &notes = rr_notes_of(c);                                                                          \
            uint64_t now = rr_clock_ns();                                                                              \
            notes.profile.part##_ns += now - notes.marked;                                                             \
            notes.marked = now;                                                                                        \
        }                                                                                                              \
    } while (0)
/* Between waits and publishes there is copying before the first wait, and after it adding, mixed with copying of what
 * goes on or out. */
#define rr_mark_work(c)                                                                                                \
    do {                                                                                                               \
        if ((c).rounds)                                                                                                \
            rr_mark(c, reduce);                                                                                        \
        else                                                                                                           \
            rr_mark(c, stage);                                                                                         \
    } while (0)
/* Behind the session's state: nobody but the host, once the stream is done, reads it. */
RR_FN void rr_mark_end(rr_ctx &c) {
    if (rr_notes_time(c)) ((rr_profiled_state *)rr_state_of(c))->profiles[c.seq % RR_PROFILES] = rr_notes_of(c).profile;
}
#else
#define rr_mark_begin(c) ((void)0)
#define rr_mark(c, part) ((void)0)
#define rr_mark_work(c) ((void)0)
#define rr_mark_end(c) ((void)0)
#endif

#endif
