/* The slow tick: who is late, who is dead, who closed, and that everybody names the same rank; then the thread around
 * it: that it sleeps when there is nothing to do, wakes when there is, and leaves nothing undone when it stops.
 *
 * Most of it is stepped by hand in a time of the test's own, so that five minutes pass in no time.
 */
#include "scripted.h"

#include <time.h>

#define MS 1000000ull

static rr_proxy *open_watch(uint32_t rank) {
    rr_config c = test_config(4, rank, 4096);
    c.late_ms = 1000;
    c.peer_timeout_ms = 300000;
    return script_proxy(&c);
}

static uint64_t now;

/* Ticks every 2 ms, as the thread does, for so long. */
static void pass(rr_proxy *proxy, uint64_t ms) {
    for (uint64_t until = now + ms * MS; now < until;) rr_watch_tick(proxy, now += 2 * MS);
}

static void wait_for(rr_proxy *proxy, uint32_t src, uint32_t path, uint64_t word) {
    rr_wait_line *line = (rr_wait_line *)(proxy->base + proxy->layout.waits) + src * RR_MAX_PATHS + path;
    rr_store_relaxed(&line->word, word);
}

/* Events of `kind` so far; the last one in *last. */
static uint32_t events_of(rr_proxy *proxy, uint32_t kind, rr_event *last) {
    static rr_event all[RR_EVENTS];
    uint32_t n = rr_proxy_events(proxy, 0, all, RR_EVENTS), found = 0;
    for (uint32_t i = 0; i < n; i++)
        if (all[i].kind == kind) *last = all[i], found++;
    return found;
}

static void a_late_peer_is_reported_again_and_again_and_then_resolved(void) {
    rr_proxy *proxy = open_watch(0);
    rr_event e;
    now = 1000000 * MS;
    pass(proxy, 10);
    wait_for(proxy, 2, 1, RR_WAIT_WORD(5, (1ull << 32) + 77));
    pass(proxy, 400);
    CHECK(!proxy->waiting_mask && !the_script.notices[1], "told the peers after 400 ms");
    pass(proxy, 590);
    CHECK(the_script.told[1].waiting == 4 && the_script.told[3].waiting == 4,
          "peers are not told whom this rank waits for");
    CHECK(!events_of(proxy, RR_EVENT_LATE, &e), "late before the limit");
    pass(proxy, 20);
    CHECK(events_of(proxy, RR_EVENT_LATE, &e) == 1, "not late after the limit");
    CHECK(e.peer == 2 && e.path == 1 && e.phase == 5 && e.seq == 77 && e.root == 2 && e.ms >= 1000 && e.ms < 1020,
          "peer %u path %u phase %u seq %llu root %u ms %llu", e.peer, e.path, e.phase, (unsigned long long)e.seq,
          e.root, (unsigned long long)e.ms);
    pass(proxy, 4900);
    CHECK(events_of(proxy, RR_EVENT_LATE, &e) == 1, "again within 5 s");
    pass(proxy, 5200);
    CHECK(events_of(proxy, RR_EVENT_LATE, &e) == 3 && e.ms > 10900, "not repeated every 5 s: %llu",
          (unsigned long long)e.ms);
    CHECK(proxy->stats.late_reports == 3 && !rr_proxy_abort_word(proxy), "late is reported, not punished");
    wait_for(proxy, 2, 1, 0);
    pass(proxy, 4);
    CHECK(events_of(proxy, RR_EVENT_RESOLVED, &e) == 1 && e.peer == 2 && e.ms > 10900, "not resolved");
    CHECK(the_script.told[1].waiting == 0, "peers believe that this rank still waits");
    rr_proxy_destroy(proxy);
}

/* This rank waits for 1, 1 for 3, 3 for 2: the report names 2. A circle has no end, and must not be walked for ever. */
static void a_late_report_names_the_end_of_the_chain(void) {
    rr_proxy *proxy = open_watch(0);
    rr_event e;
    now = 1000000 * MS;
    pass(proxy, 10);
    rr_notice_of(proxy, 1)->waiting = 1u << 3;
    rr_notice_of(proxy, 3)->waiting = 1u << 2 | 1u << 0;
    wait_for(proxy, 1, 0, RR_WAIT_WORD(0, 9));
    pass(proxy, 1010);
    CHECK(events_of(proxy, RR_EVENT_LATE, &e) == 1 && e.peer == 1 && e.root == 2, "root %u", e.root);
    rr_notice_of(proxy, 2)->waiting = ~0ull; /* nonsense from a peer, and a circle */
    pass(proxy, 5010);
    CHECK(events_of(proxy, RR_EVENT_LATE, &e) == 2 && e.root < 4, "root %u", e.root);
    rr_notice_of(proxy, 2)->waiting = 0;
    pass(proxy, 294500);
    CHECK(rr_proxy_abort_word(proxy) == RR_ABORT_WORD(RR_ERR_PEER_TIMEOUT, 2, 0, 0, 9), "abort word %llx",
          (unsigned long long)rr_proxy_abort_word(proxy));
    rr_proxy_destroy(proxy);
}

