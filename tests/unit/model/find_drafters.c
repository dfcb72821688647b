/* A table of directories with a model, and the drafters that are found there. The models are nano (its files hold one
 * model and two drafters that fit) and small Hugging Face directories. */
#include "model/find_drafters.h"
#include "test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_STEPS = 14, MAX_WANT = 6 };

typedef struct {
    const char *what;
    const char *model;
    /* "nano PART PATH", "golden NAME PATH": files; "link TO PATH": a symbolic link; "text TEXT PATH"; "fifo - PATH";
     * "many - PATH": a directory with too many entries */
    const char *make[MAX_STEPS];
    /* "PATH: reason", in the order of the search; a path in the test's directory, and a part of the reason */
    const char *want[MAX_WANT];
} layout;

#define HUB     "hub/models--google--big"
#define DRAFTER "hub/models--z-lab--big-DFlash"
#define OTHER   "hub/models--z-lab--other-DFlash"

static const layout layouts[] = {
    {"the same directory, by metadata",
     "m/big.gguf",
     {"nano target m/big.gguf", "nano dflash m/one.gguf", "nano mtp m/two.gguf", "text x m/three.gguf",
      "text x m/README.md"},
     {"m/one.gguf: taken: dflash, fits the width 256 and the vocabulary of 4096", "m/two.gguf: taken: mtp"}},
    {"the same directory, by name",
     "m/big.gguf",
     {"nano target m/big.gguf", "nano mtp m/mtp-big.gguf", "nano dflash m/big-DFlash-Q8_0.gguf",
      "nano target m/also.gguf"},
     {"m/big-DFlash-Q8_0.gguf: taken: dflash", "m/mtp-big.gguf: taken: mtp"}},
    {"nothing",
     "m/big.gguf",
     {"nano target m/big.gguf", "nano dflash far/away/big-DFlash.gguf", "text x m/other.gguf"},
     {NULL}},
    {"several: the nearest name",
     "m/big-9B-Q4_0.gguf",
     {"nano target m/big-9B-Q4_0.gguf", "nano mtp m/mtp-big-2B-Q4_0.gguf", "nano mtp m/mtp-big-9B-F16.gguf",
      "nano mtp m/mtp-big-9B-Q4_0.gguf"},
     {"m/mtp-big-2B-Q4_0.gguf: passed over: it fits, but mtp-big-9B-Q4_0.gguf is nearer to the model by name",
      "m/mtp-big-9B-F16.gguf: passed over: it fits, but mtp-big-9B-Q4_0.gguf is nearer",
      "m/mtp-big-9B-Q4_0.gguf: taken: mtp"}},
    {"several: the first by name",
     "m/big.gguf",
     {"nano target m/big.gguf", "nano dflash m/z-DFlash.gguf", "nano dflash m/y-DFlash.gguf"},
     {"m/y-DFlash.gguf: taken: dflash",
      "m/z-DFlash.gguf: passed over: it fits, but y-DFlash.gguf is the first by name"}},
    {"several: the directory of the model first",
     "m/big.gguf",
     {"nano target m/big.gguf", "nano dflash m/x.gguf", "nano dflash big-DFlash/big-DFlash.gguf"},
     {"m/x.gguf: taken: dflash",
      "big-DFlash/big-DFlash.gguf: passed over: it fits, but x.gguf is in the directory of the model"}},
    {"a DSpark drafter, whose configuration is a copy of a model's",
     "big",
     {"golden gemma4-dense big", "golden gemma4-dense-dspark dspark_big_block7"},
     {"dspark_big_block7: taken: dflash, fits the width 128 and the vocabulary of 512"}},
    {"Hugging Face directories next to each other",
     "gemma4-moe",
     {"golden gemma4-moe gemma4-moe", "golden gemma4-moe-assistant gemma4-moe-assistant",
      "golden gemma4-moe-dflash gemma4-moe-dflash", "golden gemma4-dense unrelated"},
     {"gemma4-moe-assistant: taken: mtp, fits the width 128 and the vocabulary of 512",
      "gemma4-moe-dflash: taken: dflash"}},
    {"drafters that do not fit",
     "m/big.gguf",
     {"nano target m/big.gguf", "golden gemma4-moe-dflash big-DFlash", "golden gemma4-moe-assistant big-assistant",
      "golden gemma4-dense small-assistant"},
     {"big-DFlash: passed over: its vocabulary has 512 tokens, the target's 4096",
      "big-assistant: passed over: the assistant is for a target of width 128, this one's is 256",
      "small-assistant: passed over: not a drafter, but of kind 'gemma4_text'"}},
    {"a cache of Hugging Face, the snapshot of refs/main",
     HUB "/snapshots/0a/Q8_0/big.gguf",
     {"nano target " HUB "/blobs/11", "link ../../../blobs/11 " HUB "/snapshots/0a/Q8_0/big.gguf",
      "nano mtp " HUB "/blobs/12", "link ../../blobs/12 " HUB "/snapshots/0a/mtp-big.gguf",
      "nano dflash " DRAFTER "/blobs/21", "text 02\n " DRAFTER "/refs/main",
      "link ../../blobs/21 " DRAFTER "/snapshots/01/big-old-DFlash.gguf",
      "link ../../blobs/21 " DRAFTER "/snapshots/02/big-DFlash.gguf", "text x " OTHER "/README.md"},
     {HUB "/snapshots/0a/mtp-big.gguf: taken: mtp", DRAFTER "/snapshots/02/big-DFlash.gguf: taken: dflash"}},
    {"a cache with links out of it",
     HUB "/snapshots/0a/big.gguf",
     {"nano target " HUB "/blobs/11", "link ../../blobs/11 " HUB "/snapshots/0a/big.gguf",
      "nano dflash " OTHER "/blobs/21",
      "link ../../../models--z-lab--other-DFlash/blobs/21 " DRAFTER "/snapshots/01/big-DFlash.gguf",
      "link /dev/zero " HUB "/snapshots/0a/mtp-big.gguf"},
     {HUB "/snapshots/0a/mtp-big.gguf: passed over: it is a symbolic link to another place",
      DRAFTER "/snapshots/01/big-DFlash.gguf: passed over: it is a symbolic link"}},
    {"links in a directory",
     "m/big.gguf",
     {"nano target m/big.gguf", "nano dflash away/one.gguf", "link ../away/one.gguf m/big-DFlash.gguf",
      "nano mtp m/data", "link data m/mtp-big.gguf", "link ../away m/x-assistant", "link nowhere m/y-assistant.gguf"},
     {"m/big-DFlash.gguf: passed over: it is a symbolic link", "m/mtp-big.gguf: taken: mtp",
      "m/x-assistant: passed over: it is a symbolic link", "m/y-assistant.gguf: passed over: it is a symbolic link"}},
    {"a model with an MTP head of its own",
     "qwen35-dense",
     {"golden qwen35-dense qwen35-dense", "golden qwen35-dense-dflash qwen35-dense-dflash",
      "golden gemma4-moe-assistant x-assistant"},
     {"qwen35-dense-dflash: taken: dflash",
      "x-assistant: passed over: the model has an MTP head of its own (--draft mtp)"}},
    {"files that cannot be read, and other things",
     "m/big.gguf",
     {"nano target m/big.gguf", "text GGUF m/mtp-big.gguf", "fifo - m/mtp-pipe.gguf",
      "text {} m/big-assistant/config.json", "text {} m/big-assistant/model.safetensors"},
     {"m/big-assistant: passed over: ", "m/mtp-big.gguf: passed over: "}},
    {"parts of split files, and a directory for drafters",
     "m/big-00001-of-00002.gguf",
     {"nano target m/big-00001-of-00002.gguf", "nano dflash m/big-00002-of-00002.gguf", "nano mtp m/MTP/big.gguf",
      "nano dflash m/MTP/big-DFlash-00002-of-00002.gguf"},
     {"m/MTP/big.gguf: taken: mtp"}},
};

