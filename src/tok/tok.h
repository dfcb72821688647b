/* tok/tok.h - converts text to token ids and back, by byte-pair encoding (BPE) of one of two schemes.
 *
 * TOK_SPACED: spaces become U+2581 and every character becomes its token. A character without a token, and a byte that
 * is not UTF-8, becomes byte tokens <0xHH>, or the unknown token for each byte that has no byte token. Nothing is split
 * into words first.
 * TOK_BYTE_LEVEL: the text is normalised to NFC if the file says so, and cut into words (unicode.h). Every byte of a
 * word becomes its token. Files spell bytes in an alphabet of 256 printable characters (vocab.h).
 *
 * In both, the adjacent pair whose merge ranks lowest is then joined (the leftmost of equals) until no pair has a
 * merge. No merge crosses the end of a word.
 *
 * Added tokens are found in the text before that, the leftmost first and the longest of several; no merge crosses one.
 * The file's flags divide them into two kinds:
 *   - user-defined tokens (<table>, runs of newlines, <unused7>) are part of the language and are found in every text;
 *   - markers are the control tokens (<bos>, <turn>), the unknown token, and those user-defined tokens that the model
 *     family lists as its own (<call>). They are found only with parse_special; without it their text is encoded as
 *     plain characters. No merge gives a marker.
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
    TOK_MAX_STOPS      = 64,      /* stop tokens */
};
#define TOK_MAX_INPUT ((size_t)32 << 20) /* bytes of one tok_encode */

typedef enum { /* the values are GGUF's */
               TOK_NORMAL  = 1,
               TOK_UNKNOWN = 2, /* stands for text without a token; printed as TOK_CONTROL */
               TOK_CONTROL = 3, /* printed only with show_control */
               TOK_USER    = 4, /* in a file: a user-defined token. From tok_kind: a marker that is always printed;
                                 * other user-defined tokens are TOK_NORMAL there */
               TOK_UNUSED  = 5, /* never printed; also ids without a token */
               TOK_BYTE    = 6, /* <0xHH>: one byte */
} tok_kind_t;

typedef struct tok tok;

/* The tokens by which a model family structures its responses, and how it writes a tool call:
 *
 *     thought_open REASONING thought_close CONTENT turn_close
 *     call_open call_prefix NAME {key:VALUE,...} call_close
 *
 * In a call, keys are bare and strings are between two `quote` tokens. A family without `quote` and call_prefix writes
 * calls as tags or as JSON (grammar/tagged.c). Each member is the text of a token, except
 * call_prefix, which is plain text. NULL: the family has no such token. */
typedef struct {
    const char *turn_close;
    const char *thought_open, *thought_close;
    const char *call_open, *call_prefix, *call_close, *quote;
} tok_markup;

typedef enum { TOK_SPACED, TOK_BYTE_LEVEL } tok_scheme;

/* The part of a model family that the tokenizer needs. Files flag tokens, but do not list the tokens that a chat is
 * made of. Members are texts of tokens; NULL: none. Lists end with NULL. A name that the vocabulary lacks is
 * ignored. */
typedef struct {
    tok_scheme         scheme;
    const char        *gguf_model;            /* the only tokenizer.ggml.model that is accepted; NULL: any */
    const char        *gguf_pre;              /* the same for tokenizer.ggml.pre; NULL: the key is ignored */
    const char        *bos, *eos, *pad, *unk; /* used when the file names none */
    const char *const *markers;               /* user-defined tokens of the file that are markers */
    const char *const *printed;               /* control tokens of the file that decoding always prints, because the
                                               * parser of responses needs them; list them in `markers` too */
    const char *const *stops;                 /* markers where generation ends, in addition to eos */
    const tok_markup  *markup;                /* NULL: none */
    bool               no_bos;                /* a sequence starts without bos, even if the file names one */
} tok_family;

/* --- loading ----------------------------------------------------------------------------------- */
/* Read tokenizer.ggml.* of a GGUF file (ERR_NOT_FOUND when it has none); a tokenizer.json, and from a
 * tokenizer_config.json in the same directory the names of bos and eos. A tokenizer.json is read as the first family of
 * a list that has its scheme; the list ends with NULL. f may be NULL: no family. The tok keeps f->markup, f->gguf_model
 * and f->gguf_pre, which must outlive it. On failure *out is NULL. */
bool tok_from_gguf(tok **out, const gguf *g, const tok_family *f, err *e);
bool tok_from_json_any(tok **out, const char *path, const tok_family *const *list, err *e);
void tok_free(tok *t); /* t may be NULL */

