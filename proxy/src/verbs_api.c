#define _GNU_SOURCE
#include "verbs_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static rr_verbs loaded;
static int usable;
static char trouble[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(
            trouble, sizeof trouble,
            "the verbs provider needs libibverbs.so.1, which cannot be loaded (%s); install rdma-core (Debian, Ubuntu: "
            "libibverbs1 and ibverbs-providers)",
            dlerror());
        return;
    }
    const char *missing = NULL, *missing_version = NULL;
#define RESOLVE(field, symbol, version, result, arguments)                                                             \
    *(void **)&loaded.field = dlvsym(library, symbol, version);                                                        \
    if (!loaded.field) missing = symbol, missing_version = version;
    RR_VERBS_CALLS(RESOLVE)
#undef RESOLVE
    usable = !missing;
    if (missing)
        snprintf(trouble, sizeof trouble,
                 "libibverbs.so.1 has no %s of version %s; the verbs provider needs rdma-core 33 or newer (Debian 11, "
                 "Ubuntu 22.04)",
                 missing, missing_version);
}

const rr_verbs *rr_verbs_load(rr_why why) {
    pthread_once(&once, load);
    if (usable) return &loaded;
    rr_fail(why, "%s", trouble);
    return NULL;
}

int rr_query_port(const rr_verbs *verbs, struct ibv_context *context, uint8_t port, struct ibv_port_attr *out) {
    memset(out, 0, sizeof *out); /* the call fills only the part that existed when its symbol was versioned */
    return verbs->query_port(context, port, (struct _compat_ibv_port_attr *)out);
}
