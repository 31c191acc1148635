#include "decode/wire.h"

bool xpr_wire_skip(xpr_wire *w, uint32_t tag) {
    uint32_t open[XPR_GROUP_DEPTH]; /* field numbers of the groups we are in */
    int depth = 0;
    for (;;) {
        uint64_t number;
        xpr_wire inner;
        switch (tag & 7) {
        case XPR_VARINT:
            if (!xpr_wire_varint(w, &number)) return false;
            break;
        case XPR_FIXED64:
            if (!xpr_wire_fixed64(w, &number)) return false;
            break;
        case XPR_LEN:
            if (!xpr_wire_inner(w, &inner)) return false;
            break;
        case XPR_FIXED32:
            if (w->end - w->at < 4) return xpr_wire_fail(w, w->at, "the message ends inside a number");
            w->at += 4;
            break;
        case XPR_GROUP:
            if (depth == XPR_GROUP_DEPTH) return xpr_wire_fail(w, w->at, "groups nested too deep");
            open[depth++] = tag >> 3;
            break;
        default: /* XPR_END_GROUP: xpr_wire_tag lets no other type through */
            if (depth == 0 || open[depth - 1] != tag >> 3)
                return xpr_wire_fail(w, w->at, "the end of a group that was not begun");
            depth--;
            break;
        }
        if (depth == 0) return true;
        if (w->at == w->end) return xpr_wire_fail(w, w->at, "the message ends inside a group");
        if (!xpr_wire_tag(w, &tag)) return false;
    }
}
