/* The stack sampler: a thread of ours looks at the launching threads some 100 times a second.
 *
 * It uses no signals and never stops a thread. Frames are read from memory while the thread runs (memory_frames.c): no GIL,
 * and nothing that the program could notice. Where that cannot be done it takes the GIL like any other thread, reads frames
 * through Python's public calls (gil_frames.c), runs no Python code, and gives the GIL back. A thread that used no CPU since
 * the last look is where it was, which needs neither.
 *
 * Cost is measured at every look: this thread's own CPU time, and, where the GIL had to be taken from a running thread, what
 * it takes that thread to stop and go on. Looks come seldom enough for their sum to stay below COST_PERMILLE of the time.
 * Python wakes who waits for the GIL at every switch interval: where C code keeps it for seconds, waiting is most of the
 * cost, and the next look is so much later. No lock is held meanwhile. In the child of a fork there is no sampler.
 *
 * Targets are the threads that recorded a step or an input span; while there are none, the main thread. */
#define _GNU_SOURCE
#include "recorder_python.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/clock.h"
#include "recorder/own_thread.h"
#include "recorder/samples.h"
#include "stack_frames.h"

enum {
    MAX_TARGETS = 64,
    COST_PERMILLE = 2, /* of one core, at most */
    LONGEST_PERIOD_NS = 1000000000,
    /* Taking the GIL from a running thread switches it off a CPU and on again, and cools its caches: measured 3 to 8 us. */
    HAND_OVER_NS = 8000,
    USUAL_COST_NS = 20000, /* of one look, until there are enough of them */
    /* What the first looks may cost beyond the bound: everything is cold, and every frame is new. */
    ADVANCE_NS = 500000,
    STACK_BYTES = 512 << 10,
    STOP_TIMEOUT_NS = 2000000000,
};

/* Written once, by its own thread under the GIL, before `target_count` tells of it. */
struct target {
    struct xpr_watched watched; /* its Python frames; from then on the sampler's */
    uint32_t os_tid;
    clockid_t cpu_clock;
    int64_t since_ns, since_cpu_ns; /* when it became a target, and its CPU time then: the first look counts from there */
};

/* The sampler thread's own view of a target. */
struct seen {
    bool known, gone, was_on, has_file;
    int file; /* the kernel's, about the thread */
    int64_t at_ns, cpu_ns;
    uint32_t stack;
};

struct totals {
    uint64_t looks, samples, without_gil, torn, taken_by_force, cost_ns, held_ns, longest_hold_ns, targets_left_out;
};

static struct {
    pthread_mutex_t lock; /* of `ready`, `ended`, `stop` and the totals; never held while waiting for the GIL */
    pthread_cond_t changed;
    bool running, ready, stop, ended;
    bool takes_gil; /* where frames cannot be read from memory */
    uint32_t generation;
    int64_t period_ns, switch_ns; /* switch_ns: for how long Python lets a thread keep the GIL that another asks for */
    struct totals totals;
} sampler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct target targets[MAX_TARGETS];
static struct seen seen[MAX_TARGETS];
static _Atomic uint32_t target_count;
static _Atomic bool sampling; /* what threads look at before they offer themselves */

/* --- targets ------------------------------------------------------------------------------------------------------ */

static bool read_cpu(clockid_t clock, int64_t *ns) {
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) return false; /* the thread has ended */
    *ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    return true;
}

static bool begin_target(struct target *target, pthread_t thread) {
    target->since_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    return pthread_getcpuclockid(thread, &target->cpu_clock) == 0 && read_cpu(target->cpu_clock, &target->since_cpu_ns);
}

void xpr_sampler_offer(struct xpr_log *log) {
    if (!atomic_load_explicit(&sampling, memory_order_relaxed)) return;
    log->sampled = true;
    PyThreadState *state = PyThreadState_Get();
    uint32_t n = atomic_load_explicit(&target_count, memory_order_relaxed);
    struct target target = {.os_tid = (uint32_t)syscall(SYS_gettid)};
    if (PyThreadState_GetInterpreter(state) != PyInterpreterState_Main()) return;
    if (n == MAX_TARGETS || !begin_target(&target, pthread_self())) {
        sampler.totals.targets_left_out++;
        return;
    }
    xpr_watch(&target.watched, state);
    targets[n] = target;
    atomic_store_explicit(&target_count, n + 1, memory_order_release);
}

/* Whether the thread runs or waits for a CPU that others have; false where the kernel does not say. The file stays open:
 * to open it costs three times what a read does. */
