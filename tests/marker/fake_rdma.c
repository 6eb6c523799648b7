/* A stand-in for libibverbs and libmlx5: keeps the objects of the calls that the marker makes, refuses what the kernel
 * refuses (a match that a rule still uses), and writes one line per call. It proves what the marker asks for and in
 * which order, not that hardware grants it.
 *
 *   RR_FAKE_RECORD    file that gets the lines
 *   RR_FAKE_DEVICES   "name=driver,..."
 *   RR_FAKE_FAIL      "call#n=errno,...": the nth such call fails
 *   RR_FAKE_RAISE     "call#n=signal,...": the nth such call first sends this process a signal
 *   RR_FAKE_GATE      a named pipe; mlx5dv_create_flow waits until somebody opens it for writing
 *   RR_FAKE_EVENTS    a named pipe; 'P' in it is a port event, 'F' a fatal one, 'E' an error while reading it */
#define _GNU_SOURCE
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEVICES 8

struct mlx5dv_flow_matcher {
    struct ibv_context *context;
    unsigned number, users;
};
typedef struct fake_action {
    struct ibv_flow_action action;
    unsigned number, users;
} fake_action;
typedef struct fake_flow {
    struct ibv_flow flow;
    unsigned number;
    struct mlx5dv_flow_matcher *matcher;
    fake_action *action;
} fake_flow;

static struct ibv_device devices[DEVICES];
static unsigned matchers, actions, flows, alive;

__attribute__((format(printf, 1, 2))) static void record(const char *format, ...) {
    const char *path = getenv("RR_FAKE_RECORD");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
}

/* The number that `variable` gives for this call of `call`, or 0. */
static int told(const char *variable, const char *call, unsigned nth) {
    char text[512], *rest = text, *item;
    snprintf(text, sizeof text, "%s", getenv(variable) ? getenv(variable) : "");
    while ((item = strsep(&rest, ","))) {
        char name[64];
        unsigned n;
        int number;
        if (sscanf(item, "%63[^#]#%u=%d", name, &n, &number) == 3 && !strcmp(name, call) && n == nth) return number;
    }
    return 0;
}

/* True if this call has to fail; errno says with what. */
static int fails(const char *call) {
    static struct {
        const char *call;
        unsigned count;
    } seen[32];
    unsigned i = 0;
    while (seen[i].call && strcmp(seen[i].call, call) != 0) i++;
    seen[i].call = call;
    unsigned nth = ++seen[i].count;
    int signal_number = told("RR_FAKE_RAISE", call, nth);
    if (signal_number) kill(getpid(), signal_number);
    int error = told("RR_FAKE_FAIL", call, nth);
    if (error) record("%s fails", call), errno = error;
    return error;
}

