/* tests/unit/tok/small.h - small vocabularies made in the tests, and the slow BPE that the fast one is judged by. */
#ifndef TANDEM_TEST_TOK_SMALL_H
#define TANDEM_TEST_TOK_SMALL_H
#include "base/arena.h"
#include "test.h"
#include "tok/vocab.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { TEST_SLOWER = 10 }; /* than plain builds, at most */
#else
enum { TEST_SLOWER = 1 };
#endif

#define SP "\xE2\x96\x81" /* U+2581 */

/* Both mark <|turn> <turn|> <|channel>, print <|channel> and stop at <turn|>. The byte-level one has no bos. */
extern const tok_family small_family, small_bytes_family;

typedef struct {
    vocab_source src;
    arena        mem; /* memory of texts made here */
    tok         *tok; /* after small_build */
    int32_t      first_byte;
} small;

void    small_init(small *s);       /* <pad> <eos> <bos> <unk> <|turn> <turn|> <|channel> and 256 byte tokens */
void    small_init_bytes(small *s); /* NFC, the same markers at 0 to 6, and the byte-level alphabet from 7 on */
void    small_deinit(small *s);
int32_t small_token(small *s, str text, tok_kind_t kind);           /* the next id */
int32_t small_find(const small *s, str text);                       /* the first id of that text, or -1 */
void    small_merge(small *s, const char *left, const char *right); /* and the token that it makes, unless there */
void    small_random(small *s, uint64_t *seed, int n_chars, int n_merges);
void    small_build(test_case *t, small *s);

/* Encodes text as the rule says, one merge after another, each found by reading all pairs. */
void small_reference(const small *s, tok_ids *out, str text);
void small_reference_bytes(const small *s, tok_ids *out, str text); /* after small_init_bytes; text is in NFC */
/* Writes the character that spells a byte in the byte-level alphabet, with a zero at the end. */
void small_spell_byte(char out[8], int byte);
/* A random text of the alphabet's first letters; VALID puts in a character that has no token now and then, ANY also
 * bytes that are not UTF-8. */
enum { TEXT_PURE, TEXT_VALID, TEXT_ANY };
void small_text(buf *out, uint64_t *seed, size_t n_chars, int n_letters, int mode);

void check_ids(test_case *t, const tok_ids *got, const int32_t *want, size_t n, const char *what);
#endif
