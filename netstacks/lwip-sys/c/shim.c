/* The interface, the callbacks of lwIP, and the buffers. */

#include "guard.h"
#include "shim.h"

#include "lwip/init.h"
#include "lwip/inet_chksum.h"
#include "lwip/ip.h"
#include "lwip/netif.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/prot/ip4.h"
#include "lwip/prot/ip6.h"
#include "lwip/prot/tcp.h"

/* The lower limit for a peer's MSS: with an MSS of 1, each byte of a window would be a packet. Linux has the same limit
 * (TCP_MIN_SND_MSS, include/net/tcp.h). */
#define MIN_SEND_MSS 48

/* lwIP always computes and verifies these checksums: the IP header's and ICMP's. */
#define BASE_CHECKSUMS \
  (NETIF_CHECKSUM_GEN_IP | NETIF_CHECKSUM_CHECK_IP | NETIF_CHECKSUM_GEN_ICMP | NETIF_CHECKSUM_CHECK_ICMP | \
   NETIF_CHECKSUM_GEN_ICMP6 | NETIF_CHECKSUM_CHECK_ICMP6)

unsigned int lwip_sys_window = 65535;
unsigned int lwip_sys_window_scale;
u8_t lwip_sys_one_ack_a_batch;

struct lwip_sys_frame {
  /* The first field, so a pointer to it is also a pointer to the frame. */
  struct pbuf_custom custom;
  void *slot;
};

static const struct lwip_sys_callbacks *callbacks;
static void *engine;
static void *output_link;
static struct netif interface;
static u16_t output_checksums;
static struct tcp_pcb_listen *listener;
static u8_t ext_id;
/* The connection with the packet's addresses, if there is one. */
static struct tcp_pcb *belongs_to;
/* The flow of the last segment. */
static size_t noted;
/* Whether the last SYN has reopened a connection, and the next sequence number of ours in that. */
static u8_t reopened;
static u32_t old_snd_nxt;

const char *
lwip_sys_version(void)
{
  return LWIP_VERSION_STRING;
}

/* lwIP calls this when its timer must run. It does nothing: the caller runs the timers while there is a pcb. */
void
tcp_timer_needed(void)
{
}

static size_t
flow_of(const void *arg)
{
  return (size_t)(uintptr_t)arg;
}

/* ---- Callbacks of lwIP ---- */

/* After each callback: leaves lwIP if an assertion has failed within it. */
static void
returned(void)
{
  if (lwip_sys_failed != NULL) {
    lwip_sys_leave();
  }
}

static err_t
on_recv(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
  err = callbacks->received(engine, flow_of(arg), pcb, p);
  returned();
  return err;
}

static err_t
on_sent(void *arg, struct tcp_pcb *pcb, u16_t len)
{
  LWIP_UNUSED_ARG(pcb);
  callbacks->sent(engine, flow_of(arg), len);
  returned();
  return ERR_OK;
}

static void
on_err(void *arg, err_t err)
{
  callbacks->failed(engine, flow_of(arg), err);
  returned();
}

static err_t
on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
  if (pcb == NULL || err != ERR_OK) {
    return ERR_MEM;
  }
  callbacks->established(engine, flow_of(arg));
  returned();
  return ERR_OK;
}

static void
on_destroy(u8_t id, void *data)
{
  LWIP_UNUSED_ARG(id);
  if (data != NULL) {
    callbacks->destroyed(engine, flow_of(data));
    returned();
  }
}

static const struct tcp_ext_arg_callbacks ext_of_connection = { on_destroy, NULL };

static err_t
on_passive_open(u8_t id, struct tcp_pcb_listen *from, struct tcp_pcb *pcb)
{
  void *flow;
  LWIP_UNUSED_ARG(from);
  pcb->mss = LWIP_MAX(pcb->mss, MIN_SEND_MSS);
  /* lwIP makes no segment larger than half of this, but ignores it if the window has been closed so far. Then the first
   * segment that waits would be larger than later ones may be, which fails an assertion. */
  pcb->snd_wnd_max = LWIP_MAX(pcb->snd_wnd_max, 2 * MIN_SEND_MSS);
  lwip_sys_segments_of(pcb, &interface);
  flow = (void *)(uintptr_t)callbacks->opened(engine, pcb);
  returned();
  if (flow == NULL) {
    return ERR_MEM;
  }
  tcp_arg(pcb, flow);
  tcp_ext_arg_set_callbacks(pcb, id, &ext_of_connection);
  tcp_ext_arg_set(pcb, id, flow);
  tcp_recv(pcb, on_recv);
  tcp_sent(pcb, on_sent);
  tcp_err(pcb, on_err);
  tcp_nagle_disable(pcb);
  return ERR_OK;
}

