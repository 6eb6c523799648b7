/* The shm provider, but writing into a peer's region at the address where the peer's own threads see it.
 *
 * ThreadSanitizer knows memory by address. Ranks that share a process and map each other's region a second time would
 * hide both the races and the synchronisation between proxy and peer from it. Same source, one mapping: it sees
 * everything.
 */
#ifndef RR_SHM_ONE_MAPPING_H
#define RR_SHM_ONE_MAPPING_H

#define rr_provider_shm rr_provider_shm_copied
#include "provider_shm.c"
#undef rr_provider_shm
extern const rr_provider_ops rr_provider_shm;

static int one_mapping_connect(rr_provider *provider, const rr_hello *all, rr_why why) {
    if (shm_connect(provider, all, why) < 0) return -1;
    shm_impl *impl = provider->impl;
    for (uint32_t p = 0; p < provider->config->world; p++) {
        if (!impl->peer[p].base) continue;
        munmap(impl->peer[p].base, provider->layout->region_bytes);
        impl->peer[p].base = (uint8_t *)(uintptr_t)all[p].region_addr;
    }
    return 0;
}

static void one_mapping_close(rr_provider *provider) {
    shm_impl *impl = provider->impl;
    for (uint32_t p = 0; p < RR_MAX_WORLD; p++) impl->peer[p].base = NULL; /* the peer's to unmap */
    shm_close(provider);
}

static inline rr_provider_ops shm_one_mapping(void) {
    rr_provider_ops ops = rr_provider_shm_copied;
    ops.connect = one_mapping_connect;
    ops.close = one_mapping_close;
    return ops;
}

#endif