/* --- the vocabulary ---------------------------------------------------------------------------- */
/* Strings are valid until tok_free. */
int32_t    tok_size(const tok *t);                    /* ids are 0 to tok_size - 1 */
str        tok_text(const tok *t, int32_t id);        /* as the file spells it; empty out of range */
str        tok_bytes(const tok *t, int32_t id);       /* the bytes it decodes to: for U+2581 a space, for <0x41> 'A' */
tok_kind_t tok_kind(const tok *t, int32_t id);        /* TOK_UNUSED out of range */
tok_kind_t tok_listed_kind(const tok *t, int32_t id); /* for writing files: every user-defined token is TOK_USER */
int32_t    tok_find(const tok *t, str text);          /* the lowest id with this tok_text; -1 when absent or empty */
int32_t    tok_bos(const tok *t);                     /* -1 when absent, here and below */
int32_t    tok_eos(const tok *t);
int32_t    tok_pad(const tok *t);
int32_t    tok_unk(const tok *t);
/* Return the family's gguf_model and gguf_pre, for writing files; NULL: the family has none. */
const char *tok_gguf_model(const tok *t);
const char *tok_gguf_pre(const tok *t);
/* Returns whether texts are normalised to NFC. */
bool tok_normalizes(const tok *t);
/* Returns the family's markup, never NULL; its members are NULL where the family has none. */
const tok_markup *tok_markup_of(const tok *t);
/* Returns the id of the token with this text, of any kind; -1 when name is NULL or the vocabulary lacks it. */
int32_t tok_find_marker(const tok *t, const char *name);
/* Returns whether a sequence must start with tok_bos: true for every vocabulary that has one, whatever the file says; a
 * vocabulary of a family with no_bos has none. tok_encode does not add it. */
bool tok_add_bos(const tok *t);

/* --- ids --------------------------------------------------------------------------------------- */
/* A growing array with a maximum size. As with buf, a put that does not fit or finds no memory sets `failed` and
 * returns false, and all later puts fail. */
typedef struct {
    int32_t *p;           /* NULL while nothing was put; moves when the array grows */
    size_t   n, cap, max; /* ids in use, allocated, maximum */
    bool     failed;
} tok_ids;

void tok_ids_init(tok_ids *ids, size_t max);
void tok_ids_deinit(tok_ids *ids); /* frees the memory; call tok_ids_init before further puts */
void tok_ids_clear(tok_ids *ids);  /* empties it and clears `failed`; keeps the memory */
bool tok_ids_put(tok_ids *ids, int32_t id);
bool tok_ids_put_n(tok_ids *ids, const int32_t *id, size_t n); /* on failure a part may have been added */

/* Appends the ids where generation ends, ascending, without duplicates: the file's eos, eot and eom, and the family's
 * stops. The model's own configuration may name more. */
void tok_stop_ids(const tok *t, tok_ids *out);

/* --- encoding ---------------------------------------------------------------------------------- */
/* Appends the ids of text, without bos; parse_special also finds markers. On failure `out` has the ids that it had
 * before. ERR_TOO_LARGE: the text is longer than TOK_MAX_INPUT, or `out` is full. ERR_FORMAT: the vocabulary has no
 * token for a byte of the text. */
bool tok_encode(const tok *t, tok_ids *out, str text, bool parse_special, err *e);

/* --- decoding ---------------------------------------------------------------------------------- */
/* Decodes one id at a time. Text comes out as soon as its characters are complete, and is always UTF-8: each maximal
 * part of a character that is never completed, and each byte that cannot start one, becomes one U+FFFD. So the text
 * depends on the ids alone, not on when they arrive. A marker, printed or not, ends an unfinished character. */
typedef struct {
    const tok *tok;          /* borrowed */
    bool       show_control; /* also print control tokens and the unknown token */
    size_t     n_held;
    char       held[4]; /* the start of a character, at most 3 bytes between calls */
} tok_stream;           /* nothing to free */

/* The functions append to out; whether there was room is in out->failed. */
void tok_stream_init(tok_stream *s, const tok *t, bool show_control);
void tok_stream_put(tok_stream *s, int32_t id, buf *out); /* an id out of range prints nothing */
void tok_stream_finish(tok_stream *s, buf *out);          /* writes U+FFFD for held bytes; the stream may be reused */
/* Decodes n ids at once. */
void tok_decode(const tok *t, const int32_t *id, size_t n, bool show_control, buf *out);
#endif