static const struct tcp_ext_arg_callbacks ext_of_listener = { NULL, on_passive_open };

static err_t
output(const struct pbuf *p)
{
  struct lwip_sys_slice slices[LWIP_SYS_MAX_SLICES];
  const struct pbuf *q;
  size_t count = 0;
  err_t err;
  for (q = p; q != NULL && count < LWIP_SYS_MAX_SLICES; q = q->next) {
    slices[count].base = q->payload;
    slices[count].len = q->len;
    count++;
  }
  err = callbacks->output(output_link, slices, q == NULL ? count : 0, p);
  returned();
  return err;
}

static err_t
output_v4(struct netif *netif, struct pbuf *p, const ip4_addr_t *to)
{
  LWIP_UNUSED_ARG(netif);
  LWIP_UNUSED_ARG(to);
  return output(p);
}

static err_t
output_v6(struct netif *netif, struct pbuf *p, const ip6_addr_t *to)
{
  LWIP_UNUSED_ARG(netif);
  LWIP_UNUSED_ARG(to);
  return output(p);
}

/* ---- Start and stop ---- */

void
lwip_sys_init(void)
{
  LWIP_SYS_ENTER();
  lwip_init();
  ext_id = tcp_ext_arg_alloc_id();
  lwip_sys_segments_init();
  lwip_sys_reorder_init();
  LWIP_SYS_LEAVE();
}

static err_t
init_interface(struct netif *netif)
{
  netif->name[0] = 't';
  netif->name[1] = 'n';
  netif->output = output_v4;
  netif->output_ip6 = output_v6;
  return ERR_OK;
}

/* Listens on every address. The listener's port changes with each SYN; see lwip_sys_admit(). */
static err_t
listen_any(void)
{
  struct tcp_pcb *bound = tcp_new_ip_type(IPADDR_TYPE_ANY);
  struct tcp_pcb *listening;
  if (bound == NULL) {
    return ERR_MEM;
  }
  if (tcp_bind(bound, IP_ANY_TYPE, 1) != ERR_OK) {
    tcp_abort(bound);
    return ERR_USE;
  }
  listening = tcp_listen(bound);
  if (listening == NULL) {
    tcp_abort(bound);
    return ERR_MEM;
  }
  tcp_accept(listening, on_accept);
  tcp_ext_arg_set_callbacks(listening, ext_id, &ext_of_listener);
  listener = (struct tcp_pcb_listen *)listening;
  return ERR_OK;
}

err_t
lwip_sys_start(const struct lwip_sys_callbacks *new_callbacks, void *new_engine, void *new_link,
               const struct lwip_sys_options *options)
{
  err_t err;
  LWIP_SYS_ENTER(ERR_IF);
  callbacks = new_callbacks;
  engine = new_engine;
  output_link = new_link;
  output_checksums = (u16_t)(BASE_CHECKSUMS | (options->tcp_checksums ? NETIF_CHECKSUM_GEN_TCP : 0));
  lwip_sys_one_ack_a_batch = options->one_ack_a_batch;
  lwip_sys_window = options->window;
  lwip_sys_window_scale = options->scale;
  lwip_sys_segments_limit(options->largest_v4, options->largest_v6);
  /* Enough for a window of small segments. */
  lwip_sys_reorder_segments = LWIP_MAX(64, LWIP_MIN(options->window / 512, 16384));
  lwip_sys_small_len = options->packet_len / 2;
  memset(&interface, 0, sizeof(interface));
  if (netif_add(&interface, NULL, NULL, NULL, NULL, init_interface, ip_input) == NULL) {
    return ERR_IF;
  }
  interface.mtu = options->mtu;
  netif_set_default(&interface);
  netif_set_link_up(&interface);
  netif_set_up(&interface);
  err = listen_any();
  if (err == ERR_OK) {
    err = lwip_sys_udp_start();
  }
  if (err != ERR_OK) {
    if (listener == NULL) {
      netif_remove(&interface);
    }
    lwip_sys_stop();
  }
  LWIP_SYS_LEAVE();
  return err;
}

