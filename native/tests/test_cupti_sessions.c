/* Sessions of the collector of device activity: who has CUPTI, what hangs, what comes late, forks and threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "cupti_double.h"

static void without_a_driver_nothing_in_cupti_is_called(void) {
    choose_library("both"); /* ends the process when it is called without a driver */
    char why[XPR_CUPTI_WHY_BYTES] = "";
    CHECK(!xpr_cuda_is_loaded() && !xpr_cuda_is_there(why) && strstr(why, "no NVIDIA driver"));
    record();
    CHECK(!xpr_cupti_start(&usual, &report) && strstr(report.why, "no NVIDIA driver") && !report.ran);
    finish_recorder();
    read_shard();
    CHECK(!shard.has_totals && !shard.activity_count);
}

static void a_refusal_to_share_falls_back_to_alone(void) {
    use("both");
    fake.set("refuse_shared", 14);
    begin();
    CHECK(!report.totals.shared && strstr(report.notes, "not shared with other tools: not compatible"));
    fake.launches(fake.name("k"), 1, 10, 1000);
    end();
    CHECK(shard.activity_count == 10 && shard.call_count == 10 && shard.totals.shared == 0);
}

static void who_holds_cupti_is_named(const char *variant, bool shared_works, const char *wanted) {
    use(variant);
    fake.hold("CUPTI for Nsight");
    if (!shared_works) fake.set("refuse_shared", 39);
    record();
    CHECK(!xpr_cupti_start(&usual, &report) && !report.ran);
    CHECK(strstr(report.why, wanted));
    fake.hold(NULL); /* the holder lets go: the next one gets it */
    fake.set("refuse_shared", 0);
    CHECK(xpr_cupti_start(&usual, &report) && report.ran);
    end();
}
static void a_conflict_names_the_holder_in_13_3(void) { who_holds_cupti_is_named("both", false, "held by CUPTI for Nsight"); }
static void a_conflict_names_the_holder_in_13_0(void) { who_holds_cupti_is_named("named", true, "held by CUPTI for Nsight"); }
static void a_conflict_has_no_name_in_12(void) { who_holds_cupti_is_named("old", true, "does not tell which"); }

static void a_refused_kind_is_noted_and_a_missing_kernel_kind_is_the_end(void) {
    use("both");
    fake.set("refuse_syncs", 27);
    begin();
    CHECK(strstr(report.notes, "no waits: not supported (27)"));
    end();
    fake.set("refuse_kernels", 35);
    record();
    CHECK(!xpr_cupti_start(&usual, &report) && strstr(report.why, "does not record kernels: insufficient privileges"));
    CHECK(fake.get("subscribed") == 0 && fake.get("enabled") == 0);
    finish_recorder();
}

static void threads_that_cupti_does_not_tell_are_unknown(void) {
    use("both");
    fake.set("no_thread_ids", 1);
    begin();
    CHECK(!report.os_threads && strstr(report.notes, "do not tell their thread"));
    fake.launches(fake.name("k"), 1, 1, 1000);
    end();
    CHECK(shard.calls[0].os_tid == 0);
}

static void a_library_that_hangs_costs_no_more_than_the_budget(void) {
    use("both");
    begin();
    fake.launches(fake.name("k"), 1, 100, 1000);
    fake.set("hang_ms", 1500);
    int64_t before = xpr_clock_read_ns(CLOCK_MONOTONIC);
    CHECK(!xpr_cupti_stop(100000000, &report) && !report.ended && strstr(report.why, "in time"));
    CHECK(xpr_clock_read_ns(CLOCK_MONOTONIC) - before < 1400000000);
    CHECK(!xpr_cupti_start(&usual, &report) && strstr(report.why, "has not ended"));
    finish_recorder();
    read_shard();
    CHECK(shard.has_totals && shard.activity_count == 100); /* what was finished came before what hangs */
    record(); /* the next capture is not the late session's */
    CHECK(xpr_cupti_stop(20000000000, &report) && report.ended);
    fake.set("hang_ms", 0);
    CHECK(xpr_cupti_start(&usual, &report));
    fake.launches(fake.name("k"), 1, 3, 1000);
    end();
    CHECK(shard.activity_count == 3);
}

static void a_start_that_hangs_is_given_up(void) {
    use("both");
    fake.set("hang_at_start_ms", 1000);
    record();
    struct xpr_cupti_options options = usual;
    options.start_timeout_ns = 50000000;
    CHECK(!xpr_cupti_start(&options, &report) && strstr(report.why, "did not answer"));
    CHECK(xpr_cupti_stop(20000000000, &report) && fake.get("subscribed") == 0 && fake.get("enabled") == 0);
    finish_recorder();
}

