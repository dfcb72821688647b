#include "base/file.h"
#include "cli/cli.h"
#include "model/drafter.h"
#include "model/family.h"
#include "model/find_drafters.h"
#include "model/vision.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static struct {
    bool           tensors, keys, devices;
    const char    *target; /* the model that a drafter is for */
    engine_options engine; /* its types of K and V, device and share of the memory are used */
} flags = {.engine = {.kv = {.types = KV_TYPES_ALL(CACHE_F16)}}};

static const option opts[] = {
    {.name = "tensors", .kind = OPT_FLAG, .dest = &flags.tensors, .help = "list every tensor"},
    {.name = "keys", .kind = OPT_FLAG, .dest = &flags.keys, .help = "list the metadata of a GGUF file"},
    {.name = "devices", .kind = OPT_FLAG, .dest = &flags.devices, .help = "list the devices and their memory"},
    {.name = "target",
     .kind = OPT_STR,
     .dest = &flags.target,
     .arg  = "MODEL",
     .help = "for a drafter: check whether it fits this model"},
    OPT_KV_TYPE(flags.engine, "f16"),
    OPT_KV_SLIDING(flags.engine),
    OPT_SPARSE(flags.engine),
    OPT_MEMORY_SHARE(flags.engine, ": prints the bytes"),
    OPT_DEVICE(flags.engine.device),
    OPT_LOGGING,
};
static const opt_spec usage = {"inspect", "inspect FILE|DIR|nano|nano-qwen|nano-vision|--devices [FLAGS]",
                               "Shows the contents of a model file or directory, and the memory it needs.", opts,
                               COUNT(opts)};

/* Formats 1234567 as "1.23 MB". */
static const char *human(double bytes, char out[32])
{
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB"};
    int                      u      = 0;
    for (; bytes >= 1000 && u < 4; u++) bytes /= 1000;
    snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", bytes, unit[u]);
    return out;
}

/* Prints a name from a file without control characters and cut to a maximum length. */
static void print_name(str s)
{
    for (size_t i = 0; i < s.n && i < 200; i++) putchar((unsigned char)s.s[i] < 0x20 || s.s[i] == 0x7f ? '?' : s.s[i]);
    if (s.n > 200) fputs("...", stdout);
}

static double elements(const tensor *t)
{
    double n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= (double)t->dim[i];
    return n;
}

static void print_types(const tensor_table *tt)
{
    double params = 0, bytes[QUANT_TYPES] = {0};
    size_t count[QUANT_TYPES] = {0};
    char   h[32];
    for (size_t i = 0; i < tensor_count(tt); i++) {
        const tensor *t = tensor_at(tt, i);
        params += elements(t);
        bytes[t->type] += (double)t->bytes;
        count[t->type]++;
    }
    printf("tensors      %zu, %.4g million numbers\n", tensor_count(tt), params / 1e6);
    for (int q = 0; q < QUANT_TYPES; q++)
        if (count[q]) printf("  %-10s %zu tensors, %s\n", quant_name((quant_type)q), count[q], human(bytes[q], h));
}

static void print_tensors(const tensor_table *tt)
{
    for (size_t i = 0; i < tensor_count(tt); i++) {
        const tensor *t = tensor_at(tt, i);
        printf("  %-6s [", quant_name(t->type));
        for (int d = 0; d < t->n_dims; d++) printf("%s%" PRId64, d ? ", " : "", t->dim[d]);
        fputs("]  ", stdout);
        print_name(t->name);
        putchar('\n');
    }
}

static void print_value(const gguf_value *v)
{
    int64_t i;
    double  d;
    str     s;
    fputs("  ", stdout);
    print_name(v->key);
    fputs(" = ", stdout);
    if (v->type == GGUF_ARRAY)
        printf("list of %" PRIu64, v->n);
    else if (gguf_str(v, &s)) {
        buf b;
        buf_init(&b, 4096);
        buf_put_json_string(&b, (str){s.s, s.n < 200 ? s.n : 200});
        printf("%.*s%s", (int)b.n, b.p, s.n > 200 ? "..." : "");
        buf_deinit(&b);
    } else if (gguf_int(v, &i))
        printf("%" PRId64, i);
    else if (gguf_real(v, &d))
        printf("%g", d);
    putchar('\n');
}

/* Returns the K/V bytes of one position in the layers with full attention, or in all. */
static size_t kv_bytes(const model_summary *c, bool all)
{
    size_t n = 0;
    for (int i = 0; i < c->n_kv_classes; i++)
        if (all || !c->kv_class[i].window) n += kv_bytes_per_pos(&c->kv_class[i]);
    return n;
}

/* Prints the K/V bytes of a token, and why the types cannot be used, if so. */
static void print_kv(const model_summary *c)
{
    err  e  = {0};
    bool ok = true;
    printf("K/V          %zu bytes per token, %zu of them in layers with full attention\n", kv_bytes(c, true),
           kv_bytes(c, false));
    for (int i = 0; i < c->n_kv_classes && ok; i++) {
        ok = cache_types_check(c->kv_class[i].types, c->kv_class[i].head_dim, &e);
        if (!ok) printf("             %s\n", e.text);
    }
}

