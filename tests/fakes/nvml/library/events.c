/* Events of devices: `row GPU event NUMBER TYPE DATA GPU_INSTANCE COMPUTE_INSTANCE`, each with a unique number.
 * A set reports the events added to the scenario after the device was registered, once each.
 */
#include "fake.h"
#include <time.h>

enum { MAX_REPORTED = 4096, SLICE_MS = 20 };
struct event_set { uint64_t types[MAX_GPUS]; unsigned reported[MAX_GPUS][MAX_REPORTED]; unsigned reported_count[MAX_GPUS]; };
struct event_data { void *device; uint64_t type, data; unsigned gpu_instance, compute_instance; };

static int is_reported(struct event_set *set, int gpu, unsigned number) {
  for (unsigned i = 0; i < set->reported_count[gpu]; i++) if (set->reported[gpu][i] == number) return 1;
  if (set->reported_count[gpu] == MAX_REPORTED) refuse("too many events", "one GPU");
  set->reported[gpu][set->reported_count[gpu]++] = number;
  return 0;
}

API int nvmlEventSetCreate(struct event_set **set) {
  ENTER_SYSTEM();
  *set = calloc(1, sizeof **set);
  return OK;
}

API int nvmlEventSetFree(struct event_set *set) {
  ENTER_SYSTEM();
  free(set);
  return OK;
}

API int nvmlDeviceGetSupportedEventTypes(void *h, uint64_t *types) {
  ENTER(h);
  return number(GPU(h), "nvmlDeviceGetSupportedEventTypes", 0, types);
}

API int nvmlDeviceRegisterEvents(void *h, uint64_t types, struct event_set *set) {
  ENTER(h);
  uint64_t supported;
  int rc = number(GPU(h), "nvmlDeviceGetSupportedEventTypes", 0, &supported);
  if (rc || types & ~supported) return rc ? rc : INVALID_ARGUMENT;
  set->types[GPU(h)] |= types;
  for (unsigned i = 0; i < rows(GPU(h), "event"); i++) is_reported(set, GPU(h), (unsigned)row(GPU(h), "event", i)->n[0]);
  return OK;
}

static int next(struct event_set *set, struct event_data *out) {
  for (unsigned gpu = 0; gpu < gpu_count(); gpu++)
    for (unsigned i = 0; set->types[gpu] && i < rows(gpu, "event"); i++) {
      const struct entry *e = row(gpu, "event", i);
      if (!(e->n[1] & set->types[gpu]) || is_reported(set, gpu, (unsigned)e->n[0])) continue;
      *out = (struct event_data){HANDLE(gpu, -1), e->n[1], e->n[2], (unsigned)e->n[3], (unsigned)e->n[4]};
      return 1;
    }
  return 0;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned timeout_ms) {
  for (long waited = 0;; waited += SLICE_MS) {
    ENTER_SYSTEM(); /* the scenario may have changed */
    if (next(set, out)) return OK;
    if (waited >= bounded_wait_ms(timeout_ms)) return TIMEOUT;
    pause_ms(SLICE_MS);
  }
}
