/* lwIP's core/tcp_in.c, unchanged, with four additions:
 *
 * - Data in order is acknowledged when the caller flushes the connection, at the end of a batch, not with every second
 *   segment. Segments out of order are still acknowledged at once.
 * - Data that an acknowledgement lets go is sent by that flush too, not for every received segment: tcp_output() walks
 *   the list of all unacknowledged segments, which is long if windows are large.
 * - Before lwIP handles a segment, its connection is put on lwIP's list, and for a SYN the listener moves to its port;
 *   see lwip_sys_admit().
 * - The flow of a segment is noted, and only a SYN's options are parsed. Otherwise a peer could change the MSS of an
 *   open connection. */

#include "lwip/opt.h"
#include "lwip/priv/tcp_priv.h"

#include "shim.h"

#undef tcp_ack
#define tcp_ack(pcb) tcp_set_flags((pcb), TF_ACK_DELAY)

/* The caller does not flush half-open connections and those in TIME-WAIT. */
#define tcp_output(pcb) \
  ((pcb)->state > SYN_RCVD && (pcb)->state < TIME_WAIT ? (err_t)ERR_OK : (tcp_output)(pcb))

/* Expanded within tcp_input(), where tcphdr_optlen is the length of the options to parse. */
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
