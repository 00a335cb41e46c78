/* What lwIP asks of a compiler and a C library: the least that every target has. */

#ifndef LWIP_SYS_ARCH_CC_H
#define LWIP_SYS_ARCH_CC_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef BYTE_ORDER
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define BYTE_ORDER BIG_ENDIAN
#else
#define BYTE_ORDER LITTLE_ENDIAN
#endif
#endif

/* Without this lwIP calls a function for each, and names of the system's headers are taken. */
#define LWIP_DONT_PROVIDE_BYTEORDER_FUNCTIONS
#if defined(__GNUC__) && BYTE_ORDER == LITTLE_ENDIAN
#define lwip_htons(x) ((uint16_t)__builtin_bswap16((uint16_t)(x)))
#define lwip_htonl(x) ((uint32_t)__builtin_bswap32((uint32_t)(x)))
#endif

/* GCC and clang pack by attribute, which lwIP knows; Microsoft's compiler by pragma. */
#if defined(_MSC_VER) && !defined(__clang__)
#define PACK_STRUCT_USE_INCLUDES
#endif

/* Without __FILE__: it would carry the builder's home directory into the program. */
void lwip_sys_assertion_failed(const char *message, int line);
#define LWIP_PLATFORM_ASSERT(message) lwip_sys_assertion_failed((message), __LINE__)

/* Nothing is printed from inside the byte path. */
#define LWIP_PLATFORM_DIAG(message) do { } while (0)

#endif
