/* Region files: a peer in another process can tell whether the owner lives, whatever the owner's own process does; what
 * a crash left behind is swept, and nothing else.
 */
#define _GNU_SOURCE
#include "shm_one_mapping.h"
#include "world.h"

#include <sys/wait.h>
#include <utime.h>

/* Asks as another process does, through a file description of its own process. */
static bool owner_seems_gone(int region) {
    pid_t child = fork(); /* record locks are not inherited: the child is a stranger */
    CHECK(child >= 0, "no child");
    if (!child) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(region, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child ended with %x", (unsigned)status);
    return WEXITSTATUS(status);
}

/* Ranks 0 and 1 share a process. Rank 1 leaves; to a rank elsewhere, rank 0 must not look dead. */
static void a_rank_that_closes_does_not_make_its_neighbour_look_dead(void) {
    static test_world w;
    if (quick()) return; /* qemu-user lacks the mremap that this takes */
    world_configure(&w, 2, 4096);
    world_open(&w, &rr_provider_shm);
    CHECK(!owner_seems_gone(w.proxy[0]->region_fd), "gone before anything happened");
    rr_proxy_stop(w.proxy[1], 1000);
    rr_proxy_destroy(w.proxy[1]);
    CHECK(!owner_seems_gone(w.proxy[0]->region_fd), "rank 0 lives, and looks dead to other processes");
    rr_proxy_stop(w.proxy[0], 1000);
    rr_proxy_destroy(w.proxy[0]);
}

static void tell(int pipe_end, const void *what, size_t bytes) {
    CHECK(write(pipe_end, what, bytes) == (ssize_t)bytes, "the other process is gone");
}
static void hear(int pipe_end, void *what, size_t bytes) {
    for (size_t have = 0; have < bytes;) {
        ssize_t n = read(pipe_end, (char *)what + have, bytes - have);
        CHECK(n > 0, "the other process is gone");
        have += (size_t)n;
    }
}

/* A child has its parent's memory and with it the parent's random token; it is another process all the same, and can
 * die. */
static void a_forked_child_is_another_process(void) {
    char why[256] = "", byte = 0;
    rr_hello hello[2];
    rr_config config[2] = {test_config(2, 0, 4096), test_config(2, 1, 4096)};
    int up[2], down[2];
    rr_proxy *proxy = rr_proxy_create(&config[0], why, sizeof why); /* the token exists from here on */
    CHECK(proxy && !pipe(up) && !pipe(down), "%s", why);
    rr_proxy_hello(proxy, &hello[0]);
    pid_t child = fork();
    CHECK(child >= 0, "no child");
    if (!child) {
        rr_proxy *other = rr_proxy_create(&config[1], why, sizeof why);
        CHECK(other, "%s", why);
        rr_proxy_hello(other, &hello[1]);
        tell(up[1], &hello[1], sizeof hello[1]);
        CHECK(!rr_proxy_connect(other, hello, why, sizeof why), "%s", why);
        tell(up[1], &byte, 1);
        hear(down[0], &byte, 1);
        _exit(0);
    }
    hear(up[0], &hello[1], sizeof hello[1]);
    CHECK(!rr_proxy_connect(proxy, hello, why, sizeof why), "%s", why);
    hear(up[0], &byte, 1);
    rr_loss how;
    CHECK(!proxy->provider.ops->lost(&proxy->provider, 1, &how), "a living child looks dead");
    tell(down[1], &byte, 1);
    waitpid(child, NULL, 0);
    CHECK(proxy->provider.ops->lost(&proxy->provider, 1, &how) == RR_ERR_PEER_DEAD, "a dead child looks alive");
    unlink(hello[1].region_name);
    rr_proxy_destroy(proxy);
}

static void put_file(const char *dir, const char *name, bool old, bool locked) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0, "cannot create %s", path);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (locked) CHECK(!fcntl(fd, F_SETLK, &lock), "cannot lock %s", path);
    if (old) CHECK(!utime(path, &(struct utimbuf){1, 1}), "cannot age %s", path);
    /* A locked file stays open: closing it would drop the lock. */
    if (!locked) close(fd);
}

static bool exists(const char *dir, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void only_what_a_crash_left_is_swept(void) {
    char dir[] = "/tmp/rr-region-XXXXXX", why[256] = "", command[100];
    CHECK(mkdtemp(dir), "no directory");
    int ends[2], go[2];
    CHECK(!pipe(ends) && !pipe(go), "no pipe");
    pid_t owner = fork();
    if (!owner) { /* another process: one region of its own, and then it sits there */
        char byte = 0;
        put_file(dir, "roce-ring-1-of-a-living-process", true, true);
        if (write(ends[1], &byte, 1) != 1) _exit(1);
        close(go[1]);
        if (read(go[0], &byte, 1) < 0) _exit(1);
        _exit(0);
    }
    char byte;
    CHECK(owner > 0 && read(ends[0], &byte, 1) == 1, "the other process did not start");
    put_file(dir, "roce-ring-2-left-by-a-crash", true, false);
    put_file(dir, "roce-ring-3-just-created", false, false);
    put_file(dir, "somebody-elses", true, false);
    rr_config c = test_config(2, 0, 4096);
    snprintf(c.shm_dir, sizeof c.shm_dir, "%s", dir);
    rr_proxy *proxy = rr_proxy_create(&c, why, sizeof why);
    CHECK(proxy, "%s", why);
    CHECK(!exists(dir, "roce-ring-2-left-by-a-crash"), "what a crash left is still there");
    CHECK(exists(dir, "roce-ring-1-of-a-living-process"), "a living session's region was removed");
    CHECK(exists(dir, "roce-ring-3-just-created"), "a region that is not locked yet was removed");
    CHECK(exists(dir, "somebody-elses"), "a file that is not ours was removed");
    rr_proxy_destroy(proxy);
    close(go[1]);
    waitpid(owner, NULL, 0);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(!system(command), "cannot clean up");
}

int main(void) {
    a_forked_child_is_another_process();
    a_rank_that_closes_does_not_make_its_neighbour_look_dead();
    only_what_a_crash_left_is_swept();
    return 0;
}
