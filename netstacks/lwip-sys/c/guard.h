/* See guard.c. */

#ifndef LWIP_SYS_GUARD_H
#define LWIP_SYS_GUARD_H

#include <setjmp.h>
#include <stddef.h>

#include "arch/cc.h"

/* Not setjmp() if that saves the signal mask, which is a system call. */
#ifdef _WIN32
#define LWIP_SYS_SETJMP(jump) setjmp(jump)
#define LWIP_SYS_LONGJMP(jump) longjmp((jump), 1)
#else
#define LWIP_SYS_SETJMP(jump) _setjmp(jump)
#define LWIP_SYS_LONGJMP(jump) _longjmp((jump), 1)
#endif

struct lwip_sys_entry {
  jmp_buf jump;
  struct lwip_sys_entry *outer;
};

/* The first assertion that failed. */
struct lwip_sys_failure {
  const char *message;
  int line;
};

extern struct lwip_sys_entry *lwip_sys_innermost;
/* NULL: none has failed. */
extern const struct lwip_sys_failure *lwip_sys_failed;

LWIP_SYS_NORETURN void lwip_sys_leave(void);
void lwip_sys_fail(void);

/* Begins an entry, behind its other variables. It returns `result` after a failed assertion. */
#define LWIP_SYS_ENTER(result) \
  struct lwip_sys_entry lwip_sys_entry; \
  if (lwip_sys_failed != NULL) { \
    return result; \
  } \
  lwip_sys_entry.outer = lwip_sys_innermost; \
  lwip_sys_innermost = &lwip_sys_entry; \
  if (LWIP_SYS_SETJMP(lwip_sys_entry.jump)) { \
    lwip_sys_innermost = lwip_sys_entry.outer; \
    return result; \
  }

#define LWIP_SYS_LEAVE() (lwip_sys_innermost = lwip_sys_entry.outer)

#endif
