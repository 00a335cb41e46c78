/* The interface between lwIP and Rust. Rust does not see the structures of lwIP. */

#ifndef LWIP_SYS_SHIM_H
#define LWIP_SYS_SHIM_H

#include <stddef.h>

#include "lwip/err.h"
#include "lwip/ip_addr.h"
#include "lwip/pbuf.h"
#include "lwip/tcp.h"

struct tcp_hdr;

/* Both ends of a connection or a datagram. An IPv4 address takes the first four bytes. */
struct lwip_sys_endpoints {
  u8_t local_ip[16];
  u8_t remote_ip[16];
  u16_t local_port;
  u16_t remote_port;
  u8_t is_v6;
};

/* The places in the array of lwip_sys_pcb_edges(). netstacks/src/lwip/core/pcb.rs reads it in the same order. */
enum {
  LWIP_SYS_UNACKNOWLEDGED,
  LWIP_SYS_SENT,
  LWIP_SYS_EXPECTED,
  LWIP_SYS_WINDOW_END,
  LWIP_SYS_PEER_WINDOW,
  LWIP_SYS_EDGES
};

/* A piece of a packet. */
struct lwip_sys_slice {
  void *base;
  size_t len;
};

/* A packet of more pieces than this is passed as a pbuf, not as slices. */
#define LWIP_SYS_MAX_SLICES 16

/* Which checksums of a received packet the caller has verified. */
#define LWIP_SYS_VERIFIED_ABOVE_IP 0
#define LWIP_SYS_VERIFIED_NOTHING 1
#define LWIP_SYS_VERIFIED_ALL 2

#define LWIP_SYS_DROP 0
#define LWIP_SYS_OPEN 1
#define LWIP_SYS_REFUSE 2

/* The callbacks of lwIP. A flow is the caller's number of a connection, never 0. */
struct lwip_sys_callbacks {
  /* What to do with a SYN that belongs to no connection, or, if opens is 0, with the ACK that would complete a
   * handshake: LWIP_SYS_DROP, LWIP_SYS_OPEN or LWIP_SYS_REFUSE. */
  u8_t (*admit)(void *engine, u8_t opens);
  /* A SYN was accepted. Returns the connection's flow, or 0 to drop the SYN. */
  size_t (*opened)(void *engine, struct tcp_pcb *pcb);
  /* The handshake is complete. */
  void (*established)(void *engine, size_t flow);
  /* Data, which the callee then owns, or a FIN if p is NULL. May abort the connection, and then
   * returns ERR_ABRT. */
  err_t (*received)(void *engine, size_t flow, struct tcp_pcb *pcb, struct pbuf *p);
  /* The peer has acknowledged data. */
  void (*sent)(void *engine, size_t flow, u16_t len);
  /* The connection ended with this error code. Called before or after destroyed. */
  void (*failed)(void *engine, size_t flow, err_t error);
  /* The pcb was freed. */
  void (*destroyed)(void *engine, size_t flow);
  /* Returns an initial sequence number (RFC 6528). */
  u32_t (*isn)(void *engine, const struct lwip_sys_endpoints *endpoints);
  /* A datagram has arrived. bytes is its payload. */
  void (*datagram)(void *engine, const struct lwip_sys_endpoints *endpoints, const void *bytes, size_t len);
  /* Returns the time of a monotonic clock, in seconds. */
  u32_t (*seconds)(void *engine);
  /* lwIP no longer needs a frame's bytes. */
  void (*released)(void *engine, void *slot);
  /* Sends a packet: as slices, or, if there are too many, as the pbuf with a count of 0. */
  err_t (*output)(void *link, const struct lwip_sys_slice *slices, size_t count, const struct pbuf *p);
};

/* The settings of the interface. */
struct lwip_sys_options {
  /* Each connection's receive window and send buffer, in bytes. */
  u32_t window;
  /* The length of a packet's buffer, in bytes. */
  u32_t packet_len;
  u16_t mtu;
  /* Largest payloads of segments over IPv4 and IPv6 that the link takes, in bytes. Values below those of the MTU have
   * no effect. */
  u16_t largest_v4;
  u16_t largest_v6;
  /* The window's shift count. */
  u8_t scale;
  /* Whether to compute TCP's checksums. */
  u8_t tcp_checksums;
  /* Whether data is acknowledged, and sent when the window opens, once for a batch. */
  u8_t one_ack_a_batch;
};

/* The memory of a pbuf over the caller's bytes. */
struct lwip_sys_frame;

/* In shim.c, used by all files. */
extern u8_t lwip_sys_one_ack_a_batch;

/* Used by tcp_in.c. */
u8_t lwip_sys_admit(const struct pbuf *p);
u8_t lwip_sys_note(const struct tcp_pcb *pcb);

/* In reorder.c, used by tcp_in.c and shim.c: most segments of a connection that wait, bytes below this number are
 * copied, and, for tests, how many ranges were looked at. */