static void a_stop_notice_is_adopted_and_passed_on(void) {
    rr_proxy *proxy = open_watch(0);
    rr_event e;
    uint64_t word = RR_ABORT_WORD(RR_ERR_QP_ERROR, 3, 7, 1, 12345);
    now = 1000000 * MS;
    pass(proxy, 10);
    rr_store_release(&rr_notice_of(proxy, 1)->stop, word);
    pass(proxy, 4);
    CHECK(rr_proxy_abort_word(proxy) == word, "another word stands: %llx",
          (unsigned long long)rr_proxy_abort_word(proxy));
    for (uint32_t p = 1; p < 4; p++)
        CHECK(the_script.told[p].stop == word, "rank %u was told %llx", p, (unsigned long long)the_script.told[p].stop);
    CHECK(events_of(proxy, RR_EVENT_ABORT, &e) == 1 && e.peer == 3 && e.reason == RR_ERR_QP_ERROR && e.seq == 12345,
          "event of rank %u", e.peer);
    rr_store_release(&rr_notice_of(proxy, 2)->stop,
                     RR_ABORT_WORD(RR_ERR_PEER_DEAD, 1, 0, 0, 1)); /* too late: first writer wins */
    rr_store_release(&rr_kernel_line_of(proxy)->fault, RR_ABORT_WORD(RR_ERR_PEER_TIMEOUT, 2, 0, 0, 1));
    pass(proxy, 200);
    CHECK(rr_proxy_abort_word(proxy) == word && events_of(proxy, RR_EVENT_ABORT, &e) == 1,
          "a second abort replaced the first");
    rr_proxy_destroy(proxy);
}

/* Good-bye is no failure; needing the rank that said it is. What it sent before may still be on its way: 200 ms of
 * grace. */
static void a_closed_peer_fails_only_who_waits_for_it(void) {
    rr_proxy *proxy = open_watch(0);
    rr_event e;
    now = 1000000 * MS;
    pass(proxy, 10);
    rr_store_release(&rr_notice_of(proxy, 2)->stop, RR_ABORT_WORD(RR_ERR_PEER_CLOSED, 2, 0, 0, 5));
    the_script.lost[2] = RR_ERR_PEER_DEAD; /* its process ends after that */
    pass(proxy, 500);
    CHECK(events_of(proxy, RR_EVENT_CLOSED, &e) == 1 && e.peer == 2 && !rr_proxy_abort_word(proxy),
          "a good-bye was not taken as one");
    wait_for(proxy, 1, 0, RR_WAIT_WORD(0, 6));
    pass(proxy, 500);
    CHECK(!rr_proxy_abort_word(proxy), "waiting for an open peer");
    wait_for(proxy, 2, 3, RR_WAIT_WORD(4, 6));
    pass(proxy, 180);
    CHECK(!rr_proxy_abort_word(proxy), "no grace");
    pass(proxy, 40);
    CHECK(rr_proxy_abort_word(proxy) == RR_ABORT_WORD(RR_ERR_PEER_CLOSED, 2, 4, 3, 6), "abort word %llx",
          (unsigned long long)rr_proxy_abort_word(proxy));
    rr_proxy_destroy(proxy);

    proxy = open_watch(0); /* a peer that gives up because of another's good-bye passes that name on */
    rr_store_release(&rr_notice_of(proxy, 1)->stop, RR_ABORT_WORD(RR_ERR_PEER_CLOSED, 2, 0, 0, 5));
    pass(proxy, 4);
    CHECK(RR_ABORT_CULPRIT(rr_proxy_abort_word(proxy)) == 2, "abort word %llx",
          (unsigned long long)rr_proxy_abort_word(proxy));
    rr_proxy_destroy(proxy);
}

