/* Events of devices and of the system. */
#include "fake.h"
