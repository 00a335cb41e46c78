/* Reads and writes the fields of a connection, and calls lwIP for it. After a failed assertion the functions do nothing,
 * because the connection may be gone. */

#include "guard.h"
#include "shim.h"

#include <string.h>

#include "lwip/priv/tcp_priv.h"

static void
endpoint_bytes(u8_t bytes[16], const ip_addr_t *ip)
{
  if (IP_IS_V6(ip)) {
    memcpy(bytes, ip_2_ip6(ip)->addr, 16);
  } else {
    memcpy(bytes, &ip_2_ip4(ip)->addr, 4);
  }
}

void
lwip_sys_describe(struct lwip_sys_endpoints *to, const ip_addr_t *local_ip, u16_t local_port,
                  const ip_addr_t *remote_ip, u16_t remote_port)
{
  memset(to, 0, sizeof(*to));
  to->is_v6 = IP_IS_V6(local_ip) ? 1 : 0;
  endpoint_bytes(to->local_ip, local_ip);
  endpoint_bytes(to->remote_ip, remote_ip);
  to->local_port = local_port;
  to->remote_port = remote_port;
}

void
lwip_sys_pcb_endpoints(const struct tcp_pcb *pcb, struct lwip_sys_endpoints *endpoints)
{
  lwip_sys_describe(endpoints, &pcb->local_ip, pcb->local_port, &pcb->remote_ip, pcb->remote_port);
}

/* The memory of a half-open connection: with its SYN-ACK, which has three options. */
size_t
lwip_sys_pcb_half_open_len(void)
{
  return lwip_sys_block_len(sizeof(struct tcp_pcb)) + lwip_sys_block_len(sizeof(struct tcp_seg)) +
         lwip_sys_block_len(LWIP_MEM_ALIGN_SIZE(sizeof(struct pbuf)) + LWIP_MEM_ALIGN_SIZE(PBUF_TRANSPORT + 12));
}

void
lwip_sys_pcb_edges(const struct tcp_pcb *pcb, u32_t edges[LWIP_SYS_EDGES])
{
  if (lwip_sys_failed == NULL) {
    edges[LWIP_SYS_UNACKNOWLEDGED] = pcb->lastack;
    edges[LWIP_SYS_SENT] = pcb->snd_nxt;
    edges[LWIP_SYS_EXPECTED] = pcb->rcv_nxt;
    edges[LWIP_SYS_WINDOW_END] = pcb->rcv_nxt + pcb->rcv_wnd;
    edges[LWIP_SYS_PEER_WINDOW] = pcb->snd_wnd >> pcb->snd_scale;
  }
}

/* Takes the window of the next acknowledgement, which lwIP then counts as a duplicate. Like lwIP, this takes only a
 * larger one: the older of two duplicates out of order has the smaller window. */
void
lwip_sys_pcb_take_window(struct tcp_pcb *pcb, u16_t window)
{
  if (lwip_sys_failed == NULL && SND_WND_SCALE(pcb, (tcpwnd_size_t)window) > pcb->snd_wnd) {
    pcb->snd_wnd = SND_WND_SCALE(pcb, (tcpwnd_size_t)window);
    pcb->snd_wnd_max = LWIP_MAX(pcb->snd_wnd_max, pcb->snd_wnd);
  }
}

/* Retransmits the first unacknowledged segment, which is perhaps lost (0), lost after another one of its window (1), or
 * the first loss of a window (2). Does nothing after a timeout, because then lwIP sends everything again. */
void
lwip_sys_pcb_retransmit(struct tcp_pcb *pcb, u8_t lost)
{
  LWIP_SYS_ENTER();
  if (lost == 2 && !(pcb->flags & TF_RTO)) {
    tcp_rexmit_fast(pcb);
  } else if (!(pcb->flags & TF_RTO) && tcp_rexmit(pcb) == ERR_OK) {
    /* As tcp_rexmit_fast() does. With its own nrtx, the next timeout would be longer. */
    pcb->rtime = 0;
    pcb->nrtx--;
    tcp_set_flags(pcb, lost ? TF_INFR : 0);
  }
  LWIP_SYS_LEAVE();
}

/* Ends a connection without a RST. */
void
lwip_sys_pcb_forget(struct tcp_pcb *pcb)
{
  LWIP_SYS_ENTER();
  tcp_abandon(pcb, 0);
  LWIP_SYS_LEAVE();
}

