/* The segments of a connection that have arrived out of order, in place of lwIP's code for that in tcp_in.c.
 *
 * lwIP walks its list of segments for each arrival, and it keeps the first one untrimmed, so the list may hold more than
 * the window. Here an array has the ranges without a hole, and each range knows its first and last segment. So an
 * arrival costs at most as many steps as there may be ranges, and usually one. The list pcb->ooseq stays lwIP's: it takes
 * the segments from its front when the hole before them is filled. */

#include "shim.h"

#include <string.h>

#include "lwip/priv/tcp_priv.h"

/* Most ranges of a connection. Segments that would begin another one are dropped. With a window of 4 MiB and an MTU of
 * 1,500 it is one for each sixth segment. */
#define MAX_RANGES 512

/* lwIP's segments from one hole to the next. */
struct range {
  u32_t left;
  u32_t right;
  struct tcp_seg *first;
  struct tcp_seg *last;
  u32_t segments;
};

struct ranges {
  u32_t count;
  u32_t segments;
  struct range range[MAX_RANGES];
};

unsigned int lwip_sys_reorder_segments;
size_t lwip_sys_reorder_steps;
unsigned int lwip_sys_small_len;

static u8_t ranges_id;

static void
on_destroy(u8_t id, void *data)
{
  LWIP_UNUSED_ARG(id);
  if (data != NULL) {
    mem_free(data);
  }
}

static const struct tcp_ext_arg_callbacks ext_of_ranges = { on_destroy, NULL };

void
lwip_sys_reorder_init(void)
{
  ranges_id = tcp_ext_arg_alloc_id();
}

/* Removes ranges from the array, not their segments. */
static void
forget(struct ranges *ranges, u32_t from, u32_t count)
{
  u32_t i;
  for (i = from; i < from + count; i++) {
    ranges->segments -= ranges->range[i].segments;
  }
  ranges->count -= count;
  memmove(&ranges->range[from], &ranges->range[from + count], (ranges->count - from) * sizeof(ranges->range[0]));
}

/* The ranges of a connection, without those that lwIP has taken. lwIP takes whole ranges, from the first on. NULL: no
 * segment has been out of order, or there is no memory. */
static struct ranges *
ranges_of(struct tcp_pcb *pcb)
{
  struct ranges *ranges = (struct ranges *)tcp_ext_arg_get(pcb, ranges_id);
  u32_t taken = 0;
  if (ranges == NULL) {
    return NULL;
  }
  while (taken < ranges->count && ranges->range[taken].first != pcb->ooseq) {
    taken++;
  }
  lwip_sys_reorder_steps += taken;
  forget(ranges, 0, taken);
  return ranges;
}

static struct ranges *
new_ranges(struct tcp_pcb *pcb)
{
  struct ranges *ranges = (struct ranges *)mem_malloc(sizeof(*ranges));
  if (ranges != NULL) {
    ranges->count = 0;
    ranges->segments = 0;
    tcp_ext_arg_set_callbacks(pcb, ranges_id, &ext_of_ranges);
    tcp_ext_arg_set(pcb, ranges_id, ranges);
  }
  return ranges;
}

static u8_t
has_fin(const struct range *range)
{
  return (TCPH_FLAGS(range->last->tcphdr) & TCP_FIN) != 0;
}

/* The end of what the peer may send: the window's end, or the FIN that has arrived out of order. */
static u32_t
end_of(const struct tcp_pcb *pcb, const struct ranges *ranges, u8_t *fin_is_known)
{
  const struct range *last = ranges == NULL || ranges->count == 0 ? NULL : &ranges->range[ranges->count - 1];
  *fin_is_known = last != NULL && has_fin(last);
  return *fin_is_known ? last->right : pcb->rcv_nxt + pcb->rcv_wnd;
}

/* How many bytes of a segment that begins at or before rcv_nxt come before the FIN, and whether its own FIN counts.
 * lwIP trims it to the window, but then adds the FIN of the list, which may be one too many. */
u16_t
lwip_sys_reorder_limit(struct tcp_pcb *pcb, u32_t seqno, u16_t len, u8_t *fin)
{
  u8_t fin_is_known;
  u32_t end = end_of(pcb, ranges_of(pcb), &fin_is_known);
  if (!fin_is_known || TCP_SEQ_LEQ(seqno + len, end)) {
    return len;
  }
  *fin = 0;
  return (u16_t)(end - seqno);
}

/* A segment of `len` bytes from `offset` on. Bytes that fill less than half of a packet's buffer are copied, so a few
 * bytes do not hold a large buffer. */
static struct tcp_seg *
segment_of(struct pbuf *p, struct tcp_hdr *header, u16_t offset, u16_t len)
{
  struct tcp_seg *segment = (struct tcp_seg *)memp_malloc(MEMP_TCP_SEG);
  struct pbuf *q = p;
  if (segment == NULL) {
    return NULL;
  }
  if (p->next != NULL || len < lwip_sys_small_len) {
    q = pbuf_alloc(PBUF_RAW, (u16_t)(TCP_HLEN + len), PBUF_RAM);
    if (q == NULL) {
      memp_free(MEMP_TCP_SEG, segment);
      return NULL;
    }
    memcpy(q->payload, header, TCP_HLEN);
    header = (struct tcp_hdr *)q->payload;
    pbuf_remove_header(q, TCP_HLEN);
    pbuf_copy_partial(p, q->payload, len, offset);
  } else {
    pbuf_remove_header(p, offset);
    pbuf_realloc(p, len);
    pbuf_ref(p);
  }
  memset(segment, 0, sizeof(*segment));
  segment->p = q;
  segment->len = len;
  segment->tcphdr = header;
  return segment;
}

