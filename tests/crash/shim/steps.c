/* Changes below a folder: files created, written, truncated, renamed and removed, folders created and removed. The
 * process prints each change on stderr before it happens, and kills itself before the change that the control file
 * selects. Changes of several threads are counted in the order of their calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "crash_shim.h"

#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(&name) real;                                                                                 \
        if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                  \
        real;                                                                                                          \
    })

static void step(const char *what, const char *path) {
    static int64_t count;
    if (!control || !control->dies_before || !path || !is_below(path)) return;
    if (control->skipped[0] && strstr(path, control->skipped)) return;
    char text[512];
    const char *inside = path + strnlen(control->folder, sizeof control->folder);
    snprintf(text, sizeof text, "%s %s", what, *inside == '/' ? inside + 1 : inside);
    if (strncmp(text, control->counted, strnlen(control->counted, sizeof control->counted)) != 0) return;
    int64_t number = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    dprintf(2, "step %s %s\n", what, path);
    if (number < control->dies_before) return;
    kill(getpid(), SIGKILL);
    for (;;) pause(); /* other threads stop here too, or make no visible change */
}

static void step_fd(const char *what, int fd) {
    if (control && control->dies_before) step(what, path_of(fd).text);
}

static void step_open(const char *path, int flags) {
    if (!control || !control->dies_before || (flags & O_ACCMODE) == O_RDONLY) return;
    if (flags & O_TRUNC || (flags & O_CREAT && access(path, F_OK) != 0)) step("open", path);
}

#define MODE(flags, mode)                                                                                              \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

SHOWN int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    step_open(path, flags);
    return REAL(open)(path, flags, mode);
}

SHOWN int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    step_open(path, flags);
    return REAL(open64)(path, flags, mode);
}

SHOWN int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    if (path[0] == '/') step_open(path, flags);
    return REAL(openat)(folder, path, flags, mode);
}

SHOWN ssize_t write(int fd, const void *data, size_t size) {
    step_fd("write", fd);
    return REAL(write)(fd, data, size);
}

SHOWN ssize_t writev(int fd, const struct iovec *parts, int count) {
    step_fd("write", fd);
    return REAL(writev)(fd, parts, count);
}

SHOWN ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    step_fd("write", fd);
    return REAL(pwrite)(fd, data, size, at);
}

SHOWN ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    step_fd("write", fd);
    return REAL(pwrite64)(fd, data, size, at);
}

SHOWN int ftruncate(int fd, off_t size) {
    step_fd("cut", fd);
    return REAL(ftruncate)(fd, size);
}

SHOWN int ftruncate64(int fd, off64_t size) {
    step_fd("cut", fd);
    return REAL(ftruncate64)(fd, size);
}

SHOWN int rename(const char *from, const char *to) {
    step("rename to", to);
    return REAL(rename)(from, to);
}

SHOWN int unlink(const char *path) {
    step("unlink", path);
    return REAL(unlink)(path);
}

SHOWN int mkdir(const char *path, mode_t mode) {
    step("mkdir", path);
    return REAL(mkdir)(path, mode);
}

SHOWN int rmdir(const char *path) {
    step("rmdir", path);
    return REAL(rmdir)(path);
}

void *step_of(const char *name) {
    static const struct {
        const char *name;
        void *function;
    } steps[] = {
        {"open", open},     {"open64", open64},       {"openat", openat},           {"write", write},
        {"writev", writev}, {"pwrite", pwrite},       {"pwrite64", pwrite64},       {"ftruncate", ftruncate},
        {"rename", rename}, {"ftruncate64", ftruncate64}, {"unlink", unlink}, {"mkdir", mkdir},
        {"rmdir", rmdir},
    };
    for (size_t at = 0; at < sizeof steps / sizeof *steps; at++)
        if (strcmp(name, steps[at].name) == 0) return steps[at].function;
    return NULL;
}
