/* process.c - identity (pid, start time, pid namespace) and death.
 *
 * Owns: parsing of /proc/<pid>/stat and maps. A pid alone is re-used; with its start time it never is.
 * Next: slots.c keeps identities in the region. */
#include "slice/process.h"

#include "base/decimal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Atomic uint32_t tf_epoch = 1;

struct stat_line {
    char state;
    uint64_t threads;
    uint64_t start_ticks;
};

static bool read_text(const char *path, char *buffer, size_t bytes)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    ssize_t length = read(descriptor, buffer, bytes - 1);
    close(descriptor);
    if (length <= 0)
        return false;
    buffer[length] = '\0';
    return true;
}

/* Fields 3, 20 and 22 of proc(5); the name in field 2 may hold spaces and parentheses, so count from the last one. */
static bool read_stat(const char *path, struct stat_line *ret_line)
{
    char text[1024];
    if (!read_text(path, text, sizeof text))
        return false;
    const char *cursor = strrchr(text, ')');
    if (!cursor || !cursor[1])
        return false;
    cursor += 2;
    const char *end;
    struct stat_line line = {.state = *cursor};
    for (int field = 3; field < 22; field++) {
        if (field == 20)
            line.threads = tf_decimal(cursor, &end);
        cursor = strchr(cursor, ' ');
        if (!cursor)
            return false;
        cursor++;
    }
    line.start_ticks = tf_decimal(cursor, &end);
    *ret_line = line;
    return true;
}

void tf_process_self(struct tf_identity *ret_identity)
{
    int saved_errno = errno;
    struct tf_identity identity = {.pid = (uint32_t)getpid(), .lock_descriptor = -1};
    struct stat_line line;
    const char *end;
    char link[64];
    if (read_stat("/proc/self/stat", &line))
        identity.start_ticks = line.start_ticks;
    ssize_t length = readlink("/proc/self/ns/pid", link, sizeof link - 1);
    if (length > 5) { /* pid:[4026531836] */
        link[length] = '\0';
        identity.pid_namespace = tf_decimal(link + 5, &end);
    }
    errno = saved_errno;
    *ret_identity = identity;
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

bool tf_process_is_gone(uint32_t pid)
{
    int saved_errno = errno;
    bool is_gone = kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    int descriptor = is_gone ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (descriptor >= 0) {
        struct pollfd ended = {.fd = descriptor, .events = POLLIN}; /* readable once all threads are gone */
        struct timespec now = {0, 0};
        is_gone = syscall(SYS_ppoll, &ended, 1, &now, NULL, 8) == 1;
        close(descriptor);
    }
    errno = saved_errno;
    return is_gone;
}

bool tf_process_is_dead(uint32_t pid, uint64_t start_ticks, uint64_t start_ticks_mask)
{
    int saved_errno = errno;
    bool is_gone = kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    char path[32];
    struct stat_line line;
    if (!is_gone) {
        snprintf(path, sizeof path, "/proc/%u/stat", pid);
        if (read_stat(path, &line))
            is_gone = (line.start_ticks & start_ticks_mask) != (start_ticks & start_ticks_mask)
                || ((line.state == 'Z' || line.state == 'X') && line.threads <= 1);
    }
    errno = saved_errno;
    return is_gone;
}

/* --- mappings ------------------------------------------------------------------------------------------------------------------- */

/* Calls `visit` for each line of a maps file until it returns true. -1: not readable or empty (a process that is ending), else what was found. */
static int each_mapping(const char *path, bool (*visit)(const char *line, void *context), void *context)
{
    char buffer[4096 + 1];
    size_t kept = 0;
    int found = -1;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return -1;
    for (;;) {
        ssize_t length = read(descriptor, buffer + kept, sizeof buffer - 1 - kept);
        if (length <= 0)
            break;
        size_t filled = kept + (size_t)length;
        char *line = buffer, *end;
        buffer[filled] = '\0';
        while ((end = strchr(line, '\n')) != NULL) {
            *end = '\0';
            found = visit(line, context);
            if (found == 1)
                goto out;
            line = end + 1;
        }
        kept = filled - (size_t)(line - buffer);
        if (kept == sizeof buffer - 1)
            kept = 0; /* a path longer than any: what we look for stands in front of it */
        memmove(buffer, line, kept);
    }
out:
    close(descriptor);
    return found;
}

/* From "start-end perms offset dev inode path" the text from dev to the blank behind inode. */
static const char *key_of(const char *line)
{
    for (int blanks = 0; *line; line++)
        if (*line == ' ' && ++blanks == 3)
            return line + 1;
    return NULL;
}

struct key_search {
    const void *address;
    char *key;
};

static bool take_key(const char *line, void *context)
{
    struct key_search *search = context;
    char start[20];
    int chars = snprintf(start, sizeof start, "%lx-", (unsigned long)search->address);
    const char *key = key_of(line), *inode, *end;
    if (strncmp(line, start, (size_t)chars) != 0 || !key || !(inode = strchr(key, ' ')) || !(end = strchr(inode + 1, ' '))
        || end + 2 - key > TF_MAPPING_KEY_CHARS)
        return false;
    memcpy(search->key, key, (size_t)(end + 1 - key));
    search->key[end + 1 - key] = '\0';
    return true;
}

bool tf_process_mapping_key(const void *address, char ret_key[TF_MAPPING_KEY_CHARS])
{
    int saved_errno = errno;
    struct key_search search = {address, ret_key};
    bool is_found = each_mapping("/proc/self/maps", take_key, &search) == 1;
    errno = saved_errno;
    return is_found;
}

static bool has_key(const char *line, void *context)
{
    const char *key = key_of(line);
    return key && strncmp(key, context, strlen(context)) == 0;
}

bool tf_process_lacks_mapping(uint32_t pid, const char *key)
{
    int saved_errno = errno;
    char path[32];
    snprintf(path, sizeof path, "/proc/%u/maps", pid);
    bool lacks = each_mapping(path, has_key, (void *)key) == 0;
    errno = saved_errno;
    return lacks;
}
