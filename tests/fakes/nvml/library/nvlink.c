/* NVLink, the fabric, and the chip-to-chip link. A scenario has states by link; the last one is the last link. */
#include "fake.h"

static int of_link(void *h, const char *key, unsigned link, unsigned *out) {
  int rc = number32(SUBJECT(h), key, link + 1, out);
  return rc && find(SUBJECT(h), "nvmlDeviceGetNvLinkState", 1) ? INVALID_ARGUMENT : rc;
}
API int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *out) {
  ENTER(h);
  return of_link(h, "nvmlDeviceGetNvLinkState", link, out);
}
API int nvmlDeviceGetNvLinkVersion(void *h, unsigned link, unsigned *out) {
  ENTER(h);
  return of_link(h, "nvmlDeviceGetNvLinkVersion", link, out);
}
struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, struct pci_info *out) {
  ENTER(h);
  const struct entry *e = find(SUBJECT(h), "nvmlDeviceGetNvLinkRemotePciInfo_v2", link + 1);
  memset(out, 0, sizeof *out);
  return e ? copy(out->bus_id, sizeof out->bus_id, e->text) : NOT_SUPPORTED;
}
#if DRIVER_BRANCH >= 535
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned link, unsigned *out) {
  ENTER(h);
  return of_link(h, "nvmlDeviceGetNvLinkRemoteDeviceType", link, out);
}
#endif

#if DRIVER_BRANCH >= 550
struct fabric { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned mask; unsigned char summary; };
struct c2c { unsigned enabled; };
API int nvmlDeviceGetGpuFabricInfoV(void *h, struct fabric *out) { /* row: state, status, clique, mask, summary, cluster */
  ENTER(h);
  int with_summary = out->version == 0x03000028;
  if (out->version != 0x02000024 && !(with_summary && DRIVER_BRANCH >= 580)) return VERSION_MISMATCH;
  const struct entry *e = row(SUBJECT(h), "nvmlDeviceGetGpuFabricInfoV", 0);
  if (!e) return NOT_SUPPORTED;
  out->state = (unsigned char)e->n[0];
  out->status = (unsigned)e->n[1];
  out->clique = (unsigned)e->n[2];
  out->mask = (unsigned)e->n[3];
  if (with_summary) out->summary = (unsigned char)e->n[4];
  for (int i = 0; i < 16; i++) out->cluster[i] = e->n[5] ? (unsigned char)(e->n[5] + i) : 0;
  return OK;
}
API int nvmlDeviceGetC2cModeInfoV(void *h, struct c2c *out) {
  ENTER(h);
  return number32(SUBJECT(h), "nvmlDeviceGetC2cModeInfoV", 0, &out->enabled);
}
#endif
