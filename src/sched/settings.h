/* sched/settings.h - the settings of a model: one table, their values, and the file that keeps them.
 *
 * Names are those of other engines; docs/routing.md lists them and the differences. A value comes from the environment,
 * else from a change while the program runs, else from the options, else from the settings file, else it is the
 * default. Zero is a value like any other. Numbers that may be unlimited have a word for it ("auto", "none"). In the
 * settings file null means that word too, or the default where there is no word; settings_change takes null as the
 * default always. All errors in values are ERR_INPUT and name the field.
 *
 * The file is one JSON object for all models, replaced as a whole:
 *
 *     {"models": {"MODEL ID": {"dflash_max_concurrent": 4, ...}, ...}}
 *
 * Unknown members are kept, and logged when the file is opened. A file that cannot be read is never overwritten.
 *
 * Functions on a settings or a settings_file are called by one thread at a time; the table may be read by any. */
#ifndef TANDEM_SCHED_SETTINGS_H
#define TANDEM_SCHED_SETTINGS_H
#include "gguf/quant.h"
#include "json/json.h"

enum {
    SETTING_UNLIMITED = -1,   /* "auto", "none" */
    SETTING_TEXT_MAX  = 1024, /* bytes of a text with its NUL */
    SETTINGS_MAX      = 64    /* maximum number of settings: one bit each */
};

/* The origin of a value. */
typedef enum {
    SETTING_FROM_DEFAULT,
    SETTING_FROM_FILE,        /* also when the program changed it in the file */
    SETTING_FROM_OPTIONS,     /* tandem_options.settings */
    SETTING_FROM_API,         /* changed while the program runs, without a file; with one, reset to the default */
    SETTING_FROM_ENVIRONMENT, /* cannot be changed while the program runs */
} setting_source;

/* The values; setting_table has their meanings and ranges. */
typedef struct {
    bool     dflash_enabled;
    int64_t  dflash_max_concurrent; /* or SETTING_UNLIMITED, as all that may be "none" or "auto" */
    bool     dflash_lazy_drafter;
    double   dflash_kv_pressure_threshold;
    int64_t  dflash_max_ctx, dflash_draft_window;
    char     kv_type[SETTING_TEXT_MAX], kv_sliding[SETTING_TEXT_MAX], kv_draft[SETTING_TEXT_MAX];
    char     sparse_fa[SETTING_TEXT_MAX];
    char     dflash_draft_model[SETTING_TEXT_MAX], mtp_draft_model[SETTING_TEXT_MAX];
    bool     dflash_draft_quant_enabled;
    int64_t  dflash_draft_quant_weight_bits, dflash_draft_quant_activation_bits, dflash_draft_quant_group_size;
    int64_t  default_max_tokens;
    double   kv_cap;
    int64_t  max_mask_ms, max_stall_ms, queue_max, queue_timeout_ms, request_timeout_ms;
    int64_t  session_max_count, session_max_bytes;
    int64_t  max_lanes_per_key, max_queue_per_key;
    int64_t  image_tokens, media_max_frames, media_max_items, media_max_bytes, media_max_pixels, encoder_idle_s;
    bool     routing_log;
    int64_t  routing_log_max_bytes, routing_log_files;
    uint8_t  source[SETTINGS_MAX]; /* setting_source of setting_table[i] */
    uint64_t changed;              /* bit i: setting_table[i] was changed since the program started */
    uint64_t pending; /* bit i: changed since the model was opened, and takes effect when it is opened again */
} settings;

typedef enum { SETTING_BOOL, SETTING_INT, SETTING_REAL, SETTING_TEXT } setting_kind;
typedef struct {
    const char  *name;
    setting_kind kind;
    size_t       at;           /* offset in settings */
    double       min, max;     /* range of a number */
    const char  *word;         /* used instead of a number: unlimited; NULL: none */
    const char  *default_text; /* as for settings_set_text */
    const char  *variable;     /* environment variable; one that ends with _DISABLE sets the opposite; NULL: none */
    bool         live;         /* takes effect at once; false: when the model is opened again */
    const char  *help;
} setting_info;
extern const setting_info setting_table[];
extern const int          n_settings;
const setting_info       *setting_find(str name); /* NULL: unknown name */

