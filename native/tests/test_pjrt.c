/* XLA's profile through a PJRT plugin, against a plugin with the true layouts that also fails, lends, grows and is too old. */
#define _GNU_SOURCE
#include "device/pjrt.h"
#include "tests/check.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint8_t OPTIONS[] = {0x28, 1, 0x10, 2, 0x18, 1, 0x38, 1};
static const uint8_t XSPACE[] = {0x0a, 4, 0x12, 2, 'a', 'b', 0x0a, 2, 0x12, 0}; /* ends with a NUL of its own */

static char fake_path[PATH_MAX];
static void *fake;

/* Loads the plugin anew, so that it is asked anew. */
static struct xpr_pjrt_plugin loaded(const char *script) {
    setenv("FAKE_PJRT", script, 1);
    if (fake) dlclose(fake);
    fake = dlopen(fake_path, RTLD_NOW);
    CHECK(fake);
    struct xpr_pjrt_plugin plugins[XPR_MAX_PLUGINS];
    CHECK(xpr_pjrt_find(plugins, XPR_MAX_PLUGINS) == 1 && xpr_pjrt_find(NULL, 0) == 1);
    CHECK(strcmp(plugins[0].path, fake_path) == 0);
    return plugins[0];
}

static int alive(void) {
    int (*ask)(void);
    void *symbol = dlsym(fake, "fake_pjrt_alive");
    memcpy(&ask, &symbol, sizeof ask);
    return ask();
}

static void without_a_plugin_there_is_none(void) {
    struct xpr_pjrt_plugin plugins[XPR_MAX_PLUGINS];
    CHECK(xpr_pjrt_find(plugins, XPR_MAX_PLUGINS) == 0);
    CHECK(xpr_pjrt_find(plugins, XPR_MAX_PLUGINS) == 0);
}

static void the_xspace_is_the_one_that_was_planted(const char *script) {
    struct xpr_pjrt_plugin plugin = loaded(script);
    char error[XPR_PJRT_ERROR_BYTES];
    uint8_t *xspace;
    size_t bytes;
    CHECK(plugin.profiler && !plugin.why[0]);
    for (int again = 0; again < 2; again++) {
        CHECK(xpr_pjrt_start(&plugin, OPTIONS, sizeof OPTIONS, error));
        CHECK(!xpr_pjrt_start(&plugin, OPTIONS, sizeof OPTIONS, error) && strstr(error, "a session is running"));
        CHECK(xpr_pjrt_stop(&xspace, &bytes, error));
        size_t more = strstr(script, "grows") ? 100 : 0;
        CHECK(bytes == sizeof XSPACE + more && memcmp(xspace, XSPACE, sizeof XSPACE) == 0);
        free(xspace);
        CHECK(alive() == 0);
    }
    CHECK(!xpr_pjrt_stop(&xspace, &bytes, error) && !xspace && strstr(error, "no session"));
}

static void an_empty_xspace_of_one_nul_is_empty(const char *script) {
    struct xpr_pjrt_plugin plugin = loaded(script);
    char error[XPR_PJRT_ERROR_BYTES];
    uint8_t *xspace;
    size_t bytes;
    CHECK(xpr_pjrt_start(&plugin, OPTIONS, sizeof OPTIONS, error));
    CHECK(xpr_pjrt_stop(&xspace, &bytes, error) && !xspace && !bytes && alive() == 0);
}

static void versions_are_told_where_they_are_known(void) {
    struct xpr_pjrt_plugin plugin = loaded("");
    CHECK(plugin.major == 0 && plugin.minor == 99);
    plugin = loaded("no_version");
    CHECK(plugin.major == -1 && plugin.profiler);
}

static void unusable(const char *script, const char *words) {
    struct xpr_pjrt_plugin plugin = loaded(script);
    char error[XPR_PJRT_ERROR_BYTES];
    CHECK(!plugin.profiler && strstr(plugin.why, words));
    CHECK(!xpr_pjrt_start(&plugin, OPTIONS, sizeof OPTIONS, error) && strstr(error, words));
}

static void an_error_is_said_and_nothing_is_left_behind(void) {
    static const struct {
        const char *script, *words;
        bool starts;
    } cases[] = {{"fail=create", "create: planted failure of create", false},
                 {"null", "create: gave no profiler", false},
                 {"fail=start", "start: planted failure of start", false},
                 {"fail=stop", "stop: planted failure of stop", true},
                 {"fail=collect", "collect_data: planted failure of collect", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct xpr_pjrt_plugin plugin = loaded(cases[i].script);
        char error[XPR_PJRT_ERROR_BYTES];
        uint8_t *xspace;
        size_t bytes;
        CHECK(xpr_pjrt_start(&plugin, OPTIONS, sizeof OPTIONS, error) == cases[i].starts);
        if (cases[i].starts) CHECK(!xpr_pjrt_stop(&xspace, &bytes, error) && !xspace && !bytes);
        CHECK(strcmp(error, cases[i].words) == 0); /* its length is the plugin's, not its NUL's */
        CHECK(alive() == 0);
    }
}

static void a_forked_child_has_no_session(void) {
    struct xpr_pjrt_plugin plugin = loaded("");
    char error[XPR_PJRT_ERROR_BYTES];
    uint8_t *xspace;
    size_t bytes;
    CHECK(xpr_pjrt_start(&plugin, OPTIONS, sizeof OPTIONS, error));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(xpr_pjrt_stop(&xspace, &bytes, error) || xpr_pjrt_find(NULL, 0) != 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(xpr_pjrt_stop(&xspace, &bytes, error) && bytes == sizeof XSPACE);
    free(xspace);
}

int main(void) {
    char self[PATH_MAX], file[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = 0;
    CHECK((size_t)snprintf(fake_path, sizeof fake_path, "%s/fake_pjrt.so", dirname(self)) < sizeof fake_path);
    const char *folder = getenv("TMPDIR");
    snprintf(file, sizeof file, "%s/test_pjrt_%d.pb", folder ? folder : "/tmp", (int)getpid());
    FILE *out = fopen(file, "wb");
    CHECK(out && fwrite(XSPACE, 1, sizeof XSPACE, out) == sizeof XSPACE && fclose(out) == 0);
    setenv("FAKE_PJRT_XSPACE", file, 1);

    without_a_plugin_there_is_none();
    the_xspace_is_the_one_that_was_planted("");
    the_xspace_is_the_one_that_was_planted("own");
    the_xspace_is_the_one_that_was_planted("own grows");
    the_xspace_is_the_one_that_was_planted("new");
    an_empty_xspace_of_one_nul_is_empty("nul");
    an_empty_xspace_of_one_nul_is_empty("nul own");
    versions_are_told_where_they_are_known();
    unusable("no_extension", "no profiler extension");
    unusable("empty", "its profiler extension is empty");
    unusable("old", "lacks functions: a table of 72 bytes");
    an_error_is_said_and_nothing_is_left_behind();
    a_forked_child_has_no_session();
    unlink(file);
    return 0;
}
