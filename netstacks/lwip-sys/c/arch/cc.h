/* lwIP's settings for the compiler and the C library. They work on every target. */

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

/* Without this, lwIP calls functions to swap bytes, and defines names that the system's headers use. */
#define LWIP_DONT_PROVIDE_BYTEORDER_FUNCTIONS
#if defined(_MSC_VER)
/* From stdlib.h. Windows is little-endian, and its long has 32 bits. */
#define lwip_htons(x) ((uint16_t)_byteswap_ushort((uint16_t)(x)))
#define lwip_htonl(x) ((uint32_t)_byteswap_ulong((uint32_t)(x)))
#elif defined(__GNUC__) && BYTE_ORDER == LITTLE_ENDIAN
#define lwip_htons(x) ((uint16_t)__builtin_bswap16((uint16_t)(x)))
#define lwip_htonl(x) ((uint32_t)__builtin_bswap32((uint32_t)(x)))
#endif

/* lwIP packs structures by the attribute of GCC and clang. Microsoft's compiler needs a pragma. */
#if defined(_MSC_VER) && !defined(__clang__)
#define PACK_STRUCT_USE_INCLUDES
#endif

/* Without __FILE__, which would put the path of the build machine into the program. */
#if defined(_MSC_VER) && !defined(__clang__)
#define LWIP_SYS_NORETURN __declspec(noreturn)
#else
#define LWIP_SYS_NORETURN __attribute__((noreturn))
#endif
LWIP_SYS_NORETURN void lwip_sys_assertion_failed(const char *message, int line);
#define LWIP_PLATFORM_ASSERT(message) lwip_sys_assertion_failed((message), __LINE__)

/* The byte path prints nothing. */
#define LWIP_PLATFORM_DIAG(message) do { } while (0)

#endif
