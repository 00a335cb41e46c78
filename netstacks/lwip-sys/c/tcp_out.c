/* lwIP's core/tcp_out.c, unchanged, with three additions: segments larger than the peer's MSS; no walk to the end of
 * the unacknowledged list, which is long if segments are small; and new bytes are kept apart from segments that wait
 * for retransmission.
 *
 * If the link cuts super-packets into segments, and the peer accepts segments of the full MTU, pcb->mss is a multiple
 * of the peer's MSS: lwIP then makes, sends and retransmits segments of that size. Three places need changes for this:
 *
 * - tcp_write() makes no segment larger than half of the largest window of the peer so far. So the multiple grows with
 *   that window, and the congestion window with it: a segment larger than the congestion window would wait for ever.
 * - tcp_output() sends whole segments only. A segment that is larger than the peer's window waits for the window to
 *   open. If no acknowledgement in flight would open it, lwip_sys_fit() cuts the segment.
 * - tcp_split_unsent_seg() copies FIN and PSH from the first part to the second, and does not clear them in the
 *   first. It also counts pbufs without a limit: a window that shrinks again and again would make it overflow. */

#include "lwip/opt.h"
#include "lwip/priv/tcp_priv.h"

#include "guard.h"
#include "shim.h"

/* The most bytes in lwIP's list of unsent segments, because each tcp_write() walks that list. */
#define MAX_UNSENT (512u << 10)

/* Pbufs of the queue that are reserved for calls of tcp_write() that continue a segment: more than the number of calls
 * for one result of lwip_sys_pcb_room(). lwip.rs has the same number. */
#define QUEUE_SPARE 64

/* Each cut of a segment adds a pbuf to the queue, and tcp_write() stays below this. One place is left for a FIN. */
#define MOST_PBUFS 0xfffe

/* Largest payloads of super-packets over IPv4 and IPv6, in bytes. */
static u16_t largest[2];
/* The argument of a connection with the peer's MSS, if pcb->mss may be a multiple of it. */
static u8_t peer_mss_id;
/* The argument with the end of the list of unacknowledged segments. The list loses segments only at the front, and gets
 * new ones only in tcp_output(). So while it is not empty, its end is the one after the last tcp_output(). */
static u8_t tail_id;

#define tcp_output lwip_tcp_output
#define tcp_rexmit_rto lwip_tcp_rexmit_rto
#define tcp_rexmit_rto_prepare lwip_tcp_rexmit_rto_prepare
#define tcp_rexmit_rto_commit lwip_tcp_rexmit_rto_commit
#define tcp_split_unsent_seg lwip_tcp_split_unsent_seg
#define tcp_write lwip_tcp_write
#define tcp_send_fin lwip_tcp_send_fin
static err_t lwip_tcp_split_unsent_seg(struct tcp_pcb *pcb, u16_t split);
#include "core/tcp_out.c"
#undef tcp_output
#undef tcp_rexmit_rto
#undef tcp_rexmit_rto_prepare
#undef tcp_rexmit_rto_commit
#undef tcp_split_unsent_seg
#undef tcp_write
#undef tcp_send_fin

/* Detaches the list of unsent segments if its last one is a retransmission and later bytes have already been sent. lwIP
 * would append new bytes, or a FIN, to the last segment of that list. */
static struct tcp_seg *
take_retransmissions(struct tcp_pcb *pcb)
{
  struct tcp_seg *first = pcb->unsent, *last = first;
  if (first == NULL || pcb->snd_nxt != pcb->snd_lbb) {
    return NULL;
  }
  while (last->next != NULL) {
    last = last->next;
  }
  if (lwip_ntohl(last->tcphdr->seqno) + TCP_TCPLEN(last) == pcb->snd_lbb) {
    return NULL;
  }
  pcb->unsent = NULL;
  return first;
}

/* Attaches the list again, in front of the new segments. */
static void
put_back(struct tcp_pcb *pcb, struct tcp_seg *first)
{
  struct tcp_seg *last = first;
  if (first == NULL) {
    return;
  }
  while (last->next != NULL) {
    last = last->next;
  }
  last->next = pcb->unsent;
  pcb->unsent = first;
}

err_t
tcp_write(struct tcp_pcb *pcb, const void *data, u16_t len, u8_t flags)
{
  struct tcp_seg *again = take_retransmissions(pcb);
  err_t err = lwip_tcp_write(pcb, data, len, flags);
  put_back(pcb, again);
  return err;
}

