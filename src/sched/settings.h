/* sched/settings.h - the settings of a model: one table, their values, and the file that keeps them.
 *
 * Names are those of other engines; docs/routing.md lists them and the differences. A value comes from the environment,
 * else from a change while the program runs, else from the options, else from the settings file, else it is the
 * default. Zero is a value like any other. Numbers that may be unlimited have a word for it ("auto", "none"), which
 * null means, too.
 *
 * The file is one JSON object for all models, replaced as a whole:
 *
 *     {"models": {"MODEL ID": {"dflash_max_concurrent": 4, ...}, ...}}
 *
 * Unknown members are kept and logged once. A file that cannot be read is never overwritten. */
#ifndef TANDEM_SCHED_SETTINGS_H
#define TANDEM_SCHED_SETTINGS_H
#include "gguf/quant.h"
#include "json/json.h"

enum {
    SETTING_UNLIMITED = -1, /* "auto", "none" */
    SETTING_TEXT_MAX  = 1024,
    SETTINGS_MAX      = 64
};

/* The origin of a value. The environment's cannot be changed. */
typedef enum {
    SETTING_FROM_DEFAULT,
    SETTING_FROM_FILE,
    SETTING_FROM_OPTIONS, /* tandem_options.settings */
    SETTING_FROM_API,     /* changed while the program runs, without a file; with one, reset to the default */
    SETTING_FROM_ENVIRONMENT,
} setting_source;

typedef struct {
    bool     dflash_enabled;
    int64_t  dflash_max_concurrent; /* or SETTING_UNLIMITED, as all that may be "none" or "auto" */
    bool     dflash_lazy_drafter;
    double   dflash_kv_pressure_threshold;
    int64_t  dflash_max_ctx;
    char     dflash_draft_model[SETTING_TEXT_MAX], mtp_draft_model[SETTING_TEXT_MAX];
    bool     dflash_draft_quant_enabled;
    int64_t  dflash_draft_quant_weight_bits, dflash_draft_quant_activation_bits, dflash_draft_quant_group_size;
    int64_t  default_max_tokens;
    double   kv_cap;
    int64_t  max_mask_ms, max_stall_ms, queue_max, queue_timeout_ms, request_timeout_ms;
    int64_t  max_lanes_per_key, max_queue_per_key;
    bool     routing_log;
    int64_t  routing_log_max_bytes, routing_log_files;
    uint8_t  source[SETTINGS_MAX]; /* setting_source of setting_table[i] */
    uint64_t changed;              /* bit i: changed since the program started */
    uint64_t pending; /* bit i: changed since the model was opened, and takes effect when it is opened again */
} settings;

typedef enum { SETTING_BOOL, SETTING_INT, SETTING_REAL, SETTING_TEXT } setting_kind;
typedef struct {
    const char  *name;
    setting_kind kind;
    size_t       at; /* offset in settings */
    double       min, max;
    const char  *word; /* used instead of a number; NULL: none */
    const char  *default_text;
    const char  *variable; /* environment variable; NULL: none */
    bool         live;     /* takes effect at once; false: when the model is opened again */
    const char  *help;
} setting_info;
extern const setting_info setting_table[];
extern const int          n_settings;
const setting_info       *setting_find(str name); /* NULL: unknown name */

void settings_init(settings *s); /* sets the defaults */
/* Sets one value, from JSON or from text. A value of the environment is checked and stays. ERR_INPUT names the field.
 */
bool       settings_set(settings *s, const setting_info *info, const json_value *v, err *e);
bool       settings_set_text(settings *s, const setting_info *info, str text, err *e);
json_value settings_value(const setting_info *info, str text); /* parses the text, which is borrowed */
/* Sets all members of an object, or none. Adds the number of unknown names to *unknown. */
bool settings_set_all(settings *s, const json_value *object, int *unknown, err *e);
/* Reads DFLASH_MAX_CTX, DFLASH_METRIC_DISABLE and DFLASH_METRIC_MAX_SIZE. Called once when a model is opened. */
bool           settings_take_environment(settings *s, err *e);
uint64_t       settings_bit(const setting_info *info); /* the bit of `changed` and `pending`, and in sets of names */
setting_source settings_source(const settings *s, const setting_info *info);
void           settings_note(settings *s, const setting_info *info, setting_source from); /* sets the source */
/* Checks rules that are not in the table. */
bool settings_check(const settings *s, err *e);
/* Checks rules of the device with this name, such as "cpu" or "cuda:0". */
bool settings_check_device(const settings *s, const char *device, err *e);
/* Sets *out to the type for the weights of drafters; false: as in the file. Call settings_check before. */
bool settings_draft_type(const settings *s, quant_type *out);

/* Copies the values of `names` and their sources. Values of the environment stay. */
void     settings_take(settings *to, const settings *from, uint64_t names);
uint64_t settings_differ(const settings *a, const settings *b); /* the bits of values that differ */

void settings_put_text(const settings *s, const setting_info *info, buf *out);
void settings_put_json(const settings *s, json_writer *w); /* writes all as members of an open object */
void settings_put_value(const settings *s, const setting_info *info, json_writer *w);
/* Writes a warning about a value that is allowed but probably wrong: dflash_max_ctx above the length that the drafter
 * was trained with (0: not known). Returns whether there is one. */
bool settings_warning(const settings *s, int trained_ctx, char *out, size_t cap);
void settings_log(const settings *s, const char *model,
                  int trained_ctx); /* one line with all values, and the warning */

/* --- the file ------------------------------------------------------------------------------------ */
typedef struct settings_file settings_file;
/* Opens the file; a missing file is empty. A broken file is ERR_FORMAT with line and column, or the field. Any thread,
 * one at a time. */
bool settings_file_open(settings_file **out, const char *path, err *e);
void settings_file_close(settings_file *f); /* NULL is fine */
/* Sets *out to the defaults and the values of the file for this model. */
bool settings_file_get(const settings_file *f, str model, settings *out, err *e);
/* Changes these members of the model's object in the file (null removes one). The file is read again first, so changes
 * by other handles and programs are kept, and this handle has them afterwards. All or nothing. ERR_FORMAT: the file has
 * become broken. ERR_BUSY: another program has locked the directory for seconds. */
bool settings_file_put(settings_file *f, str model, const json_value *members, err *e);

/* --- changes ------------------------------------------------------------------------------------- */
typedef struct {
    settings_file *file;    /* NULL: none */
    const char    *model;   /* its name in the file */
    const char    *device;  /* device of the model */
    bool           carried; /* values that are not live are passed to the next load, also without a file */
} settings_owner;
/* Changes members of s and of the file, all or none; null restores the default. Values of the environment stay in s,
 * and the file gets the new ones. Sets *names, unless NULL, to the bits of the members. */
bool settings_change(settings *s, const settings_owner *of, const json_value *members, uint64_t *names, err *e);
#endif
