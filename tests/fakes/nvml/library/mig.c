/* MIG devices. A device exists in the slot of its subject (`3.0` is slot 0 of GPU 3) if it has a UUID.
 * `row 3.0 nvmlDeviceGetAttributes` has the nine numbers of nvmlDeviceAttributes_t; `3/gi7` is GPU instance 7 of GPU 3.
 */
#include "fake.h"

static unsigned life_of(int subject) {
  const struct entry *uuid = find(subject, "nvmlDeviceGetUUID", 0);
  unsigned hash = 5381;
  if (!uuid) return 0;
  for (const char *c = uuid->text; *c; c++) hash = hash * 33 ^ (unsigned char)*c;
  return (hash & 0x7FFF) + 1;
}

int is_dead(const void *handle) {
  return SLOT(handle) >= 0 && (unsigned)((intptr_t)handle >> 32) != life_of(SUBJECT(handle));
}

NUMBER32(nvmlDeviceGetMaxMigDeviceCount) NUMBER32(nvmlDeviceGetGpuInstanceId) NUMBER32(nvmlDeviceGetComputeInstanceId)

API int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **out) {
  ENTER(h);
  unsigned life = life_of(MIG_SUBJECT(GPU(h), (int)index));
  *out = MIG_HANDLE(GPU(h), (int)index, life);
  return life ? OK : NOT_FOUND;
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *h, void **out) {
  ENTER(h);
  *out = HANDLE(GPU(h), -1);
  return SLOT(h) < 0 ? INVALID_ARGUMENT : OK;
}

struct attributes { unsigned n[8]; uint64_t memory_mib; };
API int nvmlDeviceGetAttributes_v2(void *h, struct attributes *out) {
  ENTER(h);
  const struct entry *e = row(SUBJECT(h), "nvmlDeviceGetAttributes", 0);
  if (!e) return NOT_SUPPORTED;
  for (int i = 0; i < 8; i++) out->n[i] = (unsigned)e->n[i];
  out->memory_mib = e->n[8];
  return OK;
}

struct gpu_instance { void *device; unsigned id, profile, start, size; };
API int nvmlDeviceGetGpuInstanceById(void *h, unsigned id, void **out) {
  ENTER(h);
  int subject = GPU_INSTANCE + GPU(h) * 1000 + (int)id;
  *out = (void *)(intptr_t)subject;
  return find(subject, "nvmlGpuInstanceGetInfo_start", 0) ? OK : NO_PERMISSION;
}
API int nvmlGpuInstanceGetInfo(void *instance, struct gpu_instance *out) {
  int subject = (int)(intptr_t)instance, gpu = (subject - GPU_INSTANCE) / 1000;
  int rc = gate(__func__, gpu, 1);
  if (rc) return rc;
  *out = (struct gpu_instance){HANDLE(gpu, -1), (unsigned)(subject - GPU_INSTANCE) % 1000, 0, 0, 0};
  rc = number32(subject, "nvmlGpuInstanceGetInfo_start", 0, &out->start);
  return rc ? rc : number32(subject, "nvmlGpuInstanceGetInfo_size", 0, &out->size);
}
