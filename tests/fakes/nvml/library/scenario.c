/* Reads the scenario file, again when its inode or modification time changes, and applies its faults to calls.
 * With FAKE_NVML_STILL in the environment it is read once, because checking the file dominates the cost of a call. */
#include "fake.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FAULTS = 64 };
enum { CRASH = -1 };                   /* as a return code: the library crashes */
enum { HANG = -1, STUBBORN_HANG = -2 }; /* as a delay: until the fault leaves the scenario; the second ignores SIGTERM */

struct fault { char function[TEXT]; int gpu, rc; long delay_ms; };
struct scenario {
  char driver[TEXT], library[TEXT]; int cuda; unsigned count; unsigned long change;
  struct entry *table; size_t room, used; /* open addressing, room is a power of two */
  struct fault faults[MAX_FAULTS]; int fault_count;
  struct stat file;
};

static _Atomic(struct scenario *) current; /* older ones are never freed: another thread may be reading them */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static __thread const struct scenario *active;
atomic_int users;

void refuse(const char *what, const char *which) {
  fprintf(stderr, "fake NVML: %s: %s\n", what, which);
  abort();
}

/* --- the table ------------------------------------------------------------------------------------------------ */

uint64_t pair(uint64_t one, uint64_t two) { return one * 1000003u + two + 1; }

