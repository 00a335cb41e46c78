/* lwIP's core/tcp.c, unchanged, and functions that run its timers for one connection at a time.
 *
 * lwIP keeps its connections in lists, and walks the lists for each segment and each tick. Here the caller keeps the
 * connections in a map. During a call, lwIP's list has only the connection of that call. */

#include "lwip/opt.h"

#include "guard.h"
#include "shim.h"

#include "core/tcp.c"

/* Puts only this connection, or none, on lwIP's lists. */
void
lwip_sys_enlist(struct tcp_pcb *pcb)
{
  tcp_active_pcbs = NULL;
  tcp_tw_pcbs = NULL;
  if (pcb != NULL) {
    pcb->next = NULL;
    if (pcb->state == TIME_WAIT) {
      tcp_tw_pcbs = pcb;
    } else {
      tcp_active_pcbs = pcb;
    }
  }
}

/* Advances the clock of TCP's timers. The slow one is due with every second call. */
void
lwip_sys_tick(void)
{
  if (++tcp_timer & 1) {
    ++tcp_ticks;
  }
}

/* Runs the due timers of a connection that is not in TIME-WAIT. */
void
lwip_sys_pcb_tick(struct tcp_pcb *pcb)
{
  LWIP_SYS_ENTER();
  lwip_sys_enlist(pcb);
  if (pcb->unsent == NULL || pcb->unacked != NULL) {
    /* The persist timer is for a closed window alone. An acknowledgement has opened it, and the flush that stops this
     * timer has not reached the connection. */
    pcb->persist_backoff = 0;
  }
  /* The timers increment the counter, and skip a connection that has its new value. */
  pcb->last_timer = tcp_timer_ctr;
  tcp_fasttmr();
  if ((tcp_timer & 1) && tcp_active_pcbs == pcb) {
    --tcp_ticks;
    tcp_slowtmr();
  }
  LWIP_SYS_LEAVE();
}

/* Whether a connection needs no timer until the next call for it or its next segment. A delayed acknowledgement that the
 * flush does not send needs it. */
u8_t
lwip_sys_pcb_is_quiet(const struct tcp_pcb *pcb)
{
  u8_t waits = TF_CLOSEPEND | (lwip_sys_one_ack_a_batch ? 0 : TF_ACK_DELAY);
  return lwip_sys_failed == NULL &&
         (pcb->state == ESTABLISHED || pcb->state == CLOSE_WAIT || pcb->state == TIME_WAIT) && pcb->unacked == NULL &&
         pcb->unsent == NULL && pcb->ooseq == NULL && pcb->persist_backoff == 0 && !(pcb->flags & waits);
}