static void a_buffer_that_comes_back_after_the_end_harms_nothing(void) {
    use("both");
    begin();
    fake.set("hold_back", 1);
    fake.launches(fake.name("k"), 1, 10, 1000);
    end();
    CHECK(shard.activity_count == 0);
    fake.give_back(0);
    fake.set("hold_back", 1);
    begin();
    fake.launches(fake.name("k"), 1, 10, 1000);
    end();
    fake.set("hold_back", 0);
    begin();
    fake.give_back(0); /* of the session before */
    fake.launches(fake.name("k"), 100, 5, 1000);
    end();
    CHECK(shard.activity_count == 5 && shard.activities[0].correlation == 100);
}

static void between_sessions_another_tool_can_have_it(void) {
    use("named");
    for (int i = 0; i < 3; i++) {
        begin();
        fake.launches(fake.name("k"), 1, 10, 1000);
        end();
        CHECK(shard.activity_count == 10);
        fake.launches(fake.name("k"), 11, 10, 5000); /* between: nobody's */
        CHECK(fake.get("unsubscribed") == i + 1);
    }
    struct xpr_cupti_options options = usual;
    options.only_check = true;
    CHECK(xpr_cupti_start(&options, &report) && !report.ran && !report.why[0] && fake.get("subscribed") == 0);
    fake.hold("CUPTI for somebody");
    CHECK(!xpr_cupti_start(&options, &report) && strstr(report.why, "somebody"));
}

static void a_child_of_a_fork_calls_nothing(void) {
    use("both");
    begin();
    xpr_device_range_push(name_id("outer"));
    fake.launches(fake.name("k"), 1, 10, 1000);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        /* The fake ends a child that calls it. */
        CHECK(!xpr_device_range_push(3));
        xpr_device_range_pop();
        fake.graph_node(1, 2, 0); /* but may call us */
        CHECK(xpr_cupti_stop(1000000000, &report) && !report.ran);
        snprintf(path + strlen(path), 8, ".child");
        record();
        CHECK(!xpr_cupti_start(&usual, &report) && strstr(report.why, "forked"));
        finish_recorder();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    xpr_device_range_pop();
    fake.launches(fake.name("k"), 11, 10, 5000);
    end();
    CHECK(shard.activity_count == 20 && is(shard.calls[9].range, "outer") && shard.calls[10].range == XPR_NO_STRING);
}

static atomic_bool go_on;
static void *launch(void *number) {
    uint32_t base = (uint32_t)(uintptr_t)number * 100000;
    const char *k = fake.name("k");
    for (uint32_t i = 0; i < 2000; i++) {
        bool pushed = xpr_device_range_push(name_id("range"));
        fake.launches(k, base + i + 1, 1, 1000 + i);
        if (i % 500 == 0) fake.graph_node(1, base + i + 1, 0);
        if (pushed) xpr_device_range_pop();
    }
    while (atomic_load(&go_on)) { /* across the session's end */
        if (xpr_device_range_push(name_id("range"))) xpr_device_range_pop();
    }
    return NULL;
}

static void threads_launch_and_flush_at_once(void) {
    use("both");
    struct xpr_cupti_options options = usual;
    options.flush_ns = 1000000;
    options.buffers = 4096; /* this test asks for order, not for speed */
    begin_with(options);
    pthread_t threads[4];
    atomic_store(&go_on, true);
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, launch, (void *)i) == 0);
    while (fake.get("made") < 4 * 2000 * 3) nanosleep(&(struct timespec){0, 1000000}, NULL);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    CHECK(xpr_cupti_stop(20000000000, &report));
    atomic_store(&go_on, false);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    end();
    CHECK(shard.activity_count == 8000 && shard.call_count == 8000 && shard.node_count == 16);
    size_t ranged = 0;
    for (size_t i = 0; i < 8000; i++) ranged += is(shard.calls[i].range, "range");
    CHECK(ranged == 8000 && report.late_ranges == 0);
}

int main(int count, char **arguments) {
    const char *only = prepare(count, arguments, "test_cupti_sessions");
    RUN(without_a_driver_nothing_in_cupti_is_called);
    RUN(a_refusal_to_share_falls_back_to_alone);
    RUN(a_conflict_names_the_holder_in_13_3);
    RUN(a_conflict_names_the_holder_in_13_0);
    RUN(a_conflict_has_no_name_in_12);
    RUN(a_refused_kind_is_noted_and_a_missing_kernel_kind_is_the_end);
    RUN(threads_that_cupti_does_not_tell_are_unknown);
    RUN(a_library_that_hangs_costs_no_more_than_the_budget);
    RUN(a_start_that_hangs_is_given_up);
    RUN(a_buffer_that_comes_back_after_the_end_harms_nothing);
    RUN(between_sessions_another_tool_can_have_it);
    RUN(a_child_of_a_fork_calls_nothing);
    RUN(threads_launch_and_flush_at_once);
    return finish();
}
