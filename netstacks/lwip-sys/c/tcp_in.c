/* lwIP's core/tcp_in.c, unchanged, between four things of ours:
 *
 * - Data in order is acknowledged when the caller flushes the connection, at the end of a batch,
 *   instead of with every second segment. Segments out of order still are at once.
 * - What an acknowledgement lets go is sent by that flush too, not for every segment that comes in:
 *   tcp_output() walks the list of all that is unacknowledged, which is long where windows are large.
 * - Before a segment is looked at, its connection is put on lwIP's list, and a SYN gets a listener for its port; see
 *   lwip_sys_admit().
 * - The connection that a segment belongs to is noted, and only a SYN's options are read: the
 *   others that lwIP knows would let a peer change the MSS of an open connection. */

#include "lwip/opt.h"
#include "lwip/priv/tcp_priv.h"

#include "shim.h"

#undef tcp_ack
#define tcp_ack(pcb) tcp_set_flags((pcb), TF_ACK_DELAY)

/* Half open connections and those in TIME-WAIT are nobody's yet or any more, and not flushed. */
#define tcp_output(pcb) \
  ((pcb)->state > SYN_RCVD && (pcb)->state < TIME_WAIT ? (err_t)ERR_OK : (tcp_output)(pcb))

/* Expanded within tcp_input(), where tcphdr_optlen is the length of the options that are read. */
#define LWIP_HOOK_TCP_INPACKET_PCB(pcb, header, optlen, opt1len, opt2, p) \
  (lwip_sys_note(pcb) ? ERR_OK : (tcphdr_optlen = 0, ERR_OK))

#define tcp_input lwip_tcp_input
static void lwip_tcp_input(struct pbuf *p, struct netif *inp);
#include "core/tcp_in.c"
#undef tcp_input

void
tcp_input(struct pbuf *p, struct netif *inp)
{
  if (lwip_sys_admit(p)) {
    lwip_tcp_input(p, inp);
  } else {
    pbuf_free(p);
  }
}
