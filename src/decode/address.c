#include "decode/address.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>

/* IANA's special-purpose registry, in host byte order. */
static const struct {
    uint32_t prefix;
    int      bits;
} special_v4[] = {
    {0x00000000, 8},  /* this network */
    {0x0a000000, 8},  /* private */
    {0x64400000, 10}, /* shared by carriers */
    {0x7f000000, 8},  /* loopback */
    {0xa9fe0000, 16}, /* link-local, with the metadata services of clouds */
    {0xac100000, 12}, /* private */
    {0xc0000000, 24}, /* protocol assignments */
    {0xc0000200, 24}, /* documentation */
    {0xc0586300, 24}, /* former relays to IPv6 */
    {0xc0a80000, 16}, /* private */
    {0xc6120000, 15}, /* benchmarks */
    {0xc6336400, 24}, /* documentation */
    {0xcb007100, 24}, /* documentation */
    {0xe0000000, 4},  /* multicast */
    {0xf0000000, 4},  /* reserved, broadcast */
};

/* Exceptions inside 2000::/3, the only global unicast addresses. */
static const struct {
    uint8_t prefix[4];
    int     bits;
} special_v6[] = {
    {{0x20, 0x01, 0x00, 0x00}, 23}, /* protocol assignments, Teredo */
    {{0x20, 0x01, 0x0d, 0xb8}, 32}, /* documentation */
    {{0x20, 0x02, 0x00, 0x00}, 16}, /* contains an IPv4 address */
    {{0x3f, 0xff, 0x00, 0x00}, 20}, /* documentation */
};

static bool is_public_v4(uint32_t a)
{
    for (size_t i = 0; i < COUNT(special_v4); i++)
        if ((a ^ special_v4[i].prefix) >> (32 - special_v4[i].bits) == 0) return false;
    return true;
}

static bool has_prefix(const uint8_t *a, const uint8_t *prefix, int bits)
{
    int whole = bits / 8, rest = bits % 8;
    return !memcmp(a, prefix, (size_t)whole) && (!rest || (a[whole] ^ prefix[whole]) >> (8 - rest) == 0);
}

static bool is_public_v6(const uint8_t a[16])
{
    if (a[0] >> 5 != 1) return false;
    for (size_t i = 0; i < COUNT(special_v6); i++)
        if (has_prefix(a, special_v6[i].prefix, special_v6[i].bits)) return false;
    return true;
}

static bool is_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!b || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return !memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                   &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, 16);
}

static bool is_of_this_machine(const struct sockaddr *a)
{
    struct ifaddrs *all  = NULL;
    bool            mine = getifaddrs(&all) != 0; /* unknown: refused */
    for (const struct ifaddrs *i = all; i && !mine; i = i->ifa_next) mine = is_same_host(a, i->ifa_addr);
    if (all) freeifaddrs(all);
    return mine;
}

bool address_is_public(const struct sockaddr *a)
{
    bool ok = false;
    if (a->sa_family == AF_INET)
        ok = is_public_v4(ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr));
    else if (a->sa_family == AF_INET6)
        ok = is_public_v6(((const struct sockaddr_in6 *)(const void *)a)->sin6_addr.s6_addr);
    return ok && !is_of_this_machine(a);
}
