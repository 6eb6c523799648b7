/* One RDMA device: found by name, checked, and the region registered with it. */
#include "verbs_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static void list_devices(const rr_verbs *verbs, struct ibv_device **list, int count, char *out, size_t bytes) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < count && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", verbs->get_device_name(list[i]));
}

static int open_by_name(const rr_verbs *verbs, verbs_hca *hca, rr_why why) {
    int count = 0;
    struct ibv_device **list = verbs->get_device_list(&count);
    if (!list || !count) {
        int failed = list ? 0 : errno;
        if (list) verbs->free_device_list(list);
        return rr_fail(
            why,
            "no RDMA device is present%s%s; load the drivers (modprobe mlx5_ib ib_uverbs), and give a container "
            "--device /dev/infiniband",
            failed ? ": " : "", failed ? strerror(failed) : "");
    }
    int result = 0;
    struct ibv_device *device = NULL;
    for (int i = 0; i < count; i++)
        if (!strcmp(verbs->get_device_name(list[i]), hca->name)) device = list[i];
    if (!device) {
        char present[512];
        list_devices(verbs, list, count, present, sizeof present);
        result =
            rr_fail(why, "RDMA device %s is not present; present are %s; make a plan from this machine's inventory",
                    hca->name, present);
    } else if (!(hca->context = verbs->open_device(device))) {
        result =
            rr_fail(why, "RDMA device %s cannot be opened: %s; /dev/infiniband/uverbs* must be readable and writable",
                    hca->name, strerror(errno));
    }
    verbs->free_device_list(list);
    return result;
}

static int check_port(const rr_verbs *verbs, verbs_hca *hca, rr_why why) {
    static const char *const states[] = {"in no state", "down",   "initialising",
                                         "armed",       "active", "active but deferred"};
    struct ibv_port_attr port;
    int failed = rr_query_port(verbs, hca->context, RR_PORT, &port);
    if (failed) return rr_fail(why, "port %d of %s cannot be queried: %s", RR_PORT, hca->name, strerror(failed));
    if (port.link_layer != IBV_LINK_LAYER_ETHERNET)
        return rr_fail(why, "%s is not an Ethernet device; RoCE needs one", hca->name);
    hca->inactive = port.state != IBV_PORT_ACTIVE;
    if (hca->inactive)
        return rr_fail(why,
                       "port %d of %s is %s; expected active: check the cable, or leave this device out of the plan",
                       RR_PORT, hca->name, (unsigned)port.state < 6 ? states[port.state] : "in an unknown state");
    if (port.active_mtu < IBV_MTU_2048)
        return rr_fail(why,
                       "%s has an RDMA MTU of %d bytes; expected 4096: set its network device to MTU 9000 (a reboot "
                       "may have put 1500 back)",
                       hca->name, 128 << port.active_mtu);
    hca->max_message = port.max_msg_sz;
    hca->mtu = port.active_mtu;
    return 0;
}

int rr_verbs_hca_open(const rr_verbs *verbs, verbs_hca *hca, rr_why why) {
    if (open_by_name(verbs, hca, why) < 0 || check_port(verbs, hca, why) < 0) return -1;
    if (rr_gid_resolve(verbs, hca->context, hca->name, hca->address, &hca->gid, why) < 0) return -1;
    int flags = fcntl(hca->context->async_fd, F_GETFL);
    if (flags < 0 || fcntl(hca->context->async_fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return rr_fail(why, "the event channel of %s cannot be made non-blocking: %s", hca->name, strerror(errno));
    if (!(hca->pd = verbs->alloc_pd(hca->context)))
        return rr_fail(why, "%s has no protection domain left: %s", hca->name, strerror(errno));
    return 0;
}

/* Pinning memory fails for the limit nearly always; say which limit, and where it is set. The kernel counts the bytes
 * once for every device that they are registered with. */
static int cannot_pin(const char *what, const verbs_hca *hca, uint64_t bytes, uint32_t devices, int failed,
                      rr_why why) {
    struct rlimit limit;
    if (failed == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < (devices + 1) * bytes)
        return rr_fail(why,
                       "this process may lock %llu KiB of memory and needs %llu KiB for the region with each of %u "
                       "devices; set LimitMEMLOCK=infinity in its systemd unit, or start its container with --ulimit "
                       "memlock=-1:-1",
                       (unsigned long long)limit.rlim_cur >> 10, (unsigned long long)bytes >> 10, devices);
    return rr_fail(why, "%s cannot %s: %s%s", hca->name, what, strerror(failed),
                   failed == ENOMEM ? "; the lock limit would allow it, so the kernel could not pin the pages: some "
                                      "kernels need the boot parameter kho=off"
                                    : "");
}

int rr_verbs_hca_register(const rr_verbs *verbs, verbs_hca *hca, void *base, uint64_t bytes, uint32_t cq_entries,
                          uint32_t devices, rr_why why) {
    /* Remote write only. No relaxed ordering: the flag behind a payload is worth nothing with it. */
    hca->mr = verbs->register_memory(hca->pd, base, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!hca->mr) return cannot_pin("register the region", hca, bytes, devices, errno, why);
    hca->cq = verbs->create_cq(hca->context, (int)cq_entries, NULL, NULL, 0);
    if (!hca->cq) return cannot_pin("make a completion queue", hca, bytes, devices, errno, why);
    return 0;
}

void rr_verbs_hca_close(const rr_verbs *verbs, verbs_hca *hca) {
    if (hca->cq) verbs->destroy_cq(hca->cq);
    if (hca->mr) verbs->dereg_mr(hca->mr);
    if (hca->pd) verbs->dealloc_pd(hca->pd);
    if (hca->context) verbs->close_device(hca->context);
}

void rr_verbs_hca_events(rr_provider *provider, verbs_hca *hca) {
    const rr_verbs *verbs = ((verbs_impl *)provider->impl)->verbs;
    struct ibv_async_event event;
    while (verbs->get_async_event(hca->context, &event) == 0) {
        uint32_t change = 0;
        switch (event.event_type) {
        case IBV_EVENT_PORT_ERR:
            hca->port_down = true;
            change = RR_PORT_DOWN;
            break;
        case IBV_EVENT_PORT_ACTIVE:
            hca->port_down = false;
            change = RR_PORT_UP;
            break;
        case IBV_EVENT_GID_CHANGE:
            change = RR_PORT_GIDS;
            break;
        case IBV_EVENT_DEVICE_FATAL:
        case IBV_EVENT_CQ_ERR:
            hca->lost = true;
            change = RR_PORT_LOST;
            break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
            rr_verbs_qp_fail(event.element.qp->qp_context, RR_ERR_QP_ERROR, 0);
            break;
        default:
            break;
        }
        verbs->ack_async_event(&event);
        if (change)
            rr_event_push(provider->proxy, (rr_event){.kind = RR_EVENT_PORT,
                                                      .reason = change,
                                                      .peer = provider->config->rank,
                                                      .root = provider->config->rank,
                                                      .path = hca->index});
    }
    uint32_t mask = __atomic_load_n(&provider->proxy->stats.ports_down, __ATOMIC_RELAXED), bit = 1u << hca->index;
    __atomic_store_n(&provider->proxy->stats.ports_down, hca->port_down || hca->lost ? mask | bit : mask & ~bit,
                     __ATOMIC_RELAXED);
}