static bool is_runnable(uint32_t os_tid, struct seen *its) {
    char path[64], text[256];
    if (!its->has_file) {
        snprintf(path, sizeof path, "/proc/self/task/%u/stat", os_tid);
        its->file = open(path, O_RDONLY | O_CLOEXEC);
        if (its->file < 0) return false;
        its->has_file = true;
    }
    ssize_t n = pread(its->file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    const char *name_end = strrchr(text, ')'); /* a thread's name may hold brackets of its own */
    return name_end && name_end[1] == ' ' && name_end[2] == 'R';
}

static void close_files(void) {
    for (int i = 0; i < MAX_TARGETS; i++) {
        if (seen[i].has_file) close(seen[i].file);
        seen[i].has_file = false;
    }
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static bool is_finalizing(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

static bool stop_wanted(void) {
    pthread_mutex_lock(&sampler.lock);
    bool stop = sampler.stop || is_finalizing();
    pthread_mutex_unlock(&sampler.lock);
    return stop || xpr_recording() != sampler.generation;
}

/* The thread as it was at `tick`. */
static void add_sample(const struct target *target, struct seen *its, uint64_t tick, int64_t cpu_ns, bool is_on) {
    int64_t now_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    int64_t interval_us = (now_ns - (its->known ? its->at_ns : target->since_ns)) / 1000;
    int64_t used_ns = cpu_ns - (its->known ? its->cpu_ns : target->since_cpu_ns);
    struct xpr_sample_record sample = {
        .tick = tick,
        .cpu_ns = used_ns > 0 ? (uint64_t)used_ns : 0,
        .interval_us = interval_us > UINT32_MAX ? UINT32_MAX : (uint32_t)interval_us,
        .os_tid = target->os_tid,
        .stack = its->stack,
        .flags = is_on ? XPR_SAMPLE_ON_CPU : 0,
    };
    xpr_add_sample(&sample);
    its->known = true;
    its->was_on = is_on;
    its->at_ns = now_ns;
    its->cpu_ns = cpu_ns;
}

struct look {
    uint64_t samples, without_gil, torn, taken_by_force;
    int64_t held_ns;
};

/* The wanted targets' stacks, read from memory while they run. */
static void look_into_memory(struct look *look, const bool *wanted, const int64_t *asked_cpu_ns,
                             uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < count; i++) {
        if (!wanted[i]) continue;
        int64_t cpu_ns;
        uint64_t tick = xpr_clock_now();
        enum xpr_read read = xpr_stack_from_memory(&targets[i].watched, &seen[i].stack);
        if (read == XPR_ENDED) seen[i].gone = true;
        if (read == XPR_TORN) look->torn++;
        if (read != XPR_READ || !read_cpu(targets[i].cpu_clock, &cpu_ns)) continue;
        bool is_on = cpu_ns > asked_cpu_ns[i] || is_runnable(targets[i].os_tid, &seen[i]);
        add_sample(&targets[i], &seen[i], tick, cpu_ns, is_on);
        look->samples++;
        look->without_gil++;
    }
}

/* The wanted targets' stacks, read with the GIL. `own`: this thread's state, without the GIL before and after. */
static void look_with_gil(struct look *look, const bool *wanted, const int64_t *asked_cpu_ns,
                          uint32_t first, uint32_t count, PyThreadState *own) {
    int64_t asked_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    PyEval_RestoreThread(own);
    int64_t got_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    /* Sooner than that it was free, or its thread gave it up. */
    look->taken_by_force = got_ns - asked_ns >= sampler.switch_ns - sampler.switch_ns / 8;
    /* A new frame object must not set off a collection, which would run the program's finalizers on this thread. */
    int collects = PyGC_Disable();
    for (uint32_t i = first; i < count; i++) {
        int64_t cpu_ns;
        PyThreadState *state = wanted[i] ? xpr_find_thread(targets[i].watched.id, targets[i].watched.ident) : NULL;
        if (!state) continue; /* its clock will tell if it has ended */
        uint64_t tick = xpr_clock_now();
        seen[i].stack = xpr_stack_with_gil(state);
        if (!read_cpu(targets[i].cpu_clock, &cpu_ns)) continue;
        /* By now it may wait for the GIL that we hold. But if its clock went on since we asked for the GIL, it was at work
         * then; else it may be ready for a CPU that others have. */
        bool is_on = cpu_ns > asked_cpu_ns[i] || is_runnable(targets[i].os_tid, &seen[i]);
        add_sample(&targets[i], &seen[i], tick, cpu_ns, is_on);
        look->samples++;
    }
    if (collects) PyGC_Enable();
    look->held_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) - got_ns;
    PyEval_SaveThread();
}

/* One look at every target. `own`: this thread's state; NULL where frames are read from memory. */
static struct look look_at_all(uint32_t first, uint32_t count, PyThreadState *own) {
    struct look look = {0};
    int64_t asked_cpu_ns[MAX_TARGETS];
    bool wanted[MAX_TARGETS] = {false}; /* targets that moved */
    bool wants_any = false;
    for (uint32_t i = first; i < count; i++) {
        if (seen[i].gone) continue;
        uint64_t tick = xpr_clock_now();
        if (!read_cpu(targets[i].cpu_clock, &asked_cpu_ns[i])) {
            seen[i].gone = true;
        } else if (seen[i].known && asked_cpu_ns[i] == seen[i].cpu_ns) {
            /* On a full machine a thread at work may wait long for a CPU. */
            bool is_on = seen[i].was_on && is_runnable(targets[i].os_tid, &seen[i]);
            add_sample(&targets[i], &seen[i], tick, asked_cpu_ns[i], is_on);
            look.samples++;
            look.without_gil++;
        } else {
            wanted[i] = wants_any = true;
        }
    }
    if (!wants_any || is_finalizing()) return look;
    if (own)
        look_with_gil(&look, wanted, asked_cpu_ns, first, count, own);
    else
        look_into_memory(&look, wanted, asked_cpu_ns, first, count);
    return look;
}

static void wait_until(int64_t until_ns) {
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    pthread_mutex_lock(&sampler.lock);
    while (!sampler.stop)
        if (pthread_cond_timedwait(&sampler.changed, &sampler.lock, &until) == ETIMEDOUT) break;
    pthread_mutex_unlock(&sampler.lock);
}

static void tell(bool *what) {
    pthread_mutex_lock(&sampler.lock);
    *what = true;
    pthread_cond_broadcast(&sampler.changed);
    pthread_mutex_unlock(&sampler.lock);
}

/* Until the sampler tells `what`, or has had the time. */
static bool wait_for(const bool *what) {
    int64_t until_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) + STOP_TIMEOUT_NS;
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    pthread_mutex_lock(&sampler.lock);
    while (!*what)
        if (pthread_cond_timedwait(&sampler.changed, &sampler.lock, &until) == ETIMEDOUT) break;
    bool told = *what;
    pthread_mutex_unlock(&sampler.lock);
    return told;
}

