/* GPM: samples, and metrics from two samples: `number SUBJECT gpm,METRIC CODE BITS` (bits of a double).
 *
 * Misuse aborts the process: two threads at once, samples of two devices, samples less than 100 ms apart.
 */
#include "fake.h"
#include <pthread.h>
#include <time.h>

#if DRIVER_BRANCH >= 535
struct sample { int taken, subject; struct timespec at; };
struct metric { unsigned id; int rc; double value; const char *names[3]; };
struct comparison { unsigned version, count; struct sample *older, *newer; struct metric metrics[]; };
struct support { unsigned version, supported; };

static atomic_int inside, samples;
#define ALONE() do { if (atomic_fetch_add(&inside, 1)) refuse("two threads are in GPM at once", __func__); } while (0)
#define LEAVE(rc) do { atomic_fetch_sub(&inside, 1); return rc; } while (0)

API int nvmlGpmQueryDeviceSupport(void *h, struct support *out) {
  ENTER(h);
  return out->version != 1 ? VERSION_MISMATCH : number32(SUBJECT(h), "nvmlGpmQueryDeviceSupport", 0, &out->supported);
}
API int nvmlGpmSampleAlloc(struct sample **out) {
  ENTER_SYSTEM();
  atomic_fetch_add(&samples, 1);
  *out = calloc(1, sizeof **out);
  return OK;
}
API int nvmlGpmSampleFree(struct sample *sample) {
  ENTER_SYSTEM();
  atomic_fetch_sub(&samples, 1);
  free(sample);
  return OK;
}
static int gpu_of(int subject) { return subject >= GPU_INSTANCE ? (subject - GPU_INSTANCE) / 1000 : subject % MAX_GPUS; }
static int take(int subject, struct sample *sample) {
  if (!sample) return INVALID_ARGUMENT;
  sample->taken = 1;
  sample->subject = subject;
  clock_gettime(CLOCK_MONOTONIC, &sample->at);
  return OK;
}
API int nvmlGpmSampleGet(void *h, struct sample *sample) {
  ALONE();
  int rc = gate(__func__, GPU(h), 1);
  LEAVE(rc ? rc : take(SUBJECT(h), sample));
}
API int nvmlGpmMigSampleGet(void *h, unsigned gpu_instance, struct sample *sample) {
  ALONE();
  int rc = gate(__func__, GPU(h), 1);
  LEAVE(rc ? rc : take(GPU_INSTANCE + GPU(h) * 1000 + (int)gpu_instance, sample));
}
API int nvmlGpmMetricsGet(struct comparison *c) {
  ALONE();
  int rc = gate(__func__, c->newer ? gpu_of(c->newer->subject) : -1, 1);
  if (rc) LEAVE(rc);
  if (c->version != 1 || !c->older || !c->newer || !c->older->taken || !c->newer->taken) LEAVE(INVALID_ARGUMENT);
  if (c->older->subject != c->newer->subject) refuse("samples of two devices are compared", __func__);
  long ms = (c->newer->at.tv_sec - c->older->at.tv_sec) * 1000 + (c->newer->at.tv_nsec - c->older->at.tv_nsec) / 1000000;
  if (ms < 100) refuse("samples less than 100 ms apart are compared", __func__);
  for (unsigned i = 0; i < c->count; i++) {
    const struct entry *e = find(c->newer->subject, "gpm", c->metrics[i].id + 1);
    c->metrics[i].rc = e ? (int)e->n[0] : NOT_SUPPORTED;
    if (e && !c->metrics[i].rc) memcpy(&c->metrics[i].value, &e->n[1], sizeof(double));
  }
  LEAVE(OK);
}
#endif
