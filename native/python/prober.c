/* Start and stop of the clock prober. */
#include "module.h"

#include <errno.h>

#include "probe/probe.h"

static bool copy_text(char *place, size_t room, const char *text) {
    size_t bytes = strlen(text);
    if (!bytes || bytes >= room) {
        PyErr_Format(PyExc_ValueError, "an address wants 1 to %zu bytes", room - 1);
        return false;
    }
    memcpy(place, text, bytes + 1);
    return true;
}

static bool read_addresses(struct xpr_probe_options *options, PyObject *addresses) {
    PyObject *all = PySequence_Fast(addresses, "addresses: wants a sequence");
    if (!all) return false;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(all);
    bool ok = count <= XPR_MAX_PEERS;
    if (!ok) PyErr_Format(PyExc_ValueError, "at most %d addresses", XPR_MAX_PEERS);
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        struct xpr_probe_address *a = &options->addresses[i];
        const char *text, *host;
        unsigned short port;
        int mesh;
        ok = PyArg_ParseTuple(PySequence_Fast_GET_ITEM(all, i), "ssHp", &text, &host, &port, &mesh) &&
             copy_text(a->text, sizeof a->text, text) && copy_text(a->host, sizeof a->host, host);
        a->port = port;
        a->mesh = mesh;
    }
    options->count = ok ? (uint32_t)count : 0;
    Py_DECREF(all);
    return ok;
}

static PyObject *probe_start(PyObject *module, PyObject *args) {
    const char *key;
    Py_ssize_t key_bytes;
    unsigned short serve_port;
    PyObject *addresses;
    if (!PyArg_ParseTuple(args, "y#HO:probe_start", &key, &key_bytes, &serve_port, &addresses)) return NULL;
    struct xpr_probe_options *options = PyMem_Calloc(1, sizeof *options);
    if (!options) return PyErr_NoMemory();
    bool ok = key_bytes == (Py_ssize_t)sizeof options->key;
    if (!ok) PyErr_SetString(PyExc_ValueError, "key: wants 16 bytes");
    if (ok) memcpy(options->key, key, sizeof options->key);
    options->serve_port = serve_port;
    ok = ok && read_addresses(options, addresses);
    int error = ok ? xpr_probe_start(options) : 0;
    PyMem_Free(options);
    if (!ok) return NULL;
    if (error == EBUSY) {
        PyErr_SetString(PyExc_RuntimeError, "a clock prober runs already");
        return NULL;
    }
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *peers_list(const struct xpr_probe_report *r) {
    PyObject *peers = PyList_New(0);
    for (uint32_t i = 0; peers && i < r->count; i++) {
        const struct xpr_peer_report *p = &r->peers[i];
        PyObject *peer = Py_BuildValue("{sssssKsK}", "address", p->text, "error", p->error, "sent", (unsigned long long)p->sent,
                                       "answered", (unsigned long long)p->answered);
        if (!peer || PyList_Append(peers, peer) < 0) Py_CLEAR(peers);
        Py_XDECREF(peer);
    }
    return peers;
}

/* A number, None for "not known" (UINT64_MAX). */
static PyObject *known(uint64_t number) {
    return number == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(number);
}

static PyObject *probe_stop(PyObject *module, PyObject *args) {
    double timeout_s = 2.0;
    if (!PyArg_ParseTuple(args, "|d:probe_stop", &timeout_s)) return NULL;
    if (!(timeout_s >= 0)) timeout_s = 0;
    if (timeout_s > 1e6) timeout_s = 1e6;
    struct xpr_probe_report *r = PyMem_Calloc(1, sizeof *r);
    if (!r) return PyErr_NoMemory();
    bool ended;
    Py_BEGIN_ALLOW_THREADS;
    ended = xpr_probe_stop((int64_t)(timeout_s * 1e9), r);
    Py_END_ALLOW_THREADS;
    PyObject *result;
    if (ended) {
        const struct xpr_prober_record *t = &r->totals;
        char session[24];
        snprintf(session, sizeof session, "%016llx", (unsigned long long)r->session);
        result = Py_BuildValue(
            "{sOsssisssNsKsKsKsKsKsNsKsKsL}", "ended", Py_True, "session", session, "port", (int)r->served_port, "serve_error",
            r->serve_error, "peers", peers_list(r), "served", (unsigned long long)t->served, "malformed",
            (unsigned long long)t->malformed, "bad_token", (unsigned long long)t->bad_token, "replayed",
            (unsigned long long)t->replayed, "late", (unsigned long long)t->late, "rate_limited", known(t->rate_limited),
            "postponed", (unsigned long long)t->postponed, "cpu_ns", (unsigned long long)t->cpu_ns, "wall_ns", (long long)r->wall_ns);
    } else {
        result = Py_BuildValue("{sO}", "ended", xpr_probe_running() ? Py_False : Py_True);
    }
    PyMem_Free(r);
    return result;
}

static PyMethodDef functions[] = {
    {"probe_start", probe_start, METH_VARARGS,
     "probe_start(key, serve_port, addresses, /)\n--\n\n"
     "Starts the clock prober, whose exchanges go into the shard that is being recorded.\n\n"
     "key: 16 bytes that all processes of the job have. serve_port: answers there, 0: does not. addresses: (text, host, port,\n"
     "mesh) of whom to ask. Raises RuntimeError while one runs, ValueError for an address or a key that does not fit, OSError\n"
     "where there is no thread for it. What goes wrong later stands in what probe_stop returns."},
    {"probe_stop", probe_stop, METH_VARARGS,
     "probe_stop(timeout_s=2.0, /)\n--\n\n"
     "Stops the clock prober and returns its report; {'ended': True} if none ran, {'ended': False} if it does not end in time."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_prober(PyObject *module) { return PyModule_AddFunctions(module, functions); }
