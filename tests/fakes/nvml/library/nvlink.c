/* NVLink, the fabric, and the chip-to-chip link. */
#include "fake.h"
