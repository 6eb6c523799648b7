#define _GNU_SOURCE
#include "marker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char marker_help[] =
    "usage: " MARKER_PROGRAM " --device NAME --mark MATCH,ethertype=TYPE [--mark ...]\n"
    "       " MARKER_PROGRAM " --device NAME --stop\n"
    "\n"
    "Rewrites the EtherType of RDMA frames that leave by one mlx5 device, until it gets SIGTERM or SIGINT.\n"
    "\n"
    "  --device NAME   RDMA device, e.g. rocep1s0f0\n"
    "  --mark dst=ADDRESS,ethertype=TYPE   frames to this IPv4 address\n"
    "  --mark sport=PORT,ethertype=TYPE    frames with this UDP source port (65535: flow label 16383) and no dst mark\n"
    "  --check         only say whether the device takes the marks; they are in place for a moment\n"
    "  --stop          end the marker that holds this device, and wait until its marks are gone\n"
    "  --for SECONDS   stop by itself after so long, at most 7200\n"
    "  --run-dir DIR   where the state file is kept (default " MARKER_RUN_DIR ")\n"
    "\n"
    "Exit status: 0 told to stop, --check found no obstacle, or --stop left none; 1 the device, a rule or the state "
    "file\n"
    "failed; 2 wrong arguments.\n";

enum {
    SPORT_FIRST = 0xC000,    /* RoCE v2 source ports are 0xC000 | the low 14 bits of the flow label */
    ETHERTYPE_FIRST = 0x600, /* smaller numbers are lengths (IEEE 802.3) */
    ETHERTYPE_IPV4 = 0x800,
};

/* A whole unsigned number in decimal or 0x notation, and nothing else. */
static bool number(const char *text, uint32_t low, uint32_t high, uint32_t *out) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    *out = (uint32_t)value;
    return !errno && !*end && value >= low && value <= high;
}

static bool device(const char *text, char out[static MARKER_NAME]) {
    const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t length = strlen(text);
    if (!length || length >= MARKER_NAME || strspn(text, letters) != length || *text == '.' || *text == '-')
        return marker_fail("--device '%s' cannot be an RDMA device's name; 'rdma link' lists the names", text);
    memcpy(out, text, length + 1);
    return true;
}

static bool folder(const char *text, char out[static MARKER_FOLDER]) {
    size_t length = strlen(text);
    while (length > 1 && text[length - 1] == '/') length--;
    if (*text != '/' || length >= MARKER_FOLDER)
        return marker_fail("--run-dir '%s': give a whole path that begins with / and is shorter than %d characters",
                           text, MARKER_FOLDER);
    memcpy(out, text, length);
    out[length] = '\0';
    return true;
}

static bool field(const char *whole, const char *name, const char *value, marker_mark *mark, bool seen[static 3]) {
    static const char *const names[] = {"dst", "sport", "ethertype"};
    uint32_t parsed = 0, which = 0;
    while (which < 3 && strcmp(name, names[which]) != 0) which++;
    if (which == 3)
        return marker_fail("--mark '%s': unknown key '%s'; the keys are dst, sport and ethertype", whole, name);
    if (seen[which]) return marker_fail("--mark '%s': %s is given twice", whole, name);
    seen[which] = true;
    if (which == 0) {
        if (inet_pton(AF_INET, value, &mark->destination) != 1)
            return marker_fail("--mark '%s': dst '%s' is not an IPv4 address", whole, value);
        uint32_t first = ntohl(mark->destination.s_addr) >> 24;
        return (first && first != 127 && first < 224) ||
               marker_fail("--mark '%s': dst %s is no port's address (0.x, 127.x and 224.x up)", whole, value);
    }
    if (which == 1) {
        if (!number(value, SPORT_FIRST, UINT16_MAX, &parsed))
            return marker_fail("--mark '%s': sport '%s' is not a RoCE v2 source port, 49152 to 65535", whole, value);
        mark->sport = (uint16_t)parsed;
        return true;
    }
    if (!number(value, ETHERTYPE_FIRST, UINT16_MAX, &parsed) || parsed == ETHERTYPE_IPV4)
        return marker_fail("--mark '%s': ethertype '%s' is not from 0x0600 to 0xffff, or is IPv4's own 0x0800", whole,
                           value);
    mark->ethertype = (uint16_t)parsed;
    return true;
}

