/* Processes on a device: `row SUBJECT nvmlDeviceGetComputeRunningProcesses PID BYTES GPU_INSTANCE COMPUTE_INSTANCE`. */
#include "fake.h"
#include <time.h>

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
PROCESSES(nvmlDeviceGetComputeRunningProcesses) PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)

#if DRIVER_BRANCH >= 535 && !defined EARLY_535
API int nvmlDeviceGetRunningProcessDetailList(void *h, void *out) { ENTER(h); (void)out; return NOT_SUPPORTED; }
#endif

/* row: pid, microseconds since 1970 (or the age of the sample, if less than a year), multiprocessors, memory, encoder, decoder. Only
 * samples newer than `since` are returned, or all with `number GPU nvmlDeviceGetProcessUtilization_repeats 0 1`. */
struct use { unsigned pid; uint64_t at; unsigned percent[4]; };
API int nvmlDeviceGetProcessUtilization(void *h, struct use *out, unsigned *count, unsigned long long since) {
  ENTER(h);
  uint64_t offered = 0;
  if (number(SUBJECT(h), "nvmlDeviceGetProcessUtilization_offered", 0, &offered) || !offered) return NOT_SUPPORTED;
  unsigned room = out ? *count : 0, found = 0;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  uint64_t now = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
  for (unsigned i = 0; i < rows(SUBJECT(h), "nvmlDeviceGetProcessUtilization"); i++) {
    const struct entry *e = row(SUBJECT(h), "nvmlDeviceGetProcessUtilization", i);
    uint64_t at = e->n[1] < 31536000000000ULL ? now - e->n[1] : e->n[1];
    if (at <= since && !find(SUBJECT(h), "nvmlDeviceGetProcessUtilization_repeats", 0)) continue;
    if (found < room) {
      out[found].pid = (unsigned)e->n[0];
      out[found].at = at;
      for (int k = 0; k < 4; k++) out[found].percent[k] = (unsigned)e->n[2 + k];
    }
    found++;
  }
  *count = found;
  if (!found) return NOT_FOUND;
  return found > room ? INSUFFICIENT_SIZE : OK;
}
