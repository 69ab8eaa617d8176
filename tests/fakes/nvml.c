/* A small libnvidia-ml.so.1 for tests: cards that follow a script, read through the real nvidia-ml-py.
 *
 *   gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c          (-DOLD_DRIVER: without what drivers got after 2018)
 *
 * The script is in the environment:
 *   FAKE_NVML_CARDS        how many cards; 2
 *   FAKE_NVML_UNSUPPORTED  functions that say "Not Supported", by their names, and "gpm<n>" for a single GPM metric
 *   FAKE_NVML_MIG          the card that is in MIG mode, with the GPU instances 1 and 2
 *   FAKE_NVML_LOST         card:n - the card is lost after n reads of its memory; -1 from the start
 *   FAKE_NVML_PATTERN      utilization in percent, a value for each 100 ms, over and over; "60"
 *   FAKE_NVML_REASONS      the clocks' event reasons, a value for each call, over and over; "0"
 *   FAKE_NVML_NOW          the driver's clock at the first read of samples, in microseconds; a second passes with each read
 *   FAKE_NVML_GPM          1: the cards have GPM
 * Like NVML itself it is of no use in a forked child before nvmlInit is called there.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15 };
enum { CARDS = 8, INSTANCES = 2, TICK = 100000, BUFFERED = 120 };
typedef unsigned long long ull;

typedef struct Device {
    int card, instance; /* instance 0: the whole card */
    int memory_reads, reason_reads, sample_reads;
} Device;

static Device devices[CARDS][INSTANCES + 1];
static pid_t initialised_in;
static int inits, live_gpm_samples;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static int has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return 1;
    return 0;
}

/* The value at a place of a list that is repeated for ever. */
static ull cycled(const char *list, ull place) {
    ull values[64], count = 0;
    for (const char *at = list; at && count < 64; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) values[count++] = strtoull(at, NULL, 0);
    return values[place % count];
}

static int cards(void) { return atoi(setting("FAKE_NVML_CARDS", "2")); }
#ifndef OLD_DRIVER
static int mig_card(void) { return atoi(setting("FAKE_NVML_MIG", "-1")); }
#endif

static int lost(const Device *device) {
    int card = -1, reads = 0;
    return sscanf(setting("FAKE_NVML_LOST", ""), "%d:%d", &card, &reads) == 2 && device->card == card && device->memory_reads > reads;
}

/* What every call answers before it does anything. */
static int refuse(const char *function, const Device *device, int of_slices) {
    if (initialised_in != getpid()) return UNINITIALIZED;
    if (device && lost(device)) return LOST;
    if (has_word(setting("FAKE_NVML_UNSUPPORTED", ""), function)) return NOT_SUPPORTED;
    if (device && device->instance && !of_slices) return NOT_SUPPORTED;
    return OK;
}
#define ANSWER_OR(device, of_slices) do { int refusal = refuse(__func__, device, of_slices); if (refusal) return refusal; } while (0)

/* For the tests alone. */
int fake_inits(void) { return inits; }
int fake_live_gpm_samples(void) { return live_gpm_samples; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    inits++;
    initialised_in = getpid();
    for (int card = 0; card < CARDS; card++)
        for (int instance = 0; instance <= INSTANCES; instance++) devices[card][instance].card = card, devices[card][instance].instance = instance;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case LOST: return "GPU is lost";
    default: return "Some error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) { ANSWER_OR(NULL, 0); *count = (unsigned)cards(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    ANSWER_OR(NULL, 0);
    if ((int)index >= cards()) return INVALID;
    *device = &devices[index][0];
    return lost(*device) ? LOST : OK;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    ANSWER_OR(device, 1);
    if (device->instance) snprintf(uuid, length, "MIG-%d%d%d%d0000-0000", device->card, device->card, device->instance, device->instance);
    else snprintf(uuid, length, "GPU-%d%d%d%d0000-0000", device->card, device->card, device->card, device->card);
    return OK;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    ANSWER_OR(device, 1);
    snprintf(name, length, device->instance ? "NVIDIA Fake MIG 1g.10gb" : "NVIDIA Fake");
    return OK;
}

int nvmlDeviceGetMemoryInfo(Device *device, ull *total_free_used) {
    device->memory_reads++;
    ANSWER_OR(device, 1);
    ull total = device->instance ? 10000000000ull : 80000000000ull, used = total / 4;
    total_free_used[0] = total, total_free_used[1] = total - used, total_free_used[2] = used;
    return OK;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned *gpu_memory) {
    ANSWER_OR(device, 0);
    gpu_memory[0] = (unsigned)cycled(setting("FAKE_NVML_PATTERN", "60"), 0), gpu_memory[1] = 7;
    return OK;
}

