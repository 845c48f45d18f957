/* CRC-32C (Castagnoli), the checksum of iSCSI and ext4. Uses the processor's instruction if there is one. */
#ifndef MX_IO_CHECKSUM_H
#define MX_IO_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of `bytes` bytes at `data`, continued from `crc`; start with 0. */
uint32_t mx_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same without the instruction; tests compare the two. */
uint32_t mx_crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
