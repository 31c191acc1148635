/* The collector of device activity against a fake CUPTI (fakes/cupti.c): what a program did is in the shard, record
 * by record, and what is lost is counted. */
#define _GNU_SOURCE
#include "cupti_double.h"

static void every_record_is_in_the_shard(const char *variant, int64_t version, int64_t extra_bytes) {
    use(variant);
    fake.set("version", version);
    fake.set("extra_bytes", extra_bytes);
    fake.device(0, "NVIDIA H200", 132, 150754820096u); /* there before we are */
    begin();
    CHECK(report.os_threads && report.clock_width_ns >= 0 && report.totals.version == version);
    fake.device(1, "NVIDIA H200", 132, 150754820096u);
    const char *gemm = fake.name("gemm_fusion_dot"), *add = fake.name("loop_add_fusion");
    fake.call(1, 211, 1, 1000, 1900);
    fake.kernel(gemm, 1, 0, 1, 7, 2000, 5000, 0, 0);
    fake.unknown();
    fake.call(2, 307, 2, 1900, 2000);
    fake.kernel(add, 2, 1, 2, 9, 1950, 2500, 3, 44); /* before its call returned: kept as it is */
    fake.call(1, 41, 3, 2100, 2200);
    fake.memcpy_(1, 4096, 3, 0, 1, 8, 2300, 2400);
    fake.call(1, 161, 4, 2500, 2600);
    fake.peer(8192, 4, 0, 1, 8, 2600, 2700);
    fake.call(1, 51, 5, 2700, 2800);
    fake.memset_(7, 512, 5, 0, 8, 2900, 2950);
    fake.unknown();
    fake.call(1, 131, 6, 3000, 5100);
    fake.sync(3, 6, 1, 7, 3000, 5100);
    fake.overhead(1 << 16, 5200, 5300);
    fake.call(1, 20, 7, 5400, 5500); /* cudaMalloc: neither work nor a wait */
    fake.kernel(gemm, 8, 0, 1, 7, 6000, 5990, 0, 0);
    fake.kernel(gemm, 9, 0, 1, 7, 6000, 0, 0, 0);
    fake.kernel(NULL, 10, 0, 1, 7, 7000, 7001, 0, 0);
    end();

    CHECK(shard.device_count == 2 && shard.devices[1].ordinal == 1 && is(shard.devices[1].name, "NVIDIA H200"));
    CHECK(shard.devices[1].uuid[15] == 31 && shard.devices[1].capability_major == 9 && shard.devices[1].multiprocessors == 132);
    CHECK(shard.devices[0].memory_bytes == 150754820096u && shard.devices[0].memory_bandwidth_kbs == 4800000000u);
    CHECK(shard.devices[0].core_clock_khz == 1980000);

    CHECK(shard.call_count == 6);
    CHECK(is(shard.calls[0].name, "cudaLaunchKernel_v7000") && shard.calls[0].api == XPR_CALL_RUNTIME);
    CHECK(shard.calls[0].start_ns == 1000 && shard.calls[0].end_ns == 1900 && shard.calls[0].correlation == 1);
    CHECK(shard.calls[0].os_tid == here() && shard.calls[0].number == 211 && shard.calls[0].range == XPR_NO_STRING);
    CHECK(is(shard.calls[1].name, "cuLaunchKernel") && shard.calls[1].api == XPR_CALL_DRIVER);
    CHECK(is(shard.calls[5].name, "cudaStreamSynchronize_v3020"));

    const struct xpr_activity_record *a = shard.activities;
    CHECK(shard.activity_count == 10);
    CHECK(a[0].kind == XPR_ACTIVITY_KERNEL && is(a[0].name, "gemm_fusion_dot") && a[0].start_ns == 2000 && a[0].end_ns == 5000);
    CHECK(a[0].device == 0 && a[0].context == 1 && a[0].stream == 7 && a[0].correlation == 1 && !a[0].graph && !a[0].graph_node);
    CHECK(a[0].shape.kernel.grid[0] == 8 && a[0].shape.kernel.grid[1] == 2 && a[0].shape.kernel.block[0] == 128);
    CHECK(a[0].shape.kernel.registers == 40 && a[0].shape.kernel.static_shared_bytes == 1024);
    CHECK(a[0].shape.kernel.dynamic_shared_bytes == 2048);
    CHECK(is(a[1].name, "loop_add_fusion") && a[1].start_ns == 1950 && a[1].device == 1 && a[1].graph == 3 && a[1].graph_node == 44);
    CHECK(a[2].kind == XPR_ACTIVITY_MEMCPY && a[2].shape.copy.bytes == 4096 && a[2].shape.copy.copy_kind == 1);
    CHECK(a[2].shape.copy.source_kind == 2 && a[2].shape.copy.target_kind == 3 && a[2].name == XPR_NO_STRING);
    CHECK(a[3].kind == XPR_ACTIVITY_MEMCPY && a[3].shape.copy.copy_kind == 10 && a[3].shape.copy.peer_device == 1 && !a[3].device);
    CHECK(a[4].kind == XPR_ACTIVITY_MEMSET && a[4].shape.copy.value == 7 && a[4].shape.copy.bytes == 512);
    CHECK(a[4].shape.copy.target_kind == 3);
    CHECK(a[5].kind == XPR_ACTIVITY_SYNC && a[5].shape.wait.type == 3 && a[5].correlation == 6 && a[5].device == XPR_NO_DEVICE);
    CHECK(a[6].kind == XPR_ACTIVITY_OVERHEAD && a[6].shape.wait.type == 1 << 16 && a[6].shape.wait.os_tid == here());
    CHECK(a[6].device == XPR_NO_DEVICE && a[6].stream == XPR_NO_DEVICE && a[6].end_ns == 5300);
    CHECK(a[7].start_ns == 6000 && a[7].end_ns == 6000 && a[8].end_ns == 6000 && a[9].name == XPR_NO_STRING);
    CHECK(shard.totals.clamped == 2 && shard.totals.unknown_kinds == 2 && shard.totals.version == version);
    CHECK(!shard.totals.dropped_source && !shard.totals.dropped_buffers && !shard.totals.dropped_error);
    CHECK(shard.totals.cpu_ns > 0 && shard.totals.buffers == (uint64_t)fake.get("buffers"));
}

