/* Traces: writes a recording as Chrome trace events (JSON), which Perfetto (ui.perfetto.dev) opens.
 *
 * One track shows the script's thread: spans, inside these operations, and inside or between these waits and a
 * simulated chip's copies. Each lane has a track; in simulation, each network and the transfers to the host have one.
 * Events that overlap, as on different links of a torus, are on several tracks of the same name. A counter shows the
 * memory in use. Times are microseconds from the start of the recording. The rank is shown as the process. */
#ifndef MX_IO_TRACE_H
#define MX_IO_TRACE_H

#include "io/recorder.h"

/* Writes the complete file or leaves an existing one unchanged. MX_ERR_IO with the path, MX_ERR_MEMORY. Not collective.
 */
mx_status mx_trace_write(const char *path, const mx_recording *recording, int rank);

#endif
