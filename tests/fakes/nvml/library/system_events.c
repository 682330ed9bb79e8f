/* GPUs that a kernel driver takes or gives up: `row 0 system_event NUMBER TYPE GPU_ID`, with a number of its own each.
 * A set tells of those that come into the scenario after it was registered, each once. Drivers from 575 on have it.
 */
#include "fake.h"

#if DRIVER_BRANCH >= 575
enum { SYSTEM_SLICE_MS = 20 };
struct system_set { uint64_t types; unsigned told; };
struct set_request { unsigned version; struct system_set *set; };
struct register_request { unsigned version; uint64_t types; struct system_set *set; };
struct system_event { uint64_t type; unsigned gpu; };
struct wait_request { unsigned version, timeout_ms; struct system_set *set; struct system_event *data; unsigned room, count; };

#define CHECK_VERSION(request) if ((request)->version != (1u << 24 | sizeof *(request))) return 25

API int nvmlSystemEventSetCreate(struct set_request *request) {
  ENTER_SYSTEM();
  CHECK_VERSION(request);
  request->set = calloc(1, sizeof *request->set);
  return OK;
}

API int nvmlSystemEventSetFree(struct set_request *request) {
  ENTER_SYSTEM();
  CHECK_VERSION(request);
  free(request->set);
  return OK;
}

API int nvmlSystemRegisterEvents(struct register_request *request) {
  ENTER_SYSTEM();
  CHECK_VERSION(request);
  request->set->types = request->types;
  request->set->told = rows(0, "system_event");
  return OK;
}

API int nvmlSystemEventSetWait(struct wait_request *request) {
  CHECK_VERSION(request);
  for (long waited = 0;; waited += SYSTEM_SLICE_MS) {
    ENTER_SYSTEM(); /* the scenario may be another one by now */
    request->count = 0;
    while (request->set->told < rows(0, "system_event") && request->count < request->room) {
      const struct entry *e = row(0, "system_event", request->set->told++);
      if (!(e->n[1] & request->set->types)) continue;
      request->data[request->count++] = (struct system_event){e->n[1], (unsigned)e->n[2]};
    }
    if (request->count) return OK;
    if (waited >= bounded_wait_ms(request->timeout_ms)) return TIMEOUT;
    pause_ms(SYSTEM_SLICE_MS);
  }
}
#endif
