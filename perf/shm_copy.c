/* The limit of throughput: one core copies frames into a ring, others sum up their words; nothing else is done.
   Nobody checks, numbers or loses anything: the writer waits for the slowest reader.
   Usage: shm_copy FRAMES BATCH SLOTS READERS SECONDS_MAX CORE OTHER_CORE..., readers taking the other cores in
   turn; reads the frames from stdin; writes int64 ns, then the sum and the xor that each reader found. */
#include "shm_limit.h"

enum { FRAME_WORDS = 12, FRAME_BYTES = 8 * FRAME_WORDS, POOL_FRAMES = 4096, SEQ_WORD = 3, READERS_MAX = 64 };

struct reader {
    _Alignas(LINE_BYTES) _Atomic int64_t read;
    _Atomic int64_t is_ready;
    int64_t ended_ns, sum, exclusive;
};

struct ring {
    _Alignas(LINE_BYTES) _Atomic int64_t written;
    _Alignas(LINE_BYTES) struct reader readers[READERS_MAX];
    int64_t slots[];
};

struct job {
    struct ring *ring;
    int64_t frames, batch, slots;
    int index, is_sharing; /* readers that share a core let the others have it while there is nothing to read */
};

static int64_t pool[POOL_FRAMES][FRAME_WORDS];

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void read_all(void *argument) {
    struct job *job = argument;
    struct ring *ring = job->ring;
    struct reader *self = &ring->readers[job->index];
    uint64_t sum = 0, exclusive = 0;
    atomic_store_explicit(&self->is_ready, 1, memory_order_release);
    for (int64_t read = 0; read < job->frames;) {
        while (job->is_sharing && atomic_load_explicit(&ring->written, memory_order_relaxed) <= read) {
            if (now_ns() > deadline_ns) break; /* wait_for says so */
            sched_yield();
        }
        int64_t end = wait_for(&ring->written, read + 1);
        for (; read < end; read++) {
            const int64_t *frame = ring->slots + (read & (job->slots - 1)) * FRAME_WORDS;
            for (int word = 0; word < FRAME_WORDS; word++) {
                sum += (uint64_t)frame[word];
                exclusive ^= (uint64_t)frame[word];
            }
        }
        atomic_store_explicit(&self->read, read, memory_order_release);
    }
    self->ended_ns = now_ns();
    self->sum = (int64_t)sum;
    self->exclusive = (int64_t)exclusive;
}

int main(int count, char **words) {
    if (count < 8) return 2;
    struct job job = {NULL, atoll(words[1]), atoll(words[2]), atoll(words[3]), 0, 0};
    int readers = atoi(words[4]), other_cores = count - 7;
    if (readers < 1 || readers > READERS_MAX) return 2;
    deadline_ns = now_ns() + (int64_t)(atof(words[5]) * 1e9);
    if (fread(pool, sizeof pool, 1, stdin) != 1) fail("cannot read the frames");
    struct ring *ring = job.ring = shared_memory(sizeof(struct ring) + (size_t)job.slots * FRAME_BYTES);
    job.is_sharing = readers > other_cores;
    pid_t others[READERS_MAX];
    for (job.index = 0; job.index < readers; job.index++)
        others[job.index] = start_other(atoi(words[7 + job.index % other_cores]), read_all, &job);
    pin(atoi(words[6]));
    for (int i = 0; i < readers; i++) wait_for(&ring->readers[i].is_ready, 1);
    int64_t begun_ns = now_ns();
    int64_t read = 0; /* by all, as far as we know: looking takes the line from the reader */
    for (int64_t written = 0; written < job.frames;) {
        int64_t row = written & (POOL_FRAMES - 1), slot = written & (job.slots - 1);
        int64_t rows = least(least(job.batch, job.frames - written), least(POOL_FRAMES - row, job.slots - slot));
        if (read < written + rows - job.slots) {
            read = job.frames;
            for (int i = 0; i < readers; i++)
                read = least(read, wait_for(&ring->readers[i].read, written + rows - job.slots));
        }
        for (int64_t i = 0; i < rows; i++) pool[row + i][SEQ_WORD] = written + i + 1;
        memcpy(ring->slots + slot * FRAME_WORDS, pool[row], (size_t)rows * FRAME_BYTES);
        written += rows;
        atomic_store_explicit(&ring->written, written, memory_order_release);
    }
    int64_t ended_ns = 0;
    for (int i = 0; i < readers; i++) {
        join_other(others[i]);
        if (ring->readers[i].ended_ns > ended_ns) ended_ns = ring->readers[i].ended_ns;
    }
    int64_t spent_ns = ended_ns - begun_ns;
    write_all(&spent_ns, sizeof spent_ns);
    for (int i = 0; i < readers; i++) write_all(&ring->readers[i].sum, 2 * sizeof(int64_t));
    return 0;
}
