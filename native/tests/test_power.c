/* The power sampler against a library that answers as NVML does, fails, hangs and lacks functions. */
#define _GNU_SOURCE
#include "device/power.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "recorder/clock.h"
#include "recorder/power_rows.h"
#include "recorder/recorder.h"
#include "tests/check.h"

enum { MS = 1000000, SECOND = 1000000000 };

static void pause_ms(int ms) { usleep((useconds_t)ms * 1000); }

static const char *beside(const char *name) {
    static char path[PATH_MAX];
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = 0;
    CHECK((size_t)snprintf(path, sizeof path, "%s/%s", dirname(self), name) < sizeof path);
    return path;
}

static struct xpr_power_options options_for(const char *library, int period_ms) {
    struct xpr_power_options o = {.period_ns = period_ms * (int64_t)MS};
    snprintf(o.library, sizeof o.library, "%s", library);
    return o;
}

struct rows {
    struct xpr_bytes bytes;
    const struct xpr_power_record *row;
    size_t count;
};

static struct rows take(void) {
    struct rows r;
    xpr_power_rows_take(&r.bytes);
    r.row = (const void *)r.bytes.data;
    r.count = r.bytes.used / sizeof *r.row;
    return r;
}

/* Samples for so long what the script says; the report is that of the stop. */
static struct rows sampled(const char *library, const char *script, int ms, struct xpr_power_report *report) {
    setenv("FAKE_NVML", script, 1);
    struct xpr_power_options o = options_for(beside(library), 10);
    xpr_power_rows_reset();
    CHECK(xpr_power_start(&o) == 0);
    CHECK(xpr_power_wait(5ll * SECOND, report) != XPR_POWER_OPENING);
    pause_ms(ms);
    CHECK(xpr_power_stop(5ll * SECOND, report));
    return take();
}

static void rows_say_what_nvml_says(void) {
    struct xpr_power_report report;
    int64_t before_ns = xpr_clock_read_ns(CLOCK_REALTIME);
    struct rows r = sampled("fake_nvml.so", "devices=2 power=300000", 200, &report);
    CHECK(report.state == XPR_POWER_SAMPLING && report.count == 2 && !report.error[0] && !report.note[0]);
    CHECK(strcmp(report.devices[1].name, "Fake H200 0") == 0 && report.devices[1].index == 1);
    CHECK(report.devices[1].ordinal == 1 && report.devices[1].limit_mw == 700000);
    CHECK(report.totals.failed_calls == 0 && report.looks >= 3 && r.count == 2 * report.looks);
    for (size_t i = 0; i < r.count; i++) {
        const struct xpr_power_record *row = &r.row[i];
        CHECK(row->device == i % 2 && row->power_mw == 300000 && row->temperature_c == 61);
        CHECK(row->sm_clock_mhz == 1980 && row->memory_clock_mhz == 3201 && row->clock_reasons == 4);
        CHECK(row->busy_percent == 97 && row->memory_busy_percent == 42 && row->memory_used_bytes == 100ull << 30);
        CHECK(row->at_ns >= before_ns && row->at_ns <= xpr_clock_read_ns(CLOCK_REALTIME));
        if (i >= 2) CHECK(row->at_ns > r.row[i - 2].at_ns && row->energy_mj >= r.row[i - 2].energy_mj);
    }
    /* The last look is that of the stop: the energy of the whole time is known, to the width of a stamp. */
    const struct xpr_power_record *first = &r.row[0], *last = &r.row[r.count - 2];
    double joules = (double)(last->energy_mj - first->energy_mj) / 1e3, seconds = (double)(last->at_ns - first->at_ns) / 1e9;
    CHECK(seconds >= 0.2 && joules > 300 * seconds * 0.7 && joules < 300 * seconds * 1.3);
    xpr_bytes_free(&r.bytes);
}

static void what_an_old_driver_does_not_tell_is_all_ones(void) {
    struct xpr_power_report report;
    struct rows r = sampled("fake_nvml_old.so", "", 50, &report);
    CHECK(r.count >= 2 && r.row[0].energy_mj == UINT64_MAX && r.row[0].power_mw == 300000);
    CHECK(r.row[0].clock_reasons == 0x20); /* by the name that the function had before */
    CHECK(report.totals.failed_calls == 0);
    xpr_bytes_free(&r.bytes);
}