static void *sample(void *unused) {
    pthread_setname_np(pthread_self(), "xprof_py.stacks");
    /* Needs no GIL, and must not have waited for it: a thread that just had to give it up looks like one that waits. */
    PyThreadState *own = sampler.takes_gil ? PyThreadState_New(PyInterpreterState_Main()) : NULL;
    tell(&sampler.ready);
    memset(seen, 0, sizeof seen);
    int64_t period_ns = sampler.period_ns;
    int64_t mean_cost_ns = USUAL_COST_NS, since_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    uint64_t random = (uint64_t)xpr_clock_read_ns(CLOCK_MONOTONIC) | 1;
    while ((own || !sampler.takes_gil) && !stop_wanted()) {
        int64_t began_ns = xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
        uint32_t count = atomic_load_explicit(&target_count, memory_order_acquire);
        struct look look = look_at_all(count > 1 ? 1 : 0, count, own);
        int64_t cost_ns = xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns;
        if (look.taken_by_force) cost_ns += HAND_OVER_NS;

        pthread_mutex_lock(&sampler.lock);
        struct totals *t = &sampler.totals;
        t->looks++;
        t->samples += look.samples;
        t->without_gil += look.without_gil;
        t->torn += look.torn;
        t->taken_by_force += look.taken_by_force;
        t->cost_ns += (uint64_t)cost_ns;
        int64_t due_ns = ((int64_t)t->cost_ns - ADVANCE_NS) * (1000 / COST_PERMILLE);
        t->held_ns += (uint64_t)look.held_ns;
        if ((uint64_t)look.held_ns > t->longest_hold_ns) t->longest_hold_ns = (uint64_t)look.held_ns;
        pthread_mutex_unlock(&sampler.lock);

        mean_cost_ns += (cost_ns - mean_cost_ns) / 16;
        int64_t pause_ns = mean_cost_ns * (1000 / COST_PERMILLE);
        int64_t debt_ns = due_ns - (xpr_clock_read_ns(CLOCK_MONOTONIC) - since_ns);
        if (pause_ns < debt_ns) pause_ns = debt_ns;
        if (pause_ns < period_ns) pause_ns = period_ns;
        if (pause_ns > LONGEST_PERIOD_NS) pause_ns = LONGEST_PERIOD_NS;
        /* Between 3/4 and 5/4 of it, so that a loop of the same period is not always met at the same place. */
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        pause_ns += (int64_t)(random % (uint64_t)(pause_ns / 2)) - pause_ns / 4;
        wait_until(xpr_clock_read_ns(CLOCK_MONOTONIC) + pause_ns);
    }
    if (own && !is_finalizing()) {
        PyEval_RestoreThread(own);
        PyThreadState_Clear(own);
        PyThreadState_DeleteCurrent();
    }
    xpr_memory_frames_close();
    close_files();
    tell(&sampler.ended);
    return NULL;
}