static void a_dead_peer_ends_the_session_by_name(void) {
    rr_proxy *proxy = open_watch(0);
    now = 1000000 * MS;
    pass(proxy, 10);
    rr_kernel_line_of(proxy)->seq_started = 8;
    the_script.lost[3] = RR_ERR_PEER_DEAD;
    pass(proxy, 110);
    CHECK(rr_proxy_abort_word(proxy) == RR_ABORT_WORD(RR_ERR_PEER_DEAD, 3, 0, 0, 8), "abort word %llx",
          (unsigned long long)rr_proxy_abort_word(proxy));
    rr_proxy_destroy(proxy);

    proxy = open_watch(0); /* what it said before it went counts for more than that it went */
    uint64_t word = RR_ABORT_WORD(RR_ERR_QP_ERROR, 1, 0, 0, 8);
    pass(proxy, 10);
    the_script.lost[3] = RR_ERR_PEER_DEAD;
    rr_store_release(&rr_notice_of(proxy, 3)->stop, word);
    pass(proxy, 110);
    CHECK(rr_proxy_abort_word(proxy) == word, "abort word %llx", (unsigned long long)rr_proxy_abort_word(proxy));
    rr_proxy_destroy(proxy);
}

/* Both ends of a cable, and everybody who only hears of it, must be able to name the same cable. */
static void a_lost_path_or_port_ends_the_session_and_names_the_place(void) {
    rr_event e;
    struct {
        int reason;
        uint64_t word;
    } cases[] = {{RR_ERR_QP_ERROR, RR_ABORT_WORD(RR_ERR_QP_ERROR, 2, 1, 1, 8)}, /* rank 1's path 1 to rank 2 */
                 {RR_ERR_LINK_DOWN, RR_ABORT_WORD(RR_ERR_LINK_DOWN, 1, 0, 3, 8)} /* device 3 of rank 1 */,
                 {RR_ERR_DEVICE_LOST, RR_ABORT_WORD(RR_ERR_DEVICE_LOST, 1, 0, 3, 8)}};
    for (uint32_t i = 0; i < 3; i++) {
        rr_proxy *proxy = open_watch(1);
        now = 1000000 * MS;
        pass(proxy, 10);
        rr_kernel_line_of(proxy)->seq_started = 8;
        the_script.how[2] = (rr_loss){.path = 1, .device = 3, .status = 12};
        the_script.lost[2] = cases[i].reason;
        pass(proxy, 110);
        CHECK(rr_proxy_abort_word(proxy) == cases[i].word, "case %u: abort word %llx", i,
              (unsigned long long)rr_proxy_abort_word(proxy));
        CHECK(events_of(proxy, RR_EVENT_PATH, &e) == 1 && e.peer == 2 && e.path == 1 && e.ms == 12, "event");
        rr_proxy_destroy(proxy);
    }
}

static void a_kernel_that_faults_or_stands_still_ends_the_session(void) {
    rr_proxy *proxy = open_watch(2);
    uint64_t fault = RR_ABORT_WORD(RR_ERR_PROTOCOL, 1, 2, 0, 4);
    now = 1000000 * MS;
    rr_store_release(&rr_kernel_line_of(proxy)->fault, fault);
    pass(proxy, 4);
    CHECK(rr_proxy_abort_word(proxy) == fault, "abort word %llx", (unsigned long long)rr_proxy_abort_word(proxy));
    rr_proxy_destroy(proxy);

    proxy = open_watch(2);
    rr_kernel_line_of(proxy)->seq_started = 10, rr_kernel_line_of(proxy)->seq_done = 9;
    pass(proxy, 304900);
    CHECK(!rr_proxy_abort_word(proxy), "given up before its own waits had to end");
    pass(proxy, 200);
    CHECK(rr_proxy_abort_word(proxy) == RR_ABORT_WORD(RR_ERR_KERNEL_STUCK, 2, 0, 0, 10), "abort word %llx",
          (unsigned long long)rr_proxy_abort_word(proxy));
    rr_proxy_destroy(proxy);
}

/* A kernel moves on while the watch looks: words that both touch are atomic on both sides. ThreadSanitizer judges. */
static void *kernel_moving_on(void *kernel) {
    for (uint64_t seq = 1; seq < 100000; seq++) {
        rr_store_relaxed(&((rr_kernel_line *)kernel)->seq_started, seq);
        rr_store_relaxed(&((rr_kernel_line *)kernel)->seq_done, seq);
    }
    return NULL;
}

