/* conductor.c - runs a scenario of the accounting oracle and says in one line of JSON whether the hook's books were true.
 *
 *   conductor rounds  rounds of random operations; at the end of each every process is compared with the driver's truth
 *   conductor inject  the same, with one driver function failing at random calls
 *   conductor storm   processes are killed with SIGKILL at random moments and replaced; what they had must come back exactly once
 *   conductor step    kills at every instruction of one operation (step.c)
 * Options: see the table. Exit status 0 the books were true, 1 not (the line says seed, round and last operations), 2 the scenario could not run.
 * While anything runs, a second thread checks that truth <= ledger <= limit holds at every moment.
 * Next: books.c compares, crew.c starts workers, run.py chooses scenarios and builds everything. */
#include "conductor.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "objects.h"
#include "random.h"

#define MEASURE_SECONDS 30 /* the longest pause of the hook's measurement is 10 s */
#define REST_SECONDS 120 /* a process that does not come to rest in this time never will */
#define BLOCK_BYTES (UINT64_C(2) << 20)

struct conductor conductor = {.devices = 2, .processes = 1, .threads = 1, .rounds = 1, .operations = 100, .kills = 10, .kinds = 1, .stride = 101,
                              .symbol = "", .operation = "alloc", .seed = 1};
static pid_t pids[SEATS];
static pthread_t watcher;
static _Atomic bool is_watching, is_flapping;
static _Atomic uint64_t watched;
static char watcher_problem[sizeof ((struct books *)0)->problem];

double conductor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *watch(void *unused)
{
    (void)unused;
    static struct books books;
    if (books_open(&books, conductor.crew.machine, conductor.crew.slot, conductor.devices) < 0) {
        strcpy(watcher_problem, books.problem);
        return NULL;
    }
    memcpy(books.limit_bytes, conductor.books.limit_bytes, sizeof books.limit_bytes);
    while (atomic_load(&is_watching)) {
        if (books_check_order(&books) < 0 || (conductor.reserve && books_check_reserve(&books) < 0)) {
            strcpy(watcher_problem, books.problem);
            break;
        }
        atomic_fetch_add(&watched, 1);
        usleep(300 + (useconds_t)(atomic_load(&watched) % 7) * 100);
    }
    state_detach(&books.machine);
    return NULL;
}

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text >= 0x20)
            putchar(*text);
    putchar('"');
}

static uint64_t sum(size_t offset)
{
    uint64_t total = 0;
    for (uint32_t seat = 0; conductor.board && seat < SEATS; seat++)
        total += atomic_load((_Atomic uint64_t *)((char *)&conductor.board->seats[seat] + offset));
    return total;
}

static void print_last_operations(void)
{
    printf(", \"last\": [");
    for (uint32_t seat = 0, any = 0; seat < conductor.processes && seat < 4; seat++)
        for (uint32_t thread = 0; thread < conductor.threads && thread < 4; thread++) {
            char text[200];
            snprintf(text, sizeof text, "process %u thread %u: %s", seat, thread, conductor.board->seats[seat].last[thread]);
            printf("%s", any++ ? ", " : "");
            print_text(text);
        }
    printf("]");
}

void conductor_leave(int status, const char *problem)
{
    atomic_store(&is_watching, false);
    if (watcher)
        pthread_join(watcher, NULL);
    if (status == 0 && watcher_problem[0]) {
        status = 1;
        problem = watcher_problem;
    }
    for (uint32_t seat = 0; seat < SEATS; seat++)
        if (pids[seat] > 0) {
            kill(pids[seat], SIGKILL);
            waitpid(pids[seat], NULL, 0);
        }
    printf("{\"ok\": %s, \"seed\": %llu, \"operations\": %llu, \"refusals\": %llu, \"injected\": %llu, \"kills\": %llu, \"looks\": %llu, "
           "\"rounds\": %u, \"seconds\": %.2f",
           status ? "false" : "true", (unsigned long long)conductor.seed, (unsigned long long)sum(offsetof(struct seat, operations)),
           (unsigned long long)sum(offsetof(struct seat, refusals)), (unsigned long long)sum(offsetof(struct seat, injected)),
           (unsigned long long)conductor.killed, (unsigned long long)atomic_load(&watched), conductor.board ? atomic_load(&conductor.board->round) : 0,
           conductor_seconds() - conductor.began);
    if (conductor.board) {
        printf(", \"made\": {");
        for (int kind = 0, any = 0; kind < KINDS; kind++)
            if (conductor.kinds >> kind & 1)
                printf("%s\"%s\": %llu", any++ ? ", " : "", kind_names[kind],
                       (unsigned long long)sum(offsetof(struct seat, made) + sizeof(uint64_t) * (size_t)kind));
        printf("}");
    }
    if (status) {
        printf(", \"problem\": ");
        print_text(problem);
        if (conductor.board)
            print_last_operations();
    }
    printf("}\n");
    fflush(stdout);
    state_detach(&conductor.books.machine);
    exit(status);
}

