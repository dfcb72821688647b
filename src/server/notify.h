/* server/notify.h - sends the state of the server to a service manager (systemd, Type=notify). */
#ifndef TANDEM_SERVER_NOTIFY_H
#define TANDEM_SERVER_NOTIFY_H
#include <stdbool.h>

/* Sends "READY=1", "STOPPING=1" or "WATCHDOG=1" to the socket in the environment variable NOTIFY_SOCKET, without
 * blocking. Returns false if that fails or there is no such variable. */
bool notify_manager(const char *state);
/* Returns the interval in seconds within which the manager expects WATCHDOG=1 of this process, from WATCHDOG_USEC and
 * WATCHDOG_PID; 0: none. */
double notify_watchdog_s(void);
#endif