static void a_shared_session_uses_only_the_second_family(void) {
    every_record_is_in_the_shard("both", 130500, 0);
    CHECK(shard.totals.shared == 1);
}
static void a_library_with_the_second_family_alone(void) { every_record_is_in_the_shard("v2", 130500, 0); }
static void records_of_a_release_to_come_are_longer(void) { every_record_is_in_the_shard("both", 140000, 56); }
static void a_library_of_13_0_is_used_alone(void) {
    every_record_is_in_the_shard("named", 130001, 0);
    CHECK(shard.totals.shared == 0);
}
static void a_library_of_12_0_does_not_choose_calls(void) { every_record_is_in_the_shard("old", 18, 0); }

static void a_launch_knows_the_innermost_range(void) {
    use("both");
    CHECK(!xpr_device_range_push(5)); /* nobody is there to take it */
    begin();
    const char *k = fake.name("fusion");
    uint32_t outer = name_id("XlaModule:#hlo_module=jit_f#"), inner = name_id("Thunk:#hlo_op=dot.1#");
    CHECK(xpr_device_range_push(outer));
    fake.launches(k, 1, 1, 1000);
    CHECK(xpr_device_range_push(inner));
    fake.launches(k, 2, 2, 3000);
    xpr_device_range_pop();
    fake.launches(k, 4, 1, 6000);
    CHECK(xpr_device_range_push(inner)); /* and is still open as the session ends */
    xpr_device_range_pop();
    end();
    CHECK(shard.call_count == 4 && shard.activity_count == 4);
    static const char *const wanted[] = {"XlaModule:#hlo_module=jit_f#", "Thunk:#hlo_op=dot.1#", "Thunk:#hlo_op=dot.1#",
                                         "XlaModule:#hlo_module=jit_f#"};
    for (int i = 0; i < 4; i++) CHECK(is(shard.calls[i].range, wanted[i]) && is(shard.activities[i].range, wanted[i]));
    CHECK(fake.get("depth") == 1);

    /* CUPTI still has `outer` of the session before on this thread: it is not ours any more. */
    begin();
    fake.launches(k, 1, 1, 1000);
    CHECK(xpr_device_range_push(name_id("new")));
    fake.launches(k, 2, 1, 2000);
    xpr_device_range_pop();
    xpr_device_range_pop(); /* of the range that was opened in the session before */
    CHECK(fake.get("depth") == 1);
    end();
    CHECK(shard.calls[0].range == XPR_NO_STRING && shard.activities[0].range == XPR_NO_STRING && is(shard.calls[1].range, "new"));
}

