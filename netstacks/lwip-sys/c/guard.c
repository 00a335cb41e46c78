/* The end of lwIP after a failed assertion: its state may be wrong, so none of its code runs again in this process.
 *
 * Each function that Rust calls and that may fail is an entry. A failed assertion leaves the C frames of the innermost
 * entry, which returns to Rust as usual. If that was within a callback, the callback returns to C as usual too, and
 * shim.c leaves the C frames of the entry around it. So no frame of Rust is jumped over. */

#include "guard.h"

#include <stdio.h>

struct lwip_sys_entry *lwip_sys_innermost;
static struct lwip_sys_failure failure;

const struct lwip_sys_failure *lwip_sys_failed;

void
lwip_sys_leave(void)
{
  if (lwip_sys_innermost == NULL) {
    /* Only if a function with assertions is no entry. */
    fprintf(stderr, "lwIP: assertion failed: %s (line %d)\n", failure.message, failure.line);
    fflush(stderr);
    abort();
  }
  LWIP_SYS_LONGJMP(lwip_sys_innermost->jump);
}

void
lwip_sys_assertion_failed(const char *message, int line)
{
  failure.message = message;
  failure.line = line;
  lwip_sys_failed = &failure;
  lwip_sys_leave();
}

/* For tests. */
void
lwip_sys_fail(void)
{
  LWIP_SYS_ENTER();
  LWIP_PLATFORM_ASSERT("a test");
  LWIP_SYS_LEAVE();
}
