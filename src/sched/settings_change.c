/* Changes settings of a model that is open or parked. */
#include "sched/settings.h"

#include <string.h>

/* Refuses a value that would never take effect. */
static bool check_effect(const settings_owner *of, const settings *now, const setting_info *info, err *e)
{
    bool from_environment = settings_source(now, info) == SETTING_FROM_ENVIRONMENT;
    if (of->file || (!from_environment && (info->live || of->carried))) return true;
    if (from_environment)
        err_set(e, ERR_INPUT, "%s is set by the environment, and there is no settings file", info->name);
    else
        err_set(e, ERR_INPUT, "%s takes effect when the model is next opened, and there is no settings file",
                info->name);
    return err_blame(e, info->name, 0);
}

static bool change_one(const settings_owner *of, settings *s, const json_member *m, uint64_t *names, err *e)
{
    const setting_info *info = setting_find(m->key);
    if (!info) return err_set(e, ERR_INPUT, "there is no setting '%.*s'", m->key.n < 80 ? (int)m->key.n : 80, m->key.s);
    bool gone = m->value.kind == JSON_NULL;
    if (!check_effect(of, s, info, e) ||
        !(gone ? settings_set_text(s, info, str_of(info->default_text), e) : settings_set(s, info, &m->value, e)))
        return false;
    *names |= settings_bit(info);
    if (settings_source(s, info) == SETTING_FROM_ENVIRONMENT) return true;
    settings_note(s, info, of->file && !gone ? SETTING_FROM_FILE : SETTING_FROM_API);
    s->changed |= settings_bit(info);
    if (!info->live) s->pending |= settings_bit(info);
    return true;
}

static bool change_all(const settings_owner *of, settings *s, const json_value *members, uint64_t *names, err *e)
{
    for (size_t i = 0; i < members->n; i++)
        if (!change_one(of, s, &members->member[i], names, e)) return false;
    return true;
}

bool settings_change(settings *s, const settings_owner *of, const json_value *members, uint64_t *names, err *e)
{
    settings now = *s, without_env = *s; /* without_env: checks the values that the environment overrides */
    uint64_t changed = 0;
    memset(without_env.source, SETTING_FROM_DEFAULT, sizeof without_env.source);
    if (members->kind != JSON_OBJECT) return err_set(e, ERR_INPUT, "settings must be an object of names and values");
    if (!change_all(of, &now, members, &changed, e) || !change_all(of, &without_env, members, &changed, e) ||
        !settings_check(&without_env, e) || !settings_check_device(&without_env, of->device, e) ||
        (of->file && !settings_file_put(of->file, str_of(of->model), members, e)))
        return false;
    *s = now;
    if (names) *names = changed;
    return true;
}
