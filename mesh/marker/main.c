#define _GNU_SOURCE
#include "marker.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

bool marker_fail(const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c; c++) /* what a user typed may hold line ends or terminal codes */
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    fprintf(stderr, MARKER_PROGRAM ": %s\n", text);
    return false;
}

/* To the service manager, by systemd's protocol (sd_notify(3)): one datagram to the socket that $NOTIFY_SOCKET names,
 * @ at its start for an abstract one. Nothing without that variable. */
static void notify(const char *text) {
    const char *name = getenv("NOTIFY_SOCKET");
    if (!name || !*name) return;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length >= sizeof address.sun_path) {
        marker_fail("the service manager cannot be told: NOTIFY_SOCKET is too long");
        return;
    }
    memcpy(address.sun_path, name, length);
    if (*name == '@') address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    /* A manager that does not read must not keep us from ending: what it has no room for is left out. */
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    if ((fd < 0 || sendto(fd, text, strlen(text), flags, (struct sockaddr *)&address, size) < 0) && errno != EAGAIN)
        marker_fail("the service manager cannot be told (%s): %s", name, strerror(errno));
    if (fd >= 0) close(fd);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* How often the service manager wants a sign of life from us: half of what it allows (sd_watchdog_enabled(3)). */
static int64_t watchdog_ms(void) {
    const char *allowed = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    int64_t us = allowed ? strtoll(allowed, NULL, 10) : 0;
    if (us <= 0 || (pid && strtoll(pid, NULL, 10) != getpid())) return INT64_MAX;
    return us / 2000 + 1;
}

/* Until a signal, the end of the time allowed, or the loss of the device. Observers: the service manager sees the
 * signs of life, and a lost device as a failed process, which it starts again. */
static bool wait_for_the_end(marker_device *device, const marker_options *options, int signals) {
    int64_t every = watchdog_ms(), end = options->for_s ? now_ms() + options->for_s * 1000ll : INT64_MAX;
    struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = marker_events(device), .events = POLLIN}};
    for (;;) {
        int64_t left = end == INT64_MAX ? every : end - now_ms();
        if (left <= 0) return true;
        if (left > every) left = every;
        int ready = poll(fds, 2, left > INT_MAX ? -1 : (int)left);
        if (ready < 0 && errno != EINTR) return marker_fail("waiting failed: %s", strerror(errno));
        if (every != INT64_MAX) notify("WATCHDOG=1");
        if (ready <= 0) continue;
        if (fds[0].revents) return true;
        if (fds[1].revents && !marker_alive(device))
            return marker_fail(
                "%s is gone (driver reloaded, or a fatal device error), and its marks with it; start the "
                "marker again when it is back",
                options->device);
    }
}

static void say_ready(const marker_options *options) {
    char text[64 + MARKER_MARKS * (MARKER_TEXT + 2)];
    int used = snprintf(text, sizeof text, "READY=1\nSTATUS=");
    int from = used;
    for (uint32_t i = 0; i < options->count; i++) {
        char words[MARKER_TEXT];
        marker_words(&options->marks[i], words);
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s", i ? "; " : "", words);
    }
    printf("ready: %s: %s\n", options->device, text + from);
    fflush(stdout);
    notify(text);
}

static bool hold(marker_device *device, const marker_options *options, int signals) {
    marker_held held;
    if (!marker_hold(options, &held)) return false;
    bool fine = marker_install(device, options->marks, options->count);
    if (fine && options->check) {
        fine = marker_remove(device);
        if (fine) printf("%s takes %s\n", options->device, options->count > 1 ? "these marks" : "this mark");
    } else if (fine) {
        fine = marker_publish(&held, options);
        if (fine) {
            say_ready(options);
            fine = wait_for_the_end(device, options, signals);
            notify("STOPPING=1");
        }
        fine = marker_remove(device) && fine;
    }
    marker_release(&held);
    return fine;
}

int main(int argc, char **argv) {
    marker_options options;
    if (!marker_parse(argc, argv, &options)) return MARKER_USAGE;
    if (options.help) {
        fputs(marker_help, stdout);
        return MARKER_OK;
    }
    if (options.stop) return marker_stop(&options) ? MARKER_OK : MARKER_FAILED;
    /* A signal that comes while the marks are made is seen after that, and they are removed in order. Whoever read our
     * output may go: that is no reason to stop. */
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &stop, SFD_CLOEXEC);
    if (signals < 0) {
        marker_fail("signals cannot be watched: %s", strerror(errno));
        return MARKER_FAILED;
    }
    marker_device *device = marker_open(options.device);
    if (!device) return MARKER_FAILED;
    bool fine = hold(device, &options, signals);
    marker_close(device);
    return fine ? MARKER_OK : MARKER_FAILED;
}
