/* A libnvidia-ml.so.1 that says what a scenario file tells it to say. See README.md beside this file.
 *
 * Values come from the scenario alone: what it does not name is NVML_ERROR_NOT_SUPPORTED. The file is read
 * again when its inode or modification time changes. Struct layouts, versions and return codes follow nvml.h.
 * -DDRIVER_BRANCH=535 leaves out the functions that came after that branch.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef DRIVER_BRANCH
#define DRIVER_BRANCH 615
#endif

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
enum { MAX_GPUS = 64, MAX_FAULTS = 64, MAX_FIELDS = 32, TEXT = 96 };
enum { CRASH = -1 };                   /* as a return code: the library crashes */
enum { HANG = -1, STUBBORN_HANG = -2 }; /* as a delay: until the fault leaves the scenario; the second ignores SIGTERM */

/* --- what a scenario can say of a device ------------------------------------------------------------------- */

#define NUMBERS(X) \
  X(nvmlDeviceGetUtilizationRates_gpu) X(nvmlDeviceGetUtilizationRates_memory) \
  X(nvmlDeviceGetEncoderUtilization) X(nvmlDeviceGetDecoderUtilization) \
  X(nvmlDeviceGetJpgUtilization) X(nvmlDeviceGetOfaUtilization) \
  X(nvmlDeviceGetMemoryInfo_total) X(nvmlDeviceGetMemoryInfo_reserved) \
  X(nvmlDeviceGetMemoryInfo_free) X(nvmlDeviceGetMemoryInfo_used) \
  X(nvmlDeviceGetBAR1MemoryInfo_total) X(nvmlDeviceGetBAR1MemoryInfo_free) X(nvmlDeviceGetBAR1MemoryInfo_used) \
  X(nvmlDeviceGetTemperature) X(nvmlDeviceGetMarginTemperature) \
  X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceGetPowerManagementLimit) \
  X(nvmlDeviceGetPowerManagementDefaultLimit) X(nvmlDeviceGetTotalEnergyConsumption) \
  X(nvmlDeviceGetNumFans) X(nvmlDeviceGetFanSpeed_0) X(nvmlDeviceGetFanSpeed_1) \
  X(nvmlDeviceGetFanSpeed_2) X(nvmlDeviceGetFanSpeed_3) \
  X(nvmlDeviceGetClockInfo_0) X(nvmlDeviceGetClockInfo_1) X(nvmlDeviceGetClockInfo_2) X(nvmlDeviceGetClockInfo_3) \
  X(nvmlDeviceGetMaxClockInfo_0) X(nvmlDeviceGetMaxClockInfo_1) \
  X(nvmlDeviceGetMaxClockInfo_2) X(nvmlDeviceGetMaxClockInfo_3) \
  X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetPerformanceState) \
  X(nvmlDeviceGetTotalEccErrors_corrected_volatile) X(nvmlDeviceGetTotalEccErrors_corrected_aggregate) \
  X(nvmlDeviceGetTotalEccErrors_uncorrected_volatile) X(nvmlDeviceGetTotalEccErrors_uncorrected_aggregate) \
  X(nvmlDeviceGetRemappedRows_correctable) X(nvmlDeviceGetRemappedRows_uncorrectable) \
  X(nvmlDeviceGetRemappedRows_pending) X(nvmlDeviceGetRemappedRows_failed) \
  X(nvmlDeviceGetCurrPcieLinkGeneration) X(nvmlDeviceGetCurrPcieLinkWidth) \
  X(nvmlDeviceGetMaxPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkWidth) X(nvmlDeviceGetPcieReplayCounter) \
  X(nvmlDeviceGetEccMode_current) X(nvmlDeviceGetEccMode_pending) \
  X(nvmlDeviceGetMigMode_current) X(nvmlDeviceGetMigMode_pending) \
  X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceGetComputeMode) X(nvmlDeviceGetVirtualizationMode) \
  X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetArchitecture) \
  X(nvmlDeviceGetCudaComputeCapability_major) X(nvmlDeviceGetCudaComputeCapability_minor) \
  X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetModuleId)

