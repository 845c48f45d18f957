/* How the parts of the engine are connected. */
#ifndef MX_MESH_SETUP_H
#define MX_MESH_SETUP_H

/* Has operations recorded on tapes, and backward start gathers ahead and add gradients over ranks. Once, before the
 * first operation. Not collective. */
void mx_engine_setup(void);

#endif