static void the_watch_looks_at_a_kernel_that_runs(void) {
    pthread_t kernel;
    rr_proxy *proxy = open_watch(0);
    now = 1000000 * MS;
    pass(proxy, 10);
    CHECK(!pthread_create(&kernel, NULL, kernel_moving_on, rr_kernel_line_of(proxy)), "no thread");
    wait_for(proxy, 2, 0, RR_WAIT_WORD(0, 3));
    pass(proxy, 1100);
    the_script.lost[3] = RR_ERR_PEER_DEAD;
    pass(proxy, 110);
    pthread_join(kernel, NULL);
    CHECK(proxy->stats.late_reports == 1 && RR_ABORT_CULPRIT(rr_proxy_abort_word(proxy)) == 3, "nothing to look at");
    rr_proxy_destroy(proxy);
}

/* ---- the thread ---- */

static void start(rr_proxy *proxy) {
    char why[256] = "";
    static rr_hello all[RR_MAX_WORLD];
    for (uint32_t p = 0; p < proxy->config.world; p++) {
        rr_proxy_hello(proxy, &all[p]); /* peers that agree with us in everything */
        all[p].rank = p;
        memset(all[p].paths, 1, sizeof all[p].paths);
    }
    CHECK(!rr_proxy_connect(proxy, all, why, sizeof why) && !rr_proxy_start(proxy, why, sizeof why), "%s", why);
}

static rr_stats stats_of(rr_proxy *proxy) {
    rr_stats s;
    rr_proxy_stats(proxy, &s);
    return s;
}

static void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Waits until `word` of the statistics is at least so large; 20 s are for ever. */
static void until(rr_proxy *proxy, size_t word, uint64_t least, const char *what) {
    for (uint64_t end = rr_now_ns() + 20000 * MS;; sleep_ms(1)) {
        rr_stats s = stats_of(proxy);
        uint64_t value;
        memcpy(&value, (uint8_t *)&s + word, sizeof value);
        if (value >= least) return;
        CHECK(rr_now_ns() < end, "%s stays at %llu, below %llu", what, (unsigned long long)value,
              (unsigned long long)least);
    }
}
#define UNTIL(proxy, field, least) until(proxy, offsetof(rr_stats, field), least, #field)

static rr_proxy *open_thread(uint64_t idle_spins) {
    rr_config c = test_config(2, 0, 4096);
    c.idle_spins = idle_spins;
    rr_proxy *proxy = script_proxy(&c);
    the_script.at_once = true;
    start(proxy);
    return proxy;
}

static void an_idle_thread_sleeps_and_a_command_wakes_it(void) {
    rr_proxy *proxy = open_thread(0);
    UNTIL(proxy, naps, 500); /* by now naps have their full length */
    uint64_t before = cpu_ns(), began = rr_now_ns();
    sleep_ms(500);
    double share = (double)(cpu_ns() - before) / (double)(rr_now_ns() - began);
    CHECK(share < 0.2, "an idle thread takes %.0f %% of a core", share * 100);
    for (uint64_t k = 0; k < 50; k++) {
        publish_at(proxy, k, broadcast(proxy, k + 1, 2, 100));
        UNTIL(proxy, commands, k + 1);
        if (k % 10 == 0) sleep_ms(10);
    }
    CHECK(stats_of(proxy).commands_asleep > 0, "it was asleep, and says no");
    CHECK(!rr_proxy_stop(proxy, 1000) && the_script.writes == 50, "%u writes", the_script.writes);
    rr_proxy_destroy(proxy);
}

static void the_idle_policy_changes_while_it_runs(void) {
    rr_proxy *proxy = open_thread(0);
    UNTIL(proxy, naps, 500);
    CHECK(rr_proxy_set_idle(proxy, 0, 0) < 0 && rr_proxy_set_idle(proxy, 0, RR_NAP_MAX_US + 1) < 0,
          "a nap of nothing or of ages");

    CHECK(!rr_proxy_set_idle(proxy, UINT64_MAX, 20) && stats_of(proxy).idle_spins == UINT64_MAX, "not taken over");
    UNTIL(proxy, polls, stats_of(proxy).polls + 1000);
    uint64_t naps = stats_of(proxy).naps;
    UNTIL(proxy, polls, stats_of(proxy).polls + 1000);
    CHECK(stats_of(proxy).naps == naps, "it naps although it may spin");
    publish_at(proxy, 0, broadcast(proxy, 1, 2, 100));
    UNTIL(proxy, commands, 1);
    CHECK(stats_of(proxy).commands_asleep == 0, "a command that found it spinning counts as found asleep");

    /* Naps that have grown to 5 ms become short again: 20 of them then fit where 20 long ones cannot. */
    rr_proxy_set_idle(proxy, 0, 20);
    UNTIL(proxy, naps, naps + 600);
    bool shorter = false;
    for (uint32_t tries = 0; tries < 20 && !shorter; tries++) {
        rr_proxy_set_idle(proxy, 0, 21 + tries);
        naps = stats_of(proxy).naps;
        uint64_t began = rr_now_ns();
        UNTIL(proxy, naps, naps + 21); /* one may have been under way */
        shorter = rr_now_ns() - began < 20ull * RR_NAP_MAX_DOORBELL_US * 1000;
    }
    CHECK(shorter, "a new nap length does not reach a thread that naps");
    rr_proxy_destroy(proxy);
}