void
lwip_sys_stop(void)
{
  LWIP_SYS_ENTER();
  lwip_sys_enlist(NULL);
  lwip_sys_fragments_drop();
  lwip_sys_udp_stop();
  if (listener != NULL) {
    tcp_close((struct tcp_pcb *)listener);
    listener = NULL;
    netif_remove(&interface);
  }
  LWIP_SYS_LEAVE();
}

/* ---- Packets in ---- */

/* Whether to drop a packet because it is UDP and the program does not receive datagrams. */
static u8_t
is_unwanted(u8_t protocol)
{
  return protocol == IP_PROTO_UDP && !lwip_sys_udp_is_wanted();
}

/* Makes the packet's destination the address of the interface. Not by netif_set_ipaddr(), which would abort the
 * connections of the previous address. */
static u8_t
adopt_destination_v4(const struct pbuf *p)
{
  ip4_addr_t to;
  if (p->len < IP_HLEN || is_unwanted(IPH_PROTO((const struct ip_hdr *)p->payload))) {
    return 0;
  }
  ip4_addr_copy(to, ((const struct ip_hdr *)p->payload)->dest);
  if (ip4_addr_ismulticast(&to) || ip4_addr_isloopback(&to) || ip4_addr_isany_val(to) ||
      ip4_addr_get_u32(&to) == IPADDR_BROADCAST) {
    return 0;
  }
  ip_addr_copy_from_ip4(interface.ip_addr, to);
  return 1;
}

static u8_t
adopt_destination_v6(const struct pbuf *p)
{
  ip6_addr_t from, to;
  if (p->len < IP6_HLEN || is_unwanted(IP6H_NEXTH((const struct ip6_hdr *)p->payload))) {
    return 0;
  }
  ip6_addr_copy_from_packed(from, ((const struct ip6_hdr *)p->payload)->src);
  ip6_addr_copy_from_packed(to, ((const struct ip6_hdr *)p->payload)->dest);
  /* lwIP would reply to the loopback address. No packet from outside may have it (RFC 4291, 2.5.3). */
  if (ip6_addr_ismulticast(&to) || ip6_addr_isloopback(&to) || ip6_addr_isany(&to) || ip6_addr_isloopback(&from)) {
    return 0;
  }
  ip_addr_copy_from_ip6(interface.ip6_addr[0], to);
  interface.ip6_addr_state[0] = IP6_ADDR_PREFERRED;
  return 1;
}

size_t
lwip_sys_input(struct pbuf *p, u8_t verified, struct tcp_pcb *pcb)
{
  u8_t version = p->len == 0 ? 0 : (u8_t)(*(const u8_t *)p->payload >> 4);
  LWIP_SYS_ENTER(0);
  noted = 0;
  belongs_to = pcb;
  interface.chksum_flags = output_checksums;
  if (verified == LWIP_SYS_VERIFIED_NOTHING) {
    interface.chksum_flags |= NETIF_CHECKSUM_CHECK_TCP | NETIF_CHECKSUM_CHECK_UDP;
  } else if (verified == LWIP_SYS_VERIFIED_ALL) {
    interface.chksum_flags &= (u16_t)~NETIF_CHECKSUM_CHECK_IP;
  }
  if (version == 4 && adopt_destination_v4(p)) {
    ip4_input(p, &interface);
  } else if (version == 6 && adopt_destination_v6(p)) {
    ip6_input(p, &interface);
  } else {
    pbuf_free(p);
  }
  LWIP_SYS_LEAVE();
  return noted;
}

static u8_t
admission(u8_t opens)
{
  u8_t result = callbacks->admit(engine, opens);
  returned();
  return result;
}

/* For a segment of a half-open connection. A SYN with another sequence number is from a client that has begun again:
 * the RST that it sends for this acknowledgement ends the old handshake. lwIP alone would not reply. */
static u8_t
admit_to_handshake(struct tcp_pcb *pcb, const struct tcp_hdr *header)
{
  switch (TCPH_FLAGS(header) & (TCP_SYN | TCP_ACK | TCP_RST)) {
    case TCP_SYN:
      if (lwip_ntohl(header->seqno) + 1 == pcb->rcv_nxt) {
        return 1;
      }
      tcp_send_empty_ack(pcb);
      return 0;
    case TCP_ACK:
      return admission(0) == LWIP_SYS_OPEN;
    default:
      return 1;
  }
}