static void ranges_nest_deeper_than_we_follow(void) {
    use("both");
    begin();
    for (int i = 0; i < 70; i++) CHECK(xpr_device_range_push(name_id("deep")));
    for (int i = 0; i < 70; i++) xpr_device_range_pop();
    CHECK(fake.get("depth") == 0);
    fake.launches(fake.name("k"), 1, 1, 1000);
    end();
    CHECK(report.ranges_refused == 6 && shard.calls[0].range == XPR_NO_STRING);
}

static void nodes_of_a_graph_know_the_range_in_which_they_were_made(void) {
    use("both");
    begin();
    char name[32];
    for (uint64_t node = 1; node <= 50; node++) {
        snprintf(name, sizeof name, "Thunk:#hlo_op=op.%d#", (int)node);
        xpr_device_range_push(name_id(name));
        fake.graph_node(9, 100 + node, 0);
        xpr_device_range_pop();
    }
    for (uint64_t node = 1; node <= 50; node++) fake.graph_node(10, 200 + node, 100 + node);
    const char *k = fake.name("fusion");
    fake.call(1, 311, 77, 1000, 1500);
    for (uint64_t node = 1; node <= 50; node++) fake.kernel(k, 77, 0, 1, 7, 1000 + 100 * node, 1090 + 100 * node, 10, 200 + node);
    end();
    CHECK(shard.node_count == 100 && shard.activity_count == 50 && shard.call_count == 1);
    for (unsigned i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "Thunk:#hlo_op=op.%u#", i + 1);
        CHECK(shard.nodes[i].node == 101 + i && shard.nodes[i].original == 0 && shard.nodes[i].graph == 9);
        CHECK(is(shard.nodes[i].range, name));
        CHECK(shard.nodes[50 + i].node == 201 + i && shard.nodes[50 + i].original == 101 + i && shard.nodes[50 + i].graph == 10);
        CHECK(shard.nodes[50 + i].range == XPR_NO_STRING);
        CHECK(shard.activities[i].graph == 10 && shard.activities[i].graph_node == 201 + i && shard.activities[i].correlation == 77);
    }
}

static void a_graph_as_a_whole(void) {
    use("named");
    struct xpr_cupti_options options = usual;
    options.whole_graphs = true;
    begin_with(options);
    fake.graph(5, 0, 7, 12, 1000, 9000);
    end();
    CHECK(shard.activity_count == 1 && shard.activities[0].kind == XPR_ACTIVITY_GRAPH && shard.activities[0].graph == 12);
    CHECK(shard.activities[0].correlation == 5 && shard.activities[0].stream == 7 && shard.activities[0].end_ns == 9000);
}

