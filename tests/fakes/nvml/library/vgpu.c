/* vGPUs: the host's types and instances, and what a guest sees. An instance lives while the scenario gives it a UUID.
 *
 * `row GPU nvmlDeviceGetActiveVgpus ID` lists one. `row GPU nvmlDeviceGetVgpuUtilization TIME ID SM MEM ENC DEC JPG OFA`
 * is a sample, at TIME microseconds since 1970, or that long ago if it is less than a year. Faults of calls for
 * an instance use its id as the GPU.
 */
#include "fake.h"
#include <time.h>

/* --- the host's GPU ------------------------------------------------------------------------------------------- */

NUMBER32(nvmlDeviceGetHostVgpuMode) INDEXED32(nvmlDeviceGetVgpuCapabilities)

API int nvmlDeviceGetActiveVgpus(void *h, unsigned *count, unsigned *out) {
  ENTER(h);
  unsigned room = *count;
  if (!find(SUBJECT(h), "nvmlDeviceGetHostVgpuMode", 0)) return NOT_SUPPORTED;
  *count = rows(SUBJECT(h), "nvmlDeviceGetActiveVgpus");
  if (*count > room) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) out[i] = (unsigned)row(SUBJECT(h), "nvmlDeviceGetActiveVgpus", i)->n[0];
  return OK;
}

struct scheduler { unsigned policy, arr_mode, parameters[2]; };
API int nvmlDeviceGetVgpuSchedulerState(void *h, struct scheduler *out) {
  ENTER(h);
  memset(out, 0xAB, sizeof *out);
  int rc = number32(SUBJECT(h), "nvmlDeviceGetVgpuSchedulerState_policy", 0, &out->policy);
  if (!rc) rc = number32(SUBJECT(h), "nvmlDeviceGetVgpuSchedulerState_arr", 0, &out->arr_mode);
  if (rc) return rc;
  return number32(SUBJECT(h), "nvmlDeviceGetVgpuSchedulerState_slice", 0, &out->parameters[out->arr_mode == 2]);
}
struct scheduler_caps { unsigned policies[3], max_slice, min_slice, arr_supported, rest[4]; };
API int nvmlDeviceGetVgpuSchedulerCapabilities(void *h, struct scheduler_caps *out) {
  ENTER(h);
  memset(out, 0xAB, sizeof *out);
  return number32(SUBJECT(h), "nvmlDeviceGetVgpuSchedulerCapabilities_arr", 0, &out->arr_supported);
}
struct versioned { unsigned version, value; };
#if DRIVER_BRANCH >= 550
API int nvmlDeviceGetVgpuHeterogeneousMode(void *h, struct versioned *out) {
  ENTER(h);
  if (out->version != 0x01000008) return VERSION_MISMATCH;
  return number32(SUBJECT(h), "nvmlDeviceGetVgpuHeterogeneousMode", 0, &out->value);
}
#endif

/* --- utilization ---------------------------------------------------------------------------------------------- */

union value { double d; unsigned u; unsigned long long ull; unsigned short us; };
struct old_sample { unsigned instance; uint64_t at; union value used[4]; };
struct sample { uint64_t at; unsigned instance; union value used[6]; };
struct info { unsigned version, type, count; uint64_t last_seen; struct sample *samples; };

static union value as(unsigned type, uint64_t percent) {
  union value v;
  memset(&v, 0xAB, sizeof v); /* bytes not covered by the type are undefined */
  if (type == 0) v.d = (double)percent;
  else if (type == 1 || type == 5) v.u = (unsigned)percent;
  else if (type == 6) v.us = (unsigned short)percent;
  else v.ull = percent;
  return v;
}

