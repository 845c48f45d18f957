/* Traces: a recording as a file of Chrome's trace events (JSON), which Perfetto (ui.perfetto.dev) opens.
 *
 * A track for what the script's thread did: spans, in them operations, in these (or between them) waits and a simulated
 * chip's copies. A track for each lane, or in simulation for each of the networks and the transfers to the host; where
 * such events go on side by side, as on different links of a torus, they lie on several tracks of that name. A counter
 * of the memory in use. Times are microseconds from the start of the recording; the rank is the process. */
#ifndef MX_IO_TRACE_H
#define MX_IO_TRACE_H

#include "io/recorder.h"

/* The file is there whole, or as it was. MX_ERR_IO naming the path, MX_ERR_MEMORY. Not collective. */
mx_status mx_trace_write(const char *path, const mx_recording *recording, int rank);

#endif
