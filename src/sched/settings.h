/* sched/settings.h - what can be set for a model, in one table.
 *
 * Names are those that users of other engines know (docs/routing.md has all of them, and where ours differ). A value comes
 * from the environment, else from the settings file, else it is the default; zero is a value like any other. Numbers that
 * may be unlimited have a word for it ("auto", "none"), which is also what null means.
 *
 * The file is one JSON object for all models, replaced as a whole:
 *
 *     {"models": {"MODEL ID": {"dflash_max_concurrent": 4, ...}, ...}}
 *
 * What is in it and not known here is kept and said once. A file that cannot be read is never written over. */
#ifndef TANDEM_SCHED_SETTINGS_H
#define TANDEM_SCHED_SETTINGS_H
#include "gguf/quant.h"
#include "json/json.h"

enum {
    SETTING_UNLIMITED = -1, /* "auto", "none" */
    SETTING_TEXT_MAX  = 1024,
    SETTINGS_MAX      = 64
};

typedef struct {
    bool    dflash_enabled;
    int64_t dflash_max_concurrent; /* or SETTING_UNLIMITED, as where "none" or "auto" is allowed below */
    bool    dflash_lazy_drafter;
    double  dflash_kv_pressure_threshold;
    int64_t dflash_max_ctx;
    char    dflash_draft_model[SETTING_TEXT_MAX], mtp_draft_model[SETTING_TEXT_MAX];
    bool    dflash_draft_quant_enabled;
    int64_t dflash_draft_quant_weight_bits, dflash_draft_quant_activation_bits, dflash_draft_quant_group_size;
    int64_t default_max_tokens;
    double  kv_cap;
    int64_t max_mask_ms, max_stall_ms, queue_max, queue_timeout_ms, request_timeout_ms;
    int64_t max_lanes_per_key, max_queue_per_key;
    bool    routing_log;
    int64_t routing_log_max_bytes, routing_log_files;
    /* Where setting_table[i] comes from, bit i each; in none of the first three: the default */
    uint64_t held;    /* the environment's, and stays */
    uint64_t given;   /* by the options that the model was opened with */
    uint64_t in_file; /* by the settings file */
    uint64_t changed; /* since the program began */
    uint64_t pending; /* of these, not live and changed since the model was opened */
} settings;

typedef enum { SETTING_BOOL, SETTING_INT, SETTING_REAL, SETTING_TEXT } setting_kind;
typedef struct {
    const char  *name;
    setting_kind kind;
    size_t       at; /* in settings */
    double       min, max;
    const char  *word; /* in place of a number; NULL: none */
    const char  *default_text;
    const char  *variable; /* of the environment; NULL: none */
    bool         live;     /* takes effect at once; else when the model is loaded again */
    const char  *help;
} setting_info;
extern const setting_info setting_table[];
extern const int          n_settings;
const setting_info       *setting_find(str name); /* NULL: there is none */

void settings_init(settings *s); /* the defaults */
/* One value, from JSON or from text; what the environment holds is checked and stays. ERR_INPUT names the field. */
bool       settings_set(settings *s, const setting_info *info, const json_value *v, err *e);
bool       settings_set_text(settings *s, const setting_info *info, str text, err *e);
json_value settings_value(const setting_info *info, str text); /* that the text says; borrows it */
/* All members of an object, or none. Names that are not known are added to *unknown, a count. */
bool settings_set_all(settings *s, const json_value *object, int *unknown, err *e);
/* Once, when a model is loaded: DFLASH_MAX_CTX, DFLASH_METRIC_DISABLE, DFLASH_METRIC_MAX_SIZE. */
bool     settings_take_environment(settings *s, err *e);
bool     settings_holds(const settings *s, const setting_info *info); /* the environment's value */
uint64_t settings_bit(const setting_info *info);                      /* of held and the like */
/* Checks what no single field shows. */
bool settings_check(const settings *s, err *e);
/* Checks what depends on the device, by its name such as "cpu" or "cuda:0". */
bool settings_check_device(const settings *s, const char *device, err *e);
/* The drafter's weights are to be stored so; false: as they are in the file. settings_check has passed. */
bool settings_draft_type(const settings *s, quant_type *out);

/* Copies the values of `names`, and where they come from; the environment's stay. */
void     settings_take(settings *to, const settings *from, uint64_t names);
uint64_t settings_differ(const settings *a, const settings *b); /* the bits of values that are not the same */

void settings_put_text(const settings *s, const setting_info *info, buf *out);
void settings_put_json(const settings *s, json_writer *w); /* members of all, into an open object */
void settings_put_value(const settings *s, const setting_info *info, json_writer *w);
/* Writes a sentence where a value is allowed but probably not meant: dflash_max_ctx above the length that the drafter was
 * trained on (0: not known). Returns whether there is one. */
bool settings_warning(const settings *s, int trained_ctx, char *out, size_t cap);
void settings_log(const settings *s, const char *model,
                  int trained_ctx); /* one line with all values, and the warning */

/* --- the file ------------------------------------------------------------------------------------ */
typedef struct settings_file settings_file;
/* A file that is not there is an empty one. ERR_FORMAT with line and column, or the field, when it is broken. Any thread,
 * one at a time. */
bool settings_file_open(settings_file **out, const char *path, err *e);
void settings_file_close(settings_file *f); /* NULL is fine */
/* Defaults, with what the file says of the model over them. */
bool settings_file_get(const settings_file *f, str model, settings *out, err *e);
/* Changes these members of the model's object (null: back to the default) in the file as it is on the disk now: what other
 * handles and programs have written there stays, and is in this handle afterwards. All or nothing; ERR_FORMAT when the file
 * has become broken, ERR_BUSY when another program holds the directory's lock for seconds. */
bool settings_file_put(settings_file *f, str model, const json_value *members, err *e);

/* --- changes ------------------------------------------------------------------------------------- */
typedef struct {
    settings_file *file;    /* NULL: none */
    const char    *model;   /* its name in the file */
    const char    *device;  /* that the model is on */
    bool           carried; /* values that are not live are handed to the next load also without a file */
} settings_owner;
/* Changes members of s and of the file, all or nothing; null is the default. The environment's values stay in s, and the
 * file gets the new ones. *names, unless NULL, is set to the bits of the members. */
bool settings_change(settings *s, const settings_owner *of, const json_value *members, uint64_t *names, err *e);
#endif
