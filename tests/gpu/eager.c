/* What the driver itself takes for each call of an eager operation, without Python around it: nanoseconds a call. */
#include <stdint.h>
#include <time.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                         void **);

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* `argument`: of a kernel with one parameter. */
double time_launches(launch_fn launch, void *kernel, unsigned blocks, void *stream, void *argument, int times) {
    void *parameters[] = {argument};
    double began = now_ns();
    for (int i = 0; i < times; i++) launch(kernel, blocks, 1, 1, 512, 1, 1, 0, stream, parameters, 0);
    return (now_ns() - began) / times;
}
double time_records(int (*record)(void *, void *), void *event, void *stream, int times) {
    double began = now_ns();
    for (int i = 0; i < times; i++) record(event, stream);
    return (now_ns() - began) / times;
}
double time_questions(int (*capturing)(void *, int *), int (*context)(void **), void *stream, int times) {
    int status;
    void *current;
    double began = now_ns();
    for (int i = 0; i < times; i++) capturing(stream, &status), context(&current);
    return (now_ns() - began) / times;
}
