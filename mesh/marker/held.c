#define _GNU_SOURCE
#include "marker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every folder on the way, as /run is empty after a boot. */
static bool make_folders(const char *path) {
    char part[MARKER_FOLDER];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        if (mkdir(part, 0755) && errno != EEXIST) return false;
    }
    return !mkdir(part, 0755) || errno == EEXIST;
}

bool marker_hold(const marker_options *options, marker_held *out) {
    if (!make_folders(options->run_dir))
        return marker_fail("the folder %s cannot be made: %s; run as root, or give another one with --run-dir",
                           options->run_dir, strerror(errno));
    snprintf(out->path, sizeof out->path, "%s/%s.state", options->run_dir, options->device);
    out->fd = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (out->fd < 0)
        return marker_fail("%s cannot be opened: %s; run as root, or give another folder with --run-dir", out->path,
                           strerror(errno));
    /* Not flock(): this kind of lock can be looked at without taking it, and names its holder. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (!fcntl(out->fd, F_SETLK, &lock) && !ftruncate(out->fd, 0)) return true;
    int error = errno;
    bool asked = !fcntl(out->fd, F_GETLK, &lock) && lock.l_type != F_UNLCK;
    close(out->fd);
    if (asked)
        return marker_fail("%s already has a marker, process %d (its marks are in %s); stop that one first",
                           options->device, (int)lock.l_pid, out->path);
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
