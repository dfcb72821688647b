#include "sched/engine.h"
#include "daemon/inside.h"

#include <stdio.h>

bool daemon_open_engine(tandem **out, const daemon_options *o, daemon_io *io, char fingerprint[DAEMON_FINGERPRINT],
                        err *e)
{
    if (!o->open(o->open_ctx, out, daemon_io_wake, io, e)) return false;
    const char *found = engine_info(*out)->fingerprint;
    if (!fingerprint[0]) snprintf(fingerprint, DAEMON_FINGERPRINT, "%s", found);
    if (!strcmp(fingerprint, found)) return true;
    tandem_close(*out);
    *out = NULL;
    return err_set(e, ERR_FORMAT, "the files of the model changed while it was parked");
}

int daemon_turn_drafters(tandem *t, bool park, uint64_t *bytes, err *e)
{
    tandem_drafter_info x[TANDEM_MAX_DRAFTERS];
    tandem_error        why = {0};
    int                 n = tandem_drafters(t, x), changed = 0;
    for (int i = 0; i < n && !why.code; i++) {
        if (x[i].state != (park ? TANDEM_DRAFTER_OPEN : TANDEM_DRAFTER_PARKED)) continue;
        if (!(park ? tandem_park_drafter : tandem_unpark_drafter)(t, x[i].method, &why)) continue;
        *bytes += x[i].weight_bytes;
        changed++;
    }
    if (why.code) err_set(e, (err_code)why.code, "%s", why.text);
    return changed;
}
