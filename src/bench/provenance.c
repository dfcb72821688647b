#include "bench/provenance.h"

#include "base/file.h"
#include "bench/result.h"
#include "bench/sha256.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TEXT = 1 << 20, PIECE = 1 << 24, PART_DIGITS = 5 };

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

static bool add_file(provenance *p, const char *path, bool hash, err *e)
{
    file_map    m = {0};
    json_writer w;
    char        hex[65];
    if (!file_map_open(&m, path, e)) return false;
    if (p->files.n) buf_putc(&p->files, ',');
    json_writer_init(&w, &p->files);
    json_begin_object(&w);
    result_str(&w, "path", cli_path_name(path));
    result_int(&w, "bytes", (int64_t)m.n);
    if (hash) {
        hash_map(&m, cli_path_name(path), hex);
        result_str(&w, "sha256", hex);
    }
    json_end(&w);
    file_map_close(&m);
    return true;
}

static int wanted(const struct dirent *d)
{
    return str_ends(str_of(d->d_name), ".safetensors") || !strcmp(d->d_name, "config.json");
}

static bool add_directory(provenance *p, const char *dir, bool hash, err *e)
{
    struct dirent **list;
    int             n  = scandir(dir, &list, wanted, alphasort);
    bool            ok = true;
    for (int i = 0; i < n; i++) {
        char path[4096];
        ok = ok &&
             (file_join(path, sizeof path, dir, list[i]->d_name) || err_set(e, ERR_INPUT, "the path is too long")) &&
             add_file(p, path, hash, e);
        free(list[i]);
    }
    if (n >= 0) free(list);
    return ok;
}

/* name-00001-of-00003.gguf: where the part's number begins, and how many parts there are; 0: it is whole. */
static int64_t parts_of(str path, size_t *at)
{
    static const char of[] = "-of-", end[] = ".gguf";
    size_t            tail = PART_DIGITS + strlen(of) + PART_DIGITS + strlen(end);
    int64_t           first, n;
    if (path.n <= tail || !str_ends(path, end)) return 0;
    *at = path.n - tail;
    return path.s[*at - 1] == '-' && str_to_i64((str){path.s + *at, PART_DIGITS}, &first) &&
                   !memcmp(path.s + *at + PART_DIGITS, of, strlen(of)) &&
                   str_to_i64((str){path.s + *at + PART_DIGITS + strlen(of), PART_DIGITS}, &n)
               ? n
               : 0;
}

bool provenance_file(provenance *p, const char *path, bool hash, err *e)
{
    size_t at;
    if (!path) return true;
    int64_t n = parts_of(str_of(path), &at);
    if (!p->files.max) buf_init(&p->files, MAX_TEXT);
    if (file_is_dir(path)) return add_directory(p, path, hash, e);
    for (int64_t i = 1; i <= n; i++) {
        char part[4096], number[24];
        snprintf(part, sizeof part, "%s", path);
        snprintf(number, sizeof number, "%0*lld", PART_DIGITS, (long long)i);
        if (strlen(part) > at + PART_DIGITS) memcpy(part + at, number, PART_DIGITS);
        if (!add_file(p, part, hash, e)) return false;
    }
    return n > 0 || add_file(p, path, hash, e);
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

void provenance_put(const provenance *p, json_writer *w, const engine *g, const char *model, const char *kv)
{
    const ops *o = g->model->o;
    char       cpu[256];
    cpu_name(cpu, sizeof cpu);
    json_key(w, "provenance");
    json_begin_object(w);
    result_str(w, "version", TANDEM_VERSION);
    json_key(w, "command");
    json_put_str(w, buf_str(&p->command));
    result_str(w, "model", model);
    json_key(w, "files");
    json_begin_array(w);
    buf_put(w->b, p->files.p, p->files.n); /* whole objects and the commas between them */
    json_end(w);
    result_int(w, "layers", g->model->n_layers);
    result_int(w, "weight_bytes", (int64_t)g->model->weight_bytes);
    result_str(w, "backend", o->name);
    result_str(w, "kernels", o->kernels ? o->kernels : "");
    result_str(w, "device", g->device.name);
    result_str(w, "device_name", g->device.what);
    result_str(w, "cpu", cpu);
    result_int(w, "threads", o->n_threads);
    result_str(w, "kv", kv);
    json_end(w);
}
