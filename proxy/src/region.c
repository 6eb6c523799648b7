/* A region: one file in shared memory, mapped by its owner and, with the shm provider, by its peers.
 *
 * The owner holds a record lock on the file for as long as its process lives. The kernel drops that lock however the
 * process ends, so a peer can ask "is the owner gone?" without signals, process ids or namespaces. Files left by a
 * crash between create and start are found by the same question and removed.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PREFIX "roce-ring-"

static bool owner_gone(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* Young files may belong to a rank that has not taken its lock yet. */
static bool older_than_a_minute(const struct stat *st) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec - st->st_mtim.tv_sec > 60;
}

static void sweep_leftovers(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return;
    char self[32];
    snprintf(self, sizeof self, PREFIX "%d-", getpid());
    for (struct dirent *entry; (entry = readdir(d));) {
        /* Never open a file of our own process: closing it would drop our own lock (POSIX record locks work that way).
         */
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) || !strncmp(entry->d_name, self, strlen(self))) continue;
        int fd = openat(dirfd(d), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) continue;
        struct stat st;
        if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && older_than_a_minute(&st) && owner_gone(fd))
            unlinkat(dirfd(d), entry->d_name, 0);
        close(fd);
    }
    closedir(d);
}

int rr_region_create(rr_proxy *proxy, rr_why why) {
    const char *dir = proxy->config.shm_dir[0] ? proxy->config.shm_dir : "/dev/shm";
    sweep_leftovers(dir);
    int n = snprintf(proxy->region_name, sizeof proxy->region_name, "%s/" PREFIX "%d-%016llx-r%u", dir, getpid(),
                     (unsigned long long)proxy->config.session[0], proxy->config.rank);
    if (n < 0 || (size_t)n >= sizeof proxy->region_name)
        return rr_fail(why, "shared memory directory %s has too long a name", dir);
    int fd = open(proxy->region_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        int failed = errno;
        proxy->region_name[0] = 0;
        return rr_fail(why, "cannot create a region file in %s: %s", dir, strerror(failed));
    }
    proxy->region_fd = fd;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_SETLK, &lock) < 0) return rr_fail(why, "cannot lock %s: %s", proxy->region_name, strerror(errno));
    /* posix_fallocate takes the pages now: a full /dev/shm is an error here, not a bus error in the middle of an
     * operation. */
    int failed = posix_fallocate(fd, 0, (off_t)proxy->layout.region_bytes);
    if (failed)
        return rr_fail(
            why, "%s has no room for a region of %llu bytes: %s; free it, or give the container a larger /dev/shm", dir,
            (unsigned long long)proxy->layout.region_bytes, strerror(failed));
    void *base = mmap(NULL, proxy->layout.region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED) return rr_fail(why, "cannot map %s: %s", proxy->region_name, strerror(errno));
    proxy->base = base;
    rr_header *header = (rr_header *)base;
    *header = (rr_header){.magic = RR_MAGIC,
                          .wire_version = RR_WIRE_VERSION,
                          .world = proxy->config.world,
                          .rank = proxy->config.rank,
                          .phases = (uint32_t)proxy->layout.phases,
                          .layout_hash = proxy->layout_hash,
                          .session = {proxy->config.session[0], proxy->config.session[1]},
                          .slot_bytes = proxy->layout.slot_bytes,
                          .region_bytes = proxy->layout.region_bytes};
    return 0;
}

void rr_region_unlink(rr_proxy *proxy) {
    if (proxy->region_name[0]) unlink(proxy->region_name);
    proxy->region_name[0] = 0;
}

void rr_region_destroy(rr_proxy *proxy) {
    rr_region_unlink(proxy);
    if (proxy->base) munmap(proxy->base, proxy->layout.region_bytes);
    if (proxy->region_fd >= 0) close(proxy->region_fd);
    proxy->base = NULL;
    proxy->region_fd = -1;
}
