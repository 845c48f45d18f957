/* The parts of mx.io: io.c creates the table, and the other files add their functions to the table on top of the stack.
 */
#ifndef MX_BIND_IO_H
#define MX_BIND_IO_H

#include <lauxlib.h>
#include <lua.h>

/* Creates a metatable of that name with the metamethods `meta`, and `methods` as __index. */
void mxl_new_class(lua_State *L, const char *name, const luaL_Reg *meta, const luaL_Reg *methods);

void mxl_add_hdf5_fields(lua_State *L);       /* h5_write h5_writer h5_read h5_open h5_info */
void mxl_add_tokens_fields(lua_State *L);     /* tokens_open */
void mxl_add_checkpoint_fields(lua_State *L); /* writer chunk_overlap chunk_copy */
void mxl_add_lock_fields(lua_State *L);       /* lock */
void mxl_add_feed_fields(lua_State *L);       /* feed permutation */
void mxl_add_corpus_fields(lua_State *L);     /* text_open file_list token_part ... */
void mxl_add_tokenizer_fields(lua_State *L);  /* tokenizer_open tokenizer_parse */
void mxl_add_weights_fields(lua_State *L);    /* weights_open safetensors_writer */
void mxl_add_pattern_fields(lua_State *L);    /* pattern */
void mxl_add_bytes_fields(lua_State *L);      /* put_bytes get_bytes crc32 adler32 inflater deflater draft */

#endif