static void a_place_that_gets_another_name_is_another_kernel(void) {
    use("both");
    struct xpr_cupti_options options = usual;
    options.flush_ns = 5000000;
    begin_with(options);
    char place[32] = "first_module_kernel", *long_name = malloc(5001);
    fake.kernel(place, 1, 0, 1, 7, 1, 2, 0, 0);
    while (fake.get("flushes") < 3) nanosleep(&(struct timespec){0, 1000000}, NULL); /* it is read; its module goes */
    strcpy(place, "second_module_kern");
    fake.kernel(place, 2, 0, 1, 7, 3, 4, 0, 0);
    memset(long_name, 'x', 5000);
    long_name[5000] = 0;
    fake.kernel(fake.name(long_name), 3, 0, 1, 7, 5, 6, 0, 0);
    long_name[4999] = 'y';
    fake.kernel(fake.name(long_name), 4, 0, 1, 7, 7, 8, 0, 0);
    end();
    free(long_name);
    CHECK(is(shard.activities[0].name, "first_module_kernel") && is(shard.activities[1].name, "second_module_kern"));
    CHECK(shard.activities[2].name != shard.activities[3].name && strstr(text(shard.activities[2].name), "...#"));
}

static void what_finds_no_buffer_is_counted_exactly(void) {
    use("both");
    struct xpr_cupti_options options = usual;
    options.buffer_bytes = 1024;
    options.buffers = 4;
    begin_with(options);
    fake.set("hold_back", 1);
    fake.launches(fake.name("k"), 1, 1000, 1000);
    int64_t lost = fake.get("dropped"), made = fake.get("made");
    CHECK(lost > 0 && made == 2000);
    fake.give_back(0);
    fake.set("hold_back", 0);
    fake.drop(17);
    end();
    CHECK(shard.totals.written == (uint64_t)(made - lost));
    CHECK(shard.totals.dropped_source == (uint64_t)lost + 17 && shard.totals.dropped_buffers == (uint64_t)lost);
}

static void buffers_may_come_back_in_any_order(void) {
    use("both");
    struct xpr_cupti_options options = usual;
    options.buffer_bytes = 4096;
    options.buffers = 1000;
    begin_with(options);
    fake.set("hold_back", 1);
    xpr_device_range_push(name_id("range"));
    fake.launches(fake.name("k"), 1, 1000, 1000);
    xpr_device_range_pop();
    fake.give_back(1);
    fake.set("hold_back", 0);
    end();
    CHECK(shard.activity_count == 1000 && shard.call_count == 1000 && !shard.totals.dropped_source);
    char seen[1001] = {0};
    size_t without = 0;
    for (int i = 0; i < 1000; i++) seen[shard.activities[i].correlation] = 1;
    for (int i = 1; i <= 1000; i++) CHECK(seen[i]);
    for (int i = 0; i < 1000; i++) without += shard.calls[i].range == XPR_NO_STRING;
    CHECK(without == report.late_ranges && without < 100); /* only where a buffer ended between the two */
}

static void a_buffer_that_cannot_be_walked_costs_its_rest(void) {
    use("both");
    begin();
    fake.set("broken_after", 4);
    fake.launches(fake.name("k"), 1, 50, 1000);
    end();
    CHECK(shard.activity_count + shard.call_count == 4 && report.cut_buffers == 1 && shard.totals.dropped_error == 1);
}

static void work_that_goes_on_comes_with_the_forced_flush(const char *variant) {
    use(variant);
    struct xpr_cupti_options options = usual;
    options.flush_ns = 5000000;
    begin_with(options);
    fake.set("unfinished", 1);
    fake.launches(fake.name("k"), 1, 20, 1000);
    while (fake.get("flushes") < 3) nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK(fake.get("forced") == 0 && fake.get("buffers") == 0);
    end();
    CHECK(fake.get("forced") == 1 && shard.activity_count == 20 && shard.call_count == 20 && !report.cut_buffers);
}
static void work_in_flight_is_kept_where_it_is_shared(void) { work_that_goes_on_comes_with_the_forced_flush("both"); }
static void work_in_flight_is_kept_where_we_are_alone(void) { work_that_goes_on_comes_with_the_forced_flush("named"); }

