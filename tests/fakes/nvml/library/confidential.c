/* Confidential computing of devices and of the machine. Results of the machine are those of GPU 0. */
#include "fake.h"

struct sizes { uint64_t protected_kib, unprotected_kib; };
struct memory { uint64_t total, free, used; };
struct state { unsigned environment, feature, devtools; };
struct settings { unsigned version, environment, feature, devtools, multi_gpu; };

API int nvmlDeviceGetConfComputeMemSizeInfo(void *h, struct sizes *out) {
  ENTER(h);
  int rc = number(SUBJECT(h), "nvmlDeviceGetConfComputeMemSizeInfo_protected", 0, &out->protected_kib);
  return rc ? rc : number(SUBJECT(h), "nvmlDeviceGetConfComputeMemSizeInfo_unprotected", 0, &out->unprotected_kib);
}
API int nvmlDeviceGetConfComputeProtectedMemoryUsage(void *h, struct memory *out) {
  ENTER(h);
  int rc = number(SUBJECT(h), "nvmlDeviceGetConfComputeMemSizeInfo_protected", 0, &out->total);
  out->total *= 1024;
  if (!rc) rc = number(SUBJECT(h), "nvmlDeviceGetConfComputeProtectedMemoryUsage_used", 0, &out->used);
  out->free = out->total - out->used;
  return rc;
}
#if DRIVER_BRANCH >= 535
API int nvmlSystemGetConfComputeState(struct state *out) {
  ENTER_SYSTEM();
  int rc = number32(0, "nvmlSystemGetConfComputeState_environment", 0, &out->environment);
  if (!rc) rc = number32(0, "nvmlSystemGetConfComputeState_feature", 0, &out->feature);
  return rc ? rc : number32(0, "nvmlSystemGetConfComputeState_devtools", 0, &out->devtools);
}
API int nvmlSystemGetConfComputeGpusReadyState(unsigned *out) {
  ENTER_SYSTEM();
  return number32(0, "nvmlSystemGetConfComputeGpusReadyState", 0, out);
}
#endif
#if DRIVER_BRANCH >= 550
API int nvmlSystemGetConfComputeSettings(struct settings *out) {
  ENTER_SYSTEM();
  if (out->version != 0x01000014) return VERSION_MISMATCH;
  return number32(0, "nvmlSystemGetConfComputeSettings_multi_gpu", 0, &out->multi_gpu);
}
#endif
