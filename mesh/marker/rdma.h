/* libibverbs and libmlx5, found at run time: the program can be built on any machine that has their headers, and says
 * what is missing where it runs. */
#ifndef RR_MARKER_RDMA_H
#define RR_MARKER_RDMA_H

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

/* Each: name here, library, symbol, its version there, return type, arguments. Flows and actions are destroyed by
 * inline functions of verbs.h, which go through the context. */
#define RDMA_CALLS(X)                                                                                                  \
    X(get_device_list, verbs, "ibv_get_device_list", "IBVERBS_1.1", struct ibv_device **, (int *))                     \
    X(free_device_list, verbs, "ibv_free_device_list", "IBVERBS_1.1", void, (struct ibv_device **))                    \
    X(get_device_name, verbs, "ibv_get_device_name", "IBVERBS_1.1", const char *, (struct ibv_device *))               \
    X(open_device, verbs, "ibv_open_device", "IBVERBS_1.1", struct ibv_context *, (struct ibv_device *))               \
    X(close_device, verbs, "ibv_close_device", "IBVERBS_1.1", int, (struct ibv_context *))                             \
    X(get_async_event, verbs, "ibv_get_async_event", "IBVERBS_1.1", int,                                               \
      (struct ibv_context *, struct ibv_async_event *))                                                                \
    X(ack_async_event, verbs, "ibv_ack_async_event", "IBVERBS_1.1", void, (struct ibv_async_event *))                  \
    X(is_mlx5, mlx5, "mlx5dv_is_supported", "MLX5_1.8", bool, (struct ibv_device *))                                   \
    X(create_matcher, mlx5, "mlx5dv_create_flow_matcher", "MLX5_1.6", struct mlx5dv_flow_matcher *,                    \
      (struct ibv_context *, struct mlx5dv_flow_matcher_attr *))                                                       \
    X(destroy_matcher, mlx5, "mlx5dv_destroy_flow_matcher", "MLX5_1.6", int, (struct mlx5dv_flow_matcher *))           \
    X(create_rewrite, mlx5, "mlx5dv_create_flow_action_modify_header", "MLX5_1.7", struct ibv_flow_action *,           \
      (struct ibv_context *, size_t, uint64_t *, enum mlx5dv_flow_table_type))                                         \
    X(create_flow, mlx5, "mlx5dv_create_flow", "MLX5_1.6", struct ibv_flow *,                                          \
      (struct mlx5dv_flow_matcher *, struct mlx5dv_flow_match_parameters *, size_t, struct mlx5dv_flow_action_attr *))

typedef struct rdma_calls {
#define RDMA_FIELD(field, library, symbol, version, result, arguments) result(*field) arguments;
    RDMA_CALLS(RDMA_FIELD)
#undef RDMA_FIELD
} rdma_calls;

/* Both libraries, or NULL after one sentence about the first that is absent or too old. They stay loaded. */
const rdma_calls *rdma_load(void);

#endif