err_t
tcp_send_fin(struct tcp_pcb *pcb)
{
  struct tcp_seg *again = take_retransmissions(pcb);
  err_t err = lwip_tcp_send_fin(pcb);
  put_back(pcb, again);
  return err;
}

/* Notes the end of the list of unacknowledged segments, which is at or behind `from`. */
static void
note_tail(struct tcp_pcb *pcb, struct tcp_seg *from)
{
  while (from != NULL && from->next != NULL) {
    from = from->next;
  }
  tcp_ext_arg_set(pcb, tail_id, from);
}

/* Shows lwIP only the last unacknowledged segment, so that it appends new segments without a walk. Not for a
 * retransmission: its place is among the others. */
err_t
tcp_output(struct tcp_pcb *pcb)
{
  struct tcp_seg *first = pcb->unacked;
  struct tcp_seg *from = first;
  err_t err;
  if (pcb->unsent == NULL) {
    /* A probe of a closed window may have sent the last byte. lwIP stops the persist timer when tcp_input() calls
     * tcp_output(), but here that output is postponed. */
    pcb->persist_backoff = 0;
    return lwip_tcp_output(pcb);
  }
  if (first != NULL) {
    struct tcp_seg *tail = (struct tcp_seg *)tcp_ext_arg_get(pcb, tail_id);
    if (TCP_SEQ_GT(lwip_ntohl(pcb->unsent->tcphdr->seqno), lwip_ntohl(tail->tcphdr->seqno))) {
      from = tail;
    }
  }
  pcb->unacked = from;
  err = lwip_tcp_output(pcb);
  if (first != NULL && from != first) {
    pcb->unacked = first;
  }
  note_tail(pcb, from == NULL ? pcb->unacked : from);
  return err;
}

/* Moves waiting retransmissions back to the front of the unacknowledged list. After a timeout lwIP puts that list
 * before the unsent segments, so all are in order. */
static void
take_back(struct tcp_pcb *pcb)
{
  struct tcp_seg *first = pcb->unsent, *last = first;
  u32_t end;
  if (first == NULL || pcb->unacked == NULL) {
    return;
  }
  end = lwip_ntohl(pcb->unacked->tcphdr->seqno);
  if (!TCP_SEQ_LT(lwip_ntohl(first->tcphdr->seqno), end)) {
    return;
  }
  while (last->next != NULL && TCP_SEQ_LT(lwip_ntohl(last->next->tcphdr->seqno), end)) {
    last = last->next;
  }
  pcb->unsent = last->next;
  last->next = pcb->unacked;
  pcb->unacked = first;
}

err_t
tcp_rexmit_rto_prepare(struct tcp_pcb *pcb)
{
  take_back(pcb);
  return lwip_tcp_rexmit_rto_prepare(pcb);
}

void
tcp_rexmit_rto(struct tcp_pcb *pcb)
{
  take_back(pcb);
  lwip_tcp_rexmit_rto(pcb);
  note_tail(pcb, pcb->unacked);
}

void
tcp_rexmit_rto_commit(struct tcp_pcb *pcb)
{
  lwip_tcp_rexmit_rto_commit(pcb);
  note_tail(pcb, pcb->unacked);
}

err_t
tcp_split_unsent_seg(struct tcp_pcb *pcb, u16_t split)
{
  struct tcp_seg *head = pcb->unsent;
  u16_t len = head == NULL ? 0 : head->len;
  err_t err;
  if (split == 0) {
    /* The window of a multiple of 64 KiB, cut to 16 bits by tcp_slowtmr(). The segment fits. */
    return ERR_OK;
  }
  if (pcb->snd_queuelen >= MOST_PBUFS) {
    return ERR_MEM;
  }
  err = lwip_tcp_split_unsent_seg(pcb, split);
  if (err == ERR_OK && head != NULL && head->len < len) {
    TCPH_UNSET_FLAG(head->tcphdr, TCP_FIN | TCP_PSH);
  }
  return err;
}

static u16_t
peer_mss_of(const struct tcp_pcb *pcb)
{
  return (u16_t)(uintptr_t)tcp_ext_arg_get(pcb, peer_mss_id);
}

void
lwip_sys_segments_init(void)
{
  peer_mss_id = tcp_ext_arg_alloc_id();
  tail_id = tcp_ext_arg_alloc_id();
}