typedef struct { ull time; union { double real; unsigned whole; ull large; } value; } Sample;

int nvmlDeviceGetSamples(Device *device, int kind, ull last, int *value_kind, unsigned *count, Sample *samples) {
    ANSWER_OR(device, 0);
    if (kind != 1) return INVALID;
    ull now = strtoull(setting("FAKE_NVML_NOW", "0"), NULL, 0) + 1000000ull * (ull)device->sample_reads;
    ull newest = now / TICK, oldest = newest > BUFFERED ? newest - BUFFERED + 1 : 1;
    if (last / TICK + 1 > oldest) oldest = last / TICK + 1;
    *value_kind = 1; /* unsigned int */
    if (oldest > newest) { device->sample_reads++; return NOT_FOUND; }
    *count = (unsigned)(newest - oldest + 1);
    if (!samples) return OK;
    device->sample_reads++;
    for (ull tick = oldest; tick <= newest; tick++, samples++) {
        memset(samples, 0xAA, sizeof *samples); /* the union's other bytes are anything */
        samples->time = tick * TICK;
        samples->value.whole = (unsigned)cycled(setting("FAKE_NVML_PATTERN", "60"), tick);
    }
    return OK;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) { ANSWER_OR(device, 0); *milliwatts = 350000; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts) { ANSWER_OR(device, 0); *milliwatts = 700000; return OK; }
int nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *megahertz) { ANSWER_OR(device, 0); *megahertz = kind == 1 ? 1980 : 1; return OK; }
int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) { ANSWER_OR(device, 0); *celsius = sensor == 0 ? 55 : 1; return OK; }

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, ull *reasons) {
    ANSWER_OR(device, 0);
    *reasons = cycled(setting("FAKE_NVML_REASONS", "0"), (ull)device->reason_reads++);
    return OK;
}

#ifndef OLD_DRIVER

int nvmlDeviceGetTotalEnergyConsumption(Device *device, ull *millijoules) {
    ANSWER_OR(device, 0);
    *millijoules = 5000000000ull + 350000ull * (ull)device->memory_reads; /* 350 W if memory is read once a second */
    return OK;
}

int nvmlDeviceGetTemperatureV(Device *device, unsigned *version_sensor_celsius) {
    ANSWER_OR(device, 0);
    version_sensor_celsius[2] = 55;
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, ull *reasons) {
    ANSWER_OR(device, 0);
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ANSWER_OR(device, 0);
    *current = *pending = device->card == mig_card();
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) { ANSWER_OR(device, 0); *count = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **slice) {
    ANSWER_OR(device, 0);
    if (index >= INSTANCES) return NOT_FOUND;
    *slice = &devices[device->card][index + 1];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) { ANSWER_OR(device, 1); *id = (unsigned)device->instance; return OK; }
int nvmlDeviceGetComputeInstanceId(Device *device, unsigned *id) { ANSWER_OR(device, 1); *id = 0; return OK; }

typedef struct { double sm; int number; } GpmSample;
typedef struct { unsigned id; int answer; double value; char *words[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *before, *after; GpmMetric metrics[]; } GpmRequest;

static int gpm_taken;

int nvmlGpmQueryDeviceSupport(Device *device, unsigned *version_supported) {
    ANSWER_OR(device, 0);
    version_supported[1] = (unsigned)atoi(setting("FAKE_NVML_GPM", "0"));
    return OK;
}

int nvmlGpmSampleAlloc(GpmSample **sample) { *sample = calloc(1, sizeof **sample); live_gpm_samples++; return OK; }
int nvmlGpmSampleFree(GpmSample *sample) { free(sample); live_gpm_samples--; return OK; }

int nvmlGpmSampleGet(Device *device, GpmSample *sample) {
    ANSWER_OR(device, 0);
    if (device->card == mig_card()) return NOT_SUPPORTED;
    sample->sm = 40, sample->number = gpm_taken++;
    return OK;
}

int nvmlGpmMigSampleGet(Device *device, unsigned instance, GpmSample *sample) {
    ANSWER_OR(device, 0);
    sample->sm = 20.0 + instance, sample->number = gpm_taken++;
    return OK;
}

int nvmlGpmMetricsGet(GpmRequest *request) {
    if (request->version != 1 || request->before->number >= request->after->number) return INVALID;
    for (unsigned place = 0; place < request->count; place++) {
        GpmMetric *metric = &request->metrics[place];
        char name[16];
        snprintf(name, sizeof name, "gpm%u", metric->id);
        metric->answer = has_word(setting("FAKE_NVML_UNSUPPORTED", ""), name) ? NOT_SUPPORTED : OK;
        metric->value = request->after->sm + metric->id;
    }
    return OK;
}

#endif
