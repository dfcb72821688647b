/* Files of sections: what was written is read back; changed, cut and foreign files are refused. */
#include "store/pack.h"

#include "base/thread.h"
#include "store/inside.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fill(test_case *t, pack *p)
{
    static const size_t bytes[] = {16, 0, 1000, 7};
    *p                          = (pack){.kind = 3, .fingerprint = {1, 2}};
    for (size_t i = 0; i < COUNT(bytes); i++) {
        pack_section *s = pack_add(p, (uint32_t)i + 1, (uint32_t)i, bytes[i]);
        if (!CHECK(s)) return false;
        s->first = -(int)i;
        s->n     = (int)i * 5;
        s->tag   = (hash128){i, i + 1};
        for (size_t k = 0; k < bytes[i]; k++) ((char *)s->data)[k] = (char)(k * 7 + i);
    }
    return true;
}

/* Returns whether the file is read without an error and has the contents of `want`. */
static bool reads_as(const pack *want, int fd, err *e)
{
    pack p;
    bool ok = pack_open(&p, fd, e);
    for (int i = 0; ok && i < p.n; i++) ok = pack_load(&p, fd, i, e);
    ok = ok && p.n == want->n && p.kind == want->kind && hash128_equal(p.fingerprint, want->fingerprint);
    for (int i = 0; ok && i < p.n; i++) {
        const pack_section *a = &p.section[i], *b = &want->section[i];
        ok = a->kind == b->kind && a->id == b->id && a->first == b->first && a->n == b->n && a->bytes == b->bytes &&
             hash128_equal(a->tag, b->tag) && (!a->bytes || !memcmp(a->data, b->data, a->bytes));
    }
    pack_deinit(&p);
    return ok;
}

static size_t write_file(test_case *t, FILE *f, pack *p)
{
    err e = {0};
    CHECK_OK(pack_write(p, fileno(f), &e), e);
    return (size_t)lseek(fileno(f), 0, SEEK_END);
}

TEST(pack_reads_what_was_written)
{
    pack  p;
    err   e = {0};
    FILE *f = tmpfile();
    if (fill(t, &p)) {
        CHECK_INT((int)write_file(t, f, &p), (int)pack_bytes(&p));
        CHECK_OK(reads_as(&p, fileno(f), &e), e);
        CHECK(pack_find(&p, 3, 2) == &p.section[2] && !pack_find(&p, 3, 1));
    }
    pack_deinit(&p);
    fclose(f);
}

TEST(pack_refuses_every_flipped_bit_and_every_truncation)
{
    pack  p;
    err   e = {0};
    FILE *f = tmpfile();
    if (fill(t, &p)) {
        size_t n = write_file(t, f, &p), wrong = 0;
        for (size_t bit = 0; bit < 8 * n; bit++) {
            char c, changed;
            if (pread(fileno(f), &c, 1, (off_t)(bit / 8)) != 1) break;
            changed = (char)(c ^ 1 << bit % 8);
            if (pwrite(fileno(f), &changed, 1, (off_t)(bit / 8)) != 1) break;
            wrong += reads_as(&p, fileno(f), &e) || e.code != ERR_FORMAT || !e.text[0];
            if (pwrite(fileno(f), &c, 1, (off_t)(bit / 8)) != 1) break;
        }
        CHECK_INT((int)wrong, 0);
        CHECK_OK(reads_as(&p, fileno(f), &e), e);
        while (n-- > 0) {
            if (!CHECK(!ftruncate(fileno(f), (off_t)n))) break;
            CHECK(!reads_as(&p, fileno(f), &e) && e.code == ERR_FORMAT);
        }
    }
    pack_deinit(&p);
    fclose(f);
}

TEST(pack_names_another_version)
{
    pack  p;
    err   e = {0};
    FILE *f = tmpfile();
    if (fill(t, &p)) {
        write_file(t, f, &p);
        CHECK_INT((int)pwrite(fileno(f), "\0", 1, 8), 1);
        CHECK(!reads_as(&p, fileno(f), &e) && strstr(e.text, "format version 0"));
    }
    pack_deinit(&p);
    fclose(f);
}

