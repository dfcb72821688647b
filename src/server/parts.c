#include "server/parts.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/inside.h"

static const char *text_or_null(const char *s) { return s && *s ? s : NULL; }

static const char *drafter_state_name(const server *s, const tandem_drafter_info *d)
{
    static const char *const names[] = {[TANDEM_DRAFTER_OPEN]   = "loaded",
                                        [TANDEM_DRAFTER_LAZY]   = "lazy",
                                        [TANDEM_DRAFTER_PARKED] = "parked",
                                        [TANDEM_DRAFTER_FAILED] = "failed"};
    return s->engine ? names[d->state] : model_state_names[s->life.state];
}

void parts_list(model_parts *out, const server *s)
{
    const model_life *l = &s->life;
    *out                = (model_parts){0};
    life_info(s, &out->info, out->drafter, &out->n_drafters);
    out->part[0] = (model_part){.role        = "model",
                                .id          = s->opt->model,
                                .path        = out->info.shown,
                                .family      = out->info.family,
                                .fingerprint = text_or_null(out->info.fingerprint),
                                .state       = model_state_names[l->state],
                                .error       = l->state == MODEL_FAILED ? l->why.text : NULL};
    for (int i = 0; i < out->n_drafters; i++) {
        const tandem_drafter_info *d = &out->drafter[i];
        out->part[1 + i]             = (model_part){.role        = "drafter",
                                                    .id          = file_name(d->name),
                                                    .path        = d->shown,
                                                    .family      = tandem_method_name((int)d->method),
                                                    .fingerprint = text_or_null(d->fingerprint),
                                                    .state       = drafter_state_name(s, d),
                                                    .error       = text_or_null(d->problem)};
    }
}

void parts_put_members(json_writer *w, const model_part *p)
{
    json_member_str(w, "id", p->id);
    json_member_str(w, "role", p->role);
    json_member_str(w, "path", p->path);
    json_member_str(w, "family", p->family);
    json_member_str(w, "fingerprint", p->fingerprint);
    json_member_str(w, "state", p->state);
    json_member_str(w, "error", p->error);
}

void parts_put_modalities(json_writer *w, const tandem_info *i)
{
    json_key(w, "input_modalities");
    json_begin_array(w);
    json_put_str(w, STR("text"));
    if (i->has_images) json_put_str(w, STR("image"));
    if (i->has_video) json_put_str(w, STR("video"));
    json_end(w);
}

void parts_log(const server *s)
{
    model_parts all;
    parts_list(&all, s);
    for (int i = 0; i <= all.n_drafters; i++) {
        const model_part *p       = &all.part[i];
        log_field         field[] = {{.name = "id", .kind = LOG_STR, .s = p->id},
                                     {.name = "role", .kind = LOG_STR, .s = p->role},
                                     {.name = "path", .kind = LOG_STR, .s = p->path},
                                     {.name = "family", .kind = LOG_STR, .s = p->family},
                                     {.name = "fingerprint", .kind = LOG_STR, .s = p->fingerprint},
                                     {.name = "state", .kind = LOG_STR, .s = p->state},
                                     {.name = "error", .kind = LOG_STR, .s = p->error}};
        log_fields(p->error ? LOG_WARN : LOG_INFO, "model", field, COUNT(field));
    }
}