/* Copies samples after a time into either kind of record and returns a code. */
static int use_since(int subject, uint64_t last_seen, unsigned *type, unsigned *count, struct sample *out, struct old_sample *old) {
  const char *table = "nvmlDeviceGetVgpuUtilization";
  struct timespec t; unsigned found = 0, room = *count;
  clock_gettime(CLOCK_REALTIME, &t);
  uint64_t now = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
  int rc = number32(subject, "nvmlDeviceGetVgpuUtilization_type", 0, type);
  if (rc) return rc;
  for (unsigned i = 0; i < rows(subject, table); i++) {
    const struct entry *e = row(subject, table, i);
    uint64_t at = e->n[0] < 31536000000000ULL ? now - e->n[0] : e->n[0];
    if (at < last_seen || (at == last_seen && !find(subject, "nvmlDeviceGetVgpuUtilization_inclusive", 0))) continue;
    if (found < room && out) {
      out[found].at = at;
      out[found].instance = (unsigned)e->n[1];
      for (int j = 0; j < 6; j++) out[found].used[j] = as(*type, e->n[2 + j]);
    } else if (found < room && old) {
      old[found].at = at;
      old[found].instance = (unsigned)e->n[1];
      for (int j = 0; j < 4; j++) old[found].used[j] = as(*type, e->n[2 + j]);
    }
    found++;
  }
  *count = found;
  return !found ? NOT_FOUND : found > room ? INSUFFICIENT_SIZE : OK;
}

API int nvmlDeviceGetVgpuUtilization(void *h, unsigned long long last_seen, unsigned *type, unsigned *count, struct old_sample *out) {
  ENTER(h);
  return use_since(SUBJECT(h), last_seen, type, count, NULL, out);
}
#if DRIVER_BRANCH >= 550
API int nvmlDeviceGetVgpuInstancesUtilizationInfo(void *h, struct info *info) {
  ENTER(h);
  if (info->version != 0x01000020) return VERSION_MISMATCH;
  return use_since(SUBJECT(h), info->last_seen, &info->type, &info->count, info->samples, NULL);
}
#endif

/* --- types ---------------------------------------------------------------------------------------------------- */

#define ENTER_TYPE(type) do { int rc_ = gate(__func__, (int)(type), 1); if (rc_) return rc_; } while (0)

API int nvmlVgpuTypeGetName(unsigned type, char *out, unsigned *size) {
  ENTER_TYPE(type); return text(VGPU_TYPE + (int)type, "nvmlVgpuTypeGetName", out, *size);
}
API int nvmlVgpuTypeGetClass(unsigned type, char *out, unsigned *size) {
  ENTER_TYPE(type); return text(VGPU_TYPE + (int)type, "nvmlVgpuTypeGetClass", out, *size);
}
API int nvmlVgpuTypeGetLicense(unsigned type, char *out, unsigned size) {
  ENTER_TYPE(type); return text(VGPU_TYPE + (int)type, "nvmlVgpuTypeGetLicense", out, size);
}
API int nvmlVgpuTypeGetFramebufferSize(unsigned type, uint64_t *out) {
  ENTER_TYPE(type); return number(VGPU_TYPE + (int)type, "nvmlVgpuTypeGetFramebufferSize", 0, out);
}

/* --- instances ------------------------------------------------------------------------------------------------ */

#define SUBJECT_OF(id) (VGPU + (int)(id))
#define ENTER_VGPU(id) do { int rc_ = gate(__func__, (int)(id), 1); if (rc_) return rc_; \
  if (!find(SUBJECT_OF(id), "nvmlVgpuInstanceGetUUID", 0)) return NOT_FOUND; } while (0)