static void a_call_that_fails_costs_its_field(void) {
    struct xpr_power_report report;
    struct rows r = sampled("fake_nvml.so", "fail=temperature:999", 50, &report);
    CHECK(r.count >= 2 && report.totals.failed_calls == r.count);
    for (size_t i = 0; i < r.count; i++) CHECK(r.row[i].temperature_c == UINT32_MAX && r.row[i].power_mw == 300000);
    xpr_bytes_free(&r.bytes);
    /* 3: not supported. That is no failure, and not asked again. */
    r = sampled("fake_nvml.so", "fail=utilization:3", 50, &report);
    CHECK(r.count >= 2 && report.totals.failed_calls == 0 && r.row[1].busy_percent == UINT32_MAX);
    xpr_bytes_free(&r.bytes);
}

static void a_lost_device_is_asked_no_more_and_the_others_are(void) {
    struct xpr_power_report report;
    struct rows r = sampled("fake_nvml.so", "devices=2 lost=1:2", 100, &report);
    size_t of[2] = {0, 0};
    for (size_t i = 0; i < r.count; i++) of[r.row[i].device]++;
    CHECK(report.devices[1].lost && !report.devices[0].lost && report.totals.failed_calls == 1);
    CHECK(of[1] == 2 && of[0] > 3);
    xpr_bytes_free(&r.bytes);
}

static void fails_with(const char *library, const char *script, const char *words) {
    struct xpr_power_report report;
    struct rows r = sampled(library, script, 0, &report);
    CHECK(report.state == XPR_POWER_FAILED && strstr(report.error, words) && r.count == 0);
    struct xpr_power_totals_record totals;
    CHECK(!xpr_power_totals(&totals));
}

static void what_cannot_be_opened_says_why(void) {
    fails_with("no_such.so", "", "no_such.so");
    fails_with("fake_nvml_broken.so", "", "nvmlDeviceGetCount_v2");
    fails_with("fake_nvml.so", "fail=init:9", "nvmlInit_v2: Driver Not Loaded");
    fails_with("fake_nvml.so", "fail=count:999", "nvmlDeviceGetCount_v2: Unknown Error");
    fails_with("fake_nvml.so", "devices=0", "no device can be asked, of 0");
}

static void a_call_that_hangs_is_named_and_the_stop_comes_in_time(void) {
    for (int in_init = 0; in_init < 2; in_init++) {
        setenv("FAKE_NVML", in_init ? "hang=init:0" : "hang=power:2", 1);
        struct xpr_power_options o = options_for(beside("fake_nvml.so"), 10);
        struct xpr_power_report report;
        xpr_power_rows_reset();
        CHECK(xpr_power_start(&o) == 0);
        pause_ms(100);
        int64_t before_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
        CHECK(!xpr_power_stop(50 * MS, &report));
        int64_t took_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) - before_ns;
        CHECK(took_ns >= 50 * MS && took_ns < 2ll * SECOND);
        CHECK(strcmp(report.stuck, in_init ? "nvmlInit_v2" : "nvmlDeviceGetPowerUsage") == 0);
        struct rows r = take();
        CHECK(r.count == (in_init ? 0 : 2) && report.looks == (in_init ? 0 : 2));
        xpr_bytes_free(&r.bytes);
        struct xpr_power_totals_record totals;
        CHECK(xpr_power_totals(&totals) == !in_init && (in_init || totals.failed_calls == 1));
        CHECK(xpr_power_start(&o) == EBUSY); /* NVML has the thread */
        CHECK(xpr_power_stop(0, &report));

        void *fake = dlopen(o.library, RTLD_NOW | RTLD_NOLOAD);
        void (*release)(void);
        void *symbol = dlsym(fake, "fake_nvml_release");
        memcpy(&release, &symbol, sizeof release);
        release();
        dlclose(fake);
        int error = EBUSY;
        setenv("FAKE_NVML", "", 1);
        for (int i = 0; i < 500 && error == EBUSY; i++) {
            pause_ms(10);
            error = xpr_power_start(&o);
        }
        CHECK(error == 0); /* it came back */
        CHECK(xpr_power_stop(5ll * SECOND, &report));
        r = take();
        CHECK(r.count == report.looks); /* none is of the thread that was given up */
        xpr_bytes_free(&r.bytes);
    }
}

