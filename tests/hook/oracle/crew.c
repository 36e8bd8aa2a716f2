/* crew.c - processes under the hook (contract: crew.h). */
#include "crew.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MS 5000

static void become(const struct crew *crew, char *const arguments[])
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody outlives the conductor */
    setenv("LD_PRELOAD", crew->preload, 1);
    setenv("LD_LIBRARY_PATH", crew->driver, 1);
    setenv("TENFOLD_SIM_STATE", crew->machine, 1);
    setenv("TENFOLD_SLOT_DIR", crew->slot, 1);
    execv(crew->worker, arguments);
    _exit(127);
}

pid_t crew_start_seat(const struct crew *crew, uint32_t seat)
{
    char fd_text[16], seat_text[16];
    snprintf(fd_text, sizeof fd_text, "%d", crew->board_fd);
    snprintf(seat_text, sizeof seat_text, "%u", seat);
    pid_t pid = fork();
    if (pid == 0)
        become(crew, (char *[]){(char *)crew->worker, fd_text, seat_text, NULL});
    return pid;
}

int partner_start(const struct crew *crew, const char *manner, struct partner *ret_partner, int *ret_result)
{
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        become(crew, (char *[]){(char *)crew->worker, (char *)manner, NULL});
    }
    close(to[0]);
    close(from[1]);
    *ret_partner = (struct partner){.pid = pid, .to = to[1], .from = from[0]};
    *ret_result = partner_answer(ret_partner, NULL);
    if (*ret_result == 0)
        return 0;
    partner_kill(ret_partner);
    return -1;
}

void partner_send(const struct partner *partner, const char *line)
{
    for (size_t sent = 0, chars = strlen(line); sent < chars;) {
        ssize_t length = write(partner->to, line + sent, chars - sent);
        if (length <= 0)
            return;
        sent += (size_t)length;
    }
}

int partner_answer(const struct partner *partner, unsigned long long ret_numbers[2])
{
    char line[128];
    size_t chars = 0;
    int result = -1;
    unsigned long long numbers[2] = {0, 0};
    while (chars < sizeof line - 1 && (chars == 0 || line[chars - 1] != '\n')) {
        struct pollfd wait = {.fd = partner->from, .events = POLLIN};
        if (poll(&wait, 1, ANSWER_MS) != 1 || read(partner->from, line + chars, 1) != 1)
            return -1;
        chars++;
    }
    line[chars] = '\0';
    if (sscanf(line, "%d %llu %llu", &result, &numbers[0], &numbers[1]) < 1)
        return -1;
    if (ret_numbers)
        memcpy(ret_numbers, numbers, sizeof numbers);
    return result;
}

int partner_ask(const struct partner *partner, const char *format, unsigned long long value)
{
    char line[64];
    snprintf(line, sizeof line, format, value);
    partner_send(partner, line);
    return partner_answer(partner, NULL);
}

static void forget(struct partner *partner)
{
    close(partner->to);
    close(partner->from);
    waitpid(partner->pid, NULL, 0);
    partner->pid = 0;
}

void partner_kill(struct partner *partner)
{
    if (partner->pid > 0) {
        kill(partner->pid, SIGKILL);
        forget(partner);
    }
}

void partner_end(struct partner *partner)
{
    if (partner->pid > 0)
        forget(partner);
}
