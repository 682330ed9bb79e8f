/* One GPU, or one MIG device: identity, temperature, power, clocks, memory, errors, the PCIe link. */
#include "fake.h"

TEXT_OF(nvmlDeviceGetName) TEXT_OF(nvmlDeviceGetUUID) TEXT_OF(nvmlDeviceGetSerial)
TEXT_OF(nvmlDeviceGetBoardPartNumber) TEXT_OF(nvmlDeviceGetVbiosVersion) TEXT_OF(nvmlDeviceGetInforomImageVersion)
API int nvmlDeviceGetGspFirmwareVersion(void *h, char *out) { ENTER(h); return text(SUBJECT(h), "nvmlDeviceGetGspFirmwareVersion", out, 64); }

NUMBER32(nvmlDeviceGetPowerUsage) NUMBER32(nvmlDeviceGetEnforcedPowerLimit)
NUMBER32(nvmlDeviceGetPowerManagementLimit) NUMBER32(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER32(nvmlDeviceGetNumFans) NUMBER32(nvmlDeviceGetPerformanceState)
NUMBER32(nvmlDeviceGetCurrPcieLinkGeneration) NUMBER32(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER32(nvmlDeviceGetMaxPcieLinkGeneration) NUMBER32(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER32(nvmlDeviceGetPcieReplayCounter) NUMBER32(nvmlDeviceGetPersistenceMode) NUMBER32(nvmlDeviceGetComputeMode)
NUMBER32(nvmlDeviceGetVirtualizationMode) NUMBER32(nvmlDeviceGetArchitecture)
NUMBER32(nvmlDeviceGetMinorNumber) NUMBER32(nvmlDeviceGetModuleId) NUMBER32(nvmlDeviceGetAccountingMode)
NUMBER32(nvmlDeviceGetDisplayMode) NUMBER32(nvmlDeviceGetDisplayActive) NUMBER32(nvmlDeviceGetNumGpuCores)
NUMBER32(nvmlDeviceGetMemoryBusWidth)
PAIR32(nvmlDeviceGetGspFirmwareMode, enabled, default)
API int nvmlDeviceGetTemperatureThreshold(void *h, unsigned threshold, unsigned *out) {
  ENTER(h);
  return threshold > 7 ? INVALID_ARGUMENT : number32(SUBJECT(h), "nvmlDeviceGetTemperatureThreshold", threshold + 1, out);
}
API int nvmlDeviceGetSupportedClocksThrottleReasons(void *h, uint64_t *out) {
  ENTER(h);
  return number(SUBJECT(h), "nvmlDeviceGetSupportedClocksEventReasons", 0, out);
}
API int nvmlDeviceGetMemoryErrorCounter(void *h, unsigned type, unsigned counter, unsigned location, uint64_t *out) {
  ENTER(h);
  if (type > 1 || counter > 1 || location > 7) return INVALID_ARGUMENT;
  return number(SUBJECT(h), "nvmlDeviceGetMemoryErrorCounter", pair(pair(type + 1, counter), location), out);
}
API int nvmlDeviceGetRowRemapperHistogram(void *h, unsigned *out) {
  ENTER(h);
  const struct entry *e = row(SUBJECT(h), "nvmlDeviceGetRowRemapperHistogram", 0);
  for (int i = 0; e && i < 5; i++) out[i] = (unsigned)e->n[i];
  return e ? OK : NOT_SUPPORTED;
}
NUMBER64(nvmlDeviceGetTotalEnergyConsumption)
PAIR32(nvmlDeviceGetEccMode, current, pending) PAIR32(nvmlDeviceGetMigMode, current, pending)
PAIR32(nvmlDeviceGetCudaComputeCapability, major, minor)
WITH_PERIOD(nvmlDeviceGetEncoderUtilization) WITH_PERIOD(nvmlDeviceGetDecoderUtilization)
API int nvmlDeviceGetUtilizationRates(void *h, unsigned *out) {
  ENTER(h);
  int rc = number32(SUBJECT(h), "nvmlDeviceGetUtilizationRates_gpu", 0, &out[0]);
  return rc ? rc : number32(SUBJECT(h), "nvmlDeviceGetUtilizationRates_memory", 0, &out[1]);
}
API int nvmlDeviceGetTemperature(void *h, unsigned sensor, unsigned *out) {
  ENTER(h);
  return sensor ? INVALID_ARGUMENT : number32(SUBJECT(h), "nvmlDeviceGetTemperature", 0, out);
}
API int nvmlDeviceGetFanSpeed_v2(void *h, unsigned fan, unsigned *out) {
  ENTER(h);
  return fan > 3 ? INVALID_ARGUMENT : number32(SUBJECT(h), "nvmlDeviceGetFanSpeed", fan + 1, out);
}
API int nvmlDeviceGetClockInfo(void *h, unsigned kind, unsigned *out) {
  ENTER(h);
  return kind > 3 ? INVALID_ARGUMENT : number32(SUBJECT(h), "nvmlDeviceGetClockInfo", kind + 1, out);
}
API int nvmlDeviceGetMaxClockInfo(void *h, unsigned kind, unsigned *out) {
  ENTER(h);
  return kind > 3 ? INVALID_ARGUMENT : number32(SUBJECT(h), "nvmlDeviceGetMaxClockInfo", kind + 1, out);
}
API int nvmlDeviceGetTotalEccErrors(void *h, unsigned type, unsigned counter, uint64_t *out) {
  ENTER(h);
  if (type > 1 || counter > 1) return INVALID_ARGUMENT;
  return number(SUBJECT(h), "nvmlDeviceGetTotalEccErrors", pair(type + 1, counter), out);
}
API int nvmlDeviceGetRemappedRows(void *h, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
  ENTER(h);
  int rc = number32(SUBJECT(h), "nvmlDeviceGetRemappedRows_correctable", 0, correctable);
  if (!rc) rc = number32(SUBJECT(h), "nvmlDeviceGetRemappedRows_uncorrectable", 0, uncorrectable);
  if (!rc) rc = number32(SUBJECT(h), "nvmlDeviceGetRemappedRows_pending", 0, pending);
  return rc ? rc : number32(SUBJECT(h), "nvmlDeviceGetRemappedRows_failed", 0, failed);
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, uint64_t *out) {
  ENTER(h);
  return number(SUBJECT(h), "nvmlDeviceGetCurrentClocksEventReasons", 0, out);
}

/* --- structs --------------------------------------------------------------------------------------------------- */

struct memory { uint64_t total, free, used; };
struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
struct bar1 { uint64_t total, free, used; };
struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };

API int nvmlDeviceGetMemoryInfo(void *h, struct memory *out) { /* its `used` includes reserved memory */
  ENTER(h);
  uint64_t reserved;
  int rc = number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_total", 0, &out->total);
  if (!rc) rc = number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_free", 0, &out->free);
  if (!rc) rc = number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_used", 0, &out->used);
  if (!rc) rc = number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_reserved", 0, &reserved);
  if (!rc) out->used += reserved;
  return rc;
}
API int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory_v2 *out) {
  ENTER(h);
  if (out->version != 0x02000028) return VERSION_MISMATCH;
  int rc = number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_total", 0, &out->total);
  if (!rc) rc = number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_reserved", 0, &out->reserved);
  if (!rc) rc = number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_free", 0, &out->free);
  return rc ? rc : number(SUBJECT(h), "nvmlDeviceGetMemoryInfo_used", 0, &out->used);
}
API int nvmlDeviceGetBAR1MemoryInfo(void *h, struct bar1 *out) {
  ENTER(h);
  int rc = number(SUBJECT(h), "nvmlDeviceGetBAR1MemoryInfo_total", 0, &out->total);
  if (!rc) rc = number(SUBJECT(h), "nvmlDeviceGetBAR1MemoryInfo_free", 0, &out->free);
  return rc ? rc : number(SUBJECT(h), "nvmlDeviceGetBAR1MemoryInfo_used", 0, &out->used);
}
API int nvmlDeviceGetPciInfo_v3(void *h, struct pci_info *out) {
  ENTER(h);
  memset(out, 0, sizeof *out);
  int rc = text(SUBJECT(h), "nvmlDeviceGetPciInfo", out->bus_id, sizeof out->bus_id);
  if (!rc) sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
  return rc;
}

/* --- functions of later branches --------------------------------------------------------------------------------- */

#if DRIVER_BRANCH >= 535
struct sram { unsigned version; uint64_t counts[11]; unsigned exceeded; };
WITH_PERIOD(nvmlDeviceGetJpgUtilization) WITH_PERIOD(nvmlDeviceGetOfaUtilization)
NUMBER64(nvmlDeviceGetCurrentClocksEventReasons) NUMBER64(nvmlDeviceGetSupportedClocksEventReasons)
API int nvmlDeviceGetSramEccErrorStatus(void *h, struct sram *out) {
  ENTER(h);
  if (out->version != 0x01000068) return VERSION_MISMATCH;
  const struct entry *e = row(SUBJECT(h), "nvmlDeviceGetSramEccErrorStatus", 0);
  for (int i = 0; e && i < 11; i++) out->counts[i] = e->n[i];
  if (e) out->exceeded = (unsigned)e->n[11];
  return e ? OK : NOT_SUPPORTED;
}
#endif
#if DRIVER_BRANCH >= 550
NUMBER32(nvmlDeviceGetNumaNodeId)
#endif
#if DRIVER_BRANCH >= 570
struct temperature { unsigned version, sensor; int celsius; };
struct margin { unsigned version; int celsius; };
struct fan_speed { unsigned version, fan, speed; };
struct platform { unsigned version; unsigned char guid[16], serial[16], slot, tray, host, peer, module; };
API int nvmlDeviceGetFanSpeedRPM(void *h, struct fan_speed *io) {
  ENTER(h);
  if (io->version != 0x0100000C) return VERSION_MISMATCH;
  return number32(SUBJECT(h), "nvmlDeviceGetFanSpeedRPM", io->fan + 1, &io->speed);
}
API int nvmlDeviceGetPlatformInfo(void *h, struct platform *out) { /* the GUID is the serial with inverted bits; none without a serial */
  ENTER(h);
  if (out->version != 0x0200002C) return VERSION_MISMATCH;
  const struct entry *e = row(SUBJECT(h), "nvmlDeviceGetPlatformInfo", 0);
  const struct entry *serial = find(SUBJECT(h), "nvmlDeviceGetPlatformInfo_serial", 0);
  if (!e || !serial) return NOT_SUPPORTED;
  strncpy((char *)out->serial, serial->text, sizeof out->serial);
  for (int i = 0; i < 16; i++) out->guid[i] = serial->text[0] ? (unsigned char)~out->serial[i] : 0;
  out->slot = (unsigned char)e->n[0];
  out->tray = (unsigned char)e->n[1];
  out->host = (unsigned char)e->n[2];
  out->peer = (unsigned char)e->n[3];
  out->module = (unsigned char)e->n[4];
  return OK;
}
API int nvmlDeviceGetTemperatureV(void *h, struct temperature *out) {
  ENTER(h);
  if (out->version != 0x0100000C) return VERSION_MISMATCH;
  return out->sensor ? INVALID_ARGUMENT : number32(SUBJECT(h), "nvmlDeviceGetTemperature", 0, (unsigned *)&out->celsius);
}
API int nvmlDeviceGetMarginTemperature(void *h, struct margin *out) {
  ENTER(h);
  if (out->version != 0x01000008) return VERSION_MISMATCH;
  return number32(SUBJECT(h), "nvmlDeviceGetMarginTemperature", 0, (unsigned *)&out->celsius);
}
#endif
#if DRIVER_BRANCH >= 580
struct addressing { unsigned version, mode; };
struct repair { unsigned version, channel, tpc; };
API int nvmlDeviceGetRepairStatus(void *h, struct repair *out) {
  ENTER(h);
  if (out->version != 0x0100000C) return VERSION_MISMATCH;
  int rc = number32(SUBJECT(h), "nvmlDeviceGetRepairStatus_channel", 0, &out->channel);
  return rc ? rc : number32(SUBJECT(h), "nvmlDeviceGetRepairStatus_tpc", 0, &out->tpc);
}
API int nvmlDeviceGetAddressingMode(void *h, struct addressing *out) {
  ENTER(h);
  if (out->version != 0x01000008) return VERSION_MISMATCH;
  return number32(SUBJECT(h), "nvmlDeviceGetAddressingMode", 0, &out->mode);
}
#endif
#if DRIVER_BRANCH >= 590
struct unrepairable { unsigned version, flag; };
API int nvmlDeviceGetUnrepairableMemoryFlag_v1(void *h, struct unrepairable *out) {
  ENTER(h);
  if (out->version != 0x01000008) return VERSION_MISMATCH;
  return number32(SUBJECT(h), "nvmlDeviceGetUnrepairableMemoryFlag", 0, &out->flag);
}
#endif
