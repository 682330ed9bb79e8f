/* What the parts of the library share. */
#ifndef CRASH_SHIM_H
#define CRASH_SHIM_H

#include <stdint.h>

/* What takes the place of the C library's. */
#define SHOWN __attribute__((visibility("default")))

/* The mapped file, native endian. `skipped`, `folder` and `counted` end with a zero. */
struct control {
    volatile int64_t clock_offset_ns;
    volatile int64_t sync_delay_us;
    volatile int64_t sync_errno;  /* or 0 */
    volatile int64_t sync_every;  /* only every so manieth sync fails */
    volatile int64_t dies_at;     /* the process kills itself at this sync, or 0 */
    volatile int64_t dies_before; /* and before this change, or 0; they are counted while it is not 0 */
    char skipped[64];             /* changes of paths that contain this are not counted; or empty */
    char folder[400];             /* syncs and changes below it */
    char counted[32];             /* only steps that start so are counted, such as "rename to wal/"; or empty */
};

struct path {
    char text[512];
};

extern struct control *control;

/* Where an open file is; empty where that cannot be told. */
struct path path_of(int fd);

/* Whether a path is below the folder. */
int is_below(const char *path);

/* The function that counts a change before it is made, by the name of the C library's; NULL for any other name. */
void *step_of(const char *name);

#endif