#define TEXTS(X) \
  X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetSerial) X(nvmlDeviceGetBoardPartNumber) \
  X(nvmlDeviceGetVbiosVersion) X(nvmlDeviceGetInforomImageVersion) X(nvmlDeviceGetGspFirmwareVersion) \
  X(nvmlDeviceGetPciInfo)

#define AS_ENUM(name) N_##name,
#define AS_TEXT_ENUM(name) T_##name,
#define AS_STRING(name) #name,
enum { NUMBERS(AS_ENUM) N_COUNT };
enum { TEXTS(AS_TEXT_ENUM) T_COUNT };
static const char *const number_names[] = {NUMBERS(AS_STRING)};
static const char *const text_names[] = {TEXTS(AS_STRING)};

struct field { unsigned id, scope, type; int rc, untouched; uint64_t bits; };
struct gpu {
  uint64_t numbers[N_COUNT]; char has_number[N_COUNT];
  char texts[T_COUNT][TEXT]; char has_text[T_COUNT];
  struct field fields[MAX_FIELDS]; int field_count;
};
struct fault { char function[TEXT]; int gpu, rc; long delay_ms; };
struct scenario {
  char driver[TEXT], library[TEXT]; int cuda; unsigned count;
  struct gpu gpus[MAX_GPUS]; struct fault faults[MAX_FAULTS]; int fault_count;
  struct stat file;
};

/* --- reading it --------------------------------------------------------------------------------------------- */

static _Atomic(struct scenario *) current; /* older ones are never freed: another thread may be reading them */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static atomic_int users;

static void refuse(const char *what, const char *line) {
  fprintf(stderr, "fake NVML: %s: %s\n", what, line);
  abort();
}

static int index_of(const char *const *names, int count, const char *name, const char *line) {
  for (int i = 0; i < count; i++) if (!strcmp(names[i], name)) return i;
  refuse("no such key in a scenario", line);
  return -1;
}

static void read_line(struct scenario *s, const char *line) {
  char word[TEXT], key[TEXT]; int gpu, used = 0; struct fault f; struct field e; char bits[TEXT];
  if (!*line || *line == '#') return;
  if (sscanf(line, "driver %95s", s->driver) == 1 || sscanf(line, "library %95s", s->library) == 1 ||
      sscanf(line, "cuda %d", &s->cuda) == 1 || sscanf(line, "count %u", &s->count) == 1) {
    if (s->count > MAX_GPUS) refuse("too many GPUs", line);
  } else if (sscanf(line, "number %d %95s %95s", &gpu, key, word) == 3) {
    int i = index_of(number_names, N_COUNT, key, line);
    s->gpus[gpu].numbers[i] = strtoull(word, NULL, 0); /* a leading minus wraps, as C's casts do */
    s->gpus[gpu].has_number[i] = 1;
  } else if (sscanf(line, "text %d %95s %n", &gpu, key, &used) == 2 && used) {
    int i = index_of(text_names, T_COUNT, key, line);
    snprintf(s->gpus[gpu].texts[i], TEXT, "%s", line + used);
    s->gpus[gpu].has_text[i] = 1;
  } else if (sscanf(line, "field %d %u %u %u %d %d %95s", &gpu, &e.id, &e.scope, &e.type, &e.rc, &e.untouched, bits) == 7) {
    if (s->gpus[gpu].field_count >= MAX_FIELDS) refuse("too many fields", line);
    e.bits = strtoull(bits, NULL, 0);
    s->gpus[gpu].fields[s->gpus[gpu].field_count++] = e;
  } else if (sscanf(line, "fault %95s %d %d %ld", f.function, &f.gpu, &f.rc, &f.delay_ms) == 4) {
    if (s->fault_count >= MAX_FAULTS) refuse("too many faults", line);
    s->faults[s->fault_count++] = f;
  } else refuse("cannot read this line of a scenario", line);
}

