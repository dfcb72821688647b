#include "decode/sandbox.h"

#include "base/mem.h"

#include <errno.h>
#include <seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* The sanitizers reserve far more address space, and make system calls of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HAS_SANITIZER = 1 };
#else
enum { HAS_SANITIZER = 0 };
#endif

#define MAX_MEMORY ((rlim_t)2 << 30)

static bool limit(int what, rlim_t max) { return !setrlimit(what, &(struct rlimit){max, max}); }

static bool set_limits(err *e)
{
    bool ok = limit(RLIMIT_CORE, 0) && limit(RLIMIT_FSIZE, 0) && !prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) &&
              !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && (HAS_SANITIZER || limit(RLIMIT_AS, MAX_MEMORY));
    return ok || err_set(e, ERR_IO, "cannot limit the decoder's process: %s", strerror(errno));
}

static bool add_rules(scmp_filter_ctx f)
{
    static const int allowed[] = {
        SCMP_SYS(read),         SCMP_SYS(write),          SCMP_SYS(poll),           SCMP_SYS(ppoll),
        SCMP_SYS(close),        SCMP_SYS(munmap),         SCMP_SYS(mremap),         SCMP_SYS(brk),
        SCMP_SYS(madvise),      SCMP_SYS(futex),          SCMP_SYS(exit),           SCMP_SYS(exit_group),
        SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask), SCMP_SYS(clock_gettime),  SCMP_SYS(gettimeofday),
        SCMP_SYS(getrandom),    SCMP_SYS(sched_yield),    SCMP_SYS(getpid),         SCMP_SYS(gettid),
        SCMP_SYS(lseek),        SCMP_SYS(fstat),          SCMP_SYS(restart_syscall)};
    static const int of_sanitizer[] = {SCMP_SYS(sigaltstack), SCMP_SYS(rt_sigaction), SCMP_SYS(prctl)};
    static const int refused[]      = {SCMP_SYS(open),
                                       SCMP_SYS(openat),
                                       SCMP_SYS(access),
                                       SCMP_SYS(stat),
                                       SCMP_SYS(newfstatat),
                                       SCMP_SYS(statx),
                                       SCMP_SYS(readlink),
                                       SCMP_SYS(readlinkat),
                                       SCMP_SYS(socket),
                                       SCMP_SYS(connect),
                                       SCMP_SYS(sched_getaffinity),
                                       SCMP_SYS(sysinfo),
                                       SCMP_SYS(uname)};
    static const int memory[]       = {SCMP_SYS(mmap), SCMP_SYS(mprotect)};
    bool             ok             = true;
    for (size_t i = 0; ok && i < COUNT(allowed); i++) ok = !seccomp_rule_add(f, SCMP_ACT_ALLOW, allowed[i], 0);
    for (size_t i = 0; ok && HAS_SANITIZER && i < COUNT(of_sanitizer); i++)
        ok = !seccomp_rule_add(f, SCMP_ACT_ALLOW, of_sanitizer[i], 0);
    for (size_t i = 0; ok && i < COUNT(refused); i++) ok = !seccomp_rule_add(f, SCMP_ACT_ERRNO(EACCES), refused[i], 0);
    for (size_t i = 0; ok && i < COUNT(memory); i++) /* no memory can be made executable */
        ok = !seccomp_rule_add(f, SCMP_ACT_ALLOW, memory[i], 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    return ok;
}

bool decode_sandbox_enter(err *e)
{
    if (!set_limits(e)) return false;
    scmp_filter_ctx f  = seccomp_init(SCMP_ACT_KILL_PROCESS);
    bool            ok = f && add_rules(f) && !seccomp_load(f);
    seccomp_release(f);
    return ok || err_set(e, ERR_IO, "cannot install the decoder's system call filter");
}
