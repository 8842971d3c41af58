/* The limit: recvmmsg in a loop, and the bytes thrown away. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, SLOT_BYTES = 2048 };

static char slots[BATCH][SLOT_BYTES];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Read `packets` datagrams; result: [0] ns from the first to the last, [1] bytes. Returns 0, or an errno.
   `delivered` is told how many messages were read, `per_packet` in each. */
int bare_receive(int fd, int64_t packets, int64_t per_packet, volatile int64_t *delivered, double seconds_max,
                 int64_t *result) {
    struct mmsghdr headers[BATCH];
    struct iovec vectors[BATCH];
    memset(headers, 0, sizeof headers);
    for (int i = 0; i < BATCH; i++) {
        vectors[i].iov_base = slots[i];
        vectors[i].iov_len = SLOT_BYTES;
        headers[i].msg_hdr.msg_iov = &vectors[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    int64_t begun = now_ns(), first = 0, taken = 0, bytes = 0;
    int64_t told = *delivered;
    unsigned idle = 0;
    while (taken < packets) {
        int64_t before = taken == 0 ? now_ns() : 0;
        int count = recvmmsg(fd, headers, BATCH, MSG_DONTWAIT, NULL);
        if (count < 0) {
            if (errno != EAGAIN && errno != EINTR) return errno;
            if ((++idle & 1023) == 0 && now_ns() - begun > (int64_t)(seconds_max * 1e9)) return ETIMEDOUT;
            continue;
        }
        if (taken == 0) first = before;
        for (int i = 0; i < count; i++) bytes += headers[i].msg_len;
        taken += count;
        *delivered = told + taken * per_packet;
    }
    result[0] = now_ns() - first;
    result[1] = bytes;
    return 0;
}
