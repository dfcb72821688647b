/* tok/tok.h - converts text to token ids and back: BPE with byte fallback, spaces kept as U+2581.
 *
 * Encoding: spaces become U+2581, every character becomes its token, then the adjacent pair whose merge ranks
 * lowest is joined (the leftmost of equals) until no pair has a merge. Nothing is split into words first.
 * A character without a token, and a byte that is not UTF-8, becomes byte tokens <0xHH>.
 *
 * Added tokens are found in the text before that, the leftmost first and the longest of several; no merge crosses one.
 * The file's flags sort them:
 *   - user-defined tokens (<table>, runs of newlines, <unused7>) are part of the language and are found in every text;
 *   - markers are the control tokens (<bos>, <turn>) and those user-defined tokens that the model family lists as its
 *     own (<call>). They are found only with parse_special; without it no text gives one, nor does a merge.
 * Byte tokens written out in a text ("<0x41>") are plain characters in either case.
 *
 * A tok does not change after it is made: any number of threads may use it. */
#ifndef TANDEM_TOK_TOK_H
#define TANDEM_TOK_TOK_H
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "gguf/gguf.h"

enum {
    TOK_MAX_TOKENS     = 1 << 20,
    TOK_MAX_MERGES     = 1 << 22,
    TOK_MAX_TEXT_BYTES = 1 << 16, /* bytes of one token */
    TOK_MAX_ADDED      = 1024,    /* bytes of an added token: a search at one place of a text reads no more */
    TOK_MAX_STOPS      = 64,
};
#define TOK_MAX_INPUT ((size_t)32 << 20) /* bytes of one tok_encode */

typedef enum { /* the values are GGUF's */
               TOK_NORMAL  = 1,
               TOK_UNKNOWN = 2,
               TOK_CONTROL = 3, /* printed only when asked */
               TOK_USER    = 4, /* in a file: a user-defined token. From tok_kind: a marker that is always printed;
                                 * other user-defined tokens are TOK_NORMAL there */
               TOK_UNUSED  = 5, /* also the holes of a vocabulary */
               TOK_BYTE    = 6,
} tok_kind_t;

typedef struct tok tok;

/* The tokens by which a model family structures its answers, and how it writes a tool call:
 *
 *     thought_open REASONING thought_close CONTENT turn_close
 *     call_open call_prefix NAME {key:VALUE,...} call_close
 *
 * In a call keys are bare and strings stand between two `quote` tokens. Strings are the texts of tokens, except
 * call_prefix, which is plain text. NULL: the family has no such token. */
typedef struct {
    const char *turn_close;
    const char *thought_open, *thought_close;
    const char *call_open, *call_prefix, *call_close, *quote;
} tok_markup;

/* The part of a model family that the tokenizer needs. Files flag tokens, but do not list the tokens that a chat is
 * made of. Lists end with NULL. A name counts only where the file has an added token of that text. */
typedef struct {
    const char        *gguf_model;            /* the only tokenizer.ggml.model that is read; NULL: any */
    const char        *bos, *eos, *pad, *unk; /* used when the file names none */
    const char *const *markers;               /* never made from plain text, whatever the file's flags say */
    const char *const *printed;               /* markers that decoding always prints: a parser of answers needs them */
    const char *const *stops;                 /* where generation ends, in addition to eos */
    const tok_markup  *markup;                /* kept by the tok; NULL: none */
} tok_family;

/* --- loading ----------------------------------------------------------------------------------- */
/* Reads tokenizer.ggml.*; ERR_NOT_FOUND when the file has none. The tok keeps f->markup and nothing else of the
 * family. */
bool tok_from_gguf(tok **out, const gguf *g, const tok_family *f, err *e);
/* Reads a tokenizer.json; the names of bos and eos also from a tokenizer_config.json in the same directory. */
bool tok_from_json(tok **out, const char *path, const tok_family *f, err *e);
bool tok_from_json_bytes(tok **out, str text, const tok_family *f, err *e);
void tok_free(tok *t); /* NULL is fine */

/* --- the vocabulary ---------------------------------------------------------------------------- */
int32_t    tok_size(const tok *t);
str        tok_text(const tok *t, int32_t id);        /* as the file spells it, with U+2581; empty out of range */
str        tok_bytes(const tok *t, int32_t id);       /* the bytes it decodes to: U+2581 is a space, <0x41> is 'A' */
tok_kind_t tok_kind(const tok *t, int32_t id);        /* TOK_UNUSED out of range */
tok_kind_t tok_listed_kind(const tok *t, int32_t id); /* as files list it: every user-defined token is TOK_USER */
int32_t    tok_find(const tok *t, str text);          /* by tok_text, the lowest id; -1 when absent */
int32_t    tok_bos(const tok *t);                     /* -1 when absent, here and below */
int32_t    tok_eos(const tok *t);
int32_t    tok_pad(const tok *t);
int32_t    tok_unk(const tok *t);
/* Returns the family's markup; its members are NULL where the family has none. */
const tok_markup *tok_markup_of(const tok *t);
/* Returns the id of the token with this text, -1 when name is NULL or the vocabulary lacks it. */
int32_t tok_find_marker(const tok *t, const char *name);
/* Returns whether a sequence starts with tok_bos: true for every vocabulary that has one, whatever the file says.
 * tok_encode does not add it. */
bool tok_add_bos(const tok *t);

/* --- ids --------------------------------------------------------------------------------------- */
/* A growing array with a maximum size. As with buf, a put that does not fit sets `failed`. */
typedef struct {
    int32_t *p;
    size_t   n, cap, max;
    bool     failed;
} tok_ids;

void tok_ids_init(tok_ids *ids, size_t max);
void tok_ids_deinit(tok_ids *ids);
void tok_ids_clear(tok_ids *ids); /* keeps the memory, forgets `failed` */
bool tok_ids_put(tok_ids *ids, int32_t id);
bool tok_ids_put_n(tok_ids *ids, const int32_t *id, size_t n);

/* Appends the ids where generation ends, ascending: the file's eos, eot and eom, and the family's stops. The model's
 * own configuration may name more. */
void tok_stop_ids(const tok *t, tok_ids *out);

/* --- encoding ---------------------------------------------------------------------------------- */
/* Appends the ids of text; parse_special also finds markers. On failure `out` keeps what it had before. */
bool tok_encode(const tok *t, tok_ids *out, str text, bool parse_special, err *e);

/* --- decoding ---------------------------------------------------------------------------------- */
/* Decodes one id at a time. Text comes out as soon as its characters are complete, and is always UTF-8: each maximal
 * part of a character that is never completed, and each byte that cannot start one, becomes one U+FFFD. So the text
 * depends on the ids alone, not on when they arrive. A marker, printed or not, ends an unfinished character. */
typedef struct {
    const tok *tok;
    bool       show_control;
    size_t     n_held;
    char       held[4]; /* the start of a character, at most 3 bytes */
} tok_stream;

void tok_stream_init(tok_stream *s, const tok *t, bool show_control);
void tok_stream_put(tok_stream *s, int32_t id, buf *out); /* appends; an id out of range prints nothing */
void tok_stream_finish(tok_stream *s, buf *out);          /* writes U+FFFD for held bytes; the stream may be reused */
/* Decodes all ids at once. */
void tok_decode(const tok *t, const int32_t *id, size_t n, bool show_control, buf *out);
#endif