void settings_init(settings *s); /* sets the defaults, from SETTING_FROM_DEFAULT */
/* Set one value, from JSON or from text, but not its source. In an s with a value of the environment, the new value is
 * checked and the old one stays. */
bool settings_set(settings *s, const setting_info *info, const json_value *v, err *e);
bool settings_set_text(settings *s, const setting_info *info, str text, err *e);
/* Returns the text as a JSON value of the setting's kind, or as a string if it cannot be parsed. Borrows the text. */
json_value settings_value(const setting_info *info, str text);
/* Sets all members of an object, or none, and checks the result with settings_check. Ignores unknown names and adds
 * their number to *unknown. */
bool settings_set_all(settings *s, const json_value *object, int *unknown, err *e);
/* Sets values and sources from the environment variables of the table. Called once when a model is opened. On failure
 * *s may be partly changed. */
bool           settings_take_environment(settings *s, err *e);
uint64_t       settings_bit(const setting_info *info); /* the bit in `changed`, `pending` and sets of names */
setting_source settings_source(const settings *s, const setting_info *info);
void           settings_note(settings *s, const setting_info *info, setting_source from); /* sets the source */
/* Checks rules that are not in the table. */
bool settings_check(const settings *s, err *e);
/* Checks rules of the device with this name, such as "cpu" or "cuda:0". */
bool settings_check_device(const settings *s, const char *device, err *e);
/* Sets *out to the type for the weights of drafters. Returns false, and leaves *out, if they are used as in the file.
 * Call settings_check before. */
bool settings_draft_type(const settings *s, quant_type *out);

/* Copies the values of `names` and their sources. Values of the environment stay. */
void     settings_take(settings *to, const settings *from, uint64_t names);
uint64_t settings_differ(const settings *a, const settings *b); /* the bits of values that differ */

void settings_put_json(const settings *s, json_writer *w); /* all as members of an open object */
void settings_put_value(const settings *s, const setting_info *info, json_writer *w);
/* Writes a warning into out[cap] about a value that is allowed but probably wrong: dflash_max_ctx above the length in
 * tokens that the drafter was trained with (0: not known). Returns whether there is one. */
bool settings_warning(const settings *s, int trained_ctx, char *out, size_t cap);
/* Logs one line with all values, and the warning. */
void settings_log(const settings *s, const char *model, int trained_ctx);

/* --- the file ------------------------------------------------------------------------------------ */
typedef struct settings_file settings_file;
/* Reads the file; a missing file is empty. ERR_FORMAT: it is not such a JSON object, with line and column; ERR_INPUT: a
 * value in it is wrong. *out is NULL on failure. */
bool settings_file_open(settings_file **out, const char *path, err *e);
void settings_file_close(settings_file *f); /* accepts NULL */
/* Sets *out to the defaults and the values that the file had for this model when it was last read. Logs a warning if
 * the file does not exist or does not name the model. */
bool settings_file_get(const settings_file *f, str model, settings *out, err *e);
/* Changes these members of the model's object in the file (null removes one). The file is read again first, so changes
 * by other handles and programs are kept, and this handle has them afterwards. All or nothing. ERR_FORMAT: the file has
 * become broken. ERR_BUSY: another program has locked the directory for seconds. ERR_IO: it cannot be written. */
bool settings_file_put(settings_file *f, str model, const json_value *members, err *e);

/* --- changes ------------------------------------------------------------------------------------- */
typedef struct {
    settings_file *file;    /* NULL: none */
    const char    *model;   /* its name in the file */
    const char    *device;  /* name of the model's device */
    bool           carried; /* values that are not live are passed to the next load, also without a file */
} settings_owner;
/* Changes members of s and of the file, all or none; null restores the default. Values of the environment stay in s,
 * and the file gets the new ones. Refuses unknown names and, without a file, values that would never take effect. Sets
 * *names, unless NULL, to the bits of the members on success. */
bool settings_change(settings *s, const settings_owner *of, const json_value *members, uint64_t *names, err *e);
#endif
