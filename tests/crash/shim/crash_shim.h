/* Shared declarations of the library. */
#ifndef CRASH_SHIM_H
#define CRASH_SHIM_H

#include <stdint.h>

/* Functions that replace those of the C library. */
#define SHOWN __attribute__((visibility("default")))

/* The mapped file, native endian. `skipped`, `folder` and `counted` end with a zero. */
struct control {
    volatile int64_t clock_offset_ns;
    volatile int64_t sync_delay_us;
    volatile int64_t sync_errno;  /* or 0 */
    volatile int64_t sync_every;  /* only one in so many syncs fails */
    volatile int64_t dies_at;     /* the process kills itself at this sync, or 0 */
    volatile int64_t dies_before; /* and before this change, or 0; changes are counted while it is not 0 */
    char skipped[64];             /* changes of paths that contain this are not counted; or empty */
    char folder[400];             /* syncs and changes below it */
    char counted[32];             /* only steps with this prefix are counted, such as "rename to wal/"; or empty */
};

struct path {
    char text[512];
};

extern struct control *control;

/* Path of an open file; empty if unknown. */
struct path path_of(int fd);

/* Return whether a path is below the folder. */
int is_below(const char *path);

/* Return the replacement of a C library function by name, or NULL if there is none. */
void *step_of(const char *name);

#endif
