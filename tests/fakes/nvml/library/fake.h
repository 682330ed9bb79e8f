/* Declarations shared by the files of the fake driver library: the scenario, the gate of every call, return codes.
 *
 * Values come from the scenario only. A missing key is NVML_ERROR_NOT_SUPPORTED. Struct layouts, versions and
 * return codes follow nvml.h. -DDRIVER_BRANCH=535 leaves out the functions that came after that branch;
 * -DEARLY_535 is a driver of 535.43 to 535.86, whose process records are longer.
 */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DRIVER_BRANCH
#define DRIVER_BRANCH 610
#endif

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, VERSION_MISMATCH = 25 };
enum { MAX_GPUS = 64, TEXT = 96, MOST = 12 };

/* One entry of a subject in a scenario: some numbers, or a text. */
struct entry { int subject; char key[64]; uint64_t argument; uint64_t n[MOST]; int count; char text[TEXT]; };

/* Subjects by number: GPU i is i, its MIG device in slot s is MIG_SUBJECT(i, s), vGPU instances and types have ids. */
#define MIG_SUBJECT(gpu, slot) (MAX_GPUS * ((slot) + 1) + (gpu))
enum { VGPU = 1000000, VGPU_TYPE = 2000000, GPU_INSTANCE = 3000000 };

/* The scenario, as it was when this thread's call passed the gate. */
const struct entry *find(int subject, const char *key, uint64_t argument);
const struct entry *row(int subject, const char *table, unsigned index); /* the index-th of a table, or NULL */
unsigned rows(int subject, const char *table);
int number(int subject, const char *key, uint64_t argument, uint64_t *out);
int number32(int subject, const char *key, uint64_t argument, unsigned *out);
int text(int subject, const char *key, char *out, unsigned size);
int copy(char *out, unsigned size, const char *from);
unsigned gpu_count(void);
const char *driver_version(void);
const char *library_version(void);
int cuda_version(void);
unsigned long change(void); /* number of scenarios read so far */
uint64_t pair(uint64_t one, uint64_t two); /* one argument made of two */

int is_dead(const void *handle); /* of a MIG device that was destroyed */

/* The gate: the log, then the scenario's fault for the call, then whether NVML is initialised. */
int gate(const char *function, int gpu, int needs_init);
void pause_ms(long ms);
long bounded_wait_ms(unsigned timeout_ms); /* at most FAKE_NVML_WAIT_MS, if that is set */
void refuse(const char *what, const char *which) __attribute__((noreturn));
extern atomic_int users;

#define API __attribute__((visibility("default")))
/* A handle is life << 32 | (slot + 1) << 16 | (index + 1); slot + 1 is 0 for the GPU itself. NULL is none. The life of a
 * MIG device is made of its UUID: the handle of a destroyed device is not valid for its successor. */
#define HANDLE(gpu, slot) ((void *)(intptr_t)(((slot) + 1) << 16 | ((gpu) + 1)))
#define MIG_HANDLE(gpu, slot, life) ((void *)((intptr_t)HANDLE(gpu, slot) | (intptr_t)(life) << 32))
#define GPU(handle) ((int)((intptr_t)(handle) & 0xFFFF) - 1)
#define SLOT(handle) ((int)((intptr_t)(handle) >> 16 & 0xFFFF) - 1)
#define SUBJECT(handle) (SLOT(handle) < 0 ? GPU(handle) : MIG_SUBJECT(GPU(handle), SLOT(handle)))
#define ENTER(handle) do { int rc_ = gate(__func__, GPU(handle), 1); if (rc_) return rc_; \
  if (GPU(handle) < 0 || GPU(handle) >= (int)gpu_count() || is_dead(handle)) return INVALID_ARGUMENT; } while (0)
#define ENTER_SYSTEM() do { int rc_ = gate(__func__, -1, 1); if (rc_) return rc_; } while (0)

/* Functions that return the scenario's value under their own name. */
#define NUMBER32(name) API int name(void *h, unsigned *out) { ENTER(h); return number32(SUBJECT(h), #name, 0, out); }
#define NUMBER64(name) API int name(void *h, uint64_t *out) { ENTER(h); return number(SUBJECT(h), #name, 0, out); }
#define INDEXED32(name) API int name(void *h, unsigned which, unsigned *out) { \
  ENTER(h); return number32(SUBJECT(h), #name, which + 1, out); }
#define TEXT_OF(name) API int name(void *h, char *out, unsigned size) { ENTER(h); return text(SUBJECT(h), #name, out, size); }
#define PAIR32(name, one, two) API int name(void *h, unsigned *a, unsigned *b) { ENTER(h); \
  int rc = number32(SUBJECT(h), #name "_" #one, 0, a); return rc ? rc : number32(SUBJECT(h), #name "_" #two, 0, b); }
#define WITH_PERIOD(name) API int name(void *h, unsigned *out, unsigned *period_us) { \
  ENTER(h); *period_us = 167000; return number32(SUBJECT(h), #name, 0, out); }
#endif