static struct scenario *scenario(void) {
  const char *path = getenv("FAKE_NVML");
  struct stat now; struct scenario *known = atomic_load(&current);
  if (!path) refuse("the environment variable is not set", "FAKE_NVML");
  if (stat(path, &now)) refuse("there is no such scenario file", path);
  if (known && now.st_ino == known->file.st_ino && now.st_mtim.tv_sec == known->file.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == known->file.st_mtim.tv_nsec) return known;
  pthread_mutex_lock(&loading);
  struct scenario *fresh = calloc(1, sizeof *fresh);
  FILE *file = fopen(path, "r"); char line[256];
  if (!file || !fresh) refuse("cannot open the scenario", path);
  fstat(fileno(file), &fresh->file);
  while (fgets(line, sizeof line, file)) { line[strcspn(line, "\n")] = 0; read_line(fresh, line); }
  fclose(file);
  atomic_store(&current, fresh);
  pthread_mutex_unlock(&loading);
  return fresh;
}

static const struct fault *fault_of(const struct scenario *s, const char *function, int gpu) {
  for (int i = 0; i < s->fault_count; i++) {
    const struct fault *f = &s->faults[i];
    if ((!strcmp(f->function, "*") || !strcmp(f->function, function)) && (f->gpu < 0 || f->gpu == gpu)) return f;
  }
  return NULL;
}

static void note(const char *function, int gpu) {
  static int log = -1; char line[TEXT + 16]; const char *path = getenv("FAKE_NVML_LOG");
  if (!path) return;
  if (log < 0) log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  int length = snprintf(line, sizeof line, "%s %d\n", function, gpu);
  if (write(log, line, length) != length) refuse("cannot write the log", path);
}

static void pause_ms(long ms) {
  struct timespec span = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&span, NULL);
}

static __thread const struct scenario *said; /* what this thread's call is answered from */

/* Every call passes here: the log, then the scenario's fault for it, then whether NVML is initialised. */
static int gate(const char *function, int gpu, int needs_init) {
  note(function, gpu);
  said = scenario();
  const struct fault *f = fault_of(said, function, gpu);
  if (f) {
    if (f->delay_ms == STUBBORN_HANG) signal(SIGTERM, SIG_IGN);
    if (f->delay_ms < 0) { while ((f = fault_of(said = scenario(), function, gpu)) && f->delay_ms < 0) pause_ms(5); }
    else pause_ms(f->delay_ms);
    if (f && f->rc == CRASH) raise(SIGSEGV);
    if (f && f->rc) return f->rc;
  }
  return needs_init && !atomic_load(&users) ? UNINITIALIZED : OK;
}

#define API __attribute__((visibility("default")))
/* A handle is index + 1, so that NULL is none. */
#define GPU(handle) ((int)(intptr_t)(handle) - 1)
#define ENTER(handle) do { int rc_ = gate(__func__, GPU(handle), 1); if (rc_) return rc_; \
  if (GPU(handle) < 0 || GPU(handle) >= (int)said->count) return INVALID_ARGUMENT; } while (0)
#define ENTER_SYSTEM() do { int rc_ = gate(__func__, -1, 1); if (rc_) return rc_; } while (0)

static int number(void *handle, int key, uint64_t *out) {
  const struct gpu *g = &said->gpus[GPU(handle)];
  if (!g->has_number[key]) return NOT_SUPPORTED;
  *out = g->numbers[key];
  return OK;
}

static int number32(void *handle, int key, unsigned *out) {
  uint64_t wide; int rc = number(handle, key, &wide);
  if (!rc) *out = (unsigned)wide;
  return rc;
}

static int text(void *handle, int key, char *out, unsigned size) {
  const struct gpu *g = &said->gpus[GPU(handle)];
  if (!g->has_text[key]) return NOT_SUPPORTED;
  if (strlen(g->texts[key]) >= size) return INSUFFICIENT_SIZE;
  strcpy(out, g->texts[key]);
  return OK;
}

/* --- the library --------------------------------------------------------------------------------------------- */

