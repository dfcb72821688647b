#include "golden_media.h"

const media_set media_sets[4] = {
    {"gemma4-vision", NULL, 0, {"i", "ii", "vvvi"}},
    {"gemma4-vision-ple", "gemma4-vision-ple", 70, {"i", "vv"}},
    {"gemma4-unified", "gemma4-vision", 70, {"i"}},
    {"qwen35-vision", NULL, 0, {"i", "ivvvvi"}},
};

safetensors *media_case_open(test_case *t, const media_set *x)
{
    safetensors *ref = NULL;
    err          e   = {0};
    char         file[256];
    snprintf(file, sizeof file, "tests/golden/%s/golden.safetensors", x->name);
    CHECK_OK(safetensors_open(&ref, test_path(file), &e), e);
    return ref;
}

void media_case_paths(const media_set *x, char model[MEDIA_CASE_PATH], char mmproj[MEDIA_CASE_PATH])
{
    char name[128];
    snprintf(name, sizeof name, "tests/golden/%s", x->model ? x->model : x->name);
    snprintf(model, MEDIA_CASE_PATH, "%s", test_path(name));
    snprintf(name, sizeof name, "tests/golden/%s/mmproj.gguf", x->name);
    snprintf(mmproj, MEDIA_CASE_PATH, "%s", x->model ? test_path(name) : "");
}

const tensor *media_case_find(const safetensors *ref, int n_case, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "case%d.%s", n_case, what);
    return tensor_find(safetensors_tensors(ref), str_of(name));
}

static picture read_picture(test_case *t, const safetensors *ref, int n_case, const patch_rule *r, int i, int n_frames)
{
    char    what[16];
    picture in = {0}, out = {0};
    int     width, height;
    err     e = {0};
    snprintf(what, sizeof what, "rgb%d", i);
    const tensor *x = media_case_find(ref, n_case, what);
    if (!CHECK_MSG(x && x->dim[0] == 3, "%s is missing", what)) return out;
    CHECK_OK(picture_new(&in, (int)x->dim[1], (int)x->dim[2], &e), e);
    memcpy(in.rgb, x->data, x->bytes);
    if (CHECK_OK(patch_target_size(&width, &height, r, in.width, in.height, n_frames, &e), e))
        CHECK_OK(picture_resize(&out, &in, width, height, &e), e);
    picture_free(&in);
    return out;
}

bool media_case_load(test_case *t, media_case *out, const safetensors *ref, const media_set *x, int n_case,
                     const media_rules *rules)
{
    media_rules   r    = *rules;
    const char   *kind = x->kind[n_case];
    const tensor *ids  = media_case_find(ref, n_case, "input_ids");
    media_span    span[MEDIA_CASE_SPANS];
    int           n = 0, n_video = 0, at = 0;
    *out = (media_case){0};
    if (x->budget) r.image.max_cells = x->budget;
    if (!CHECK(ids && ids->n_dims == 1 && ids->dim[0] <= MEDIA_CASE_TOKENS)) return false;
    out->T = (int)ids->dim[0];
    memcpy(out->id, ids->data, ids->bytes);
    for (const char *k = kind; *k; k++) n_video += *k == 'v';
    for (int i = 0; kind[i]; n++) {
        bool              video = kind[i] == 'v';
        const patch_rule *rule  = video ? &r.video : &r.image;
        media_span       *s     = &span[n];
        *s                      = (media_span){.is_video = video};
        for (int f = 0; f < (video ? rule->frames : 1); f++)
            s->frames[f] = read_picture(t, ref, n_case, rule, i++, video ? n_video : 0);
        s->width  = s->frames[0].width;
        s->height = s->frames[0].height;
        s->n      = patch_cells(rule, s->width, s->height);
        while (at < out->T && out->id[at] != (video ? r.video_id : r.image_id)) at++;
        s->first = at;
        at += s->n;
    }
    out->media = media_prompt_new(span, n);
    return CHECK(at <= out->T);
}