/* --- start and stop ----------------------------------------------------------------------------------------------- */

static void init_locks(void) {
    sampler.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    xpr_init_condition(&sampler.changed);
}

static void before_fork(void) { pthread_mutex_lock(&sampler.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&sampler.lock); }

static void after_fork_child(void) {
    init_locks();
    xpr_memory_frames_close();
    close_files();
    sampler.running = sampler.ready = sampler.stop = sampler.ended = false;
    atomic_store(&sampling, false);
    atomic_store(&target_count, 0);
}

static int once_result;

static void install_once(void) {
    init_locks();
    once_result = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static const char *why_not(void) {
#ifdef Py_GIL_DISABLED
    return "this Python has no GIL: another thread's frames cannot be read safely";
#else
    if (PyThreadState_GetInterpreter(PyThreadState_Get()) != PyInterpreterState_Main())
        return "only the main interpreter's threads can be sampled";
    if (sampler.running) return "the stack sampler runs already";
    if (!xpr_recording()) return "nothing records";
    return NULL;
#endif
}

static PyObject *sampler_start(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"main_ident", "main_tid", "switch_ns", "takes_gil", "period_ns", NULL};
    unsigned long main_ident;
    unsigned int main_tid;
    long long switch_ns, period_ns = 10000000;
    int takes_gil;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "kILp|$L:sampler_start", names, &main_ident, &main_tid, &switch_ns, &takes_gil,
                                     &period_ns))
        return NULL;
    if (period_ns < 1000000 || period_ns > LONGEST_PERIOD_NS) {
        PyErr_SetString(PyExc_ValueError, "period_ns: wants 1 ms to 1 s");
        return NULL;
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_once);
    const char *reason = why_not();
    if (reason) {
        PyErr_SetString(PyExc_RuntimeError, reason);
        return NULL;
    }
    targets[0] = (struct target){.os_tid = main_tid};
    PyThreadState *main_state = xpr_find_thread(0, main_ident);
    if (main_state) xpr_watch(&targets[0].watched, main_state);
    int error = main_state ? once_result : ESRCH;
    if (!error && !takes_gil && xpr_memory_frames_open()) error = ENOTSUP;
    if (!error && !begin_target(&targets[0], (pthread_t)main_ident)) error = ESRCH;
    if (!error) error = xpr_samples_open();
    if (!error) {
        memset(&sampler.totals, 0, sizeof sampler.totals);
        xpr_forget_frames_with_gil();
        sampler.takes_gil = takes_gil;
        sampler.generation = xpr_recording();
        sampler.period_ns = period_ns;
        sampler.switch_ns = switch_ns;
        sampler.ready = sampler.stop = sampler.ended = false;
        atomic_store(&target_count, 1);
        error = xpr_start_own_thread(sample, NULL, STACK_BYTES);
        /* With the GIL, so that no fork copies Python's list of threads while the sampler is being put into it. */
        if (!error) wait_for(&sampler.ready);
    }
    if (error) {
        xpr_memory_frames_close();
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    sampler.running = true;
    atomic_store(&sampling, true);
    Py_RETURN_NONE;
}

static PyObject *sampler_self_test(PyObject *module, PyObject *unused) {
    const char *reason = sampler.running ? "the stack sampler runs" : xpr_memory_frames_open();
    if (!reason) {
        reason = xpr_memory_frames_differ();
        xpr_memory_frames_close();
    }
    return Py_BuildValue("z", reason);
}

