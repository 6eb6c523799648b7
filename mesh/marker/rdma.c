#define _GNU_SOURCE
#include "rdma.h"
#include "marker.h"

#include <dlfcn.h>

static void *open_library(const char *name, const char *package) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        marker_fail("%s cannot be loaded (%s); install rdma-core (Debian, Ubuntu: %s)", name, dlerror(), package);
    return library;
}

const rdma_calls *rdma_load(void) {
    static rdma_calls calls;
    void *verbs = open_library("libibverbs.so.1", "libibverbs1");
    void *mlx5 = verbs ? open_library("libmlx5.so.1", "ibverbs-providers") : NULL;
    if (!mlx5) return NULL;
    const char *missing = NULL;
#define RESOLVE(field, library, symbol, version, result, arguments)                                                    \
    *(void **)&calls.field = dlvsym(library, symbol, version);                                                         \
    if (!calls.field && !missing) missing = symbol " of version " version;
    RDMA_CALLS(RESOLVE)
#undef RESOLVE
    if (!missing) return &calls;
    marker_fail("rdma-core here is too old: it has no %s; install rdma-core 22 or newer", missing);
    return NULL;
}
