#include "bench/provenance.h"

#include "base/sha256.h"
#include "figures/result.h"
#include "gguf/checkpoint.h"
#include "server/gpu.h"

#include <stdio.h>

enum { MAX_TEXT = 1 << 20, PIECE = 1 << 24 };

void provenance_command(provenance *p, const char *part, int argc, char **args)
{
    buf_init(&p->command, MAX_TEXT);
    buf_printf(&p->command, "tandem bench %s", part);
    for (int i = 0; i < argc; i++) buf_printf(&p->command, strchr(args[i], ' ') ? " '%s'" : " %s", args[i]);
}

void provenance_deinit(provenance *p)
{
    buf_deinit(&p->command);
    buf_deinit(&p->files);
}

/* --- files ----------------------------------------------------------------------------------------*/
static void hash_map(const file_map *m, const char *name, char hex[65])
{
    sha256       s;
    progress_bar bar;
    char         what[160];
    snprintf(what, sizeof what, "hashing %.100s", name);
    sha256_init(&s);
    progress_start(&bar, what);
    for (size_t at = 0; at < m->n; at += PIECE) {
        sha256_put(&s, m->p + at, m->n - at < PIECE ? m->n - at : PIECE);
        progress_show(&bar, at, m->n);
    }
    progress_end(&bar);
    sha256_hex(&s, hex);
}

static void add_map(provenance *p, const file_map *m, const char *name, bool hash)
{
    json_writer w;
    char        hex[65];
    if (p->files.n) buf_putc(&p->files, ',');
    json_writer_init(&w, &p->files);
    json_begin_object(&w);
    json_member_str(&w, "path", name);
    json_member_int(&w, "bytes", (int64_t)m->n);
    if (hash) {
        hash_map(m, name, hex);
        json_member_str(&w, "sha256", hex);
    }
    json_end(&w);
}

bool provenance_file(provenance *p, const char *path, bool hash, err *e)
{
    checkpoint *cp;
    if (!path) return true;
    if (!checkpoint_open(&cp, path, e)) return false;
    if (!p->files.max) buf_init(&p->files, MAX_TEXT);
    if (cp->config_text.n) add_map(p, &cp->config_text, "config.json", hash);
    const maps *files = checkpoint_files(cp);
    for (size_t i = 0; i < files->n; i++) add_map(p, &files->file[i].map, cli_path_name(files->file[i].path), hash);
    checkpoint_close(cp);
    return true;
}

bool provenance_files(provenance *p, const char *model, const draft_options *d, bool hash, err *e)
{
    bool ok = provenance_file(p, model, hash, e);
    for (int i = 0; ok && i < d->paths.n; i++) ok = provenance_file(p, d->paths.item[i], hash, e);
    return ok;
}

/* --- the machine ----------------------------------------------------------------------------------*/
static void cpu_name(char *out, size_t cap)
{
    char  line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    out[0]  = 0;
    while (f && !out[0] && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        snprintf(out, cap, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (f) fclose(f);
}

static void put_known(json_writer *w, const char *key, double v)
{
    if (v >= 0) json_member_real(w, key, v);
}

/* The clocks and power states of the GPUs, right after they were measured. */
static void put_gpus(json_writer *w)
{
    gpu_state s[GPU_MAX];
    int       n = gpu_read(NULL, s);
    json_key(w, "gpus");
    json_begin_array(w);
    for (int i = 0; i < n; i++) {
        json_begin_object(w);
        json_member_str(w, "name", s[i].name);
        put_known(w, "sm_mhz", s[i].sm_mhz);
        put_known(w, "memory_mhz", s[i].memory_mhz);
        put_known(w, "power_state", s[i].power_state);
        put_known(w, "power_w", s[i].power_w);
        put_known(w, "power_limit_w", s[i].power_limit_w);
        put_known(w, "temperature_c", s[i].temperature_c);
        json_end(w);
    }
    json_end(w);
}

void provenance_put(const provenance *p, json_writer *w, const opened_model *g, const char *model, const kv_types *kv)
{
    char       kv_text[KV_TYPES_TEXT];
    const ops *o = g->model->o;
    char       cpu[256];
    cpu_name(cpu, sizeof cpu);
    json_key(w, "provenance");
    json_begin_object(w);
    json_member_str(w, "version", TANDEM_VERSION);
    json_member_str(w, "commit", TANDEM_COMMIT);
    json_key(w, "command");
    json_put_str(w, buf_str(&p->command));
    json_member_str(w, "model", model);
    json_key(w, "files");
    json_begin_array(w);
    buf_put(w->b, p->files.p, p->files.n); /* whole objects and the commas between them */
    json_end(w);
    json_member_int(w, "layers", g->model->n_layers);
    json_member_int(w, "weight_bytes", (int64_t)g->model->weight_bytes);
    json_member_str(w, "backend", o->name);
    json_member_str(w, "kernels", o->kernels ? o->kernels : "");
    json_member_str(w, "device", g->device.name);
    json_member_str(w, "device_name", g->device.what);
    json_member_str(w, "cpu", cpu);
    if (!strcmp(o->name, "cuda")) put_gpus(w);
    json_member_int(w, "threads", o->n_threads);
    json_member_str(w, "kv", kv_types_text(kv, kv_text));
    json_end(w);
}