/* For a segment of an open connection. lwIP takes the acknowledgement and the window of every segment, and data without
 * ACK. So a segment that is not acceptable gets an acknowledgement here (RFC 9293, 3.10.7.4; RFC 5961, 5.2). Like Linux,
 * an empty segment may begin at the window's end: the peer has filled the window (tcp_sequence, net/ipv4/tcp_input.c). */
static u8_t
admit_to_connection(struct tcp_pcb *pcb, const struct tcp_hdr *header, const struct pbuf *p)
{
  u8_t flags = TCPH_FLAGS(header);
  u32_t seqno = lwip_ntohl(header->seqno);
  u32_t ackno = lwip_ntohl(header->ackno);
  u32_t end = pcb->rcv_nxt + pcb->rcv_wnd;
  u16_t len;
  if ((flags & (TCP_SYN | TCP_RST)) || TCPH_HDRLEN_BYTES(header) > p->tot_len) {
    return 1;
  }
  if (!(flags & TCP_ACK)) {
    return 0;
  }
  len = (u16_t)(p->tot_len - TCPH_HDRLEN_BYTES(header) + ((flags & TCP_FIN) != 0));
  if (TCP_SEQ_BETWEEN(ackno, pcb->lastack - pcb->snd_wnd_max, pcb->snd_nxt) &&
      (len == 0 ? TCP_SEQ_BETWEEN(seqno, pcb->rcv_nxt, end)
                : TCP_SEQ_LT(seqno, end) && TCP_SEQ_GT(seqno + len, pcb->rcv_nxt))) {
    return 1;
  }
  tcp_ack_now(pcb);
  lwip_sys_note(pcb);
  return 0;
}

/* Whether to pass a segment to lwIP. The only listener moves to the port of each SYN, so every port is open at no
 * cost. The caller has verified the checksum of a segment that it knows. It knows all segments that are whole. */