/* Prints the K/V cache that --memory-share gives, with the memory that is free now. */
static void print_share(const checkpoint *cp, const model_summary *c)
{
    ops_device d;
    err        e     = {0};
    float      share = flags.engine.memory_share;
    char       h[32], k[32];
    if (!(share > 0)) return;
    if (!ops_device_find(&d, engine_devices[flags.engine.device], &e)) {
        printf("             %s\n", e.text);
        return;
    }
    double taken = (double)cp->bytes + (str_starts(str_of(d.name), "cuda") ? OPEN_GRAPH_BYTES : 0);
    double bytes = fmax((double)d.free_bytes - taken, 0) * (double)share;
    printf("             %s of K/V cache, %.0f tokens, with %g of the free memory of %s (%s, less %s of weights)\n",
           human(bytes, h), floor(bytes / (double)kv_bytes(c, true)), (double)share, d.name,
           human((double)d.free_bytes, k), human((double)cp->bytes, (char[32]){0}));
}

static void print_summary(const checkpoint *cp, const model_summary *c)
{
    char h[32], k[32], types[KV_TYPES_TEXT];
    if (c->state_bytes > 0)
        printf("layers       %d: %d with full attention, %d recurrent\n", c->n_layers, c->n_full,
               c->n_layers - c->n_full);
    else
        printf("layers       %d: %d with full attention, %d with a window of %d\n", c->n_layers, c->n_full,
               c->n_layers - c->n_full, c->window);
    printf("width        %d, %d query heads, vocabulary %d, context %d\n", c->n_embd, c->n_heads, c->n_vocab, c->n_ctx);
    if (c->n_experts) printf("experts      %d of width %d, %d at a time\n", c->n_experts, c->n_ff_expert, c->n_used);
    if (c->n_ple) printf("per layer    embeddings of %d; %d layers share K/V\n", c->n_ple, c->n_kv_shared);
    printf("to run       %s of weights, and %s of K/V cache per 1000 positions (%s)\n", human((double)cp->bytes, h),
           human(1000 * (double)kv_bytes(c, true), k), kv_types_text(&flags.engine.kv.types, types));
    printf("             on a GPU also up to %s for recorded steps\n", human(OPEN_GRAPH_BYTES, h));
    print_kv(c);
    print_share(cp, c);
    if (c->state_bytes > 0) printf("             %s of state per request\n", human(c->state_bytes, h));
}

static void print_not_runnable(void)
{
    printf("to run       not supported alone: only");
    for (const model_family *const *f = model_families; *f; f++)
        printf("%s %s", f == model_families ? "" : ",", (*f)->name);
    printf(" text models are\n");
}

static void print_captures(const drafter_summary *d)
{
    printf("reads        ");
    if (!d->n_captures) printf("layers of the target that the file does not list");
    for (int i = 0; i < d->n_captures; i++)
        if (d->capture[i] < 0)
            printf("%sthe embeddings", i ? ", " : "");
        else
            printf("%s%d", i ? ", " : "the outputs of layers ", d->capture[i]);
    putchar('\n');
}

static void print_lengths(const drafter_summary *d)
{
    if (d->window)
        printf("window       %d, in %d of %d layers\n", d->window, d->n_sliding, d->n_layers);
    else
        printf("window       none\n");
    if (d->trained_ctx)
        printf("trained      on %d positions\n", d->trained_ctx);
    else if (d->n_ctx)
        printf("trained      on an unknown length: the %d positions of the file are its target's; its context is %d\n",
               d->n_ctx, d->default_ctx);
    else
        printf("trained      on an unknown length; its context is %d\n", d->default_ctx);
}

/* Checks a drafter against the target at `path`, and prints the result. */
static bool print_fit(const checkpoint *cp, const char *path, err *e)
{
    checkpoint   *model;
    model_summary c;
    err           why  = {0};
    const char   *name = path;
    if (drafter_kind_of(cp) < 0)
        return err_set(e, ERR_INPUT, "--target: %s is not a drafter", cli_shown_path(cp->path));
    if (!cli_resolve_model(&path, e) || !checkpoint_open(&model, path, e)) return false;
    const model_family *f  = family_of(model);
    bool                ok = f ? f->describe(&c, model, &flags.engine.kv.types, e)
                               : err_set(e, ERR_INPUT, "%s is not a model that can be run", name);
    checkpoint_close(model);
    if (!ok) return false;
    if (drafter_fits(cp, &(target_shape){c.n_embd, c.n_vocab, c.n_layers, c.donor}, &why))
        printf("             it fits %s\n", name);
    else
        printf("             it does not fit %s: %s\n", name, why.text);
    return true;
}