extern unsigned int lwip_sys_reorder_segments;
extern unsigned int lwip_sys_small_len;
extern size_t lwip_sys_reorder_steps;
void lwip_sys_reorder_init(void);
u16_t lwip_sys_reorder_limit(struct tcp_pcb *pcb, u32_t seqno, u16_t len, u8_t *fin);
u8_t lwip_sys_reorder_keep(struct tcp_pcb *pcb, struct pbuf *p, struct tcp_hdr *header, u32_t seqno, u32_t *left,
                           u32_t *right);

/* Used by shim.c and pcb.c. */
void lwip_sys_enlist(struct tcp_pcb *pcb);
void lwip_sys_segments_init(void);
void lwip_sys_segments_limit(u16_t largest_v4, u16_t largest_v6);
void lwip_sys_segments_of(struct tcp_pcb *pcb, const struct netif *netif);
void lwip_sys_fit(struct tcp_pcb *pcb);
void lwip_sys_describe(struct lwip_sys_endpoints *to, const ip_addr_t *local_ip, u16_t local_port,
                       const ip_addr_t *remote_ip, u16_t remote_port);

/* In udp.c and ip4.c, used by shim.c. */
err_t lwip_sys_udp_start(void);
void lwip_sys_udp_stop(void);
u8_t lwip_sys_udp_is_wanted(void);
void lwip_sys_fragments_drop(void);

/* In shim.c, used by udp.c and ip4.c. */
void lwip_sys_deliver(const struct lwip_sys_endpoints *endpoints, const void *bytes, size_t len);
u32_t lwip_sys_seconds(void);

/* In Rust: counts a block of memory from the C library. */
void lwip_sys_count_allocation(void);

/* Used by Rust; described in src/lib.rs. */
const char *lwip_sys_version(void);
void lwip_sys_init(void);
err_t lwip_sys_start(const struct lwip_sys_callbacks *callbacks, void *engine, void *link,
                     const struct lwip_sys_options *options);
void lwip_sys_stop(void);
void lwip_sys_memory_trim(void);
extern u8_t lwip_sys_starved;
size_t lwip_sys_input(struct pbuf *p, u8_t verified, struct tcp_pcb *pcb);

void lwip_sys_udp_close(void);
err_t lwip_sys_udp_send(const struct lwip_sys_endpoints *ends, void *bytes, u16_t len, u16_t mtu, u8_t checksum);

struct lwip_sys_frame *lwip_sys_frame_new(void *slot);
void lwip_sys_frame_delete(struct lwip_sys_frame *frame);
struct pbuf *lwip_sys_frame_wrap(struct lwip_sys_frame *frame, void *bytes, u16_t len);
struct pbuf *lwip_sys_pbuf_of(const void *bytes, u16_t len);
struct pbuf *lwip_sys_pbuf_join(struct pbuf *const *parts, size_t count);
u16_t lwip_sys_pbuf_len(const struct pbuf *p);
u16_t lwip_sys_pbuf_front(const struct pbuf *chain, const void **bytes);
void lwip_sys_pbuf_skip(struct pbuf **chain, u16_t len);
void lwip_sys_pbuf_free(struct pbuf *chain);

void lwip_sys_pcb_endpoints(const struct tcp_pcb *pcb, struct lwip_sys_endpoints *endpoints);
size_t lwip_sys_pcb_room(struct tcp_pcb *pcb, size_t wanted);
void lwip_sys_pcb_push(struct tcp_pcb *pcb);
void lwip_sys_pcb_forget(struct tcp_pcb *pcb);
void lwip_sys_pcb_abort(struct tcp_pcb *pcb);
err_t lwip_sys_pcb_write(struct tcp_pcb *pcb, const void *bytes, u16_t len, u8_t flags);
void lwip_sys_pcb_finish(struct tcp_pcb *pcb);
void lwip_sys_pcb_keepalive(struct tcp_pcb *pcb);
u8_t lwip_sys_pcb_is_over(const struct tcp_pcb *pcb);
u8_t lwip_sys_pcb_is_quiet(const struct tcp_pcb *pcb);
void lwip_sys_tick(void);
void lwip_sys_pcb_tick(struct tcp_pcb *pcb);
u8_t lwip_sys_pcb_outstanding(const struct tcp_pcb *pcb);
size_t lwip_sys_block_len(size_t size);
size_t lwip_sys_pcb_half_open_len(void);
void lwip_sys_pcb_edges(const struct tcp_pcb *pcb, u32_t edges[LWIP_SYS_EDGES]);
void lwip_sys_pcb_take_window(struct tcp_pcb *pcb, u16_t window);
void lwip_sys_pcb_retransmit(struct tcp_pcb *pcb, u8_t lost);
void lwip_sys_pcb_recved(struct tcp_pcb *pcb, size_t len);
err_t lwip_sys_pcb_flush(struct tcp_pcb *pcb);
void lwip_sys_pcb_demand_ack(struct tcp_pcb *pcb);
void lwip_sys_pcb_release(struct tcp_pcb *pcb, u8_t unread);
void lwip_sys_pcb_linger(struct tcp_pcb *pcb);

#endif
