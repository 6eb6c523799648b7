#define _GNU_SOURCE
#include "marker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Every folder on the way, as /run is empty after a boot. The ranks and the agent keep their sockets in the first and
 * refuse one that is open to others. */
static bool make_folders(const char *path) {
    char part[MARKER_FOLDER];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        if (mkdir(part, 0750) && errno != EEXIST) return false;
    }
    return !mkdir(part, 0750) || errno == EEXIST;
}

static void file_of(const marker_options *options, marker_held *out) {
    snprintf(out->path, sizeof out->path, "%s/%s.state", options->run_dir, options->device);
}

/* The process that holds the lock; 0 if none does, -1 if it cannot be told (another PID name space). */
static pid_t holder(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_GETLK, &lock) || lock.l_type == F_UNLCK) return 0;
    return lock.l_pid > 0 ? lock.l_pid : -1;
}

bool marker_hold(const marker_options *options, marker_held *out) {
    if (!make_folders(options->run_dir))
        return marker_fail("the folder %s cannot be made: %s; run as root, or give another one with --run-dir",
                           options->run_dir, strerror(errno));
    file_of(options, out);
    out->fd = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (out->fd < 0)
        return marker_fail("%s cannot be opened: %s; run as root, or give another folder with --run-dir", out->path,
                           strerror(errno));
    /* Not flock(): this kind of lock can be looked at without taking it, and names its holder. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (!fcntl(out->fd, F_SETLK, &lock) && !ftruncate(out->fd, 0)) return true;
    int error = errno;
    pid_t other = holder(out->fd);
    close(out->fd);
    if (other) {
        char name[32] = "in another PID name space";
        if (other > 0) snprintf(name, sizeof name, "process %d", (int)other);
        return marker_fail("%s already has a marker, %s (its marks are in %s); stop that one first", options->device,
                           name, out->path);
    }
    return marker_fail("%s cannot be locked: %s", out->path, strerror(error));
}

/* What mesh/marker reads: names as in the plan, one line, one write. */
bool marker_publish(const marker_held *held, const marker_options *options) {
    char text[4096];
    int used = snprintf(text, sizeof text, "{\"schema\":\"roce-ring/marker/v1\",\"device\":\"%s\",\"marks\":[",
                        options->device);
    for (uint32_t i = 0; i < options->count; i++) {
        const marker_mark *mark = &options->marks[i];
        char destination[INET_ADDRSTRLEN + 2] = "null", sport[8] = "null";
        if (mark->destination.s_addr)
            snprintf(destination, sizeof destination, "\"%s\"", inet_ntoa(mark->destination));
        else
            snprintf(sport, sizeof sport, "%u", mark->sport);
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%s{\"destination\":%s,\"udp_source_port\":%s,\"ethertype\":%u}", i ? "," : "", destination,
                         sport, mark->ethertype);
    }
    used += snprintf(text + used, sizeof text - (size_t)used, "]}\n");
    ssize_t written = pwrite(held->fd, text, (size_t)used, 0);
    if (written == used) return true;
    return marker_fail("%s cannot be written: %s", held->path, written < 0 ? strerror(errno) : "no room");
}

void marker_release(const marker_held *held) {
    /* Emptied, not removed: the next marker may already wait at this very file. A failure leaves text that nobody
     * believes without the lock. */
    if (ftruncate(held->fd, 0)) marker_fail("%s cannot be emptied: %s", held->path, strerror(errno));
    close(held->fd);
}

static bool end_process(int fd, pid_t pid, const char *device) {
    /* By a handle, not by number: between the look and the signal the number may become another process's. */
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    bool sent = false, gone = process < 0 && errno == ESRCH;
    if (process >= 0 && holder(fd) == pid) sent = !syscall(SYS_pidfd_send_signal, process, SIGTERM, NULL, 0);
    int error = errno;
    struct pollfd end = {.fd = process, .events = POLLIN};
    if (sent) gone = poll(&end, 1, MARKER_STOP_MS) == 1;
    if (process >= 0) close(process);
    if (gone || !holder(fd)) return true;
    if (sent) return marker_fail("%s: process %d did not end within %d s", device, (int)pid, MARKER_STOP_MS / 1000);
    return marker_fail("%s: process %d cannot be stopped: %s", device, (int)pid, strerror(error));
}

bool marker_stop(const marker_options *options) {
    marker_held held;
    file_of(options, &held);
    held.fd = open(held.path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (held.fd < 0 && errno != ENOENT) return marker_fail("%s cannot be read: %s", held.path, strerror(errno));
    pid_t pid = held.fd < 0 ? 0 : holder(held.fd);
    bool fine = true;
    if (pid > 0)
        fine = end_process(held.fd, pid, options->device);
    else if (pid < 0)
        fine =
            marker_fail("%s: its marker is in another PID name space (a container?); stop it there", options->device);
    if (fine) printf("%s: %s\n", options->device, pid ? "marker stopped" : "no marker ran");
    if (held.fd >= 0) close(held.fd);
    return fine;
}
