/* Processes on a device: `row SUBJECT nvmlDeviceGetComputeRunningProcesses PID BYTES GPU_INSTANCE COMPUTE_INSTANCE`. */
#include "fake.h"

#ifdef EARLY_535
struct process { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; uint64_t protected_memory; };
#else
struct process { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; };
#endif

static int processes(int subject, const char *table, unsigned *count, struct process *out) {
  unsigned room = *count;
  *count = rows(subject, table);
  if (*count > room) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) {
    const struct entry *e = row(subject, table, i);
    memset(&out[i], 0xAB, sizeof out[i]);
    out[i].pid = (unsigned)e->n[0];
    out[i].memory = e->n[1];
    out[i].gpu_instance = (unsigned)e->n[2];
    out[i].compute_instance = (unsigned)e->n[3];
  }
  return OK;
}

#define PROCESSES(name) API int name##_v3(void *h, unsigned *count, struct process *out) { \
  ENTER(h); return processes(SUBJECT(h), #name, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
