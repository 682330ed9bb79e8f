/* Library that is preloaded into a process under test. The test controls it with a small mapped file, so that a change
 * reaches running processes at once:
 *
 *   - The wall clock is moved (clock_gettime of CLOCK_REALTIME). The monotonic clock is not changed.
 *   - fsync and fdatasync of files below a folder are delayed, or fail.
 *   - The process kills itself before its Nth change below the folder (steps.c).
 *
 * The layout of the file is in crash_shim.h. An engine with its own clock_gettime keeps the true time. The relocations
 * of libraries loaded with RTLD_DEEPBIND are rewritten: they would resolve symbols in the C library first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "crash_shim.h"

struct control *control;
static void *(*real_dlopen)(const char *, int);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    real_dlopen = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    const char *path = getenv("CRASH_CONTROL");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) control = mapped;
}

SHOWN int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real_clock_gettime) begin();
    int code = real_clock_gettime(id, at);
    if (code == 0 && control && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t offset = control->clock_offset_ns;
        int64_t ns = at->tv_nsec + offset % 1000000000;
        at->tv_sec += offset / 1000000000;
        if (ns < 0) { ns += 1000000000; at->tv_sec -= 1; }
        if (ns >= 1000000000) { ns -= 1000000000; at->tv_sec += 1; }
        at->tv_nsec = ns;
    }
    return code;
}

struct path path_of(int fd) {
    struct path found;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, found.text, sizeof found.text - 1);
    found.text[length > 0 ? length : 0] = 0;
    return found;
}

int is_below(const char *path) {
    size_t folder = strnlen(control->folder, sizeof control->folder);
    return folder > 0 && strncmp(path, control->folder, folder) == 0;
}

/* Return 0 to continue, or the errno to fail with. */
static int disturb(int fd) {
    if (!control || (!control->sync_delay_us && !control->sync_errno && !control->dies_at)) return 0;
    if (!is_below(path_of(fd).text)) return 0;
    if (control->sync_delay_us) usleep((useconds_t)control->sync_delay_us);
    static int64_t count;
    int64_t number = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    if (control->dies_at && number >= control->dies_at) kill(getpid(), SIGKILL);
    return control->sync_every > 1 && number % control->sync_every ? 0 : (int)control->sync_errno;
}

SHOWN int fsync(int fd) {
    int wrong = disturb(fd);
    if (wrong) { errno = wrong; return -1; }
    return real_fsync(fd);
}

SHOWN int fdatasync(int fd) {
    int wrong = disturb(fd);
    if (wrong) { errno = wrong; return -1; }
    return real_fdatasync(fd);
}

/* Redirect a library's calls to the functions of this library. */
static void redirect(const struct link_map *map) {
    const char *names = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) *tables[2] = {NULL, NULL};
    size_t sizes[2] = {0, 0};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB) names = (const char *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELA) tables[0] = (const ElfW(Rela) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELASZ) sizes[0] = entry->d_un.d_val;
        if (entry->d_tag == DT_JMPREL) tables[1] = (const ElfW(Rela) *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_PLTRELSZ) sizes[1] = entry->d_un.d_val;
    }
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int table = 0; names && symbols && table < 2; table++) {
        for (size_t at = 0; tables[table] && at < sizes[table] / sizeof(ElfW(Rela)); at++) {
            size_t symbol = ELF64_R_SYM(tables[table][at].r_info);
            if (symbol == 0) continue;
            const char *name = names + symbols[symbol].st_name;
            void *ours = strcmp(name, "fsync") == 0       ? (void *)fsync
                         : strcmp(name, "fdatasync") == 0 ? (void *)fdatasync
                                                          : step_of(name);
            if (!ours) continue;
            uintptr_t place = map->l_addr + tables[table][at].r_offset;
            if (mprotect((void *)(place & ~(page - 1)), page, PROT_READ | PROT_WRITE) == 0) *(void **)place = ours;
        }
    }
}

SHOWN void *dlopen(const char *path, int flags) {
    if (!real_dlopen) begin();
    void *handle = real_dlopen(path, flags);
    struct link_map *map = NULL;
    if (handle && (flags & RTLD_DEEPBIND) && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) redirect(map);
    return handle;
}
