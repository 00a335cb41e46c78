/* lwIP's core/udp.c, unchanged, with one pcb for every address and port: the pcb moves to the port of each received or
 * sent datagram. Received datagrams are checked here first: lwIP does not compare the length field with the packet, and
 * accepts datagrams without a checksum over IPv6. */

#include "lwip/opt.h"
#include "lwip/udp.h"

#include "guard.h"
#include "shim.h"

#define udp_input lwip_udp_input
static void lwip_udp_input(struct pbuf *p, struct netif *inp);
#include "core/udp.c"
#undef udp_input

static struct udp_pcb *pcb_of_all;
/* Whether the program receives datagrams. */
static u8_t wanted;

static u8_t
is_host(const ip_addr_t *ip)
{
  return !ip_addr_isany(ip) && !ip_addr_isloopback(ip) && !ip_addr_ismulticast(ip);
}

static u8_t
admit(const struct pbuf *p)
{
  const struct udp_hdr *header = (const struct udp_hdr *)p->payload;
  return wanted && p->len >= UDP_HLEN && lwip_ntohs(header->len) == p->tot_len &&
         header->src != 0 && header->dest != 0 && is_host(ip_current_src_addr()) &&
         (header->chksum != 0 || !ip_current_is_v6());
}

void
udp_input(struct pbuf *p, struct netif *inp)
{
  if (admit(p)) {
    pcb_of_all->local_port = lwip_ntohs(((const struct udp_hdr *)p->payload)->dest);
    lwip_udp_input(p, inp);
  } else {
    pbuf_free(p);
  }
}

static void
on_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *from, u16_t port)
{
  struct lwip_sys_endpoints endpoints;
  LWIP_UNUSED_ARG(arg);
  lwip_sys_describe(&endpoints, ip_current_dest_addr(), pcb->local_port, from, port);
  if (p->len == p->tot_len) {
    lwip_sys_deliver(&endpoints, p->payload, p->len);
  } else {
    /* A reassembled datagram is in several pieces. */
    void *joined = mem_malloc(p->tot_len);
    if (joined != NULL) {
      lwip_sys_deliver(&endpoints, joined, pbuf_copy_partial(p, joined, p->tot_len, 0));
      mem_free(joined);
    }
  }
  pbuf_free(p);
}

err_t
lwip_sys_udp_start(void)
{
  wanted = 1;
  pcb_of_all = udp_new_ip_type(IPADDR_TYPE_ANY);
  if (pcb_of_all == NULL) {
    return ERR_MEM;
  }
  udp_recv(pcb_of_all, on_datagram, NULL);
  return udp_bind(pcb_of_all, IP_ANY_TYPE, 1);
}

void
lwip_sys_udp_stop(void)
{
  if (pcb_of_all != NULL) {
    udp_remove(pcb_of_all);
    pcb_of_all = NULL;
  }
}

u8_t
lwip_sys_udp_is_wanted(void)
{
  return wanted;
}

void
lwip_sys_udp_close(void)
{
  wanted = 0;
}

static void
address_of(ip_addr_t *ip, const u8_t bytes[16], u8_t is_v6)
{
  if (is_v6) {
    memcpy(ip_2_ip6(ip)->addr, bytes, 16);
    IP_SET_TYPE(ip, IPADDR_TYPE_V6);
  } else {
    memcpy(&ip_2_ip4(ip)->addr, bytes, 4);
    IP_SET_TYPE(ip, IPADDR_TYPE_V4);
  }
}

/* Sends bytes that stay where they are during the call, in fragments if the packet would exceed `mtu`. The checksum of a
 * fragmented datagram is computed here, since no link does it. */
err_t
lwip_sys_udp_send(const struct lwip_sys_endpoints *ends, void *bytes, u16_t len, u16_t mtu, u8_t checksum)
{
  struct netif *netif = netif_default;
  u16_t checksums, mtu_before;
  ip_addr_t from = *IP_ANY_TYPE, to = *IP_ANY_TYPE;
  struct pbuf *p;
  err_t err;
  LWIP_SYS_ENTER(ERR_IF);
  checksums = netif->chksum_flags;
  mtu_before = netif->mtu;
  p = pbuf_alloc_reference(bytes, len, PBUF_REF);
  if (p == NULL) {
    LWIP_SYS_LEAVE();
    return ERR_MEM;
  }
  address_of(&from, ends->local_ip, ends->is_v6);
  address_of(&to, ends->remote_ip, ends->is_v6);
  netif->mtu = mtu;
  if (checksum || len + UDP_HLEN + IP_HLEN > mtu) {
    netif->chksum_flags |= NETIF_CHECKSUM_GEN_UDP;
  }
  pcb_of_all->local_port = ends->local_port;
  err = udp_sendto_if_src(pcb_of_all, p, &to, ends->remote_port, netif, &from);
  netif->chksum_flags = checksums;
  netif->mtu = mtu_before;
  pbuf_free(p);
  LWIP_SYS_LEAVE();
  return err;
}