void
lwip_sys_segments_limit(u16_t largest_v4, u16_t largest_v6)
{
  largest[0] = largest_v4;
  largest[1] = largest_v6;
}

/* Notes the peer's MSS if the segments of a new connection may be larger than the MTU. */
void
lwip_sys_segments_of(struct tcp_pcb *pcb, const struct netif *netif)
{
  u16_t full = (u16_t)(netif->mtu - TCP_HLEN - (IP_IS_V6(&pcb->remote_ip) ? IP6_HLEN : IP_HLEN));
  if (pcb->mss >= full) {
    tcp_ext_arg_set(pcb, peer_mss_id, (void *)(uintptr_t)full);
  }
}

/* Raises pcb->mss to the multiple of the peer's MSS that fits into a super-packet and into half of the peer's window.
 * Never lowers it, because no queued segment may be larger than pcb->mss. */
static void
widen(struct tcp_pcb *pcb)
{
  u16_t peer_mss = peer_mss_of(pcb);
  tcpwnd_size_t most = LWIP_MIN(pcb->snd_wnd_max / 2, (tcpwnd_size_t)largest[IP_IS_V6(&pcb->remote_ip) ? 1 : 0]);
  if (peer_mss != 0 && most >= pcb->mss + (tcpwnd_size_t)peer_mss) {
    pcb->mss = (u16_t)(most / peer_mss * peer_mss);
    pcb->cwnd = LWIP_MAX(pcb->cwnd, 2U * pcb->mss);
    pcb->ssthresh = LWIP_MAX(pcb->ssthresh, 2U * pcb->mss);
  }
}

/* How many bytes tcp_write() takes before its queue has the largest number of pbufs that it can count: two for each
 * segment, and one for each call that continues the last segment. */
static u32_t
queue_room(const struct tcp_pcb *pcb)
{
  u32_t most = LWIP_MIN(TCP_SND_QUEUELEN, TCP_SNDQUEUELEN_OVERFLOW);
  u32_t used = pcb->snd_queuelen + QUEUE_SPARE;
  tcpwnd_size_t segment = LWIP_MIN((tcpwnd_size_t)pcb->mss, pcb->snd_wnd_max / 2);
  return used < most ? (most - used) / 2 * LWIP_MAX(segment, 1) : 0;
}

/* How many of `wanted` bytes may be passed to tcp_write() now; within this number it fails only for lack of memory. If
 * it is more than one segment, it is a whole number of them, because the rest would be a small packet. */
size_t
lwip_sys_pcb_room(struct tcp_pcb *pcb, size_t wanted)
{
  u32_t unsent, room;
  size_t len;
  LWIP_SYS_ENTER(0);
  unsent = pcb->snd_lbb - pcb->snd_nxt;
  room = LWIP_MIN(pcb->snd_buf, unsent < MAX_UNSENT ? MAX_UNSENT - unsent : 0);
  len = LWIP_MIN(wanted, (size_t)LWIP_MIN(room, queue_room(pcb)));
  widen(pcb);
  LWIP_SYS_LEAVE();
  return len > pcb->mss ? len / pcb->mss * pcb->mss : len;
}

/* Sets PSH on the last unsent segment: tcp_write() was told that more bytes follow, but none came. */
void
lwip_sys_pcb_push(struct tcp_pcb *pcb)
{
  struct tcp_seg *last = lwip_sys_failed != NULL ? NULL : pcb->unsent;
  while (last != NULL && last->next != NULL) {
    last = last->next;
  }
  if (last != NULL) {
    TCPH_SET_FLAG(last->tcphdr, TCP_PSH);
  }
}

/* Cuts a segment that is larger than the peer's window, if no acknowledgement in flight would open the window. The part
 * that remains is whole segments of the peer's MSS. Without this it would wait for the persist timer. */
void
lwip_sys_fit(struct tcp_pcb *pcb)
{
  struct tcp_seg *head = pcb->unsent;
  u16_t peer_mss = peer_mss_of(pcb);
  u32_t acked, room, part;
  if (head == NULL || pcb->unacked != NULL || peer_mss == 0) {
    return;
  }
  /* A retransmitted segment may be acknowledged in part. */
  acked = pcb->lastack - lwip_ntohl(head->tcphdr->seqno);
  room = acked + pcb->snd_wnd;
  part = room / peer_mss * peer_mss;
  if (acked < head->len && room < head->len && part > acked) {
    tcp_split_unsent_seg(pcb, (u16_t)part);
  }
}