static const char *in_dir(const char *name)
{
    static char path[4][512];
    static int  at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", test_tmp_dir(), name);
    return path[at];
}

/* Makes the directories above a file. */
static void make_above(const char *path)
{
    char dir[512];
    for (const char *slash = path; (slash = strchr(slash + 1, '/'));) {
        snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
        mkdir(dir, 0700);
    }
}

static void copy(const char *from, const char *to)
{
    struct stat st;
    make_above(to);
    int in = open(from, O_RDONLY);
    if (in < 0) return;
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out < 0 || fstat(in, &st) != 0 || sendfile(out, in, NULL, (size_t)st.st_size) != st.st_size) abort();
    close(in);
    close(out);
}

static void make_one(const char *command)
{
    char word[16], from[128], to[160], path[256];
    if (sscanf(command, "%15s %127[^ ] %159s", word, from, to) != 3) abort();
    const char *at = in_dir(to);
    make_above(at);
    if (!strcmp(word, "nano")) {
        snprintf(path, sizeof path, "models/nano/%s.gguf", from);
        copy(test_path(path), at);
    } else if (!strcmp(word, "golden")) {
        static const char *const files[] = {"config.json", "model.safetensors", "mtp.safetensors"};
        for (size_t i = 0; i < COUNT(files); i++) {
            char copied[256];
            snprintf(path, sizeof path, "tests/golden/%s/%s", from, files[i]);
            snprintf(copied, sizeof copied, "%s/%s", to, files[i]);
            copy(test_path(path), in_dir(copied));
        }
    } else if (!strcmp(word, "link")) {
        if (symlink(from, at) != 0) abort();
    } else if (!strcmp(word, "text")) {
        test_tmp_file(to, from, strlen(from));
    } else if (!strcmp(word, "fifo")) {
        if (mkfifo(at, 0600) != 0) abort();
    } else {
        for (int i = 0; i <= FIND_MAX_ENTRIES; i++) {
            snprintf(path, sizeof path, "%s/%d", to, i);
            close(open(in_dir(path), O_CREAT | O_WRONLY, 0600));
        }
    }
}