static size_t slot_of(const struct entry *table, size_t room, int subject, const char *key, uint64_t argument) {
  uint64_t hash = 1469598103934665603u ^ (uint64_t)subject * 0x9E3779B97F4A7C15u ^ argument * 0xC2B2AE3D27D4EB4Fu;
  for (const char *c = key; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
  size_t at = (hash ^ hash >> 29) & (room - 1);
  while (table[at].key[0] && (table[at].subject != subject || table[at].argument != argument || strcmp(table[at].key, key)))
    at = (at + 1) & (room - 1);
  return at;
}

static struct entry *put(struct scenario *s, int subject, const char *key, uint64_t argument) {
  if (2 * (s->used + 1) > s->room) {
    size_t room = s->room ? 2 * s->room : 1024;
    struct entry *table = calloc(room, sizeof *table);
    if (!table) refuse("no memory for the scenario", key);
    for (size_t i = 0; i < s->room; i++)
      if (s->table[i].key[0])
        table[slot_of(table, room, s->table[i].subject, s->table[i].key, s->table[i].argument)] = s->table[i];
    free(s->table);
    s->table = table;
    s->room = room;
  }
  struct entry *e = &s->table[slot_of(s->table, s->room, subject, key, argument)];
  if (!e->key[0]) s->used++;
  e->subject = subject;
  e->argument = argument;
  snprintf(e->key, sizeof e->key, "%s", key);
  return e;
}

const struct entry *find(int subject, const char *key, uint64_t argument) {
  if (!active->room) return NULL;
  const struct entry *e = &active->table[slot_of(active->table, active->room, subject, key, argument)];
  return e->key[0] ? e : NULL;
}

const struct entry *row(int subject, const char *table, unsigned index) {
  return find(subject, table, pair(0x5077, index));
}

unsigned rows(int subject, const char *table) {
  const struct entry *e = find(subject, table, pair(0x5078, 0));
  return e ? (unsigned)e->n[0] : 0;
}

int number(int subject, const char *key, uint64_t argument, uint64_t *out) {
  const struct entry *e = find(subject, key, argument);
  if (!e) return NOT_SUPPORTED;
  *out = e->n[0];
  return e->count > 1 ? (int)e->n[1] : OK; /* a second number is the return code */
}

int number32(int subject, const char *key, uint64_t argument, unsigned *out) {
  uint64_t wide; int rc = number(subject, key, argument, &wide);
  if (!rc) *out = (unsigned)wide;
  return rc;
}

int copy(char *out, unsigned size, const char *from) {
  if (strlen(from) >= size) return INSUFFICIENT_SIZE;
  strcpy(out, from);
  return OK;
}

int text(int subject, const char *key, char *out, unsigned size) {
  const struct entry *e = find(subject, key, 0);
  return e ? copy(out, size, e->text) : NOT_SUPPORTED;
}

unsigned gpu_count(void) { return active->count; }
const char *driver_version(void) { return active->driver; }
const char *library_version(void) { return active->library; }
int cuda_version(void) { return active->cuda; }
unsigned long change(void) { return active->change; }

/* --- reading ------------------------------------------------------------------------------------------------- */

static int subject_of(const char *word, const char *line) {
  int gpu, slot;
  if (sscanf(word, "vgpu%d", &gpu) == 1) return VGPU + gpu;
  if (sscanf(word, "type%d", &gpu) == 1) return VGPU_TYPE + gpu;
  if (sscanf(word, "%d/gi%d", &gpu, &slot) == 2) return GPU_INSTANCE + gpu * 1000 + slot;
  if (sscanf(word, "%d.%d", &gpu, &slot) == 2) return MIG_SUBJECT(gpu, slot);
  if (sscanf(word, "%d", &gpu) == 1 && gpu >= 0 && gpu < MAX_GPUS) return gpu;
  refuse("no such subject in a scenario", line);
}

/* KEY or KEY,1,2: one argument counts from 1, so that 0 is none; of several, a pair is made. */
static uint64_t argument_of(char *key) {
  uint64_t argument = 0; int count = 0;
  for (char *comma = strchr(key, ','); comma; comma = strchr(comma + 1, ',')) {
    uint64_t n = strtoull(comma + 1, NULL, 0);
    argument = count++ ? pair(argument, n) : n + 1;
  }
  key[strcspn(key, ",")] = 0;
  return argument;
}

static void read_numbers(struct entry *e, const char *from) {
  char *end;
  for (e->count = 0; e->count < MOST; e->count++, from = end) {
    e->n[e->count] = strtoull(from, &end, 0); /* a leading minus wraps, as C's casts do */
    if (end == from) return;
  }
}

static void read_line(struct scenario *s, const char *line) {
  char who[24], key[TEXT]; int used = 0; struct fault f;
  if (!*line || *line == '#') return;
  if (sscanf(line, "driver %95s", s->driver) == 1 || sscanf(line, "library %95s", s->library) == 1 ||
      sscanf(line, "cuda %d", &s->cuda) == 1 || sscanf(line, "count %u", &s->count) == 1) {
    if (s->count > MAX_GPUS) refuse("too many GPUs", line);
  } else if (sscanf(line, "number %23s %63s %n", who, key, &used) == 2 && used) {
    uint64_t argument = argument_of(key);
    read_numbers(put(s, subject_of(who, line), key, argument), line + used);
  } else if (sscanf(line, "text %23s %63s %n", who, key, &used) == 2 && used) {
    uint64_t argument = argument_of(key);
    snprintf(put(s, subject_of(who, line), key, argument)->text, TEXT, "%s", line + used);
  } else if (sscanf(line, "row %23s %63s %n", who, key, &used) == 2 && used) {
    int subject = subject_of(who, line);
    struct entry *count = put(s, subject, key, pair(0x5078, 0));
    uint64_t index = count->n[0]++;
    read_numbers(put(s, subject, key, pair(0x5077, index)), line + used);
  } else if (sscanf(line, "fault %95s %d %d %ld", f.function, &f.gpu, &f.rc, &f.delay_ms) == 4) {
    if (s->fault_count >= MAX_FAULTS) refuse("too many faults", line);
    s->faults[s->fault_count++] = f;
  } else refuse("cannot read this line of a scenario", line);
}

static const char *scenario_path, *log_path;
static long longest_wait_ms = -1;
static int is_still;
__attribute__((constructor)) static void look_around(void) {
  scenario_path = getenv("FAKE_NVML");
  log_path = getenv("FAKE_NVML_LOG");
  is_still = getenv("FAKE_NVML_STILL") != NULL;
  const char *longest = getenv("FAKE_NVML_WAIT_MS");
  if (longest) longest_wait_ms = atol(longest);
}

static struct scenario *scenario(void) {
  const char *path = scenario_path;
  static unsigned long changes;
  struct stat now; struct scenario *known = atomic_load(&current);
  if (known && is_still) return known;
  if (!path) refuse("the environment variable is not set", "FAKE_NVML");
  if (stat(path, &now)) refuse("there is no such scenario file", path);
  if (known && now.st_ino == known->file.st_ino && now.st_mtim.tv_sec == known->file.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == known->file.st_mtim.tv_nsec) return known;
  pthread_mutex_lock(&loading);
  struct scenario *fresh = calloc(1, sizeof *fresh);
  FILE *file = fopen(path, "r"); char line[512];
  if (!file || !fresh) refuse("cannot open the scenario", path);
  fstat(fileno(file), &fresh->file);
  fresh->change = ++changes;
  while (fgets(line, sizeof line, file)) { line[strcspn(line, "\n")] = 0; read_line(fresh, line); }
  fclose(file);
  atomic_store(&current, fresh);
  pthread_mutex_unlock(&loading);
  return fresh;
}

/* --- the gate ------------------------------------------------------------------------------------------------- */

static const struct fault *fault_of(const struct scenario *s, const char *function, int gpu) {
  for (int i = 0; i < s->fault_count; i++) {
    const struct fault *f = &s->faults[i];
    if ((!strcmp(f->function, "*") || !strcmp(f->function, function)) && (f->gpu < 0 || f->gpu == gpu)) return f;
  }
  return NULL;
}

static void note(const char *function, int gpu) {
  static int log = -1; char line[TEXT + 16]; const char *path = log_path;
  if (!path) return;
  if (log < 0) log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  int length = snprintf(line, sizeof line, "%s %d\n", function, gpu);
  if (write(log, line, length) != length) refuse("cannot write the log", path);
}

void pause_ms(long ms) {
  struct timespec span = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&span, NULL);
}

long bounded_wait_ms(unsigned timeout_ms) {
  return longest_wait_ms >= 0 && longest_wait_ms < (long)timeout_ms ? longest_wait_ms : (long)timeout_ms;
}

int gate(const char *function, int gpu, int needs_init) {
  note(function, gpu);
  active = scenario();
  const struct fault *f = fault_of(active, function, gpu);
  if (f) {
    if (f->delay_ms == STUBBORN_HANG) signal(SIGTERM, SIG_IGN);
    if (f->delay_ms < 0) { while ((f = fault_of(active = scenario(), function, gpu)) && f->delay_ms < 0) pause_ms(5); }
    else pause_ms(f->delay_ms);
    if (f && f->rc == CRASH) raise(SIGSEGV);
    if (f && f->rc) return f->rc;
  }
  return needs_init && !atomic_load(&users) ? UNINITIALIZED : OK;
}