void
lwip_sys_pcb_abort(struct tcp_pcb *pcb)
{
  LWIP_SYS_ENTER();
  tcp_abort(pcb);
  LWIP_SYS_LEAVE();
}

err_t
lwip_sys_pcb_write(struct tcp_pcb *pcb, const void *bytes, u16_t len, u8_t flags)
{
  err_t err;
  LWIP_SYS_ENTER(ERR_IF);
  err = tcp_write(pcb, bytes, len, flags);
  LWIP_SYS_LEAVE();
  return err;
}

/* Queues a FIN. Fails only if the connection is already closing. */
void
lwip_sys_pcb_finish(struct tcp_pcb *pcb)
{
  LWIP_SYS_ENTER();
  tcp_shutdown(pcb, 0, 1);
  LWIP_SYS_LEAVE();
}

void
lwip_sys_pcb_keepalive(struct tcp_pcb *pcb)
{
  LWIP_SYS_ENTER();
  tcp_keepalive(pcb);
  LWIP_SYS_LEAVE();
}

u8_t
lwip_sys_pcb_is_over(const struct tcp_pcb *pcb)
{
  return lwip_sys_failed == NULL && pcb->state == TIME_WAIT;
}

/* Whether a response of the peer is due: to data or to a FIN. While its window is closed, lwIP's probes come ever more
 * seldom, so the silence between two of them says nothing. */
u8_t
lwip_sys_pcb_outstanding(const struct tcp_pcb *pcb)
{
  return lwip_sys_failed == NULL && (pcb->unacked != NULL || (pcb->unsent != NULL && pcb->persist_backoff == 0));
}

/* Replaces tcp_recved(), which sends a window update at once. With one acknowledgement for a batch, the flush at the end
 * of the turn sends it. */
void
lwip_sys_pcb_recved(struct tcp_pcb *pcb, size_t len)
{
  tcpwnd_size_t closed;
  LWIP_SYS_ENTER();
  closed = (tcpwnd_size_t)(TCP_WND_MAX(pcb) - pcb->rcv_wnd);
  pcb->rcv_wnd += (tcpwnd_size_t)LWIP_MIN(len, (size_t)closed);
  if (tcp_update_rcv_ann_wnd(pcb) >= TCP_WND_UPDATE_THRESHOLD) {
    if (lwip_sys_one_ack_a_batch) {
      tcp_set_flags(pcb, TF_ACK_DELAY);
    } else {
      tcp_ack_now(pcb);
      tcp_output(pcb);
    }
  }
  LWIP_SYS_LEAVE();
}

err_t
lwip_sys_pcb_flush(struct tcp_pcb *pcb)
{
  err_t err;
  LWIP_SYS_ENTER(ERR_IF);
  if (lwip_sys_one_ack_a_batch && tcp_is_flag_set(pcb, TF_ACK_DELAY)) {
    tcp_ack_now(pcb);
  }
  lwip_sys_fit(pcb);
  err = tcp_output(pcb);
  LWIP_SYS_LEAVE();
  return err;
}

void
lwip_sys_pcb_demand_ack(struct tcp_pcb *pcb)
{
  if (lwip_sys_failed == NULL) {
    tcp_set_flags(pcb, TF_ACK_DELAY | TF_ACK_NOW);
  }
}

/* Closes a connection without a reader. With unread bytes it sends a RST, because they are lost (RFC 2525, 2.17). Else
 * it is a shutdown of our side, not a tcp_close(): after that lwIP gives unsent data only 2 MSL. */
void
lwip_sys_pcb_release(struct tcp_pcb *pcb, u8_t unread)
{
  LWIP_SYS_ENTER();
  switch (pcb->state) {
    case ESTABLISHED:
    case CLOSE_WAIT:
      if (unread) {
        tcp_close(pcb);
      } else {
        tcp_shutdown(pcb, 0, 1);
      }
      break;
    case FIN_WAIT_1:
    case FIN_WAIT_2:
      if (unread) {
        tcp_abort(pcb);
      }
      break;
    default:
      break;
  }
  LWIP_SYS_LEAVE();
}

/* Starts lwIP's timeout of 20 seconds on a released connection, for a peer that has our FIN and sends none. */
void
lwip_sys_pcb_linger(struct tcp_pcb *pcb)
{
  if (lwip_sys_failed == NULL && pcb->state == FIN_WAIT_2) {
    tcp_set_flags(pcb, TF_RXCLOSED);
  }
}
