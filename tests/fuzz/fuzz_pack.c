/* A file of stored K/V: it is refused with a sentence, or all that it contains is as the header says. An input whose
 * first byte is not that of the magic number is tested with its checksums repaired, so that the code after them is
 * reached. */
#include "store/inside.h"

#include "kv/image.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FIXED = 48, ENTRY = 64, CHECKSUM = 8, MAX_INPUT = 1 << 20 };

static uint64_t number_at(const uint8_t *p) /* little-endian, as this machine */
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Sets the magic number, the size, and the checksums of sections that are within the file and of the header. */
static void repair(uint8_t *file, size_t size)
{
    if (size < FIXED) return;
    memcpy(file, "tandemKV\1\0\0", 11);
    uint64_t n = number_at(file + 16), bytes = size;
    if (n > PACK_MAX_SECTIONS || FIXED + n * ENTRY + CHECKSUM > size) return;
    memcpy(file + 40, &bytes, sizeof bytes);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *entry  = file + FIXED + i * ENTRY;
        uint64_t offset = number_at(entry + 32), length = number_at(entry + 40);
        if (offset > size || length > size - offset) continue;
        hash128 h = hash128_of(file + offset, length);
        memcpy(entry + 48, &h, sizeof h);
    }
    uint64_t sum = XXH3_64bits(file, FIXED + n * ENTRY);
    memcpy(file + FIXED + n * ENTRY, &sum, sizeof sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static pack     p;
    static uint8_t  file[MAX_INPUT];
    kv_image_filter all = {0};
    err             e   = {0};
    int             fd  = memfd_create("pack", MFD_CLOEXEC);
    if (size > MAX_INPUT) size = MAX_INPUT;
    memcpy(file, data, size);
    if (size && data[0] != 't') repair(file, size);
    if (fd < 0 || write(fd, file, size) != (ssize_t)size) abort();
    if (pack_open(&p, fd, &e)) {
        size_t total = 0;
        assert(pack_bytes(&p) == size);
        for (int i = 0; i < p.n; i++) {
            total += p.section[i].bytes;
            kv_image_wants(&all, &p.section[i], p.section[i].first & 0xffffff); /* of a text that is in memory */
            bool ok = pack_load(&p, fd, i, &e);
            assert(ok || e.text[0]);
        }
        assert(total <= size);
        err why = {0};
        for (int i = 0; i < p.n; i++)
            assert(kv_image_fits(&all, &p, p.section[i].first & 0xff, &why) || (why.code == ERR_FORMAT && why.text[0]));
    } else
        assert(e.code == ERR_FORMAT && e.text[0]);
    pack_deinit(&p);
    close(fd);
    return 0;
}
