/* message.c - lines for a person, from inside somebody else's program.
 *
 * Owns: the cap and the prefix. Never: buffers, locks, stdio streams, more than MESSAGES_MAX lines per process. */
#include "base/message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { MESSAGES_MAX = 4, LINE_BYTES = 512 };

void tf_message(const char *format, ...)
{
    static _Atomic int written;
    static const char prefix[] = "tenfold: ";
    if (atomic_fetch_add(&written, 1) >= MESSAGES_MAX) {
        atomic_store(&written, MESSAGES_MAX);
        return;
    }
    int saved_errno = errno;
    char line[LINE_BYTES];
    va_list arguments;
    int prefix_chars = snprintf(line, sizeof line, "%s", prefix);
    va_start(arguments, format);
    int chars = prefix_chars + vsnprintf(line + prefix_chars, sizeof line - (size_t)prefix_chars - 1, format, arguments);
    va_end(arguments);
    if (chars > LINE_BYTES - 2)
        chars = LINE_BYTES - 2;
    line[chars] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)chars + 1);
    (void)ignored;
    errno = saved_errno;
}
