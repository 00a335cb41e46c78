/* lwIP's memory: free lists over the C library's malloc(), so a steady flow of segments allocates nothing. For one
 * thread at a time, like lwIP itself. */

#include "guard.h"
#include "shim.h"

#include <stdlib.h>
#include <string.h>

/* The header of a block: its class while the block is used, else the next free block. As long as MEM_ALIGNMENT. */
union block {
  size_t class;
  union block *next;
  u8_t aligned[MEM_ALIGNMENT];
};

/* Blocks hold 32 bytes (a tcp_seg, a reference to data), 64, 128 (headers), 384 (a connection), and on to 2,048 (a copied
 * packet). Larger ones are rare and go to the C library. */
static const size_t sizes[] = {32, 64, 128, 384, 512, 1024, 2048};
#define CLASSES (sizeof(sizes) / sizeof(sizes[0]))

/* Largest size of the free list of a class, in bytes. It fits about 32,000 segments, the most that lwIP queues. */
#define KEPT_BYTES (4u << 20)

static struct {
  union block *free;
  size_t count;
} classes[CLASSES];

/* For tests: the C library has no more memory. */
u8_t lwip_sys_starved;

static size_t
size_of(size_t class)
{
  return sizes[class];
}

void *
lwip_sys_malloc(size_t size)
{
  union block *block;
  size_t class = 0;
  while (class < CLASSES && size_of(class) < size) {
    class++;
  }
  if (class < CLASSES && classes[class].free != NULL) {
    block = classes[class].free;
    classes[class].free = block->next;
    classes[class].count--;
  } else {
    if (lwip_sys_starved || size > SIZE_MAX - sizeof(*block)) {
      return NULL;
    }
    block = (union block *)malloc(sizeof(*block) + (class < CLASSES ? size_of(class) : size));
    if (block == NULL) {
      return NULL;
    }
    lwip_sys_count_allocation();
  }
  block->class = class;
  return block + 1;
}

void *
lwip_sys_calloc(size_t count, size_t size)
{
  void *bytes;
  if (size != 0 && count > SIZE_MAX / size) {
    return NULL;
  }
  bytes = lwip_sys_malloc(count * size);
  if (bytes != NULL) {
    memset(bytes, 0, count * size);
  }
  return bytes;
}

void
lwip_sys_free(void *bytes)
{
  union block *block = (union block *)bytes - 1;
  size_t class = block->class;
  if (class < CLASSES && classes[class].count < KEPT_BYTES / size_of(class)) {
    block->next = classes[class].free;
    classes[class].free = block;
    classes[class].count++;
  } else {
    free(block);
  }
}

/* How many bytes the C library is asked for. */
size_t
lwip_sys_block_len(size_t size)
{
  size_t class = 0;
  while (class < CLASSES && size_of(class) < size) {
    class++;
  }
  return sizeof(union block) + (class < CLASSES ? size_of(class) : size);
}

/* Frees the blocks of the free lists. */
void
lwip_sys_memory_trim(void)
{
  size_t class;
  if (lwip_sys_failed != NULL) {
    return;
  }
  for (class = 0; class < CLASSES; class++) {
    while (classes[class].free != NULL) {
      union block *block = classes[class].free;
      classes[class].free = block->next;
      free(block);
    }
    classes[class].count = 0;
  }
}
