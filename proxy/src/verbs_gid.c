/* Which GID a path uses. Looked up at every open: the index differs from port to port and moves when a link flaps while
 * somebody holds the entry; peers only ever see the value. */
#include "verbs_impl.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static uint32_t ipv4_of(const union ibv_gid *gid) {
    uint32_t address;
    memcpy(&address, gid->raw + 12, sizeof address);
    return address;
}

/* The RoCE v2 IPv4 GIDs of a device in words, for a message. */
static const char *list_gids(const struct ibv_gid_entry *entries, size_t count, char *out, size_t bytes) {
    size_t at = 0;
    char text[RR_GID_TEXT], netdev[IF_NAMESIZE];
    snprintf(out, bytes, "none");
    for (size_t i = 0; i < count && at < bytes; i++) {
        const struct ibv_gid_entry *e = &entries[i];
        if (!ipv4_mapped(&e->gid) || e->gid_type != IBV_GID_TYPE_ROCE_V2) continue;
        at += (size_t)snprintf(out + at, bytes - at, "%s%s on %s (index %u)", at ? ", " : "",
                               rr_gid_text(e->gid.raw, text),
                               if_indextoname(e->ndev_ifindex, netdev) ? netdev : "no network device", e->gid_index);
    }
    return out;
}

int rr_gid_choose(const struct ibv_gid_entry *entries, size_t count, const char *device, uint32_t address, rr_why why) {
    /* The kernel keeps the first indices for the port's own network device; those of VLANs and the like on top of it
     * come later. */
    const struct ibv_gid_entry *first = NULL, *found = NULL, *other_type = NULL, *other_netdev = NULL;
    for (size_t i = 0; i < count; i++)
        if (!first || entries[i].gid_index < first->gid_index) first = &entries[i];
    char text[RR_GID_TEXT] = "its fabric address", other[IF_NAMESIZE], present[512];
    char name[IF_NAMESIZE + 16] = "its network device";
    if (first) if_indextoname(first->ndev_ifindex, name);
    if (address) inet_ntop(AF_INET, &address, text, sizeof text);
    uint32_t usable = 0;
    for (size_t i = 0; i < count; i++) {
        const struct ibv_gid_entry *e = &entries[i];
        if (e->port_num != RR_PORT || !ipv4_mapped(&e->gid)) continue;
        if (address && ipv4_of(&e->gid) != address) continue;
        if (e->ndev_ifindex != first->ndev_ifindex)
            other_netdev = e;
        else if (e->gid_type != IBV_GID_TYPE_ROCE_V2)
            other_type = e;
        else
            found = e, usable++;
    }
    list_gids(entries, count, present, sizeof present);
    if (usable == 1) return (int)found->gid_index;
    if (usable)
        rr_fail(why,
                "%s has several RoCE v2 IPv4 GIDs and nothing says which is the fabric's: %s; name the address in the "
                "plan, or remove the others",
                device, present);
    else if (other_type)
        rr_fail(why, "%s has its IPv4 GID %s only as RoCE v1 (index %u); enable RoCE v2 on the device", device,
                rr_gid_text(other_type->gid.raw, text), other_type->gid_index);
    else if (other_netdev && address)
        rr_fail(why,
                "the GID for %s of %s (index %u) belongs to network device %s; expected %s: move the address there",
                text, device, other_netdev->gid_index,
                if_indextoname(other_netdev->ndev_ifindex, other) ? other : "none", name);
    else
        rr_fail(why,
                "%s has no RoCE v2 GID for %s (present: %s); give %s that address (ip addr add ...) and wait until the "
                "GID table shows it",
                device, text, present, name);
    return RR_GID_NONE;
}

static ssize_t read_table(const rr_verbs *verbs, struct ibv_context *context, const char *device,
                          struct ibv_gid_entry *entries, rr_why why) {
    ssize_t count = verbs->query_gid_table(context, entries, TABLE, 0, sizeof entries[0]);
    if (count < 0) rr_fail(why, "the GID table of %s cannot be read: %s", device, strerror((int)-count));
    return count;
}

/* After a flap the link-local GIDs are back at once and the IPv4 ones some milliseconds to seconds later. */
int rr_gid_resolve(const rr_verbs *verbs, struct ibv_context *context, const char *device, uint32_t address,
                   union ibv_gid *gid, rr_why why) {
    struct ibv_gid_entry entries[TABLE];
    for (uint64_t until = rr_now_ns() + RR_GID_WAIT_MS * 1000000ull;; usleep(20000)) {
        ssize_t count = read_table(verbs, context, device, entries, why);
        if (count < 0) return RR_GID_NONE;
        int index = rr_gid_choose(entries, (size_t)count, device, address, why);
        for (ssize_t i = 0; i < count; i++)
            if ((int)entries[i].gid_index == index && entries[i].port_num == RR_PORT) *gid = entries[i].gid;
        if (index != RR_GID_NONE || rr_now_ns() >= until) return index;
    }
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