TEST(pack_saves_whole_files_with_mode_600)
{
    const char *dir = test_tmp_dir();
    pack        p, q;
    err         e = {0};
    struct stat st;
    if (!fill(t, &p)) return;
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    CHECK_OK(pack_save(&p, fd, "a", &e), e);
    CHECK_OK(pack_save(&p, fd, "a", &e), e); /* replaces the file */
    CHECK(fstatat(fd, "a", &st, 0) == 0 && (st.st_mode & 07777) == 0600);
    CHECK_OK(pack_read(&q, fd, "a", &e), e);
    pack_deinit(&q);
    CHECK(!pack_read(&q, fd, "b", &e) && e.code == ERR_NOT_FOUND);
    CHECK(!pack_save(&p, fd, "no/such", &e) && e.code == ERR_IO);
    DIR *d = opendir(dir);
    for (struct dirent *x; (x = readdir(d));) CHECK(strncmp(x->d_name, ".part-", 6));
    closedir(d);
    close(fd);
    pack_deinit(&p);
}

TEST(pack_save_leaves_the_temporary_file_of_another_writer)
{
    pack        p;
    err         e = {0};
    struct stat st;
    char        a[PACK_TEMP_MAX], b[PACK_TEMP_MAX];
    if (!fill(t, &p)) return;
    pack_temp_name(a);
    pack_temp_name(b);
    CHECK(strcmp(a, b) && pack_is_leftover(a));
    CHECK(strncmp(a, b, strlen(".part-") + 8)); /* random from the first digit on */
    int fd = open(test_tmp_dir(), O_RDONLY | O_DIRECTORY), other = openat(fd, a, O_WRONLY | O_CREAT, 0600);
    CHECK(!pack_save_over(&p, fd, a, "x", &e) && e.code == ERR_IO);
    CHECK(fstatat(fd, a, &st, 0) == 0 && fstatat(fd, "x", &st, 0) < 0);
    CHECK_OK(pack_save_over(&p, fd, b, "x", &e), e);
    unlinkat(fd, a, 0);
    close(other);
    close(fd);
    pack_deinit(&p);
}

/* Loads sections 0, 1 and 3 by the threads. */
static bool load_three(pack *p, int fd, pool *threads, err *e)
{
    static const bool wanted[PACK_MAX_SECTIONS] = {true, true, false, true};
    return pack_open(p, fd, e) && pack_load_many(p, fd, wanted, threads, e);
}

TEST(pack_is_read_by_several_threads)
{
    static const size_t bytes[] = {100, (9 << 20) + 5, 1000, 8 << 20};
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        pool *threads = pool_new(n_threads);
        FILE *f       = tmpfile();
        pack  p       = {.kind = 3}, q;
        err   e       = {0};
        char  byte;
        for (size_t i = 0; i < COUNT(bytes); i++) {
            pack_section *s = pack_add(&p, 1, (uint32_t)i, bytes[i]);
            for (size_t k = 0; k < bytes[i]; k++) ((char *)s->data)[k] = (char)(k * 31 + (k >> 12) + i);
        }
        size_t all = write_file(t, f, &p);
        if (CHECK_OK(load_three(&q, fileno(f), threads, &e), e))
            for (int i = 0; i < q.n; i++)
                CHECK(i == 2 ? !q.section[i].data : !memcmp(q.section[i].data, p.section[i].data, bytes[i]));
        pack_deinit(&q);
        off_t at = (off_t)p.section[1].offset + (5 << 20);
        CHECK(pread(fileno(f), &byte, 1, at) == 1);
        byte ^= 4;
        CHECK(pwrite(fileno(f), &byte, 1, at) == 1);
        CHECK_FAILS(load_three(&q, fileno(f), threads, &e), e, "the checksum of section 1 does not match");
        CHECK(e.code == ERR_FORMAT && !q.section[1].data);
        pack_deinit(&q);
        static const bool third[PACK_MAX_SECTIONS] = {false, false, false, true};
        CHECK_OK(pack_open(&q, fileno(f), &e), e);
        CHECK(ftruncate(fileno(f), (off_t)all - 1) == 0);
        CHECK_FAILS(pack_load_many(&q, fileno(f), third, threads, &e), e, "the file ends 1 bytes early");
        pack_deinit(&q);
        pack_deinit(&p);
        fclose(f);
        pool_free(threads);
    }
}
