/* The verbs provider as far as it goes without RDMA: which GID it picks, how long it retries, and what a user reads who
 * has no RDMA device, no device name, or asks for what is not there yet. */
#include "testing.h"

#ifndef RR_HAVE_VERBS
int main(void) {
    printf("built without infiniband/verbs.h: nothing to test\n");
    return 0;
}
#else
#include "verbs_impl.h"

#include <arpa/inet.h>

static rr_config two_ranks(void) {
    rr_config config = test_config(2, 0, 4096);
    config.provider = RR_PROVIDER_VERBS;
    config.dead_ms = 1000;
    config.paths[1] = 2;
    config.hca_of[1][1] = 2;
    strcpy(config.hca[0], "no_such_device0");
    strcpy(config.hca[1], "not_used");
    strcpy(config.hca[2], "no_such_device1");
    return config;
}

static const char *refusal(rr_config config) {
    static char why[2048];
    memset(why, 'x', sizeof why); /* the library must end what it writes */
    rr_proxy *proxy = rr_proxy_create(&config, why, sizeof why);
    CHECK(!proxy, "a session came up with a device that cannot exist");
    return why;
}

static uint32_t lines(const char *text) {
    uint32_t n = 1;
    for (; *text; text++) n += *text == '\n';
    return n;
}

/* A user without RDMA reads one clear sentence, whatever is missing. */
static void missing_devices_are_named(void) {
    const char *why = refusal(two_ranks());
    if (strstr(why, "no_such_device0"))
        CHECK(strstr(why, "no_such_device1") && lines(why) == 2, "all missing devices at once: %s", why);
    else
        CHECK((strstr(why, "no RDMA device is present") || strstr(why, "install rdma-core")) && lines(why) == 1, "%s",
              why);
    CHECK(!strstr(why, "not_used"), "a device that no path uses is not looked for: %s", why);
    printf("%s\n", why);
}

static void bad_settings_are_refused(void) {
    rr_config config = two_ranks();
    config.dead_ms = 0;
    CHECK(strstr(refusal(config), "dead_ms is 0"), "%s", refusal(config));
    char why[256];
    if (!rr_verbs_load((rr_why){why, sizeof why})) return; /* the rest is only looked at behind the library */
    config = two_ranks();
    config.hca_of[1][0] = 5;
    CHECK(strstr(refusal(config), "hca[5], which has no device name"), "%s", refusal(config));
    config = two_ranks();
    config.hca_of[1][1] = 0;
    CHECK(strstr(refusal(config), "both use no_such_device0"), "%s", refusal(config));
}

/* Just under the bound: what heals in place is as long as it can be, and nobody is blamed late. */
static void retry_budget_fits_the_bound(void) {
    for (uint32_t bound_ms = 10; bound_ms <= 600000; bound_ms += 1 + bound_ms / 50) {
        verbs_retry r = rr_verbs_retry(bound_ms);
        double budget_ms = 4.096e-3 * (double)(1ull << r.timeout) * (r.retries + 1);
        CHECK(budget_ms <= bound_ms && budget_ms > bound_ms * 0.69, "%u ms gives %.3f ms", bound_ms, budget_ms);
        CHECK(r.timeout && r.retries && r.retries < 7, "timeout %u, %u retries", r.timeout, r.retries);
    }
}

/* A completion says which queue pair, which post, and of which generation: one of an earlier generation is nobody's. */
static void work_request_ids_say_whose_they_are(void) {
    for (uint32_t peer = 0; peer < RR_MAX_WORLD; peer++)
        for (uint32_t path = 0; path < RR_MAX_PATHS; path++)
            for (uint32_t k = 0; k < 64; k++) {
                uint32_t generation = k * 0x2491u, position = 0xffffffe0u + k; /* both wrap */
                uint64_t id = RR_ID(generation, position, peer, path), ids[] = {id, id | RR_ID_LAST};
                for (uint32_t i = 0; i < 2; i++) {
                    CHECK(RR_ID_PEER(ids[i]) == peer && RR_ID_PATH(ids[i]) == path, "%llx", (unsigned long long)ids[i]);
                    CHECK(RR_ID_POSITION(ids[i]) == position && !RR_ID_IS_RECEIVE(ids[i]), "position %u", position);
                    CHECK(RR_ID_IS_OF(ids[i], generation), "generation %u", generation);
                    for (uint32_t bit = 0; bit < 14; bit++)
                        CHECK(!RR_ID_IS_OF(ids[i], generation ^ 1u << bit), "generation %u, bit %u", generation, bit);
                }
                uint64_t receive = RR_ID_RECEIVE(peer, path);
                CHECK(RR_ID_IS_RECEIVE(receive) && RR_ID_PEER(receive) == peer && RR_ID_PATH(receive) == path,
                      "receive");
            }
}

