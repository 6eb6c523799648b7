/* A provider that does what the test says: it remembers every write, completes them when told, fills up, fails, and
 * keeps what peers would have been told. The proxy above it is the real one, alone in its world and stepped by hand. */
#ifndef RR_SCRIPTED_H
#define RR_SCRIPTED_H

#include "internal.h"
#include "testing.h"

#define SCRIPT_WRITES 65536

typedef struct script {
    bool at_once;                  /* writes are done when they return, as with shm */
    uint32_t room;                 /* writes in flight on one path before it says RR_WRITE_AGAIN; 0 = no bound */
    int fails_peer, fails_path;    /* that path answers RR_WRITE_FAILED; -1 = none */
    rr_write write[SCRIPT_WRITES]; /* every write that was accepted, in order */
    uint32_t writes;
    bool completed[SCRIPT_WRITES];
    uint32_t in_flight[RR_MAX_WORLD][RR_MAX_PATHS];
    rr_completion ready[SCRIPT_WRITES];
    uint32_t ready_first, ready_count;
    rr_notice told[RR_MAX_WORLD]; /* the last notice to each peer */
    uint32_t notices[RR_MAX_WORLD];
    int lost[RR_MAX_WORLD]; /* what `lost` answers about each peer */
    rr_loss how[RR_MAX_WORLD];
    void (*on_poll)(rr_proxy *proxy);
    rr_proxy *proxy;
} script;

static script the_script;

static int script_open(rr_provider *provider, rr_hello *hello, rr_why why) {
    (void)hello, (void)why;
    provider->impl = &the_script;
    return 0;
}
static int script_connect(rr_provider *provider, const rr_hello *all, rr_why why) {
    return (void)provider, (void)all, (void)why, 0;
}

static enum rr_write_result script_write(rr_provider *provider, const rr_write *write) {
    script *s = provider->impl;
    if ((int)write->peer == s->fails_peer && (int)write->path == s->fails_path) return RR_WRITE_FAILED;
    if (s->room && s->in_flight[write->peer][write->path] == s->room) return RR_WRITE_AGAIN;
    CHECK(s->writes < SCRIPT_WRITES, "raise SCRIPT_WRITES");
    s->write[s->writes] = *write;
    s->completed[s->writes++] = s->at_once;
    if (s->at_once) return RR_WRITE_DONE;
    s->in_flight[write->peer][write->path]++;
    return RR_WRITE_POSTED;
}

static uint32_t script_poll(rr_provider *provider, rr_completion *out, uint32_t room) {
    script *s = provider->impl;
    if (s->on_poll) s->on_poll(s->proxy);
    uint32_t n = s->ready_count < room ? s->ready_count : room;
    memcpy(out, s->ready + s->ready_first, n * sizeof *out);
    s->ready_first += n, s->ready_count -= n;
    if (!s->ready_count) s->ready_first = 0;
    return n;
}

static void script_notify(rr_provider *provider, uint32_t peer, const rr_notice *notice) {
    script *s = provider->impl;
    s->told[peer] = *notice;
    s->notices[peer]++;
}
static int script_lost(rr_provider *provider, uint32_t peer, rr_loss *how) {
    script *s = provider->impl;
    return *how = s->how[peer], s->lost[peer];
}
static void script_close(rr_provider *provider) { provider->impl = NULL; }

static const rr_provider_ops script_ops = {.name = "script",
                                           .id = RR_PROVIDER_SHM,
                                           .open = script_open,
                                           .connect = script_connect,
                                           .write = script_write,
                                           .poll = script_poll,
                                           .notify = script_notify,
                                           .lost = script_lost,
                                           .close = script_close};

static inline rr_proxy *script_proxy(const rr_config *config) {
    char why[256] = "";
    memset(&the_script, 0, sizeof the_script);
    the_script.fails_peer = the_script.fails_path = -1;
    rr_proxy *proxy = rr_proxy_create_with(config, &script_ops, why, sizeof why);
    CHECK(proxy, "%s", why);
    return the_script.proxy = proxy;
}

static inline void script_complete_with(rr_completion completion) {
    CHECK(the_script.ready_first + the_script.ready_count < SCRIPT_WRITES, "raise SCRIPT_WRITES");
    the_script.ready[the_script.ready_first + the_script.ready_count++] = completion;
}

/* The oldest unfinished write on a path completes: queue pairs complete in order. False if there is none. */
static inline bool script_complete(uint32_t peer, uint32_t path) {
    for (uint32_t i = 0; i < the_script.writes; i++) {
        const rr_write *w = &the_script.write[i];
        if (the_script.completed[i] || w->peer != peer || w->path != path) continue;
        the_script.completed[i] = true;
        the_script.in_flight[peer][path]--;
        script_complete_with((rr_completion){.tag = w->tag, .peer = peer, .path = path});
        return true;
    }
    return false;
}

/* ---- what a kernel does ---- */

/* Puts a command at place `index` of the ring, as rr_publish_now does. */
static inline void publish_at(rr_proxy *proxy, uint64_t index, rr_command cmd) {
    rr_command *slot = (rr_command *)(proxy->base + proxy->layout.commands) + index % RR_COMMANDS;
    memcpy((uint8_t *)slot + sizeof slot->commit, (uint8_t *)&cmd + sizeof cmd.commit, sizeof cmd - sizeof cmd.commit);
    __atomic_store_n(&slot->commit, index + 1, __ATOMIC_SEQ_CST);
}

/* A broadcast of `bytes` to `peers`, from this operation's send slot to its place in their receive slots. */
static inline rr_command broadcast(rr_proxy *proxy, uint64_t seq, uint32_t peers, uint32_t bytes) {
    const rr_layout *l = &proxy->layout;
    return (rr_command){.seq = seq,
                        .src = l->send + seq % RR_SLOTS * 2 * l->slot_bytes,
                        .dst = l->recv + (seq % RR_SLOTS * l->world + proxy->config.rank) * l->slot_bytes,
                        .bytes = bytes,
                        .peers = (uint16_t)peers,
                        .op = RR_OP_BROADCAST,
                        .digest = 0xbeef};
}

#endif
