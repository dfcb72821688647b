/* tests/unit/kv/kv_rig.h - a pool on the ref backend, whose memory the host sees; pages hold tags that tests write. */
#ifndef TANDEM_KV_RIG_H
#define TANDEM_KV_RIG_H
#include "kv/prefix.h"
#include "test.h"

typedef struct {
    test_case *t;
    ops       *o;
    queue     *q;
    kv_pool   *p;
    kv_prefix *tree;
} kv_rig;

enum { RIG_FULL, RIG_SLIDING, RIG_WINDOW = 40 };
extern const kv_class_spec kv_rig_classes[2]; /* one without a window, one with RIG_WINDOW */
extern const kv_class_spec kv_rig_drafter;

/* max_bytes 0: what one lane needs. */
kv_rig kv_rig_open(test_case *t, size_t max_bytes, int max_lanes, int max_slots);
void   kv_rig_close(kv_rig *g);

/* As the device sees it, after a flush. */
int32_t kv_rig_entry(kv_rig *g, int cls, const kv_seq *s, int page);
/* A tag in every plane of a slot; 0 when the planes differ. */
void     kv_rig_write(kv_rig *g, int cls, const kv_seq *s, int32_t slot, uint32_t tag);
uint32_t kv_rig_read(kv_rig *g, int cls, const kv_seq *s, int32_t slot);
/* Slots [from, to) of the sequence, which grows, get tags that follow `first`, in every class of group 0. */
void kv_rig_extend(kv_rig *g, kv_seq *s, int32_t to, uint32_t first);
void kv_rig_expect(kv_rig *g, int cls, const kv_seq *s, int32_t from, int32_t to, uint32_t first);
#endif
