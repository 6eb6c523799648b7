/* The marker: holds rules on one mlx5 device that rewrite the EtherType of outgoing RDMA frames, for as long as it
 * lives. Why a ring without a switch needs that: docs/marker.md. */
#ifndef RR_MARKER_H
#define RR_MARKER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MARKER_PROGRAM "roce-ring-marker"
#define MARKER_RUN_DIR "/run/roce-ring/markers"
#define MARKER_MARKS 16 /* one per far node; a plan has at most 16 nodes */
#define MARKER_FOR_S 7200
#define MARKER_STOP_MS 10000 /* a marker takes milliseconds to remove its rules */
#define MARKER_NAME 64       /* IB_DEVICE_NAME_MAX of the kernel, with the ending zero */
#define MARKER_FOLDER 1024
#define MARKER_TEXT 80 /* the longest mark in words */

enum { MARKER_OK = 0, MARKER_FAILED = 1, MARKER_USAGE = 2 }; /* exit statuses */

/* Frames to `destination` or, where that is 0.0.0.0, with UDP source port `sport` leave with `ethertype`. */
typedef struct marker_mark {
    struct in_addr destination;
    uint16_t sport;
    uint16_t ethertype;
} marker_mark;

typedef struct marker_options {
    char device[MARKER_NAME];
    char run_dir[MARKER_FOLDER];
    marker_mark marks[MARKER_MARKS];
    uint32_t count;
    uint32_t for_s; /* 0: until told to stop */
    bool stop;      /* end the one that runs */
    bool check;     /* only say whether the device takes the marks */
    bool help;
} marker_options;

/* One sentence to standard error, after the program's name. Always false, to be returned. */
__attribute__((format(printf, 1, 2))) bool marker_fail(const char *format, ...);

/* options.c: false if anything is wrong, after a line about each thing that is. */
bool marker_parse(int argc, char **argv, marker_options *out);
bool marker_same_match(const marker_mark *a, const marker_mark *b);
void marker_words(const marker_mark *mark, char out[static MARKER_TEXT]);
extern const char marker_help[];

/* rules.c: the device and what is on it. install leaves nothing behind when it fails; remove and close go on to the end
 * whatever fails on the way. */
typedef struct marker_device marker_device;
marker_device *marker_open(const char *name);
int marker_events(const marker_device *device); /* readable when the device has news */
bool marker_alive(marker_device *device);       /* takes one piece of news; false if the device is gone */
bool marker_install(marker_device *device, const marker_mark *marks, uint32_t count);
bool marker_remove(marker_device *device);
void marker_close(marker_device *device);

/* held.c: one marker per device, and what others can read about it. The lock ends with the process. */
typedef struct marker_held {
    int fd;
    char path[MARKER_FOLDER + MARKER_NAME + 8];
} marker_held;
bool marker_hold(const marker_options *options, marker_held *out);
bool marker_publish(const marker_held *held, const marker_options *options);
void marker_release(const marker_held *held);
bool marker_stop(const marker_options *options); /* the one that runs on the device, and waits until it is gone */

#endif
