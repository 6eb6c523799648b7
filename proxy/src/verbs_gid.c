/* Which GID a path uses. Looked up at every open: the index differs from port to port and moves when a link flaps while
 * somebody holds the entry; peers only ever see the value. */
#include "verbs_impl.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#define TABLE 256 /* mlx5 has 256 entries per port, rxe 1024 of which a few are valid; only valid ones are returned */

static bool ipv4_mapped(const union ibv_gid *gid) {
    static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return !memcmp(gid->raw, prefix, sizeof prefix);
}

const char *rr_gid_text(const uint8_t gid[16], char out[RR_GID_TEXT]) {
    union ibv_gid g;
    memcpy(g.raw, gid, 16);
    if (ipv4_mapped(&g))
        inet_ntop(AF_INET, gid + 12, out, RR_GID_TEXT);
    else
        inet_ntop(AF_INET6, gid, out, RR_GID_TEXT);
    return out;
}

int rr_gid_choose(const struct ibv_gid_entry *entries, size_t count, const char *device, rr_why why) {
    /* The kernel keeps the first indices for the port's own network device; those of VLANs and the like on top of it
     * come later. */
    const struct ibv_gid_entry *first = NULL, *found = NULL, *other_type = NULL;
    for (size_t i = 0; i < count; i++)
        if (!first || entries[i].gid_index < first->gid_index) first = &entries[i];
    char text[RR_GID_TEXT], second[RR_GID_TEXT], name[32] = "its network device";
    if (first) if_indextoname(first->ndev_ifindex, name);
    for (size_t i = 0; i < count; i++) {
        const struct ibv_gid_entry *e = &entries[i];
        if (e->port_num != RR_PORT || !ipv4_mapped(&e->gid) || e->ndev_ifindex != first->ndev_ifindex) continue;
        if (e->gid_type != IBV_GID_TYPE_ROCE_V2) {
            other_type = e;
            continue;
        }
        if (found) {
            rr_fail(why,
                    "%s has two RoCE v2 IPv4 GIDs on %s: %s (index %u) and %s (index %u); a fabric port carries one "
                    "IPv4 address, "
                    "remove the other",
                    device, name, rr_gid_text(found->gid.raw, text), found->gid_index, rr_gid_text(e->gid.raw, second),
                    e->gid_index);
            return RR_GID_NONE;
        }
        found = e;
    }
    if (found) return (int)found->gid_index;
    if (other_type)
        rr_fail(why, "%s has its IPv4 GID %s only as RoCE v1 (index %u); enable RoCE v2 on the device", device,
                rr_gid_text(other_type->gid.raw, text), other_type->gid_index);
    else
        rr_fail(why,
                "%s has no RoCE v2 IPv4 GID: give %s its fabric address (ip addr add ...) and wait until the GID table "
                "shows it",
                device, name);
    return RR_GID_NONE;
}

static ssize_t read_table(const rr_verbs *verbs, struct ibv_context *context, const char *device,
                          struct ibv_gid_entry *entries, rr_why why) {
    ssize_t count = verbs->query_gid_table(context, entries, TABLE, 0, sizeof entries[0]);
    if (count < 0) rr_fail(why, "the GID table of %s cannot be read: %s", device, strerror((int)-count));
    return count;
}

int rr_gid_resolve(const rr_verbs *verbs, struct ibv_context *context, const char *device, union ibv_gid *gid,
                   rr_why why) {
    struct ibv_gid_entry entries[TABLE];
    ssize_t count = read_table(verbs, context, device, entries, why);
    if (count < 0) return RR_GID_NONE;
    int index = rr_gid_choose(entries, (size_t)count, device, why);
    for (ssize_t i = 0; i < count; i++)
        if ((int)entries[i].gid_index == index && entries[i].port_num == RR_PORT) *gid = entries[i].gid;
    return index;
}

int rr_gid_find(const rr_verbs *verbs, struct ibv_context *context, const char *device, const union ibv_gid *gid,
                rr_why why) {
    struct ibv_gid_entry entries[TABLE];
    char text[RR_GID_TEXT];
    ssize_t count = read_table(verbs, context, device, entries, why);
    if (count < 0) return RR_GID_NONE;
    for (ssize_t i = 0; i < count; i++)
        if (!memcmp(&entries[i].gid, gid, sizeof *gid) && entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 &&
            entries[i].port_num == RR_PORT)
            return (int)entries[i].gid_index;
    rr_fail(why,
            "the GID %s of %s vanished while the session was being set up: its address was removed or its link went "
            "down; set up again",
            rr_gid_text(gid->raw, text), device);
    return RR_GID_NONE;
}