static struct ibv_gid_entry entry(uint32_t index, uint32_t type, uint32_t netdev, const char *address) {
    struct ibv_gid_entry e = {.gid_index = index, .port_num = RR_PORT, .gid_type = type, .ndev_ifindex = netdev};
    int part[4];
    if (sscanf(address, "%d.%d.%d.%d", &part[0], &part[1], &part[2], &part[3]) == 4) {
        e.gid.raw[10] = e.gid.raw[11] = 0xff;
        for (int i = 0; i < 4; i++) e.gid.raw[12 + i] = (uint8_t)part[i];
    } else {
        e.gid.raw[0] = 0xfe, e.gid.raw[1] = 0x80, e.gid.raw[15] = 1;
    }
    return e;
}

/* The index is 3 on a fresh port, moves when a link flaps, and differs per port: only the table says which. */
static void gid_comes_from_the_table(void) {
    enum { V1 = IBV_GID_TYPE_ROCE_V1, V2 = IBV_GID_TYPE_ROCE_V2 };
    char why[512];
    rr_why w = {why, sizeof why};
    struct ibv_gid_entry fresh[] = {entry(0, V1, 9, "fe80"), entry(1, V2, 9, "fe80"), entry(2, V1, 9, "10.1.2.3"),
                                    entry(3, V2, 9, "10.1.2.3")};
    CHECK(rr_gid_choose(fresh, 4, "d", 0, w) == 3, "%s", why);
    struct ibv_gid_entry flapped[] = {entry(0, V1, 9, "fe80"), entry(1, V2, 9, "fe80"), entry(2, V1, 9, "10.1.2.3"),
                                      entry(4, V2, 9, "10.1.2.3")};
    CHECK(rr_gid_choose(flapped, 4, "d", 0, w) == 4, "%s", why);
    struct ibv_gid_entry vlan[] = {entry(0, V1, 9, "fe80"), entry(1, V2, 9, "fe80"), entry(2, V2, 30, "10.9.9.9"),
                                   entry(5, V2, 9, "10.1.2.3")};
    CHECK(rr_gid_choose(vlan, 4, "d", 0, w) == 5, "an address of another network device is not ours: %s", why);
    CHECK(rr_gid_choose(vlan, 4, "d", inet_addr("10.9.9.9"), w) == RR_GID_NONE &&
              strstr(why, "the GID for 10.9.9.9 of d (index 2) belongs to network device"),
          "%s", why);
    CHECK(rr_gid_choose(fresh, 2, "d", 0, w) == RR_GID_NONE && strstr(why, "no RoCE v2 GID for its fabric address"),
          "%s", why);
    CHECK(rr_gid_choose(fresh, 0, "d", 0, w) == RR_GID_NONE && strstr(why, "(present: none)"), "%s", why);
    CHECK(rr_gid_choose(fresh, 3, "d", 0, w) == RR_GID_NONE && strstr(why, "only as RoCE v1"), "%s", why);
}

/* A port with an operator's second address: the plan says which one is the fabric's. */
static void the_planned_address_is_taken(void) {
    enum { V2 = IBV_GID_TYPE_ROCE_V2 };
    char why[512];
    rr_why w = {why, sizeof why};
    struct ibv_gid_entry two[] = {entry(0, V2, 9, "fe80"), entry(1, V2, 9, "10.1.2.3"), entry(2, V2, 9, "10.1.2.4")};
    CHECK(rr_gid_choose(two, 3, "d", inet_addr("10.1.2.3"), w) == 1, "%s", why);
    CHECK(rr_gid_choose(two, 3, "d", inet_addr("10.1.2.4"), w) == 2, "%s", why);
    CHECK(rr_gid_choose(two, 3, "d", 0, w) == RR_GID_NONE && strstr(why, "10.1.2.3 on") && strstr(why, "10.1.2.4 on"),
          "%s", why);
    CHECK(rr_gid_choose(two, 3, "d", inet_addr("10.1.2.5"), w) == RR_GID_NONE &&
              strstr(why, "no RoCE v2 GID for 10.1.2.5") && strstr(why, "10.1.2.4 on"),
          "%s", why);
}

int main(void) {
    missing_devices_are_named();
    bad_settings_are_refused();
    retry_budget_fits_the_bound();
    work_request_ids_say_whose_they_are();
    gid_comes_from_the_table();
    the_planned_address_is_taken();
    return 0;
}
#endif
