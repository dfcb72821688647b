/* A file of stored K/V: it is refused with a sentence, or all that it contains is as the header says. */
#include "store/pack.h"

#include "kv/image.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static pack     p;
    kv_image_filter all = {0};
    err             e   = {0};
    int             fd  = memfd_create("pack", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    if (pack_open(&p, fd, &e)) {
        size_t total = 0;
        assert(pack_bytes(&p) == size);
        for (int i = 0; i < p.n; i++) {
            total += p.section[i].bytes;
            kv_image_wants(&all, &p.section[i], p.section[i].first);
            bool ok = pack_load(&p, fd, i, &e);
            assert(ok || e.text[0]);
        }
        assert(total <= size);
    } else
        assert(e.code == ERR_FORMAT && e.text[0]);
    pack_deinit(&p);
    close(fd);
    return 0;
}
