/* Which connections get a place in the table.
 *
 * Connections that carry no call give way when there is no place: handshakes and heads that are not whole, idle ones, and
 * those that only wait for the client to close. The address that holds the most connections loses its oldest such one first,
 * so that a few addresses with many unfinished requests cannot keep others out. A client that is not greedier than its
 * victim must leave it GRACE_S to speak.
 *
 * `reserved` places beyond max_connections are for 127.0.0.1, ::1 and the unix socket. An address may hold max_per_peer
 * connections, and a quarter of it while three quarters of all places carry calls. */
#include "base/log.h"
#include "base/mem.h"
#include "http/inside.h"

#include <arpa/inet.h>
#include <limits.h>
#include <unistd.h>

#define GRACE_S 1.0
enum { TELL_EVERY_S = 60, TIGHTER = 4 };

struct http_peer {
    uint8_t    key[16];
    int        n; /* connections */
    http_peer *next;
};

/* --- addresses ------------------------------------------------------------------------------------ */
static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

static bool is_v4(const http_from *a) { return !memcmp(a->byte, mapped, sizeof mapped); }

static bool is_loopback(const http_from *a)
{
    static const http_from v4 = {{[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}}, v6 = {{[15] = 1}};
    return !memcmp(a, &v4, sizeof v4) || !memcmp(a, &v6, sizeof v6);
}

/* Clients that count as one: an IPv4 address, an IPv6 /64, the unix socket. */
static void peer_key(uint8_t key[16], const http_from *a)
{
    memset(key, a ? 0 : 0xff, 16);
    if (a) memcpy(key, a->byte, is_v4(a) ? 16 : 8);
}

static http_peer **find_peer(http_server *s, const uint8_t key[16])
{
    uint32_t h = 2166136261u;
    for (int i = 0; i < 16; i++) h = (h ^ key[i]) * 16777619u;
    http_peer **at = &s->peer[h % PEER_SLOTS];
    while (*at && memcmp((*at)->key, key, 16) != 0) at = &(*at)->next;
    return at;
}

/* Counts the connection among its peer's. False: there is no memory. */
static bool join_peer(conn *c, const http_from *a)
{
    uint8_t key[16];
    peer_key(key, a);
    http_peer **at = find_peer(c->s, key);
    if (!*at && !(*at = mem_try(sizeof **at))) return false;
    memcpy((*at)->key, key, sizeof key);
    (*at)->n++;
    c->from_peer = *at;
    c->is_local  = !a || is_loopback(a);
    c->is_unix   = !a;
    if (a) inet_ntop(is_v4(a) ? AF_INET : AF_INET6, a->byte + (is_v4(a) ? 12 : 0), c->peer, sizeof c->peer);
    return true;
}

void http_leave_peer(conn *c)
{
    http_peer *p = c->from_peer;
    c->from_peer = NULL;
    if (!p || --p->n) return;
    *find_peer(c->s, p->key) = p->next;
    mem_free(p);
}

/* --- places --------------------------------------------------------------------------------------- */
static bool gives_way(const conn *c)
{
    return c->phase == PHASE_HANDSHAKE || c->phase == PHASE_HEAD || c->phase == PHASE_LINGER;
}

void http_tell_full(http_server *s, const char *what)
{
    s->stats.refused++;
    if (s->told_full && s->now - s->told_full < TELL_EVERY_S) return;
    s->told_full = s->now;
    log_event(LOG_WARN, "http", "%s: refusing new connections (logged once a minute)", what);
}

/* Clients that are turned away learn it now rather than by a time-out. */
static void turn_away(conn *c)
{
    buf out;
    buf_init(&out, 1024);
    http_put_refusal(&out, c->s, NULL, (http_verdict){503, "Too many connections."});
    if (!c->tls.ssl) {
        http_net_write(c, out.p, out.n);
        http_net_read(c, c->s->scratch, SCRATCH_BYTES, false); /* unread, it would turn the end into a reset */
    }
    buf_deinit(&out);
    http_conn_lose(c);
}

/* Whether `c` may lose its place to a client that holds so many connections. */
static bool may_lose_to(const conn *c, int n_of_newcomer)
{
    bool had_time = c->s->now - c->since > GRACE_S || (c->was_used && http_conn_is_idle(c));
    return gives_way(c) && (had_time || c->from_peer->n > n_of_newcomer);
}

/* Closes the connection that gives way first, of all or of one peer. */
static bool evict(http_server *s, const conn *newcomer, const http_peer *of)
{
    conn *first = NULL;
    int   n     = newcomer ? newcomer->from_peer->n : INT_MAX;
    for (conn *c = s->first; c; c = c->next) {
        if (c == newcomer || (of && c->from_peer != of) || !may_lose_to(c, n)) continue;
        int more = first ? c->from_peer->n - first->from_peer->n : 1;
        if (more > 0 || (more == 0 && c->since < first->since)) first = c;
    }
    if (!first) return false;
    s->stats.evicted++;
    if (first->phase == PHASE_HEAD && !http_conn_is_idle(first))
        turn_away(first);
    else
        http_conn_lose(first);
    return true;
}

bool http_make_room(http_server *s, const conn *newcomer) { return evict(s, newcomer, NULL); }

static int max_of_peer(const http_server *s)
{
    int busy = 0, tight = s->o.max_per_peer / TIGHTER;
    for (const conn *c = s->first; c; c = c->next) busy += !gives_way(c);
    return busy < s->o.max_connections - s->o.max_connections / TIGHTER ? s->o.max_per_peer : tight > 0 ? tight : 1;
}

/* Whether there is a place, made if need be. */
static bool has_place(conn *c)
{
    http_server *s             = c->s;
    int          places        = s->o.max_connections + (c->is_local ? s->o.reserved : 0);
    bool         may_be_greedy = !c->is_unix && c->from_peer->n > s->o.max_per_peer / TIGHTER;
    if (may_be_greedy && c->from_peer->n > max_of_peer(s) && !evict(s, c, c->from_peer)) {
        http_tell_full(s, "One address has reached its connection limit");
        return false;
    }
    if (s->stats.connections > places && !evict(s, c, NULL)) {
        http_tell_full(s, "The connection limit is reached");
        return false;
    }
    return true;
}

void http_admit(http_server *s, int fd, bool is_tls, const http_from *from)
{
    conn *c = http_conn_new(s, fd, is_tls);
    s->stats.accepted++;
    if (!c) {
        close(fd);
        http_tell_full(s, "There is no memory for connections");
    } else if (c->phase != PHASE_DEAD) {
        if (!join_peer(c, from))
            http_conn_lose(c);
        else if (!has_place(c))
            turn_away(c);
    }
}