/* For tests and benchmarks: looks without a pause between them, on the calling thread. */
static PyObject *sampler_trial(PyObject *module, PyObject *args) {
    unsigned long ident;
    unsigned int looks;
    if (!PyArg_ParseTuple(args, "kI:sampler_trial", &ident, &looks)) return NULL;
    PyThreadState *state = xpr_find_thread(0, ident);
    const char *reason = sampler.running ? "the stack sampler runs" : !xpr_recording() ? "nothing records" : NULL;
    if (!reason && !state) reason = "there is no such thread";
    if (!reason && xpr_samples_open() != 0) reason = "no memory for samples";
    if (!reason) reason = xpr_memory_frames_open();
    if (reason) {
        PyErr_SetString(PyExc_RuntimeError, reason);
        return NULL;
    }
    struct target target = {.os_tid = (uint32_t)state->native_thread_id};
    struct seen last = {0};
    xpr_watch(&target.watched, state);
    unsigned int read = 0, torn = 0, changed = 0;
    uint32_t before = 0;
    bool has_ended = false;
    int64_t cost_ns;
    Py_BEGIN_ALLOW_THREADS;
    cost_ns = -xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
    for (unsigned int i = 0; i < looks && !has_ended; i++) {
        enum xpr_read got = xpr_stack_from_memory(&target.watched, &last.stack);
        has_ended = got == XPR_ENDED;
        torn += got == XPR_TORN;
        if (got != XPR_READ) continue;
        if (!read++ || last.stack != before) {
            add_sample(&target, &last, xpr_clock_now(), 0, true);
            changed++;
        }
        before = last.stack;
    }
    cost_ns += xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
    xpr_memory_frames_close();
    Py_END_ALLOW_THREADS;
    return Py_BuildValue("{sIsIsIsOsL}", "read", read, "changed", changed, "torn", torn, "ended", has_ended ? Py_True : Py_False, "cost_ns",
                         (long long)cost_ns);
}

static PyObject *sampler_stop(PyObject *module, PyObject *unused) {
    if (!sampler.running) return PyDict_New();
    atomic_store(&sampling, false);
    uint32_t count = atomic_load(&target_count);
    bool ended;
    /* Without the GIL, which the sampler may be waiting for. */
    Py_BEGIN_ALLOW_THREADS;
    tell(&sampler.stop);
    ended = wait_for(&sampler.ended);
    Py_END_ALLOW_THREADS;
    /* One that does not end keeps its place, so that there is never a second one. */
    sampler.running = !ended;
    const struct totals *t = &sampler.totals;
    return Py_BuildValue("{sOsKsKsKsKsKsKsKsKsKsI}", "ended", ended ? Py_True : Py_False, "looks", (unsigned long long)t->looks,
                         "samples", (unsigned long long)t->samples, "without_gil", (unsigned long long)t->without_gil,
                         "torn", (unsigned long long)t->torn,
                         "taken_by_force", (unsigned long long)t->taken_by_force, "cost_ns", (unsigned long long)t->cost_ns,
                         "held_ns", (unsigned long long)t->held_ns, "longest_hold_ns", (unsigned long long)t->longest_hold_ns, "threads_left_out",
                         (unsigned long long)t->targets_left_out, "threads", count > 1 ? count - 1 : count);
}

static PyMethodDef functions[] = {
    {"sampler_start", (PyCFunction)(void (*)(void))sampler_start, METH_VARARGS | METH_KEYWORDS,
     "sampler_start(main_ident, main_tid, switch_ns, takes_gil, *, period_ns=10000000)\n--\n\n"
     "Samples, from now to sampler_stop, the stacks of the threads that record steps or input spans; until there are any,\n"
     "that of the main thread. Raises RuntimeError where that cannot be done, OSError where there is no thread for it."},
    {"sampler_self_test", sampler_self_test, METH_NOARGS,
     "sampler_self_test()\n--\n\n"
     "Reads the calling thread's frames from memory and through Python's public calls. None if they are the same; else why\n"
     "the sampler has to take the GIL."},
    {"sampler_trial", sampler_trial, METH_VARARGS,
     "sampler_trial(ident, looks, /)\n--\n\n"
     "Looks that often at a thread, from memory and without a pause; each that finds another stack than the one\n"
     "before is a sample in the shard that is being recorded. Returns how many were read, had changed and were torn,\n"
     "whether the thread ended, and the CPU time."},
    {"sampler_stop", sampler_stop, METH_NOARGS,
     "sampler_stop()\n--\n\nStops the stack sampler. Returns its totals; {} if none ran."},
    {NULL, NULL, 0, NULL},
};

int xpr_add_sampler(PyObject *module) { return PyModule_AddFunctions(module, functions); }
