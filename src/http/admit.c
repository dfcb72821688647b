/* Decides which connections are accepted.
 *
 * When the table is full, a connection without a call is closed for a new one: an incomplete handshake or head, an idle
 * connection, or one that waits for the client to close. The address with the most connections loses its oldest such
 * connection first, so that a few addresses with many unfinished requests cannot exclude others. If the new client has
 * as many connections as the other, the other has GRACE_S to send a request first.
 *
 * `reserved` connections above max_connections are for 127.0.0.1, ::1 and the unix socket. An address may have
 * max_per_peer connections, and a quarter of that while three quarters of all connections have calls. */
#include "base/log.h"
#include "base/mem.h"
#include "http/inside.h"

#include <arpa/inet.h>
#include <limits.h>
#include <unistd.h>

#define GRACE_S 1.0
enum { LOG_INTERVAL_S = 60, TIGHTER = 4 };

struct http_peer {
    uint8_t    key[16];
    int        n; /* number of connections */
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

/* Writes the key that identifies the peer of an address: an IPv4 address, an IPv6 /64, or the unix socket. */
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

/* Adds the connection to the count of its peer. Returns false when there is no memory. */
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

void http_refuse_full(http_server *s, const char *what)
{
    s->stats.refused++;
    if (s->told_full && s->now - s->told_full < LOG_INTERVAL_S) return;
    s->told_full = s->now;
    log_event(LOG_WARN, "http", "%s: refusing new connections (logged once a minute)", what);
}

/* Sends a refusal, so that the client need not wait for a timeout. */
static void refuse_connection(conn *c)
{
    buf out;
    buf_init(&out, 1024);
    http_put_refusal(&out, c->s, NULL, (http_verdict){503, "Too many connections."});
    if (!c->tls.ssl) {
        http_net_write(c, out.p, out.n);
        http_net_read(c, c->s->scratch, SCRATCH_BYTES, false); /* unread bytes would cause a reset at close */
    }
    buf_deinit(&out);
    http_conn_lose(c);
}

/* Returns whether `c` may be closed for a client that has n_of_newcomer connections. */
static bool may_lose_to(const conn *c, int n_of_newcomer)
{
    bool had_time = c->s->now - c->since > GRACE_S || (c->was_used && http_conn_is_idle(c));
    return gives_way(c) && (had_time || c->from_peer->n > n_of_newcomer);
}

/* Closes the first candidate, of all connections or of one peer. */
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
        refuse_connection(first);
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

/* Returns whether a connection can be accepted, after closing another one if necessary. */
static bool has_place(conn *c)
{
    http_server *s             = c->s;
    int          places        = s->o.max_connections + (c->is_local ? s->o.reserved : 0);
    bool         may_be_greedy = !c->is_unix && c->from_peer->n > s->o.max_per_peer / TIGHTER;
    if (may_be_greedy && c->from_peer->n > max_of_peer(s) && !evict(s, c, c->from_peer)) {
        http_refuse_full(s, "One address has reached its connection limit");
        return false;
    }
    if (s->stats.connections > places && !evict(s, c, NULL)) {
        http_refuse_full(s, "The connection limit is reached");
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
        http_refuse_full(s, "There is no memory for connections");
    } else if (c->phase != PHASE_DEAD) {
        if (!join_peer(c, from))
            http_conn_lose(c);
        else if (!has_place(c))
            refuse_connection(c);
    }
}
