/* MIG devices. */
#include "fake.h"