#define VGPU32(name) API int name(unsigned id, unsigned *out) { ENTER_VGPU(id); return number32(SUBJECT_OF(id), #name, 0, out); }
#define VGPU_TEXT(name) API int name(unsigned id, char *out, unsigned size) { \
  ENTER_VGPU(id); return text(SUBJECT_OF(id), #name, out, size); }

VGPU_TEXT(nvmlVgpuInstanceGetUUID) VGPU_TEXT(nvmlVgpuInstanceGetMdevUUID) VGPU_TEXT(nvmlVgpuInstanceGetVmDriverVersion)
VGPU32(nvmlVgpuInstanceGetType) VGPU32(nvmlVgpuInstanceGetFrameRateLimit) VGPU32(nvmlVgpuInstanceGetEccMode)
VGPU32(nvmlVgpuInstanceGetGpuInstanceId) VGPU32(nvmlVgpuInstanceGetAccountingMode)

API int nvmlVgpuInstanceGetFbUsage(unsigned id, uint64_t *out) {
  ENTER_VGPU(id); return number(SUBJECT_OF(id), "nvmlVgpuInstanceGetFbUsage", 0, out);
}
API int nvmlVgpuInstanceGetVmID(unsigned id, char *out, unsigned size, unsigned *kind) {
  ENTER_VGPU(id);
  memset(out, 0, size); /* it fills the size that was passed */
  int rc = number32(SUBJECT_OF(id), "nvmlVgpuInstanceGetVmID_kind", 0, kind);
  return rc ? rc : text(SUBJECT_OF(id), "nvmlVgpuInstanceGetVmID", out, size);
}
#if DRIVER_BRANCH >= 550
API int nvmlVgpuInstanceGetPlacementId(unsigned id, struct versioned *out) {
  ENTER_VGPU(id);
  if (out->version != 0x01000008) return VERSION_MISMATCH;
  return number32(SUBJECT_OF(id), "nvmlVgpuInstanceGetPlacementId", 0, &out->value);
}
#endif

struct expiry { uint32_t year; uint16_t month, day, hour, minute, second; uint8_t status; };
static void expires(int subject, struct expiry *out) { /* `row SUBJECT expiry STATUS YEAR MONTH DAY HOUR MINUTE SECOND` */
  const struct entry *e = row(subject, "expiry", 0);
  memset(out, 0, sizeof *out);
  if (!e) return;
  *out = (struct expiry){(uint32_t)e->n[1], (uint16_t)e->n[2], (uint16_t)e->n[3], (uint16_t)e->n[4], (uint16_t)e->n[5],
                         (uint16_t)e->n[6], (uint8_t)e->n[0]};
}

struct license { uint8_t licensed; struct expiry expiry; unsigned state; };
API int nvmlVgpuInstanceGetLicenseInfo_v2(unsigned id, struct license *out) {
  ENTER_VGPU(id);
  expires(SUBJECT_OF(id), &out->expiry);
  int rc = number32(SUBJECT_OF(id), "nvmlVgpuInstanceGetLicenseInfo", 0, &out->state);
  out->licensed = out->state == 5;
  return rc;
}

/* `row vgpu17 nvmlVgpuInstanceGetAccountingPids PID RUNNING GPU_PERCENT` */
API int nvmlVgpuInstanceGetAccountingPids(unsigned id, unsigned *count, unsigned *out) {
  ENTER_VGPU(id);
  unsigned room = *count;
  *count = rows(SUBJECT_OF(id), "nvmlVgpuInstanceGetAccountingPids");
  if (*count > room) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) out[i] = (unsigned)row(SUBJECT_OF(id), "nvmlVgpuInstanceGetAccountingPids", i)->n[0];
  return OK;
}
struct accounting { unsigned gpu, memory; uint64_t max_memory, time, start; unsigned running, reserved[5]; };
API int nvmlVgpuInstanceGetAccountingStats(unsigned id, unsigned pid, struct accounting *out) {
  ENTER_VGPU(id);
  for (unsigned i = 0; i < rows(SUBJECT_OF(id), "nvmlVgpuInstanceGetAccountingPids"); i++) {
    const struct entry *e = row(SUBJECT_OF(id), "nvmlVgpuInstanceGetAccountingPids", i);
    if (e->n[0] != pid) continue;
    *out = (struct accounting){(unsigned)e->n[2], 0, 0, 0, 0, (unsigned)e->n[1], {0}};
    return OK;
  }
  return NOT_FOUND;
}

/* --- the guest ------------------------------------------------------------------------------------------------ */

struct feature { unsigned code, state; char info[128], product[128]; unsigned enabled; struct expiry expiry; };
struct features { int supported; unsigned count; struct feature of[3]; };
/* `number 0 nvmlDeviceGetGridLicensableFeatures STATE` with the text of the product: one feature that is in use. */
API int nvmlDeviceGetGridLicensableFeatures_v4(void *h, struct features *out) {
  ENTER(h);
  memset(out, 0, sizeof *out);
  out->supported = find(SUBJECT(h), "nvmlDeviceGetGridLicensableFeatures", 0) != NULL;
  if (!out->supported) return OK;
  out->count = 2;
  out->of[0] = (struct feature){.code = 1, .state = 0, .enabled = 0};
  out->of[1].code = 4;
  out->of[1].enabled = 1;
  expires(SUBJECT(h), &out->of[1].expiry);
  text(SUBJECT(h), "nvmlDeviceGetGridLicensableFeatures_product", out->of[1].product, 128);
  return number32(SUBJECT(h), "nvmlDeviceGetGridLicensableFeatures", 0, &out->of[1].state);
}
