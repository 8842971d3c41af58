/* What the limits in C share: the clock of the compiled kernels, cores, bounded waiting, two processes. */
#ifndef SHM_LIMIT_H
#define SHM_LIMIT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef USE_COUNTER
#include <x86intrin.h>
#endif

enum { LINE_BYTES = 128, SPINS_CHECK = 1 << 20 }; /* two cache lines: cores fetch them in pairs */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t ticks(void) {
#ifdef USE_COUNTER
    return (int64_t)__rdtsc();
#else
    return now_ns();
#endif
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* Ask that other work stays out of the way, as pairs.py does: who may not, measures without. */
static void take_priority(void) {
    (void)setsid();
    if (setpriority(PRIO_PROCESS, 0, -20) != 0) return;
    FILE *group = fopen("/proc/self/autogroup", "w");
    if (group != NULL) {
        (void)fputs("-20", group);
        (void)fclose(group);
    }
}

/* Keep to one core, and other work off it. */
static void pin(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) fail("cannot use the core");
    take_priority();
}

/* Memory that both processes see, all of it taken now. */
static void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) fail("cannot share memory");
    return memory;
}

static int64_t deadline_ns; /* after it, nobody waits any more */

/* Spin until the word is at least `value`; return the word. */
static inline int64_t wait_for(_Atomic int64_t *word, int64_t value) {
    int64_t found;
    for (unsigned spins = 1; (found = atomic_load_explicit(word, memory_order_acquire)) < value; spins++) {
        if (spins % SPINS_CHECK == 0 && now_ns() > deadline_ns) {
            fprintf(stderr, "the other process did not answer in time\n");
            exit(1);
        }
    }
    return found;
}

/* Start the second process on its core; it runs `work` and ends, at the latest when we do. */
static pid_t start_other(int core, void (*work)(void *), void *argument) {
    pid_t other = fork();
    if (other < 0) fail("cannot fork");
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(core);
        work(argument);
        _exit(0);
    }
    return other;
}

static void join_other(pid_t other) {
    int status = 0;
    if (waitpid(other, &status, 0) != other) fail("cannot wait for the other process");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the other process ended with status %d\n", status);
        exit(1);
    }
}

static void write_all(const void *content, size_t bytes) {
    if (fwrite(content, 1, bytes, stdout) != bytes || fflush(stdout) != 0) fail("cannot write the figures");
}

#endif
