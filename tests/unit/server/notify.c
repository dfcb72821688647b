#include "server/notify.h"

#include "server_rig.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int listen_at(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t             n  = strlen(path);
    int                fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    memcpy(at.sun_path, path, n);
    if (path[0] == '@') at.sun_path[0] = 0;
    bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    return fd;
}

TEST(server_notify_reaches_the_manager)
{
    char path[2][108], got[64];
    snprintf(path[0], sizeof path[0], "%s/notify", test_tmp_dir());
    snprintf(path[1], sizeof path[1], "@tandem-unit-%d", getpid());
    for (int i = 0; i < 2; i++) {
        int fd = listen_at(path[i]);
        setenv("NOTIFY_SOCKET", path[i], 1);
        CHECK(notify_manager("READY=1"));
        ssize_t n = recv(fd, got, sizeof got, 0);
        CHECK_STR(((str){got, n > 0 ? (size_t)n : 0}), STR("READY=1"));
        close(fd);
        CHECK(!notify_manager("READY=1")); /* nobody is there any more */
    }
    /* The shortest name, the longest that a socket can have, and one beyond. */
    char longest[110];
    snprintf(longest, sizeof longest, "@%0107d", getpid());
    const char *ends[] = {"@", "@\x01", longest};
    for (int i = 0; i < 3; i++) {
        bool reaches = i > 0;
        if (i == 2) longest[107] = 0;
        int fd = reaches ? listen_at(ends[i]) : -1;
        setenv("NOTIFY_SOCKET", ends[i], 1);
        CHECK_MSG(notify_manager("READY=1") == reaches, "a name of %zu bytes", strlen(ends[i]));
        if (fd >= 0) close(fd);
    }
    longest[107] = '0';
    setenv("NOTIFY_SOCKET", longest, 1);
    CHECK(!notify_manager("READY=1"));
    setenv("NOTIFY_SOCKET", "relative", 1);
    CHECK(!notify_manager("READY=1"));
    unsetenv("NOTIFY_SOCKET");
    CHECK(!notify_manager("READY=1"));
}

static bool hears(int fd, const char *word)
{
    char          got[64];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t       n = poll(&p, 1, 20000) == 1 ? recv(fd, got, sizeof got, 0) : 0;
    return str_is((str){got, n > 0 ? (size_t)n : 0}, word);
}

/* The manager is told when requests are taken and when they are not any more, also where nobody else is. */
TEST(server_notify_of_a_life)
{
    server_rig r;
    char       path[108];
    snprintf(path, sizeof path, "@tandem-life-%d", getpid());
    int fd = listen_at(path);
    setenv("NOTIFY_SOCKET", path, 1);
    rig_init(&r, t);
    r.opt.ready = NULL;
    pthread_create(&r.thread, NULL, rig_run, &r);
    CHECK(hears(fd, "READY=1"));
    rig_stop(&r);
    CHECK(hears(fd, "STOPPING=1"));
    unsetenv("NOTIFY_SOCKET");
    close(fd);
}

TEST(server_notify_watchdog)
{
    char pid[16];
    CHECK_NEAR(notify_watchdog_s(), 0, 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    CHECK_NEAR(notify_watchdog_s(), 30, 0);
    snprintf(pid, sizeof pid, "%d", getpid());
    setenv("WATCHDOG_PID", pid, 1);
    CHECK_NEAR(notify_watchdog_s(), 30, 0);
    setenv("WATCHDOG_PID", "1", 1); /* is meant for another */
    CHECK_NEAR(notify_watchdog_s(), 0, 0);
    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", "soon", 1);
    CHECK_NEAR(notify_watchdog_s(), 0, 0);
    unsetenv("WATCHDOG_USEC");
}
