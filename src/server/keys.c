#include "server/keys_inside.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

enum { HEX = 64 };
_Static_assert((int)HEX <= (int)KEY_NAME_MAX, "a tenant without a name is a hash, and fits where a name does");

typedef struct {
    char hash[HEX + 1];
    char name[KEY_NAME_MAX + 1]; /* empty: none */
} entry;

struct keys {
    entry *entry;
    size_t n, cap;
};

static void hash_key(str key, char hex[HEX + 1])
{
    sha256 s;
    sha256_init(&s);
    sha256_put(&s, key.s, key.n);
    sha256_hex(&s, hex);
}

/* --- the file -----------------------------------------------------------------------------------*/
static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static str next_word(str *line)
{
    while (line->n && is_space(line->s[0])) line->s++, line->n--;
    str word = {line->s, 0};
    while (word.n < line->n && !is_space(line->s[word.n])) word.n++;
    line->s += word.n;
    line->n -= word.n;
    return word;
}

static str next_line(str *text)
{
    const char *end  = memchr(text->s, '\n', text->n);
    str         line = {text->s, end ? (size_t)(end - text->s) : text->n};
    size_t      used = line.n + (end != NULL);
    text->s += used;
    text->n -= used;
    return line;
}

/* Lower case, as sha256_hex writes it. */
static bool take_hash(char out[HEX + 1], str word)
{
    if (word.n != HEX) return false;
    for (size_t i = 0; i < HEX; i++) {
        char c = word.s[i];
        if (c >= 'A' && c <= 'F') c = (char)(c - 'A' + 'a');
        if ((c < '0' || c > '9') && (c < 'a' || c > 'f')) return false;
        out[i] = c;
    }
    return true;
}

static bool take_name(char out[KEY_NAME_MAX + 1], str name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@";
    if (name.n > KEY_NAME_MAX) return false;
    for (size_t i = 0; i < name.n; i++)
        if (!memchr(allowed, name.s[i], sizeof allowed - 1)) return false;
    if (str_is(name, "-")) name.n = 0; /* sha256sum's name for what it read from a pipe */
    if (name.n) memcpy(out, name.s, name.n);
    return true;
}

static entry *add_entry(keys *k, err *e)
{
    if (k->n == KEYS_MAX) {
        err_set(e, ERR_TOO_LARGE, "there are more than %d keys", KEYS_MAX);
        return NULL;
    }
    if (k->n == k->cap) {
        size_t cap  = k->cap ? 2 * k->cap : 16;
        entry *more = mem_try_resize(k->entry, cap * sizeof *more);
        if (!more) err_set(e, ERR_UNAVAILABLE, "no memory for %zu keys", cap);
        if (!more) return NULL;
        k->entry = more;
        k->cap   = cap;
    }
    k->entry[k->n] = (entry){0};
    return &k->entry[k->n++];
}

static bool is_known(const keys *k, const entry *x)
{
    for (size_t i = 0; i < k->n; i++)
        if (&k->entry[i] != x && strcmp(k->entry[i].hash, x->hash) == 0) return true;
    return false;
}

/* Errors never repeat the line, since it may be a key in clear text. */
static bool read_line(keys *k, str line, size_t number, err *e)
{
    str hash = next_word(&line), name = next_word(&line);
    if (!hash.n || hash.s[0] == '#') return true;
    entry *x = add_entry(k, e);
    if (!x) return false;
    if (!take_hash(x->hash, hash))
        return err_set(e, ERR_FORMAT,
                       "line %zu is not the SHA-256 of a key; compute it with: printf %%s \"$KEY\" | "
                       "sha256sum",
                       number);
    if (next_word(&line).n || !take_name(x->name, name))
        return err_set(e, ERR_FORMAT, "line %zu: only a name may follow the hash, of up to %d letters, digits and ._-@",
                       number, KEY_NAME_MAX);
    return !is_known(k, x) || err_set(e, ERR_FORMAT, "line %zu: duplicate key", number);
}

bool keys_read(keys **out, str text, err *e)
{
    keys *k  = xnew(keys);
    bool  ok = true;
    *out     = NULL;
    for (size_t number = 1; ok && text.n; number++) ok = read_line(k, next_line(&text), number, e);
    if (ok && !k->n) ok = err_set(e, ERR_FORMAT, "it has no key");
    if (ok)
        *out = k;
    else
        keys_free(k);
    return ok;
}

