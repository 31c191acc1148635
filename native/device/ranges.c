#include "device/ranges.h"

_Atomic(const struct xpr_device_ranges *) xpr_device_ranges;
