/* GPUs bound to or unbound from a kernel driver: `row 0 system_event NUMBER TYPE GPU_ID`, each with a unique number.
 * A set reports the events added to the scenario after it was registered, once each. Drivers have it since 575.
 */
#include "fake.h"

#if DRIVER_BRANCH >= 575
enum { SYSTEM_SLICE_MS = 20 };
struct system_set { uint64_t types; unsigned reported; };
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
  request->set->reported = rows(0, "system_event");
  return OK;
}

API int nvmlSystemEventSetWait(struct wait_request *request) {
  CHECK_VERSION(request);
  for (long waited = 0;; waited += SYSTEM_SLICE_MS) {
    ENTER_SYSTEM(); /* the scenario may have changed */
    request->count = 0;
    while (request->set->reported < rows(0, "system_event") && request->count < request->room) {
      const struct entry *e = row(0, "system_event", request->set->reported++);
      if (!(e->n[1] & request->set->types)) continue;
      request->data[request->count++] = (struct system_event){e->n[1], (unsigned)e->n[2]};
    }
    if (request->count) return OK;
    if (waited >= bounded_wait_ms(request->timeout_ms)) return TIMEOUT;
    pause_ms(SYSTEM_SLICE_MS);
  }
}
#endif