static void check_found(test_case *t, const layout *l, const found_drafter *f, const char *want)
{
    char        root[4096], seen[5000];
    const char *colon = strchr(want, ':');
    if (!realpath(test_tmp_dir(), root)) abort();
    snprintf(seen, sizeof seen, "%s: %s", f->path + strlen(root) + 1, f->why);
    CHECK_MSG(!strncmp(seen, want, strlen(want)), "%s: '%.300s', expected '%s'", l->what, seen, want);
    CHECK_MSG(f->taken == !strncmp(colon, ": taken", 7), "%s: %s", l->what, want);
}

static void check_layout(test_case *t, const layout *l)
{
    checkpoint *model;
    err         e = {0};
    int         n = 0, wanted = 0;
    for (int i = 0; i < MAX_STEPS && l->make[i]; i++) make_one(l->make[i]);
    if (!CHECK_OK(checkpoint_open(&model, in_dir(l->model), &e), e)) return;
    found_drafter *all = find_drafters(model, &n);
    while (wanted < MAX_WANT && l->want[wanted]) wanted++;
    CHECK_MSG(n == wanted, "%s: %d entries, expected %d", l->what, n, wanted);
    for (int i = 0; i < n && i < wanted; i++) check_found(t, l, &all[i], l->want[i]);
    for (int i = wanted; i < n; i++) CHECK_MSG(false, "%s: also %s: %s", l->what, all[i].path, all[i].why);
    mem_free(all);
    checkpoint_close(model);
    test_tmp_clear();
}

TEST(drafters_are_found_next_to_a_model)
{
    for (size_t i = 0; i < COUNT(layouts); i++) check_layout(t, &layouts[i]);
}

TEST_LONG(search_for_drafters_passes_over_large_directories)
{
    static const layout large = {
        "too many entries",
        "m/x/big.gguf",
        {"nano target m/x/big.gguf", "nano mtp m/x/mtp-big.gguf", "nano dflash m/big-DFlash/a.gguf", "many - m"},
        {"m/x/mtp-big.gguf: taken: mtp", "m: not searched: it has more than 4096 entries"}};
    check_layout(t, &large);
}

TEST(search_for_drafters_opens_a_bounded_number_of_files)
{
    checkpoint *model;
    err         e = {0};
    int         n;
    make_one("nano target m/big.gguf");
    for (int i = 0; i < FIND_MAX + 9; i++) {
        char command[64];
        snprintf(command, sizeof command, "text x m/mtp-%02d.gguf", i);
        make_one(command);
    }
    if (!CHECK_OK(checkpoint_open(&model, in_dir("m/big.gguf"), &e), e)) return;
    found_drafter *all = find_drafters(model, &n);
    CHECK_INT(n, FIND_MAX + 1);
    CHECK_STR(str_of(all[n - 1].why), STR("not searched to the end: there are more than 64 candidates"));
    mem_free(all);
    checkpoint_close(model);
}

TEST(search_for_drafters_of_a_drafter_finds_nothing)
{
    checkpoint *c;
    err         e = {0};
    int         n;
    if (!CHECK_OK(checkpoint_open(&c, test_path("models/nano/dflash.gguf"), &e), e)) return;
    found_drafter *all = find_drafters(c, &n); /* a drafter is no model */
    CHECK_INT(n, 0);
    mem_free(all);
    checkpoint_close(c);
}