u8_t
lwip_sys_admit(const struct pbuf *p)
{
  const struct tcp_hdr *header = (const struct tcp_hdr *)p->payload;
  struct tcp_pcb *pcb = belongs_to;
  lwip_sys_enlist(pcb);
  if (p->len < TCP_HLEN || (interface.chksum_flags & NETIF_CHECKSUM_CHECK_TCP)) {
    return 0;
  }
  if (pcb != NULL && pcb->state == SYN_RCVD) {
    return admit_to_handshake(pcb, header);
  }
  if (pcb != NULL && pcb->state > SYN_RCVD && pcb->state < TIME_WAIT && !admit_to_connection(pcb, header, p)) {
    return 0;
  }
  if ((TCPH_FLAGS(header) & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN) {
    return 1;
  }
  if ((TCPH_FLAGS(header) & TCP_FIN) || header->dest == 0 || header->src == 0) {
    return 0;
  }
  /* A SYN may reopen a connection in TIME-WAIT if its sequence number is beyond those of the old one (RFC 1122,
   * 4.2.2.13). lwIP alone would reply with a RST. */
  if (pcb != NULL && (pcb->state != TIME_WAIT || !TCP_SEQ_GEQ(lwip_ntohl(header->seqno), pcb->rcv_nxt))) {
    return 1;
  }
  switch (admission(1)) {
    case LWIP_SYS_DROP:
      return 0;
    case LWIP_SYS_REFUSE:
      /* No segment has port 0, so lwIP finds no listener and sends a RST. */
      listener->local_port = 0;
      break;
    default:
      listener->local_port = lwip_ntohs(header->dest);
      break;
  }
  reopened = pcb != NULL;
  if (reopened) {
    old_snd_nxt = pcb->snd_nxt;
    tcp_abort(pcb);
  }
  lwip_sys_enlist(NULL);
  return 1;
}

/* Notes the flow of a segment. Returns whether its options are to be parsed. */
u8_t
lwip_sys_note(const struct tcp_pcb *pcb)
{
  if (pcb->state == LISTEN) {
    return 1;
  }
  noted = flow_of(pcb->callback_arg);
  return 0;
}

unsigned int
lwip_sys_isn(const struct ip_addr *local_ip, unsigned short local_port, const struct ip_addr *remote_ip,
             unsigned short remote_port)
{
  struct lwip_sys_endpoints endpoints;
  u32_t isn;
  lwip_sys_describe(&endpoints, local_ip, local_port, remote_ip, remote_port);
  isn = callbacks->isn(engine, &endpoints);
  returned();
  /* The old connection may have sent faster than the clock of RFC 6528. The distance is Linux's
   * (tcp_timewait_state_process, net/ipv4/tcp_minisocks.c). */
  return reopened && TCP_SEQ_LEQ(isn, old_snd_nxt) ? old_snd_nxt + 65535 + 2 : isn;
}

void
lwip_sys_deliver(const struct lwip_sys_endpoints *endpoints, const void *bytes, size_t len)
{
  callbacks->datagram(engine, endpoints, bytes, len);
  returned();
}

u32_t
lwip_sys_seconds(void)
{
  u32_t now = callbacks->seconds(engine);
  returned();
  return now;
}

/* ---- Buffers ---- */

static void
frame_free(struct pbuf *p)
{
  callbacks->released(engine, ((struct lwip_sys_frame *)(void *)p)->slot);
  returned();
}

struct lwip_sys_frame *
lwip_sys_frame_new(void *slot)
{
  struct lwip_sys_frame *frame = (struct lwip_sys_frame *)calloc(1, sizeof(*frame));
  if (frame != NULL) {
    lwip_sys_count_allocation();
    frame->slot = slot;
    frame->custom.custom_free_function = frame_free;
  }
  return frame;
}

void
lwip_sys_frame_delete(struct lwip_sys_frame *frame)
{
  free(frame);
}

struct pbuf *
lwip_sys_frame_wrap(struct lwip_sys_frame *frame, void *bytes, u16_t len)
{
  return pbuf_alloced_custom(PBUF_RAW, len, PBUF_REF, &frame->custom, bytes, len);
}

struct pbuf *
lwip_sys_pbuf_of(const void *bytes, u16_t len)
{
  struct pbuf *p;
  LWIP_SYS_ENTER(NULL);
  p = pbuf_alloc(PBUF_RAW, len, PBUF_RAM);
  if (p != NULL) {
    memcpy(p->payload, bytes, len);
  }
  LWIP_SYS_LEAVE();
  return p;
}

static struct pbuf *
join(struct pbuf *const *parts, size_t count)
{
  struct pbuf *joined;
  size_t total = 0;
  size_t i;
  u16_t at = 0;
  for (i = 0; i < count; i++) {
    total += parts[i]->tot_len;
  }
  joined = total > 0xffff ? NULL : pbuf_alloc(PBUF_RAW, (u16_t)total, PBUF_RAM);
  for (i = 0; joined != NULL && i < count; i++) {
    at = (u16_t)(at + pbuf_copy_partial(parts[i], (u8_t *)joined->payload + at, parts[i]->tot_len, 0));
    pbuf_free(parts[i]);
  }
  return joined;
}

/* Joins the bytes of all parts into one pbuf, and frees the parts. Returns NULL and changes nothing if there is no
 * memory or there are too many bytes. */
struct pbuf *
lwip_sys_pbuf_join(struct pbuf *const *parts, size_t count)
{
  struct pbuf *joined;
  LWIP_SYS_ENTER(NULL);
  joined = join(parts, count);
  LWIP_SYS_LEAVE();
  return joined;
}

u16_t
lwip_sys_pbuf_len(const struct pbuf *p)
{
  return p->tot_len;
}

u16_t
lwip_sys_pbuf_front(const struct pbuf *chain, const void **bytes)
{
  while (chain->len == 0 && chain->next != NULL) {
    chain = chain->next;
  }
  *bytes = chain->payload;
  return chain->len;
}

void
lwip_sys_pbuf_skip(struct pbuf **chain, u16_t len)
{
  struct pbuf *whole = *chain;
  /* After a failed assertion the chain is lost. */
  *chain = NULL;
  LWIP_SYS_ENTER();
  *chain = pbuf_free_header(whole, len);
  LWIP_SYS_LEAVE();
}

void
lwip_sys_pbuf_free(struct pbuf *chain)
{
  LWIP_SYS_ENTER();
  pbuf_free(chain);
  LWIP_SYS_LEAVE();
}
