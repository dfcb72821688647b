/* Any bytes as a tokenizer.json of either scheme; one that loads is also used. */
#include "chat/gemma4_inside.h"
#include "chat/qwen35_inside.h"
#include "tok/inside.h"
#include "tok/vocab.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const tok *t, bool markers)
{
    static const char text[] = "The <bos>answer <|turn>is <0x41> aabbab\n\n\t \xE2\x96\x81\xFF\xE4\xB8\xAD.";
    tok_ids           ids;
    buf               out;
    err               e;
    tok_ids_init(&ids, 1000);
    buf_init(&out, (size_t)100 << 20);
    bool ok = tok_encode(t, &ids, STR("aab\n abc"), markers, &e);
    ok      = tok_encode(t, &ids, (str){text, sizeof text}, markers, &e) && ok;
    for (size_t i = 0; i < ids.n; i++) {
        tok_kind_t kind  = tok_kind(t, ids.p[i]);
        bool       plain = kind == TOK_NORMAL || kind == TOK_BYTE || ids.p[i] == tok_unk(t);
        if (ids.p[i] < 0 || ids.p[i] >= tok_size(t) || (!markers && !plain)) {
            fprintf(stderr, "id %d of kind %d\n", ids.p[i], kind);
            abort();
        }
    }
    if (!ok && e.code != ERR_FORMAT) abort();
    tok_decode(t, ids.p, ids.n, markers, &out);
    tok_ids_clear(&ids);
    tok_stop_ids(t, &ids);
    tok_ids_deinit(&ids);
    buf_deinit(&out);
}

static void load(str text, const tok_family *f)
{
    tok *t;
    err  e = {0};
    if (tok_from_json_bytes(&t, text, f, &e)) {
        use(t, false);
        use(t, true);
    } else if (t || e.code == ERR_NONE || !e.text[0]) {
        abort();
    }
    tok_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    load((str){(const char *)data, size}, &gemma4_tokens);
    load((str){(const char *)data, size}, &qwen35_tokens);
    return 0;
}