static void check_failures(void)
{
    char text[400];
    if (watcher_problem[0])
        conductor_leave(1, watcher_problem);
    for (uint32_t seat = 0; seat < conductor.processes; seat++)
        if (atomic_load(&conductor.board->seats[seat].has_failed)) {
            snprintf(text, sizeof text, "process %u: %s", seat, conductor.board->seats[seat].failure);
            conductor_leave(1, text);
        }
}

static void check_alive(uint32_t seat)
{
    int status;
    char text[128];
    if (pids[seat] <= 0 || waitpid(pids[seat], &status, WNOHANG) != pids[seat])
        return;
    pids[seat] = 0;
    check_failures();
    snprintf(text, sizeof text, "process %u ended by itself: %s %d", seat, WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    conductor_leave(1, text);
}

static void wait_for_rest(uint32_t round)
{
    double deadline = conductor_seconds() + REST_SECONDS;
    char text[96];
    for (uint32_t seat = 0; seat < conductor.processes; seat++)
        for (uint32_t arrived; (arrived = atomic_load(&conductor.board->seats[seat].arrived)) != round;) {
            const struct timespec patience = {.tv_nsec = 50000000};
            syscall(SYS_futex, &conductor.board->seats[seat].arrived, FUTEX_WAIT, arrived, &patience, NULL, 0);
            check_failures();
            check_alive(seat);
            if (conductor_seconds() > deadline) {
                snprintf(text, sizeof text, "process %u did not come to rest in %d s", seat, REST_SECONDS);
                conductor_leave(1, text);
            }
        }
    check_failures();
}

static uint32_t start_round(uint32_t order, uint64_t operations)
{
    conductor.board->order = order;
    conductor.board->operations = operations;
    uint32_t round = atomic_fetch_add(&conductor.board->round, 1) + 1;
    syscall(SYS_futex, &conductor.board->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return round;
}

static void start_worker(uint32_t seat)
{
    atomic_store(&conductor.board->seats[seat].arrived, 0);
    pids[seat] = crew_start_seat(&conductor.crew, seat);
    if (pids[seat] < 0)
        conductor_leave(2, "cannot fork");
}

static void compare(void)
{
    int32_t numbers[SEATS];
    for (uint32_t seat = 0; seat < SEATS; seat++)
        numbers[seat] = pids[seat];
    if (!conductor.measured && books_check_equal(&conductor.books, conductor.board, numbers) < 0)
        conductor_leave(1, conductor.books.problem);
    double deadline = conductor_seconds() + MEASURE_SECONDS;
    while (conductor.measured && books_check_measured(&conductor.books, conductor.board, numbers) < 0) {
        check_failures();
        if (conductor_seconds() > deadline)
            conductor_leave(1, conductor.books.problem);
        usleep(5000);
    }
}

/* A process that has a context and nothing else: all of it is overhead, in the end. */
static uint64_t wait_for_overhead(void)
{
    double deadline = conductor_seconds() + MEASURE_SECONDS;
    for (;;) {
        uint64_t gone = books_gone_bytes(&conductor.books, 0), ledger = books_ledger_bytes(&conductor.books, 0);
        if (gone && gone == ledger)
            return gone;
        if (conductor_seconds() > deadline)
            conductor_leave(1, "the context of the only process is not what is charged");
        usleep(5000);
    }
}

void conductor_settle(void)
{
    struct partner partner;
    int result;
    uint64_t limit = books_limit_bytes(&conductor.books, 0);
    if (partner_start(&conductor.crew, "dialogue", &partner, &result) < 0)
        conductor_leave(1, "a process that starts after all others are gone cannot open its card");
    if (partner_ask(&partner, "alloc %llu\n", limit + BLOCK_BYTES) != CUDA_ERROR_OUT_OF_MEMORY)
        conductor_leave(1, "an allocation above the limit was not refused with OUT_OF_MEMORY");
    uint64_t overhead = conductor.measured ? wait_for_overhead() : 0;
    for (uint32_t device = 0; device < conductor.devices; device++)
        if (books_check_total(&conductor.books, device, 0, device ? 0 : overhead) < 0)
            conductor_leave(1, conductor.books.problem);
    if (partner_ask(&partner, "alloc %llu\n", limit - overhead) != CUDA_SUCCESS)
        conductor_leave(1, "all processes are gone, yet the whole limit cannot be allocated");
    if (books_check_total(&conductor.books, 0, limit - overhead, overhead) < 0)
        conductor_leave(1, conductor.books.problem);
    if (partner_ask(&partner, "alloc %llu\n", 1) != CUDA_ERROR_OUT_OF_MEMORY)
        conductor_leave(1, "one byte above the full limit was not refused with OUT_OF_MEMORY");
    if (partner_ask(&partner, "free\n", 0) != CUDA_SUCCESS || books_check_total(&conductor.books, 0, 0, overhead) < 0)
        conductor_leave(1, conductor.books.problem);
    partner_end(&partner);
}

static void drain_and_leave(void)
{
    wait_for_rest(start_round(ORDER_DRAIN, 0));
    compare();
    for (uint32_t device = 0; device < conductor.devices && !conductor.measured; device++)
        if (books_check_total(&conductor.books, device, 0, 0) < 0)
            conductor_leave(1, conductor.books.problem);
    start_round(ORDER_LEAVE, 0);
    for (uint32_t seat = 0; seat < conductor.processes; seat++) {
        waitpid(pids[seat], NULL, 0);
        pids[seat] = 0;
    }
}

static void *flap(void *unused)
{
    (void)unused;
    for (uint32_t turn = 1; atomic_load(&is_flapping); turn++) {
        if (books_set_limits(&conductor.books, turn % 2 ? 4 : 1) < 0)
            break;
        usleep(10000);
    }
    return NULL;
}

/* With --flap, all limits go down to a quarter and up again a hundred times a second while the work goes on. */
static void play_rounds(void)
{
    pthread_t flapper;
    for (uint32_t seat = 0; seat < conductor.processes; seat++)
        start_worker(seat);
    atomic_store(&is_flapping, conductor.flap != 0);
    if (conductor.flap && pthread_create(&flapper, NULL, flap, NULL) != 0)
        conductor_leave(2, "cannot start the thread that changes limits");
    for (uint32_t round = 0; round < conductor.rounds; round++) {
        wait_for_rest(start_round(ORDER_WORK, conductor.operations));
        compare();
    }
    atomic_store(&is_flapping, false);
    if (conductor.flap)
        pthread_join(flapper, NULL);
    if (books_set_limits(&conductor.books, 1) < 0)
        conductor_leave(2, conductor.books.problem);
    drain_and_leave();
    conductor_settle();
}

static void play_injections(void)
{
    uint64_t random = conductor.seed, fired = 0;
    for (uint32_t seat = 0; seat < conductor.processes; seat++)
        start_worker(seat);
    wait_for_rest(start_round(ORDER_WORK, 8));
    for (uint32_t round = 0; round < conductor.rounds; round++) {
        conductor.board->injected_error = 999; /* unknown: no result of a healthy call */
        for (int count = 0; count < 8; count++)
            books_inject(&conductor.books, conductor.symbol, random_below(&random, 40), 1 + random_below(&random, 2), 999);
        uint32_t number = start_round(ORDER_WORK, conductor.operations);
        /* coming to rest calls the driver too: by then nothing fails any more */
        for (uint32_t seat = 0; seat < conductor.processes; seat++)
            while (atomic_load(&conductor.board->seats[seat].worked) != number) {
                check_failures();
                check_alive(seat);
                usleep(200);
            }
        fired += books_disarm(&conductor.books);
        atomic_store(&conductor.board->calm, number);
        wait_for_rest(number);
        conductor.board->injected_error = 0;
        compare();
    }
    drain_and_leave();
    conductor_settle();
    if (!fired) {
        char text[128];
        snprintf(text, sizeof text, "%s was never called, so nothing was tested", conductor.symbol);
        conductor_leave(3, text);
    }
}

static void play_storm(void)
{
    uint64_t random = conductor.seed;
    start_round(ORDER_WORK, UINT64_MAX);
    for (uint32_t seat = 0; seat < conductor.processes; seat++)
        start_worker(seat);
    while (conductor.killed < conductor.kills) {
        uint32_t victims = random_below(&random, 16) == 0 ? conductor.processes : 1;
        usleep((useconds_t)random_below(&random, 6000));
        check_failures();
        for (uint32_t count = 0; count < victims; count++, conductor.killed++) {
            uint32_t seat = victims == 1 ? (uint32_t)random_below(&random, conductor.processes) : count;
            check_alive(seat);
            kill(pids[seat], SIGKILL);
            waitpid(pids[seat], NULL, 0);
            start_worker(seat);
        }
    }
    usleep(20000);
    check_failures();
    for (uint32_t seat = 0; seat < conductor.processes; seat++)
        kill(pids[seat], SIGKILL);
    for (uint32_t seat = 0; seat < conductor.processes; seat++, conductor.killed++) {
        waitpid(pids[seat], NULL, 0);
        pids[seat] = 0;
    }
    conductor_settle();
}

static void make_board(void)
{
    conductor.crew.board_fd = memfd_create("tenfold-oracle", 0);
    if (conductor.crew.board_fd < 0 || ftruncate(conductor.crew.board_fd, sizeof(struct board)) != 0)
        conductor_leave(2, "cannot make the board");
    conductor.board = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, conductor.crew.board_fd, 0);
    if (conductor.board == MAP_FAILED)
        conductor_leave(2, "cannot map the board");
    conductor.board->seed = conductor.seed;
    conductor.board->threads = conductor.threads;
    conductor.board->kinds = conductor.kinds;
    conductor.board->devices = conductor.devices;
}

static int read_options(int argc, char **argv)
{
    struct { const char *name; uint32_t *number; uint64_t *wide; const char **text; } table[] = {
        {"--machine", .text = &conductor.crew.machine}, {"--slot", .text = &conductor.crew.slot}, {"--preload", .text = &conductor.crew.preload},
        {"--driver", .text = &conductor.crew.driver}, {"--worker", .text = &conductor.crew.worker}, {"--symbol", .text = &conductor.symbol},
        {"--operation", .text = &conductor.operation}, {"--devices", .number = &conductor.devices}, {"--processes", .number = &conductor.processes},
        {"--threads", .number = &conductor.threads}, {"--rounds", .number = &conductor.rounds}, {"--kinds", .number = &conductor.kinds},
        {"--measured", .number = &conductor.measured}, {"--stride", .number = &conductor.stride}, {"--flap", .number = &conductor.flap},
        {"--reserve", .number = &conductor.reserve}, {"--resume", .number = &conductor.resume}, {"--seed", .wide = &conductor.seed},
        {"--operations", .wide = &conductor.operations},
        {"--kills", .wide = &conductor.kills}, {"--first", .wide = &conductor.first},
    };
    for (int index = 2; index + 1 < argc; index += 2) {
        size_t row = 0, rows = sizeof table / sizeof *table;
        while (row < rows && strcmp(table[row].name, argv[index]) != 0)
            row++;
        if (row == rows)
            return -1;
        if (table[row].text)
            *table[row].text = argv[index + 1];
        else if (table[row].wide)
            *table[row].wide = strtoull(argv[index + 1], NULL, 0);
        else
            *table[row].number = (uint32_t)strtoul(argv[index + 1], NULL, 0);
    }
    return argc % 2 == 0 && conductor.crew.machine && conductor.crew.slot && conductor.crew.preload && conductor.crew.driver && conductor.crew.worker
                   && conductor.processes <= SEATS && conductor.threads <= THREADS_MAX && conductor.devices <= DEVICES_MAX && conductor.stride
               ? 0 : -1;
}

int main(int argc, char **argv)
{
    void (*play)(void) = NULL;
    const struct { const char *name; void (*play)(void); } scenarios[] = {
        {"rounds", play_rounds}, {"inject", play_injections}, {"storm", play_storm}, {"step", step_play}};
    for (size_t index = 0; argc > 1 && index < sizeof scenarios / sizeof *scenarios; index++)
        if (strcmp(scenarios[index].name, argv[1]) == 0)
            play = scenarios[index].play;
    if (!play || read_options(argc, argv) < 0) {
        fprintf(stderr, "usage: conductor rounds|inject|storm|step --machine FILE --slot DIR --preload LIB --driver DIR --worker PROGRAM "
                        "[--option value ...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    conductor.began = conductor_seconds();
    if (books_open(&conductor.books, conductor.crew.machine, conductor.crew.slot, conductor.devices) < 0)
        conductor_leave(2, conductor.books.problem);
    make_board();
    atomic_store(&is_watching, true);
    if (play != step_play && pthread_create(&watcher, NULL, watch, NULL) != 0)
        conductor_leave(2, "cannot start the watcher");
    play();
    conductor_leave(0, "");
    return 0;
}