static void costly_calls_put_looks_off(void) {
    struct xpr_power_report report;
    /* 5 ms of CPU a look, 100 looks a second: half a core. A hundredth of one is 2 looks a second, after those of the start. */
    struct rows r = sampled("fake_nvml.so", "burn_us=5000", 600, &report);
    CHECK(report.postponed >= 1 && report.looks <= 6);
    uint64_t used_ns = report.totals.cpu_ns - report.open_cpu_ns;
    /* The start, a hundredth of the time, the look that goes past it and that of the stop. */
    CHECK(used_ns < 10 * MS + (uint64_t)report.wall_ns / 100 + 2 * 15 * MS);
    xpr_bytes_free(&r.bytes);
}

static void the_devices_are_those_that_cuda_shows(void) {
    static const struct {
        const char *visible;
        bool by_bus, alike;
        const char *kept; /* indexes in CUDA's order */
        bool with_why;
    } cases[] = {
        {NULL, false, true, "0 1 2", false},       {"2,0", false, true, "2 0", false},
        {" 1 , 2", false, true, "1 2", false},     {"1,7,0", false, true, "1", false}, /* CUDA stops at what is not there */
        {"1,-1,0", false, true, "1", false},       {"", false, true, "", false},
        {"-1", false, true, "", false},            {"GPU-c", true, false, "2", false},
        {"GPU-b,GPU-a", false, false, "1 0", false}, {"GPU-", false, false, "", false}, /* three fit */
        {"1", false, false, "0 1 2", true},        {"1", true, false, "1", false},
        {NULL, false, false, "0 1 2", true},       {"MIG-1", true, true, "0 1 2", true},
        {"two", true, true, "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct xpr_nvml_device devices[3] = {{.index = 0, .uuid = "GPU-aa", .name = "A"},
                                             {.index = 1, .uuid = "GPU-bb", .name = "A"},
                                             {.index = 2, .uuid = "GPU-cc", .name = "A"}};
        if (!cases[i].alike) strcpy(devices[1].name, "B");
        const char *why;
        unsigned n = xpr_nvml_visible(devices, 3, cases[i].visible, cases[i].by_bus, &why);
        char kept[32] = "";
        for (unsigned k = 0; k < n; k++) {
            sprintf(kept + strlen(kept), k ? " %u" : "%u", devices[k].index);
            CHECK(devices[k].ordinal == (why ? XPR_NO_ORDINAL : k));
        }
        if (strcmp(kept, cases[i].kept) != 0 || (why != NULL) != cases[i].with_why) {
            fprintf(stderr, "case %zu: kept '%s', why %s\n", i, kept, why ? why : "-");
            exit(1);
        }
    }
}

static void a_shard_holds_the_rows_and_their_devices(void) {
    char path[4096];
    const char *folder = getenv("TMPDIR");
    struct xpr_report recorded;
    struct xpr_power_report report;
    snprintf(path, sizeof path, "%s/test_power_%d.xpr", folder ? folder : "/tmp", (int)getpid());
    CHECK(xpr_recorder_start(path, 1 << 20, 4096) == 0);
    setenv("FAKE_NVML", "devices=2", 1);
    struct xpr_power_options o = options_for(beside("fake_nvml.so"), 10);
    CHECK(xpr_power_start(&o) == 0);
    pause_ms(200);
    CHECK(xpr_power_stop(5ll * SECOND, &report));
    CHECK(xpr_recorder_off() != 0);
    xpr_recorder_finish(30ll * SECOND, 0, 0, &recorded);
    CHECK(recorded.finished);

    FILE *file = fopen(path, "rb");
    CHECK(file && fseek(file, sizeof(struct xpr_shard_header), SEEK_SET) == 0);
    struct xpr_chunk_header chunk;
    uint64_t rows = 0;
    char uuids[2][64] = {"", ""};
    struct xpr_power_totals_record totals = {0};
    while (fread(&chunk, sizeof chunk, 1, file) == 1) {
        char *body = malloc(chunk.bytes + 1);
        CHECK(body && fread(body, 1, chunk.bytes, file) == chunk.bytes);
        if (chunk.type == XPR_CHUNK_STRINGS)
            for (size_t at = 0; at < chunk.bytes;) {
                const struct xpr_string_record *s = (const void *)(body + at);
                /* Told before the rows that mention it. */
                for (int k = 0; k < 2; k++)
                    if (s->bytes == 40 && strncmp((const char *)(s + 1), report.devices[k].uuid, 40) == 0)
                        sprintf(uuids[k], "%u", s->id);
                at += sizeof *s + ((s->bytes + 7) & ~7u);
            }
        if (chunk.type == XPR_CHUNK_POWER)
            for (size_t i = 0; i < chunk.bytes / sizeof(struct xpr_power_record); i++, rows++) {
                const struct xpr_power_record *row = (const struct xpr_power_record *)(const void *)body + i;
                CHECK(row->device < 2 && strtoul(uuids[row->device], NULL, 10) == row->uuid && row->uuid > 1);
            }
        if (chunk.type == XPR_CHUNK_POWER_TOTALS) memcpy(&totals, body, sizeof totals);
        free(body);
    }
    fclose(file);
    unlink(path);
    CHECK(rows == 2 * report.looks && totals.written == rows && totals.dropped == 0 && totals.cpu_ns > 0);
}

