/* old_libc.h - the few calls whose newest symbol would tie the libraries to a new glibc: they are loaded inside images of any age.
 *
 * Floor: GLIBC_2.17, which tests/test_exports.py proves. stat and fstat became symbols in 2.33, memfd_create in 2.27: the kernel is called
 * directly. pthread_create moved into libc.so.6 in 2.34 and keeps its old version there; before that it is libpthread's, which the
 * Makefile therefore names as needed. */
#ifndef TENFOLD_SIM_OLD_LIBC_H
#define TENFOLD_SIM_OLD_LIBC_H

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int old_libc_stat(const char *path, struct stat *ret_status)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, ret_status, 0);
}

static inline int old_libc_fstat(int fd, struct stat *ret_status)
{
    return (int)syscall(SYS_newfstatat, fd, "", ret_status, AT_EMPTY_PATH);
}

static inline int old_libc_memfd_create(const char *name, unsigned flags)
{
    return (int)syscall(SYS_memfd_create, name, flags);
}

/* Put into the file that calls pthread_create. Sanitizers bring their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OLD_LIBC_PTHREAD_CREATE
#elif defined(__x86_64__)
#define OLD_LIBC_PTHREAD_CREATE __asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
#elif defined(__aarch64__)
#define OLD_LIBC_PTHREAD_CREATE __asm__(".symver pthread_create,pthread_create@GLIBC_2.17");
#else
#define OLD_LIBC_PTHREAD_CREATE
#endif

#endif
