/* libibverbs, found at run time: a machine without RDMA runs this library too, with the other provider. */
#ifndef RR_VERBS_API_H
#define RR_VERBS_API_H

#include "provider.h"

#include <infiniband/verbs.h>

/* The calls we need, and no other. ibv_post_send, ibv_poll_cq and verbs' other inline functions go through the context
 * and need no symbol. Each: name, version of its symbol in libibverbs.so.1, return type, arguments.
 *
 * query_port is the old exported one, which fills a shorter struct than the header's: call it through rr_query_port().
 * query_gid_table asks the kernel, and reads sysfs by itself where the kernel is too old to be asked (rdma-core 33,
 * 2021). */
#define RR_VERBS_CALLS(X)                                                                                              \
    X(get_device_list, "ibv_get_device_list", "IBVERBS_1.1", struct ibv_device **, (int *))                            \
    X(free_device_list, "ibv_free_device_list", "IBVERBS_1.1", void, (struct ibv_device **))                           \
    X(get_device_name, "ibv_get_device_name", "IBVERBS_1.1", const char *, (struct ibv_device *))                      \
    X(open_device, "ibv_open_device", "IBVERBS_1.1", struct ibv_context *, (struct ibv_device *))                      \
    X(close_device, "ibv_close_device", "IBVERBS_1.1", int, (struct ibv_context *))                                    \
    X(query_port, "ibv_query_port", "IBVERBS_1.1", int,                                                                \
      (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *))                                                 \
    X(query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11", ssize_t,                                                \
      (struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t))                                        \
    X(alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1", struct ibv_pd *, (struct ibv_context *))                                \
    X(dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1", int, (struct ibv_pd *))                                             \
    X(register_memory, "ibv_reg_mr", "IBVERBS_1.1", struct ibv_mr *, (struct ibv_pd *, void *, size_t, int))           \
    X(dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1", int, (struct ibv_mr *))                                                 \
    X(create_cq, "ibv_create_cq", "IBVERBS_1.1", struct ibv_cq *,                                                      \
      (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                                             \
    X(destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1", int, (struct ibv_cq *))                                             \
    X(create_qp, "ibv_create_qp", "IBVERBS_1.1", struct ibv_qp *, (struct ibv_pd *, struct ibv_qp_init_attr *))        \
    X(modify_qp, "ibv_modify_qp", "IBVERBS_1.1", int, (struct ibv_qp *, struct ibv_qp_attr *, int))                    \
    X(destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1", int, (struct ibv_qp *))                                             \
    X(get_async_event, "ibv_get_async_event", "IBVERBS_1.1", int, (struct ibv_context *, struct ibv_async_event *))    \
    X(wc_status_str, "ibv_wc_status_str", "IBVERBS_1.1", const char *, (enum ibv_wc_status))                           \
    X(ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1", void, (struct ibv_async_event *))

typedef struct rr_verbs {
#define RR_VERBS_FIELD(field, symbol, version, result, arguments) result(*field) arguments;
    RR_VERBS_CALLS(RR_VERBS_FIELD)
#undef RR_VERBS_FIELD
} rr_verbs;

/* Loads libibverbs once per process and keeps it. NULL, with one sentence in `why`, if it is absent or too old. */
const rr_verbs *rr_verbs_load(rr_why why);

int rr_query_port(const rr_verbs *verbs, struct ibv_context *context, uint8_t port, struct ibv_port_attr *out);

#endif
