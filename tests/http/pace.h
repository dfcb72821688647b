/* tests/http/pace.h - how long the machine keeps a process waiting that should run.
 *
 * Two processes exchange a byte every 5 ms. The time of the exchange beyond those 5 ms is time that a server would lose
 * too, to other processes or a slow virtual machine. Limits on wall-clock times are relative to it. */
#ifndef TANDEM_TEST_HTTP_PACE_H
#define TANDEM_TEST_HTTP_PACE_H

void   pace_start(void); /* starts the processes; they end with this one */
void   pace_reset(void); /* begins an interval */
double pace_delay(void); /* returns the longest delay of the interval, in seconds */
#endif
