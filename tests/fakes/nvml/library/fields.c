/* nvmlDeviceGetFieldValues: `number SUBJECT field,ID,SCOPE TYPE CODE UNTOUCHED BITS`. */
#include "fake.h"

struct field_value {
  unsigned id, scope; long long timestamp, latency_us; unsigned type; int rc; uint64_t bits;
};

/* An id that the branch does not have fails the whole call. */
static unsigned end_of_ids(void) {
  const unsigned ends[][2] = {{610, 303}, {595, 296}, {590, 289}, {575, 274}, {570, 269}, {560, 230}, {550, 200}, {535, 197}};
  for (unsigned i = 0; i < sizeof ends / sizeof *ends; i++) if (DRIVER_BRANCH >= ends[i][0]) return ends[i][1];
  return 186;
}

API int nvmlDeviceGetFieldValues(void *h, int count, struct field_value *values) {
  ENTER(h);
  for (int i = 0; i < count; i++) if (values[i].id >= end_of_ids()) return INVALID_ARGUMENT;
  for (int i = 0; i < count; i++) {
    const struct entry *e = find(SUBJECT(h), "field", pair(values[i].id + 1, values[i].scope));
    if (e && e->n[2]) continue;
    values[i].timestamp = 1700000000000000LL; /* microseconds */
    values[i].latency_us = 3;
    values[i].rc = e ? (int)e->n[1] : NOT_SUPPORTED;
    if (values[i].rc) continue;
    values[i].type = (unsigned)e->n[0];
    values[i].bits = e->n[3];
  }
  return OK;
}
