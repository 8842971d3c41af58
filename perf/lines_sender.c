/* Sends MoldUDP64 packets as fast as the loopback interface takes them, and no faster than they are read.

   usage: lines_sender PORT POOL PACKETS FIRST_SEQ MESSAGES_PER_PACKET WINDOW_MESSAGES CORE CONTROL SECONDS_MAX

   POOL      ready packets, each behind its length (u32, host order); they are sent round and round, with the
             sequence number of each put in before it goes
   CONTROL   a shared file of int64: [0] messages that the receiver has (it writes), [1] set to stop us
   Never more than WINDOW_MESSAGES are on the way, so that the receiver's socket never has to drop one. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 32, SEQUENCE_AT = 10 };

static void *map_file(const char *path, int is_shared, size_t *size) {
    int fd = open(path, is_shared ? O_RDWR : O_RDONLY);
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) != 0) { perror(path); exit(2); }
    *size = (size_t)facts.st_size;
    /* The pool is ours to write to: numbers are put into its headers. */
    void *at = mmap(NULL, *size, PROT_READ | PROT_WRITE, is_shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) { perror(path); exit(2); }
    close(fd);
    return at;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc != 10) { fprintf(stderr, "lines_sender: nine arguments, see its source\n"); return 2; }
    int port = atoi(argv[1]);
    long packets = atol(argv[3]);
    int64_t sequence = atoll(argv[4]);
    int64_t per_packet = atoll(argv[5]), window = atoll(argv[6]);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(argv[7]), &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) { perror("sched_setaffinity"); return 2; }
    size_t pool_bytes, control_bytes;
    unsigned char *pool = map_file(argv[2], 0, &pool_bytes);
    volatile int64_t *control = map_file(argv[8], 1, &control_bytes);
    double deadline = now_s() + atof(argv[9]);

    size_t pool_count = 0;
    for (size_t at = 0; at + 4 <= pool_bytes; pool_count++) {
        uint32_t length;
        memcpy(&length, pool + at, 4);
        at += 4 + (size_t)length;
    }
    if (pool_count == 0) { fprintf(stderr, "lines_sender: the pool is empty\n"); return 2; }
    struct iovec *vectors = calloc(pool_count, sizeof *vectors);
    if (vectors == NULL) { perror("calloc"); return 2; }
    size_t at = 0;
    for (size_t i = 0; i < pool_count; i++) {
        uint32_t length;
        memcpy(&length, pool + at, 4);
        vectors[i].iov_base = pool + at + 4;
        vectors[i].iov_len = length;
        at += 4 + (size_t)length;
    }

    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) { perror("connect"); return 2; }

    int64_t sent_messages = 0;
    size_t next = 0;
    for (long sent = 0; sent < packets;) {
        struct mmsghdr headers[BATCH];
        int count = packets - sent < BATCH ? (int)(packets - sent) : BATCH;
        if ((size_t)count > pool_count) count = (int)pool_count;
        while (sent_messages + count * per_packet - control[0] > window) {
            if (control[1] != 0) return 3;
            if (now_s() > deadline) { fprintf(stderr, "lines_sender: out of time\n"); return 4; }
        }
        memset(headers, 0, sizeof headers);
        for (int i = 0; i < count; i++) {
            struct iovec *vector = &vectors[(next + (size_t)i) % pool_count];
            uint64_t number = htobe64((uint64_t)(sequence + i * per_packet));
            memcpy((unsigned char *)vector->iov_base + SEQUENCE_AT, &number, 8);
            headers[i].msg_hdr.msg_iov = vector;
            headers[i].msg_hdr.msg_iovlen = 1;
        }
        int done = sendmmsg(fd, headers, (unsigned)count, 0);
        if (done < 0) {
            if (errno == EINTR || errno == ENOBUFS || errno == EAGAIN) continue;
            perror("sendmmsg");
            return 5;
        }
        sent += done;
        next = (next + (size_t)done) % pool_count;
        sequence += done * per_packet;
        sent_messages += done * per_packet;
    }
    return 0;
}