API int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int rc = gate("nvmlInitWithFlags", -1, 0);
  if (!rc) atomic_fetch_add(&users, 1);
  return rc;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
  ENTER_SYSTEM();
  atomic_fetch_sub(&users, 1);
  return OK;
}
API const char *nvmlErrorString(int code) {
  switch (code) {
    case 0: return "The operation was successful";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 28: return "No supported GPUs were found";
    case 999: return "Unknown Error";
    default: return "An error with no words";
  }
}
static int copy(char *out, unsigned size, const char *from) {
  if (strlen(from) >= size) return INSUFFICIENT_SIZE;
  strcpy(out, from);
  return OK;
}
API int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER_SYSTEM(); return copy(out, size, said->driver); }
API int nvmlSystemGetNVMLVersion(char *out, unsigned size) { ENTER_SYSTEM(); return copy(out, size, said->library); }
API int nvmlSystemGetCudaDriverVersion(int *out) { ENTER_SYSTEM(); *out = said->cuda; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER_SYSTEM(); *out = said->cuda; return OK; }
API int nvmlDeviceGetCount_v2(unsigned *out) { ENTER_SYSTEM(); *out = said->count; return OK; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  int rc = gate(__func__, (int)index, 1);
  if (rc) return rc;
  if (index >= said->count) return INVALID_ARGUMENT;
  *out = (void *)(intptr_t)(index + 1);
  return OK;
}
API int nvmlDeviceGetIndex(void *h, unsigned *out) { ENTER(h); *out = (unsigned)GPU(h); return OK; }

/* --- plain numbers and texts --------------------------------------------------------------------------------- */

