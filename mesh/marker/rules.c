#include "marker.h"
#include "rdma.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Where the fields of a frame lie in the device's match parameters (the Linux kernel's mlx5_ifc.h: fte_match_param,
 * whose first part is the outer headers, fte_match_set_lyr_2_4), in bytes. */
enum {
    MATCH_BYTES = 0x180, /* what rdma-core's own flow tests pass */
    MATCH_ETHERTYPE = 6,
    MATCH_UDP_SPORT = 28,
    MATCH_DST_IPV4 = 60, /* the last four of the 16 bytes that an IPv6 address would take */
    MATCH_OUTER = 1,     /* match_criteria_enable: outer headers */
};
/* A header rewrite (set_action_in of the same file): 4 bits kind, 12 bits field, 3 + 5 bits offset, 3 + 5 bits length
 * in bits, then 32 bits of data, all big-endian. */
enum { REWRITE_SET = 1, REWRITE_ETHERTYPE = 3, ETHERTYPE_BITS = 16, ETHERTYPE_IPV4 = 0x0800 };
/* A destination says more than a source port: where both match, the frame gets the destination's mark. */
enum { PRIORITY_DESTINATION = 0, PRIORITY_SPORT = 1 };

typedef union match {
    struct mlx5dv_flow_match_parameters parameters;
    uint8_t bytes[sizeof(struct mlx5dv_flow_match_parameters) + MATCH_BYTES];
} match;
static_assert(offsetof(struct mlx5dv_flow_match_parameters, match_buf) == sizeof(size_t), "the fields follow the size");
static_assert(sizeof(match) % sizeof(uint64_t) == 0, "the driver reads whole words");

typedef struct rule {
    struct mlx5dv_flow_matcher *matcher;
    struct ibv_flow_action *rewrite;
    struct ibv_flow *flow;
} rule;

struct marker_device {
    const rdma_calls *rdma;
    struct ibv_context *context;
    const char *name;
    rule rules[MARKER_MARKS];
    uint32_t count;
};

static const char *permission(int error) {
    return error == EPERM || error == EACCES ? "; run it as root, or with the capability CAP_NET_RAW" : "";
}

marker_device *marker_open(const char *name) {
    const rdma_calls *rdma = rdma_load();
    if (!rdma) return NULL;
    int count = 0;
    struct ibv_device **list = rdma->get_device_list(&count);
    if (!list && errno == ENOSYS) {
        marker_fail("there is no RDMA device %s here: this kernel has no RDMA at all (modprobe mlx5_ib)", name);
        return NULL;
    }
    if (!list) {
        marker_fail("the RDMA devices cannot be listed: %s%s", strerror(errno), permission(errno));
        return NULL;
    }
    struct ibv_context *context = NULL;
    struct ibv_device *found = NULL;
    char others[512] = "";
    for (int i = 0; i < count; i++) {
        const char *other = rdma->get_device_name(list[i]);
        size_t used = strlen(others);
        if (!strcmp(other, name))
            found = list[i];
        else if (used + strlen(other) + 3 < sizeof others)
            strcat(strcat(others, used ? ", " : ""), other);
    }
    if (!found)
        marker_fail("there is no RDMA device %s here; the devices are: %s", name, *others ? others : "none at all");
    else if (!rdma->is_mlx5(found))
        marker_fail("%s is not a ConnectX device (its driver is not mlx5), so it cannot rewrite what RDMA sends; on a "
                    "soft ring the node agent's tc rule does that",
                    name);
    else if (!(context = rdma->open_device(found)))
        marker_fail("%s cannot be opened: %s%s", name, strerror(errno), permission(errno));
    rdma->free_device_list(list);
    marker_device *device = context ? calloc(1, sizeof *device) : NULL;
    if (device)
        *device = (marker_device){.rdma = rdma, .context = context, .name = name};
    else if (context)
        rdma->close_device(context);
    return device;
}

int marker_events(const marker_device *device) { return device->context->async_fd; }

bool marker_alive(marker_device *device) {
    struct ibv_async_event event;
    if (device->rdma->get_async_event(device->context, &event)) return errno == EINTR || errno == EAGAIN;
    device->rdma->ack_async_event(&event);
    return event.event_type != IBV_EVENT_DEVICE_FATAL; /* also how the kernel says that the driver is unloaded */
}

static void fill(match *mask, match *value, size_t offset, const void *bytes, size_t size) {
    memset((uint8_t *)mask->parameters.match_buf + offset, 0xff, size);
    memcpy((uint8_t *)value->parameters.match_buf + offset, bytes, size);
}

