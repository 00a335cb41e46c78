/* lwIP's core/tcp_in.c, unchanged, with six additions. The first two are the workaround `one-ack-a-batch`:
 *
 * - Data in order is acknowledged when the caller flushes the connection, at the end of a batch, not with every second
 *   segment. Segments out of order are still acknowledged at once.
 * - Data that an acknowledgement lets go is sent by that flush too, not for every received segment: tcp_output() walks
 *   the list of all unacknowledged segments, which is long if windows are large.
 * - Before lwIP handles a segment, its connection is put on lwIP's list, and for a SYN the listener moves to its port;
 *   see lwip_sys_admit().
 * - Segments out of order are kept by reorder.c, and trimmed to the window there. For lwIP they then are duplicates,
 *   which it acknowledges.
 * - The bytes behind a filled hole are joined without a walk for each segment.
 * - The flow of a segment is noted, and only a SYN's options are parsed. Otherwise a peer could change the MSS of an
 *   open connection. */

#include "lwip/opt.h"
#include "lwip/priv/tcp_priv.h"

#include "shim.h"

static void
acknowledge(struct tcp_pcb *pcb)
{
  if (lwip_sys_one_ack_a_batch) {
    tcp_set_flags(pcb, TF_ACK_DELAY);
  } else {
    tcp_ack(pcb);
  }
}

#undef tcp_ack
#define tcp_ack(pcb) acknowledge(pcb)

/* The caller does not flush half-open connections and those in TIME-WAIT. */
#define tcp_output(pcb) \
  (lwip_sys_one_ack_a_batch && (pcb)->state > SYN_RCVD && (pcb)->state < TIME_WAIT ? (err_t)ERR_OK : (tcp_output)(pcb))

/* Expanded within tcp_input(). */
#define LWIP_HOOK_TCP_INPACKET_PCB(pcb, header, optlen, opt1len, opt2, p) (prepare((pcb), (header), (p)), ERR_OK)
static void prepare(struct tcp_pcb *pcb, struct tcp_hdr *header, struct pbuf *p);

#define pbuf_cat(chain, more) append((chain), (more))
#define pbuf_split_64k(chain, rest) split((chain), (rest))
static void append(struct pbuf *chain, struct pbuf *more);
static void split(struct pbuf *chain, struct pbuf **rest);

#define tcp_input lwip_tcp_input
static void lwip_tcp_input(struct pbuf *p, struct netif *inp);
#include "core/tcp_in.c"
#undef tcp_input
#undef pbuf_cat
#undef pbuf_split_64k

/* A chain that grows, and its end. Its lengths are written when it is complete. */
static struct pbuf *growing;
static struct pbuf *growing_end;

static void
append(struct pbuf *chain, struct pbuf *more)
{
  if (growing != chain) {
    growing = growing_end = chain;
  }
  while (growing_end->next != NULL) {
    growing_end = growing_end->next;
  }
  growing_end->next = more;
}

/* pbuf_split_64k() expects lengths modulo 65,536. */
static void
split(struct pbuf *chain, struct pbuf **rest)
{
  struct pbuf *p;
  u16_t left = 0;
  if (growing == chain) {
    for (p = chain; p != NULL; p = p->next) {
      left = (u16_t)(left + p->len);
    }
    for (p = chain; p != NULL; p = p->next) {
      p->tot_len = left;
      left = (u16_t)(left - p->len);
    }
    growing = NULL;
  }
  pbuf_split_64k(chain, rest);
}

/* Keeps a segment that begins behind rcv_nxt. It then seems to end there, so lwIP takes its acknowledgement, and sends
 * one that reports the kept bytes. */
static void
put_aside(struct tcp_pcb *pcb, struct tcp_hdr *header, struct pbuf *p)
{
  u32_t left, right;
  if ((flags & TCP_ACK) && TCP_SEQ_BETWEEN(ackno, pcb->lastack, pcb->snd_nxt) &&
      (TCP_SEQ_LT(pcb->snd_wl1, seqno) || (pcb->snd_wl1 == seqno && TCP_SEQ_LT(pcb->snd_wl2, ackno)))) {
    /* lwIP takes a window only from the newest segment, which this one no longer seems to be. */
    pcb->snd_wnd = SND_WND_SCALE(pcb, header->wnd);
    pcb->snd_wnd_max = LWIP_MAX(pcb->snd_wnd_max, pcb->snd_wnd);
    pcb->snd_wl1 = seqno;
    pcb->snd_wl2 = ackno;
  }
  if (pcb->state != SYN_RCVD && lwip_sys_reorder_keep(pcb, p, header, seqno, &left, &right)) {
    tcp_add_sack(pcb, left, right);
  }
  seqno = pcb->rcv_nxt - tcplen;
}

/* Prepares a segment of a connection: notes the flow, ignores the options of all but the first SYN, and puts aside data
 * and a FIN that are out of order. */
static void
prepare(struct tcp_pcb *pcb, struct tcp_hdr *header, struct pbuf *p)
{
  growing = NULL;
  if (lwip_sys_note(pcb)) {
    return;
  }
  tcphdr_optlen = 0;
  if (tcplen == 0 || pcb->state < SYN_RCVD || pcb->state >= CLOSE_WAIT || (flags & (TCP_SYN | TCP_RST))) {
    return;
  }
  if (pcb->state == SYN_RCVD && !TCP_SEQ_BETWEEN(ackno, pcb->lastack + 1, pcb->snd_nxt)) {
    /* lwIP sends a RST for it, with its numbers. */
    return;
  }
  if (TCP_SEQ_GT(seqno, pcb->rcv_nxt)) {
    if (TCP_SEQ_LT(seqno, pcb->rcv_nxt + pcb->rcv_wnd)) {
      put_aside(pcb, header, p);
    }
  } else if (pcb->ooseq != NULL) {
    u8_t fin = flags & TCP_FIN;
    u16_t len = lwip_sys_reorder_limit(pcb, seqno, p->tot_len, &fin);
    if (len < p->tot_len) {
      pbuf_realloc(p, len);
    }
    if (fin == 0) {
      flags &= (u8_t)~TCP_FIN;
      TCPH_UNSET_FLAG(header, TCP_FIN);
    }
    tcplen = (u16_t)(len + (fin != 0));
  }
}

void
tcp_input(struct pbuf *p, struct netif *inp)
{
  if (lwip_sys_admit(p)) {
    lwip_tcp_input(p, inp);
  } else {
    pbuf_free(p);
  }
}
