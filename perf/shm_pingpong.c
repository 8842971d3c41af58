/* The limit of latency: one word to the other core and one back, each on a cache line of its own, nothing else.
   Usage: shm_pingpong ROUNDS SECONDS_MAX CORE OTHER_CORE; writes the ticks of every round trip, as int64. */
#include "shm_limit.h"

enum { WARM_UP_ROUNDS = 20000 };

struct lines {
    _Alignas(LINE_BYTES) _Atomic int64_t ping;
    _Alignas(LINE_BYTES) _Atomic int64_t pong;
};

struct game {
    struct lines *lines;
    int64_t rounds;
};

static void answer(void *argument) {
    struct game *game = argument;
    for (int64_t round = 1; round <= game->rounds; round++) {
        wait_for(&game->lines->ping, round);
        atomic_store_explicit(&game->lines->pong, round, memory_order_release);
    }
}

int main(int count, char **words) {
    if (count != 5) return 2;
    int64_t measured = atoll(words[1]);
    deadline_ns = now_ns() + (int64_t)(atof(words[2]) * 1e9);
    int64_t *spent = calloc((size_t)measured, sizeof *spent);
    if (spent == NULL) fail("no memory for the figures");
    memset(spent, 1, (size_t)measured * sizeof *spent); /* page faults now, not in a round */
    struct game game = {shared_memory(sizeof(struct lines)), measured + WARM_UP_ROUNDS};
    pid_t other = start_other(atoi(words[4]), answer, &game);
    pin(atoi(words[3]));
    int64_t before = ticks();
    for (int64_t round = 1; round <= game.rounds; round++) {
        atomic_store_explicit(&game.lines->ping, round, memory_order_release);
        wait_for(&game.lines->pong, round);
        int64_t after = ticks();
        if (round > WARM_UP_ROUNDS) spent[round - WARM_UP_ROUNDS - 1] = after - before;
        before = after;
    }
    join_other(other);
    write_all(spent, (size_t)measured * sizeof *spent);
    return 0;
}
