/* Prompts with pictures and videos: their tokens, time stamps and spans. */
#include "base/fault.h"
#include "base/mem.h"
#include "chat/gemma4_inside.h"
#include "chat/qwen35_inside.h"
#include "test.h"
#include "tok/inside.h"
#include "tok/small.h"
#include "unit/media/rules.h"

/* --- models ---------------------------------------------------------------------------------------*/
enum { TURN = 15, BEGIN = 17, END = 18, IMAGE = 19, VIDEO = 20 }; /* of the demo vocabulary */

static tok *open_demo(test_case *t)
{
    tok *tk = NULL;
    err  e;
    CHECK_OK(tok_from_json(&tk, test_path("tests/golden/demo/tokenizer.json"), &gemma4_tokens, &e), e);
    return tk;
}

static media_rules clock_rules(void)
{
    return (media_rules){.image    = rule_rows(70),
                         .video    = rule_rows(70),
                         .frames   = {.max_frames = 32, .stamp = FRAME_STAMP_CLOCK},
                         .image_id = IMAGE,
                         .video_id = VIDEO,
                         .begin_id = BEGIN,
                         .end_id   = END};
}

enum { ID_BEGIN = 300, ID_END, ID_IMAGE, ID_VIDEO, ID_SEAM = 256 }; /* ID_SEAM: "?<" */

/* A byte-level vocabulary with one merge, of a question mark and the first character of a time stamp. */
static tok *open_bytes(test_case *t)
{
    tok *tk = NULL;
    buf  b;
    err  e;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"added_tokens\":[");
    static const char *const names[] = {"<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
                                        "<|im_start|>",     "<|im_end|>",     "<think>",       "</think>"};
    for (size_t i = 0; i < COUNT(names); i++)
        buf_printf(&b, "%s{\"id\":%zu,\"content\":\"%s\",\"special\":true}", i ? "," : "", ID_BEGIN + i, names[i]);
    buf_puts(&b,
             "],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
             "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| "
             "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
             "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
             "\"trim_offsets\":false,\"use_regex\":false}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":false,"
             "\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        char text[8];
        small_spell_byte(text, i);
        buf_printf(&b, "\"%s%s\":%d,", *text == '"' || *text == '\\' ? "\\" : "", text, i);
    }
    buf_printf(&b, "\"?<\":%d},\"merges\":[[\"?\",\"<\"]]}}", ID_SEAM);
    CHECK_OK(tok_from_json_bytes(&tk, buf_str(&b), &qwen35_tokens, &e), e);
    buf_deinit(&b);
    return tk;
}

static media_rules seconds_rules(void)
{
    return (media_rules){.image  = rule_cells(),
                         .video  = rule_cells(),
                         .frames = {.per_second = 2, .min_frames = 4, .max_frames = 768, .stamp = FRAME_STAMP_SECONDS},
                         .image_id = ID_IMAGE,
                         .video_id = ID_VIDEO,
                         .begin_id = ID_BEGIN,
                         .end_id   = ID_END};
}

/* --- pixels ---------------------------------------------------------------------------------------*/
/* Frames of one size, each of one color, at the given times. */
static void paint(test_case *t, decoded *out, int n, int width, int height, const double *seconds)
{
    err e;
    *out         = (decoded){.n = n, .source_width = width, .source_height = height};
    out->frames  = xnew_n(picture, (size_t)n);
    out->seconds = xnew_n(double, (size_t)n);
    for (int i = 0; i < n; i++) {
        CHECK_OK(picture_new(&out->frames[i], width, height, &e), e);
        memset(out->frames[i].rgb, 10 + i, picture_bytes(&out->frames[i]));
        out->seconds[i] = seconds ? seconds[i] : 0;
    }
}

/* Renders a user's message of these parts and compares the ids with those of `want`, a text with markers. */
static void check_ids_of(test_case *t, chat_prompt *p, const tok *tk, const chat_options *o, chat_part *parts, size_t n,
                         const char *want)
{
    arena   mem;
    tok_ids ids;
    err     e;
    arena_init(&mem, 1 << 20);
    tok_ids_init(&ids, 1 << 16);
    chat *c                                   = chat_new(&mem);
    chat_add(c, CHAT_USER, (str){0})->content = (chat_content){.kind = CHAT_PARTS, .part = parts, .n_parts = n};
    CHECK_OK(chat_render_ids(p, tk, c, o, &e), e);
    CHECK_OK(tok_encode(tk, &ids, str_of(want), true, &e), e);
    CHECK_INT(p->ids.n, ids.n);
    for (size_t i = 0; i < ids.n && i < p->ids.n; i++)
        if (!CHECK(p->ids.p[i] == ids.p[i])) break;
    CHECK_INT(p->n_media, 0);
    tok_ids_deinit(&ids);
    arena_deinit(&mem);
}

