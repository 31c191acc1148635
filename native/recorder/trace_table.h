/* The recorder's side of xprof_py/trace.h. */
#ifndef XPROF_PY_RECORDER_TRACE_TABLE_H
#define XPROF_PY_RECORDER_TRACE_TABLE_H

/* Makes the function table known to every library that uses xprof_py/trace.h: those loaded by now are told, later ones look
 * for it as they are loaded. Called once, as the extension is imported; about 10 us per loaded library. */
void xpr_publish_trace_table(void);

#endif
