/* lwIP's core/ipv4/ip4.c, unchanged, with three additions:
 *
 * - TCP packets are neither fragmented nor reassembled. A link that takes packets above the MTU cuts them itself.
 * - Fragments age by the caller's clock when another fragment arrives, so they need no timer. IP_REASS_MAX_PBUFS
 *   bounds their number.
 * - A datagram is as long as its last fragment says. lwIP appends fragments that lie behind that one, and the length of
 *   all may exceed 16 bits. */

#include "lwip/opt.h"
#include "lwip/ip4_frag.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/ip.h"

#include "shim.h"

static err_t send_larger(struct pbuf *p, struct netif *netif, const ip4_addr_t *to);
static struct pbuf *put_together(struct pbuf *p);

#define ip4_frag send_larger
#define ip4_reass put_together
#include "core/ipv4/ip4.c"
#undef ip4_frag
#undef ip4_reass

static u8_t
is_tcp(const struct pbuf *p)
{
  return IPH_PROTO((const struct ip_hdr *)p->payload) == IP_PROTO_TCP;
}

static err_t
send_larger(struct pbuf *p, struct netif *netif, const ip4_addr_t *to)
{
  return is_tcp(p) ? netif->output(netif, p, to) : ip4_frag(p, netif, to);
}

/* The last time when fragments aged, in seconds. */
static u32_t aged;

static struct pbuf *
put_together(struct pbuf *p)
{
  u32_t now = lwip_sys_seconds();
  struct pbuf *whole;
  if (is_tcp(p)) {
    pbuf_free(p);
    return NULL;
  }
  if (now - aged > IP_REASS_MAXAGE) {
    aged = now - IP_REASS_MAXAGE - 1;
  }
  for (; aged != now; aged++) {
    ip_reass_tmr();
  }
  whole = ip4_reass(p);
  if (whole != NULL && whole->tot_len != lwip_ntohs(IPH_LEN((const struct ip_hdr *)whole->payload))) {
    pbuf_free(whole);
    return NULL;
  }
  return whole;
}

void
lwip_sys_fragments_drop(void)
{
  u32_t age;
  for (age = 0; age <= IP_REASS_MAXAGE; age++) {
    ip_reass_tmr();
  }
}