static void a_full_file_is_counted(void) {
    use("both");
    CHECK(xpr_recorder_start(path, 1 << 16, 1 << 16) == 0);
    CHECK(xpr_cupti_start(&usual, &report));
    fake.launches(fake.name("k"), 1, 5000, 1000);
    CHECK(xpr_cupti_stop(20000000000, &report));
    finish_recorder();
    read_shard();
    CHECK(shard.totals.written + shard.totals.dropped_budget == 10000 && shard.totals.dropped_budget > 0);
    CHECK(shard.totals.written == shard.activity_count + shard.call_count);
}

/* Whatever a program and CUPTI do: what CUPTI made is in the shard, or counted. */
static void nothing_is_lost_uncounted(void) {
    use("both");
    uint64_t random = 88172645463325252u;
    for (int round = 0; round < 60; round++) {
        struct xpr_cupti_options options = usual;
#define NEXT(most) /* xorshift64 */ \
    (random ^= random << 13, random ^= random >> 7, random ^= random << 17, (uint32_t)(random % (most)))
        options.buffer_bytes = 1024 + NEXT(8192);
        options.buffers = 1 + NEXT(12);
        options.flush_ns = 1000000 + NEXT(5000000);
        fake.set("version", NEXT(2) ? 130500 : 130001);
        fake.set("extra_bytes", NEXT(5) * 8);
        fake.set("record_limit", NEXT(2) * NEXT(9));
        int64_t made = fake.get("made"), dropped = fake.get("dropped");
        begin_with(options);
        const char *name = fake.name("k");
        uint32_t pieces = NEXT(40);
        for (uint32_t i = 0; i < pieces; i++) {
            fake.set("hold_back", NEXT(3) == 0);
            if (NEXT(4) == 0) fake.drop(NEXT(5));
            if (NEXT(4) == 0) fake.sync(3, i, 1, 7, 10, NEXT(20));
            if (NEXT(4) == 0) fake.memcpy_(1, 64, i, 0, 1, 8, NEXT(20), 10);
            if (NEXT(4) == 0) fake.unknown();
            fake.launches(name, 1 + 100 * i, NEXT(60), 1000);
            if (NEXT(3) == 0) fake.give_back((int)NEXT(2));
        }
        fake.set("hold_back", 0);
        fake.give_back(0);
        end();
        made = fake.get("made") - made;
        dropped = fake.get("dropped") - dropped;
        int64_t own_drops = dropped - (int64_t)shard.totals.dropped_buffers; /* what fake.drop said; `made` does not count it */
        CHECK(shard.totals.dropped_source == (uint64_t)dropped && own_drops >= 0);
        CHECK((int64_t)(shard.totals.written + shard.totals.unknown_kinds) + dropped - own_drops == made);
    }
}

int main(int count, char **arguments) {
    const char *only = prepare(count, arguments, "test_cupti");
    RUN(a_shared_session_uses_only_the_second_family);
    RUN(a_library_with_the_second_family_alone);
    RUN(records_of_a_release_to_come_are_longer);
    RUN(a_library_of_13_0_is_used_alone);
    RUN(a_library_of_12_0_does_not_choose_calls);
    RUN(a_launch_knows_the_innermost_range);
    RUN(ranges_nest_deeper_than_we_follow);
    RUN(nodes_of_a_graph_know_the_range_in_which_they_were_made);
    RUN(a_graph_as_a_whole);
    RUN(a_place_that_gets_another_name_is_another_kernel);
    RUN(what_finds_no_buffer_is_counted_exactly);
    RUN(buffers_may_come_back_in_any_order);
    RUN(a_buffer_that_cannot_be_walked_costs_its_rest);
    RUN(work_in_flight_is_kept_where_it_is_shared);
    RUN(work_in_flight_is_kept_where_we_are_alone);
    RUN(a_full_file_is_counted);
    RUN(nothing_is_lost_uncounted);
    return finish();
}