bool keys_load(keys **out, const char *path, err *e)
{
    file_map m;
    *out = NULL;
    if (!file_map_open(&m, path, e)) return false;
    bool ok = keys_read(out, (str){m.p, m.n}, e);
    file_map_close(&m);
    return ok || err_wrap(e, "cannot use the keys in %s", path);
}

bool keys_of_one(keys **out, str key, const char *name, err *e)
{
    *out = NULL;
    if (!key.n || key.n > KEY_MAX) return err_set(e, ERR_INPUT, "a key has 1 to %d characters", KEY_MAX);
    keys  *k = xnew(keys);
    entry *x = add_entry(k, e);
    if (!x) {
        keys_free(k);
        return false;
    }
    hash_key(key, x->hash);
    snprintf(x->name, sizeof x->name, "%s", name);
    *out = k;
    return true;
}

bool keys_reload(keys **k, const char *path, err *e)
{
    keys *now;
    if (!keys_load(&now, path, e)) return false;
    keys_free(*k);
    *k = now;
    return true;
}

void keys_free(keys *k)
{
    if (!k) return;
    mem_free(k->entry);
    mem_free(k);
}

size_t keys_count(const keys *k) { return k ? k->n : 0; }

/* --- looking ------------------------------------------------------------------------------------*/
static unsigned difference(const char *a, const char *b)
{
    unsigned d = 0;
    for (int i = 0; i < HEX; i++) d |= (unsigned char)a[i] ^ (unsigned char)b[i];
    return d;
}

const char *keys_find(const keys *k, str key)
{
    char   hash[HEX + 1];
    size_t found = SIZE_MAX;
    if (!key.n || key.n > KEY_MAX) return NULL;
    hash_key(key, hash);
    for (size_t i = 0; i < keys_count(k); i++) {
        size_t same = (size_t)0 - (difference(k->entry[i].hash, hash) == 0); /* all ones, or none */
        found       = (found & ~same) | (i & same);
    }
    if (found == SIZE_MAX) return NULL;
    return k->entry[found].name[0] ? k->entry[found].name : k->entry[found].hash;
}

str key_of_fields(str authorization, str x_api_key)
{
    static const char scheme[] = "bearer ";
    if (authorization.n < sizeof scheme - 1 || strncasecmp(authorization.s, scheme, sizeof scheme - 1) != 0)
        return x_api_key;
    authorization.s += sizeof scheme - 1;
    authorization.n -= sizeof scheme - 1;
    return next_word(&authorization);
}

/* --- making -------------------------------------------------------------------------------------*/
bool key_make(char key[KEY_MAX], buf *line, const char *name, err *e)
{
    unsigned char bits[32];
    char          hash[HEX + 1], checked[KEY_NAME_MAX + 1] = "";
    if (name && !take_name(checked, str_of(name)))
        return err_set(e, ERR_INPUT, "a key's name has up to %d letters, digits and ._-@", KEY_NAME_MAX);
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return err_set(e, ERR_IO, "cannot get random numbers from the system: %s", strerror(errno));
    int n = snprintf(key, KEY_MAX, "tandem-");
    for (size_t i = 0; i < sizeof bits; i++) n += snprintf(key + n, (size_t)(KEY_MAX - n), "%02x", bits[i]);
    hash_key(str_of(key), hash);
    buf_printf(line, "%s%s%s\n", hash, checked[0] ? " " : "", checked);
    return !line->failed || err_set(e, ERR_UNAVAILABLE, "no memory for a line");
}

/* Returns whether the last line of the file ends with a newline, which some editors omit. */
static bool ends_with_line(int fd)
{
    char  last = '\n';
    off_t end  = lseek(fd, 0, SEEK_END);
    return end <= 0 || pread(fd, &last, 1, end - 1) != 1 || last == '\n';
}

bool key_append(const char *path, str line, err *e)
{
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    bool ok  = (ends_with_line(fd) || write(fd, "\n", 1) == 1) && write(fd, line.s, line.n) == (ssize_t)line.n;
    int  why = errno;
    ok &= close(fd) == 0;
    return ok || err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(why));
}
