/* One rank's proxy: what its files share. Comments say which thread writes what. */
#ifndef RR_INTERNAL_H
#define RR_INTERNAL_H

#include "order.h"
#include "provider.h"

#include <pthread.h>

#define RR_EVENTS 256
#define RR_WINDOW_CHUNKS 64 /* chunks in flight on one forwarded path; also bounds the window */

/* A command being turned into writes. Waves run one after another; within a wave every (peer, path) advances on its
 * own. */
typedef struct rr_active {
    rr_command cmd;
    uint16_t waiting;  /* peers of later waves */
    uint16_t posting;  /* peers of this wave with bytes or a flag still to post */
    uint16_t phase_at; /* phased: ring distance of the destination served now */
    uint8_t in_use;
    uint8_t stamped;
    uint32_t outstanding;                    /* flag completions of this wave still to come */
    uint32_t record;                         /* index into records */
    uint32_t at[RR_MAX_WORLD][RR_MAX_PATHS]; /* bytes of the stripe posted; RR_STRIPE_DONE once its flag is */
} rr_active;

#define RR_STRIPE_DONE UINT32_MAX

/* Unacknowledged bytes on one path. Completions of one queue pair come in order, so a queue of sizes is enough. */
typedef struct rr_window {
    uint32_t bytes;
    uint32_t head, count;
    uint32_t sizes[RR_WINDOW_CHUNKS];
} rr_window;

struct rr_proxy {
    rr_config config;  /* fixed after create */
    uint32_t position; /* of our rank in config.order; likewise */
    rr_layout layout;
    uint64_t layout_hash;
    rr_provider provider;
    rr_hello hello;
    uint8_t *base;
    int region_fd;
    char region_name[128];

    pthread_t thread;
    bool thread_alive;
    uint32_t state;      /* atomic; enum rr_state */
    uint32_t stop;       /* atomic; set by rr_proxy_stop */
    uint64_t stop_by_ns; /* written before `stop` */
    uint64_t idle_spins; /* atomic: changed live */
    uint32_t nap_us;     /* atomic: changed live */

    uint32_t engine_busy; /* atomic: somebody takes a turn. Guards everything below but `stats` and the events */
    uint64_t lent;        /* turns that waiting kernels took; written under engine_busy */

    /* whoever holds engine_busy */
    uint64_t consumed;
    uint32_t actives_used;
    rr_active active[RR_COMMANDS];
    uint16_t run_list[RR_COMMANDS]; /* indices of active commands, oldest first */
    uint32_t record_open[RR_RECORDS];
    rr_window window[RR_MAX_WORLD][RR_MAX_PATHS];
    uint16_t generation;
    uint32_t in_flight; /* writes posted, completion to come */
    uint64_t last_tick_ns;
    uint64_t last_alive_ns;
    uint64_t last_notice_ns;
    uint64_t wait_since_ns[RR_MAX_WORLD];
    uint64_t closed_ns[RR_MAX_WORLD]; /* when the peer's good-bye was seen */
    uint64_t wait_word[RR_MAX_WORLD];
    uint64_t late_reported_ns[RR_MAX_WORLD];
    uint64_t started_seen, started_ns;
    uint16_t waiting_mask, told_mask, closed_mask;
    bool abort_told;
    uint64_t beat;

    rr_stats stats; /* written by the progress thread with relaxed stores, read by anybody */

    pthread_mutex_t event_lock; /* guards the next three; events are rare and never on the data path */
    rr_event events[RR_EVENTS];
    uint64_t event_count;
    uint64_t events_lost;
};

uint64_t rr_now_ns(void);

/* progress.c: the progress thread, from start to stop. */
void *rr_progress_main(void *proxy);

/* region.c */
int rr_region_create(rr_proxy *proxy, rr_why why);
void rr_region_unlink(rr_proxy *proxy);
void rr_region_destroy(rr_proxy *proxy);

/* litmus.c: takes its flags back; call when no rank raises any more. */
void rr_litmus_clear(rr_proxy *proxy);

/* engine.c: one turn of the progress loop. Returns true if anything was done. */
bool rr_engine_step(rr_proxy *proxy);
/* Nothing taken from the ring is unfinished. */
bool rr_engine_idle(const rr_proxy *proxy);

/* watch.c: the slow tick. Notices, late and dead peers, deadlines. */
void rr_watch_tick(rr_proxy *proxy, uint64_t now_ns);
void rr_watch_say_goodbye(rr_proxy *proxy);
uint64_t rr_watch_abort(rr_proxy *proxy, uint64_t word);
void rr_event_push(rr_proxy *proxy, rr_event event);

static inline rr_abort *rr_abort_line(rr_proxy *p) { return (rr_abort *)(p->base + p->layout.abort); }
static inline rr_kernel_line *rr_kernel_line_of(rr_proxy *p) { return (rr_kernel_line *)(p->base + p->layout.kernel); }
static inline rr_progress *rr_progress_of(rr_proxy *p) { return (rr_progress *)(p->base + p->layout.progress); }
static inline rr_notice *rr_notice_of(rr_proxy *p, uint32_t src) {
    return (rr_notice *)(p->base + p->layout.notices) + src;
}
static inline rr_record *rr_record_of(rr_proxy *p, uint32_t i) {
    return (rr_record *)(p->base + p->layout.records) + i;
}

/* Counters have one writer; readers may look at any time. */
static inline void rr_count(uint64_t *counter, uint64_t by) { rr_store_relaxed(counter, *counter + by); }
static inline void rr_raise(uint64_t *counter, uint64_t value) {
    if (value > *counter) rr_store_relaxed(counter, value);
}

#endif