static void rows_that_nobody_takes_are_counted(void) {
    struct xpr_power_record row = {.device = 0};
    struct xpr_power_totals_record totals = {.failed_calls = 5};
    xpr_power_rows_reset();
    uint64_t capture = xpr_power_rows_capture();
    for (int i = 0; i < XPR_MAX_WAITING_POWER_ROWS + 7; i++) xpr_add_power_row(capture, &row);
    xpr_set_power_totals(capture, &totals);
    CHECK(xpr_power_totals(&totals) && totals.dropped == 7 && totals.failed_calls == 5);
    xpr_power_rows_clear();
    xpr_add_power_row(capture, &row);
    xpr_power_rows_reset();
    xpr_add_power_row(capture, &row); /* of the capture before */
    xpr_set_power_totals(capture, &totals);
    CHECK(!xpr_power_totals(&totals));
    struct rows r = take();
    CHECK(r.count == 0);
}

static void a_forked_child_has_no_sampler(void) {
    struct xpr_power_report report;
    setenv("FAKE_NVML", "", 1);
    struct xpr_power_options o = options_for(beside("fake_nvml.so"), 10);
    xpr_power_rows_reset();
    CHECK(xpr_power_start(&o) == 0);
    CHECK(xpr_power_wait(5ll * SECOND, &report) == XPR_POWER_SAMPLING);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (!xpr_power_stop(0, &report) || report.looks) _exit(1); /* nothing ran */
        struct rows r = take();
        if (r.count) _exit(2);
        if (xpr_power_start(&o)) _exit(3); /* it may have its own */
        _exit(xpr_power_stop(5ll * SECOND, &report) ? 0 : 4);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(xpr_power_stop(5ll * SECOND, &report) && report.looks >= 1);
    struct rows r = take();
    CHECK(r.count == report.looks);
    xpr_bytes_free(&r.bytes);
}

/* Across a fork the recorder's locks are taken first and the sampler's then, as the sampler came before the recorder in this
 * program: a sampler that took one of the recorder's while it holds its own would hang here. */
static void forks_while_it_samples_do_not_hang(void) {
    struct xpr_power_report report;
    setenv("FAKE_NVML", "devices=16", 1);
    struct xpr_power_options o = options_for(beside("fake_nvml.so"), 1);
    xpr_power_rows_reset();
    CHECK(xpr_power_start(&o) == 0);
    CHECK(xpr_power_wait(5ll * SECOND, &report) == XPR_POWER_SAMPLING);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(xpr_power_stop(5ll * SECOND, &report));
    struct rows r = take();
    xpr_bytes_free(&r.bytes);
}

int main(void) {
    rows_say_what_nvml_says();
    what_an_old_driver_does_not_tell_is_all_ones();
    a_call_that_fails_costs_its_field();
    a_lost_device_is_asked_no_more_and_the_others_are();
    what_cannot_be_opened_says_why();
    costly_calls_put_looks_off();
    a_call_that_hangs_is_named_and_the_stop_comes_in_time();
    the_devices_are_those_that_cuda_shows();
    a_shard_holds_the_rows_and_their_devices();
    rows_that_nobody_takes_are_counted();
    a_forked_child_has_no_sampler();
    forks_while_it_samples_do_not_hang();
    return 0;
}
