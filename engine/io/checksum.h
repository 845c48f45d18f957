/* CRC-32C (Castagnoli), the checksum of iSCSI and ext4: by the processor's instruction where it has one. */
#ifndef MX_IO_CHECKSUM_H
#define MX_IO_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Of `bytes` bytes at `data`, going on from `crc`; 0 to begin with. */
uint32_t mx_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same without the instruction: what it is tested against. */
uint32_t mx_crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
