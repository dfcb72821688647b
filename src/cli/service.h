/* cli/service.h - the flags and the engine of commands that run many requests at once: serve and daemon. */
#ifndef TANDEM_CLI_SERVICE_H
#define TANDEM_CLI_SERVICE_H
#include "cli/generate.h"

typedef struct {
    engine_options    engine;
    kv_texts          kv_text;
    int               max_lanes, step_tokens; /* 0: the default */
    speculation_flags spec;
    draft_options     draft;
    const char       *settings, *routing_log, *cache_dir, *session_dir;
    uint64_t          cache_bytes, park_bytes; /* 0: the default */
    bool              wipe_pages;
    opt_list          set;                 /* NAME=VALUE */
    tandem_setting    given[OPT_LIST_MAX]; /* the parsed `set`, by service_check */
} service_flags;

#define SERVICE_DEFAULTS                                                                                               \
    {                                                                                                                  \
        .engine = {.kv = {.types = KV_TYPES_ALL(CACHE_F16)}}, .draft = {.search = true}, .spec = {                     \
            .method     = SPEC_AUTO,                                                                                   \
            .chain_seed = true                                                                                         \
        }                                                                                                              \
    }

/* The entries of an option table for the flags in `f`. */
/* clang-format off */
#define OPT_SERVICE(f)                                                                                                 \
    OPT_ENGINE((f).engine),                                                                                            \
    OPT_MMPROJ((f).engine),                                                                                            \
    OPT_CONTEXT((f).engine),                                                                                           \
    {.name = "max-ctx", .kind = OPT_INT, .dest = &(f).engine.n_ctx, .arg = "N", .min = 1, .max = GENERATE_MAX_CONTEXT, \
     .help = "the same as --ctx"},                                                                                     \
    OPT_MEMORY_SHARE((f).engine, ", such as 0.9, instead of --kv-bytes"),                                              \
    {.name = "max-lanes", .kind = OPT_INT, .dest = &(f).max_lanes, .arg = "N", .min = 1, .max = TANDEM_MAX_LANES,      \
     .help = "requests that run at the same time: 1 to 256 (default 32)"},                                             \
    {.name = "step-tokens", .kind = OPT_INT, .dest = &(f).step_tokens, .arg = "N", .min = 16,                          \
     .max = TANDEM_MAX_STEP_TOKENS,                                                                                    \
     .help = "maximum of rows in one step, prompt and draft tokens together: 16 to 4096 (default 256, GPU 2048)"},     \
    {.name = "cache-dir", .kind = OPT_STR, .dest = &(f).cache_dir, .arg = "DIR",                                       \
     .help = "keep the K/V of prompts and responses in files there, also for the next start (docs/cache.md)"},         \
    {.name = "cache-bytes", .kind = OPT_BYTES, .dest = &(f).cache_bytes, .arg = "BYTES",                               \
     .help = "limit of the files in --cache-dir, such as 50G (default 10G)"},                                          \
    {.name = "park-bytes", .kind = OPT_BYTES, .dest = &(f).park_bytes, .arg = "BYTES",                                 \
     .help = "host memory for K/V that the full cache would drop, such as 8G (default: none)"},                        \
    {.name = "wipe-pages", .kind = OPT_FLAG, .dest = &(f).wipe_pages,                                                  \
     .help = "overwrite K/V pages with zeros when they are freed"},                                                    \
    OPT_SPECULATION((f).spec, (f).draft),                                                                                             \
    {.name = "settings", .kind = OPT_STR, .dest = &(f).settings, .arg = "FILE",                                        \
     .help = "settings of models by name (docs/routing.md)"},                                                          \
    {.name = "set", .kind = OPT_LIST, .dest = &(f).set, .arg = "NAME=VALUE",                                           \
     .help = "one setting, overrides the file's; may be repeated"},                                                    \
    {.name = "routing-log", .kind = OPT_STR, .dest = &(f).routing_log, .arg = "FILE",                                  \
     .help = "write routing decisions there as JSON lines"},                                                           \
    {.name = "session-dir", .kind = OPT_STR, .dest = &(f).session_dir, .arg = "DIR",                                   \
     .help = "directory of saved sessions (docs/sessions.md); created if missing (default: none)"}
/* clang-format on */

/* Parses the settings and checks the flags. Returns false after printing a message (exit 2). */
bool service_check(service_flags *f, const opt_spec *usage);

/* Resolves the drafters, as cli_resolve_drafters, unless the method uses none. service_open does it, too. */
bool service_find_drafters(service_flags *f, const checkpoint *files, err *e);

typedef struct {
    const char  *name; /* name of the model */
    engine_extra engine;
    bool         no_prefix; /* these as in tandem_options */
    double       wake_ms;
    void (*wake)(void *wake_ctx);
    void *wake_ctx;
} service_extra;
/* Opens the engine with its drafters and computes fingerprints; on a terminal with a progress bar. The paths of f are
 * resolved. */
bool service_open(tandem **out, service_flags *f, const service_extra *x, err *e);
#endif
