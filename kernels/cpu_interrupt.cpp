// Ctrl-C in a long wait. The process's own SIGINT handler still runs, exactly once; we only notice that it did, give up
// the wait, and let the caller see its interrupt.
#include "cpu.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct sigaction previous;
// Written by the main thread and by the handler, looked at by every thread that waits.
static uint32_t seen, installed;
static uint32_t is(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static void set(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static void on_interrupt(int number, siginfo_t *info, void *context) {
    set(&seen, 1);
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(number, info, context);
    else
        previous.sa_handler(number);
}

extern "C" void rr_interrupt_begin(void) {
    if (is(&installed) || syscall(SYS_gettid) != getpid() || sigaction(SIGINT, nullptr, &previous)) return;
    bool handled =
        (previous.sa_flags & SA_SIGINFO) || (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN);
    if (!handled) return; // default: the process ends without our help
    struct sigaction ours = previous;
    ours.sa_sigaction = on_interrupt;
    ours.sa_flags |= SA_SIGINFO;
    set(&seen, 0);
    set(&installed, sigaction(SIGINT, &ours, nullptr) == 0);
}

extern "C" int rr_interrupt_seen(void) { return is(&installed) && is(&seen); }

extern "C" void rr_interrupt_end(void) {
    if (!is(&installed) || syscall(SYS_gettid) != getpid()) return;
    sigaction(SIGINT, &previous, nullptr);
    set(&installed, 0);
}
