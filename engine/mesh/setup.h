/* Connects the parts of the engine. */
#ifndef MX_MESH_SETUP_H
#define MX_MESH_SETUP_H

/* Sets the hooks by which operations are recorded on tapes and backward prefetches gathers and all-reduces gradients.
 * To be called once, before the first operation. Not collective. */
void mx_engine_setup(void);

#endif
