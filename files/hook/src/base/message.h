/* message.h - the hook's only voice: at most a few lines on stderr per process, each once, and none unless a limit cannot be kept. */
#pragma once

/* Writes "tenfold: <text>\n" with one write(2). Later calls than the cap are dropped. Keeps errno. */
__attribute__((format(printf, 1, 2))) void tf_message(const char *format, ...);