struct ibv_device **ibv_get_device_list(int *count) {
    if (fails("ibv_get_device_list")) return NULL;
    struct ibv_device **list = calloc(DEVICES + 1, sizeof *list);
    char text[512], *rest = text, *item;
    snprintf(text, sizeof text, "%s", getenv("RR_FAKE_DEVICES") ? getenv("RR_FAKE_DEVICES") : "");
    int n = 0;
    while (*text && n < DEVICES && (item = strsep(&rest, ","))) {
        sscanf(item, "%63[^=]=%63s", devices[n].name, devices[n].dev_name);
        list[n] = &devices[n];
        n++;
    }
    *count = n;
    return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
bool mlx5dv_is_supported(struct ibv_device *device) { return !strcmp(device->dev_name, "mlx5"); }

static int destroy_flow(struct ibv_flow *flow) {
    fake_flow *f = (fake_flow *)flow;
    record("destroy flow %u", f->number);
    int error = fails("ibv_destroy_flow");
    f->matcher->users--, f->action->users--, alive--;
    free(f);
    return error;
}
static int destroy_action(struct ibv_flow_action *action) {
    fake_action *a = (fake_action *)action;
    record("destroy action %u%s", a->number, a->users ? " in use" : "");
    if (a->users) return EBUSY;
    int error = fails("ibv_destroy_flow_action");
    alive--;
    free(a);
    return error;
}
int mlx5dv_destroy_flow_matcher(struct mlx5dv_flow_matcher *matcher) {
    record("destroy matcher %u%s", matcher->number, matcher->users ? " in use" : "");
    if (matcher->users) return EBUSY;
    int error = fails("mlx5dv_destroy_flow_matcher");
    alive--;
    free(matcher);
    return error;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    if (fails("ibv_open_device")) return NULL;
    struct verbs_context *verbs = calloc(1, sizeof *verbs);
    const char *events = getenv("RR_FAKE_EVENTS");
    verbs->sz = sizeof *verbs;
    verbs->ibv_destroy_flow = destroy_flow;
    verbs->destroy_flow_action = destroy_action;
    verbs->context.device = device;
    verbs->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    verbs->context.async_fd = events ? open(events, O_RDWR | O_CLOEXEC) : eventfd(0, EFD_CLOEXEC);
    record("open %s", device->name);
    return &verbs->context;
}
int ibv_close_device(struct ibv_context *context) {
    record(alive ? "close with %u objects left" : "close", alive);
    close(context->async_fd);
    free(verbs_get_ctx(context));
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    char kind;
    if (read(context->async_fd, &kind, 1) != 1 || kind == 'E') {
        errno = EIO;
        return -1;
    }
    event->event_type = kind == 'F' ? IBV_EVENT_DEVICE_FATAL : IBV_EVENT_PORT_ACTIVE;
    record("event %d", event->event_type);
    return 0;
}
void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

/* "28:ffff 60:0a0a020a": the bytes that are not zero, each run after its offset. */
static void spans(const struct mlx5dv_flow_match_parameters *p, char out[static 256]) {
    const uint8_t *bytes = (const uint8_t *)p->match_buf;
    size_t used = 0;
    *out = '\0';
    for (size_t i = 0; i < p->match_sz; i++) {
        if (!bytes[i]) continue;
        if (!i || !bytes[i - 1]) used += (size_t)sprintf(out + used, "%s%zu:", used ? " " : "", i);
        used += (size_t)sprintf(out + used, "%02x", bytes[i]);
    }
}

static const char *table(enum mlx5dv_flow_table_type type) {
    return type == MLX5DV_FLOW_TABLE_TYPE_RDMA_TX ? "RDMA-TX" : "another table";
}

struct mlx5dv_flow_matcher *mlx5dv_create_flow_matcher(struct ibv_context *context,
                                                       struct mlx5dv_flow_matcher_attr *attr) {
    if (fails("mlx5dv_create_flow_matcher")) return NULL;
    struct mlx5dv_flow_matcher *matcher = calloc(1, sizeof *matcher);
    *matcher = (struct mlx5dv_flow_matcher){.context = context, .number = ++matchers};
    alive++;
    char mask[256];
    spans(attr->match_mask, mask);
    int plain = attr->type == IBV_FLOW_ATTR_NORMAL && !attr->flags &&
                attr->comp_mask == MLX5DV_FLOW_MATCHER_MASK_FT_TYPE && attr->match_criteria_enable == 1;
    record("matcher %u: %s, priority %u, mask %s of %zu bytes%s", matcher->number, table(attr->ft_type), attr->priority,
           mask, attr->match_mask->match_sz, plain ? "" : ", odd attributes");
    return matcher;
}

struct ibv_flow_action *mlx5dv_create_flow_action_modify_header(struct ibv_context *context, size_t size,
                                                                uint64_t *words, enum mlx5dv_flow_table_type type) {
    if (fails("mlx5dv_create_flow_action_modify_header")) return NULL;
    fake_action *action = calloc(1, sizeof *action);
    action->action.context = context;
    action->number = ++actions;
    alive++;
    char text[64] = "";
    for (size_t i = 0; i < size && i < 16; i++) sprintf(text + 2 * i, "%02x", ((uint8_t *)words)[i]);
    record("action %u: %s, %s", action->number, table(type), text);
    return &action->action;
}

struct ibv_flow *mlx5dv_create_flow(struct mlx5dv_flow_matcher *matcher, struct mlx5dv_flow_match_parameters *value,
                                    size_t count, struct mlx5dv_flow_action_attr *attr) {
    const char *gate = getenv("RR_FAKE_GATE");
    if (gate) close(open(gate, O_RDONLY));
    if (fails("mlx5dv_create_flow")) return NULL;
    fake_flow *flow = calloc(1, sizeof *flow);
    *flow = (fake_flow){.number = ++flows, .matcher = matcher, .action = (fake_action *)attr->action};
    flow->flow.context = matcher->context;
    matcher->users++, flow->action->users++, alive++;
    char bytes[256];
    spans(value, bytes);
    record("flow %u: matcher %u, value %s of %zu bytes, %zu action of type %d: %u", flow->number, matcher->number,
           bytes, value->match_sz, count, attr->type, flow->action->number);
    return &flow->flow;
}
