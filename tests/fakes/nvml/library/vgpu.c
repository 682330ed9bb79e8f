/* vGPUs: the host's types and instances, and what a guest sees. */
#include "fake.h"