static bool mark(const char *whole, marker_options *out) {
    char text[128];
    if (snprintf(text, sizeof text, "%s", whole) >= (int)sizeof text)
        return marker_fail("--mark '%.40s...' is too long", whole);
    marker_mark parsed = {0};
    bool seen[3] = {false}, fine = true;
    for (char *rest = text, *part; (part = strsep(&rest, ","));) {
        char *value = strchr(part, '=');
        if (value) *value++ = '\0';
        fine = (value ? field(whole, part, value, &parsed, seen)
                      : marker_fail("--mark '%s': '%s' is not KEY=VALUE", whole, part)) &&
               fine;
    }
    if (!fine) return false; /* what is missing may be what is misspelt */
    if (seen[0] == seen[1] || !seen[2])
        return marker_fail("--mark '%s': give one of dst=ADDRESS and sport=PORT, and ethertype=TYPE", whole);
    for (uint32_t i = 0; i < out->count; i++)
        if (marker_same_match(&out->marks[i], &parsed))
            return marker_fail("--mark '%s': another --mark matches the same frames; leave one of them out", whole);
    if (out->count == MARKER_MARKS) return marker_fail("--mark '%s': more than %d marks", whole, MARKER_MARKS);
    out->marks[out->count++] = parsed;
    return true;
}

bool marker_same_match(const marker_mark *a, const marker_mark *b) {
    return a->destination.s_addr == b->destination.s_addr && a->sport == b->sport;
}

void marker_words(const marker_mark *m, char out[static MARKER_TEXT]) {
    if (m->destination.s_addr)
        snprintf(out, MARKER_TEXT, "destination %s -> EtherType 0x%04x", inet_ntoa(m->destination), m->ethertype);
    else
        snprintf(out, MARKER_TEXT, "UDP source port %u -> EtherType 0x%04x", m->sport, m->ethertype);
}

bool marker_parse(int argc, char **argv, marker_options *out) {
    static const struct option known[] = {
        {"device", required_argument, NULL, 'd'},  {"mark", required_argument, NULL, 'm'},
        {"run-dir", required_argument, NULL, 'r'}, {"for", required_argument, NULL, 'f'},
        {"check", no_argument, NULL, 'c'},         {"stop", no_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},          {0},
    };
    *out = (marker_options){.run_dir = MARKER_RUN_DIR};
    bool fine = true, marked = false, named = false;
    opterr = 0;
    for (int letter; (letter = getopt_long(argc, argv, ":", known, NULL)) != -1;) {
        switch (letter) {
        case 'd':
            fine = (named ? marker_fail("--device is given twice; run one marker per device")
                          : device(optarg, out->device)) &&
                   fine;
            named = true;
            break;
        case 'm':
            fine = mark(optarg, out) && fine;
            marked = true;
            break;
        case 'r':
            fine = folder(optarg, out->run_dir) && fine;
            break;
        case 'f':
            if (!number(optarg, 1, MARKER_FOR_S, &out->for_s))
                fine = marker_fail("--for '%s' is not a number of seconds from 1 to %d", optarg, MARKER_FOR_S);
            break;
        case 'c':
            out->check = true;
            break;
        case 's':
            out->stop = true;
            break;
        case 'h':
            out->help = true;
            return true;
        default:
            fine = marker_fail("%s %s; " MARKER_PROGRAM " --help lists the options", argv[optind - 1],
                               letter == ':' ? "needs a value after it" : "is not an option, or takes no value");
        }
    }
    for (; optind < argc; optind++) fine = marker_fail("'%s' belongs to no option", argv[optind]);
    if (!named) fine = marker_fail("--device NAME is missing");
    if (out->stop && (marked || out->check || out->for_s))
        fine = marker_fail("--stop goes with --device and --run-dir alone");
    if (!marked && !out->stop) fine = marker_fail("--mark is missing: nothing to do");
    if (out->check && out->for_s) fine = marker_fail("--check ends at once: leave out --for");
    return fine;
}