static void check_span(test_case *t, const chat_prompt *p, size_t i, int32_t id, int n, int from)
{
    if (!CHECK(i < p->n_spans)) return;
    const media_span *s = &p->span[i];
    CHECK_INT(s->n, n);
    for (int32_t k = 0; k < s->n; k++) CHECK_INT(p->ids.p[s->first + k], id);
    CHECK(p->ids.p[s->first - 1] != id && p->ids.p[s->first + s->n] != id);
    CHECK_INT(s->frames[0].rgb[0], from);
}

#define I3 "<|image|><|image|><|image|>"
#define V2 "<|video|><|video|>"
#define TEXT(s)                                                                                                        \
    {                                                                                                                  \
        .kind = CHAT_TEXT, .text = { s, sizeof(s) - 1 }                                                                \
    }

TEST(chat_pictures_become_runs_of_tokens)
{
    tok         *tk    = open_demo(t);
    media_rules  rules = clock_rules();
    chat_options o     = {.format = &gemma4_format, .media = &rules};
    decoded      wide, tall;
    chat_prompt  p;
    if (!tk) return;
    paint(t, &wide, 1, 144, 48, NULL);
    paint(t, &tall, 1, 48, 48, NULL);
    memset(tall.frames->rgb, 99, picture_bytes(tall.frames));
    chat_part parts[] = {
        TEXT("see"), {.kind = CHAT_IMAGE, .pixels = &wide}, {.kind = CHAT_IMAGE, .pixels = &tall}, TEXT("well?")};
    chat_prompt_init(&p, 1 << 16);
    check_ids_of(t, &p, tk, &o, parts, COUNT(parts),
                 "<bos><|turn>user\nsee\n\n<|image>" I3 "<image|>\n\n\n\n<|image><|image|><image|>\n\nwell?<turn|>\n");
    CHECK_INT(p.n_spans, 2);
    check_span(t, &p, 0, IMAGE, 3, 10);
    check_span(t, &p, 1, IMAGE, 1, 99);
    CHECK(!p.span[0].is_video && p.span[0].width == 144 && p.span[0].height == 48 && !p.span[0].frames[1].rgb);
    /* exact ids: <|turn> u s e r ..., then the run */
    CHECK_INT(p.ids.p[1], TURN);
    CHECK_INT(p.ids.p[p.span[0].first - 1], BEGIN);
    CHECK_INT(p.ids.p[p.span[0].first + 3], END);
    chat_prompt_deinit(&p);
    CHECK(!p.span && !p.n_spans);
    decoded_free(&wide);
    decoded_free(&tall);
    tok_free(tk);
}

/* MM:SS and a space before each frame, and a space after the frame before. */
TEST(chat_videos_become_frames_with_clock_stamps)
{
    static const double at[]  = {0.0, 59.99, 61.5, 6000};
    tok                *tk    = open_demo(t);
    media_rules         rules = clock_rules();
    chat_options        o     = {.format = &gemma4_format, .revision = GEMMA4_GOOGLE_0410, .media = &rules};
    decoded             d;
    chat_prompt         p;
    if (!tk) return;
    paint(t, &d, 4, 96, 48, at);
    chat_part parts[] = {TEXT("clip"), {.kind = CHAT_VIDEO, .pixels = &d}, TEXT("so?")};
    chat_prompt_init(&p, 1 << 16);
    check_ids_of(t, &p, tk, &o, parts, COUNT(parts),
                 "<bos><|turn>user\nclip00:00 <|image>" V2 "<image|> 00:59 <|image>" V2 "<image|> 01:01 <|image>" V2
                 "<image|> 100:00 <|image>" V2 "<image|>so?<turn|>\n");
    CHECK_INT(p.n_spans, 4);
    for (int i = 0; i < 4; i++) {
        check_span(t, &p, (size_t)i, VIDEO, 2, 10 + i);
        CHECK(p.span[i].is_video && !p.span[i].frames[1].rgb);
    }
    chat_prompt_deinit(&p);
    decoded_free(&d);
    tok_free(tk);
}

#define Q_TURN(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define STEP         "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"