/* While command 1 completes, the kernel publishes command 2 and ends, and its engine closes the session at once. The
 * peers still need command 2. */
static void finish_the_first_write_when_stop_was_asked(rr_proxy *proxy) {
    if (the_script.completed[0]) return;
    while (!__atomic_load_n(&proxy->stop, __ATOMIC_ACQUIRE)) sleep_ms(1);
    script_complete(1, 0);
    the_script.at_once = true;
}

static void stopping_leaves_no_published_command_behind(void) {
    rr_config c = test_config(2, 0, 4096);
    rr_proxy *proxy = script_proxy(&c);
    the_script.on_poll = finish_the_first_write_when_stop_was_asked;
    start(proxy);
    publish_at(proxy, 0, broadcast(proxy, 1, 2, 100));
    UNTIL(proxy, writes_posted, 1);
    sleep_ms(20); /* into on_poll */
    publish_at(proxy, 1, broadcast(proxy, 2, 2, 100));
    CHECK(!rr_proxy_stop(proxy, 10000), "unfinished");
    CHECK(the_script.writes == 2, "a published command was left behind");
    CHECK(the_script.told[1].stop == RR_ABORT_WORD(RR_ERR_PEER_CLOSED, 0, 0, 0, 2), "no good-bye: %llx",
          (unsigned long long)the_script.told[1].stop);
    rr_proxy_destroy(proxy);
}

/* A write that never completes cannot hold the caller longer than it said. */
static void stopping_is_bounded(void) {
    rr_config c = test_config(2, 0, 4096);
    rr_proxy *proxy = script_proxy(&c);
    start(proxy);
    publish_at(proxy, 0, broadcast(proxy, 1, 2, 100));
    UNTIL(proxy, writes_posted, 1);
    CHECK(rr_proxy_stop(proxy, 100) < 0, "says that an unfinished write is finished");
    CHECK(stats_of(proxy).state == RR_STATE_CLOSED, "state %u", stats_of(proxy).state);
    rr_proxy_destroy(proxy);
}

static void an_abort_from_outside_reaches_everybody(void) {
    rr_proxy *proxy = open_thread(0);
    UNTIL(proxy, naps, 10);
    uint64_t word = rr_proxy_abort(proxy, RR_ERR_ABORTED_BY_USER, RR_NOBODY);
    for (uint64_t end = rr_now_ns() + 20000 * MS; stats_of(proxy).state != RR_STATE_ABORTED; sleep_ms(1))
        CHECK(rr_now_ns() < end, "still running");
    uint64_t naps = stats_of(proxy).naps;
    UNTIL(proxy, naps, naps + 5); /* an aborted session sleeps, too */
    rr_proxy_stop(proxy, 1000);
    CHECK(the_script.told[1].stop == word, "the peer was told %llx", (unsigned long long)the_script.told[1].stop);
    rr_proxy_destroy(proxy);
}

int main(void) {
    a_late_peer_is_reported_again_and_again_and_then_resolved();
    a_late_report_names_the_end_of_the_chain();
    a_stop_notice_is_adopted_and_passed_on();
    a_closed_peer_fails_only_who_waits_for_it();
    a_dead_peer_ends_the_session_by_name();
    a_lost_path_or_port_ends_the_session_and_names_the_place();
    a_kernel_that_faults_or_stands_still_ends_the_session();
    the_watch_looks_at_a_kernel_that_runs();
    an_idle_thread_sleeps_and_a_command_wakes_it();
    the_idle_policy_changes_while_it_runs();
    stopping_leaves_no_published_command_behind();
    stopping_is_bounded();
    an_abort_from_outside_reaches_everybody();
    return 0;
}
