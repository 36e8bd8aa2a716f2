/* musl_image.c - the programs of an image whose C library is not glibc, in one: a thread, a forked child that replaces itself, and a look for
 * our library among its own mappings.
 *
 * Argument: the path to itself. Prints "thread", "child" and "libtenfold absent" or "libtenfold present". */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *speak(void *word)
{
    puts(word);
    return NULL;
}

static int has_our_library(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "libtenfold") != NULL;
    if (maps)
        fclose(maps);
    return maps ? found : 1;
}

int main(int count, char **words)
{
    pthread_t thread;
    int status = 1;
    if (count == 1) {
        puts("child");
        return 0;
    }
    if (pthread_create(&thread, NULL, speak, "thread") || pthread_join(thread, NULL))
        return 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl(words[1], words[1], (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        return 1;
    puts(has_our_library() ? "libtenfold present" : "libtenfold absent");
    return 0;
}