#define NUMBER32(name) API int name(void *h, unsigned *out) { ENTER(h); return number32(h, N_##name, out); }
#define NUMBER64(name) API int name(void *h, uint64_t *out) { ENTER(h); return number(h, N_##name, out); }
#define TEXT_OF(name) API int name(void *h, char *out, unsigned size) { ENTER(h); return text(h, T_##name, out, size); }
#define PAIR32(name, one, two) API int name(void *h, unsigned *a, unsigned *b) { \
  ENTER(h); int rc = number32(h, N_##name##_##one, a); return rc ? rc : number32(h, N_##name##_##two, b); }
#define WITH_PERIOD(name) API int name(void *h, unsigned *out, unsigned *period_us) { \
  ENTER(h); *period_us = 167000; return number32(h, N_##name, out); }

TEXT_OF(nvmlDeviceGetName) TEXT_OF(nvmlDeviceGetUUID) TEXT_OF(nvmlDeviceGetSerial)
TEXT_OF(nvmlDeviceGetBoardPartNumber) TEXT_OF(nvmlDeviceGetVbiosVersion) TEXT_OF(nvmlDeviceGetInforomImageVersion)
API int nvmlDeviceGetGspFirmwareVersion(void *h, char *out) { ENTER(h); return text(h, T_nvmlDeviceGetGspFirmwareVersion, out, 64); }

NUMBER32(nvmlDeviceGetPowerUsage) NUMBER32(nvmlDeviceGetEnforcedPowerLimit)
NUMBER32(nvmlDeviceGetPowerManagementLimit) NUMBER32(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER32(nvmlDeviceGetNumFans) NUMBER32(nvmlDeviceGetPerformanceState)
NUMBER32(nvmlDeviceGetCurrPcieLinkGeneration) NUMBER32(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER32(nvmlDeviceGetMaxPcieLinkGeneration) NUMBER32(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER32(nvmlDeviceGetPcieReplayCounter) NUMBER32(nvmlDeviceGetPersistenceMode) NUMBER32(nvmlDeviceGetComputeMode)
NUMBER32(nvmlDeviceGetVirtualizationMode) NUMBER32(nvmlDeviceGetArchitecture)
NUMBER32(nvmlDeviceGetMinorNumber) NUMBER32(nvmlDeviceGetModuleId)
NUMBER64(nvmlDeviceGetTotalEnergyConsumption)
PAIR32(nvmlDeviceGetEccMode, current, pending) PAIR32(nvmlDeviceGetMigMode, current, pending)
PAIR32(nvmlDeviceGetCudaComputeCapability, major, minor)
WITH_PERIOD(nvmlDeviceGetEncoderUtilization) WITH_PERIOD(nvmlDeviceGetDecoderUtilization)
API int nvmlDeviceGetUtilizationRates(void *h, unsigned *out) {
  ENTER(h);
  int rc = number32(h, N_nvmlDeviceGetUtilizationRates_gpu, &out[0]);
  return rc ? rc : number32(h, N_nvmlDeviceGetUtilizationRates_memory, &out[1]);
}
API int nvmlDeviceGetTemperature(void *h, unsigned sensor, unsigned *out) {
  ENTER(h);
  return sensor ? INVALID_ARGUMENT : number32(h, N_nvmlDeviceGetTemperature, out);
}
API int nvmlDeviceGetFanSpeed_v2(void *h, unsigned fan, unsigned *out) {
  ENTER(h);
  return fan > 3 ? INVALID_ARGUMENT : number32(h, (int)(N_nvmlDeviceGetFanSpeed_0 + fan), out);
}
API int nvmlDeviceGetClockInfo(void *h, unsigned kind, unsigned *out) {
  ENTER(h);
  return kind > 3 ? INVALID_ARGUMENT : number32(h, (int)(N_nvmlDeviceGetClockInfo_0 + kind), out);
}
API int nvmlDeviceGetMaxClockInfo(void *h, unsigned kind, unsigned *out) {
  ENTER(h);
  return kind > 3 ? INVALID_ARGUMENT : number32(h, (int)(N_nvmlDeviceGetMaxClockInfo_0 + kind), out);
}
API int nvmlDeviceGetTotalEccErrors(void *h, unsigned type, unsigned counter, uint64_t *out) {
  ENTER(h);
  if (type > 1 || counter > 1) return INVALID_ARGUMENT;
  return number(h, (int)(N_nvmlDeviceGetTotalEccErrors_corrected_volatile + 2 * type + counter), out);
}
API int nvmlDeviceGetRemappedRows(void *h, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
  ENTER(h);
  int rc = number32(h, N_nvmlDeviceGetRemappedRows_correctable, correctable);
  if (!rc) rc = number32(h, N_nvmlDeviceGetRemappedRows_uncorrectable, uncorrectable);
  if (!rc) rc = number32(h, N_nvmlDeviceGetRemappedRows_pending, pending);
  return rc ? rc : number32(h, N_nvmlDeviceGetRemappedRows_failed, failed);
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, uint64_t *out) {
  ENTER(h);
  return number(h, N_nvmlDeviceGetCurrentClocksEventReasons, out);
}

/* --- structs --------------------------------------------------------------------------------------------------- */

struct memory { uint64_t total, free, used; };
struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
struct bar1 { uint64_t total, free, used; };
struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
struct process { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; };
struct field_value {
  unsigned id, scope; long long timestamp, latency_us; unsigned type; int rc; uint64_t bits;
};

API int nvmlDeviceGetMemoryInfo(void *h, struct memory *out) { /* its `used` holds what is reserved, too */
  ENTER(h);
  uint64_t reserved;
  int rc = number(h, N_nvmlDeviceGetMemoryInfo_total, &out->total);
  if (!rc) rc = number(h, N_nvmlDeviceGetMemoryInfo_free, &out->free);
  if (!rc) rc = number(h, N_nvmlDeviceGetMemoryInfo_used, &out->used);
  if (!rc) rc = number(h, N_nvmlDeviceGetMemoryInfo_reserved, &reserved);
  if (!rc) out->used += reserved;
  return rc;
}
API int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory_v2 *out) {
  ENTER(h);
  if (out->version != 0x02000028) return VERSION_MISMATCH;
  int rc = number(h, N_nvmlDeviceGetMemoryInfo_total, &out->total);
  if (!rc) rc = number(h, N_nvmlDeviceGetMemoryInfo_reserved, &out->reserved);
  if (!rc) rc = number(h, N_nvmlDeviceGetMemoryInfo_free, &out->free);
  return rc ? rc : number(h, N_nvmlDeviceGetMemoryInfo_used, &out->used);
}
API int nvmlDeviceGetBAR1MemoryInfo(void *h, struct bar1 *out) {
  ENTER(h);
  int rc = number(h, N_nvmlDeviceGetBAR1MemoryInfo_total, &out->total);
  if (!rc) rc = number(h, N_nvmlDeviceGetBAR1MemoryInfo_free, &out->free);
  return rc ? rc : number(h, N_nvmlDeviceGetBAR1MemoryInfo_used, &out->used);
}
API int nvmlDeviceGetPciInfo_v3(void *h, struct pci_info *out) {
  ENTER(h);
  memset(out, 0, sizeof *out);
  int rc = text(h, T_nvmlDeviceGetPciInfo, out->bus_id, sizeof out->bus_id);
  if (!rc) sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
  return rc;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, struct process *out) {
  ENTER(h);
  unsigned room = *count; int rc = number32(h, N_nvmlDeviceGetComputeRunningProcesses, count);
  if (rc) return rc;
  if (*count > room) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) out[i] = (struct process){4000 + i, ~0ULL, ~0u, ~0u};
  return OK;
}
API int nvmlDeviceGetFieldValues(void *h, int count, struct field_value *values) {
  const int end = DRIVER_BRANCH < 535 ? 186 : DRIVER_BRANCH < 550 ? 197 : DRIVER_BRANCH < 570 ? 230 : DRIVER_BRANCH < 590 ? 269 : 308;
  ENTER(h);
  const struct gpu *g = &said->gpus[GPU(h)];
  for (int i = 0; i < count; i++) if (values[i].id >= (unsigned)end) return INVALID_ARGUMENT;
  for (int i = 0; i < count; i++) {
    const struct field *f = NULL;
    for (int j = 0; j < g->field_count; j++)
      if (g->fields[j].id == values[i].id && g->fields[j].scope == values[i].scope) f = &g->fields[j];
    if (f && f->untouched) continue;
    values[i].timestamp = 1700000000000000LL; /* microseconds */
    values[i].latency_us = 3;
    values[i].rc = f ? f->rc : NOT_SUPPORTED;
    if (!f || f->rc) continue;
    values[i].type = f->type;
    values[i].bits = f->bits;
  }
  return OK;
}

/* --- what came with later branches ------------------------------------------------------------------------------- */

#if DRIVER_BRANCH >= 535
WITH_PERIOD(nvmlDeviceGetJpgUtilization) WITH_PERIOD(nvmlDeviceGetOfaUtilization)
NUMBER64(nvmlDeviceGetCurrentClocksEventReasons)
#endif
#if DRIVER_BRANCH >= 570
struct temperature { unsigned version, sensor; int celsius; };
struct margin { unsigned version; int celsius; };
API int nvmlDeviceGetTemperatureV(void *h, struct temperature *out) {
  ENTER(h);
  if (out->version != 0x0100000C) return VERSION_MISMATCH;
  return out->sensor ? INVALID_ARGUMENT : number32(h, N_nvmlDeviceGetTemperature, (unsigned *)&out->celsius);
}
API int nvmlDeviceGetMarginTemperature(void *h, struct margin *out) {
  ENTER(h);
  if (out->version != 0x01000008) return VERSION_MISMATCH;
  return number32(h, N_nvmlDeviceGetMarginTemperature, (unsigned *)&out->celsius);
}
#endif

/* --- what a probe must never call ----------------------------------------------------------------------------- */

#define FORBIDDEN(name) API int name(void) { refuse("a probe only reads, and this writes", #name); return 0; }
FORBIDDEN(nvmlComputeInstanceDestroy) FORBIDDEN(nvmlDeviceClearAccountingPids) FORBIDDEN(nvmlDeviceClearCpuAffinity)
FORBIDDEN(nvmlDeviceClearEccErrorCounts) FORBIDDEN(nvmlDeviceClearFieldValues) FORBIDDEN(nvmlDeviceCreateGpuInstance)
FORBIDDEN(nvmlDeviceCreateGpuInstanceWithPlacement) FORBIDDEN(nvmlDeviceDiscoverGpus)
FORBIDDEN(nvmlDeviceFreezeNvLinkUtilizationCounter) FORBIDDEN(nvmlDeviceModifyDrainState)
FORBIDDEN(nvmlDevicePowerSmoothingActivatePresetProfile) FORBIDDEN(nvmlDevicePowerSmoothingSetState)
FORBIDDEN(nvmlDevicePowerSmoothingUpdatePresetProfileParam) FORBIDDEN(nvmlDeviceReadWritePRM_v1)
FORBIDDEN(nvmlDeviceRemoveGpu_v2) FORBIDDEN(nvmlDeviceResetApplicationsClocks)
FORBIDDEN(nvmlDeviceResetGpuLockedClocks) FORBIDDEN(nvmlDeviceResetMemoryLockedClocks)
FORBIDDEN(nvmlDeviceResetNvLinkErrorCounters) FORBIDDEN(nvmlDeviceResetNvLinkUtilizationCounter)
FORBIDDEN(nvmlDeviceSetAPIRestriction) FORBIDDEN(nvmlDeviceSetAccountingMode)
FORBIDDEN(nvmlDeviceSetApplicationsClocks) FORBIDDEN(nvmlDeviceSetAutoBoostedClocksEnabled)
FORBIDDEN(nvmlDeviceSetClockOffsets) FORBIDDEN(nvmlDeviceSetComputeMode)
FORBIDDEN(nvmlDeviceSetConfComputeUnprotectedMemSize) FORBIDDEN(nvmlDeviceSetCpuAffinity)
FORBIDDEN(nvmlDeviceSetDefaultAutoBoostedClocksEnabled) FORBIDDEN(nvmlDeviceSetDefaultFanSpeed_v2)
FORBIDDEN(nvmlDeviceSetDramEncryptionMode) FORBIDDEN(nvmlDeviceSetDriverModel) FORBIDDEN(nvmlDeviceSetEccMode)
FORBIDDEN(nvmlDeviceSetFanControlPolicy) FORBIDDEN(nvmlDeviceSetFanSpeed_v2) FORBIDDEN(nvmlDeviceSetGpcClkVfOffset)
FORBIDDEN(nvmlDeviceSetGpuLockedClocks) FORBIDDEN(nvmlDeviceSetGpuOperationMode)
FORBIDDEN(nvmlDeviceSetMemClkVfOffset) FORBIDDEN(nvmlDeviceSetMemoryLockedClocks) FORBIDDEN(nvmlDeviceSetMigMode)
FORBIDDEN(nvmlDeviceSetNvLinkDeviceLowPowerThreshold) FORBIDDEN(nvmlDeviceSetNvLinkUtilizationControl)
FORBIDDEN(nvmlDeviceSetNvlinkBwMode) FORBIDDEN(nvmlDeviceSetPersistenceMode)
FORBIDDEN(nvmlDeviceSetPowerManagementLimit) FORBIDDEN(nvmlDeviceSetPowerManagementLimit_v2)
FORBIDDEN(nvmlDeviceSetTemperatureThreshold) FORBIDDEN(nvmlDeviceSetVgpuCapabilities)
FORBIDDEN(nvmlDeviceSetVgpuHeterogeneousMode) FORBIDDEN(nvmlDeviceSetVgpuSchedulerState)
FORBIDDEN(nvmlDeviceSetVirtualizationMode) FORBIDDEN(nvmlDeviceValidateInforom)
FORBIDDEN(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles)
FORBIDDEN(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles) FORBIDDEN(nvmlGpmSetStreamingEnabled)
FORBIDDEN(nvmlGpuInstanceCreateComputeInstance) FORBIDDEN(nvmlGpuInstanceCreateComputeInstanceWithPlacement)
FORBIDDEN(nvmlGpuInstanceDestroy) FORBIDDEN(nvmlGpuInstanceSetVgpuHeterogeneousMode)
FORBIDDEN(nvmlGpuInstanceSetVgpuSchedulerState) FORBIDDEN(nvmlSetVgpuVersion)
FORBIDDEN(nvmlSystemSetConfComputeGpusReadyState) FORBIDDEN(nvmlSystemSetConfComputeKeyRotationThresholdInfo)
FORBIDDEN(nvmlSystemSetNvlinkBwMode) FORBIDDEN(nvmlUnitSetLedState) FORBIDDEN(nvmlVgpuInstanceClearAccountingPids)
FORBIDDEN(nvmlVgpuInstanceSetEncoderCapacity)