static void print_drafter(const drafter_summary *d)
{
    printf("drafter      %s%s: %d draft tokens from a block of %d%s\n", d->kind, d->variant, d->n_draft, d->block,
           d->confident ? ", with their confidence" : "");
    printf("layers       %d, width %d, %d query heads\n", d->n_layers, d->n_embd, d->n_heads);
    print_captures(d);
    printf("mask token   %d\n", d->mask_id);
    print_lengths(d);
    printf("fits         targets");
    if (d->target_embd) printf(" of width %d", d->target_embd);
    if (d->target_vocab) printf(" with a vocabulary of %d", d->target_vocab);
    if (d->target_layers) printf("%s at least %d layers", d->target_vocab ? " and" : " with", d->target_layers);
    putchar('\n');
}

/* Describes a checkpoint that is not a model of a known family: perhaps a drafter. */
static void print_other(const checkpoint *cp)
{
    int             k = drafter_kind_of(cp);
    drafter_summary d;
    err             why = {0};
    if (k < 0 || !drafter_kinds[k].describe)
        print_not_runnable();
    else if (drafter_kinds[k].describe(&d, cp, &why))
        print_drafter(&d);
    else
        printf("drafter      cannot be used: %s\n", why.text);
}

static void print_tokenizer(const checkpoint *cp)
{
    tok *t;
    err  e = {0};
    if (open_tok_of(&t, cp, &e))
        printf("tokenizer    %d tokens\n", tok_size(t));
    else
        printf("tokenizer    cannot be used (%s): token ids only\n", e.text);
    tok_free(t);
}

static void print_template(const chat_format *f, const checkpoint *cp)
{
    buf text;
    err e = {0};
    buf_init(&text, 1 << 24);
    bool          ok = chat_template_load(&text, cp->path, cp->gguf, &e);
    chat_template t  = f->detect(buf_str(&text));
    if (!ok)
        printf("template     cannot be used (%s)\n", e.text);
    else if (!text.n)
        printf("template     none\n");
    else if (!t.known)
        printf("template     not %s's\n", f->title);
    else if (t.published)
        printf("template     %s\n", f->revision_name(t.revision));
    else
        printf("template     not a published one; %d of %d features match %s\n", t.n_same, t.n_signs,
               f->revision_name(t.revision));
    buf_deinit(&text);
}

/* Prints what the model has besides the text model: an encoder of pictures, an MTP head. */
static void print_extras(const checkpoint *cp, const model_family *f)
{
    if (f->vision && vision_may_exist(cp, cli_encoder(cp->path, NULL)))
        printf("pictures     an encoder, %s\n", cp->gguf ? "in a file of its own (--mmproj)" : "in the directory");
    if (drafter_kind_of(cp) >= 0) printf("drafter      an MTP head of its own (--draft mtp)\n");
}

/* Prints the drafters that --draft auto takes or passes over. */
static void print_drafters(const checkpoint *cp)
{
    int            n   = 0;
    found_drafter *all = find_drafters(cp, &n);
    for (int i = 0; i < n; i++) {
        printf("%-12s ", i ? "" : "drafters");
        print_name(str_of(all[i].path));
        printf("\n%15s%s\n", "", all[i].why);
    }
    mem_free(all);
}

static bool inspect(const char *path, err *e)
{
    checkpoint   *cp;
    model_summary c;
    err           why  = {0};
    const char   *name = path;
    char          h[32];
    if (!cli_resolve_model(&path, e) || !checkpoint_open(&cp, path, e)) return false;
    str                 arch = model_arch(cp);
    const model_family *f    = family_of(cp);
    printf("%s\nkind         %s, ", name, cp->gguf ? "GGUF file" : "Hugging Face directory");
    print_name(arch.n ? arch : STR("unknown"));
    printf(", %s\n", human((double)cp->bytes, h));
    print_types(cp->tensors);
    if (!f)
        print_other(cp);
    else if (f->describe(&c, cp, &flags.engine.kv.types, &why)) {
        print_summary(cp, &c);
        print_extras(cp, f);
        if (!cli_is_built_in(path)) print_drafters(cp);
    } else
        printf("to run       not possible: %s\n", why.text);
    bool ok = !flags.target || print_fit(cp, flags.target, e);
    print_tokenizer(cp);
    print_template((f ? f : model_families[0])->chat, cp);
    for (size_t i = 0; flags.keys && cp->gguf && i < gguf_n_values(cp->gguf); i++)
        print_value(gguf_value_at(cp->gguf, i));
    if (flags.tensors) print_tensors(cp->tensors);
    checkpoint_close(cp);
    return ok;
}

static void print_devices(void)
{
    ops_device d[16];
    char       free_bytes[32], total[32];
    for (int i = 0, n = ops_devices(d, (int)COUNT(d)); i < n; i++)
        printf("%-8s %s, %s of memory, %s free\n", d[i].name, d[i].what, human((double)d[i].total_bytes, total),
               human((double)d[i].free_bytes, free_bytes));
}

int cmd_inspect(int argc, char **args)
{
    int n_args, code;
    err e = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (flags.devices) print_devices();
    if (flags.devices && n_args == 0) return 0;
    if (n_args != 1) return opt_usage(&usage, "give one file or directory");
    return inspect(args[0], &e) ? 0 : cli_fail(&e);
}
