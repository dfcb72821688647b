/* decode/address.h - which addresses of the network a request may make the server connect to. */
#ifndef TANDEM_DECODE_ADDRESS_H
#define TANDEM_DECODE_ADDRESS_H
#include <stdbool.h>
#include <sys/socket.h>

/* Returns whether the address belongs to the public internet, and not to this machine. Refuses loopback, private,
 * link-local, shared, multicast, reserved and documentation addresses, and IPv6 addresses that contain an IPv4
 * address. */
bool address_is_public(const struct sockaddr *a);
#endif
