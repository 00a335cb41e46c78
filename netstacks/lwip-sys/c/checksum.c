/* lwIP's core/inet_chksum.c, unchanged, with the algorithm LWIP_SYS_ALGORITHM, for the bench that compares them.
 * build.rs compiles this file once for each of 1, 2 and 3, so every name that the linker sees ends in the number. */

#include "lwip/opt.h"

#undef LWIP_CHKSUM_ALGORITHM
#define LWIP_CHKSUM_ALGORITHM LWIP_SYS_ALGORITHM

#define JOIN(name, number) name##number
#define EXPAND(name, number) JOIN(name, number)
#define NUMBERED(name) EXPAND(name, LWIP_SYS_ALGORITHM)

#define lwip_standard_chksum       NUMBERED(lwip_sys_sum_)
#define inet_chksum                NUMBERED(inet_chksum_)
#define inet_chksum_pbuf           NUMBERED(inet_chksum_pbuf_)
#define inet_chksum_pseudo         NUMBERED(inet_chksum_pseudo_)
#define inet_chksum_pseudo_partial NUMBERED(inet_chksum_pseudo_partial_)
#define ip6_chksum_pseudo          NUMBERED(ip6_chksum_pseudo_)
#define ip6_chksum_pseudo_partial  NUMBERED(ip6_chksum_pseudo_partial_)
#define ip_chksum_pseudo           NUMBERED(ip_chksum_pseudo_)
#define ip_chksum_pseudo_partial   NUMBERED(ip_chksum_pseudo_partial_)

#include "core/inet_chksum.c"