/* Frees the segments of a range that a new segment covers. */
static void
drop_covered(struct tcp_pcb *pcb, struct ranges *ranges, u32_t index)
{
  struct range *range = &ranges->range[index];
  struct tcp_seg *rest = range->last->next;
  range->last->next = NULL;
  tcp_segs_free(range->first);
  if (index == 0) {
    pcb->ooseq = rest;
  } else {
    ranges->range[index - 1].last->next = rest;
  }
  forget(ranges, index, 1);
}

/* Links a new segment between range[next - 1] and range[next], and joins it with them if it touches them. Returns the
 * index of its range. */
static u32_t
link_in(struct tcp_pcb *pcb, struct ranges *ranges, u32_t next, struct tcp_seg *segment, u32_t left, u32_t right)
{
  struct range *before = next == 0 ? NULL : &ranges->range[next - 1];
  struct range *after = next == ranges->count ? NULL : &ranges->range[next];
  u8_t touches_before = before != NULL && before->right == left;
  u8_t touches_after = after != NULL && after->left == right;
  segment->next = after == NULL ? NULL : after->first;
  if (before == NULL) {
    pcb->ooseq = segment;
  } else {
    before->last->next = segment;
  }
  ranges->segments++;
  if (touches_before) {
    before->right = right;
    before->last = segment;
    before->segments++;
    if (touches_after) {
      before->right = after->right;
      before->last = after->last;
      before->segments += after->segments;
      ranges->segments += after->segments;
      forget(ranges, next, 1);
    }
    return next - 1;
  }
  if (touches_after) {
    after->left = left;
    after->first = segment;
    after->segments++;
    return next;
  }
  memmove(&ranges->range[next + 1], &ranges->range[next], (ranges->count - next) * sizeof(ranges->range[0]));
  ranges->count++;
  ranges->range[next].left = left;
  ranges->range[next].right = right;
  ranges->range[next].first = segment;
  ranges->range[next].last = segment;
  ranges->range[next].segments = 1;
  return next;
}

/* Adds the bytes from `left` to `right`, without those that are there. Returns the index of their range, or -1. */
static s32_t
insert(struct tcp_pcb *pcb, struct ranges *ranges, struct pbuf *p, struct tcp_hdr *header, u32_t left, u32_t right,
       u8_t fin)
{
  u32_t next = ranges->count, seqno = left;
  struct tcp_seg *segment;
  while (next > 0 && TCP_SEQ_LT(left, ranges->range[next - 1].left)) {
    next--;
    lwip_sys_reorder_steps++;
  }
  lwip_sys_reorder_steps++;
  if (next > 0 && TCP_SEQ_LT(left, ranges->range[next - 1].right)) {
    left = ranges->range[next - 1].right;
    if (TCP_SEQ_LEQ(right, left) && !fin) {
      return (s32_t)next - 1;
    }
  }
  while (next < ranges->count && TCP_SEQ_LEQ(ranges->range[next].right, right) && !has_fin(&ranges->range[next])) {
    drop_covered(pcb, ranges, next);
    lwip_sys_reorder_steps++;
  }
  if (next < ranges->count && TCP_SEQ_LT(ranges->range[next].left, right)) {
    right = ranges->range[next].left;
  }
  if (ranges->count == MAX_RANGES || ranges->segments >= lwip_sys_reorder_segments) {
    return -1;
  }
  segment = segment_of(p, header, (u16_t)(left - seqno), (u16_t)(right - left));
  if (segment == NULL) {
    return -1;
  }
  segment->tcphdr->seqno = left;
  TCPH_UNSET_FLAG(segment->tcphdr, fin ? 0 : TCP_FIN);
  return (s32_t)link_in(pcb, ranges, next, segment, left, right);
}

/* Keeps a segment that begins behind rcv_nxt, trimmed to the window (RFC 9293, 3.10.7.4). Returns whether the range that
 * has its bytes is to be reported: from `left` to `right`. */
u8_t
lwip_sys_reorder_keep(struct tcp_pcb *pcb, struct pbuf *p, struct tcp_hdr *header, u32_t seqno, u32_t *left,
                      u32_t *right)
{
  struct ranges *ranges = ranges_of(pcb);
  u8_t fin_is_known, fin = (TCPH_FLAGS(header) & TCP_FIN) != 0;
  u32_t end = end_of(pcb, ranges, &fin_is_known);
  u32_t stop = seqno + p->tot_len;
  s32_t index;
  if (!TCP_SEQ_LT(seqno, end)) {
    return 0;
  }
  if (TCP_SEQ_GT(stop + fin, end)) {
    stop = TCP_SEQ_GT(stop, end) ? end : stop;
    fin = 0;
  }
  if (ranges == NULL && (ranges = new_ranges(pcb)) == NULL) {
    return 0;
  }
  /* Bytes behind this FIN have arrived, so one of them is wrong. */
  if (fin && ranges->count > 0 && TCP_SEQ_GT(ranges->range[ranges->count - 1].right, stop)) {
    return 0;
  }
  if (seqno == stop && !fin) {
    return 0;
  }
  index = insert(pcb, ranges, p, header, seqno, stop, fin);
  if (index < 0) {
    return 0;
  }
  *left = ranges->range[index].left;
  *right = ranges->range[index].right;
  return 1;
}
