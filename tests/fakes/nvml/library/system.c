/* NVML as a whole: start, versions, and which GPUs there are. */
#include "fake.h"
#include <fcntl.h>
#include <unistd.h>

/* A driver's library holds the device files open while it is in use; FAKE_NVML_DEVICE names a stand-in. */
static int device = -1;
API int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int rc = gate("nvmlInitWithFlags", -1, 0);
  if (!rc) atomic_fetch_add(&users, 1);
  const char *path = getenv("FAKE_NVML_DEVICE");
  if (!rc && path && device < 0) device = open(path, O_RDONLY | O_CLOEXEC);
  return rc;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
  ENTER_SYSTEM();
  atomic_fetch_sub(&users, 1);
  if (device >= 0) close(device);
  device = -1;
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
    default: return "An error without a text";
  }
}
API int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER_SYSTEM(); return copy(out, size, driver_version()); }
API int nvmlSystemGetNVMLVersion(char *out, unsigned size) { ENTER_SYSTEM(); return copy(out, size, library_version()); }
API int nvmlSystemGetCudaDriverVersion(int *out) { ENTER_SYSTEM(); *out = cuda_version(); return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER_SYSTEM(); *out = cuda_version(); return OK; }
API int nvmlDeviceGetCount_v2(unsigned *out) { ENTER_SYSTEM(); *out = gpu_count(); return OK; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  int rc = gate(__func__, (int)index, 1);
  if (rc) return rc;
  if (index >= gpu_count()) return INVALID_ARGUMENT;
  *out = HANDLE((int)index, -1);
  return OK;
}
API int nvmlDeviceGetIndex(void *h, unsigned *out) { ENTER(h); *out = (unsigned)GPU(h); return OK; }
