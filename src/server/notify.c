#include "server/notify.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool notify_manager(const char *state)
{
    const char        *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to   = {.sun_family = AF_UNIX};
    size_t             n    = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof to.sun_path || !strchr("/@", path[0])) return false;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') to.sun_path[0] = 0; /* a name that is no file */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    bool      ok  = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to, len) >= 0;
    close(fd);
    return ok;
}

double notify_watchdog_s(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    int64_t     n;
    if (!usec || !str_to_i64(str_of(usec), &n) || n <= 0) return 0;
    int64_t who;
    return !pid || (str_to_i64(str_of(pid), &who) && who == getpid()) ? (double)n * 1e-6 : 0;
}