/* The template encloses its placeholder: a picture keeps that, the steps of a video replace it or stand inside. */
TEST(chat_videos_become_steps_with_second_stamps)
{
    static const double at[]  = {0, 0.5, 1.0, 1.5, 2.25};
    tok                *tk    = open_bytes(t);
    media_rules         rules = seconds_rules();
    chat_options        o     = {.format = &qwen35_format, .media = &rules};
    decoded             d, still;
    chat_prompt         p;
    if (!tk) return;
    paint(t, &d, 5, 64, 32, at);
    paint(t, &still, 1, 64, 64, NULL);
    chat_part parts[] = {
        TEXT("why?"), {.kind = CHAT_VIDEO, .pixels = &d}, {.kind = CHAT_IMAGE, .pixels = &still}, TEXT("end")};
    chat_prompt_init(&p, 1 << 16);
    for (int outer = 0; outer < 2; outer++) {
        rules.keeps_outer = outer;
        check_ids_of(t, &p, tk, &o, parts, COUNT(parts),
                     outer ? Q_TURN("why?<|vision_start|><0.2 seconds>" STEP "<1.2 seconds>" STEP "<2.2 seconds>" STEP
                                    "<|vision_end|><|vision_start|><|image_pad|><|image_pad|><|image_pad|><|image_pad|>"
                                    "<|vision_end|>end")
                           : Q_TURN("why?<0.2 seconds>" STEP "<1.2 seconds>" STEP "<2.2 seconds>" STEP
                                    "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|image_pad|>"
                                    "<|vision_end|>end"));
        bool seam = false; /* the stamp is encoded together with the text before it */
        for (size_t i = 0; i < p.ids.n; i++) seam |= p.ids.p[i] == ID_SEAM;
        CHECK(seam == !outer);
        if (!CHECK(p.n_spans == 4)) break;
        for (int i = 0; i < 3; i++) check_span(t, &p, (size_t)i, ID_VIDEO, 2, 10 + 2 * i);
        check_span(t, &p, 3, ID_IMAGE, 4, 10);
        CHECK_INT(p.span[0].frames[1].rgb[0], 11);
        CHECK_INT(p.span[2].frames[1].rgb[0], 14); /* the last frame again */
        CHECK(!p.span[3].frames[1].rgb);
    }
    chat_prompt_deinit(&p);
    decoded_free(&d);
    decoded_free(&still);
    tok_free(tk);
}

TEST(chat_prompt_pictures_copies_the_pixels)
{
    static const double at[]  = {0, 1, 2};
    tok                *tk    = open_bytes(t);
    media_rules         rules = seconds_rules();
    chat_options        o     = {.format = &qwen35_format, .media = &rules};
    decoded             d;
    chat_prompt         p;
    media_prompt       *m = NULL;
    arena               mem;
    err                 e;
    if (!tk) return;
    paint(t, &d, 3, 64, 32, at);
    chat_part part = {.kind = CHAT_VIDEO, .pixels = &d};
    arena_init(&mem, 1 << 20);
    chat_prompt_init(&p, 1 << 16);
    CHECK_OK(chat_prompt_pictures(&p, &m, &e), e);
    CHECK(!m);
    chat *c                                   = chat_new(&mem);
    chat_add(c, CHAT_USER, (str){0})->content = (chat_content){.kind = CHAT_PARTS, .part = &part, .n_parts = 1};
    CHECK_OK(chat_render_ids(&p, tk, c, &o, &e), e);
    for (long n = 1; n < 20; n++) { /* each allocation fails in turn */
        fault_fail_nth(n);
        bool ok    = chat_prompt_pictures(&p, &m, &e);
        long tries = fault_tries();
        fault_fail_nth(0);
        CHECK(ok == (tries < n) && ok == (m != NULL));
        if (ok) break;
    }
    decoded_free(&d);
    if (CHECK(media_prompt_spans(m) == 2)) {
        CHECK_INT(media_prompt_span(m, 0)->frames[1].rgb[0], 11);
        CHECK_INT(media_prompt_span(m, 1)->frames[0].rgb[5], 12);
        CHECK(media_prompt_span(m, 1)->frames[0].rgb != media_prompt_span(m, 1)->frames[1].rgb);
    }
    media_prompt_drop(m);
    chat_prompt_deinit(&p);
    arena_deinit(&mem);
    tok_free(tk);
}

/* The limit of a prompt holds for soft tokens too. */
TEST(chat_pictures_count_towards_the_limit_of_a_prompt)
{
    tok         *tk    = open_demo(t);
    media_rules  rules = clock_rules();
    chat_options o     = {.format = &gemma4_format, .media = &rules};
    decoded      d;
    chat_prompt  p;
    arena        mem;
    err          e;
    if (!tk) return;
    paint(t, &d, 1, 48 * 20, 48 * 10, NULL);
    chat_part part = {.kind = CHAT_IMAGE, .pixels = &d};
    arena_init(&mem, 1 << 20);
    chat_prompt_init(&p, 100);
    chat *c                                   = chat_new(&mem);
    chat_add(c, CHAT_USER, (str){0})->content = (chat_content){.kind = CHAT_PARTS, .part = &part, .n_parts = 1};
    CHECK_FAILS(chat_render_ids(&p, tk, c, &o, &e), e, "the prompt has more than 100 tokens");
    CHECK_INT(e.code, ERR_TOO_LARGE);
    chat_prompt_deinit(&p);
    arena_deinit(&mem);
    decoded_free(&d);
    tok_free(tk);
}
