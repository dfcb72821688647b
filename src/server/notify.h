/* server/notify.h - tells a service manager (systemd, Type=notify) how the server is. */
#ifndef TANDEM_SERVER_NOTIFY_H
#define TANDEM_SERVER_NOTIFY_H
#include <stdbool.h>

/* "READY=1", "STOPPING=1", "WATCHDOG=1": one datagram to the socket that NOTIFY_SOCKET names. False: nobody listens. */
bool notify_manager(const char *state);
/* Seconds within which a WATCHDOG=1 must come, for this process; 0: none is waited for. */
double notify_watchdog_s(void);
#endif
