/* lwIP's options for this project. All other options have the default of lwip/opt.h. */

#ifndef LWIP_SYS_LWIPOPTS_H
#define LWIP_SYS_LWIPOPTS_H

#include <stddef.h>

/* The caller guarantees one thread at a time, and runs the timers by c/tcp.c. */
#define NO_SYS                          1
#define SYS_LIGHTWEIGHT_PROT            0
#define LWIP_TIMERS                     0
#define LWIP_NETCONN                    0
#define LWIP_SOCKET                     0

/* All memory comes from c/memory.c, so there are no pools of fixed size. */
#define MEM_CUSTOM_ALLOCATOR            1
#define MEM_CUSTOM_MALLOC               lwip_sys_malloc
#define MEM_CUSTOM_CALLOC               lwip_sys_calloc
#define MEM_CUSTOM_FREE                 lwip_sys_free
void *lwip_sys_malloc(size_t size);
void *lwip_sys_calloc(size_t count, size_t size);
void lwip_sys_free(void *bytes);
#define MEMP_MEM_MALLOC                 1
#define MEM_ALIGNMENT                   8
#define LWIP_SUPPORT_CUSTOM_PBUF        1

/* One point-to-point interface of bare IP packets. Only UDP over IPv4 has fragments; see c/ip4.c. All fragments of four
 * datagrams of the largest size may wait, at an MTU of 1,500. */
#define LWIP_SINGLE_NETIF               1
#define LWIP_ARP                        0
#define LWIP_ETHERNET                   0
#define PBUF_LINK_HLEN                  0
#define LWIP_IPV4                       1
#define LWIP_ICMP                       1
#define IP_REASSEMBLY                   1
#define IP_REASS_MAX_PBUFS              192
#define IP_FRAG                         1
#define IP_DEFAULT_TTL                  64
#define LWIP_IPV6                       1
#define LWIP_ICMP6                      1
/* Zones distinguish link-local addresses of several interfaces. There is one interface. */
#define LWIP_IPV6_SCOPES                0
#define LWIP_IPV6_NUM_ADDRESSES         1
#define LWIP_IPV6_AUTOCONFIG            0
#define LWIP_IPV6_ADDRESS_LIFETIMES     0
#define LWIP_IPV6_DUP_DETECT_ATTEMPTS   0
#define LWIP_IPV6_SEND_ROUTER_SOLICIT   0
#define LWIP_IPV6_MLD                   0
#define LWIP_IPV6_FRAG                  0
#define LWIP_IPV6_REASS                 0
#define LWIP_ND6_QUEUEING               0
#define LWIP_ND6_ALLOW_RA_UPDATES       0
#define LWIP_ND6_TCP_REACHABILITY_HINTS 0
#define LWIP_RAW                        0
#define LWIP_UDP                        1

#define LWIP_TCP                        1
/* The upper limit: the payload of a 65,535-byte IPv4 packet. The real MSS, also in the SYN's option, follows from the
 * interface's MTU. c/tcp_out.c makes larger segments for a link that cuts them. */
#define TCP_MSS                         65495
#define LWIP_WND_SCALE                  1
#define LWIP_TCP_SACK_OUT               1
#define TCP_OVERSIZE                    0
#define TCP_LISTEN_BACKLOG              0
#define LWIP_TCP_PCB_NUM_EXT_ARGS       4
/* The checks need constants, and segments below 16 KiB. */
#define LWIP_DISABLE_TCP_SANITY_CHECKS  1
/* lwIP counts timeouts in units of twice this, and the shortest timeout is three units: 0.3 seconds. Linux has 0.2
 * (TCP_RTO_MIN, include/net/tcp.h). With lwIP's default of 250 milliseconds it would be 1.5 seconds. Probes of a closed
 * window are five times as frequent too. TIMER_MS in src/lib.rs is the same. */
#define TCP_TMR_INTERVAL                50
/* RFC 6298, 2.1. The default is 3 seconds, from RFC 1122. */
#define LWIP_TCP_RTO_TIME               1000
/* 2 MSL are 60 seconds, as on Linux (TCP_TIMEWAIT_LEN, include/net/tcp.h). */
#define TCP_MSL                         30000UL

/* The window is set at run time. For the preprocessor an identifier is 0, so it sees constants that pass the checks of
 * lwip/opt.h and core/init.c. The compiler sees the variables. */
enum { lwip_sys_at_run_time = 1 };
extern unsigned int lwip_sys_window;
extern unsigned int lwip_sys_window_scale;
#define TCP_WND                         (lwip_sys_at_run_time ? lwip_sys_window : 65535)
#define TCP_RCV_SCALE                   (lwip_sys_at_run_time ? lwip_sys_window_scale : 0)
#define TCP_SND_BUF                     TCP_WND
/* The limit of the type, which lwip_sys_pcb_room() respects. Segments of the usual size reach TCP_SND_BUF first. */
#define TCP_SND_QUEUELEN                0xffff
#define TCP_SNDLOWAT                    1
#define TCP_SNDQUEUELOWAT               5
#define TCP_QUEUE_OOSEQ                 1

/* The flags of the interface say which checksums lwIP computes and verifies. */
#define LWIP_CHECKSUM_CTRL_PER_NETIF    1
#define LWIP_CHECKSUM_ON_COPY           0
#define LWIP_CHKSUM_ALGORITHM           3

#define LWIP_STATS                      0

/* RFC 6528 instead of a predictable counter. */
struct ip_addr;
unsigned int lwip_sys_isn(const struct ip_addr *local_ip, unsigned short local_port,
                          const struct ip_addr *remote_ip, unsigned short remote_port);
#define LWIP_HOOK_TCP_ISN(local_ip, local_port, remote_ip, remote_port) \
  lwip_sys_isn((local_ip), (local_port), (remote_ip), (remote_port))

#endif
