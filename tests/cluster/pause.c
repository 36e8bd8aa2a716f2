/* pause.c - the process that holds a pod's namespaces open: sleeps, reaps orphans, leaves on SIGTERM. Used by the test fleet alone. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal_number)
{
    (void)signal_number;
    _exit(0);
}

static void reap(int signal_number)
{
    (void)signal_number;
    while (waitpid(-1, 0, WNOHANG) > 0)
        ;
}

int main(void)
{
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    signal(SIGCHLD, reap);
    for (;;)
        pause();
}
