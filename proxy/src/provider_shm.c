/* Provider "shm": peers' regions mapped from shared memory. A write is a copy by the progress thread, then a release
 * store of the flag: what a NIC does with an RDMA write and an inline flag behind it, minus the wire. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct shm_peer {
    uint8_t *base;
    int fd;
    bool same_process;
} shm_peer;

typedef struct shm_impl {
    shm_peer peer[RR_MAX_WORLD];
} shm_impl;

static uint64_t process_token;
static pthread_once_t process_token_once = PTHREAD_ONCE_INIT;
static void make_process_token(void) {
    if (getrandom(&process_token, sizeof process_token, 0) != (ssize_t)sizeof process_token)
        process_token = (uint64_t)getpid() ^ rr_now_ns();
}

static int shm_open_provider(rr_provider *provider, rr_hello *hello, rr_why why) {
    shm_impl *impl = calloc(1, sizeof *impl);
    if (!impl) return rr_fail(why, "out of memory");
    for (uint32_t p = 0; p < RR_MAX_WORLD; p++) impl->peer[p].fd = -1;
    provider->impl = impl;
    pthread_once(&process_token_once, make_process_token);
    hello->process_token = process_token;
    return 0;
}

static int map_file(rr_provider *provider, shm_peer *peer, const rr_hello *hello, rr_why why) {
    peer->fd = open(hello->region_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (peer->fd < 0)
        return rr_fail(
            why,
            "rank %u's region %s cannot be opened: %s; with the shm provider all ranks share one machine, one "
            "user and one /dev/shm (containers: the same IPC namespace)",
            hello->rank, hello->region_name, strerror(errno));
    struct stat st;
    if (fstat(peer->fd, &st) < 0 || (uint64_t)st.st_size != provider->layout->region_bytes)
        return rr_fail(why, "rank %u's region %s has not the %llu bytes that the layout says", hello->rank,
                       hello->region_name, (unsigned long long)provider->layout->region_bytes);
    void *base =
        mmap(NULL, provider->layout->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, peer->fd, 0);
    if (base == MAP_FAILED) return rr_fail(why, "cannot map rank %u's region: %s", hello->rank, strerror(errno));
    peer->base = base;
    return 0;
}

/* A second mapping of pages that this process has already: an old size of 0 asks mremap for that. Not through the file,
 * because closing it again would drop the owner's record lock, which belongs to the process: then the owner looks dead
 * to ranks in other processes. False where mremap cannot (qemu-user). */
static bool map_again(rr_provider *provider, shm_peer *peer, const rr_hello *hello) {
    void *base = mremap((void *)(uintptr_t)hello->region_addr, 0, provider->layout->region_bytes, MREMAP_MAYMOVE);
    if (base != MAP_FAILED) peer->base = base;
    return base != MAP_FAILED;
}

static int map_peer(rr_provider *provider, shm_peer *peer, const rr_hello *hello, rr_why why) {
    /* A forked child has its parent's token, and a container its own pid 1. */
    peer->same_process = hello->process_token == process_token && hello->pid == (uint32_t)getpid();
    bool mapped = peer->same_process && map_again(provider, peer, hello);
    if (!mapped && map_file(provider, peer, hello, why) < 0) return -1;
    const rr_header *header = (const rr_header *)peer->base;
    if (header->magic != RR_MAGIC || header->rank != hello->rank || header->session[0] != hello->session[0] ||
        header->session[1] != hello->session[1])
        return rr_fail(why, "%s is not rank %u's region of this session", hello->region_name, hello->rank);
    return 0;
}

static int shm_connect(rr_provider *provider, const rr_hello *all, rr_why why) {
    shm_impl *impl = provider->impl;
    for (uint32_t p = 0; p < provider->config->world; p++)
        if (p != provider->config->rank && map_peer(provider, &impl->peer[p], &all[p], why) < 0) return -1;
    return 0;
}

static enum rr_write_result shm_write(rr_provider *provider, const rr_write *write) {
    shm_impl *impl = provider->impl;
    uint8_t *peer = impl->peer[write->peer].base;
    memcpy(peer + write->dst, provider->base + write->src, write->bytes);
    if (!write->flag) return RR_WRITE_DONE;
    rr_store_seq_cst((uint64_t *)(peer + write->flag), write->value);
    uint32_t *sleeping = &((rr_kernel_line *)(peer + provider->layout->kernel))->sleeping;
    if ((rr_load_sleeping(sleeping) & 1u << provider->config->rank) && rr_take_sleeping(sleeping))
        syscall(SYS_futex, sleeping, FUTEX_WAKE, INT32_MAX, NULL, NULL,
                0); /* only then: a busy reader costs no system call */
    return RR_WRITE_DONE;
}

static uint32_t shm_poll(rr_provider *provider, rr_completion *out, uint32_t room) {
    (void)provider, (void)out, (void)room;
    return 0;
}

static void shm_notify(rr_provider *provider, uint32_t peer, const rr_notice *notice) {
    shm_impl *impl = provider->impl;
    rr_notice *at = (rr_notice *)(impl->peer[peer].base + provider->layout->notices) + provider->config->rank;
    rr_store_release(&at->waiting, notice->waiting);
    rr_store_release(&at->beat, notice->beat);
    rr_store_release(&at->stop, notice->stop);
}

static int shm_lost(rr_provider *provider, uint32_t peer, rr_loss *how) {
    (void)how;
    const shm_peer *p = &((shm_impl *)provider->impl)->peer[peer];
    if (p->same_process) return 0; /* record locks never conflict within a process */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(p->fd, F_GETLK, &lock) < 0) return 0;
    return lock.l_type == F_UNLCK ? RR_ERR_PEER_DEAD : 0;
}

static void *shm_mapped(rr_provider *provider, uint32_t peer) { return ((shm_impl *)provider->impl)->peer[peer].base; }

static void shm_close(rr_provider *provider) {
    shm_impl *impl = provider->impl;
    if (!impl) return;
    for (uint32_t p = 0; p < RR_MAX_WORLD; p++) {
        if (impl->peer[p].base) munmap(impl->peer[p].base, provider->layout->region_bytes);
        if (impl->peer[p].fd >= 0) close(impl->peer[p].fd);
    }
    free(impl);
    provider->impl = NULL;
}

const rr_provider_ops rr_provider_shm = {
    .name = "shm",
    .id = RR_PROVIDER_SHM,
    .open = shm_open_provider,
    .connect = shm_connect,
    .write = shm_write,
    .poll = shm_poll,
    .notify = shm_notify,
    .lost = shm_lost,
    .close = shm_close,
    .mapped = shm_mapped,
};