static const char *why(int error) {
    switch (error) {
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
        return "; this device, its firmware or this kernel cannot rewrite headers in the RDMA-TX flow table: check "
               "that "
               "the device is a ConnectX-7 in flow steering mode hmfs (devlink dev param show) with legacy eswitch";
    case EINVAL:
        return "; this kernel or firmware does not know such a rule for the RDMA-TX flow table: update it";
    case EEXIST:
    case EBUSY:
        return "; another program holds a rule for the same frames on this device: stop it";
    case ENOMEM:
    case ENOSPC:
        return "; the device has no room for another rule";
    default:
        return permission(error);
    }
}

static bool add(marker_device *device, const marker_mark *mark, rule *out) {
    const rdma_calls *rdma = device->rdma;
    match mask = {.parameters.match_sz = MATCH_BYTES}, value = {.parameters.match_sz = MATCH_BYTES};
    bool by_destination = mark->destination.s_addr != 0;
    if (by_destination) {
        uint16_t ipv4 = htons(ETHERTYPE_IPV4); /* without it, the address would also match a part of an IPv6 one */
        fill(&mask, &value, MATCH_ETHERTYPE, &ipv4, sizeof ipv4);
        fill(&mask, &value, MATCH_DST_IPV4, &mark->destination, sizeof mark->destination);
    } else {
        uint16_t sport = htons(mark->sport);
        fill(&mask, &value, MATCH_UDP_SPORT, &sport, sizeof sport);
    }
    struct mlx5dv_flow_matcher_attr matcher = {
        .type = IBV_FLOW_ATTR_NORMAL,
        .priority = by_destination ? PRIORITY_DESTINATION : PRIORITY_SPORT,
        .match_criteria_enable = MATCH_OUTER,
        .match_mask = &mask.parameters,
        .comp_mask = MLX5DV_FLOW_MATCHER_MASK_FT_TYPE,
        .ft_type = MLX5DV_FLOW_TABLE_TYPE_RDMA_TX,
    };
    uint32_t words[2] = {htonl((uint32_t)REWRITE_SET << 28 | REWRITE_ETHERTYPE << 16 | ETHERTYPE_BITS),
                         htonl(mark->ethertype)};
    uint64_t rewrite;
    static_assert(sizeof rewrite == sizeof words, "one rewrite is 8 bytes");
    memcpy(&rewrite, words, sizeof rewrite);

    const char *part = "match";
    if ((out->matcher = rdma->create_matcher(device->context, &matcher))) {
        part = "rewrite";
        out->rewrite = rdma->create_rewrite(device->context, sizeof rewrite, &rewrite, MLX5DV_FLOW_TABLE_TYPE_RDMA_TX);
    }
    if (out->rewrite) {
        part = "rule";
        struct mlx5dv_flow_action_attr action = {.type = MLX5DV_FLOW_ACTION_IBV_FLOW_ACTION, .action = out->rewrite};
        out->flow = rdma->create_flow(out->matcher, &value.parameters, 1, &action);
    }
    if (out->flow) return true;
    int error = errno;
    char words_of[MARKER_TEXT];
    marker_words(mark, words_of);
    return marker_fail("%s refused the %s of '%s': %s%s", device->name, part, words_of, strerror(error), why(error));
}

bool marker_install(marker_device *device, const marker_mark *marks, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        device->count = i + 1; /* a rule that was made in part is removed too */
        if (!add(device, &marks[i], &device->rules[i])) {
            marker_remove(device);
            return false;
        }
    }
    return true;
}

static bool gone(const marker_device *device, const char *what, int error) {
    return error ? marker_fail("%s did not let go of a %s: %s; it goes with this process", device->name, what,
                               strerror(error))
                 : true;
}

/* mlx5dv and verbs disagree: some return the error, some -1 and set errno. */
static int error_of(int result) { return result == -1 ? errno : result; }

bool marker_remove(marker_device *device) {
    bool clean = true;
    for (; device->count; device->count--) {
        rule *r = &device->rules[device->count - 1];
        if (r->flow) clean = gone(device, "rule", error_of(ibv_destroy_flow(r->flow))) && clean;
        if (r->rewrite) clean = gone(device, "rewrite", error_of(ibv_destroy_flow_action(r->rewrite))) && clean;
        if (r->matcher) clean = gone(device, "match", error_of(device->rdma->destroy_matcher(r->matcher))) && clean;
        *r = (rule){0};
    }
    return clean;
}

void marker_close(marker_device *device) {
    device->rdma->close_device(device->context);
    free(device);
}
